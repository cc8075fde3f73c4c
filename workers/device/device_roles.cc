#include "workers/device/device_roles.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <utility>

#include "core/base/hash.h"
#include "core/model/routing.h"
#include "core/observe/log.h"
#include "core/policy/fragment.h"
#include "core/policy/policy_files.h"
#include "core/text/tokenizer.h"
#include "workers/controller/row_source.h"
#include "workers/data/model_folder.h"
#include "workers/data/weights_service.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"
#include "workers/device/policy_rollout.h"
#include "workers/device/token_rollout.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// Libraries throw (no memory, a shape that does not fit); their exceptions stop here.
template <typename F>
auto Caught(const char* what, F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        std::string(what) +
        ": out of memory; lower train.micro_batch_tokens, rollout.max_concurrent or rollout.kv_cache_tokens");
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
    return DataLoss(path + ": has " + std::to_string(size) + " bytes, this trainer needs " +
                    std::to_string(bytes.size()));
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

constexpr int64_t kShardBytes = int64_t{5} << 30;  // of a saved model's files, as transformers cuts them

}  // namespace

DeviceRoles::DeviceRoles(JobConfig config, std::string model_dir, std::string run_id,
                         const std::string& shared_memory)
    : config_(std::move(config)),
      model_dir_(std::move(model_dir)),
      run_id_(std::move(run_id)),
      published_(shared_memory, "weights"),
      recovery_(shared_memory, "recovery") {}
DeviceRoles::~DeviceRoles() = default;

Status DeviceRoles::MakeWeights(bool read_tensors) {
  return Caught("model", [&]() -> Status {
    const DType dtype = config_.model.dtype;
    if (config_.model.is_policy()) {
      TP_ASSIGN_OR_RETURN(policy_, policy::ReadPolicySpec(model_dir_));
      TP_ASSIGN_OR_RETURN(weights_, model::Weights::FromLayout(policy::PolicyLayout(*policy_), dtype));
      if (read_tensors && policy::HasWeights(model_dir_)) return policy::LoadPolicy(model_dir_, *weights_);
      if (read_tensors) policy::InitializePolicy(*policy_, config_.seed, *weights_);
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(model::ModelSpec spec, model::ReadSpec(model_dir_));
    TP_RETURN_IF_ERROR(CoverProducts(spec, dtype));
    const bool scores = config_.kind() == JobKind::kRewardModel;
    if (spec.value_head && !scores)
      return InvalidArgument("model.path: " + model_dir_ + " is a reward model; a job of kind " +
                             Word(config_.kind()) + " needs one that writes");
    if (read_tensors) {
      TP_ASSIGN_OR_RETURN(weights_, ReadModel("model.path", ""));
      if (scores && !spec.value_head) {
        TP_ASSIGN_OR_RETURN(weights_, model::WithValueHead(*weights_));
      }
      return OkStatus();
    }
    spec.value_head = scores;
    TP_ASSIGN_OR_RETURN(weights_, model::Weights::Create(spec, dtype));
    return OkStatus();
  });
}

Status DeviceRoles::CoverProducts(const model::ModelSpec& spec, model::DType dtype) {
  if (!config_.deterministic) return OkStatus();
  if (row_blocks_ == nullptr) row_blocks_ = std::make_shared<model::RowBlocks>();
  TP_RETURN_IF_ERROR(row_blocks_->Cover(spec, dtype));
  if (!row_blocks_->limited().empty())
    observe::Log(observe::LogLevel::kWarn, "row_blocks", {{"limited", row_blocks_->limited()}});
  return OkStatus();
}

StatusOr<std::unique_ptr<model::Weights>> DeviceRoles::ReadModel(const std::string& key,
                                                                 const std::string& folder) const {
  const DType dtype = config_.model.dtype;
  const std::string& dir = folder.empty() ? model_dir_ : folder;
  if (HasTensors(dir)) return model::LoadHuggingFace(dir, dtype);
  if (!folder.empty() || !config_.model.init) return NotFound(key + ": " + dir + " has no weights");
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(dir));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<model::Weights> weights, model::Weights::Create(spec, dtype));
  weights->Initialize(config_.seed, config_.model.init->init_std);
  return weights;
}

