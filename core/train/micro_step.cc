// One micro-batch: forward, what its tokens cost, backward.

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/algorithms/distillation.h"
#include "core/model/routing.h"
#include "core/model/row_operations.h"
#include "core/train/packing.h"
#include "core/train/trainer_impl.h"

namespace tidepool::train {
namespace {

// A response token of a row, by its place in the plan.
struct Use {
  int64_t row;
  size_t t, cell;
};
// The tokens of some pairs, as the losses take them: whole rows in their order, or one row of single tokens.
struct CellBatch {
  struct Cell {
    size_t pair;
    Use use;
  };
  std::vector<Cell> list;
  algorithms::Cells cells;
  std::vector<int64_t> rows;  // of the batch
};
// d loss / d log-prob and d entropy, [cells].
struct Slopes {
  std::vector<double> logp, entropy;
};

// [pairs] The valid tokens of the rows that each pair serves.
std::vector<std::vector<Use>> UsesOf(const Batch& batch, const PackedBatch& packed,
                                     const algorithms::Cells& cells) {
  std::vector<std::vector<Use>> uses(packed.sources.size());
  for (size_t k = 0; k < packed.rows.size(); ++k) {
    const auto i = static_cast<size_t>(packed.rows[k]);
    for (size_t t = 0; t < batch.rows[i].response.size(); ++t) {
      const size_t cell = static_cast<size_t>(cells.begin[i]) + t;
      if (cells.mask[cell] != 0)
        uses[static_cast<size_t>(packed.pair_of[k][t])].push_back({packed.rows[k], t, cell});
    }
  }
  return uses;
}

CellBatch CellsOf(const std::vector<std::vector<Use>>& uses, std::span<const int32_t> wanted,
                  bool whole_rows) {
  CellBatch b;
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (const Use& use : uses[static_cast<size_t>(wanted[i])]) b.list.push_back({i, use});
  }
  if (whole_rows)
    std::stable_sort(b.list.begin(), b.list.end(),
                     [](const auto& x, const auto& y) { return x.use.cell < y.use.cell; });
  std::vector<int64_t> begin = {0};
  for (size_t c = 0; c < b.list.size(); ++c) {
    if (c + 1 < b.list.size() && (!whole_rows || b.list[c + 1].use.row == b.list[c].use.row)) continue;
    begin.push_back(static_cast<int64_t>(c) + 1);
    b.rows.push_back(b.list[c].use.row);
  }
  b.cells = algorithms::Cells::Packed(std::move(begin));
  return b;
}

// plan_column[cells of b], or empty.
template <typename T>
std::vector<T> Take(const std::vector<T>& column, const CellBatch& b) {
  std::vector<T> out;
  if (column.empty()) return out;
  out.reserve(b.list.size());
  for (const CellBatch::Cell& c : b.list) out.push_back(column[c.use.cell]);
  return out;
}

// Pairs of answers, whole in `b`: the mean over the pairs of the update.
Slopes PairSlopes(const TrainerOptions& o, const Batch& batch, const CellBatch& b,
                  std::span<const double> logp, std::span<const double> ref, int64_t pairs_of_update,
                  TokenSums& sums) {
  std::vector<double> policy = algorithms::RowSums(logp, b.cells),
                      reference = algorithms::RowSums(ref, b.cells);
  std::vector<double> share(policy.size(), 1.0);
  for (size_t i = 0; o.length_average && i < policy.size(); ++i) {
    share[i] = 1 / static_cast<double>(b.cells.Tokens(static_cast<int64_t>(i)));
    policy[i] *= share[i];
    reference[i] *= share[i];
  }
  const Pairs pairs = PairsOf(batch.rows, b.rows);
  const algorithms::DpoResult loss = PreferenceOf(o, pairs, policy, reference, sums);
  const double scale = static_cast<double>(pairs.size()) / static_cast<double>(pairs_of_update);
  std::vector<double> slope(policy.size(), 0.0);
  for (size_t p = 0; p < pairs.size(); ++p) {
    slope[pairs[p].first] = scale * loss.grad_chosen[p] * share[pairs[p].first];
    slope[pairs[p].second] = scale * loss.grad_rejected[p] * share[pairs[p].second];
  }
  sums.loss += scale * loss.loss;
  return {algorithms::Spread(slope, b.cells), {}};
}

// d loss / d log-prob and d entropy of the pairs; entropy: empty where the loss has no bonus.
struct HeadSlopes {
  std::vector<float> logp, entropy;
};

// What the tokens of `b` cost, given the log-probs and entropies of its pairs, with their metrics.
StatusOr<HeadSlopes> LossOf(const TrainerImpl& m, StepContext& step, const StepPlan& plan, const CellBatch& b,
                            const algorithms::PolicyLossSpec& spec, int64_t pairs_of_update, bool first_pass,
                            bool untouched, std::span<const float> lp, std::span<const float> entropy) {
  const Batch& batch = step.batch;
  TokenSums& sums = step.sums;
  const bool with_entropy = spec.entropy_coef != 0;
  std::vector<double> logp, entropies, scores;
  for (const CellBatch::Cell& c : b.list) {
    logp.push_back(lp[c.pair]);
    entropies.push_back(entropy[c.pair]);
  }
  for (const int64_t row : b.rows)
    scores.push_back(plan.scores.empty() ? 0.0 : plan.scores[static_cast<size_t>(row)]);
  // With a single update, old is this very forward's.
  const std::vector<double> before = m.rl() && !plan.old.empty() ? Take(plan.old, b) : logp;
  const std::vector<double> ref = Take(plan.ref, b), behave = Take(plan.behave, b),
                            advantages = Take(plan.advantages, b);
  Slopes slopes;
  std::vector<double> importance;
  algorithms::LossTerms terms;
  if (m.pairs()) {
    slopes = PairSlopes(m.options, batch, b, logp, ref, pairs_of_update, sums);
  } else {
    const std::vector<double> keep = Take(plan.keep, b);
    const std::vector<uint8_t> selected = Take(plan.selected, b);
    TP_ASSIGN_OR_RETURN(algorithms::PolicyLossResult loss, algorithms::PolicyLoss(spec, b.cells,
                                                                                  {.logp = logp,
                                                                                   .advantages = advantages,
                                                                                   .old_logp = before,
                                                                                   .behave_logp = behave,
                                                                                   .ref_logp = ref,
                                                                                   .entropy = entropies,
                                                                                   .is_weights = keep,
                                                                                   .scores = scores,
                                                                                   .selected = selected},
                                                                                  Take(plan.weights, b)));
    sums.loss += loss.policy_term;
    sums.entropy_loss += loss.entropy_term;
    sums.kl_loss += loss.kl_term;
    slopes = {std::move(loss.grad_logp), std::move(loss.grad_entropy)};
    importance = std::move(loss.is_weights);
    terms = std::move(loss.terms);
  }
  std::vector<double> slope(lp.size(), 0.0), entropy_slope(with_entropy ? lp.size() : 0, 0.0);
  for (size_t c = 0; c < b.list.size(); ++c) {
    slope[b.list[c].pair] += slopes.logp[c];
    if (with_entropy) entropy_slope[b.list[c].pair] += slopes.entropy[c];
    sums.AddToken({.logprob = logp[c],
                   .old_logprob = before[c],
                   .entropy = entropies[c],
                   .advantage = advantages[c],
                   .importance = importance.empty() ? 1 : importance[c],
                   .clipped = !terms.clipped.empty() && terms.clipped[c] != 0,
                   .dual_clipped = !terms.dual_clipped.empty() && terms.dual_clipped[c] != 0});
    if (!m.rl() || !first_pass) continue;
    const Row& row = batch.rows[static_cast<size_t>(b.list[c].use.row)];
    if (m.options.loss.kl)
      sums.reference_kl += plan.kl.empty()
                               ? algorithms::KlEstimate(m.options.loss.kl->estimate, before[c], ref[c]).value
                               : plan.kl[b.list[c].use.cell];
    sums.reference_tokens += m.options.loss.kl ? 1 : 0;
    // What the trained weights say of a token that they sampled: this forward, if they are still the same, or
    // the one before the step.
    const bool recorded =
        !plan.recorded.empty() && plan.recorded[static_cast<size_t>(b.list[c].use.row)] != 0;
    if ((row.versions.empty() || row.versions[b.list[c].use.t] == batch.version) && (untouched || !recorded))
      sums.AddGap(untouched ? logp[c] : before[c], behave[c]);
  }
  return HeadSlopes{{slope.begin(), slope.end()}, {entropy_slope.begin(), entropy_slope.end()}};
}

}  // namespace

