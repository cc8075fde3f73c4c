#include "workers/device/device_roles.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/model/adapter_files.h"
#include "core/model/layout.h"
#include "core/model/routing.h"
#include "core/policy/policy_files.h"
#include "core/sharding/intervals.h"
#include "core/storage/checkpoint.h"
#include "core/text/tokenizer.h"
#include "workers/data/model_folder.h"
#include "workers/data/weights_service.h"
#include "workers/device/caught.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"
#include "workers/device/part_pieces.h"
#include "workers/device/policy_actor.h"
#include "workers/device/policy_rollout.h"
#include "workers/device/text_actor.h"
#include "workers/device/token_rollout.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardBytes = int64_t{5} << 30;  // of a saved model's files, as transformers cuts them

StatusOr<engine::TokenBytes> TokenBytesOf(const std::string& model_dir) {
  TP_ASSIGN_OR_RETURN(auto loaded, text::Tokenizer::Load(model_dir));
  std::shared_ptr<text::Tokenizer> tokenizer =
      std::move(loaded);  // shared: std::function needs to be copyable
  return engine::TokenBytes([tokenizer](int32_t id) { return std::string(tokenizer->TokenBytes(id)); });
}

}  // namespace

DeviceRoles::DeviceRoles(JobConfig config, std::string model_dir, const std::string& shared_memory,
                         std::string offload_dir, DeviceMaker make_device, bool trains,
                         std::string base_digest, DevicePool* pool)
    : config_(std::move(config)),
      models_(config_, std::move(model_dir), std::move(make_device), std::move(base_digest)),
      pool_(pool),
      shared_memory_(shared_memory),
      trains_(trains),
      published_(std::make_shared<HostWeights>(shared_memory, device::SizeOf(config_.model.dtype))),
      recovery_(shared_memory, "recovery"),
      parked_(std::move(offload_dir)) {}
DeviceRoles::~DeviceRoles() = default;

Status DeviceRoles::FindBase() {
  if (base_ != nullptr || !config_.model.trains_adapter()) return OkStatus();
  return Caught("model", [&]() -> Status {
    const auto read = [this] { return models_.Base(shared_memory_); };
    if (pool_ == nullptr) {
      TP_ASSIGN_OR_RETURN(base_, read());
    } else {
      TP_ASSIGN_OR_RETURN(const uint64_t identity, models_.BaseIdentity());
      TP_ASSIGN_OR_RETURN(base_, pool_->Base(identity, read));
    }
    return OkStatus();
  });
}

