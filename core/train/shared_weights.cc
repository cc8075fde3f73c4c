#include "core/train/shared_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/comm/host_file.h"
#include "core/sharding/intervals.h"

namespace tidepool::train {
namespace {

Status Write(int fd, std::span<const std::byte> bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Unavailable(std::string("shared memory cannot be written (") + std::strerror(errno) + ")");
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += n;
  }
  return OkStatus();
}

// What all ranks say, or on all of them the error of one.
StatusOr<std::vector<std::string>> Agree(comm::Collective& group, const std::string& name,
                                         const Status& mine) {
  TP_ASSIGN_OR_RETURN(std::vector<std::string> said,
                      group.AllGather(mine.ok() ? "+" + name : "-" + mine.message(), "shared weights"));
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].starts_with('-'))
      return Unavailable("train.zero: 3: rank " + std::to_string(rank) + ": " + said[rank].substr(1));
    said[rank].erase(0, 1);
  }
  return said;
}

}  // namespace

StatusOr<std::unique_ptr<SharedWeights>> SharedWeights::Create(int64_t elements, int64_t each) {
  TP_ASSIGN_OR_RETURN(device::PageBuffer arena,
                      device::PageBuffer::Create(static_cast<size_t>(elements * each)));
  return std::unique_ptr<SharedWeights>(new SharedWeights(std::move(arena), elements, each));
}

int64_t SharedWeights::own_bytes() const { return shared_.empty() ? elements_ * each_ : 0; }

Status SharedWeights::MapOver(int flags, int fd) {
  const std::span<std::byte> at = arena();
  if (mmap(at.data(), at.size(), PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) != MAP_FAILED)
    return OkStatus();
  return ResourceExhausted("train.zero: 3: the weights cannot be mapped (" +
                           std::string(std::strerror(errno)) + ")");
}

Status SharedWeights::Leave() {
  if (shared_.empty()) return OkStatus();
  TP_RETURN_IF_ERROR(MapOver(MAP_PRIVATE | MAP_ANONYMOUS, -1));
  shared_.clear();
  return OkStatus();
}

Status SharedWeights::Share(comm::Collective& group, const std::string& folder) {
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> had, Agree(group, shared_, OkStatus()));
  if (!shared_.empty() && std::ranges::count(had, shared_) == group.size()) return OkStatus();
  if (group.by() != "memory")
    return Unimplemented(
        "train.zero: 3: the slots that train have to share a host's memory, and these have " + group.by() +
        "; write 2");
  StatusOr<comm::HostFile> file = NotFound("nobody has made the memory");
  if (group.rank() == 0) file = comm::HostFile::Make(folder, elements_ * each_);
  TP_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      Agree(group, file.ok() ? file->name() : "", group.rank() == 0 ? file.status() : OkStatus()));
  if (group.rank() != 0) file = comm::HostFile::Open(folder, names[0], elements_ * each_);
  Status written = file.status();
  if (file.ok()) {
    const sharding::Interval own = sharding::Owned(elements_, {group.rank(), group.size()});
    written =
        Write(file->fd(),
              arena().subspan(static_cast<size_t>(own.from * each_), static_cast<size_t>(own.size() * each_)),
              own.from * each_);
  }
  TP_RETURN_IF_ERROR(Agree(group, "", written).status());
  TP_RETURN_IF_ERROR(MapOver(MAP_SHARED, file->fd()));
  shared_ = names[0];
  return OkStatus();
}

}  // namespace tidepool::train