Status DeviceRoles::MakeTrainer() {
  if (trainer_ != nullptr || policy_trainer_ != nullptr) return OkStatus();
  return Caught("trainer", [&]() -> Status {
    if (policy_) {
      TP_ASSIGN_OR_RETURN(const policy::PolicyTrainerOptions options, policy::OptionsFromJob(config_));
      TP_ASSIGN_OR_RETURN(policy_trainer_, policy::PolicyTrainer::Create(*weights_, options));
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(train::TrainerOptions options, train::OptionsFromJob(config_));
    const train::NeededCompanions needed = train::Needed(options);
    const RlJob* rl = config_.rl();  // set wherever a part of rl is needed
    train::Companions companions;
    if (needed.reference && reference_ == nullptr) {
      const auto* dpo = std::get_if<DpoJob>(&config_.job);
      TP_ASSIGN_OR_RETURN(reference_,
                          ReadModel(dpo != nullptr ? "preference.reference" : "algorithm.kl.reference",
                                    dpo != nullptr ? dpo->preference.reference : rl->algorithm.kl.reference));
    }
    if (needed.teacher && teacher_ == nullptr) {
      const auto* distill = std::get_if<DistillJob>(&config_.job);
      TP_ASSIGN_OR_RETURN(teacher_,
                          ReadModel(distill != nullptr ? "distill.teacher" : "algorithm.teacher",
                                    distill != nullptr ? distill->distill.teacher : rl->algorithm.teacher));
    }
    if (needed.critic) {
      // Always from the start: what it has learned is in the state that is restored next, or there is none
      // yet.
      TP_ASSIGN_OR_RETURN(critic_, ReadModel("algorithm.critic.path", rl->algorithm.critic.path));
      if (!critic_->spec().value_head) {
        TP_ASSIGN_OR_RETURN(critic_, model::WithValueHead(*critic_));
      }
    }
    for (const model::Weights* further : {reference_.get(), teacher_.get(), critic_.get()}) {
      if (further != nullptr) TP_RETURN_IF_ERROR(CoverProducts(further->spec(), further->dtype()));
    }
    options.row_blocks = row_blocks_;
    companions = {.reference = reference_.get(), .teacher = teacher_.get(), .critic = critic_.get()};
    TP_ASSIGN_OR_RETURN(trainer_, train::Trainer::Create(*weights_, options, companions));
    return OkStatus();
  });
}

std::vector<train::NamedBytes> DeviceRoles::TrainerState() const {
  return policy_trainer_ != nullptr ? policy_trainer_->State() : trainer_->State();
}

uint64_t DeviceRoles::TrainerDigest() const {
  return policy_trainer_ != nullptr ? weights_->Digest() : trainer_->Digest();
}

Status DeviceRoles::InitState() {
  trainer_.reset();
  policy_trainer_.reset();
  rollout_.reset();
  Tear();
  TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/true));
  OwnState({0});
  return OkStatus();
}

void DeviceRoles::Tear() {
  torn_ = true;
  serves_ = owns_state_ = false;
}

Status DeviceRoles::Whole(uint64_t want, const std::string& what) {
  digest_ = weights_->Digest();
  if (digest_ != want)
    return DataLoss(what + ": the bytes that came have another digest than those that were sent");
  torn_ = false;
  return OkStatus();
}

void DeviceRoles::OwnState(StepNumber step) {
  digest_ = weights_->Digest();
  torn_ = false;
  owns_state_ = true;
  state_step_ = step;
}

std::optional<DeviceRoles::LoadedVersion> DeviceRoles::loaded() const {
  if (!serves_) return std::nullopt;
  return LoadedVersion{version_, digest_};
}

std::optional<DeviceRoles::TrainedState> DeviceRoles::state() const {
  if (!owns_state_) return std::nullopt;
  return TrainedState{state_step_, digest_};
}