Status TrainerImpl::MicroStep(StepContext& step, const std::vector<int64_t>& micro, const StepPlan& plan,
                              int64_t pairs_of_update, double share, bool first_pass, bool untouched) {
  const Batch& batch = step.batch;
  TokenSums& sums = step.sums;
  Stopwatch watch;
  const PackedBatch packed = Pack(batch.rows, micro, model::RoutingBytes(weights.spec()));
  step.computed += static_cast<int64_t>(packed.ids.size());
  const bool distill = options.objective == JobKind::kDistill;
  device::Array taught;  // the teacher's hidden states
  if (distill)
    taught = HiddenStates(*teacher, *companions.teacher,
                          View(companions.teacher->spec(), batch.rows, packed, nullptr));
  std::vector<int32_t> experts;
  auto [hidden, saved] =
      decoder->ForwardTraining(View(weights.spec(), batch.rows, packed, &experts), options.recompute);
  step.times.forward += watch.Lap();

  const std::vector<std::vector<Use>> uses = UsesOf(batch, packed, plan.cells);
  std::vector<int32_t> wanted;  // pairs that a valid token needs
  for (size_t p = 0; p < uses.size(); ++p) {
    if (!uses[p].empty()) wanted.push_back(static_cast<int32_t>(p));
  }

  algorithms::PolicyLossSpec spec;
  if (rl()) {
    spec = options.loss.policy;
    if (spec.kl_beta) spec.kl_beta = controls->kl_coef;
  } else {
    spec.loss = algorithms::FindLoss("ce");
  }
  // Losses of single tokens are finished a chunk of logits at a time. Those of whole rows need all log-probs
  // of the micro-batch first; then logits of more than one chunk are computed twice.
  const auto chunk = static_cast<size_t>(options.head_rows);
  const bool whole_rows = pairs() || (rl() && algorithms::NeedsWholeRows(spec));
  const size_t stride = whole_rows ? std::max<size_t>(1, wanted.size()) : chunk;

  // Rows of several pairs receive a sum of gradients, so it is gathered in float32.
  device::Device& device = decoder->device();
  const device::Array dhidden = device.Take(hidden.view.rows, hidden.view.cols, DType::kFloat32);
  struct Head {
    std::vector<int32_t> sources, targets;
    device::Array rows, logits;
  };
  const auto rows_of = [&device](const device::Array& from, const std::vector<int32_t>& sources) {
    device::Array rows = device.Take(static_cast<int64_t>(sources.size()), from.view.cols, from.view.dtype);
    model::GatherRows(device, from.view, sources, rows.view);
    return rows;
  };
  const auto head_of = [&, &hidden = hidden](size_t from, size_t n) {
    Head h;
    for (size_t i = 0; i < n; ++i) {
      h.sources.push_back(packed.sources[static_cast<size_t>(wanted[from + i])]);
      h.targets.push_back(packed.targets[static_cast<size_t>(wanted[from + i])]);
    }
    h.rows = rows_of(hidden, h.sources);
    h.logits = decoder->Logits(h.rows.view);
    return h;
  };
  const auto add_gradient = [&](const Head& h) {
    model::AddRows(device, decoder->LogitsBackward(h.rows.view, h.logits.view, *gradients).view, h.sources,
                   dhidden.view);
  };
  const auto temperature = static_cast<float>(options.temperature);
  for (size_t begin = 0; begin < wanted.size(); begin += stride) {
    const size_t count = std::min(stride, wanted.size() - begin);
    const CellBatch b = CellsOf(uses, std::span(wanted).subspan(begin, count), whole_rows);
    if (distill) {
      Head h = head_of(begin, count);
      DistillChunk(
          b.list.size(), h.logits.view, teacher->Logits(rows_of(taught, h.sources).view).view,
          [&](size_t pair) {
            double weight = 0;
            for (const Use& use : uses[static_cast<size_t>(wanted[begin + pair])])
              weight += plan.weights[use.cell];
            return weight;
          },
          sums);
      add_gradient(h);
      continue;
    }
    std::vector<float> lp(count), entropy(count), lse(count);
    const auto part = [](std::vector<float>& x, size_t from, size_t n) {
      return x.empty() ? std::span<float>() : std::span(x).subspan(from, n);
    };
    std::optional<Head> kept;
    for (size_t from = 0; from < count; from += chunk) {
      const size_t n = std::min(chunk, count - from);
      kept.reset();  // its logits are the memory of the next
      kept.emplace(head_of(begin + from, n));
      decoder->TokenLogProbs(kept->logits.view, kept->targets, temperature, part(lp, from, n),
                             part(entropy, from, n), part(lse, from, n));
    }

    Stopwatch of_loss;
    TP_ASSIGN_OR_RETURN(HeadSlopes slopes, LossOf(*this, step, plan, b, spec, pairs_of_update, first_pass,
                                                  untouched, lp, entropy));
    step.times.loss += of_loss.Lap();
    for (size_t from = 0; from < count; from += chunk) {
      const size_t n = std::min(chunk, count - from);
      if (count > chunk) {
        kept.reset();
        kept.emplace(head_of(begin + from, n));
      }
      decoder->TokenLogProbsBackward(
          kept->logits.view, kept->targets, temperature, part(lse, from, n),
          spec.entropy_coef != 0 ? std::span<const float>(part(entropy, from, n)) : std::span<const float>(),
          part(slopes.logp, from, n), part(slopes.entropy, from, n));
      add_gradient(*kept);
    }
  }
  // The time since the last one, without waits for sums of shared gradients.
  const auto lap = [&] {
    const double waited = gradient_shard == nullptr ? 0 : gradient_shard->TakeWaited();
    step.times.reduce += waited;
    return watch.Lap() - waited;
  };
  step.times.head += lap();
  sums.balance += share * decoder->LoadBalanceLoss(saved);
  decoder->Backward(std::move(saved), model::Rounded(device, dhidden, hidden.view.dtype).view, *gradients,
                    options.router_aux_coef * share);
  step.times.backward += lap();
  return OkStatus();
}

