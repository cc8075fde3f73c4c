#pragma once
// A part of a command in a process of its own, because it calls plug-ins: one that crashes, exits or does not
// come back ends that part, and the command goes on with the next and can say whose end it was.

#include <functional>
#include <optional>
#include <string>

namespace tidepool::workers {

struct PartEnd {
  int code = 0;               // its exit code: what `part` returned, 3 where a call of a plug-in ended it
  std::optional<int> signal;  // that killed it
  // What ended it, where it did not come to its end: "task gcd (gcd.cc) did not return within 30 s ...",
  // which the caller is to tell; where it said nothing, "its process was killed by signal 9", or which exit
  // status it had
  std::string words;
};

// `part` has all that this process has, its output too, and leaves nothing behind but that. In this process
// where there is no other to be had. An InChild (core/base/child_call.h) whose calls have limits of their
// own.
PartEnd InOwnProcess(const std::function<int()>& part);

}  // namespace tidepool::workers