Status DeviceRoles::RestoreFromCheckpoint(const std::string& dir, StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  Tear();
  TP_RETURN_IF_ERROR(Caught("restore", [&]() -> Status {
    if (policy_) return policy::LoadPolicy(dir + "/model", *weights_);
    // Straight into the arena: a second copy of the weights would not fit beside a large model.
    return model::LoadHuggingFace(dir + "/model", weights_->dtype(), weights_->bytes()).status();
  }));
  for (const train::NamedBytes& part : TrainerState()) {
    if (part.name == "weights") continue;
    TP_RETURN_IF_ERROR(ReadBytes(dir + "/trainer/" + part.name + ".bin", part.bytes));
  }
  OwnState(step);
  return OkStatus();
}

Status DeviceRoles::RestoreFromRecovery(StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  std::vector<std::span<std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.push_back(part.bytes);
  Tear();
  TP_ASSIGN_OR_RETURN(const BlockTag tag, recovery_.Read(step.value, -1, parts));
  if (TrainerDigest() != tag.digest)
    return DataLoss("the recovery copy of step " + std::to_string(step.value) +
                    " has another digest than when it was written");
  OwnState(step);
  return OkStatus();
}

Status DeviceRoles::FetchState(const std::string& address, const std::string& token, StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  TP_RETURN_IF_ERROR(MakeTrainer());
  Tear();
  std::vector<std::span<std::byte>> parts;
  for (const train::NamedBytes& part : TrainerState()) parts.push_back(part.bytes);
  TP_ASSIGN_OR_RETURN(const uint64_t announced,
                      FetchBytes(address, token, {.version = {}, .step = step}, parts));
  const std::vector<std::span<const std::byte>> came(parts.begin(), parts.end());
  if (StateDigest(came) != announced) {
    return DataLoss("the state of step " + std::to_string(step.value) + " from " + address +
                    " changed while it was read");
  }
  OwnState(step);
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
  if (weights_ == nullptr || torn_) return FailedPrecondition("no weights are loaded");
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
    options.row_blocks = row_blocks_;
    options.block_tokens = config_.rollout.block_tokens;
    options.kv_cache_tokens = KvCacheTokens(config_, weights_->spec());
    options.max_batched_tokens = std::max(config_.rollout.max_batched_tokens, config_.rollout.max_concurrent);
    options.max_running = config_.rollout.max_concurrent;
    options.record_routing = config_.rollout.record_routing;
    options.version = version_;
    if (!config_.rollout.stop.empty()) {
      TP_ASSIGN_OR_RETURN(auto loaded, text::Tokenizer::Load(model_dir_));
      std::shared_ptr<text::Tokenizer> tokenizer =
          std::move(loaded);  // shared: std::function needs to be copyable
      options.token_bytes = [tokenizer](int32_t id) { return std::string(tokenizer->TokenBytes(id)); };
    }
    TP_ASSIGN_OR_RETURN(auto engine, engine::Engine::Create(*weights_, std::move(options)));
    rollout_ = std::make_unique<TokenRollout>(
        config_.rollout, config_.environment() != nullptr,
        config_.rollout.record_routing ? model::RoutingBytes(weights_->spec()) : 0, std::move(engine));
    return OkStatus();
  });
}

void DeviceRoles::Release(Role role) {
  if (role == Role::kRollout && rollout_ != nullptr) rollout_->ReleaseMemory();
  if (role == Role::kActor && trainer_ != nullptr) trainer_->ReleaseScratch();
  TrimHeap();  // logits and caches are LibTorch's, which frees them to the heap
}

model::MemoryUse DeviceRoles::held() const {
  model::MemoryUse use;
  use.weights = weight_bytes();
  if (trainer_ != nullptr) use += trainer_->held();
  if (rollout_ != nullptr) use += rollout_->held();
  return use;
}

int64_t DeviceRoles::further_bytes() const {
  int64_t sum = 0;
  for (const model::Weights* further : {reference_.get(), teacher_.get(), critic_.get()})
    if (further != nullptr) sum += static_cast<int64_t>(further->bytes().size());
  return sum;
}

