#include "core/policy/sac_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/algorithms/registry.h"
#include "core/algorithms/sac.h"
#include "core/base/hash.h"
#include "core/base/little_endian.h"
#include "core/policy/every_cpu.h"
#include "core/policy/squashed.h"
#include "core/train/step_metrics.h"

namespace tidepool::policy {
namespace {

TP_EVERY_CPU void MoveTowards(int64_t n, float share, const float* __restrict from, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] += share * (from[i] - to[i]);
}

// The fragments that this rank has, with their places among the rows, for the others.
std::string EncodeMine(std::span<const FragmentRow> rows) {
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].mine || rows[i].masked) continue;
    const std::string bytes = EncodeFragment(rows[i].fragment);
    PutNumber(out, static_cast<uint64_t>(i));
    PutNumber(out, static_cast<uint64_t>(bytes.size()));
    out += bytes;
  }
  return out;
}

double LearnedAlpha(const model::Weights& log_alpha) {
  return std::exp(*reinterpret_cast<const float*>(log_alpha.bytes().data()));
}

}  // namespace

struct SacTrainer::Networks {
  Networks(device::CpuDevice& device, const model::Weights& actor_weights, const model::Weights& critics,
           const model::Weights& targets)
      : actor(device, actor_weights, "actor.", "policy_head"),
        q{{device, critics, "q1.", "q1_head"}, {device, critics, "q2.", "q2_head"}},
        target{{device, targets, "q1.", "q1_head"}, {device, targets, "q2.", "q2_head"}} {}
  void Changed() {
    actor.Changed();
    for (MlpWeights* w : {&q[0], &q[1], &target[0], &target[1]}) w->Changed();
  }

  MlpWeights actor;
  MlpWeights q[2], target[2];
  Mlp acts{actor}, acts_next{actor};
  Mlp judges[2] = {Mlp(q[0]), Mlp(q[1])}, judges_next[2] = {Mlp(target[0]), Mlp(target[1])};
  // Of a gradient step.
  std::vector<float> action, next_action, with_action, with_next, d_actions, d_with[2], d_heads;
  std::vector<double> logp, next_logp;
};

StatusOr<SacTrainerOptions> SacOptionsFromJob(const JobConfig& job) {
  if (job.rl() == nullptr) return InvalidArgument("model.policy belongs to job: rl");
  SacTrainerOptions o;
  TP_ASSIGN_OR_RETURN(o.policy, SpecOfJob(job));
  o.replay = job.rl()->algorithm.replay;
  o.sac = job.rl()->algorithm.sac;
  o.optimizer = train::OptimizerOf(job.train);
  o.schedule = train::ScheduleOf(job.train);
  o.seed = job.seed;
  return o;
}

SacTrainer::SacTrainer(const SacTrainerOptions& options, ReplayStore replay)
    : options_(options), replay_(std::move(replay)) {}
SacTrainer::~SacTrainer() = default;

StatusOr<SacTrainer::Learned> SacTrainer::Learn(std::unique_ptr<model::Weights> own,
                                                model::Weights* weights) {
  Learned l;
  l.own = std::move(own);
  l.weights = weights != nullptr ? weights : l.own.get();
  l.on_device = std::make_unique<model::DeviceWeights>(*l.weights, device_);
  l.gradients = std::make_unique<model::Gradients>(*l.weights, *device_);
  TP_ASSIGN_OR_RETURN(l.optimizer, train::AdamW::Create(*l.weights, *l.on_device, options_.optimizer));
  return l;
}

