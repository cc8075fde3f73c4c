#include "workers/device_roles.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <utility>

#include "core/base/hash.h"
#include "core/model/invariance.h"
#include "core/model/routing.h"
#include "core/policy/fragment.h"
#include "core/policy/policy_files.h"
#include "core/text/tokenizer.h"
#include "core/algorithms/rewards.h"
#include "workers/model_folder.h"
#include "workers/policy_rollout.h"
#include "workers/token_rollout.h"
#include "workers/weights_service.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// Libraries throw (no memory, a shape that does not fit); their exceptions stop here.
template <typename F>
auto Caught(const char* what, F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(std::string(what) + ": out of memory; lower train.micro_batch_tokens, rollout.max_concurrent or rollout.kv_cache_tokens");
  } catch (const std::exception& e) {
    return Internal(std::string(what) + ": " + e.what());
  }
}

Status WriteBytes(const std::string& path, std::span<const std::byte> bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Unavailable(path + ": cannot be written");
  const bool wrote = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = std::fclose(file) == 0;
  if (!wrote || !closed) return ResourceExhausted(path + ": could not be written whole; is the disk full?");
  return OkStatus();
}

Status ReadBytes(const std::string& path, std::span<std::byte> bytes) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return NotFound(path + ": cannot be read (" + error.message() + ")");
  if (size != bytes.size()) {
    return DataLoss(path + ": has " + std::to_string(size) + " bytes, this trainer needs " + std::to_string(bytes.size()));
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Unavailable(path + ": cannot be read");
  const bool whole = std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size();
  std::fclose(file);
  if (!whole) return DataLoss(path + ": ends early");
  return OkStatus();
}

bool HasTensors(const std::string& dir) {
  return fs::exists(dir + "/model.safetensors") || fs::exists(dir + "/model.safetensors.index.json");
}

// KV cache on a CPU slot: what the largest number of concurrent samples needs, but no more than this;
// past it requests wait for room.
constexpr int64_t kCpuKvBytes = int64_t{256} << 20;

int64_t KvCacheTokens(const JobConfig& config, const model::ModelSpec& spec, model::DType dtype) {
  const RolloutConfig& r = config.rollout;
  if (r.kv_cache_tokens > 0) return r.kv_cache_tokens;
  const int64_t row = std::min(config.data.max_prompt_tokens + r.max_new_tokens, spec.max_position) + r.block_tokens;
  const int64_t concurrent = std::min(r.max_concurrent, config.train.groups_per_step * r.group_size * (config.scheduler.max_lag_versions + 1));
  const int64_t token_bytes = 2 * spec.layers * spec.kv_heads * spec.head_size * model::Bytes(dtype);
  return std::max(row, std::min(concurrent * row, kCpuKvBytes / token_bytes));
}

}  // namespace

DeviceRoles::DeviceRoles(JobConfig config, std::string model_dir, std::string run_id)
    : config_(std::move(config)), model_dir_(std::move(model_dir)), run_id_(std::move(run_id)),
      published_(run_id_, "weights"), recovery_(run_id_, "recovery") {}
DeviceRoles::~DeviceRoles() = default;

Status DeviceRoles::MakeWeights(bool read_tensors) {
  return Caught("model", [&]() -> Status {
    const model::DType dtype = config_.model.dtype == "bfloat16" ? model::DType::kBFloat16 : model::DType::kFloat32;
    if (!config_.model.policy.empty()) {
      TP_ASSIGN_OR_RETURN(policy_, policy::ReadPolicySpec(model_dir_));
      TP_ASSIGN_OR_RETURN(weights_, model::Weights::FromLayout(policy::PolicyLayout(*policy_), dtype));
      if (read_tensors && policy::HasWeights(model_dir_)) return policy::LoadPolicy(model_dir_, *weights_);
      if (read_tensors) policy::InitializePolicy(*policy_, config_.seed, *weights_);
      return OkStatus();
    }
    if (config_.deterministic) {
      TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(model_dir_));
      TP_RETURN_IF_ERROR(model::SelfTestBatchInvariance(spec, dtype));
    }
    if (read_tensors && HasTensors(model_dir_)) {
      TP_ASSIGN_OR_RETURN(weights_, model::LoadHuggingFace(model_dir_, dtype));
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(model_dir_));
    TP_ASSIGN_OR_RETURN(weights_, model::Weights::Create(spec, dtype));
    if (read_tensors) {
      if (!config_.model.init) return NotFound("model.path: " + model_dir_ + " has no weights");
      weights_->Initialize(config_.seed, config_.model.init->init_std);
    }
    return OkStatus();
  });
}

