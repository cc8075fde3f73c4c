#include "workers/net/worker_trace.h"

#include <chrono>

#include "core/observe/log.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

TimePoint TraceNow() {
  return {std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

std::unique_ptr<observe::TraceWriter> OpenWorkerTrace(const down::Welcome& welcome, Incarnation inc,
                                                      const std::string& name,
                                                      const std::vector<std::pair<int, std::string>>& rows) {
  observe::TraceOptions options;
  options.worker = welcome.place + 1;
  options.worker_name = name;
  options.clock_offset = Duration(welcome.run_clock_ns) - TraceNow().since_start;
  auto trace =
      observe::TraceWriter::Create(storage::RunPaths(welcome.run_dir).trace() + "/" + options.worker_name +
                                       "-inc" + std::to_string(inc.value) + ".json.gz",
                                   options);
  if (!trace.ok()) {
    observe::Log(LogLevel::kWarn, "trace_failed", {{"text", trace.status().message()}});
    return nullptr;
  }
  for (const auto& [row, word] : rows) (*trace)->NameRole(row, word);
  return std::move(*trace);
}

}  // namespace tidepool::workers