int64_t DeviceRoles::weight_bytes() const {
  return weights_ == nullptr ? 0 : static_cast<int64_t>(weights_->bytes().size());
}

StatusOr<uint64_t> DeviceRoles::LoadFromSharedMemory(Version version) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();
  TP_ASSIGN_OR_RETURN(const BlockTag tag,
                      published_.Read(version.number, version.lineage, {weights_->bytes()}));
  TP_RETURN_IF_ERROR(Whole(tag.digest, "weights of version " + ToString(version)));
  return digest_;
}

StatusOr<uint64_t> DeviceRoles::LoadFromStream(Version version, const std::string& address,
                                               const std::string& token) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();
  const std::span<std::byte> arena = weights_->bytes();
  TP_ASSIGN_OR_RETURN(const uint64_t sent,
                      FetchBytes(address, token, {.version = version, .step = {}}, {&arena, 1}));
  TP_RETURN_IF_ERROR(Whole(sent, "weights of version " + ToString(version)));
  return digest_;
}

void DeviceRoles::UseVersion(Version version) {
  version_ = version;
  serves_ = weights_ != nullptr && !torn_;
  if (rollout_ != nullptr) rollout_->UseVersion(version);
}

StatusOr<TrainOutcome> DeviceRoles::Train(StepNumber step, Version version, std::vector<BatchRow> rows,
                                          const Progress& progress, comm::Collective* group,
                                          const std::vector<int64_t>& groups) {
  TP_RETURN_IF_ERROR(MakeTrainer());
  const int64_t before = updates();
  auto outcome = policy_ ? TrainPolicy(step, version, rows, progress, group, groups)
                         : TrainText(step, version, std::move(rows), progress, group, groups);
  if (updates() != before) serves_ = false;  // the weights are those of no version yet
  if (outcome.ok())
    state_step_ = step;
  else if (updates() != before)
    owns_state_ = false;  // some of its updates were made
  return outcome;
}

StatusOr<TrainOutcome> DeviceRoles::TrainText(StepNumber step, Version version, std::vector<BatchRow> rows,
                                              const Progress& progress, comm::Collective* group,
                                              const std::vector<int64_t>& groups) {
  train::Batch batch;
  batch.step = step;
  batch.version = version;
  for (BatchRow& in : rows) {
    const sample::Trajectory& t = in.trajectory;
    train::Row row;
    row.tid = t.tid;
    row.gid = in.gid;
    if (t.prompt != nullptr) row.prompt = t.prompt->ids;
    row.response = t.Ids();
    row.logprobs = t.Logprobs();
    row.log_kept = t.LogKept();
    row.routing = t.Routing();
    for (const auto& [v, count] : t.Versions())
      row.versions.insert(row.versions.end(), static_cast<size_t>(count), v);
    row.loss_mask = t.LossMask(in.without_loss);
    row.reward = in.reward;
    row.components = std::move(in.components);
    row.turns = t.Turns();
    row.truncated = t.finish == sample::Finish::kLength;
    if (group != nullptr)
      batch.mine.push_back(std::find(groups.begin(), groups.end(), in.gid.value) != groups.end() ? 1 : 0);
    batch.rows.push_back(std::move(row));
  }
  return Caught("train", [&]() -> StatusOr<TrainOutcome> {
    std::map<std::string, double> evaluated;
    TP_RETURN_IF_ERROR(EvaluatePairs(step, /*before=*/true, evaluated));
    TP_ASSIGN_OR_RETURN(train::StepResult result, trainer_->Step(
                                                      batch,
                                                      [&](const train::StepProgress& p) {
                                                        return progress("train " + std::to_string(p.done) +
                                                                        "/" + std::to_string(p.total));
                                                      },
                                                      group));
    digest_ = result.digest;
    TP_RETURN_IF_ERROR(EvaluatePairs(step, /*before=*/false, evaluated));
    result.metrics.insert(evaluated.begin(), evaluated.end());
    return TrainOutcome{result.finite, result.digest, {result.metrics.begin(), result.metrics.end()}};
  });
}

