#include "tests/scheduler/swarm.h"

namespace tidepool::scheduler {

namespace {

// Neighbours in gangs of two, as many as leave the placement somebody who trains and somebody who generates.
std::vector<std::vector<SlotId>> Pairs(const FleetOptions& fleet, int64_t first) {
  std::vector<std::vector<SlotId>> gangs;
  for (int64_t i = first; i + 1 < fleet.slots; i += 2) gangs.push_back({{i}, {i + 1}});
  if (fleet.placement == PlacementKind::kColocated) return gangs;
  const auto generates = [&] {  // the last slot that is first in its gang
    const bool paired = !gangs.empty() && gangs.back()[1].value == fleet.slots - 1;
    return fleet.slots - (paired ? 2 : 1) >=
           (fleet.placement == PlacementKind::kElastic ? 1 : fleet.actor_slots);
  };
  while (!gangs.empty() && !generates()) gangs.pop_back();
  return gangs;
}

// No config has an elastic number of gangs, or of parts of a state.
void LeaveOutElastic(FleetOptions& fleet) {
  if (fleet.placement != PlacementKind::kElastic) return;
  fleet.placement = PlacementKind::kMultiplexed;
  fleet.actor_slots = fleet.slots - 1;
}

}  // namespace

SimOptions Swarm(uint64_t seed) {
  Rng rng = Rng(seed).Fork("swarm");
  SimOptions o;
  o.seed = seed;
  const int64_t kind = rng.InRange(0, 4);
  const bool colocated = kind == 0;
  const int64_t slots = colocated ? rng.InRange(1, 3) : rng.InRange(2, 5);
  o.controller = SmallJob(colocated   ? PlacementKind::kColocated
                          : kind <= 1 ? PlacementKind::kSplit
                          : kind <= 3 ? PlacementKind::kMultiplexed
                                      : PlacementKind::kElastic,
                          slots);
  if (!colocated) o.controller.fleet.actor_slots = kind == 4 ? 1 : rng.InRange(1, slots - 1);
  o.controller.device_bytes_need_rollout = o.controller.device_bytes_need_actor = 1 << 20;
  ControllerOptions& c = o.controller;
  if (rng.Chance(0.15)) {
    c.job = JobKind::kSft;
    c.batch.group_size = 1;
    if (rng.Chance(0.5)) o.controller.eval.rows = 0;
  }
  c.batch.max_lag_versions = rng.InRange(0, 2);
  c.batch.on_stale = rng.Chance(0.6) ? OnStale::kReissue : rng.Chance(0.5) ? OnStale::kMask : OnStale::kDrop;
  if (rng.Chance(0.3)) c.checkpoint.recovery_every_steps = 1;
  c.checkpoint.every_steps = rng.InRange(0, 4);
  c.eval.every_steps = rng.Chance(0.3) ? rng.InRange(1, 3) : 0;
  if (rng.Chance(0.3)) c.batch.drops_equal_rewards = true;
  Rng left_out = rng.Fork("left out");
  if (left_out.Chance(0.2))
    c.batch.keep_groups = {{.value = "reward", .at_least = true, .bound = left_out.Chance(0.5) ? 0.2 : 0.4}};
  if (c.job == JobKind::kRl && left_out.Chance(0.2)) c.batch.redundancy = c.batch.group_size / 2;
  if (rng.Chance(0.2)) c.batch.oversample = 1.5;
  if (rng.Chance(0.2)) c.batch.min_step_batch_fraction = 0.5;
  if (rng.Chance(0.3)) c.fleet.reattach_grace_s = 5;
  c.reward.workers = rng.InRange(1, 2);
  Rng episodes = rng.Fork("episodes");  // of its own, so that the other draws of a seed stay
  if (c.job == JobKind::kRl && episodes.Chance(0.3)) {
    c.environment = SmallEpisodes().environment;
    c.environment.workers = episodes.InRange(1, 3);
    c.environment.max_turn_tokens = episodes.InRange(0, 8);
    c.rollout.max_new_tokens = episodes.InRange(12, 48);
  }
  // A run that may lack places, and in half of them one to which nobody comes.
  if (Rng lacks = rng.Fork("lacks"); lacks.Chance(0.3)) {
    const int64_t least = colocated ? 1 : 2;  // who trains, who generates
    o.faults.last_stays_away =
        slots > least && lacks.Chance(0.5) && (kind != 1 || slots - c.fleet.actor_slots > 1);
    c.fleet.min_slots = lacks.InRange(least, slots - (o.faults.last_stays_away ? 1 : 0));
  }
  o.equal_rewards = rng.Chance(0.3) ? 0.4 : 0;
  o.deterministic_training = rng.Chance(0.5);
  o.mean_tokens = rng.Chance(0.3) ? 40 : 12;
  SimFaults& f = o.faults;
  // Some seeds have almost no faults, some almost all.
  const double level = rng.Uniform();
  const auto rate = [&](double most) { return rng.Chance(level) ? most * rng.Uniform() : 0.0; };
  if (rng.Chance(level)) f.kill_mean_s = 2 + 20 * rng.Uniform();
  if (rng.Chance(level * 0.5)) f.hang_mean_s = 10 + 40 * rng.Uniform();
  if (rng.Chance(level)) f.controller_crash_mean_s = 2 + 20 * rng.Uniform();
  f.crash_in_batch = rate(0.01);
  f.start_fails = rate(0.1);
  f.infra = rate(0.1);
  f.grade_data = rate(0.03);
  f.row_invalid = rate(0.1);
  f.nonfinite = rate(0.1);
  f.train_fails = rate(0.1);
  f.bad_load = rate(0.1);
  f.load_error = rate(0.1);
  f.publish_error = rate(0.1);
  f.state_error = rate(0.1);
  f.checkpoint_fails = rate(0.2);
  f.checkpoint_rots = rate(0.1);
  f.chunk_error = rate(0.02);
  f.group_error = rate(0.1);
  f.fetch_error = rate(0.1);
  // Of its own, so that the other draws of a seed stay.
  if (Rng recovery = rng.Fork("recovery"); recovery.Chance(level))
    f.recovery_error = 0.3 * recovery.Uniform();
  if (Rng lost = rng.Fork("lost_tokens"); lost.Chance(level)) f.lost_tokens = 0.02 * lost.Uniform();
  if (Rng bad = rng.Fork("bad_row"); bad.Chance(level)) f.bad_row = 0.03 * bad.Uniform();
  f.slow_drain = rate(0.1);
  f.keeps_memory = rate(0.05);
  f.duplicate = rate(0.2);
  f.lost_heartbeat = rate(0.3);
  f.heal_after_s = 60;
  if (rng.Chance(0.2)) f.stop_at_s = 1 + 10 * rng.Uniform();
  if (rng.Chance(0.15) && c.batch.on_stale != OnStale::kMask) c.rollout.pin_version = true;
  if (rng.Chance(0.2)) c.rollout.admission = Admission::kAdaptive;
  if (rng.Chance(0.3)) f.kv_pressure = rng.Uniform();
  return o;
}

SimOptions SwarmOfGangs(uint64_t seed) {
  SimOptions o = Swarm(seed);
  LeaveOutElastic(o.controller.fleet);
  o.controller.fleet.gangs = Pairs(o.controller.fleet, static_cast<int64_t>(seed % 2));
  Rng rng = Rng(seed).Fork("engine_lost");
  if (rng.Chance(0.5)) o.faults.engine_lost = 0.01 * rng.Uniform();
  // Not together with places that may lack, which no config has: slots are counted there, not gangs.
  o.controller.fleet.min_slots = 0;
  o.faults.last_stays_away = false;
  return o;
}

SimOptions SwarmOfSlots(uint64_t seed) {
  SimOptions o = seed % 2 == 0 ? Swarm(seed) : SwarmOfGangs(seed);
  o.controller.fleet.slots_per_worker = 2;
  return o;
}

SimOptions SwarmOfShards(uint64_t seed) {
  SimOptions o = Swarm(seed);
  FleetOptions& fleet = o.controller.fleet;
  fleet.zero = true;
  fleet.min_slots = 0;
  o.faults.last_stays_away = false;
  o.controller.checkpoint.recovery_every_steps = 0;
  LeaveOutElastic(fleet);
  return o;
}

bool WasStopped(const SimResult& r) {
  return r.code == 0 ? r.why.starts_with("SIGTERM") : r.why.starts_with("fault=not_saved");
}

std::string Unexplained(const SimOptions& options, const SimResult& r) {
  if (!r.ended) return "no end after " + std::to_string(r.seconds) + " s";
  if (r.code == 0) return "";
  const SimFaults& f = options.faults;
  const auto because = [&](const char* kind) { return r.why.starts_with(std::string("fault=") + kind); };
  const bool explained =
      (because("no_checkpoint") && (f.checkpoint_rots > 0 || f.state_error > 0)) ||
      (because("not_saved") && f.stop_at_s > 0) || (because("checkpoint") && f.checkpoint_fails > 0) ||
      (because("nonfinite") && f.nonfinite > 0) || (because("train") && f.train_fails > 0) ||
      (because("start_failed") && f.start_fails > 0) ||
      (because("fleet_dead") && (f.last_stays_away || f.kill_mean_s > 0 || f.hang_mean_s > 0 ||
                                 f.keeps_memory > 0 || f.fetch_error > 0 || f.group_error > 0 ||
                                 f.bad_load > 0 || f.load_error > 0 || f.publish_error > 0)) ||
      (because("state") && f.state_error > 0) ||
      (because("storage") && f.lost_tokens > 0 && r.why.find(" were lost 5 times") != std::string::npos) ||
      ((because("reward_infra") || because("env_infra")) && f.infra > 0);
  return explained ? "" : r.why;
}

}  // namespace tidepool::scheduler
