#include "workers/cli/run_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/comparison.h"
#include "core/observe/config_text.h"
#include "core/observe/json_lines.h"
#include "core/observe/run_files.h"
#include "core/storage/disk_use.h"
#include "core/storage/run_directory.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// How long what a run takes of the disk may be said while it goes on: all its files are walked for it.
constexpr std::chrono::seconds kBytesAge{30};

// Of the line that has this place: {"step":7, ...
std::optional<int64_t> StepOf(const std::string& lines, size_t at) {
  const size_t newline = lines.rfind('\n', at), begin = newline == std::string::npos ? 0 : newline + 1;
  long long step = 0;
  return std::sscanf(lines.c_str() + begin, "{\"step\":%lld", &step) == 1 ? std::optional<int64_t>(step)
                                                                          : std::nullopt;
}

// False: none of these lines has it.
bool AddTo(RunFigure& figure, const std::string& lines, bool begins) {
  const bool smaller = observe::BetterOf(figure.metric) == observe::Better::kSmaller;
  const std::string key = "\"" + figure.metric + "\":";
  const char* found = nullptr;
  const char* at = lines.data();
  const char* end = lines.data() + lines.size();
  while (at != end) {
    at = static_cast<const char*>(
        ::memmem(at, static_cast<size_t>(end - at), key.data(), key.size()));  // several times std's search
    if (at == nullptr) break;
    at += key.size();
    char* after = nullptr;
    const double value = std::strtod(at, &after);  // a zero ends the lines
    if (after == at || !std::isfinite(value)) continue;
    if (begins && found == nullptr) figure.first = figure.best = value;
    figure.best = smaller ? std::min(figure.best, value) : std::max(figure.best, value);
    figure.last = value;
    found = at;
  }
  if (found != nullptr) figure.step = StepOf(lines, static_cast<size_t>(found - lines.data()));
  return found != nullptr;
}

const std::initializer_list<const char*> kLearned = {"critic/score/mean", "sft/loss",     "dpo/loss",
                                                     "reward_model/loss", "distill/loss", "actor/loss"};
const std::initializer_list<const char*> kHeldOut = {"eval/return/mean",           "eval/accuracy",
                                                     "eval/reward/mean",           "eval/dpo/accuracy",
                                                     "eval/reward_model/accuracy", "eval/loss"};

// What the run says of its evaluations, which is one measure whatever an evaluation by itself would be
// called.
std::optional<RunFigure> FigureOf(const observe::HeldOut& h) {
  if (!h.before && !h.last) return std::nullopt;
  const observe::HeldOutValue &first = h.before ? *h.before : *h.last, &last = h.last ? *h.last : first;
  const bool mean = h.measure == "reward" || h.measure == "return";
  RunFigure figure{.metric = "eval/" + h.measure + (mean ? "/mean" : "")};
  const bool smaller = observe::BetterOf(figure.metric) == observe::Better::kSmaller;
  const double best = h.best ? h.best->value : last.value;
  figure.first = first.value;
  figure.last = last.value;
  figure.step = last.step;
  figure.best = smaller ? std::min(best, first.value) : std::max(best, first.value);
  return figure;
}

double SecondsSince(const std::string& started) {
  std::tm utc{};
  const char* end = ::strptime(started.c_str(), "%Y%m%dT%H%M%SZ", &utc);
  if (end == nullptr || *end != '\0') return -1;
  return std::difftime(std::time(nullptr), ::timegm(&utc));
}

std::string TaskOf(const std::map<std::string, std::string>& config) {
  const auto value = [&](const char* key) {
    const auto it = config.find(key);
    return it == config.end() ? "" : it->second;
  };
  for (const char* key : {"environment.name", "data.task"}) {
    if (const std::string name = value(key); !name.empty()) return name;
  }
  return fs::path(value("data.path")).filename().string();
}

}  // namespace

FigureSearch::FigureSearch(std::initializer_list<const char*> names) {
  for (const char* name : names) figures_.push_back({.metric = name});
}

