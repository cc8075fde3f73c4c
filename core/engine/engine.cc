#include "core/engine/engine.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine_impl.h"

namespace tidepool::engine {
namespace {

constexpr int64_t kKvTokensMost = 2'000'000'000;

Status CheckOptions(const model::Weights& weights, const EngineOptions& o) {
  const auto bad = [](const std::string& what) { return InvalidArgument("engine: " + what); };
  if (o.block_tokens < 1 || o.block_tokens > 1024) {
    return bad("rollout.block_tokens is " + std::to_string(o.block_tokens) + ", expected 1 to 1024");
  }
  // Kernels have slots as int32, those that fill up graphs included (core/config/schema_keys.cc).
  static_assert(kKvTokensMost < std::numeric_limits<int32_t>::max() - model::kFillRowsMax);
  if (o.kv_cache_tokens < o.block_tokens || o.kv_cache_tokens > kKvTokensMost) {
    return bad("rollout.kv_cache_tokens is " + std::to_string(o.kv_cache_tokens) +
               ", expected at least a block (" + std::to_string(o.block_tokens) + ") and at most " +
               std::to_string(kKvTokensMost));
  }
  if (o.max_running < 1)
    return bad("max_running is " + std::to_string(o.max_running) + ", expected 1 or more");
  if (o.max_batched_tokens < o.max_running) {
    return bad("rollout.max_batched_tokens is " + std::to_string(o.max_batched_tokens) +
               ", expected at least one row for each of " + std::to_string(o.max_running) +
               " requests (rollout.max_concurrent); raise it");
  }
  if (weights.spec().vocab_size < 1) return bad("the model has no vocabulary");
  TP_CHECK(o.ranks == nullptr || o.ranks->leads()) << "an engine of rank " << o.ranks->part().rank;
  return OkStatus();
}

}  // namespace

Engine::Engine() = default;
Engine::~Engine() = default;

StatusOr<std::unique_ptr<Engine>> Engine::Create(const model::Weights& weights, EngineOptions options) {
  TP_RETURN_IF_ERROR(CheckOptions(weights, options));
  if (options.device == nullptr) options.device = std::make_shared<device::CpuDevice>();
  std::unique_ptr<Engine> engine(new Engine());  // the constructor is private
  try {
    engine->impl_ = std::make_unique<Impl>(weights, std::move(options));
  } catch (const c10::OutOfMemoryError&) {  // the process's door, which knows the plan
    throw;
  } catch (const std::exception& e) {
    return Internal("engine: the decoder could not be set up: " + FirstLine(e));
  }
  TP_RETURN_IF_ERROR(engine->impl_->arena.Allocate());
  return engine;
}

Status Engine::Add(ChunkRequest request) {
  Impl& im = *impl_;
  const model::ModelSpec& spec = im.weights.spec();
  const std::string who = "chunk of " + ToString(request.tid);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const auto generated = static_cast<int64_t>(request.generated.size());
  if (!im.adapters.contains(request.adapter))
    return InvalidArgument(who + ": the engine has no adapter " + std::to_string(request.adapter));
  if (prompt == 0) return InvalidArgument(who + ": the prompt is empty, expected at least one token");
  for (const auto* ids : {&request.prompt, &request.generated}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= spec.vocab_size) {
        return InvalidArgument(who + ": token id " + std::to_string(id) +
                               ", expected below the vocabulary's " + std::to_string(spec.vocab_size));
      }
    }
  }
  if (request.max_new_tokens < 1 || request.max_total_new <= generated) {
    return InvalidArgument(who + ": max_new_tokens " + std::to_string(request.max_new_tokens) +
                           ", max_total_new " + std::to_string(request.max_total_new) + " with " +
                           std::to_string(generated) +
                           " generated; expected room for at least one new token");
  }
  if (request.routed < 0 || request.routed > generated) {
    return InvalidArgument(who + ": routing of " + std::to_string(request.routed) +
                           " tokens is recorded, but " + std::to_string(generated) + " are generated");
  }
  TP_RETURN_IF_ERROR(CheckSampling(request.sampling, spec.vocab_size).At(who));
  if (!request.sampling.stop_strings.empty() && !im.options.token_bytes) {
    return InvalidArgument(who + ": stop strings need a detokenizer, and the engine was made without one");
  }
  const int64_t new_tokens = std::min(request.max_new_tokens, request.max_total_new - generated);
  const int64_t known_tokens = prompt + generated;
  if (new_tokens > spec.max_position || known_tokens + new_tokens > spec.max_position) {
    return InvalidArgument(who + ": " + std::to_string(known_tokens) + " tokens and " +
                           std::to_string(new_tokens) + " new ones, but the model has " +
                           std::to_string(spec.max_position) +
                           " positions; lower rollout.max_new_tokens or data.max_prompt_tokens");
  }
  const int64_t need = im.kv_blocks.BlocksFor(known_tokens + new_tokens - 1);
  if (need > im.blocks) {
    return ResourceExhausted(who + " needs " + std::to_string(need) + " KV blocks of " +
                             std::to_string(im.options.block_tokens) + " tokens (" +
                             std::to_string(known_tokens) + " tokens and " + std::to_string(new_tokens) +
                             " new ones), but the whole cache has " + std::to_string(im.blocks) +
                             "; raise rollout.kv_cache_tokens or lower rollout.chunk_tokens");
  }
  if (!im.known.insert({request.adapter, request.tid, request.attempt}).second) {
    return AlreadyExists(who + ", attempt " + std::to_string(request.attempt) +
                         ": it is in the engine already");
  }

  auto s = std::make_unique<Sequence>();
  s->tid = request.tid;
  s->attempt = request.attempt;
  s->adapter = request.adapter;
  s->gid = request.gid;
  s->uid = SampleUid(request.tid);
  s->sampling = std::move(request.sampling);
  s->stop = StopStrings(s->sampling.stop_strings);
  s->stop.Resume(request.generated, im.options.token_bytes);
  s->tokens = std::move(request.prompt);
  s->tokens.reserve(static_cast<size_t>(known_tokens + new_tokens));
  s->tokens.insert(s->tokens.end(), request.generated.begin(), request.generated.end());
  s->prompt_tokens = prompt;
  s->routed_end = prompt - 1 + request.routed;
  s->turn = request.turn;
  s->chunk_end = known_tokens + new_tokens;
  s->sample_end = request.max_total_new > spec.max_position ? std::numeric_limits<int64_t>::max()
                                                            : prompt + request.max_total_new;
  im.waiting.push_back(std::move(s));
  return OkStatus();
}

