// A task whose factory, or a question, does not come back.
#include "core/tasks/tasks/task_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::tasks {
namespace {

const std::vector<std::string> kHow = {"no", "crash", "exit", "quit", "throw", "hang", "late", "none"};

class FaultyTask : public Task {
 public:
  FaultyTask(std::string how, std::string sizes, int64_t held_out)
      : how_(std::move(how)), sizes_(std::move(sizes)), held_out_(held_out) {}
  [[nodiscard]] int64_t train_size() const override {
    DoWrong(sizes_);
    return sizes_ == "none" ? 0 : 100'000;
  }
  [[nodiscard]] int64_t held_out_size() const override { return held_out_; }
  [[nodiscard]] Question Train(int64_t index) const override {
    if (index >= 10'000) DoWrong(how_);  // beyond what is looked at before a run
    return Letters(index);
  }
  [[nodiscard]] Question HeldOut(int64_t index) const override {
    if (index >= 9) DoWrong(how_);
    return Letters(100'000 + index);
  }

 private:
  static Question Letters(int64_t index) {
    Question q;
    for (; index > 0 || q.prompt.empty(); index /= 10) q.prompt += static_cast<char>('a' + index % 10);
    q.answer = q.prompt;
    return q;
  }

  std::string how_, sizes_;
  int64_t held_out_;
};

}  // namespace

TP_PLUGIN(Task, faulty_task) {
  return {.doc = "does what its options say",
          .options = {ChoiceOption("make", kHow, "what .make does"),
                      ChoiceOption("units", kHow, "what .units does"),
                      ChoiceOption("sizes", kHow, "what train_size() does"),
                      ChoiceOption("question", kHow, "what a question does")},
          .make = [](const OptionValues& o, const TaskRequest& request) -> StatusOr<std::unique_ptr<Task>> {
            DoWrong(o.Text("make"));
            if (o.Text("make") == "none") return std::unique_ptr<Task>();
            return std::unique_ptr<Task>(
                std::make_unique<FaultyTask>(o.Text("question"), o.Text("sizes"), request.held_out));
          },
          .units = [](const OptionValues& o) -> StatusOr<int64_t> {
            DoWrong(o.Text("units"));
            return 1000;
          }};
}

}  // namespace tidepool::tasks