// Weights that were written from outside reach the player with UseVersion.
StatusOr<TrainOutcome> DeviceRoles::TrainPolicy(StepNumber step, Version version,
                                                const std::vector<BatchRow>& rows, const Progress& progress,
                                                comm::Collective* group, const std::vector<int64_t>& groups) {
  std::vector<policy::FragmentRow> batch;
  for (const BatchRow& in : rows) {
    const SampleId& tid = in.trajectory.tid;
    const sample::Segment* played = in.trajectory.Fragment();
    if (played == nullptr) return InvalidArgument("row " + ToString(tid) + " is no fragment");
    auto fragment = policy::DecodeFragment(played->fragment);
    if (!fragment.ok()) return InvalidArgument("row " + ToString(tid) + ": " + fragment.status().message());
    policy::FragmentRow row{
        .tid = tid, .version = {}, .masked = false, .mine = true, .fragment = std::move(*fragment)};
    if (!played->versions.empty()) row.version = played->versions.front().first;  // it is of one version
    row.masked = in.trajectory.LossMask(in.without_loss).front() == 0;
    row.mine = group == nullptr || std::find(groups.begin(), groups.end(), in.gid.value) != groups.end();
    batch.push_back(std::move(row));
  }
  return Caught("train", [&]() -> StatusOr<TrainOutcome> {
    TP_ASSIGN_OR_RETURN(train::StepResult result, policy_trainer_->Step(
                                                      step, version, batch,
                                                      [&](const train::StepProgress& p) {
                                                        return progress("train " + std::to_string(p.done) +
                                                                        "/" + std::to_string(p.total));
                                                      },
                                                      group));
    digest_ = result.digest;
    return TrainOutcome{result.finite, result.digest, {result.metrics.begin(), result.metrics.end()}};
  });
}

// Every rank judges them for itself: all come to the same, and none waits for another.
Status DeviceRoles::EvaluatePairs(StepNumber step, bool before, std::map<std::string, double>& metrics) {
  const EvalConfig& e = config_.eval;
  const bool last = step.value == config_.train.steps;
  const bool due = before ? step.value == 1 && e.before_train
                          : (e.every_steps > 0 && step.value % e.every_steps == 0) || (last && e.after_train);
  if (!TrainsOnPairs(config_) || !due) return OkStatus();
  if (held_out_.empty()) {
    TP_ASSIGN_OR_RETURN(const auto source, RowSource::Create(config_, model_dir_));
    const int64_t all = source->data().held_out_size(), n = e.samples > 0 ? std::min(e.samples, all) : all;
    for (int64_t i = 0; i < n; ++i) {
      const StatusOr<EncodedRow> row = source->HeldOut(i);
      if (!row.ok()) continue;  // as a training row that is bad: left out
      for (int32_t k = 0; k < 2; ++k) {
        train::Row answer;
        answer.tid = {i, 0, k};
        answer.gid = GroupId{i};
        answer.prompt = row->prompt;
        answer.response = k == 0 ? row->response : row->rejected;
        answer.reward = k == 0 ? 1 : 0;
        held_out_.push_back(std::move(answer));
      }
    }
  }
  if (held_out_.empty()) return OkStatus();
  TP_ASSIGN_OR_RETURN(const auto found, trainer_->Evaluate(held_out_));
  for (const auto& [name, number] : found) metrics["eval/" + name + (before ? "/before" : "")] = number;
  return OkStatus();
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
  return recovery_.Write({step.value, version_.lineage, TrainerDigest(), 0}, parts);
}

StatusOr<std::vector<std::string>> DeviceRoles::WriteCheckpoint(const std::string& dir) const {
  if (trainer_ == nullptr && policy_trainer_ == nullptr)
    return FailedPrecondition("there is no trainer whose state could be saved");
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
    TP_RETURN_IF_ERROR(
        model::SaveHuggingFace(*weights_, dir, kShardBytes, HasTensors(model_dir_) ? model_dir_ : ""));
    return CopyTextFiles(model_dir_, dir);
  });
}

}  // namespace tidepool::workers
