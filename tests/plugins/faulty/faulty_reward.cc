// A reward that does not come back, or takes the process along; the argument says how.
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "core/tasks/rewards/reward_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::tasks {
namespace {

StatusOr<Reward> MakeFaulty(const std::string& how) {
  if (how.starts_with("make ")) DoWrong(how.substr(5));
  return Reward([how](const RewardInput& in) {
    if (in.sample.empty()) {  // somebody looks at a row
      if (how.starts_with("look ")) DoWrong(how.substr(5));
      return in.answer.empty() ? NoAnswer() : Ok(0);
    }
    DoWrong(how);
    if (how == "slander") {  // words as of somebody else, and the end of its process
      std::fprintf(stderr, "while it ran reward innocent (innocent.cc) on sample 0.0.0\n");
      std::_Exit(3);
    }
    return Ok(how == "nan" ? NAN : 1);
  });
}

}  // namespace

TP_PLUGIN(Reward, faulty) {
  return {.argument = "crash, exit, hang, throw, nan, slander, or make crash ..., look crash ...",
          .doc = "does what its argument says",
          .make = MakeFaulty};
}

}  // namespace tidepool::tasks
