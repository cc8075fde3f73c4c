#include <numeric>

#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {

Option StyleOption(const char* default_style) {
  return {.name = "style",
          .kind = OptionKind::kChoice,
          .default_json = std::string("\"") + default_style + "\"",
          .choices = {"chat", "terse"},
          .doc =
              "wording of the prompt: a sentence for instruction-tuned models, or a few characters for tiny "
              "ones"};
}

Question NumberQuestion(std::string prompt, int64_t answer) {
  return {.prompt = std::move(prompt),
          .messages = {},
          .answer = std::to_string(answer),
          .fields = {{"answer_rule", "last_number"}}};
}

namespace {

// What the plug-in counted, if it is a count. kFailedPrecondition: its fault, not that of an option.
StatusOr<std::vector<int64_t>> CheckedStrata(StrataOf strata, const OptionValues& options) {
  TP_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, strata(options));
  for (size_t s = 0; s < sizes.size(); ++s) {
    if (sizes[s] >= 1 && sizes[s] <= kSpaceLimit) continue;
    return FailedPrecondition("stratum " + std::to_string(s) + " of " + std::to_string(sizes.size()) +
                              " has " + std::to_string(sizes[s]) +
                              " questions with these options, expected 1 to " + std::to_string(kSpaceLimit) +
                              "; leave out strata without questions, and count with SaturatingMultiply");
  }
  if (sizes.empty()) return FailedPrecondition("there is no stratum with these options; give one at least");
  return sizes;
}

}  // namespace

TaskPlugin SpaceTask(TaskPlugin about, StrataOf strata, DecodePick decode) {
  class Decoded : public Task {
   public:
    Decoded(QuestionSpace space, const OptionValues& options, uint64_t seed, DecodePick decode)
        : space_(std::move(space)), options_(options), seed_(seed), decode_(decode) {}
    [[nodiscard]] int64_t train_size() const override { return space_.train_size(); }
    [[nodiscard]] int64_t held_out_size() const override { return space_.held_out_size(); }
    [[nodiscard]] Question Train(int64_t index) const override {
      return decode_(space_.Train(index), options_, seed_);
    }
    [[nodiscard]] Question HeldOut(int64_t index) const override {
      return decode_(space_.HeldOut(index), options_, seed_);
    }

   private:
    QuestionSpace space_;
    OptionValues options_;
    uint64_t seed_;
    DecodePick decode_;
  };
  const auto make = [strata, decode](const OptionValues& options,
                                     const TaskRequest& request) -> StatusOr<std::unique_ptr<Task>> {
    TP_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, CheckedStrata(strata, options));
    TP_ASSIGN_OR_RETURN(QuestionSpace space, QuestionSpace::Create(std::move(sizes), request.size,
                                                                   request.held_out, request.seed));
    return std::unique_ptr<Task>(std::make_unique<Decoded>(std::move(space), options, request.seed, decode));
  };
  const auto units = [strata](const OptionValues& options) -> StatusOr<int64_t> {
    TP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, CheckedStrata(strata, options));
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}, SaturatingAdd);
  };
  about.make = make;
  about.units = units;
  return about;
}

}  // namespace tidepool::tasks