Status DeviceRoles::MakeTrainer() {
  if (trainer_ != nullptr || policy_trainer_ != nullptr) return OkStatus();
  return Caught("trainer", [&]() -> Status {
    if (policy_) {
      TP_ASSIGN_OR_RETURN(const policy::PolicyTrainerOptions options, policy::OptionsFromJob(config_));
      TP_ASSIGN_OR_RETURN(policy_trainer_, policy::PolicyTrainer::Create(*weights_, options));
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(const train::TrainerOptions options, train::OptionsFromJob(config_));
    TP_ASSIGN_OR_RETURN(trainer_, train::Trainer::Create(*weights_, options));
    return OkStatus();
  });
}

std::vector<train::NamedBytes> DeviceRoles::TrainerState() const { return policy_trainer_ != nullptr ? policy_trainer_->State() : trainer_->State(); }

Status DeviceRoles::InitState() {
  trainer_.reset();
  policy_trainer_.reset();
  rollout_.reset();
  TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/true));
  owns_state_ = true;
  digest_ = weights_->Digest();
  return OkStatus();
}

Status DeviceRoles::RestoreFromCheckpoint(const std::string& dir, StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  TP_RETURN_IF_ERROR(Caught("restore", [&]() -> Status {
    if (policy_) return policy::LoadPolicy(dir + "/model", *weights_);
    // Straight into the arena: a second copy of the weights would not fit beside a large model.
    return model::LoadHuggingFace(dir + "/model", weights_->dtype(), weights_->bytes()).status();
  }));
  for (const train::NamedBytes& part : TrainerState()) {
    if (part.name == "weights") continue;
    TP_RETURN_IF_ERROR(ReadBytes(dir + "/trainer/" + part.name + ".bin", part.bytes));
  }
  owns_state_ = true;
  digest_ = weights_->Digest();
  return OkStatus();
}

Status DeviceRoles::RestoreFromRecovery(StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  std::vector<std::span<std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.push_back(part.bytes);
  TP_ASSIGN_OR_RETURN(const BlockTag tag, recovery_.Read(step.value, -1, parts));
  owns_state_ = true;
  digest_ = weights_->Digest();
  if (digest_ != tag.digest) return DataLoss("the recovery copy of step " + std::to_string(step.value) + " has another digest than when it was written");
  return OkStatus();
}

Status DeviceRoles::FetchState(const std::string& address, const std::string& token, StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  owns_state_ = false;  // whatever was here is being overwritten
  std::vector<std::span<std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.push_back(part.bytes);
  TP_ASSIGN_OR_RETURN(const uint64_t announced, FetchBytes(address, token, {.version = {}, .step = step}, parts));
  const std::vector<std::span<const std::byte>> came(parts.begin(), parts.end());
  if (StateDigest(came) != announced) {
    return DataLoss("the state of step " + std::to_string(step.value) + " from " + address + " changed while it was read");
  }
  owns_state_ = true;
  digest_ = weights_->Digest();
  return OkStatus();
}

StatusOr<std::vector<std::span<const std::byte>>> DeviceRoles::StateParts() {
  if (!owns_state_) return FailedPrecondition("no state of training is here");
  TP_RETURN_IF_ERROR(MakeTrainer());
  std::vector<std::span<const std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.emplace_back(part.bytes);
  return parts;
}

uint64_t DeviceRoles::StateDigest(std::span<const std::span<const std::byte>> parts) {
  uint64_t digest = 0;
  for (const auto& part : parts) digest = Hash64(part, digest);
  return digest;
}

StatusOr<uint64_t> DeviceRoles::WeightsDigest() const {
  if (weights_ == nullptr) return FailedPrecondition("no weights are loaded");
  return digest_;
}

