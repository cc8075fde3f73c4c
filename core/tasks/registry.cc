#include <algorithm>
#include <functional>

#include "core/base/made.h"
#include "core/base/names.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

struct TaskEntry {
  TaskInfo info;
  TaskPlugin plugin;
};

// What is wrong with the plug-in itself, with its file; all else as it is.
Status Named(const TaskEntry& entry, const Status& status) {
  if (status.code() != StatusCode::kFailedPrecondition) return status;
  return FailedPrecondition("task: " + entry.info.name + " (" + entry.info.file + "): " + status.message());
}

const std::vector<TaskEntry>& Entries() {
  static const std::vector<TaskEntry> entries = [] {
    std::vector<TaskEntry> all;
    for (const auto& [name, make, file] : TaskPlugins()) {
      TaskPlugin plugin = make();
      all.push_back({{name, plugin.doc, plugin.held_out_unit, plugin.options, file}, std::move(plugin)});
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

// A plug-in's task as everybody else has it: each question is asked in a limited time, and what is thrown
// names it. Its sizes are asked once.
class LimitedTask : public Task {
 public:
  LimitedTask(std::string label, std::unique_ptr<Task> task, int64_t train_size, int64_t held_out_size)
      : label_(std::move(label)),
        task_(std::move(task)),
        train_size_(train_size),
        held_out_size_(held_out_size) {}
  [[nodiscard]] int64_t train_size() const override { return train_size_; }
  [[nodiscard]] int64_t held_out_size() const override { return held_out_size_; }
  [[nodiscard]] Question Train(int64_t index) const override {
    return Ask("question " + std::to_string(index), [&] { return task_->Train(index); });
  }
  [[nodiscard]] Question HeldOut(int64_t index) const override {
    return Ask("held-out question " + std::to_string(index), [&] { return task_->HeldOut(index); });
  }

 private:
  template <typename Body>
  Question Ask(const std::string& which, Body&& body) const {
    return LimitedCall({.what = label_, .on = which}).Run(body);
  }

  const std::string label_;
  const std::unique_ptr<const Task> task_;
  const int64_t train_size_, held_out_size_;
};

StatusOr<int64_t> SizeOf(const std::string& label, const char* function, int64_t least,
                         const std::function<int64_t()>& size) {
  TP_ASSIGN_OR_RETURN(const int64_t found, Made({.label = label, .function = function, .place = "task: "},
                                                [&]() -> StatusOr<int64_t> { return size(); }));
  if (found >= least) return found;
  return FailedPrecondition(std::string(function) + " is " + std::to_string(found) + ", expected " +
                            std::to_string(least) + " or more");
}

}  // namespace

// core/base/plugin_check.h.
std::string FaultOf(const TaskPlugin& plugin) {
  if (plugin.make == nullptr) return "has no .make";
  return plugin.units == nullptr ? "has no .units" : "";
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

std::string TaskLabel(std::string_view name) {
  const TaskInfo* info = FindTask(name);
  return "task " + std::string(name) + (info == nullptr ? "" : " (" + info->file + ")");
}

StatusOr<std::unique_ptr<Task>> MakeTask(const TaskRequest& request) {
  TP_ASSIGN_OR_RETURN(const TaskEntry* entry, Find(request.name));
  TP_ASSIGN_OR_RETURN(const OptionValues options, OptionValues::Parse(entry->info.options, request.options));
  const std::string label = TaskLabel(entry->info.name);
  auto made = Made({.label = label, .place = "task: "}, [&] { return entry->plugin.make(options, request); });
  if (made.ok() && *made == nullptr) made = FailedPrecondition(".make gave no task");
  if (!made.ok()) return Named(*entry, made.status());
  const Task& task = **made;
  const auto train = SizeOf(label, "train_size()", 1, [&] { return task.train_size(); });
  if (!train.ok()) return Named(*entry, train.status());
  const auto held_out = SizeOf(label, "held_out_size()", 0, [&] { return task.held_out_size(); });
  if (!held_out.ok()) return Named(*entry, held_out.status());
  return std::unique_ptr<Task>(std::make_unique<LimitedTask>(label, *std::move(made), *train, *held_out));
}

StatusOr<int64_t> CountUnits(const std::string& name,
                             const std::map<std::string, std::string>& option_texts) {
  TP_ASSIGN_OR_RETURN(const TaskEntry* entry, Find(name));
  TP_ASSIGN_OR_RETURN(const OptionValues options, OptionValues::Parse(entry->info.options, option_texts));
  const StatusOr<int64_t> units =
      Made({.label = TaskLabel(entry->info.name), .function = ".units", .place = "task: "},
           [&] { return entry->plugin.units(options); });
  if (!units.ok()) return Named(*entry, units.status());
  return units;
}

}  // namespace tidepool::tasks
