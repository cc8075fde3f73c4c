#include "workers/side/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool::workers {
namespace {

StatusOr<std::vector<std::string>> GetAddresses(const std::string& host) {
  addrinfo want{};
  want.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &want, &found); error != 0)
    return Unavailable(host + ": " + ::gai_strerror(error));
  std::vector<std::string> addresses;
  char text[NI_MAXHOST];
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return Unavailable(host + ": has no address");
  return addresses;
}

}  // namespace

struct HostLookup::Shared {
  Mutex mu;
  Condition changed;
  bool under_way TP_GUARDED_BY(mu) = false;
  int64_t done TP_GUARDED_BY(mu) = 0;  // lookups
  StatusOr<std::vector<std::string>> last TP_GUARDED_BY(mu) = Unavailable("");
};

HostLookup::HostLookup(const std::string& host) : HostLookup(host, [host] { return GetAddresses(host); }) {}

HostLookup::HostLookup(std::string host, Find find)
    : host_(std::move(host)), find_(std::move(find)), shared_(std::make_shared<Shared>()) {}

StatusOr<std::vector<std::string>> HostLookup::Addresses(std::chrono::steady_clock::time_point deadline,
                                                         const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] {
    const MutexLock lock(shared_->mu);
    shared_->changed.NotifyAll();
  });
  const MutexLock lock(shared_->mu);
  const int64_t before = shared_->done;
  if (!shared_->under_way) {
    try {
      std::thread([shared = shared_, find = find_] {
        StatusOr<std::vector<std::string>> found = find();
        const MutexLock done(shared->mu);
        shared->last = std::move(found);
        shared->under_way = false;
        ++shared->done;
        shared->changed.NotifyAll();
      }).detach();  // nobody can wait for it: see above
    } catch (const std::exception& problem) {
      return ResourceExhausted(std::string("no thread for the lookup of ") + host_ + ": " + problem.what());
    }
    shared_->under_way = true;
  }
  while (shared_->done == before) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (stop.stop_requested()) return Status(StatusCode::kCancelled, "stopped");
    if (left <= left.zero()) return Unavailable("the lookup of the name " + host_ + " takes too long");
    shared_->changed.WaitFor(shared_->mu, left);
  }
  return shared_->last;
}

}  // namespace tidepool::workers