Status DeviceRoles::PrepareRollout() {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  if (rollout_ != nullptr) return rollout_->AcquireMemory();
  return Caught("engine", [&]() -> Status {
    if (policy_) {
      TP_ASSIGN_OR_RETURN(auto player, PolicyRollout::Create(config_, *policy_, *weights_));
      player->UseVersion(version_);
      rollout_ = std::move(player);
      return OkStatus();
    }
    engine::EngineOptions options;
    options.seed = config_.seed;
    options.deterministic = config_.deterministic;
    options.block_tokens = config_.rollout.block_tokens;
    options.kv_cache_tokens = KvCacheTokens(config_, weights_->spec(), weights_->dtype());
    options.max_batched_tokens = std::max(config_.rollout.max_batched_tokens, config_.rollout.max_concurrent);
    options.max_running = config_.rollout.max_concurrent;
    options.record_routing = config_.rollout.record_routing;
    options.version = version_;
    if (!config_.rollout.stop.empty()) {
      TP_ASSIGN_OR_RETURN(auto loaded, text::Tokenizer::Load(model_dir_));
      std::shared_ptr<text::Tokenizer> tokenizer = std::move(loaded);  // shared: std::function needs to be copyable
      options.token_bytes = [tokenizer](int32_t id) { return std::string(tokenizer->TokenBytes(id)); };
    }
    TP_ASSIGN_OR_RETURN(auto engine, engine::Engine::Create(*weights_, std::move(options)));
    rollout_ = std::make_unique<TokenRollout>(config_.rollout, config_.rollout.record_routing ? model::RoutingBytes(weights_->spec()) : 0, std::move(engine));
    return OkStatus();
  });
}

int64_t DeviceRoles::ReleaseRollout() { return rollout_ == nullptr ? 0 : rollout_->ReleaseMemory(); }

int64_t DeviceRoles::weight_bytes() const { return weights_ == nullptr ? 0 : static_cast<int64_t>(weights_->bytes().size()); }

StatusOr<uint64_t> DeviceRoles::LoadFromSharedMemory(Version version) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  owns_state_ = false;
  TP_RETURN_IF_ERROR(published_.Read(version.number, version.lineage, {weights_->bytes()}).status());
  digest_ = weights_->Digest();
  return digest_;
}

StatusOr<uint64_t> DeviceRoles::LoadFromStream(Version version, const std::string& address, const std::string& token) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  owns_state_ = false;
  const std::span<std::byte> arena = weights_->bytes();
  TP_RETURN_IF_ERROR(FetchBytes(address, token, {.version = version, .step = {}}, {&arena, 1}).status());
  digest_ = weights_->Digest();
  return digest_;
}

void DeviceRoles::UseVersion(Version version) {
  version_ = version;
  if (rollout_ != nullptr) rollout_->UseVersion(version);
}

