#include "workers/controller/waiting_fragments.h"

#include <algorithm>

namespace tidepool::workers {

namespace ev = scheduler::event;

namespace {

constexpr Duration kPatience = std::chrono::seconds(5);  // for a host

}  // namespace

void WaitingFragments::GiveBack(const Waiting& w, ev::ChunkEnd end, std::string why) {
  ends_.feed(ev::ChunkFinished{w.worker, w.message.slot, w.message.tid, w.message.att, end, std::move(why)});
}

void WaitingFragments::Starts(const SampleId& tid, int32_t att, const StatusOr<std::string>& starts,
                              TimePoint now) {
  const auto it = std::ranges::find_if(
      waiting_, [&](const Waiting& w) { return w.message.tid == tid && w.message.att == att; });
  if (it == waiting_.end()) return;
  if (!starts.ok()) {
    const Waiting lost = std::move(*it);
    waiting_.erase(it);
    // What is lost of the fragment before it stays lost.
    return GiveBack(
        lost,
        starts.status().code() == StatusCode::kDataLoss ? ev::ChunkEnd::kDataError : ev::ChunkEnd::kError,
        "its start: " + starts.status().message());
  }
  it->message.starts = *starts;
  it->ready = now;
  Send();
}

void WaitingFragments::Cancel(const SampleId& tid, int32_t att) {
  std::erase_if(waiting_, [&](const Waiting& w) { return w.message.tid == tid && w.message.att == att; });
}

void WaitingFragments::Send() {
  const std::vector<const up::Hello*> hosts = ends_.hosts();
  if (hosts.empty()) return;
  std::erase_if(waiting_, [&](Waiting& w) {
    if (!w.ready) return false;
    const up::Hello& host = *hosts[static_cast<uint64_t>(w.message.tid.ordinal) % hosts.size()];
    w.message.environment = host.environment_address;
    w.message.environment_token = host.environment_token;
    ends_.send(w.worker, std::move(w.message));
    return true;
  });
}

void WaitingFragments::Tick(TimePoint now) {
  Send();
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (!w.ready || now - *w.ready <= kPatience) return false;
    GiveBack(w, ev::ChunkEnd::kCancelled, "no environment worker is there");
    return true;
  });
}

}  // namespace tidepool::workers
