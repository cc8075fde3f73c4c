// The table's keys of what is optimised: algorithm, reward.shaping, and the kinds of job that do not sample.

#include "core/algorithms/registry.h"
#include "core/config/schema_parts.h"

namespace tidepool::config {

std::vector<Key> AlgorithmKeys() {
  return {
      TP_JOB_KEY(RlJob, algorithm.name,
                 "sets the defaults of the keys below that are empty; `tidepool algorithms NAME` tells more",
                 Choices{NamesOf(algorithms::Algorithms())}),
      TP_JOB_KEY(RlJob, algorithm.advantage, "advantage estimator; empty: the algorithm's",
                 Choices{NamesOf(algorithms::AdvantageEstimators(), /*or_empty=*/true)}),
      TP_JOB_KEY(RlJob, algorithm.loss, "policy loss; empty: the algorithm's",
                 Choices{NamesOf(algorithms::PolicyLosses(), /*or_empty=*/true)}),
      TP_JOB_KEY(RlJob, algorithm.advantage_scale,
                 "what centred rewards are divided by; empty: the algorithm's",
                 Choices{"", "group_std", "batch_std", "none"}),
      TP_JOB_KEY(RlJob, algorithm.advantage_eps,
                 "added to that deviation; not set: the estimator's (grpo 1e-06)", AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.aggregation, "how token losses become one; empty: the algorithm's",
                 Choices{"", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum",
                         "seq-mean-token-sum-norm", "seq-mean"}),
      TP_JOB_KEY(RlJob, algorithm.clip_low, "ratio is clipped below 1 - this; not set: the loss's (ppo 0.2)",
                 AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.clip_high,
                 "ratio is clipped above 1 + this; not set: the algorithm's (grpo 0.2, dapo 0.28)",
                 AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.dual_clip,
                 "bound on the ratio where the advantage is negative; not set: none", Above(1)),
      TP_JOB_KEY(RlJob, algorithm.value_coef,
                 "weight of the value loss beside the policy's, for model.policy", Between(0, 1e6)),
      TP_JOB_KEY(RlJob, algorithm.replay.capacity, "sac: the newest transitions are kept, as many as this",
                 Between(1, 1e9), Unit{"environment steps"}),
      TP_JOB_KEY(RlJob, algorithm.replay.batch_size, "sac: transitions that a gradient step draws",
                 Between(1, 1e6), Unit{"environment steps"}),
      TP_JOB_KEY(
          RlJob, algorithm.replay.learning_starts,
          "sac: the first actions, as many as this, are uniform random ones; gradient steps begin when "
          "these have come",
          Between(0, kMany), Unit{"environment steps"}),
      TP_JOB_KEY(RlJob, algorithm.replay.gradient_steps,
                 "sac: gradient steps of each step of the job; 0: one for each environment step of it",
                 Between(0, 1000000)),
      TP_JOB_KEY(RlJob, algorithm.sac.gamma, "discount a step", Between(0, 1)),
      TP_JOB_KEY(RlJob, algorithm.sac.tau,
                 "share of the critics that their targets take at each gradient step", Within(0, 1)),
      TP_JOB_KEY(RlJob, algorithm.sac.critic_learning_rate,
                 "peak learning rate of the critics; not set: train.learning_rate", Between(0, 10), kFree),
      TP_JOB_KEY(RlJob, algorithm.sac.alpha_learning_rate,
                 "peak learning rate of the temperature's logarithm; 0: it stays at initial_alpha; not set: "
                 "train.learning_rate",
                 Between(0, 10), kFree),
      TP_JOB_KEY(RlJob, algorithm.sac.initial_alpha, "temperature at the start: weight of the entropy",
                 Within(0, 1e4)),
      TP_JOB_KEY(RlJob, algorithm.sac.target_entropy,
                 "entropy that the temperature aims at, of actions scaled to [-1, 1]; not set: minus the "
                 "numbers of an action",
                 Between(-1e6, 1e6), Unit{"nats"}),
      TP_JOB_KEY(RlJob, algorithm.entropy_coef, "weight of the entropy bonus", AtLeast(0)),
      TP_JOB_KEY(
          RlJob, algorithm.correction,
          "importance weight from exp(old - behaviour): tis truncates each token's, seq-tis the product "
          "over the sample (verl); icepop drops "
          "tokens outside, seq-mask-tis samples with a geometric mean outside, seq-mask samples with a "
          "product above (TRL); "
          "empty: the algorithm's",
          Choices{"", "none", "tis", "icepop", "seq-mask-tis", "seq-tis", "seq-mask", "raw"}),
      TP_JOB_KEY(RlJob, algorithm.tis_max,
                 "where the weight is cut (icepop, seq-mask-tis: and at 1 over this)", Positive()),
      TP_JOB_KEY(RlJob, algorithm.filter,
                 "groups left out of training; empty: the algorithm's (dapo: zero_variance)",
                 Choices{"", "none", "zero_variance"}),
      TP_JOB_KEY(
          RlJob, algorithm.keep_groups,
          "what a group has to fulfil to be trained on, else another one takes its place: a list of NAME >= "
          "NUMBER or NAME <= NUMBER; NAME is reward (the mean of its samples), reward_std (their population "
          "standard deviation), response_tokens (mean), or a reward function (mean of what it gave)"),
      TP_JOB_KEY(RlJob, algorithm.filter_rounds,
                 "the run ends when so many whole batches of groups in a row are left out so",
                 Between(1, 1000)),
      TP_JOB_KEY(RlJob, algorithm.mask_truncated, "no loss on samples cut at max_new_tokens"),
      TP_JOB_KEY(RlJob, algorithm.overlong_buffer_tokens,
                 "soft overlong penalty (DAPO eq. 13) over the last tokens before the limit; 0: off",
                 AtLeast(0), Unit{"tokens"}),
      TP_JOB_KEY(RlJob, algorithm.overlong_factor, "size of that penalty", AtLeast(0)),
      TP_JOB_KEY(
          RlJob, algorithm.opsm,
          "off-policy sequence mask (arXiv:2512.02556): samples with A < 0 whose mean behaviour - lp is "
          "above this have no loss",
          AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.m2po,
                 "second-moment mask (arXiv:2510.01161): tokens with the largest (behaviour - old)^2 have no "
                 "loss, until the mean of the rest is below this",
                 Positive()),
      TP_JOB_KEY(RlJob, algorithm.reject,
                 "tokens or samples without loss by old against behaviour; a comma list of token_ratio, "
                 "segment_ratio, geometric_ratio, "
                 "sequence_ratio, and {token, seq_sum, seq_mean, seq_max}_{k1, k2, k3}"),
      TP_JOB_KEY(RlJob, algorithm.reject_threshold,
                 "of the k criteria of reject: one number, or a comma list in their order; a_b for the ratio "
                 "bounds of k1"),
      TP_JOB_KEY(RlJob, algorithm.reject_low, "ratio criteria of reject keep what is at least this",
                 AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.reject_high, "ratio criteria of reject keep what is at most this",
                 Positive()),
      TP_JOB_KEY(RlJob, algorithm.teacher,
                 "model folder of on-policy distillation (advantage on_policy_distill, or teacher_coef)",
                 kPath),
      TP_JOB_KEY(RlJob, algorithm.teacher_coef,
                 "teacher_lp - lp of each token, times this, is added to the advantage", AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.kl.coef, "weight of the KL to a frozen reference; 0: none is loaded",
                 AtLeast(0)),
      TP_JOB_KEY(RlJob, algorithm.kl.place,
                 "a term of the loss (GRPO), or taken off the reward of each token (PPO, RLOO, REINFORCE++)"),
      TP_JOB_KEY(RlJob, algorithm.kl.estimator, "of d = lp - reference: d, |d|, d^2/2, exp(-d) - 1 + d"),
      TP_JOB_KEY(RlJob, algorithm.kl.reference, "model folder; empty: the weights that the run starts from",
                 kPath),
      TP_JOB_KEY(
          RlJob, algorithm.kl.target,
          "the coefficient moves so that the KL comes near this (arXiv:1909.08593); not set: it is fixed",
          Positive()),
      TP_JOB_KEY(RlJob, algorithm.kl.horizon, "how slowly it moves", Positive(), Unit{"samples"}),
      TP_JOB_KEY(RlJob, algorithm.kl.clamp_log, "d is clipped to this (verl 20)", Positive()),
      TP_JOB_KEY(RlJob, algorithm.kl.clamp_out, "the estimate is clipped to this (verl 10)", Positive()),
      TP_JOB_KEY(RlJob, algorithm.kl.score_term, "in the loss: adds the gradient of the sampling (NeMo-RL)"),
      TP_JOB_KEY(RlJob, algorithm.kl.straight_through_k2,
                 "in the loss: the gradient is that of k2 (verl k3+)"),
      TP_JOB_KEY(RlJob, algorithm.kl.is_weighted, "in the loss: times the ratio exp(lp - old)"),
      TP_JOB_KEY(
          RlJob, algorithm.critic.path,
          "model folder of the critic's start; empty: what the run starts from, with a value head of zeros",
          kPath),
      TP_JOB_KEY(RlJob, algorithm.critic.learning_rate,
                 "peak learning rate of the critic; not set: train.learning_rate", Between(0, 10), kFree),
      TP_JOB_KEY(RlJob, algorithm.critic.warmup_steps, "steps at the start that train the critic alone",
                 Between(0, kMany), Unit{"steps"}),
      TP_JOB_KEY(RlJob, algorithm.critic.loss, "of values against returns"),
      TP_JOB_KEY(RlJob, algorithm.critic.huber_delta, "huber: where the square ends", Positive()),
      TP_JOB_KEY(RlJob, algorithm.critic.clip,
                 "the larger of the errors of the value and of the value clipped this near to the old one "
                 "counts; 0: no clip",
                 AtLeast(0)),
  };
}

std::vector<Key> ShapingKeys() {
  std::vector<Key> keys = {
      TP_KEY(reward.shaping.mean, "taken off each reward before advantages"),
      TP_KEY(reward.shaping.deviation, "rewards are divided by it"),
      TP_KEY(reward.shaping.leave_one_out, "the mean is that of the other samples"),
      TP_KEY(reward.shaping.running,
             "rewards are normalised by mean and deviation of all rewards of the run so far, before mean "
             "and deviation above"),
      TP_KEY(reward.shaping.bias, "clip((r + bias) * scale, +-20), where one of the two is set"),
      TP_KEY(reward.shaping.scale, "see bias"),
      TP_KEY(reward.shaping.repetition_penalty, "times the share of repeated n-grams of token ids, taken off",
             AtLeast(0)),
      TP_KEY(reward.shaping.repetition_ngram, "length of those n-grams", Between(1, 1000), Unit{"tokens"}),
      TP_KEY(reward.shaping.truncated,
             "samples cut at max_new_tokens keep this share of their reward (0 to 1), or get this value "
             "(below 0)",
             Between(-1e6, 1)),
      TP_KEY(reward.shaping.length_penalty, "times mean(r) n/max(n) over the group, taken off (prime-rl)",
             AtLeast(0)),
  };
  for (Key& key : keys) key.job = JobKind::kRl;
  return keys;
}

// Keys of the job kinds that do not sample.
std::vector<Key> ObjectiveKeys() {
  return {
      TP_JOB_KEY(DpoJob, preference.loss, "DPO (arXiv:2305.18290) or IPO (arXiv:2310.12036)"),
      TP_JOB_KEY(DpoJob, preference.beta, "how strongly the policy is held to the reference", Positive()),
      TP_JOB_KEY(DpoJob, preference.label_smoothing,
                 "sigmoid: share of pairs taken to be the wrong way round", UpTo(0, 0.5)),
      TP_JOB_KEY(
          DpoJob, preference.length_average,
          "log-probabilities of an answer are averaged over its tokens (IPO in TRL and AReaL), not added up"),
      TP_JOB_KEY(DpoJob, preference.reference, "model folder; empty: the weights that the run starts from",
                 kPath),
      TP_JOB_KEY(RewardModelJob, reward_model.margin, "-log sigmoid(s_chosen - s_rejected - margin)",
                 AtLeast(0)),
      TP_JOB_KEY(RewardModelJob, reward_model.centre,
                 "weight of (s_chosen + s_rejected)^2, which keeps scores around 0", AtLeast(0)),
      TP_JOB_KEY(DistillJob, distill.teacher, "model folder with the student's vocabulary", kPath),
      TP_JOB_KEY(DistillJob, distill.divergence,
                 "KL(teacher || student), KL(student || teacher), a weighted sum of both, or to a mixture "
                 "(arXiv:2306.13649)"),
      TP_JOB_KEY(DistillJob, distill.weight,
                 "mixed: of forward; gkd: beta, the teacher's share of the mixture", Between(0, 1)),
      TP_JOB_KEY(DistillJob, distill.temperature, "both logits are divided by it", Positive()),
  };
}

}  // namespace tidepool::config