void Engine::SetTokenBytes(TokenBytes bytes) { impl_->options.token_bytes = std::move(bytes); }

// Moves the chosen running requests to the front of the queue, in their order, without KV.
void Engine::Impl::BackToWaiting(const std::vector<bool>& which) {
  std::vector<Owned> stay;
  std::vector<Owned> back;
  for (size_t i = 0; i < running.size(); ++i) {
    if (which[i]) {
      kv_blocks.Release(*running[i], /*keep=*/false);
      back.push_back(std::move(running[i]));
    } else {
      stay.push_back(std::move(running[i]));
    }
  }
  running = std::move(stay);
  waiting.insert(waiting.begin(), std::make_move_iterator(back.begin()), std::make_move_iterator(back.end()));
}

void Engine::Impl::Unplace() {
  BackToWaiting(std::vector<bool>(running.size(), true));
  kv_blocks.Clear();
}

void Engine::Impl::Unplace(int32_t adapter) {
  BackToWaiting(Which([&](const Sequence& s) { return s.adapter == adapter; }));
  kv_blocks.Clear(adapter);
}

int32_t Engine::AddAdapter(const model::Weights& adapter, Version version, uint64_t seed) {
  TP_CHECK(impl_->options.ranks == nullptr) << "an adapter on a part of a model";
  const int32_t id = impl_->decoder.AddAdapter(adapter);
  impl_->adapters[id] = {.version = version, .seed = seed};
  return id;
}

void Engine::RemoveAdapter(int32_t adapter) {
  Impl& im = *impl_;
  TP_CHECK(adapter != kOwnWeights && im.adapters.erase(adapter) == 1) << "adapter " << adapter;
  im.Unplace(adapter);
  std::erase_if(im.waiting, [&](const Impl::Owned& s) { return s->adapter == adapter; });
  std::erase_if(im.known, [&](const Impl::Attempt& a) { return a.adapter == adapter; });
  im.decoder.RemoveAdapter(adapter);
}

