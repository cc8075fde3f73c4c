// Cost of a decision: microseconds per Handle with many requests in flight; and of an event of a rehearsal
// (controller, models and checker) as the number of requests grows, the fleet growing with it or staying as
// it is.
//
//   build/bin/controller_bench            one JSON object a line; "better" says which way is up
//   build/bin/controller_bench REQUESTS [ENGINES]   one rehearsal alone (for a profiler)

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/checker.h"
#include "scheduler/fleet/fleet.h"
#include "scheduler/fleet/health.h"
#include "scheduler/fleet/weight_roll.h"
#include "scheduler/simulator/simulator.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Drives the controller by itself: every chunk that was started reports tokens and ends at its limit, so
// the number in flight stays as it is.
void Bench(int64_t in_flight, int64_t workers) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, workers + 1);
  job.eval.rows = 0;
  ControllerOptions& c = job;
  c.batch.groups_per_step = in_flight / 8;
  c.batch.group_size = 8;
  c.rollout.max_new_tokens = 1 << 20;  // never ends
  c.rollout.chunk_tokens = 64;
  c.rollout.max_concurrent = in_flight;
  job.data_rows = 1 << 20;
  auto created = Controller::Create(job, {});
  Controller& controller = **created;
  std::deque<Event> queue{event::Started{}};
  std::deque<command::StartChunk> chunks;
  TimePoint now;
  std::vector<double> times;
  const auto handle = [&](const Event& e) {
    now = now + std::chrono::microseconds(10);
    const double begin = Now();
    const std::vector<Command> commands = controller.Handle(e, now);
    const double took = Now() - begin;
    if (std::holds_alternative<event::ChunkFinished>(e)) times.push_back(took);
    for (const Command& command : commands) {
      if (const auto* x = std::get_if<command::StartWorker>(&command)) {
        queue.push_back(event::WorkerJoined{
            .worker = x->worker,
            .name = "w",
            .kind = x->worker.value <= workers ? WorkerKind::kDevice : WorkerKind::kReward,
            .restored_inc = {},
            .slots = {},
            .chunks = {}});
      } else if (const auto* x = std::get_if<command::Grant>(&command)) {
        queue.push_back(event::Granted{x->worker, x->slot, x->epoch});
      } else if (const auto* x = std::get_if<command::InitState>(&command)) {
        queue.push_back(event::StateReady{x->worker, x->slot, {0}, 1, "", x->request});
      } else if (const auto* x = std::get_if<command::WriteCheckpoint>(&command)) {
        queue.push_back(event::CheckpointWritten{x->ckpt, x->step, 1, 1});
      } else if (const auto* x = std::get_if<command::Publish>(&command)) {
        queue.push_back(event::Published{x->worker, x->slot, x->v, ""});
      } else if (const auto* x = std::get_if<command::Load>(&command)) {
        queue.push_back(event::Loaded{x->worker, x->slot, x->v, x->digest, ""});
      } else if (const auto* x = std::get_if<command::PrepareRow>(&command)) {
        queue.push_back(event::RowReady{x->ordinal, x->issue, 100});
      } else if (const auto* x = std::get_if<command::StartChunk>(&command)) {
        chunks.push_back(*x);
      }
    }
  };
  for (int64_t done = 0; done < 40000;) {
    if (!queue.empty()) {
      const Event e = std::move(queue.front());
      queue.pop_front();
      handle(e);
      continue;
    }
    if (chunks.empty()) break;
    const command::StartChunk c0 = chunks.front();
    chunks.pop_front();
    handle(event::ChunkProgress{c0.worker, c0.slot, c0.tid, c0.att, c0.chunk_tokens, c0.v});
    handle(event::ChunkFinished{c0.worker, c0.slot, c0.tid, c0.att, event::ChunkEnd::kChunkLimit, ""});
    ++done;
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"bench\":\"controller\",\"case\":\"chunk_finished_%ld_in_flight\",\"value\":%.2f,\"unit\":\"us\","
      "\"better\":\"lower\",\"p99_us\":%.2f,\"in_flight\":%ld}\n",
      static_cast<long>(in_flight), 1e6 * times[times.size() / 2], 1e6 * times[times.size() * 99 / 100],
      static_cast<long>(controller.View().in_flight));
}

void BenchCheckAndFold() {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, 4);
  job.steps = 400;
  job.batch.max_lag_versions = 1;
  job.batch.groups_per_step = 16;
  job.batch.group_size = 8;
  job.rollout.max_concurrent = 256;
  job.checkpoint.every_steps = 20;
  SimCluster cluster({.controller = job, .seed = 1, .faults = {}});
  const double begin = Now();
  const SimResult r = cluster.Run();
  const double simulated = Now();
  const CheckResult check = Check(cluster.journal());
  const double checked = Now();
  const auto folded = Controller::Create(job, cluster.journal());
  const double end = Now();
  const auto n = static_cast<double>(cluster.journal().size());
  std::printf(
      "{\"bench\":\"journal\",\"case\":\"%ld_records\",\"check_us_per_record\":%.3f,\"fold_us_per_record\":%."
      "3f,\"sim_events_per_s\":%.0f,\"ok\":%s}\n",
      static_cast<long>(cluster.journal().size()), 1e6 * (checked - simulated) / n, 1e6 * (end - checked) / n,
      static_cast<double>(r.events) / (simulated - begin), check.ok && folded.ok() ? "true" : "false");
}