StatusOr<TrainOutcome> DeviceRoles::Train(StepNumber step, Version version, std::vector<BatchRow> rows, const Progress& progress,
                                          comm::Collective* group, const std::vector<int64_t>& groups) {
  TP_RETURN_IF_ERROR(MakeTrainer());
  if (policy_) return TrainPolicy(step, version, rows, progress, group, groups);
  train::Batch batch;
  batch.step = step;
  batch.version = version;
  for (BatchRow& in : rows) {
    train::Row row;
    row.tid = in.tid;
    row.gid = in.gid;
    row.prompt = std::move(in.prompt);
    row.response = std::move(in.response.ids);
    row.logprobs = std::move(in.response.logprobs);
    row.log_kept = std::move(in.response.log_kept);
    row.routing = std::move(in.response.routing);
    for (const auto& [v, count] : in.response.versions) row.versions.insert(row.versions.end(), static_cast<size_t>(count), v);
    row.loss_mask = std::move(in.loss_mask);
    row.reward = in.reward;
    // Shapes what is trained on alone: evaluation and the zero-variance filter see the task's own reward.
    if (config_.algorithm.overlong_buffer_tokens > 0) {
      row.reward += algorithms::OverlongPenalty(static_cast<double>(row.response.size()), static_cast<double>(config_.rollout.max_new_tokens),
                                                config_.algorithm.overlong_buffer_tokens, config_.algorithm.overlong_factor);
    }
    row.truncated = in.truncated;
    if (group != nullptr) batch.mine.push_back(std::find(groups.begin(), groups.end(), in.gid.value) != groups.end() ? 1 : 0);
    batch.rows.push_back(std::move(row));
  }
  return Caught("train", [&]() -> StatusOr<TrainOutcome> {
    TP_ASSIGN_OR_RETURN(train::StepResult result, trainer_->Step(batch, [&](const train::StepProgress& p) {
      return progress("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
    }, group));
    digest_ = result.digest;
    return TrainOutcome{result.finite, result.digest, {result.metrics.begin(), result.metrics.end()}};
  });
}

// Weights that were written from outside reach the player with UseVersion.
StatusOr<TrainOutcome> DeviceRoles::TrainPolicy(StepNumber step, Version version, const std::vector<BatchRow>& rows, const Progress& progress,
                                                comm::Collective* group, const std::vector<int64_t>& groups) {
  std::vector<policy::FragmentRow> batch;
  for (const BatchRow& in : rows) {
    auto fragment = policy::DecodeFragment(in.response.fragment);
    if (!fragment.ok()) return InvalidArgument("row " + ToString(in.tid) + ": " + fragment.status().message());
    policy::FragmentRow row{.tid = in.tid, .version = {}, .masked = false, .mine = true, .fragment = std::move(*fragment)};
    if (!in.response.versions.empty()) row.version = in.response.versions.front().first;
    row.masked = !in.loss_mask.empty() && in.loss_mask.front() == 0;  // a fragment is of one version
    row.mine = group == nullptr || std::find(groups.begin(), groups.end(), in.gid.value) != groups.end();
    batch.push_back(std::move(row));
  }
  return Caught("train", [&]() -> StatusOr<TrainOutcome> {
    TP_ASSIGN_OR_RETURN(train::StepResult result, policy_trainer_->Step(step, version, batch, [&](const train::StepProgress& p) {
      return progress("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
    }, group));
    digest_ = result.digest;
    return TrainOutcome{result.finite, result.digest, {result.metrics.begin(), result.metrics.end()}};
  });
}

Status DeviceRoles::PublishToSharedMemory(Version version, uint64_t digest) {
  return published_.Write({version.number, version.lineage, digest, 0}, {std::as_const(*weights_).bytes()});
}

std::shared_ptr<std::vector<std::byte>> DeviceRoles::SnapshotWeights() const {
  const auto bytes = std::as_const(*weights_).bytes();
  return std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
}

Status DeviceRoles::CopyRecovery(StepNumber step) {
  TP_RETURN_IF_ERROR(MakeTrainer());
  std::vector<std::span<const std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.emplace_back(part.bytes);
  return recovery_.Write({step.value, version_.lineage, digest_, 0}, parts);
}

StatusOr<std::vector<std::string>> DeviceRoles::WriteCheckpoint(const std::string& dir) const {
  if (trainer_ == nullptr && policy_trainer_ == nullptr) return FailedPrecondition("there is no trainer whose state could be saved");
  std::error_code error;
  fs::create_directories(dir + "/model", error);
  fs::create_directories(dir + "/trainer", error);
  if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");
  TP_RETURN_IF_ERROR(SaveModel(dir + "/model"));
  std::vector<std::string> files;
  for (const train::NamedBytes& part : TrainerState()) {
    if (part.name == "weights") continue;  // in model/, bit for bit
    TP_RETURN_IF_ERROR(WriteBytes(dir + "/trainer/" + part.name + ".bin", part.bytes));
  }
  for (const auto& entry : fs::recursive_directory_iterator(dir, error)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), dir, error).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status DeviceRoles::PrepareCheckpoint() { return MakeTrainer(); }

Status DeviceRoles::SaveModel(const std::string& dir) const {
  return Caught("save", [&]() -> Status {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");
    if (policy_) return policy::SavePolicy(*policy_, *weights_, dir);
    TP_RETURN_IF_ERROR(model::SaveHuggingFace(*weights_, dir));
    return CopyTextFiles(model_dir_, dir);
  });
}

}  // namespace tidepool::workers
