#include <algorithm>
#include <numeric>

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
  const std::string near = Nearest(name, names);
  std::string list;
  for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
  return NotFound("task: no task is named '" + name + "'; " +
                  (near.empty() ? "there are " + list : "did you mean '" + near + "'?"));
}

}  // namespace

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

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<int64_t> row(b.size() + 1);  // Levenshtein, one row at a time
    std::iota(row.begin(), row.end(), int64_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
      int64_t diagonal = row[0];
      row[0] = static_cast<int64_t>(i);
      for (size_t j = 1; j <= b.size(); ++j) {
        const int64_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    return row.back();
  };
  if (word.empty() || word.size() > 100) return {};
  std::string best;
  // A third of the letters may be wrong; beyond that it was probably something else.
  int64_t best_distance = std::max<int64_t>(2, static_cast<int64_t>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int64_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tidepool::tasks