bool Engine::Cancel(const SampleId& tid, int32_t attempt, int32_t adapter) {
  Impl& im = *impl_;
  if (im.known.erase({adapter, tid, attempt}) == 0) return false;
  const auto is_it = [&](const Impl::Owned& s) {
    return s->adapter == adapter && s->tid == tid && s->attempt == attempt;
  };
  if (const auto it = std::ranges::find_if(im.waiting, is_it); it != im.waiting.end()) {
    im.waiting.erase(it);
  } else {
    const auto at = std::ranges::find_if(im.running, is_it);
    TP_CHECK(at != im.running.end()) << ToString(tid);
    const Impl::Owned gone = std::move(*at);
    im.running.erase(at);
    im.kv_blocks.Release(*gone, /*keep=*/false);
    im.BackToWaiting(im.Which([&](const Sequence& s) { return s.leader == gone.get(); }));
  }
  im.kv_blocks.Forget(tid, adapter);
  return true;
}

bool Engine::HasWork() const {
  return impl_->arena.allocated() && !(impl_->running.empty() && impl_->waiting.empty());
}
void Engine::ForgetGroup(GroupId gid, int32_t adapter) { impl_->kv_blocks.ForgetGroup(gid, adapter); }

std::vector<Delta> Engine::Drain() {
  std::vector<Delta> deltas;
  for (const auto& [adapter, of] : impl_->adapters)
    std::ranges::move(Drain(adapter), std::back_inserter(deltas));
  return deltas;
}

std::vector<Delta> Engine::Drain(int32_t adapter) {
  Impl& im = *impl_;
  std::vector<Delta> deltas;
  const auto ends = [&](const Impl::Owned& s) {
    if (s->adapter != adapter) return false;
    deltas.push_back(im.DeltaFor(*s));
    deltas.back().finish = FinishReason::kCancelled;
    return true;
  };
  for (const Impl::Owned& s : im.running)
    if (s->adapter == adapter) im.kv_blocks.Release(*s, /*keep=*/true);
  std::erase_if(im.running, ends);
  std::erase_if(im.waiting, ends);
  std::erase_if(im.known, [&](const Impl::Attempt& a) { return a.adapter == adapter; });
  return deltas;
}

void Engine::SetVersion(int32_t adapter, Version version, KvOnUpdate kv) {
  Impl& im = *impl_;
  Version& current = im.adapters.at(adapter).version;
  if (version == current) return;
  const bool of_all = adapter == kOwnWeights && im.weights.base() == nullptr;
  for (const auto& [one, of] : im.adapters) {
    if (!of_all && one != adapter) continue;
    if (kv == KvOnUpdate::kRecompute) {
      im.Unplace(one);
      continue;
    }
    // Who has not got through its prompt, or waits for another's, has little to lose.
    im.BackToWaiting(im.Which([&](const Sequence& s) {
      return s.adapter == one && (s.leader != nullptr || s.computed < s.prompt_tokens);
    }));
    std::vector<Sequence*> go_on = im.Running();
    std::erase_if(go_on, [&](const Sequence* s) { return s->adapter != one; });
    im.kv_blocks.TurnStale(go_on, one);
  }
  current = version;
  im.decoder.WeightsChanged(adapter);
}

int64_t Engine::ReleaseMemory() {
  const int64_t held = this->held().total();
  if (impl_->arena.allocated()) impl_->Unplace();
  impl_->hidden = device::Array();
  impl_->untold.clear();  // what they copied is gone
  impl_->arena.Free();
  impl_->decoder.ReleaseScratch();
  return held;
}

model::MemoryUse Engine::held() const {
  return {.workspace = impl_->decoder.held_bytes() + impl_->device->scratch_bytes(),
          .kv = impl_->arena.allocated() ? impl_->arena.bytes() : 0};
}

Status Engine::AcquireMemory() { return impl_->arena.Allocate(); }

}  // namespace tidepool::engine
