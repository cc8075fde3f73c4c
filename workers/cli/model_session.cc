#include "workers/cli/model_session.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/cuda/model_check.h"
#include "core/device/cpu/kernels.h"
#include "core/model/adapter_files.h"
#include "core/model/hugging_face.h"
#include "workers/controller/found_gpus.h"
#include "workers/controller/job.h"
#include "workers/data/model_folder.h"
#include "workers/device/file_plan.h"

namespace tidepool::workers {
namespace {

std::atomic<bool> interrupted{false};

// The type the weights are stored in, where it is one we compute in.
std::string StoredDtype(const std::string& dir) {
  std::ifstream in(dir + "/config.json");
  const nlohmann::json config = nlohmann::json::parse(in, nullptr, false);
  if (!config.is_object()) return "float32";
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key] == "bfloat16") return "bfloat16";
  }
  return "float32";
}

// NAME=DIR, unless that is a folder; else no name.
std::pair<std::string, std::string> NameAndFolder(const std::string& given) {
  const size_t equals = given.find('=');
  std::error_code error;
  if (equals == std::string::npos || equals == 0 || std::filesystem::exists(given, error)) return {"", given};
  return {given.substr(0, equals), given.substr(equals + 1)};
}

}  // namespace

SamplingOptions::SamplingOptions() {
  job.name = "inference";
  job.data.task = "products";  // prompts are brought; a source, and a job, need some data
  job.data.held_out = 0;
  job.reward.functions = {{.name = "exact_answer"}};
  job.rollout.group_size = 2;
  job.rollout.temperature = 0;
  job.rollout.max_new_tokens = 128;
  job.rollout.max_concurrent = 64;
  job.cluster.threads_per_slot = 2;
  job.train.micro_batch_tokens = 1'000'000;
  job.observe.trace = false;
}

void AddModelOptions(CLI::App* command, SamplingOptions* o) {
  command
      ->add_option("model,--model", o->model,
                   "Model folder, or a run (its folder, or the beginning of its name under runs/): final/ is "
                   "taken, else its newest checkpoint; RUN:STEP names one. An adapter's folder names its "
                   "model")
      ->required();
  command->add_option("--dtype", o->dtype, "float32 or bfloat16; default: as stored")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

void AddDeviceOptions(CLI::App* command, SamplingOptions* o) {
  command->add_option("--seed", o->job.seed, "Of the sampling noise");
  command->add_option("--threads", o->job.cluster.threads_per_slot, "Cores to use")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option_function<std::string>(
          "--device", [o](const std::string& word) { o->job.cluster.device = *FromWord<DeviceKind>(word); },
          "cpu (default) or cuda, the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_flag("--deterministic", o->job.deterministic,
                    "On a GPU: slower kernels, with which a result does not depend on the batch, as on a CPU "
                    "it never does");
}

void AddAdapterOption(CLI::App* command, SamplingOptions* o) {
  command->add_option("--adapter", o->adapter_names,
                      "Folder of an adapter of the model (PEFT's LoRA), or a run that trained one; several "
                      "as NAME=DIR each");
}

void AddSampling(CLI::App* command, SamplingOptions* o) {
  RolloutConfig& r = o->job.rollout;
  AddModelOptions(command, o);
  AddAdapterOption(command, o);
  command
      ->add_option("--max-new-tokens", r.max_new_tokens,
                   "At most so many new tokens; an answer also ends where the model has no more positions")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--temperature", r.temperature, "0: greedy (default)")->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", r.top_k, "0: off");
  command->add_option("--top-p", r.top_p, "1: off")->check(CLI::Range(0.0, 1.0));
  command->add_option("--min-p", r.min_p, "0: off")->check(CLI::Range(0.0, 1.0));
  command->add_option("--stop", r.stop, "Stop strings");
  AddDeviceOptions(command, o);
}

StatusOr<FoundModel> TakeModel(SamplingOptions& o) {
  std::vector<FoundModel> all;
  std::vector<std::string> names;
  for (const std::string& given : o.adapter_names) {
    const auto [name, folder] = NameAndFolder(given);
    TP_ASSIGN_OR_RETURN(all.emplace_back(), FindAdapted(o.model, folder, "--adapter"));
    names.push_back(name);
  }
  if (all.empty()) {
    TP_ASSIGN_OR_RETURN(all.emplace_back(), FindModel(o.model, "--model"));
    names.emplace_back();
  }
  o.adapters.clear();
  o.adapter_names.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    const FoundModel& found = all[i];
    if (found.dir != o.model) std::fprintf(stderr, "model: %s\n", DescribeModel(found).c_str());
    if (found.adapter.empty()) continue;
    TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(found.adapter));
    if (adapter.spec().score)
      return InvalidArgument(found.adapter +
                             ": is an adapter of a reward model, which writes no text; take it " +
                             "as reward.functions: [{name: reward_model, path: " + found.adapter + "}]");
    if (names[i].empty()) names[i] = LastName(found.run.empty() ? found.adapter : found.run);
    if (std::ranges::find(o.adapter_names, names[i]) != o.adapter_names.end())
      return InvalidArgument("--adapter: two have the name " + names[i] + "; name them: --adapter NAME=DIR");
    o.adapter_names.push_back(names[i]);
    o.adapters.push_back(std::filesystem::absolute(found.adapter).string());
  }
  o.job.model.path = all.front().dir;
  return std::move(all.front());
}

