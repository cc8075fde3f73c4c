// How the ranks of a group come together, and by what they exchange.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/collective.h"
#include "core/comm/exchange.h"
#include "core/comm/gloo_group.h"
#include "core/comm/host_group.h"

namespace tidepool::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kHere = "here";

std::string Key(const GroupOptions& o, const char* what, int rank) {
  return o.name + "/" + what + "/" + std::to_string(rank);
}

// Says something under `what` and waits for what the others say, so that an error names those that do not
// come.
StatusOr<std::vector<std::string>> Meet(const GroupOptions& o, const char* what, const std::string& mine,
                                        Clock::time_point until) {
  TP_RETURN_IF_ERROR(o.rendezvous->Set(Key(o, what, o.rank), mine));
  std::vector<std::string> keys;
  for (int rank = 0; rank < o.size; ++rank) keys.push_back(Key(o, what, rank));
  const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
  auto said = o.rendezvous->Get(keys, std::max(left, milliseconds(0)));
  if (said.ok()) return said;
  if (said.status().code() != StatusCode::kDeadlineExceeded) return said.status().At(Ranks(o));
  std::string missing;
  for (int rank = 0; rank < o.size; ++rank) {
    const Status one = o.rendezvous->Get({Key(o, what, rank)}, milliseconds(0)).status();
    if (one.ok()) continue;
    if (one.code() != StatusCode::kDeadlineExceeded) return one.At(Ranks(o));
    missing += (missing.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return Unavailable(Ranks(o) + " could not meet the others within " + std::to_string(o.timeout_s) + " s: " +
                     missing + " did not come" + (std::string_view(what) == kHere ? "" : " any further"));
}

// Rank 0 makes the memory, the others look for it. Null: one of them does not see it; `why` says which.
StatusOr<std::unique_ptr<HostMemory>> MemoryOfAll(const GroupOptions& o, Clock::time_point until,
                                                  std::string& why) {
  StatusOr<std::unique_ptr<HostMemory>> memory = NotFound("no shared memory");
  std::string name;
  if (o.rank == 0 && !o.shared_folder.empty()) memory = HostMemory::Make(o.shared_folder, o.size, name);
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> said, Meet(o, "memory", memory.ok() ? name : "", until));
  if (o.rank > 0 && !o.shared_folder.empty() && !said[0].empty())
    memory = HostMemory::Open(o.shared_folder, said[0], o.rank, o.size);
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> troubles,
                      Meet(o, "sees", memory.ok() ? "" : memory.status().message(), until));
  if (memory.ok()) (*memory)->Unlink();
  for (size_t rank = 0; rank < troubles.size() && why.empty(); ++rank)
    if (!troubles[rank].empty()) why = "rank " + std::to_string(rank) + ": " + troubles[rank];
  return why.empty() ? *std::move(memory) : nullptr;
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> MakeGroup(const GroupOptions& o) {
  if (o.size < 1 || o.rank < 0 || o.rank >= o.size || o.rendezvous == nullptr) {
    return InvalidArgument("collective group: rank " + std::to_string(o.rank) + " of " +
                           std::to_string(o.size));
  }
  const auto until = Clock::now() + milliseconds(static_cast<int64_t>(o.timeout_s * 1000));
  TP_RETURN_IF_ERROR(Meet(o, kHere, "", until).status());
  std::string why;
  TP_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, MemoryOfAll(o, until, why));
  std::unique_ptr<Collective> made;
  if (memory != nullptr) {
    made = MakeHostGroup(o, std::move(memory));
    made->SetBy("memory");
  } else {
    TP_ASSIGN_OR_RETURN(made, MakeGlooGroup(o));
    made->SetBy("sockets (" + why + ")");
  }
  return made;
}

}  // namespace tidepool::comm
