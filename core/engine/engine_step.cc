// Engine::Step() and its parts: admit, compute one batch, attach who waited for a prompt, draw.
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/engine/engine_impl.h"
#include "core/model/memory_use.h"

namespace tidepool::engine {
namespace {

using SteadyClock = std::chrono::steady_clock;
double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

}  // namespace

void Engine::Impl::Copy(int64_t from_slot, int64_t to_slot, int64_t count) {
  arena.Copy(from_slot, to_slot, count);
  if (options.ranks != nullptr)
    untold.push_back(
        {static_cast<int32_t>(from_slot), static_cast<int32_t>(to_slot), static_cast<int32_t>(count)});
}

void Engine::Impl::Admit(EngineStats& stats) {
  while (!waiting.empty() && static_cast<int64_t>(running.size()) < options.max_running) {
    Sequence& s = *waiting.front();
    if (!kv_blocks.Place(s, Running())) return;
    RowCounts& counts = stats.by_adapter[s.adapter];
    counts.prompt_tokens += s.size();
    counts.prefix_hit_tokens += s.computed;  // a follower's are counted when it attaches
    running.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
}

void Engine::Impl::Compute(EngineStats& stats) {
  const std::vector<Sequence*> all = Running();
  for (Sequence* s : all) s->prompt_row = s->sample_row = -1;
  const std::vector<Sequence*> chosen = AssignRows(all, options.max_batched_tokens);
  batch.Clear();
  for (Sequence* s : chosen) {
    kv_blocks.Cover(*s, s->computed + s->rows);
    batch.Add(*s, options.block_tokens);
    RowCounts& counts = stats.by_adapter[s->adapter];
    (s->rows == 1 ? counts.decode_tokens : counts.prefill_tokens) += s->rows;
  }
  hidden = device::Array();
  if (batch.rows() == 0) return;
  const auto start = SteadyClock::now();
  model::RaggedBatch view = batch.view();
  if (routing_bytes > 0) {
    routed.clear();
    view.routed = &routed;
  }
  if (fill_slots > 0) view.fill_slot = static_cast<int32_t>(blocks * options.block_tokens);
  const int64_t recorded = decoder.recorded_graphs(), refused = decoder.refused_graphs();
  if (options.ranks != nullptr)
    options.ranks->Tell({Order::kForward, PackForward(std::exchange(untold, {}), view)});
  hidden = decoder.Forward(view, arena.memory());
  stats.recorded_graphs = decoder.recorded_graphs() - recorded;
  stats.refused_graphs = decoder.refused_graphs() - refused;
  if (routing_bytes > 0) NoteRouting(view);
  stats.forward_s += SecondsSince(start);

  std::vector<std::byte> state;
  for (Sequence* s : chosen) {
    const int64_t before = s->computed;
    s->computed += s->rows;
    if (before < s->prompt_tokens && s->computed >= s->prompt_tokens)
      s->prompt_row = s->first_row + s->prompt_tokens - 1 - before;
    state.clear();
    if (s->prompt_row >= 0) {
      const device::View row = hidden.view.Rows(s->prompt_row, 1);
      state.resize(static_cast<size_t>(row.bytes()));
      device->Download(state.data(), row.data, row.bytes());
    }
    kv_blocks.Publish(*s, before, state);
    if (s->missing() == 0) s->sample_row = s->first_row + s->rows - 1;
  }
  AttachFollowers(stats);
  for (Sequence* s : chosen) kv_blocks.SettleTail(*s);
}

void Engine::Impl::NoteRouting(const model::RaggedBatch& rows) {
  const model::ModelSpec& spec = weights.spec();
  const auto k = static_cast<size_t>(spec.moe.experts_per_token);
  const size_t n = rows.ids.size(), layers = routed.size() / (n * k);
  for (size_t r = 0; r < n; ++r) {
    unsigned char* out = arena.note(rows.slots[r]);
    for (size_t l = 0; l < layers; ++l) {
      for (size_t i = 0; i < k; ++i, out += model::RoutingIdBytes(spec))
        model::PutRoutingId(spec, routed[(l * n + r) * k + i], out);
    }
  }
}

std::string Engine::Impl::TakeRouting(Sequence& s) {
  std::string out;
  if (routing_bytes == 0) return out;
  for (; s.routed_end < s.size(); ++s.routed_end) {
    const int64_t block = s.blocks[static_cast<size_t>(s.routed_end / options.block_tokens)];
    const unsigned char* note =
        arena.note(block * options.block_tokens + s.routed_end % options.block_tokens);
    out.append(reinterpret_cast<const char*>(note), static_cast<size_t>(routing_bytes));
  }
  return out;
}

void Engine::Impl::AttachFollowers(EngineStats& stats) {
  std::vector<bool> homeless(running.size(), false);
  bool any = false;
  const std::vector<Sequence*> all = Running();
  for (size_t i = 0; i < all.size(); ++i) {
    Sequence* s = all[i];
    if (s->leader == nullptr || s->leader->computed < s->follow_tokens) continue;
    const int64_t row = s->leader->prompt_row;
    if (!kv_blocks.Attach(*s, all)) {
      homeless[i] = any = true;  // shares less than it was promised for: asks again as a new one
      continue;
    }
    stats.by_adapter[s->adapter].prefix_hit_tokens += s->computed;
    if (s->leader == nullptr && s->missing() == 0) {
      s->sample_row = row;  // the same bits as sample_state, without another row through the head
      s->sample_state.clear();
    }
  }
  if (any) BackToWaiting(homeless);
}

// Of the distinct hidden states that tokens are drawn from; sets Pick::source.
device::Array Engine::Impl::LogitsOf(std::span<Pick> picks) {
  HeadOrder head;
  std::vector<std::pair<int32_t, const std::vector<std::byte>*>> states;  // of an adapter
  std::vector<model::AdapterRows> of_rows;
  std::vector<int32_t> place_of_row(static_cast<size_t>(batch.rows()), -1);
  for (Pick& pick : picks) {
    if (pick.s->sample_row < 0) continue;
    int32_t& place = place_of_row[static_cast<size_t>(pick.s->sample_row)];
    if (place < 0) {
      place = static_cast<int32_t>(head.rows.size());
      head.rows.push_back(static_cast<int32_t>(pick.s->sample_row));
      of_rows.push_back({.adapter = pick.s->adapter, .rows = 1});
    }
    pick.source = place;
  }
  for (Pick& pick : picks) {
    if (pick.s->sample_row >= 0) continue;
    const auto same = std::ranges::find_if(states, [&](const auto& state) {
      return state.first == pick.s->adapter && *state.second == pick.s->sample_state;
    });
    pick.source = static_cast<int32_t>(head.rows.size()) + static_cast<int32_t>(same - states.begin());
    if (same == states.end()) states.emplace_back(pick.s->adapter, &pick.s->sample_state);
  }
  const int64_t width = weights.spec().hidden_size, bytes = width * model::Bytes(weights.dtype());
  for (const auto& [adapter, state] : states) {
    of_rows.push_back({.adapter = adapter, .rows = 1});
    TP_CHECK(static_cast<int64_t>(state->size()) == bytes) << "state of " << state->size() << " bytes";
    head.states.append(reinterpret_cast<const char*>(state->data()), state->size());
  }
  if (options.ranks != nullptr) options.ranks->Tell({Order::kHead, PackHead(head)});
  const device::Array rows = SelectHidden(*device, hidden, width, weights.dtype(), head);
  // Rows of one adapter that stand together are computed together.
  std::vector<model::AdapterRows> runs;
  for (const model::AdapterRows& row : of_rows) {
    if (runs.empty() || runs.back().adapter != row.adapter) runs.push_back({.adapter = row.adapter});
    ++runs.back().rows;
  }
  device::Array logits = decoder.Logits(rows.view, runs);
  return options.ranks == nullptr ? logits : options.ranks->Whole(*device, weights.spec(), logits.view);
}

void Engine::Impl::SampleSlice(std::span<Pick> picks, EngineStats& stats) {
  auto start = SteadyClock::now();
  const device::Array logits = LogitsOf(picks);
  stats.head_s += SecondsSince(start);

  start = SteadyClock::now();
  std::vector<int32_t> source;
  std::vector<device::SampleRow> how;
  for (const Pick& pick : picks) {
    const Sequence& s = *pick.s;
    source.push_back(pick.source);
    how.push_back(SampleRowOf(
        s.sampling, SampleUniform(adapters.at(s.adapter).seed, s.uid, static_cast<uint32_t>(s.size()), 0)));
  }
  const std::vector<model::Drawn> drawn =
      model::DrawTokens(*device, logits.view, source, how, decoder.vocabulary());
  for (size_t i = 0; i < picks.size(); ++i) {
    picks[i].id = drawn[i].id;
    picks[i].log_kept = drawn[i].log_kept;
    picks[i].logprob = drawn[i].logprob;
  }
  stats.sample_s += SecondsSince(start);
}

void Engine::Impl::SampleAll(std::vector<Pick>& picks, EngineStats& stats) {
  for (size_t at = 0; at < picks.size(); at += model::kEngineHeadRows) {
    SampleSlice(std::span(picks).subspan(at, std::min<size_t>(model::kEngineHeadRows, picks.size() - at)),
                stats);
  }
}

FinishReason Engine::Impl::Append(Sequence& s, int32_t id) {
  s.tokens.push_back(id);
  const auto& eos = weights.spec().eos_token_ids;
  const auto& stops = s.sampling.stop_token_ids;
  const bool stop_string = s.stop.Append(id, options.token_bytes);
  if (std::ranges::find(eos, id) != eos.end()) return FinishReason::kEos;
  if (std::ranges::find(stops, id) != stops.end()) return FinishReason::kStopToken;
  if (stop_string) return FinishReason::kStopString;
  if (s.size() >= s.sample_end) return FinishReason::kLength;
  if (s.size() >= s.chunk_end) return FinishReason::kChunk;
  return FinishReason::kNone;
}

StepOutput Engine::Step() {
  Impl& im = *impl_;
  StepOutput out;
  const auto start = SteadyClock::now();
  std::string error;
  std::vector<Pick> picks;
  if (im.arena.allocated()) {
    im.kv_blocks.Tick();
    im.Admit(out.stats);
    const auto failed = [&](const std::exception& e) {
      error = "engine step failed: " + FirstLine(e);
      picks.clear();
    };
    try {
      im.Compute(out.stats);
      for (Sequence* s : im.Running()) {
        if (s->leader == nullptr && s->missing() == 0) picks.push_back({.s = s});
      }
      im.SampleAll(picks, out.stats);
    } catch (const c10::OutOfMemoryError&) {  // no fault of these requests, nor is what follows
      throw;
    } catch (const std::bad_alloc&) {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the host has no memory for a step");
    } catch (const std::system_error&) {  // of threads
      throw;
    } catch (const model::PeersFailed&) {
      throw;
    } catch (const c10::Error& e) {
      if (!im.device->host_memory()) throw;  // a device that has failed does so in every step
      failed(e);
    } catch (const std::exception& e) {  // from tensor math
      failed(e);
    }
  }

  size_t next = 0;
  std::vector<Impl::Owned> still;
  for (Impl::Owned& owned : im.running) {
    Sequence& s = *owned;
    FinishReason finish = FinishReason::kNone;
    if (!error.empty()) {
      s.tail_lent = false;
      out.deltas.push_back(im.DeltaFor(s));
      out.deltas.back().error = error;
      finish = FinishReason::kError;
    } else if (next < picks.size() && picks[next].s == &s) {
      const Pick& pick = picks[next++];
      out.deltas.push_back(im.DeltaFor(s));
      Delta& delta = out.deltas.back();
      s.sample_state.clear();
      if (pick.id < 0) {
        finish = FinishReason::kError;
        delta.error = "logits after token " + std::to_string(s.size()) + " of " + ToString(s.tid) +
                      " hold a value that is not finite (weights " + ToString(out.deltas.back().version) +
                      "); the model has diverged or its files are damaged";
      } else {
        delta.ids.push_back(pick.id);
        delta.logprobs.push_back(pick.logprob);
        delta.log_kept.push_back(pick.log_kept);
        delta.routing = im.TakeRouting(s);
        finish = im.Append(s, pick.id);
        ++out.stats.by_adapter[s.adapter].sampled_tokens;
      }
    }
    if (finish == FinishReason::kNone) {
      still.push_back(std::move(owned));
      continue;
    }
    out.deltas.back().finish = finish;
    const bool more = finish == FinishReason::kChunk || (s.turn && EndsSample(finish));
    im.kv_blocks.Release(s, /*keep=*/more);
    if (!more) im.kv_blocks.tree().Forget(s.tid, s.adapter);
    im.known.erase({s.adapter, s.tid, s.attempt});
  }
  im.running = std::move(still);
  if (!error.empty()) im.kv_blocks.Clear();  // a failed step may have left KV half-written

  const BlockPool& pool = im.kv_blocks.pool();
  out.stats.kv_usage = 1.0 - static_cast<double>(pool.Available()) / static_cast<double>(pool.total());
  out.stats.running = static_cast<int64_t>(im.running.size());
  out.stats.waiting = static_cast<int64_t>(im.waiting.size());
  for (const auto& [adapter, counts] : out.stats.by_adapter) out.stats += counts;
  out.stats.step_s = SecondsSince(start);
  return out;
}

}  // namespace tidepool::engine
