// The queue of what is to happen, and engines that work in virtual time.

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/simulator/simulator_impl.h"

namespace tidepool::scheduler {

void Simulator::Impl::Push(double delay, Kind kind, int64_t a, int64_t b, const SampleId& tid) {
  queue.push({now + std::max(0.0, delay), seq++, kind, a, b, tid});
}

bool Simulator::Impl::Pop(Entry& next) {
  if (queue.empty() && stops.empty()) return false;
  if (stops.empty() || (!queue.empty() && stops.first().first >= std::pair(queue.top().t, queue.top().seq))) {
    next = queue.top();
    queue.pop();
    return true;
  }
  const auto [due, id] = stops.first();
  stops.Remove(id);
  next = {due.first, due.second, Kind::kEngine, id, 0, {}};
  return true;
}

void Simulator::Impl::Send(Event event, double delay) {
  if (faulty) delay = Disturbed(event, delay);
  int64_t i = 0;
  if (free_slab.empty()) {
    i = static_cast<int64_t>(slab.size());
    slab.push_back(std::move(event));
  } else {
    i = free_slab.back();
    free_slab.pop_back();
    slab[static_cast<size_t>(i)] = std::move(event);
  }
  Push(delay, Kind::kEvent, i);
}

void Simulator::Impl::Deliver(const Event& event) {
  ++report.events;
  if (const auto* granted = std::get_if<event::Granted>(&event)) {
    if (const Engine* e = Find(SlotOf(*granted)); e != nullptr) time.Hold(granted->slot.value, e->role, now);
  }
  std::vector<Command> commands = controller->Handle(event, {FromSeconds(now)});
  for (const Command& c : commands) {
    const auto* a = std::get_if<command::Append>(&c);
    if (a == nullptr) continue;
    const JournalEntry entry{
        {records++}, static_cast<uint32_t>(report.lives), static_cast<uint64_t>(now * 1e9), a->record};
    hash.Add(entry);
    if (resumes) journal.push_back(entry);
    if (job.on_record) job.on_record(entry);
    if (job.check && report.violation.empty() && !checker.Feed(entry)) {
      const CheckResult r = checker.result();
      report.violation = r.predicate + " at record " + std::to_string(r.lsn.value) + ": " + r.why;
    }
    Note(a->record);
  }
  for (const Command& c : commands) {
    std::visit([this](const auto& x) { Do(x); }, c);
    if (over) return;
  }
}

bool Simulator::Impl::Lives(const WorkerRef& ref) const {
  const Process* p = processes.Find(ref.worker);
  return p != nullptr && p->inc == ref.inc;
}

Simulator::Impl::Engine* Simulator::Impl::Find(const SlotRef& ref) {
  Engine* e = engines.Find(ref.slot);
  return e == nullptr || e->ref != ref ? nullptr : e;
}

bool Simulator::Impl::Idle(const Process& process) const {
  return std::ranges::all_of(process.slots, [&](SlotId slot) { return engines.at(slot).model.batch() == 0; });
}

event::Heartbeat Simulator::Impl::BeatOf(WorkerId worker, Process& process) {
  event::Heartbeat beat{{worker, process.inc}, {}, "", 0};
  if (process.slots.empty()) return beat;  // it grades, or hosts environments
  beat.op = Idle(process) ? "idle" : "generate";
  beat.op_seq = ++process.beats;
  for (const SlotId slot : process.slots) {
    Engine& e = engines.at(slot);
    if (e.model.batch() == 0) continue;
    const EngineModel::StepSeconds step = e.model.TakeStepSeconds();
    beat.engines.push_back({slot, 0, e.model.batch(), 0, step.all, step.decode});
  }
  return beat;
}

void Simulator::Impl::Schedule(Engine& e) {
  time.Busy(Role::kRollout, e.model.TakeBusy());
  report.tokens += e.model.TakeTokens();
  const double at = e.model.Next(job.per_step);
  if (std::isfinite(at)) {
    stops.Set(e.ref.slot.value, {now + std::max(0.0, at - now), seq++});
  } else {
    stops.Remove(e.ref.slot.value);
  }
  if (job.slow_beside != 1 && e.model.working() != e.working) Share(e);
}

void Simulator::Impl::Share(Engine& changed) {
  changed.working = changed.model.working();
  int64_t working = 0;
  for (const auto& [id, e] : engines) working += e.working || e.training ? 1 : 0;
  for (auto& [id, e] : engines) {
    e.beside = working > (e.working || e.training ? 1 : 0);
    if (SetFactor(e)) Schedule(e);
  }
}

double Simulator::Impl::Noise(Engine& e) {
  return job.jitter > 0 ? draws.Jitter(static_cast<uint64_t>(e.ref.slot.value), e.drawn++, job.jitter) : 1;
}

bool Simulator::Impl::SetFactor(Engine& e) {
  return e.model.SetFactor(e.slow * e.noise * (e.beside ? job.slow_beside : 1), now);
}

void Simulator::Impl::Report(Engine& e, const EngineRun& r, event::ChunkEnd end, double delay) {
  SampleFacts& s = samples[r.tid];
  if (!faulty) s.tokens = r.total;  // else when they arrive
  s.engine = e.ref.slot.value;
  s.v = e.v;
  s.caches = e.caches;
  if (r.generated > 0)
    Send(event::ChunkProgress{e.ref.worker, e.ref.slot, r.tid, r.att, r.generated, e.v},
         delay + job.message_s);
  Send(event::ChunkFinished{e.ref.worker, e.ref.slot, r.tid, r.att, end, ""}, delay + job.message_s);
}

void Simulator::Impl::EngineStop(Engine& e) {
  for (const SampleId& tid : e.model.Stop(now)) {
    EngineRun& r = *e.model.Find(tid);
    if (r.total_left <= 0) {
      finishes.push_back(now);
      Report(e, e.model.Take(tid), event::ChunkEnd::kEos);
    } else if (r.chunk_left <= 0) {
      Report(e, e.model.Take(tid), event::ChunkEnd::kChunkLimit);
    } else {  // the end of a turn
      r.turn_left = draws.TurnTokens(tid);
      Push(draws.EnvironmentSeconds(tid, r.total), Kind::kTurn, e.ref.slot.value, 0, tid);
    }
  }
  Schedule(e);
}

void Simulator::Impl::Fire(const Entry& entry) {
  switch (entry.kind) {
    case Kind::kEvent: {
      const Event event = std::move(slab[static_cast<size_t>(entry.a)]);
      free_slab.push_back(entry.a);
      if (faulty)
        Arrive(event);
      else
        Deliver(event);
      break;
    }
    case Kind::kEngine: {
      Engine* e = engines.Find({entry.a});
      if (e != nullptr) EngineStop(*e);
      break;
    }
    case Kind::kTurn: {
      Engine* there = engines.Find({entry.a});
      if (there == nullptr) break;
      Engine& e = *there;
      const EngineRun* r = e.model.Find(entry.tid);
      if (r == nullptr || r->decoding) break;  // it moved meanwhile; its turn goes on there
      e.model.CatchUp(now);
      e.model.Resume(entry.tid, now);
      Schedule(e);
      break;
    }
    case Kind::kTick:
      if (faulty) {
        BeatWithFaults();
        break;
      }
      for (const bool idle : {false, true}) {
        for (auto& [id, process] : processes) {
          if (!process.slots.empty() && Idle(process) == idle) Deliver(BeatOf(id, process));
        }
      }
      for (auto& [id, process] : processes) {
        if (process.slots.empty()) Deliver(BeatOf(id, process));
      }
      if (!over) Deliver(event::Tick{});
      Push(job.tick_s, Kind::kTick);
      break;
    case Kind::kTrained:
      Trained(entry.a);
      break;
    case Kind::kFault:
      Befall(static_cast<Fault>(entry.a));
      break;
  }
}

}  // namespace tidepool::scheduler
