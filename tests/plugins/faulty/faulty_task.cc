// A task whose factory, or a question, does not come back.
#include "core/tasks/tasks/task_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::tasks {
namespace {

const std::vector<std::string> kHow = {"no", "crash", "exit", "throw", "hang", "late"};

class FaultyTask : public Task {
 public:
  explicit FaultyTask(std::string how) : how_(std::move(how)) {}
  [[nodiscard]] int64_t train_size() const override { return 100'000; }
  [[nodiscard]] int64_t held_out_size() const override { return 0; }
  [[nodiscard]] Question Train(int64_t index) const override {
    if (index >= 10'000) DoWrong(how_);  // beyond what is looked at before a run
    return HeldOut(index);
  }
  [[nodiscard]] Question HeldOut(int64_t index) const override {
    Question q;
    for (; index > 0 || q.prompt.empty(); index /= 10) q.prompt += static_cast<char>('a' + index % 10);
    q.answer = q.prompt;
    return q;
  }

 private:
  std::string how_;
};

}  // namespace

TP_PLUGIN(Task, faulty_task) {
  return {
      .doc = "does what its options say",
      .options = {ChoiceOption("make", kHow, "what .make does"),
                  ChoiceOption("units", kHow, "what .units does"),
                  ChoiceOption("question", kHow, "what a question does")},
      .make = [](const OptionValues& o, const TaskRequest& /*request*/) -> StatusOr<std::unique_ptr<Task>> {
        DoWrong(o.Text("make"));
        return std::unique_ptr<Task>(std::make_unique<FaultyTask>(o.Text("question")));
      },
      .units = [](const OptionValues& o) -> StatusOr<int64_t> {
        DoWrong(o.Text("units"));
        return 1000;
      }};
}

}  // namespace tidepool::tasks
