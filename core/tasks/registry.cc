#include <algorithm>

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
  auto task = Made({.label = TaskLabel(entry->info.name), .place = "task: "},
                   [&] { return entry->plugin.make(options, request); });
  if (!task.ok()) return Named(*entry, task.status());
  return task;
}

Question Ask(const Task& task, std::string_view name, int64_t index, bool held_out) {
  return LimitedCall({.what = TaskLabel(name),
                      .on = (held_out ? "held-out question " : "question ") + std::to_string(index)})
      .Run([&] { return held_out ? task.HeldOut(index) : task.Train(index); });
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