// A publication to `slots` idle engines, eight to a host: microseconds a slot for all that WeightRoll decides
// until every one of them has loaded. With a look at all slots for each of them this grows with their number.
void BenchRoll(int64_t slots) {
  Fleet fleet;
  const auto never = [](const auto&) { return false; };
  WeightRoll roll(fleet, {.serving = never, .hold = never, .trained = never, .may_serve = [](const auto&) {
                            return true;
                          }});
  Health health({.heartbeat_s = 0.5, .start_timeout_s = 60, .seed = 1, .launch = true}, fleet);
  for (int64_t i = 0; i < slots; ++i) {
    fleet.Add({i}, WorkerKind::kDevice, {{i}});
    fleet.Place({i}, "host " + std::to_string(i / 8));
    health.Joined({{i}, {i}}, {});
    roll.Add({i});
  }
  roll.SetTarget({0, 1}, 7, fleet.Ref({0}));
  std::deque<command::Load> loading;
  const double begin = Now();
  for (int64_t loaded = 0; loaded < slots; ++loaded) {
    WeightRoll::Orders orders = roll.Assign();
    for (const command::Pull& p : orders.pulls) (void)roll.Pulled({p.worker, p.slot, p.v, true, ""});
    if (!orders.pulls.empty()) {  // each host has them at once, and its slots load
      for (command::Load& l : roll.Assign().loads) orders.loads.push_back(std::move(l));
    }
    for (command::Load& l : orders.loads) loading.push_back(std::move(l));
    if (loading.empty()) break;
    const command::Load l = loading.front();
    loading.pop_front();
    (void)roll.Loaded({l.worker, l.slot, l.v, l.digest, ""});
  }
  std::printf(
      "{\"bench\":\"controller\",\"case\":\"roll_to_%ld_slots\",\"value\":%.2f,\"unit\":\"us/slot\","
      "\"better\":\"lower\"}\n",
      static_cast<long>(slots), 1e6 * (Now() - begin) / static_cast<double>(slots));
}

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One optimizer step of the 10 000-device rehearsal (configs/simulate/ten-thousand.yaml), at `requests`
// requests in flight. engines 0: as many as it has for that number.
double BenchScale(int64_t requests, int64_t engines = 0) {
  SimJob job;
  job.name = "scale";
  job.hardware = {.name = "H100",
                  .source = "spec, sustained",
                  .flops = 8e14,
                  .bytes_per_s = 3e12,
                  .memory_bytes = 80e9,
                  .link_bytes_per_s = 4.5e11,
                  .net_bytes_per_s = 5e10,
                  .host_bytes_per_s = 5e10,
                  .step_overhead_s = 0.0005};
  job.model = {.name = "dense-8B",
               .parameters = 8e9,
               .active_parameters = 8e9,
               .layers = 36,
               .heads = 32,
               .kv_heads = 8,
               .head_size = 128};
  job.devices_per_slot = 8;
  job.lengths.mean_tokens = 10000;
  ControllerOptions& c = job.controller;
  c.fleet.placement = PlacementKind::kMultiplexed;
  c.fleet.slots = engines > 0 ? engines : std::max<int64_t>(2, requests * 1250 / 16384);
  c.fleet.actor_slots = c.fleet.slots / 2;
  c.steps = 1;
  c.batch.groups_per_step = requests / 8;
  c.batch.group_size = 8;
  c.rollout.max_new_tokens = 32768;
  c.rollout.chunk_tokens = 2048;
  c.rollout.max_concurrent = requests;
  job.controller.data_rows = 1 << 20;
  Simulator simulator(job);
  const double begin = CpuSeconds();
  const auto report = simulator.Run();
  const double took = CpuSeconds() - begin;
  if (!report.ok() || !report->done || !report->violation.empty()) {
    std::printf("{\"bench\":\"simulator\",\"case\":\"%ld_requests\",\"failed\":\"%s\"}\n",
                static_cast<long>(requests),
                report.ok() ? (report->why + report->violation).c_str() : report.status().ToString().c_str());
    return 0;
  }
  const double us = 1e6 * took / static_cast<double>(report->events);
  std::printf(
      "{\"bench\":\"simulator\",\"case\":\"%ld_requests\",\"value\":%.2f,\"unit\":\"us/"
      "event\",\"better\":\"lower\",\"events\":%ld,\"engines\":%ld,"
      "\"events_per_core_s\":%.0f}\n",
      static_cast<long>(requests), us, static_cast<long>(report->events), static_cast<long>(c.fleet.slots),
      1e6 / us);
  return us;
}

}  // namespace
}  // namespace tidepool::scheduler

int main(int argc, char** argv) {
  using tidepool::scheduler::Bench;
  if (argc > 1)
    return tidepool::scheduler::BenchScale(std::max(8L, std::atol(argv[1])),
                                           argc > 2 ? std::atol(argv[2]) : 0) > 0
               ? 0
               : 1;
  for (int repeat = 0; repeat < 3; ++repeat) {
    Bench(256, 2);
    Bench(4096, 8);
    Bench(65536, 128);
  }
  tidepool::scheduler::BenchCheckAndFold();
  for (const int64_t slots : {16, 128, 1024}) tidepool::scheduler::BenchRoll(slots);
  // The fleet grows with the requests; then the requests alone.
  for (const int64_t engines : {0L, 64L}) {
    double first = 0, last = 0;
    for (int64_t requests = 256; requests <= 65536; requests *= 4) {
      double best = 0;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const double us = tidepool::scheduler::BenchScale(requests, engines);
        if (best == 0 || us < best) best = us;
      }
      (first == 0 ? first : last) = best;
    }
    std::printf(
        "{\"bench\":\"simulator\",\"case\":\"growth_256_to_65536%s\",\"value\":%.2f,\"unit\":\"ratio\","
        "\"better\":\"lower\",\"log_ratio\":%.2f}\n",
        engines > 0 ? "_on_64_engines" : "", last / first, std::log(65536.0) / std::log(256.0));
  }
}
