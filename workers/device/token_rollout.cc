#include "workers/device/token_rollout.h"

#include <algorithm>
#include <utility>

#include "core/observe/log.h"

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;

ChunkEnd ToChunkEnd(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kChunk:
      return ChunkEnd::kChunkLimit;
    case engine::FinishReason::kEos:
      return ChunkEnd::kEos;
    case engine::FinishReason::kStopToken:
    case engine::FinishReason::kStopString:
      return ChunkEnd::kStop;
    case engine::FinishReason::kLength:
      return ChunkEnd::kLength;
    case engine::FinishReason::kCancelled:
      return ChunkEnd::kDrained;
    case engine::FinishReason::kError:
    case engine::FinishReason::kNone:
      break;
  }
  return ChunkEnd::kError;
}

engine::SamplingParams ParamsOf(down::ChunkSampling c) {
  return {.temperature = static_cast<float>(c.temperature),
          .top_k = c.top_k,
          .top_p = static_cast<float>(c.top_p),
          .min_p = static_cast<float>(c.min_p),
          .stop_token_ids = std::move(c.stop_token_ids),
          .stop_strings = std::move(c.stop)};
}

}  // namespace

Status TokenRollout::Add(down::StartChunk c) {
  engine::ChunkRequest request;
  request.tid = c.tid;
  request.attempt = c.att;
  request.gid = c.gid;
  request.prompt = std::move(c.prompt);
  request.generated = std::move(c.generated);
  request.max_new_tokens = c.chunk_tokens;
  request.max_total_new = c.max_new_tokens;
  request.turn = turns_;
  request.adapter = c.adapter;
  if (routing_bytes_ > 0)
    request.routed =
        std::min(c.routing_bytes / routing_bytes_, static_cast<int64_t>(request.generated.size()));
  request.sampling = c.sampling.given ? ParamsOf(std::move(c.sampling)) : ConfiguredParams(c.greedy);
  if (!request.sampling.stop_strings.empty() && load_bytes_) {
    TP_ASSIGN_OR_RETURN(engine::TokenBytes bytes, load_bytes_());
    engine_->SetTokenBytes(std::move(bytes));
    load_bytes_ = nullptr;
  }
  return engine_->Add(std::move(request));
}

engine::SamplingParams TokenRollout::ConfiguredParams(bool greedy) const {
  engine::SamplingParams s;
  s.temperature = greedy ? 0.0F : static_cast<float>(config_.temperature);
  if (!greedy) {
    s.top_k = config_.top_k;
    s.top_p = static_cast<float>(config_.top_p);
    s.min_p = static_cast<float>(config_.min_p);
  }
  s.stop_strings = config_.stop;
  for (const int64_t id : config_.stop_token_ids) s.stop_token_ids.push_back(static_cast<int32_t>(id));
  return s;
}

std::vector<std::pair<SampleId, int32_t>> TokenRollout::Drain() {
  std::vector<std::pair<SampleId, int32_t>> out;
  for (const engine::Delta& d : engine_->Drain()) out.emplace_back(d.tid, d.attempt);
  return out;
}

RolloutStep TokenRollout::Step() {
  engine::StepOutput made = engine_->Step();
  RolloutStep out;
  out.sampled = made.stats.sampled_tokens;
  up::StepTokens& tokens = out.tokens;
  tokens.step_s = made.stats.step_s;
  tokens.kv_usage = made.stats.kv_usage;
  tokens.running = made.stats.running;
  tokens.waiting = made.stats.waiting;
  tokens.prefill_tokens = made.stats.prefill_tokens;
  tokens.prefix_hit_tokens = made.stats.prefix_hit_tokens;
  if (made.stats.recorded_graphs > 0)
    observe::Log(LogLevel::kDebug, "graph", {{"rows", made.stats.prefill_tokens + made.stats.decode_tokens}});
  if (made.stats.refused_graphs > 0)
    observe::Log(LogLevel::kWarn, "graph_refused",
                 {{"rows", made.stats.prefill_tokens + made.stats.decode_tokens}});
  for (engine::Delta& d : made.deltas) {
    up::ChunkDelta c;
    c.tid = d.tid;
    c.att = d.attempt;
    const auto n = static_cast<int64_t>(d.ids.size());
    c.tokens.ids = std::move(d.ids);
    c.tokens.logprobs = std::move(d.logprobs);
    bool masked = false;
    for (const float k : d.log_kept) masked = masked || k != 0.0F;
    if (masked) c.tokens.log_kept = std::move(d.log_kept);
    c.tokens.routing = std::move(d.routing);
    if (n > 0) c.tokens.versions.emplace_back(d.version, n);
    c.ended = d.finish != engine::FinishReason::kNone;
    if (c.ended) c.end = ToChunkEnd(d.finish);
    c.why = std::move(d.error);
    tokens.chunks.push_back(std::move(c));
  }
  return out;
}

void TokenRollout::UseVersion(const Version& version) { engine_->SetVersion(version, config_.kv_on_update); }

}  // namespace tidepool::workers