void FigureSearch::Look(const std::string& lines) {
  for (size_t i = 0; i < figures_.size(); ++i) {
    if (!AddTo(figures_[i], lines, /*begins=*/i != found_)) continue;
    found_ = i;
    figures_.resize(i + 1);  // those behind it are not asked for any more
  }
}

std::optional<RunFigure> FigureSearch::Found() const {
  return found_ < figures_.size() ? std::optional(figures_[found_]) : std::nullopt;
}

BriefReader::BriefReader(std::string run_dir)
    : run_dir_(std::move(run_dir)), learned_(kLearned), held_out_(kHeldOut) {}

Status BriefReader::ReadMetrics(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_ino != inode_ || info.st_size < read_)) {  // another file
    inode_ = info.st_ino;
    read_ = 0;
    learned_ = FigureSearch(kLearned);
    held_out_ = FigureSearch(kHeldOut);
  }
  const auto look = [this](const std::string& lines) -> StatusOr<bool> {
    learned_.Look(lines);
    held_out_.Look(lines);
    read_ += static_cast<int64_t>(lines.size());
    return true;
  };
  return observe::ForEachPiece(path, /*half=*/false, look, read_);
}

int64_t BriefReader::DiskBytes(bool goes_on) {
  const auto now = std::chrono::steady_clock::now();
  if (!goes_on || !counted_ || now - *counted_ > kBytesAge) {
    bytes_ = storage::DiskBytes(run_dir_);
    counted_ = now;
  }
  return bytes_;
}

StatusOr<RunBrief> BriefReader::Read() {
  std::error_code error;
  if (!fs::is_directory(run_dir_, error))
    return NotFound(run_dir_ + ": no such folder; expected a run directory (runs/<name>-<time>)");
  const storage::RunPaths paths(run_dir_);
  RunBrief brief;
  brief.run = fs::path(run_dir_).lexically_normal().filename().string();
  brief.dir = run_dir_;
  std::map<std::string, std::string> config;
  if (const auto text = RealFileSystem().ReadFile(paths.config()); text.ok())
    config = observe::ConfigValues(*text);
  brief.name = config["name"];
  brief.job = config["job"];
  brief.task = TaskOf(config);
  brief.steps = std::atoll(config["train.steps"].c_str());
  RunState state = StateOf(run_dir_);
  brief.state = state.state;
  brief.last_line = state.why;
  brief.begins = state.begins;
  brief.silent_s = state.silent_s;
  if (state.step > 0 || state.steps > 0) brief.step = state.step;
  if (state.steps > 0) brief.steps = state.steps;
  observe::StatusFile said;
  FromJson(state.live, said);
  if (said.held_out) brief.held_out = FigureOf(*said.held_out);
  brief.live = std::move(state.live);
  const Status read = ReadMetrics(paths.metrics());
  if (!read.ok() && read.code() != StatusCode::kNotFound && brief.last_line.empty())
    brief.last_line = read.message();
  brief.learned = learned_.Found();
  if (!brief.held_out) brief.held_out = held_out_.Found();
  brief.bytes = DiskBytes(brief.state == "running" || brief.state == "warm_start");
  return brief;
}

StatusOr<RunBrief> BriefOf(const std::string& run_dir) { return BriefReader(run_dir).Read(); }

StatusOr<std::vector<RunBrief>> ListRuns(const std::string& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return NotFound(root +
                    ": no such folder; name the folder that holds runs, or start one with `tidepool train "
                    "CONFIG`, which makes runs/");
  }
  std::vector<RunBrief> list;
  for (const RunFolder& folder : RunFolders(root)) {
    auto brief = BriefOf(folder.dir);
    if (!brief.ok()) continue;  // it went while we looked
    brief->started = folder.started;
    brief->age_s = SecondsSince(folder.started);
    list.push_back(*std::move(brief));
  }
  return list;
}

std::string ShortName(const std::string& metric) {
  if (metric == "critic/score/mean") return "reward";
  if (metric == "eval/return/mean") return "return";
  if (metric == "eval/reward/mean") return "reward";
  return metric.substr(metric.rfind('/') + 1);
}

}  // namespace tidepool::workers