StatusOr<std::unique_ptr<SacTrainer>> SacTrainer::Create(model::Weights& weights,
                                                         const SacTrainerOptions& o) {
  TP_RETURN_IF_ERROR(CheckSpec(o.policy));
  if (!o.policy.squashed) return InvalidArgument("algorithm.name: sac acts by numbers between bounds");
  if (!(o.sac.initial_alpha > 0)) return InvalidArgument("algorithm.sac.initial_alpha has to be above 0");
  device::CpuDevice memory;  // a buffer outlives who made it
  TP_ASSIGN_OR_RETURN(ReplayStore replay, ReplayStore::Create(o.policy, o.replay.capacity, memory));
  std::unique_ptr<SacTrainer> t(new SacTrainer(o, std::move(replay)));
  TP_ASSIGN_OR_RETURN(auto critics,
                      model::Weights::FromLayout(SoftCriticLayout(o.policy), model::DType::kFloat32));
  TP_ASSIGN_OR_RETURN(t->targets_,
                      model::Weights::FromLayout(SoftCriticLayout(o.policy), model::DType::kFloat32));
  InitializeLinear(o.seed, *critics);
  std::ranges::copy(std::as_const(*critics).bytes(), t->targets_->bytes().begin());
  TP_ASSIGN_OR_RETURN(
      auto alpha,
      model::Weights::FromLayout({{.name = "log_alpha", .offset = 0, .shape = {1}}}, model::DType::kFloat32));
  *reinterpret_cast<float*>(alpha->bytes().data()) = static_cast<float>(std::log(o.sac.initial_alpha));
  TP_ASSIGN_OR_RETURN(t->actor_, t->Learn(nullptr, &weights));
  TP_ASSIGN_OR_RETURN(t->critics_, t->Learn(std::move(critics), nullptr));
  TP_ASSIGN_OR_RETURN(t->alpha_, t->Learn(std::move(alpha), nullptr));
  t->networks_ = std::make_unique<Networks>(*t->device_, weights, *t->critics_.weights, *t->targets_);
  return t;
}

double SacTrainer::alpha() const { return LearnedAlpha(*alpha_.weights); }

// --- what is drawn

void SacTrainer::Draw(Rng& rows, Rng& noise, Batch& b) const {
  const PolicySpec& spec = options_.policy;
  const auto n = static_cast<size_t>(options_.replay.batch_size),
             seen = static_cast<size_t>(spec.observation_size), acts = static_cast<size_t>(spec.actions);
  b.rows = static_cast<int64_t>(n);
  b.seen.resize(n * seen);
  b.acted.resize(n * (seen + acts));
  b.next.resize(n * seen);
  b.rewards.resize(n);
  b.terminated.resize(n);
  for (size_t r = 0; r < n; ++r) {
    const float* row = replay_.Row(rows.Below(replay_.size())).data();
    std::copy_n(row, seen, b.seen.data() + r * seen);
    std::copy_n(row, seen + acts, b.acted.data() + r * (seen + acts));
    row += seen + acts;
    b.rewards[r] = row[0];
    b.terminated[r] = row[1];
    std::copy_n(row + 2, seen, b.next.data() + r * seen);
  }
  for (std::vector<double>* drawn : {&b.noise, &b.next_noise}) {
    drawn->resize(n * acts);
    for (double& x : *drawn) x = noise.Normal();
  }
}

// --- a gradient step

double SacTrainer::UpdateAlpha(std::span<const double> logp, double rate, Losses& losses) {
  const double alpha = this->alpha();
  const double target = options_.sac.target_entropy.value_or(-static_cast<double>(options_.policy.actions));
  const auto terms = algorithms::TemperatureLoss(std::log(alpha), logp, target);
  losses.alpha = terms.loss;
  alpha_.gradients->Zero();
  alpha_.gradients->values()[0] = static_cast<float>(terms.d_log_alpha);
  losses.finite = losses.finite && alpha_.optimizer->Update(alpha_.gradients->data(), rate).finite;
  return alpha;
}

