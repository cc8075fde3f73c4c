#include "workers/cli/data_text.h"

#include <cstdio>

#include "workers/controller/job.h"

namespace tidepool::workers {

StatusOr<JobData> DataOf(const JobConfig& config) {
  JobData all;
  if (config.model.init && !config.model.init->warm_start.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, WarmStartOf(config));
    const UsualLimitFor limit(config::UsualLimitOf(warm));
    TP_ASSIGN_OR_RETURN(DataSummary summary, SummarizeData(warm.config));
    all.emplace_back("warm start", std::move(summary));
  }
  TP_ASSIGN_OR_RETURN(DataSummary summary, SummarizeData(config));
  all.emplace_back("", std::move(summary));
  return all;
}

void PrintData(const JobData& data) {
  for (const auto& [of, summary] : data) {
    if (!of.empty()) std::printf("%s:\n", of.c_str());
    for (const std::string& line : DataLines(summary)) std::printf("%s\n", line.c_str());
  }
}

}  // namespace tidepool::workers
