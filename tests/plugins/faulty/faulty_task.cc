// A task whose factory does not come back.
#include "core/tasks/tasks/task_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::tasks {
namespace {

const std::vector<std::string> kHow = {"no", "crash", "exit", "throw", "hang"};

}  // namespace

TP_PLUGIN(Task, faulty_task) {
  return {
      .doc = "does what its options say",
      .options = {ChoiceOption("make", kHow, "what .make does"),
                  ChoiceOption("units", kHow, "what .units does")},
      .make = [](const OptionValues& o, const TaskRequest& /*request*/) -> StatusOr<std::unique_ptr<Task>> {
        DoWrong(o.Text("make"));
        return InvalidArgument("make: nothing is wrong with it");
      },
      .units = [](const OptionValues& o) -> StatusOr<int64_t> {
        DoWrong(o.Text("units"));
        return 1000;
      }};
}

}  // namespace tidepool::tasks
