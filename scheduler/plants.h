#pragma once
// Known bugs that the checker has to find (MECHANISMS 5.4), one at a time, chosen at run time.
//
// Only a test build defines TIDEPOOL_PLANTS (target tidepool_scheduler_planted); everywhere else
// TP_PLANTED(n) is the constant false and nothing of it is in the program.

#ifdef TIDEPOOL_PLANTS
namespace tidepool::scheduler {
inline int& PlantedBug() {
  static int bug = 0;  // 0: none
  return bug;
}
}  // namespace tidepool::scheduler
#define TP_PLANTED(n) (::tidepool::scheduler::PlantedBug() == (n))
#else
#define TP_PLANTED(n) false
#endif
