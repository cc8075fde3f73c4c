// Jobs on pairs of answers: who belongs to whom, what they cost, the reward model's step.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/train/trainer_impl.h"

namespace tidepool::train {

Status CheckAnswer(const Row& row) {
  if (row.response_tokens() == 0 ||
      (!row.loss_mask.empty() &&
       std::ranges::count(row.loss_mask, 0) == static_cast<int64_t>(row.loss_mask.size())))
    return InvalidArgument("an answer of a pair has no tokens");
  return OkStatus();
}

void TrainerImpl::CheckPairs(const StepContext& step, std::vector<BadRow>& bad) const {
  const std::vector<Row>& rows = step.batch.rows;
  std::map<int64_t, int64_t> size;
  for (const Row& row : rows) ++size[row.gid.value];
  for (const Row& row : rows) {
    if (size[row.gid.value] == 2) continue;
    bad.push_back({row.tid, "group " + std::to_string(row.gid.value) + ": a pair has two answers, found " +
                                std::to_string(size[row.gid.value])});
  }
  for (const auto& update : step.micros) {
    for (const auto& micro : update) {
      std::map<int64_t, int64_t> here;
      for (const int64_t i : micro) ++here[rows[static_cast<size_t>(i)].gid.value];
      for (const int64_t i : micro) {
        const Row& row = rows[static_cast<size_t>(i)];
        if (here[row.gid.value] == 2 || size[row.gid.value] != 2) continue;
        bad.push_back(
            {row.tid, "the two answers of its pair together are longer than train.micro_batch_tokens " +
                          std::to_string(options.micro_batch_tokens) + "; raise it"});
      }
    }
  }
}

Pairs PairsOf(std::span<const Row> rows, std::span<const int64_t> places) {
  std::map<int64_t, size_t> first;
  Pairs pairs;
  for (size_t k = 0; k < places.size(); ++k) {
    const Row& row = rows[static_cast<size_t>(places[k])];
    const auto [it, fresh] = first.emplace(row.gid.value, k);
    if (fresh) continue;
    const Row& other = rows[static_cast<size_t>(places[it->second])];
    pairs.emplace_back(it->second, k);
    if (row.reward > other.reward) std::swap(pairs.back().first, pairs.back().second);
  }
  return pairs;
}

std::vector<Row> WithScorePlace(std::span<const Row> rows) {
  std::vector<Row> out(rows.begin(), rows.end());
  for (Row& row : out) {
    if (row.elsewhere) {
      ++row.elsewhere->response;
    } else {
      row.response.push_back(row.prompt.front());
    }
  }
  return out;
}

algorithms::DpoResult PreferenceOf(const TrainerOptions& o, const Pairs& pairs,
                                   std::span<const double> policy, std::span<const double> reference,
                                   TokenSums& sums) {
  std::vector<double> w, l, rw, rl;
  for (const auto& [chosen, rejected] : pairs) {
    w.push_back(policy[chosen]);
    l.push_back(policy[rejected]);
    rw.push_back(reference[chosen]);
    rl.push_back(reference[rejected]);
  }
  algorithms::DpoResult loss = algorithms::DpoLoss(o.preference, w, l, rw, rl);
  for (size_t p = 0; p < pairs.size(); ++p) {
    sums.pair_chosen += loss.chosen_rewards[p];
    sums.pair_rejected += loss.rejected_rewards[p];
  }
  sums.pairs += static_cast<double>(pairs.size());
  sums.pair_right += loss.accuracy * static_cast<double>(pairs.size());
  return loss;
}

algorithms::PairLoss ScoreLossOf(const TrainerOptions& o, const Pairs& pairs, std::span<const double> scores,
                                 TokenSums& sums) {
  std::vector<double> chosen, rejected;
  for (const auto& [w, l] : pairs) {
    chosen.push_back(scores[w]);
    rejected.push_back(scores[l]);
    sums.pair_chosen += scores[w];
    sums.pair_rejected += scores[l];
  }
  algorithms::PairLoss loss =
      algorithms::RewardModelLoss(chosen, rejected, std::vector<double>(pairs.size(), o.margin), o.centre);
  sums.pairs += static_cast<double>(pairs.size());
  sums.pair_right += loss.accuracy * static_cast<double>(pairs.size());
  return loss;
}

void PairMetrics(JobKind job, double loss, const TokenSums& sums, std::map<std::string, double>& metrics) {
  const double n = std::max(1.0, sums.pairs);
  const std::string at = std::string(Name(job)) + "/";
  metrics[at + "loss"] = loss;
  metrics[at + "accuracy"] = sums.pair_right / n;
  metrics[at + "margin"] = (sums.pair_chosen - sums.pair_rejected) / n;
  metrics[at + "chosen"] = sums.pair_chosen / n;
  metrics[at + "rejected"] = sums.pair_rejected / n;
  // The same by the names that TRL gives them.
  metrics["rewards/accuracies"] = metrics[at + "accuracy"];
  metrics["rewards/margins"] = metrics[at + "margin"];
  metrics["rewards/chosen"] = metrics[at + "chosen"];
  metrics["rewards/rejected"] = metrics[at + "rejected"];
}

StatusOr<UpdatesDone> TrainerImpl::UpdateRewardModel(StepContext& step) {
  const std::vector<Row> rows = WithScorePlace(step.batch.rows);
  std::vector<double> pairs_of;
  for (const auto& mini : step.minibatches) pairs_of.push_back(static_cast<double>(mini.size()) / 2);
  TokenSums& sums = step.sums;
  // The score of a row is the value at its last place.
  const auto loss_of = [&](std::span<const int64_t> order, const auto& values, auto& slopes, double all) {
    const Pairs pairs = PairsOf(rows, order);
    std::vector<double> scores;
    for (const auto& row : values) scores.push_back(row.back());
    const algorithms::PairLoss loss = ScoreLossOf(options, pairs, scores, sums);
    const double scale = static_cast<double>(pairs.size()) / all;
    for (size_t p = 0; p < pairs.size(); ++p) {
      slopes[pairs[p].first].back() = scale * loss.grad_chosen[p];
      slopes[pairs[p].second].back() = scale * loss.grad_rejected[p];
    }
    sums.loss += scale * loss.loss;
    return OkStatus();
  };
  const auto micro_step = [&](const std::vector<int64_t>& micro, size_t update, int64_t) {
    return value->MicroStep(rows, micro,
                            [&](std::span<const int64_t> order, const auto& values, auto& slopes) {
                              return loss_of(order, values, slopes, pairs_of[update]);
                            });
  };
  return Update(step, {.gradients = value->gradients(),
                       .shard = value->gradient_shard(),
                       .optimizer = value->optimizer(),
                       .rate = LearningRate(options.schedule, step.batch.step.value),
                       .micro = micro_step,
                       .finite = [&] { return std::isfinite(sums.loss); }});
}

}  // namespace tidepool::train
