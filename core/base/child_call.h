#pragma once
// A call into a plug-in that is tried for the first time: in a child of this process, with a deadline, so
// that one that hangs or crashes takes neither this process along nor anybody's patience.
//
//   const auto said = InChild([&](const ChildNote& note) {
//     note("step 1", 60s);
//     return game->Step("5").observation;
//   });
//
// The child is a fork: it has all that this process has, and nothing that it changes is seen here. So only
// for processes, or parts of their lives, without other threads that the body would wait for. Time in which
// this process was stopped (SIGSTOP, Ctrl-Z) does not count, as in CallWatch.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace tidepool {

// Says what the child does next and how long that may take; called before each part of the body.
using ChildNote = std::function<void(const std::string& what, std::chrono::duration<double> limit)>;

// Of a part whose calls have limits of their own.
inline constexpr std::chrono::hours kNoLimit{24 * 365};

// How a child ended that did not come to the end of its body.
struct ChildEnd {
  std::optional<int> signal, exit_status;
};

// What `body` returned there. Errors begin with the last note: kDeadlineExceeded: it did not end within its
// limit; kAborted: its process was killed, by which signal, or it ended itself; kInternal: it threw an
// exception, in its words; kUnavailable: there is no child. Before the first note it is "its first call",
// which may take 10 s. `end`, where it is given, is filled for kAborted.
StatusOr<std::string> InChild(const std::function<std::string(const ChildNote&)>& body,
                              ChildEnd* end = nullptr);

}  // namespace tidepool
