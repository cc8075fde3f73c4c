#include "workers/device/policy_rollout.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;

// A task of the worker's process has the time of a step. A service has its limits there, which end first: its
// start, a reset and a step may follow each other, and all of it is tried again after a loss.
double ExchangeLimit(const JobConfig& config) {
  constexpr double kLater = 30;
  const EnvironmentConfig& e = *config.environment();
  if (!e.is_service()) return e.step_timeout_s;
  return 2 * (e.start_timeout_s + e.reset_timeout_s + e.step_timeout_s) + kLater;
}

// A worker that is gone is no fault of the fragment's; one that is late or refuses is counted, and so is a
// service that is lost or fails.
ChunkEnd EndOf(StatusCode code) {
  switch (code) {
    case StatusCode::kUnavailable:
      return ChunkEnd::kCancelled;
    case StatusCode::kInvalidArgument:
    case StatusCode::kDataLoss:
      return ChunkEnd::kDataError;
    case StatusCode::kAborted:
      return ChunkEnd::kEnvError;
    default:
      return ChunkEnd::kError;
  }
}

}  // namespace

StatusOr<std::unique_ptr<PolicyRollout>> PolicyRollout::Create(const JobConfig& config,
                                                               const policy::PolicySpec& spec,
                                                               const model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const auto environment,
                      environments::FindVectorEnvironment(policy::EnvironmentOfJob(config)));
  std::unique_ptr<PolicyRollout> rollout(new PolicyRollout(config, spec, weights));
  rollout->episode_steps_ = environment.max_episode_steps;
  rollout->late_ = "environment.name: " + environments::LabelOf(environment) +
                   " has not come back from a call; correct it, or raise environment.step_timeout_s";
  return rollout;
}

Status PolicyRollout::Add(down::StartChunk c) {
  TP_ASSIGN_OR_RETURN(auto starts, policy::DecodeStates(c.starts));
  if (starts.empty() || c.environment.empty())
    return InvalidArgument("fragment " + ToString(c.tid) + ": came without environments to play in");
  Site& site = sites_[c.environment];
  if (site.host == nullptr) {
    // A worker that took another's place has another address; what nobody plays at any more goes.
    std::erase_if(sites_, [&](const auto& s) {
      return s.first != c.environment && s.second.player != nullptr && !s.second.player->HasWork();
    });
    site.host = std::make_unique<RemoteHost>(c.environment, c.environment_token, ExchangeLimit(config_),
                                             config_.security.max_control_bytes);
    site.player = std::make_unique<policy::Player>(spec_, weights_, *site.host, config_.seed);
  }
  policy::FragmentRequest request;
  request.tid = c.tid;
  request.att = c.att;
  request.greedy = c.greedy;
  request.episode = c.tid.is_eval();
  // Fragments are counted by their places in the order of the job, so that one that is played again is the
  // same.
  request.uniform =
      spec_.squashed && !request.episode &&
      c.tid.ordinal * config_.rollout.max_new_tokens < config_.rl()->algorithm.replay.learning_starts;
  request.steps = request.episode ? episode_steps_ : c.chunk_tokens / static_cast<int64_t>(starts.size());
  request.starts = std::move(starts);
  TP_RETURN_IF_ERROR(site.player->Add(std::move(request)));
  chunk_steps_[{c.tid, c.att}] = c.chunk_tokens;
  return OkStatus();
}

bool PolicyRollout::Cancel(const SampleId& tid, int32_t att) {
  if (chunk_steps_.erase({tid, att}) == 0) return false;
  for (auto& [address, site] : sites_) site.player->Cancel(tid, att);
  return true;
}

std::vector<std::pair<SampleId, int32_t>> PolicyRollout::Drain() {
  std::vector<std::pair<SampleId, int32_t>> out;
  for (auto& [address, site] : sites_) {
    for (const auto& chunk : site.player->Drain()) out.push_back(chunk);
  }
  chunk_steps_.clear();
  return out;
}

bool PolicyRollout::HasWork() const {
  return std::ranges::any_of(sites_, [](const auto& s) { return s.second.player->HasWork(); });
}

RolloutStep PolicyRollout::Step() {
  const auto start = std::chrono::steady_clock::now();
  RolloutStep out;
  up::StepTokens& tokens = out.tokens;
  for (auto& [address, site] : sites_) {
    if (!site.player->HasWork()) continue;
    policy::PlayerStats stats;
    for (policy::PlayedFragment& played : site.player->Step(&stats)) {
      up::ChunkDelta c;
      c.tid = played.tid;
      c.att = played.att;
      c.ended = true;
      const auto asked = chunk_steps_.find({played.tid, played.att});
      const int64_t most = asked == chunk_steps_.end() ? 0 : asked->second;
      if (asked != chunk_steps_.end()) chunk_steps_.erase(asked);
      if (played.status.ok()) {
        // An episode of an evaluation may be longer than a fragment; its steps are not a sample's tokens.
        c.tokens.kind = sample::SegmentKind::kFragment;
        c.tokens.fragment_steps = std::min(played.fragment.cells(), most);
        c.tokens.fragment = policy::EncodeFragment(played.fragment);
        sample::AddVersion(c.tokens.versions, version_, c.tokens.fragment_steps);
        c.end = ChunkEnd::kEos;
      } else {
        c.end = EndOf(played.status.code());
        c.why = played.status.message();
        if (played.status.code() == StatusCode::kDeadlineExceeded) c.why += "; " + late_;
      }
      tokens.chunks.push_back(std::move(c));
    }
    out.sampled += stats.steps;
    tokens.running += site.player->running();
  }
  tokens.step_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

void PolicyRollout::UseVersion(const Version& version) {
  version_ = version;
  for (auto& [address, site] : sites_) site.player->WeightsChanged();
}

}  // namespace tidepool::workers