SacTrainer::Losses SacTrainer::GradientStep(const Batch& b, const Rates& rates) {
  Networks& net = *networks_;
  Losses out;
  const auto n = static_cast<size_t>(b.rows), seen = static_cast<size_t>(options_.policy.observation_size),
             acts = static_cast<size_t>(options_.policy.actions), wide = seen + acts;
  const auto with = [&](const std::vector<float>& observed, const std::vector<float>& actions,
                        std::vector<float>& both) {
    both.resize(n * wide);
    for (size_t r = 0; r < n; ++r) {
      std::copy_n(observed.data() + r * seen, seen, both.data() + r * wide);
      std::copy_n(actions.data() + r * acts, acts, both.data() + r * wide + seen);
    }
  };
  // The first number of each row of a critic's answer.
  const auto judged = [&](Mlp& critic, const std::vector<float>& of) {
    const std::span<const float> rows = critic.Forward(of);
    std::vector<float> q(n);
    for (size_t r = 0; r < n; ++r) q[r] = rows[r * static_cast<size_t>(critic.stride())];
    return q;
  };
  const auto spread = [&](const Mlp& critic, const std::vector<float>& d_q) {
    std::vector<float> rows(n * static_cast<size_t>(critic.stride()), 0.0F);
    for (size_t r = 0; r < n; ++r) rows[r * static_cast<size_t>(critic.stride())] = d_q[r];
    return rows;
  };
  const auto drawn = [&](Mlp& actor, const std::vector<float>& observed, const std::vector<double>& noise,
                         std::vector<float>& actions, std::vector<double>& logp) {
    const SquashedRows rows{.rows = b.rows,
                            .actions = options_.policy.actions,
                            .stride = actor.stride(),
                            .heads = actor.Forward(observed).data(),
                            .noise = noise.data()};
    actions.resize(n * acts);
    logp.resize(n);
    DrawSquashed(rows, actions.data(), logp.data());
    return rows;
  };

  const SquashedRows acting = drawn(net.acts, b.seen, b.noise, net.action, net.logp);
  const double alpha = UpdateAlpha(net.logp, rates.alpha, out);

  drawn(net.acts_next, b.next, b.next_noise, net.next_action, net.next_logp);
  with(b.next, net.next_action, net.with_next);
  const std::vector<float> next1 = judged(net.judges_next[0], net.with_next),
                           next2 = judged(net.judges_next[1], net.with_next);
  const std::vector<double> y = algorithms::SoftTargets(
      {.rewards = b.rewards, .terminated = b.terminated, .q1 = next1, .q2 = next2, .logp = net.next_logp},
      alpha, options_.sac.gamma);
  critics_.gradients->Zero();
  std::vector<float> d_q(n);
  for (Mlp& critic : net.judges) {
    const std::vector<float> q = judged(critic, b.acted);
    out.critic += algorithms::SoftCriticLoss(q, y, d_q);
    for (const float x : q) out.q += x / (2 * static_cast<double>(n));
    critic.Backward(spread(critic, d_q), critics_.gradients->values(), {});
  }
  const train::UpdateResult critics = critics_.optimizer->Update(critics_.gradients->data(), rates.critic);
  for (MlpWeights& w : net.q) w.Changed();
  out.critic_norm = critics.grad_norm;

  with(b.seen, net.action, net.with_action);
  const std::vector<float> q1 = judged(net.judges[0], net.with_action),
                           q2 = judged(net.judges[1], net.with_action);
  const algorithms::SoftPolicyTerms policy = algorithms::SoftPolicyLoss(q1, q2, net.logp, alpha);
  out.actor = policy.loss;
  for (size_t k = 0; k < 2; ++k) {
    net.d_with[k].resize(n * wide);
    net.judges[k].Backward(spread(net.judges[k], k == 0 ? policy.d_q1 : policy.d_q2), {}, net.d_with[k]);
  }
  net.d_actions.resize(n * acts);
  for (size_t r = 0; r < n; ++r) {
    for (size_t i = 0; i < acts; ++i)
      net.d_actions[r * acts + i] = net.d_with[0][r * wide + seen + i] + net.d_with[1][r * wide + seen + i];
  }
  net.d_heads.resize(n * static_cast<size_t>(acting.stride));
  DrawSquashedBack(acting, net.d_actions.data(), policy.d_logp, net.d_heads.data());
  actor_.gradients->Zero();
  net.acts.Backward(net.d_heads, actor_.gradients->values(), {});
  const train::UpdateResult actor = actor_.optimizer->Update(actor_.gradients->data(), rates.actor);
  net.actor.Changed();
  out.actor_norm = actor.grad_norm;

  MoveTowards(targets_->elements(), static_cast<float>(options_.sac.tau),
              reinterpret_cast<const float*>(std::as_const(*critics_.weights).bytes().data()),
              reinterpret_cast<float*>(targets_->bytes().data()));
  for (MlpWeights& w : net.target) w.Changed();
  out.finite = out.finite && critics.finite && actor.finite;
  for (size_t r = 0; r < n; ++r) {
    out.target += y[r] / static_cast<double>(n);
    out.logp += net.logp[r] / static_cast<double>(n);
  }
  return out;
}

