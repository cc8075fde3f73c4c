#include "workers/controller/worker_places.h"

#include "workers/controller/token_intake.h"

namespace tidepool::workers {

void WorkerPlaces::Arrived(Attachments::Arrived& e, std::string name) {
  Place& p = places_[e.place];
  p.joined = true;
  p.given_up = false;
  p.due.reset();
  p.hello = e.hello;
  auto joined = JoinedBy(e, std::move(name));
  p.offered = joined.chunks;
  ends_.feed(std::move(joined));
}

void WorkerPlaces::Lost(const Attachments::Lost& e) {
  Lose(e.place, {{{e.place}, e.inc}, e.why, /*by_exit=*/false, {}});
}

void WorkerPlaces::Ended(int64_t place, int64_t pid, const std::string& why, const std::string& blames,
                         bool for_good) {
  Place& p = places_[place];
  const up::Hello* there = attachments_.HelloAt(place);
  const bool taken = there != nullptr && there->pid != pid;  // by one that came back, or was started by hand
  if (p.joined && taken) return;
  if (!taken) attachments_.Fence(place, why);
  if (p.joined) return Lose(place, {{{place}, p.inc}, why, /*by_exit=*/true, blames, for_good});
  // It died before it had joined, or it was given up before.
  if (!std::exchange(p.given_up, false))
    ends_.feed(scheduler::event::WorkerStartFailed{{place}, why, for_good});
}

void WorkerPlaces::Lose(int64_t place, scheduler::event::WorkerLost lost) {
  Leave(place);
  Place& p = places_[place];
  p.given_up = p.given_up || !lost.by_exit;
  if (!lost.worker.inc.valid()) lost.worker.inc = p.inc;
  ends_.feed(std::move(lost));
}

void WorkerPlaces::Leave(int64_t place) {
  Place& p = places_[place];
  p.joined = false;
  p.offered.clear();
  p.hello = {};
  ends_.left(place);
}

std::optional<std::vector<scheduler::event::OfferedChunk>> WorkerPlaces::Welcome(
    const scheduler::command::Welcome& c, down::Welcome terms) {
  Place& p = places_[c.worker.value];
  if (p.inc != c.inc) return std::nullopt;
  terms.inc = c.inc;
  terms.place = c.worker.value;
  terms.slots = c.slots;
  if (!attachments_.Welcome(c.worker.value, c.process, std::move(terms))) return std::nullopt;
  return std::exchange(p.offered, {});
}

void WorkerPlaces::Refuse(const scheduler::command::RefuseWorker& c) {
  if (attachments_.Refuse(c.worker.value, c.process, c.why)) Leave(c.worker.value);
}

void WorkerPlaces::Kill(const scheduler::command::KillWorker& c) {
  const int64_t place = c.worker.worker.value;
  // It is gone, and the place may have another process by now.
  if (c.worker.inc.valid() && !Has(c.worker)) return;
  if (places_[place].joined) {
    Leave(place);
    places_[place].given_up = true;
  }
  attachments_.Fence(place, c.why);
}

std::vector<const up::Hello*> WorkerPlaces::EnvironmentHosts() const {
  std::vector<const up::Hello*> hosts;
  for (const auto& [place, p] : places_) {
    if (!p.hello.environment_address.empty()) hosts.push_back(&p.hello);
  }
  return hosts;
}

std::vector<int64_t> WorkerPlaces::TakeDue(TimePoint now) {
  std::vector<int64_t> due;
  for (auto& [place, p] : places_) {
    // A process that is there and has not said yet what it holds comes first.
    if (!p.due || now < *p.due || attachments_.HelloAt(place) != nullptr) continue;
    p.due.reset();
    due.push_back(place);
  }
  return due;
}

}  // namespace tidepool::workers
