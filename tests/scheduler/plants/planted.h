#pragma once
// Which of the planted bugs is in the program just now (0: none). The patches in this folder put them into a
// copy of the scheduler's sources; every file of the copy is compiled with this header.

namespace tidepool::scheduler {
inline int& PlantedBug() {
  static int bug = 0;
  return bug;
}
inline bool Planted(int bug) { return PlantedBug() == bug; }
}  // namespace tidepool::scheduler