std::string LastName(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().filename().string();
}

std::vector<int32_t> SamplingOptions::Asked() const {
  std::vector<int32_t> asked;
  for (int32_t a = 0; a < static_cast<int32_t>(adapters.size()); ++a) asked.push_back(a);
  if (asked.empty()) asked.push_back(kOwnWeights);
  return asked;
}

Status CheckSampling(const SamplingOptions& o) {
  const RolloutConfig& r = o.job.rollout;
  if (r.temperature == 0 && (r.top_k != 0 || r.top_p != 1 || r.min_p != 0))
    return InvalidArgument(std::string(r.top_k != 0   ? "--top-k"
                                       : r.top_p != 1 ? "--top-p"
                                                      : "--min-p") +
                           ": is for sampling, and --temperature is 0 (greedy); give one above 0");
  return OkStatus();
}

std::function<bool()> StopOnSignal() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return [] { return interrupted.load(); };
}

StatusOr<std::unique_ptr<InferenceSession>> StartSession(const CommandContext& context,
                                                         const SamplingOptions& o) {
  TP_RETURN_IF_ERROR(CheckModelFolder(o.job.model.path, "--model"));
  TP_RETURN_IF_ERROR(
      model::CheckHuggingFace(o.job.model.path));  // in milliseconds, before a worker is started
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(o.job.model.path));
  if (o.job.cluster.device == DeviceKind::kCuda) {
    TP_RETURN_IF_ERROR(cuda::CheckModel(spec).At("--model"));
    if (o.job.deterministic && !o.adapters.empty())
      return InvalidArgument(
          "--deterministic: on a GPU an adapter's products do not give a row the same bits in every batch "
          "yet; leave it out");
    for (const std::string& folder : o.adapters) {
      TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(folder));
      if (std::ranges::any_of(adapter.spec().targets, model::OfExperts))
        return Unimplemented(
            "--device: " + folder +
            " is an adapter of experts, which is not computed on GPUs yet; take --device cpu");
    }
  }
  (void)device::BestIsa();                    // ends the program here if TIDEPOOL_CPU_ISA is misspelt
  TP_RETURN_IF_ERROR(CheckFileLimit(o.job));  // or else its worker would be waited for in vain
  InferenceOptions options = o;
  options.max_position = spec.max_position;
  options.job.model.path = std::filesystem::absolute(o.job.model.path).string();
  options.job.model.dtype = *FromWord<DType>(o.dtype.empty() ? StoredDtype(o.job.model.path) : o.dtype);
  if (o.job.rollout.temperature == 0)
    options.job.rollout.temperature = 1;  // requests say that they are greedy
  TP_ASSIGN_OR_RETURN(options.worker_path, FindWorker({}, context.self_path));
  config::LoadedConfig job;
  job.config = options.job;
  if (const Status gpus = CheckGpus(job, options.worker_path, SlotUse::kGeneration); !gpus.ok()) {
    // What a config says by a key is a flag here.
    std::string why = gpus.message();
    for (const std::string_view key : {"cluster.device: cpu", "cluster.device: "}) {
      for (size_t at = why.find(key); at != std::string::npos; at = why.find(key, at))
        why.replace(at, key.size(), key.ends_with("cpu") ? "--device cpu" : "");
    }
    return Status(gpus.code(), why).At("--device");
  }
  if (!options.stop)
    options.stop = StopOnSignal();  // a session has files in /dev/shm, and a worker: they go before we do
  return InferenceSession::Start(options);
}

StatusOr<std::unique_ptr<RowSource>> TextOf(const SamplingOptions& o) {
  TP_RETURN_IF_ERROR(CheckModelFolder(o.job.model.path, "--model"));
  return RowSource::OfFolder(o.job.model.path, o.job.data.template_date);
}

int ModelExitCode(const Status& status) {
  const StatusCode code = status.code();
  return code == StatusCode::kUnavailable || code == StatusCode::kInternal || code == StatusCode::kAborted ||
                 code == StatusCode::kDeadlineExceeded
             ? 3
             : 2;
}

}  // namespace tidepool::workers