// --- a step

// Fragments enter the store in the order of their names, whatever the order of the rows is.
Status SacTrainer::Take(std::span<const FragmentRow> rows, comm::Collective* group, int64_t& cells) {
  std::vector<Fragment> others(rows.size());
  if (group != nullptr) {
    TP_ASSIGN_OR_RETURN(const std::vector<std::string> all, group->AllGather(EncodeMine(rows), "fragments"));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (static_cast<int>(rank) == group->rank()) continue;
      std::string_view left = all[rank];
      while (!left.empty()) {
        ByteReader reader(left.substr(0, std::min<size_t>(left.size(), 16)));
        const auto place = reader.Number<uint64_t>(), size = reader.Number<uint64_t>();
        if (!reader.ok() || place >= rows.size() || size > left.size() - 16)
          return Internal("sac trainer: what rank " + std::to_string(rank) + " sent are no fragments");
        TP_ASSIGN_OR_RETURN(others[place], DecodeFragment(left.substr(16, size)));
        left.remove_prefix(16 + size);
      }
    }
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].masked) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return rows[i].tid; });
  for (const size_t i : order) {
    const Fragment& f = rows[i].mine ? rows[i].fragment : others[i];
    TP_RETURN_IF_ERROR(CheckFragment(f, options_.policy));
    replay_.Add(rows[i].tid, f);
    cells += f.cells();
  }
  return OkStatus();
}

