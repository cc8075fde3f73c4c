#include <algorithm>
#include <numeric>

#include "core/base/names.h"
#include "core/tasks/factories.h"

namespace tidepool::tasks {
namespace {

const std::vector<TaskEntry>& Entries() {
  static const std::vector<TaskEntry> entries = [] {
    std::vector<TaskEntry> all;
    for (auto part : {ArithmeticTasks, StringTasks, WordTasks, CountdownTasks, NumberTasks}) {
      for (TaskEntry& entry : part()) all.push_back(std::move(entry));
    }
    return all;
  }();
  return entries;
}

StatusOr<const TaskEntry*> Find(const std::string& name) {
  std::vector<std::string> names;
  for (const TaskEntry& entry : Entries()) {
    if (entry.info.name == name) return &entry;
    names.push_back(entry.info.name);
  }
  return NotFound("task: no task is named '" + name + "'; " + DidYouMean(name, names));
}

}  // namespace

TaskEntry SpaceTask(TaskInfo info, StrataOf strata, DecodePick decode) {
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
    TP_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, strata(options));
    TP_ASSIGN_OR_RETURN(QuestionSpace space, QuestionSpace::Create(std::move(sizes), request.size,
                                                                   request.held_out, request.seed));
    return std::unique_ptr<Task>(std::make_unique<Decoded>(std::move(space), options, request.seed, decode));
  };
  const auto units = [strata](const OptionValues& options) -> StatusOr<int64_t> {
    TP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, strata(options));
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}, SaturatingAdd);
  };
  return {.info = std::move(info), .make = make, .units = units};
}

const std::vector<TaskInfo>& ListTasks() {
  static const std::vector<TaskInfo> infos = [] {
    std::vector<TaskInfo> all;
    for (const TaskEntry& entry : Entries()) all.push_back(entry.info);
    return all;
  }();
  return infos;
}

const TaskInfo* FindTask(std::string_view name) {
  const auto it = std::ranges::find(ListTasks(), name, &TaskInfo::name);
  return it == ListTasks().end() ? nullptr : &*it;
}

StatusOr<std::unique_ptr<Task>> MakeTask(const TaskRequest& request) {
  TP_ASSIGN_OR_RETURN(const TaskEntry* entry, Find(request.name));
  TP_ASSIGN_OR_RETURN(const OptionValues options, OptionValues::Parse(entry->info.options, request.options));
  return entry->make(options, request);
}

StatusOr<int64_t> CountUnits(const std::string& name,
                             const std::map<std::string, std::string>& option_texts) {
  TP_ASSIGN_OR_RETURN(const TaskEntry* entry, Find(name));
  TP_ASSIGN_OR_RETURN(const OptionValues options, OptionValues::Parse(entry->info.options, option_texts));
  return entry->units(options);
}

}  // namespace tidepool::tasks
