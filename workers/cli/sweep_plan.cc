#include "workers/cli/sweep_plan.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/config/resume.h"
#include "core/storage/run_directory.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {
namespace {

// The parts of `text` between commas that stand in no bracket and no quote.
std::vector<std::string> Values(std::string_view text) {
  std::vector<std::string> out(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      out.emplace_back();
      continue;
    }
    out.back() += c;
  }
  return out;
}

std::string LastPart(const std::string& key) { return key.substr(key.rfind('.') + 1); }  // npos + 1 is 0

// Why one device cannot serve runs that differ in this key; empty: it can.
std::string WhyOne(const std::string& key, const JobConfig& config) {
  if (key.starts_with("model.lora.") || key == "model.lora") return "";
  if (key.starts_with("model.")) return "the runs of a sweep are adapters over one model, which is read once";
  if (key.starts_with("cluster.")) return "the runs of a sweep share one device";
  if (key == "deterministic") return "it holds for a whole process, which all runs share";
  if (key == "seed" && config.model.init)
    return "the model below the adapters is made by it (model.init), and would be another one for each run; "
           "name a model by model.path";
  return "";
}

Status CheckOne(const SweepRun& run) {
  const config::LoadedConfig& loaded = run.loaded;
  const JobConfig& c = loaded.config;
  const auto wrong = [&](const std::string& key, const std::string& why) {
    return InvalidArgument(loaded.OriginOf(key).Where() + ": " + key + ": " + why);
  };
  if (!c.model.trains_adapter())
    return wrong(
        "model.lora.rank",
        "is 0, which trains the whole model: each run of a sweep would have a model, gradients and an "
        "optimizer of its own, and nothing to share; set a rank, or run `tidepool train` for each "
        "value");
  if (c.cluster.slots != 1)
    return wrong("cluster.slots", "is " + std::to_string(c.cluster.slots) +
                                      ", but the runs of a sweep take turns on one device; set "
                                      "cluster.slots=1 and raise cluster.threads_per_slot");
  if (!c.cluster.launch_workers)
    return wrong("cluster.launch_workers", "is false, but a sweep starts its workers itself; leave it out");
  if (!c.cluster.pace.empty()) return wrong("cluster.pace", "paces a device for one run; leave it out");
  if (c.cluster.reattach_grace_s > 0)
    return wrong("cluster.reattach_grace_s", "the workers of a sweep end with it; leave it out");
  for (const auto& [key, port] : {std::pair<const char*, int64_t>{"cluster.port", c.cluster.port},
                                  {"observe.metrics_port", c.observe.metrics_port},
                                  {"rollout.endpoint_port", c.rollout.endpoint_port}}) {
    if (port != 0)
      return wrong(key, "is " + std::to_string(port) +
                            ", which one run alone can have; leave it out: each "
                            "takes a free port");
  }
  return OkStatus();
}

}  // namespace

StatusOr<SweepWords> ReadSweepWords(const std::vector<std::string>& words) {
  SweepWords out;
  std::set<std::string> keys;
  size_t runs = 1;
  for (const std::string& word : words) {
    const size_t is = word.find('=');
    if (is == std::string::npos || is == 0)
      return InvalidArgument(word +
                             ": expected KEY=VALUE,VALUE,... with a key of the config, "
                             "train.learning_rate=1e-5,2e-5");
    const std::string key = word.substr(0, is);
    if (!keys.insert(key).second)
      return InvalidArgument(key + ": is given twice; write all its values behind one '=', with commas");
    std::vector<std::string> values = Values(std::string_view(word).substr(is + 1));
    for (std::string& value : values) {
      value.erase(0, value.find_first_not_of(' '));
      value.erase(value.find_last_not_of(' ') + 1);
    }
    if (values.size() == 1) {
      out.overrides.push_back(word);
      continue;
    }
    for (const std::string& value : values) {
      if (value.empty())
        return InvalidArgument(
            word + ": a value of " + key +
            " is empty; write one between all commas, or put a text with commas in quotes");
    }
    if (std::set<std::string>(values.begin(), values.end()).size() != values.size())
      return InvalidArgument(word + ": has a value twice, whose runs would be the same; leave one out");
    runs *= values.size();
    if (runs > kSweepRunsMost)
      return InvalidArgument(word + ": with it the sweep has " + std::to_string(runs) +
                             " runs or more, and " + std::to_string(kSweepRunsMost) +
                             " are the most; give fewer values");
    out.swept.push_back({key, std::move(values)});
  }
  if (out.swept.empty())
    return InvalidArgument(
        "no key has several values; name one, train.learning_rate=1e-5,2e-5,4e-5, or run `tidepool train`");
  return out;
}

StatusOr<std::vector<SweepRun>> PlanSweep(const std::string& config, const SweepWords& words) {
  std::vector<SweepRun> runs(1);
  for (const SweptKey& swept : words.swept) {
    const bool alone = std::ranges::count_if(words.swept, [&](const SweptKey& other) {
                         return LastPart(other.key) == LastPart(swept.key);
                       }) == 1;
    std::vector<SweepRun> more;
    for (const SweepRun& run : runs) {
      for (const std::string& value : swept.values) {
        SweepRun& next = more.emplace_back(run);
        next.values.push_back(value);
        next.overrides.push_back(swept.key + "=" + value);
        next.label +=
            (next.label.empty() ? "" : "_") + (alone ? LastPart(swept.key) : swept.key) + "-" + value;
      }
    }
    runs = std::move(more);
  }
  constexpr size_t kLongest = 120;  // a folder's name has 255
  std::set<std::string> labels;
  for (SweepRun& run : runs) {
    run.label = storage::FolderName(run.label).substr(0, kLongest);
    const std::string wanted = run.label;
    for (int i = 2; !labels.insert(run.label).second; ++i) run.label = wanted + "-" + std::to_string(i);
    run.overrides.insert(run.overrides.begin(), words.overrides.begin(), words.overrides.end());
    auto loaded = config::LoadConfig(config, run.overrides);
    if (!loaded.ok()) return loaded.status();
    run.loaded = *std::move(loaded);
    TP_RETURN_IF_ERROR(CheckOne(run));
    for (const config::Difference& d : config::Differences(runs.front().loaded.config, run.loaded.config)) {
      if (const std::string why = WhyOne(d.key, run.loaded.config); !why.empty())
        return InvalidArgument(d.key + ": is " + d.was + " in run " + runs.front().label + " and " + d.is +
                               " in run " + run.label + ", but " + why);
    }
  }
  return runs;
}

int64_t SweepMemory(const std::vector<SweepRun>& runs) {
  int64_t bytes = 0, once = 0;
  for (const SweepRun& run : runs) {
    const auto plan = PlanMemory(run.loaded.config);
    if (!plan.ok()) return 0;
    int64_t shared_once = plan->processes.front().process;
    for (const MemoryPlan::SharedPart& part : plan->shared_memory) {
      if (part.key == "model.path") shared_once += part.bytes;
    }
    bytes += plan->total() - shared_once;
    once = std::max(once, shared_once);
  }
  return bytes + once;
}

}  // namespace tidepool::workers