Status DeviceRoles::MakeWeights(bool read_tensors) {
  return Caught("model", [&]() -> Status {
    const DType dtype = config_.model.dtype;
    if (config_.model.is_policy()) {
      TP_ASSIGN_OR_RETURN(policy_, policy::ReadPolicySpec(models_.model_dir()));
      TP_ASSIGN_OR_RETURN(weights_, model::Weights::FromLayout(policy::PolicyLayout(*policy_), dtype));
      if (read_tensors && policy::HasWeights(models_.model_dir()))
        return policy::LoadPolicy(models_.model_dir(), *weights_);
      if (read_tensors) policy::InitializePolicy(*policy_, config_.seed, *weights_);
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(model::ModelSpec spec, model::ReadSpec(models_.model_dir()));
    TP_RETURN_IF_ERROR(models_.TryInvariance(spec, dtype));
    const bool scores = config_.kind() == JobKind::kRewardModel;
    if (spec.value_head && !scores)
      return InvalidArgument("model.path: " + models_.model_dir() + " is a reward model; a job of kind " +
                             Name(config_.kind()) + " needs one that writes");
    std::span<std::byte> arena;
    if (trains_ && config_.train.zero >= 3) {
      weights_.reset();
      TP_ASSIGN_OR_RETURN(shared_,
                          train::SharedWeights::Create(model::LayoutElements(spec), model::Bytes(dtype)));
      arena = shared_->arena();
    }
    if (read_tensors && !config_.model.trains_adapter()) {
      TP_ASSIGN_OR_RETURN(weights_, trains_ || ranks_ != nullptr ? models_.Read("model.path", "", arena)
                                                                 : models_.ReadToServe());
      if (scores && !spec.value_head) {
        TP_ASSIGN_OR_RETURN(weights_, model::WithValueHead(*weights_));
      }
      return OkStatus();
    }
    spec.value_head = scores;
    if (const auto adapter = model::AdapterOf(config_)) {
      TP_RETURN_IF_ERROR(FindBase());
      if (const std::string& start = config_.model.lora.path; read_tensors && !start.empty()) {
        auto loaded = model::LoadAdapter(start, base_, *adapter);
        if (!loaded.ok()) return loaded.status().At("model.lora.path");
        weights_ = *std::move(loaded);
        return OkStatus();
      }
      TP_ASSIGN_OR_RETURN(weights_, model::Weights::Adapt(base_, *adapter));
      if (read_tensors) weights_->Initialize(config_.seed, /*init_std=*/0);
      return OkStatus();
    }
    // Where nothing trains, an engine's rank has its part alone.
    const model::Part part = ranks_ == nullptr || trains_ ? model::Part() : ranks_->part();
    TP_ASSIGN_OR_RETURN(weights_, model::Weights::Create(spec, dtype, arena, part));
    return OkStatus();
  });
}

Status DeviceRoles::MakeActor() {
  if (actor_ != nullptr) return OkStatus();
  if (!trains_) return FailedPrecondition("this slot generates only: it keeps no state of training");
  TP_RETURN_IF_ERROR(Caught("trainer", [&]() -> Status {
    TP_ASSIGN_OR_RETURN(actor_, !policy_            ? TextActor::Create(config_, *weights_, models_, shard_)
                                : policy_->squashed ? SacActor::Create(config_, *weights_)
                                                    : PolicyActor::Create(config_, *weights_));
    return OkStatus();
  }));
  if (!parked_.holds()) return OkStatus();
  const Status read = parked_.Read(actor_->State());
  parked_.Forget();
  actor_->WeightsChanged();  // a critic's
  if (!read.ok()) {          // the run goes back to a copy of the state that is whole
    actor_.reset();
    owns_state_ = false;
  }
  return read;
}

void DeviceRoles::TakeShard(const Shard& shard) {
  if (shard != shard_) actor_.reset();
  shard_ = shard;
}

Status DeviceRoles::InitState(const Shard& shard) {
  actor_.reset();
  shard_ = shard;
  rollout_.reset();
  follower_.reset();
  Tear();
  TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/true));
  OwnState({0});
  return OkStatus();
}

void DeviceRoles::Tear() {
  torn_ = true;
  serves_ = owns_state_ = false;
  parked_.Forget();
}

Status DeviceRoles::Whole(uint64_t want, const std::string& what) {
  digest_ = weights_->Digest();
  if (digest_ != want)
    return DataLoss(what + ": the bytes that came have another digest than those that were sent");
  torn_ = false;
  return OkStatus();
}

void DeviceRoles::LayOut() {
  // An adapter is read as it is.
  if (!trains_ && !torn_ && engine_device_ != nullptr && base_ == nullptr)
    weights_->LayOutFor(*engine_device_, digest_);
}

void DeviceRoles::OwnState(StepNumber step) {
  digest_ = weights_->Digest();
  torn_ = false;
  owns_state_ = trains_;
  state_step_ = step;
  if (actor_ != nullptr) actor_->WeightsChanged();
}

std::optional<DeviceRoles::LoadedVersion> DeviceRoles::loaded() const {
  if (!serves_) return std::nullopt;
  return LoadedVersion{version_, digest_};
}

std::optional<DeviceRoles::TrainedState> DeviceRoles::state() const {
  if (!owns_state_) return std::nullopt;
  return TrainedState{state_step_, digest_};
}

Status DeviceRoles::RestoreFromCheckpoint(const std::string& dir, StepNumber step, const Shard& shard) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();  // before a trainer is made: what is parked is of no use any more
  TakeShard(shard);
  if (shared_ != nullptr) TP_RETURN_IF_ERROR(shared_->Leave());
  TP_RETURN_IF_ERROR(MakeActor());
  TP_RETURN_IF_ERROR(Caught("restore", [&]() -> Status {
    if (policy_) return policy::LoadPolicy(dir + "/model", *weights_);
    if (const model::AdapterSpec* adapter = weights_->adapter()) {
      TP_ASSIGN_OR_RETURN(const auto folder, model::AdapterFolder::Open(dir + "/model"));
      TP_RETURN_IF_ERROR(folder.CheckSpec(*adapter));
      TP_RETURN_IF_ERROR(folder.CheckShapes(weights_->spec()));
      folder.Read(weights_->spec(), weights_->dtype(), weights_->bytes());
      return OkStatus();
    }
    // Straight into the arena: a second copy of the weights would not fit beside a large model.
    return model::LoadHuggingFace(dir + "/model", weights_->dtype(), weights_->bytes()).status();
  }));
  // Where files came from a store they were compared as they came, and the manifest is not among them.
  RealFileSystem disk;
  const StatusOr<storage::Manifest> manifest = storage::ReadManifest(disk, dir, std::nullopt);
  if (!manifest.ok() && manifest.status().code() != StatusCode::kNotFound) return manifest.status();
  for (const train::NamedBytes& part : actor_->State()) {
    if (part.name == "weights") continue;
    TP_RETURN_IF_ERROR(
        ReadShared(dir + "/trainer", part, weights_->spec(), manifest.ok() ? &manifest->files : nullptr));
  }
  OwnState(step);
  return OkStatus();
}

