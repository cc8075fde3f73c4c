#include "workers/net/attachments.h"

#include <cmath>
#include <utility>

namespace tidepool::workers {
namespace {

constexpr size_t kMaxOffered = 1 << 20;  // attempts that one process may offer

}  // namespace

std::map<int64_t, Attachments::Place>::iterator Attachments::Of(ConnectionId connection) {
  const auto it = place_of_.find(connection);
  return it == place_of_.end() ? places_.end() : places_.find(it->second);
}

std::vector<Attachments::Event> Attachments::On(HubEvent event, TimePoint now) {
  std::vector<Event> out;
  if (auto* opened = std::get_if<HubOpened>(&event)) {
    Opened(*opened, now, out);
  } else if (auto* message = std::get_if<HubMessage>(&event)) {
    Said(*message, now, out);
  } else if (const auto* part = std::get_if<HubPart>(&event)) {
    if (const auto it = Of(part->connection); it != places_.end()) it->second.heard = now;
  } else if (const auto it = Of(std::get<HubClosed>(event).connection); it != places_.end()) {
    Unbind(it->second, now);
  }
  return out;
}

void Attachments::Opened(HubOpened& e, TimePoint now, std::vector<Event>& out) {
  const up::Hello& hello = e.hello;
  const bool device = hello.kind == scheduler::WorkerKind::kDevice;
  const int64_t first = device ? 0 : options_.device_places;
  const int64_t end = device ? options_.device_places : options_.device_places + options_.side_places;
  int64_t place = hello.place;
  for (const auto& [id, p] : places_) {
    if (p.hello.process == hello.process) place = id;
  }
  if (place < 0) {
    for (place = first; place < end && places_.contains(place);) ++place;
  }
  if (place < first || place >= end) {
    wire_->Refuse(
        e.connection,
        {"the run has no such place for a worker (cluster.slots, reward.workers, environment.workers)"});
    return;
  }
  if (hello.ctl_epoch > options_.ctl_epoch) {
    wire_->Refuse(e.connection,
                  {"this controller has a successor, epoch " + std::to_string(hello.ctl_epoch)});
    // A grader or a host of environments, which may be anybody's code, does not end a controller.
    if (hello.kind == scheduler::WorkerKind::kDevice) out.emplace_back(Superseded{hello.ctl_epoch});
    return;
  }
  auto it = places_.find(place);
  const bool known = hello.ctl_epoch == options_.ctl_epoch;
  if (it != places_.end() && it->second.hello.process != hello.process && !known) {
    if (it->second.connection != 0) {
      wire_->Refuse(e.connection, {"that place has a worker already", /*again=*/true});
      return;
    }
    Release(place, "another process came to its place", out);
    it = places_.end();
  }
  if (it == places_.end() || it->second.hello.process != hello.process) {
    if (known) {
      wire_->Refuse(e.connection, {"this worker was taken for lost and is fenced"});
      return;
    }
    it = places_.try_emplace(place).first;
    it->second.hello = hello;
    it->second.came = now;
  }
  Place& p = it->second;
  // Who has not seen this epoch yet has taken nothing of it. A Hello that says less than is known was
  // overtaken by a later one of the same process.
  if (!p.session.Connected(known ? hello.received : 0)) {
    wire_->Refuse(e.connection, {"this worker says that it took commands that it cannot have"});
    return;
  }
  if (p.connection != 0) {
    const ConnectionId old = p.connection;
    Unbind(p, now);
    wire_->Close(old, "the worker has dialed again");
  }
  p.connection = e.connection;
  p.heard = now;
  place_of_[e.connection] = place;
  Say(p, ToWorker{0, p.session.durable(), down::Attached{options_.ctl_epoch, p.session.taken()}});
  Flush(p);
}

void Attachments::Said(HubMessage& e, TimePoint now, std::vector<Event>& out) {
  const auto it = Of(e.connection);
  if (it == places_.end()) return;  // of a connection that was superseded, or of a process that is fenced
  Place& p = it->second;
  p.heard = now;
  p.session.Acked(e.message.ack);
  if (e.message.seq != 0) {
    switch (p.session.Take(e.message.seq)) {
      case Session<ToWorker>::Verdict::kNew:
        said_.insert(it->first);
        break;
      case Session<ToWorker>::Verdict::kOld:
        return;
      case Session<ToWorker>::Verdict::kGap:
        wire_->Close(e.connection, "a message is missing");
        return;
    }
  } else if (!std::holds_alternative<up::Heartbeat>(e.message.body)) {
    return;
  }
  if (auto* frame = std::get_if<up::Offer>(&e.message.body)) {
    if (p.offered) return;
    if (!Collect(p, *frame)) {
      Refuse(it->first, p.hello.process, "the worker offers more than it can hold");
      return;
    }
    if (p.offered) out.emplace_back(Arrived{it->first, p.hello, std::move(p.offer)});
    return;
  }
  if (p.inc.valid()) out.emplace_back(Message{it->first, p.inc, std::move(e.message.body)});
}

bool Attachments::Collect(Place& p, up::Offer& frame) {
  up::Offer& all = p.offer;
  if (all.chunks.size() + frame.chunks.size() > kMaxOffered || all.slots.size() + frame.slots.size() > kSlots)
    return false;
  p.offered = frame.last;
  all.slots.insert(all.slots.end(), frame.slots.begin(), frame.slots.end());
  all.chunks.insert(all.chunks.end(), frame.chunks.begin(), frame.chunks.end());
  return true;
}

void Attachments::Unbind(Place& p, TimePoint now) {
  place_of_.erase(p.connection);
  p.connection = 0;
  p.gone = now;
}

void Attachments::Flush(Place& p) {
  if (p.connection == 0) return;
  for (ToWorker& message : p.session.TakeUnsent()) Say(p, std::move(message));
}

void Attachments::Say(Place& p, ToWorker message) {
  p.told = true;
  p.told_durable = message.ack;
  wire_->Send(p.connection, std::move(message));
}

void Attachments::SayRenewal(Place& p) { Say(p, ToWorker{0, p.session.durable(), down::PermitRenewal{}}); }

std::vector<Attachments::Event> Attachments::Tick(TimePoint now) {
  std::vector<Event> out;
  for (auto it = places_.begin(); it != places_.end();) {
    Place& p = it->second;
    if (p.connection != 0 && now - p.heard > options_.lost_after) {
      const ConnectionId silent = p.connection;
      Unbind(p, now);
      wire_->Close(silent, "nothing was heard over it");
    }
    const auto at = it++;
    if (!p.offered && options_.offer_within > Duration{0} && now - p.came >= options_.offer_within) {
      Refuse(at->first, p.hello.process,
             "the worker did not say what it holds in " +
                 std::to_string(std::lround(Seconds(options_.offer_within))) + " s");
    } else if (p.hung) {
      if (p.connection != 0) wire_->Close(p.connection, "the worker does not take its commands");
      Release(at->first, "it does not take its commands", out);
    } else if (p.connection == 0 && now - p.gone >= options_.lost_after) {
      Release(at->first, "its connection broke and it did not dial again", out);
    }
  }
  return out;
}

// The process has the place no more, and is fenced.
void Attachments::Release(int64_t place, const std::string& why, std::vector<Event>& out) {
  const auto it = places_.find(place);
  if (it->second.offered) out.emplace_back(Lost{place, it->second.inc, why});
  place_of_.erase(it->second.connection);
  places_.erase(it);
}

bool Attachments::Welcome(int64_t place, uint64_t process, down::Welcome welcome) {
  const auto it = places_.find(place);
  if (it == places_.end() || it->second.hello.process != process) return false;
  it->second.inc = welcome.inc;
  it->second.session.Put(ToWorker{0, 0, std::move(welcome)});
  Flush(it->second);
  return true;
}

bool Attachments::Refuse(int64_t place, uint64_t process, const std::string& why) {
  const auto it = places_.find(place);
  if (it == places_.end() || it->second.hello.process != process) return false;
  if (it->second.connection != 0) wire_->Refuse(it->second.connection, {why});
  place_of_.erase(it->second.connection);
  places_.erase(it);
  return true;
}

bool Attachments::Fence(int64_t place, const std::string& why) {
  const auto it = places_.find(place);
  return it != places_.end() && Refuse(place, it->second.hello.process, "fenced: " + why);
}

const up::Hello* Attachments::HelloAt(int64_t place) const {
  const auto it = places_.find(place);
  return it == places_.end() ? nullptr : &it->second.hello;
}

void Attachments::Send(int64_t place, ToWorkerBody body) {
  const auto it = places_.find(place);
  if (it == places_.end() || !it->second.inc.valid()) return;  // its loss is on its way
  it->second.hung = it->second.hung || it->second.session.unacknowledged() >= kMostKept;
  if (it->second.hung) return;
  it->second.session.Put(ToWorker{0, 0, std::move(body)});
  Flush(it->second);
}

void Attachments::Renew() {
  for (const auto& [connection, place] : place_of_) {
    Place& p = places_.at(place);
    if (!std::exchange(p.told, false)) SayRenewal(p);
  }
}

void Attachments::Taken(Snapshot& taken) {
  for (const int64_t id : std::exchange(said_, {})) {
    if (const auto it = places_.find(id); it != places_.end())
      taken[{id, it->second.hello.process}] = it->second.session.taken();
  }
}

void Attachments::Acknowledge(const Snapshot& durable) {
  for (const auto& [key, taken] : durable) {
    const auto it = places_.find(key.first);
    if (it == places_.end() || it->second.hello.process != key.second) continue;
    Place& p = it->second;
    p.session.Durable(taken);
    if (p.connection != 0 && p.session.durable() - p.told_durable >= kMostUntold) SayRenewal(p);
  }
}

std::vector<int64_t> Attachments::Welcomed() const {
  std::vector<int64_t> out;
  for (const auto& [id, p] : places_) {
    if (p.inc.valid()) out.push_back(id);
  }
  return out;
}

}  // namespace tidepool::workers
