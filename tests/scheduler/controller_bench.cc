// Cost of a decision: microseconds per Handle with many requests in flight.
//
//   build/bin/controller_bench      one JSON object a line; "better" says which way is up

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "scheduler/checker.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Drives the controller by itself: every chunk that was started reports tokens and ends at its limit, so
// the number in flight stays as it is.
void Bench(int64_t in_flight, int64_t workers) {
  ControllerOptions job = SmallJob("split", workers + 1);
  job.eval_rows = 0;
  JobConfig& c = job.config;
  c.train.groups_per_step = in_flight / 8;
  c.rollout.group_size = 8;
  c.rollout.max_new_tokens = 1 << 20;  // never ends
  c.rollout.chunk_tokens = 64;
  c.rollout.max_concurrent = in_flight;
  job.data_rows = 1 << 20;
  auto created = Controller::Create(job, {});
  Controller& controller = **created;
  std::vector<Event> queue{event::Started{}};
  std::vector<command::StartChunk> chunks;
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
        queue.push_back(event::WorkerJoined{.worker = x->worker, .name = "w", .kind = x->worker.value <= workers ? WorkerKind::kDevice : WorkerKind::kReward,
                                            .slot = {}, .device_bytes = 0, .restored_inc = {}, .held = {}});
      } else if (const auto* x = std::get_if<command::Grant>(&command)) {
        queue.push_back(event::Granted{x->worker, x->slot, x->epoch});
      } else if (const auto* x = std::get_if<command::InitState>(&command)) {
        queue.push_back(event::StateReady{x->worker, {0}, 1, ""});
      } else if (const auto* x = std::get_if<command::WriteCheckpoint>(&command)) {
        queue.push_back(event::CheckpointWritten{x->ckpt, x->step, 1, 1});
      } else if (const auto* x = std::get_if<command::Publish>(&command)) {
        queue.push_back(event::Published{x->worker, x->v, ""});
      } else if (const auto* x = std::get_if<command::Load>(&command)) {
        queue.push_back(event::Loaded{x->worker, x->v, x->digest, ""});
      } else if (const auto* x = std::get_if<command::PrepareRow>(&command)) {
        queue.push_back(event::RowReady{x->ordinal, x->issue, 100});
      } else if (const auto* x = std::get_if<command::StartChunk>(&command)) {
        chunks.push_back(*x);
      }
    }
  };
  for (int64_t done = 0; done < 40000;) {
    if (!queue.empty()) {
      const Event e = queue.front();
      queue.erase(queue.begin());
      handle(e);
      continue;
    }
    if (chunks.empty()) break;
    const command::StartChunk c0 = chunks.front();
    chunks.erase(chunks.begin());
    handle(event::ChunkProgress{c0.worker, c0.tid, c0.att, c0.chunk_tokens, c0.v});
    handle(event::ChunkFinished{c0.worker, c0.tid, c0.att, event::ChunkEnd::kChunkLimit, ""});
    ++done;
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"bench\":\"controller\",\"case\":\"chunk_finished_%ld_in_flight\",\"value\":%.2f,\"unit\":\"us\",\"better\":\"lower\",\"p99_us\":%.2f,\"in_flight\":%ld}\n",
              static_cast<long>(in_flight), 1e6 * times[times.size() / 2], 1e6 * times[times.size() * 99 / 100],
              static_cast<long>(controller.View().in_flight));
}

void BenchCheckAndFold() {
  ControllerOptions job = SmallJob("split", 4);
  job.config.train.steps = 400;
  job.config.scheduler.max_lag_versions = 1;
  job.config.train.groups_per_step = 16;
  job.config.rollout.group_size = 8;
  job.config.rollout.max_concurrent = 256;
  job.config.checkpoint.every_steps = 20;
  SimCluster cluster({.controller = job, .seed = 1, .faults = {}});
  const double begin = Now();
  const SimResult r = cluster.Run();
  const double simulated = Now();
  const CheckResult check = Check(cluster.journal());
  const double checked = Now();
  const auto folded = Controller::Create(job, cluster.journal());
  const double end = Now();
  const auto n = static_cast<double>(cluster.journal().size());
  std::printf("{\"bench\":\"journal\",\"case\":\"%ld_records\",\"check_us_per_record\":%.3f,\"fold_us_per_record\":%.3f,\"sim_events_per_s\":%.0f,\"ok\":%s}\n",
              static_cast<long>(cluster.journal().size()), 1e6 * (checked - simulated) / n, 1e6 * (end - checked) / n,
              static_cast<double>(r.events) / (simulated - begin), check.ok && folded.ok() ? "true" : "false");
}

}  // namespace
}  // namespace tidepool::scheduler

int main() {
  for (int repeat = 0; repeat < 3; ++repeat) {
    tidepool::scheduler::Bench(256, 2);
    tidepool::scheduler::Bench(4096, 8);
  }
  tidepool::scheduler::BenchCheckAndFold();
}