Status DeviceRoles::RestoreFromRecovery(StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();  // before a trainer is made: what is parked is of no use any more
  TakeShard({});
  TP_RETURN_IF_ERROR(MakeActor());
  std::vector<device::ByteStore> parts;
  for (const train::NamedBytes& part : actor_->State()) parts.push_back(part.bytes);
  TP_ASSIGN_OR_RETURN(const BlockTag tag, recovery_.Read(step.value, -1, parts));
  OwnState(step);
  if (actor_->Digest(digest_) == tag.digest) return OkStatus();
  Tear();
  return DataLoss("the recovery copy of step " + std::to_string(step.value) +
                  " has another digest than when it was written");
}

Status DeviceRoles::FetchState(const std::string& address, const Credentials& credentials, StepNumber step) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();  // before a trainer is made: what is parked is of no use any more
  TakeShard({});
  TP_RETURN_IF_ERROR(MakeActor());
  std::vector<device::ByteStore> parts;
  for (const train::NamedBytes& part : actor_->State()) parts.push_back(part.bytes);
  TP_ASSIGN_OR_RETURN(const uint64_t announced,
                      FetchBytes(address, credentials, {.version = {}, .step = step}, parts));
  const std::vector<device::ByteSource> came(parts.begin(), parts.end());
  if (StateDigest(came) != announced) {
    return DataLoss("the state of step " + std::to_string(step.value) + " from " + address +
                    " changed while it was read");
  }
  OwnState(step);
  return OkStatus();
}

StatusOr<std::vector<device::ByteSource>> DeviceRoles::StateParts() {
  if (!owns_state_) return FailedPrecondition("no state of training is here");
  TP_RETURN_IF_ERROR(MakeActor());
  std::vector<device::ByteSource> parts;
  for (const train::NamedBytes& part : actor_->State()) parts.push_back(part.bytes);
  return parts;
}

uint64_t DeviceRoles::StateDigest(std::span<const device::ByteSource> parts) {
  uint64_t digest = 0;
  for (const device::ByteSource& part : parts) digest = Mix64(digest + DigestOf(part));
  return digest;
}

StatusOr<uint64_t> DeviceRoles::WeightsDigest() const {
  if (weights_ == nullptr || torn_) return FailedPrecondition("no weights are loaded");
  return digest_;
}

