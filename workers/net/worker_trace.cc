#include "workers/net/worker_trace.h"

#include <chrono>

#include "core/base/places.h"
#include "core/observe/log.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

TimePoint TraceNow() {
  return {std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

std::unique_ptr<observe::TraceWriter> OpenWorkerTrace(const JobConfig& config, const down::Welcome& welcome,
                                                      const std::vector<std::pair<int, std::string>>& rows) {
  observe::TraceOptions options;
  options.worker = welcome.place + 1;
  options.worker_name = PlaceName(config, welcome.place);
  options.clock_offset = Duration(welcome.run_clock_ns) - TraceNow().since_start;
  auto trace =
      observe::TraceWriter::Create(storage::RunPaths(welcome.run_dir).trace() + "/" + options.worker_name +
                                       "-inc" + std::to_string(welcome.inc.value) + ".json.gz",
                                   options);
  if (!trace.ok()) {
    observe::Log(LogLevel::kWarn, "trace_failed", {{"text", trace.status().message()}});
    return nullptr;
  }
  for (const auto& [row, word] : rows) (*trace)->NameRole(row, word);
  return std::move(*trace);
}

}  // namespace tidepool::workers