StatusOr<train::StepResult> SacTrainer::Step(StepNumber step, Version /*version*/,
                                             std::span<const FragmentRow> rows,
                                             const train::ProgressCallback& progress, comm::Collective* group,
                                             std::vector<BadRow>* bad) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  TP_RETURN_IF_ERROR(CheckRows(rows, step, options_.policy, group, bad));
  networks_->Changed();  // somebody may have written weights from outside
  train::StepResult result;
  TP_RETURN_IF_ERROR(ScoreMetrics(rows, group, result.metrics));
  int64_t cells = 0;
  TP_RETURN_IF_ERROR(Take(rows, group, cells));
  const auto taken = Clock::now();
  const int64_t todo = replay_.came() < options_.replay.learning_starts || replay_.size() == 0 ? 0
                       : options_.replay.gradient_steps > 0 ? options_.replay.gradient_steps
                                                            : cells;
  const Rng root =
      Rng(options_.seed).Fork("replay").Fork(static_cast<uint64_t>(step.value)).Fork(replay_.taken());
  Rng drawn_rows = root.Fork("rows"), noise = root.Fork("noise");
  Rates rates;
  rates.actor = train::LearningRate(options_.schedule, step.value);
  // Of the peak, at this step: of a rate of 1, for the actor's own may be 0 (frozen).
  train::ScheduleOptions of_one = options_.schedule;
  of_one.peak = 1;
  const double share = train::LearningRate(of_one, step.value);
  rates.critic = options_.sac.critic_learning_rate.value_or(options_.schedule.peak) * share;
  rates.alpha = options_.sac.alpha_learning_rate.value_or(options_.schedule.peak) * share;
  Losses sum;
  Batch batch;
  for (int64_t u = 0; u < todo && sum.finite; ++u) {
    if (progress != nullptr && !progress({u, todo})) {
      return Aborted("sac trainer: step " + std::to_string(step.value) + " was stopped at gradient step " +
                     std::to_string(u) + " of " + std::to_string(todo));
    }
    Draw(drawn_rows, noise, batch);
    const Losses one = GradientStep(batch, rates);
    sum.critic += one.critic;
    sum.actor += one.actor;
    sum.alpha += one.alpha;
    sum.q += one.q;
    sum.target += one.target;
    sum.logp += one.logp;
    sum.critic_norm = std::max(sum.critic_norm, one.critic_norm);
    sum.actor_norm = std::max(sum.actor_norm, one.actor_norm);
    sum.finite = one.finite;
    ++result.updates;
  }
  if (progress != nullptr) (void)progress({todo, todo});
  result.finite = sum.finite;
  result.digest = actor_.weights->Digest();
  result.replay = replay_.taken();
  if (group != nullptr)
    TP_RETURN_IF_ERROR(train::CheckSameWeights(*group, Mix64(result.digest ^ critics_.weights->Digest()),
                                               "sac trainer", step));
  const auto mean = [&](double total) {
    return total / static_cast<double>(std::max<int64_t>(1, result.updates));
  };
  std::map<std::string, double>& m = result.metrics;
  if (result.updates > 0) {
    m["actor/loss"] = mean(sum.actor);
    m["actor/entropy"] = -mean(sum.logp);
    m["actor/grad_norm"] = sum.actor_norm;
    m["actor/alpha_loss"] = mean(sum.alpha);
    m["critic/q_loss"] = mean(sum.critic);
    m["critic/q/mean"] = mean(sum.q);
    m["critic/q_target/mean"] = mean(sum.target);
    m["critic/grad_norm"] = sum.critic_norm;
  }
  m["actor/alpha"] = alpha();
  m["actor/lr"] = rates.actor;
  m["actor/updates"] = static_cast<double>(result.updates);
  m["actor/nonfinite"] = result.finite ? 0 : 1;
  m["replay/size"] = static_cast<double>(replay_.size());
  m["replay/added"] = static_cast<double>(cells);
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  m["timing_s/replay"] = seconds(taken - start);
  m["timing_s/update_actor"] = seconds(Clock::now() - start);
  m["perf/total_num_tokens"] = static_cast<double>(cells);
  return result;
}

// --- the state

std::vector<train::NamedBytes> SacTrainer::State() {
  std::vector<train::NamedBytes> state = actor_.optimizer->State();
  const auto add = [&](const std::string& prefix, std::vector<train::NamedBytes> parts) {
    for (train::NamedBytes& part : parts) {
      part.name = prefix + part.name;
      state.push_back(std::move(part));
    }
  };
  add("critic.", critics_.optimizer->State());
  add("alpha.", alpha_.optimizer->State());
  state.push_back({"target.weights", targets_->store()});
  add("", replay_.State());
  return state;
}

uint64_t SacTrainer::Digest(uint64_t weights) const {
  for (const model::Weights* w : {critics_.weights, targets_.get(), alpha_.weights})
    weights = Mix64(weights + w->Digest());
  return Mix64(weights + replay_.Digest());
}

int64_t SacTrainer::changes() const {
  return actor_.optimizer->updates() + critics_.optimizer->updates() + replay_.came();
}

void SacTrainer::ReleaseScratch() {
  for (Learned* l : {&actor_, &critics_, &alpha_}) l->gradients->Release();
}

model::MemoryUse SacTrainer::held() const {
  model::MemoryUse use{.optimizer = replay_.bytes() + targets_->size() + critics_.weights->size()};
  for (const Learned* l : {&actor_, &critics_, &alpha_}) {
    use.optimizer += l->optimizer->bytes();
    use.gradients += l->gradients->held_bytes();
  }
  return use;
}

}  // namespace tidepool::policy