Status DeviceRoles::PrepareRollout(engine::Ranks* ranks) {
  if (ranks != nullptr && ranks != ranks_) serves_ = false;  // what the others have is not known
  ranks_ = ranks;
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  if (rollout_ != nullptr) return rollout_->AcquireMemory();
  if (follower_ != nullptr) return follower_->AcquireMemory();
  return Caught("engine", [&]() -> Status {
    if (policy_) {
      TP_ASSIGN_OR_RETURN(auto player, PolicyRollout::Create(config_, *policy_, *weights_));
      player->UseVersion(version_);
      rollout_ = std::move(player);
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(engine::EngineOptions options, OptionsOfEngine());
    if (ranks_ != nullptr && !ranks_->leads()) {
      TP_ASSIGN_OR_RETURN(follower_, engine::Follower::Create(*weights_, std::move(options)));
      return OkStatus();
    }
    TokenRollout::LoadBytes load_bytes;
    if (!options.token_bytes) load_bytes = [dir = models_.model_dir()] { return TokenBytesOf(dir); };
    TP_ASSIGN_OR_RETURN(auto seat, TakeSeat(std::move(options)));
    TP_RETURN_IF_ERROR(AddAdapters(*seat));
    rollout_ = std::make_unique<TokenRollout>(
        config_.rollout, config_.environment() != nullptr,
        config_.rollout.record_routing ? model::RoutingBytes(weights_->spec()) : 0, std::move(seat),
        std::move(load_bytes));
    return OkStatus();
  });
}

Status DeviceRoles::AddAdapters(EngineSeat& seat) const {
  // They go with the engine, and that before the weights.
  const std::shared_ptr<const model::Weights> base(std::shared_ptr<void>(), weights_.get());
  for (const std::string& folder : served_adapters_) {
    TP_ASSIGN_OR_RETURN(const auto opened, model::AdapterFolder::Open(folder));
    TP_ASSIGN_OR_RETURN(auto adapter, model::LoadAdapter(folder, base, opened.spec()));
    seat.AddAdapter(std::move(adapter), version_, config_.seed);
  }
  return OkStatus();
}

StatusOr<std::unique_ptr<EngineSeat>> DeviceRoles::TakeSeat(engine::EngineOptions options) {
  if (pool_ == nullptr || base_ == nullptr) {
    TP_ASSIGN_OR_RETURN(auto alone, engine::Engine::Create(*weights_, std::move(options)));
    return std::make_unique<EngineSeat>(std::move(alone));
  }
  const uint64_t seed = options.seed;
  auto token_bytes = options.token_bytes;
  TP_ASSIGN_OR_RETURN(auto shared, pool_->Engine(base_, std::move(options)));
  auto seat = std::make_unique<EngineSeat>(std::move(shared), *weights_, version_, seed);
  // The run that it was made for may have had no stop strings.
  if (token_bytes) seat->SetTokenBytes(std::move(token_bytes));
  TP_RETURN_IF_ERROR(seat->AcquireMemory());
  return seat;
}

StatusOr<engine::EngineOptions> DeviceRoles::OptionsOfEngine() {
  engine::EngineOptions options;
  options.seed = config_.seed;
  options.device = engine_device_ = models_.NewDevice();
  LayOut();
  options.block_tokens = config_.rollout.block_tokens;
  options.kv_cache_tokens = KvCacheTokens(config_, weights_->spec());
  options.max_batched_tokens = std::max(config_.rollout.max_batched_tokens, config_.rollout.max_concurrent);
  options.max_running = config_.rollout.max_concurrent;
  options.graphs = config_.rollout.cuda_graphs;
  options.record_routing = config_.rollout.record_routing;
  options.version = version_;
  options.ranks = ranks_;
  if (!config_.rollout.stop.empty()) {
    TP_ASSIGN_OR_RETURN(options.token_bytes, TokenBytesOf(models_.model_dir()));
  }
  return options;
}

void DeviceRoles::DropEngine() {
  rollout_.reset();
  follower_.reset();
  ranks_ = nullptr;
  // A part is of no use to another engine.
  if (weights_ != nullptr && !weights_->part().whole()) {
    Tear();
    weights_.reset();
  }
}

void DeviceRoles::Release(Role role) {
  if (role != Role::kActor && rollout_ != nullptr) rollout_->ReleaseMemory();
  if (role != Role::kActor && follower_ != nullptr) (void)follower_->ReleaseMemory();
  if (role != Role::kRollout && actor_ != nullptr) actor_->ReleaseScratch();
  TrimHeap();  // logits and caches are LibTorch's, which frees them to the heap
}

Status DeviceRoles::Park() {
  if (actor_ == nullptr) return OkStatus();
  if (owns_state_) TP_RETURN_IF_ERROR(parked_.Write(actor_->State()));
  actor_.reset();
  TrimHeap();
  return OkStatus();
}

// Of what an adapter is on, what this process has for itself, or its GPU has.
int64_t DeviceRoles::base_bytes() const {
  const bool mapped = !base_->owns_arena() && config_.cluster.device == DeviceKind::kCpu;
  return mapped ? 0 : base_->size() + base_->strips_bytes();
}

model::MemoryUse DeviceRoles::held() const {
  model::MemoryUse use;
  if (weights_ != nullptr) {
    // What a trained model's products read counts as held before it is made, as it does in the plan.
    const bool twice = trains_ && !policy_ && config_.cluster.device == DeviceKind::kCpu &&
                       config_.train.mesh.parts() == 1 && config_.rollout.mesh.tp == 1;
    const bool shared = shared_ != nullptr && shard_.world > 1;
    use.weights = shared
                      ? sharding::Owned(weights_->elements(), {shard_.rank, shard_.world}).size() *
                                model::Bytes(weights_->dtype()) +
                            model::LaidOutPartBytes(weights_->spec(), weights_->dtype())
                      : weights_->size() + (base_ != nullptr ? base_bytes()
                                            : twice ? model::LaidOutBytes(weights_->spec(), weights_->dtype())
                                                    : weights_->strips_bytes());
  }
  use += held(Role::kActor);
  use += held(Role::kRollout);
  return use;
}

model::MemoryUse DeviceRoles::held(Role role) const {
  if (role == Role::kActor && actor_ != nullptr) return actor_->held();
  if (role == Role::kRollout && rollout_ != nullptr) return rollout_->held();
  if (role == Role::kRollout && follower_ != nullptr) return follower_->held();
  return {};
}

int64_t DeviceRoles::weight_bytes() const {
  if (weights_ == nullptr) return 0;
  return weights_->part().whole() ? weights_->size()
                                  : model::WeightBytes(weights_->spec(), weights_->dtype());
}

int64_t DeviceRoles::least_moved_bytes() const {
  // A policy is never divided, and an adapter neither.
  if (policy_ || (rollout_ == nullptr && follower_ == nullptr)) return 0;
  if (base_ != nullptr) return shard_.rank == 0 && owns_state_ ? 0 : weights_->size();
  return LeastMoved(weights_->spec(), shard_, CutOfTraining(config_),
                    ranks_ == nullptr ? model::Part() : ranks_->part()) *
         device::SizeOf(weights_->dtype());
}

StatusOr<uint64_t> DeviceRoles::LoadFromSharedMemory(Version version) {
  if (weights_ == nullptr) TP_RETURN_IF_ERROR(MakeWeights(/*read_tensors=*/false));
  Tear();
  if (!weights_->part().whole()) return LoadPart(version);
  TP_ASSIGN_OR_RETURN(const uint64_t published, published_->Read(version, weights_->Overwrite()));
  if (Status whole = Whole(published, "weights of version " + ToString(version)); !whole.ok()) {
    published_->LookAgain(version);
    return whole;
  }
  return digest_;
}

// All ranks take theirs from one copy. It is compared with its digest after that: who brings other weights
// there writes over what was read.
StatusOr<uint64_t> DeviceRoles::LoadPart(Version version) {
  TP_ASSIGN_OR_RETURN(const HostWeights::Whole copy, published_->Look(version));
  if (static_cast<int64_t>(copy.bytes.size()) != weight_bytes())
    return DataLoss("weights of version " + ToString(version) + " have " + std::to_string(copy.bytes.size()) +
                    " bytes, expected " + std::to_string(weight_bytes()));
  weights_->TakePart(copy.bytes);
  if (PiecesOf(copy.bytes).Digest() != copy.digest) {
    published_->LookAgain(version);
    return DataLoss("weights of version " + ToString(version) +
                    ": the bytes that came have another digest than those that were sent");
  }
  digest_ = copy.digest;
  torn_ = false;
  return digest_;
}

StatusOr<uint64_t> DeviceRoles::LoadFromStream(Version version, uint64_t digest, const std::string& address,
                                               const Credentials& credentials) {
  if (auto here = LoadFromSharedMemory(version); here.ok() && *here == digest) return here;
  // This process does not see the shared memory of who has them.
  TP_RETURN_IF_ERROR(published_->Pull({address, credentials}, version, digest, weight_bytes()));
  return LoadFromSharedMemory(version);
}

void DeviceRoles::UseVersion(Version version) {
  version_ = version;
  serves_ = weights_ != nullptr && !torn_;
  LayOut();
  if (rollout_ != nullptr) rollout_->UseVersion(version);
  if (follower_ != nullptr) follower_->WeightsChanged();
}

StatusOr<TrainOutcome> DeviceRoles::Train(StepNumber step, Version version, std::vector<BatchRow> rows,
                                          const TrainProgress& progress, const comm::RankGroups& groups,
                                          std::vector<BadRow>& bad) {
  if (!owns_state_) return FailedPrecondition("no state of training is here");
  if (shared_ != nullptr && groups.data != nullptr)
    TP_RETURN_IF_ERROR(shared_->Share(*groups.data, shared_memory_));
  TP_RETURN_IF_ERROR(MakeActor());
  const int64_t before = updates();
  const auto result =
      Caught("train", [&] { return actor_->Step(step, version, std::move(rows), progress, groups, bad); });
  if (updates() != before) serves_ = false;  // the weights are those of no version yet
  if (!result.ok()) {
    if (updates() != before) owns_state_ = false;  // some of its updates were made
    return result.status();
  }
  if (result->finite) {
    state_step_ = step;
    digest_ = result->digest;
  } else if (updates() != before) {
    owns_state_ = false;  // the step is not kept, and some of its updates were made
  }
  return TrainOutcome{result->finite,
                      result->digest,
                      {result->metrics.begin(), result->metrics.end()},
                      result->scored,
                      result->replay};
}

Status DeviceRoles::Preview(std::vector<BatchRow> rows, const Version& version) {
  if (!owns_state_ || actor_ == nullptr) return OkStatus();
  return Caught("preview", [&] { return actor_->Preview(std::move(rows), version); });
}

StatusOr<train::Scored> DeviceRoles::PreviewPiece() {
  return Caught("preview", [&] { return actor_->PreviewPiece(); });
}

Status DeviceRoles::Publish(Version version, uint64_t digest, bool shared) {
  return published_->Publish(version, digest, std::as_const(*weights_).bytes(), shared);
}

Status DeviceRoles::CopyRecovery(StepNumber step) {
  TP_ASSIGN_OR_RETURN(const auto parts, StateParts());
  return recovery_.Write({step.value, version_.lineage, actor_->Digest(digest_), 0}, parts);
}

StatusOr<std::vector<std::string>> DeviceRoles::WriteCheckpoint(const std::string& dir, bool part) const {
  if (actor_ == nullptr && !parked_.holds())
    return FailedPrecondition("there is no trainer whose state could be saved");
  std::error_code error;
  // The controller has made `dir`; where it is gone, the run's folder was moved, and none is made in its
  // place.
  for (const char* folder : {"/model", "/trainer"}) {
    fs::create_directory(dir + folder, error);
    if (error) return FileError(error.value(), "make the folder", dir + folder);
  }
  // The controller may have put the base model there: nothing was trained.
  if (!part && !HasTensors(dir + "/model")) TP_RETURN_IF_ERROR(SaveModel(dir + "/model"));
  std::vector<std::string> files;
  if (parked_.holds()) {
    TP_ASSIGN_OR_RETURN(files, parked_.CopyTo(dir + "/trainer", part));
  } else {
    for (const train::NamedBytes& named : actor_->State()) {
      if (named.name == "weights") continue;  // in model/, bit for bit
      if (part && !named.piece && named.part.whole()) continue;
      files.push_back(PartFile(named));
      TP_RETURN_IF_ERROR(WritePart(dir + "/trainer/" + files.back(), named.bytes));
    }
  }
  for (std::string& file : files) file = "trainer/" + file;
  if (!part) {
    fs::recursive_directory_iterator entry(dir + "/model", error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      if (entry->is_regular_file(error)) files.push_back(entry->path().lexically_relative(dir).string());
      if (error) break;
    }
    if (error) return Unavailable(dir + "/model: cannot be read (" + error.message() + ")");
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status DeviceRoles::PrepareCheckpoint() {
  if (!owns_state_) return FailedPrecondition("no state of training is here");
  return parked_.holds() ? OkStatus() : MakeActor();  // what is parked is copied from file to file
}

Status DeviceRoles::SaveModel(const std::string& dir) const {
  return Caught("save", [&]() -> Status {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) return Unavailable(dir + ": cannot be made (" + error.message() + ")");
    if (policy_) return policy::SavePolicy(*policy_, *weights_, dir);
    if (const model::AdapterSpec* adapter = weights_->adapter()) {
      const std::string& base = models_.model_dir();
      // Made from the config: it is kept once, in the run's folder, for an adapter is nothing without it.
      // What is in memory may be laid out, so it is made once more.
      if (config_.model.init && !HasTensors(base)) {
        TP_ASSIGN_OR_RETURN(const auto made, models_.Read("model.path", ""));
        TP_RETURN_IF_ERROR(model::SaveHuggingFace(*made, base, kShardBytes));
      }
      TP_RETURN_IF_ERROR(model::SaveAdapter(
          {weights_->spec(), *adapter, weights_->dtype(), std::as_const(*weights_).bytes()}, base, dir));
      return CopyTextFiles(base, dir);
    }
    // A reward model begins with a head that the base model does not have.
    const bool of_source = HasTensors(models_.model_dir()) && config_.kind() != JobKind::kRewardModel;
    TP_RETURN_IF_ERROR(
        model::SaveHuggingFace(*weights_, dir, kShardBytes, of_source ? models_.model_dir() : ""));
    return CopyTextFiles(models_.model_dir(), dir);
  });
}

}  // namespace tidepool::workers