// Logits of the student become d loss / d logits, where the loss is sum weight(pair) divergence(pair). In
// float64 on the host, a row of logits at a time.
void TrainerImpl::DistillChunk(size_t cells, const device::View& student, const device::View& taught,
                               const std::function<double(size_t)>& weight, TokenSums& sums) const {
  device::Device& device = decoder->device();
  std::vector<float> logits = model::ToHost(device, student);
  const std::vector<float> other = model::ToHost(device, taught);
  const auto width = static_cast<size_t>(student.cols);
  std::vector<double> loss(static_cast<size_t>(student.rows));
  std::vector<uint8_t> agrees(loss.size());
  const algorithms::Cells one = algorithms::Cells::Packed({0, 1});
  at::parallel_for(0, student.rows, 1, [&](int64_t from, int64_t to) {
    for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(to); ++i) {
      const std::span row = std::span(logits).subspan(i * width, width);
      const std::span teachers = std::span(other).subspan(i * width, width);
      const std::vector<double> mine(row.begin(), row.end()), theirs(teachers.begin(), teachers.end());
      const algorithms::DistillResult r =
          algorithms::DistillLoss(options.distill, mine, theirs, student.cols, one);
      const double w = weight(i);
      for (size_t v = 0; v < width; ++v) row[v] = static_cast<float>(w * r.grad_student[v]);
      loss[i] = w * r.loss;
      agrees[i] =
          std::ranges::max_element(mine) - mine.begin() == std::ranges::max_element(theirs) - theirs.begin()
              ? 1
              : 0;
    }
  });
  model::FromHost(device, logits, student);
  for (size_t i = 0; i < loss.size(); ++i) {
    sums.loss += loss[i];
    sums.agreed += agrees[i];
    sums.compared += 1;
  }
  sums.tokens += static_cast<int64_t>(cells);
}

}  // namespace tidepool::train
