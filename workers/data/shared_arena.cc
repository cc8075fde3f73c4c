#include "workers/data/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/file_system.h"
#include "core/base/hash.h"

namespace tidepool::workers {
namespace {

constexpr uint64_t kMagic = 0x31304b4c42505454ULL;  // "TTPBLK01"
constexpr int64_t kHeaderBytes = 4096;
constexpr char kSharedMemory[] = "/dev/shm";

struct Header {
  uint64_t magic;
  std::atomic<uint64_t> complete;  // 1: the tag and the bytes belong together
  BlockTag tag;
};
static_assert(sizeof(Header) <= kHeaderBytes);

// Ours alone: made by this user, and open to nobody else.
Status CheckOurs(const std::string& path, const struct stat& st, mode_t kind) {
  if ((st.st_mode & S_IFMT) == kind && st.st_uid == geteuid() && (st.st_mode & 077) == 0) return OkStatus();
  return PermissionDenied(path + ": belongs to user " + std::to_string(st.st_uid) +
                          " or is open to others (" + "mode " + std::to_string((st.st_mode >> 6) & 7) +
                          std::to_string((st.st_mode >> 3) & 7) + std::to_string(st.st_mode & 7) +
                          "), so it is not used; remove it, or use cluster.weight_transport: stream and " +
                          "checkpoint.recovery_every_steps: 0");
}

Status MakeFolder(const std::string& dir) {
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return Unavailable(dir + ": cannot be made (" + std::strerror(errno) + ")");
  struct stat st {};
  if (lstat(dir.c_str(), &st) != 0)
    return Unavailable(dir + ": cannot be looked at (" + std::strerror(errno) + ")");
  return CheckOurs(dir, st, S_IFDIR);
}

// The run's folder, once the last host's part of it is gone.
void RemoveAround(const std::string& folder) {
  std::error_code error;
  if (const std::string around = ParentPath(folder); around != kSharedMemory)
    std::filesystem::remove(around, error);
}

}  // namespace

struct SharedBlock::Buffer {
  std::byte* base = nullptr;
  int64_t size = 0;
  ~Buffer() {
    if (base != nullptr) munmap(base, static_cast<size_t>(size));
  }
  [[nodiscard]] Header* header() const { return reinterpret_cast<Header*>(base); }
};

SharedBlock::SharedBlock(std::string folder, std::string name)
    : dir_(std::move(folder)), name_(std::move(name)) {}
SharedBlock::~SharedBlock() = default;

namespace {

// A file is mapped as it is, or made with `size` bytes. Opening and making are apart, so that what somebody
// else put there is never taken for what was just made.
StatusOr<std::byte*> Map(const std::string& path, int64_t size, bool write) {
  int fd = open(path.c_str(), (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT && write)
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    if (errno == ENOENT) return NotFound(path + ": is not there");
    return Unavailable(path + ": cannot be opened (" + std::strerror(errno) + ")");
  }
  struct stat st {};
  const Status ours =
      fstat(fd, &st) == 0 ? CheckOurs(path, st, S_IFREG) : Unavailable(path + ": cannot be looked at");
  if (!ours.ok()) {
    close(fd);
    return ours;
  }
  // fallocate, not ftruncate: a full /dev/shm must be an error here and not a bus error later.
  if (write && posix_fallocate(fd, 0, size) != 0) {
    close(fd);
    struct statvfs vfs {};
    statvfs("/dev/shm", &vfs);
    return ResourceExhausted(path + ": " + std::to_string(size >> 20) + " MiB do not fit into /dev/shm (" +
                             std::to_string((vfs.f_bavail * vfs.f_frsize) >> 20) +
                             " MiB are free); make it larger, or use " +
                             "cluster.weight_transport: stream and checkpoint.recovery_every_steps: 0");
  }
  void* base =
      mmap(nullptr, static_cast<size_t>(size), write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (base == MAP_FAILED)
    return ResourceExhausted(path + ": cannot be mapped (" + std::strerror(errno) + ")");
  return static_cast<std::byte*>(base);
}

}  // namespace

Status SharedBlock::Write(BlockTag tag, const std::vector<device::ByteSource>& parts) {
  tag.bytes = 0;
  for (const auto& p : parts) tag.bytes += static_cast<int64_t>(p.size());
  TP_ASSIGN_OR_RETURN(const Filling filling, Begin(tag));
  size_t at = 0;
  for (const auto& p : parts) {
    p.CopyTo(0, filling.bytes().subspan(at, p.size()));
    at += p.size();
  }
  filling.Complete();
  return OkStatus();
}

StatusOr<SharedBlock::Filling> SharedBlock::Begin(const BlockTag& tag) {
  if (const std::string around = ParentPath(dir_); around != kSharedMemory)
    TP_RETURN_IF_ERROR(MakeFolder(around));
  TP_RETURN_IF_ERROR(MakeFolder(dir_));
  std::error_code error;
  const int64_t size = kHeaderBytes + tag.bytes;
  std::shared_ptr<Buffer> free;
  std::pair<int32_t, int64_t> oldest;  // by lineage: a later one goes back in number
  for (int i = 0; i < 2; ++i) {
    if (buffers_[i] != nullptr && buffers_[i].use_count() > 1) continue;
    if (buffers_[i] != nullptr && buffers_[i]->size != size) buffers_[i].reset();
    if (buffers_[i] == nullptr) {
      const std::string path = dir_ + "/" + name_ + "-" + std::to_string(i);
      std::filesystem::path file(path);
      if (std::filesystem::exists(file, error) &&
          static_cast<int64_t>(std::filesystem::file_size(file, error)) != size) {
        std::filesystem::remove(file, error);
      }
      TP_ASSIGN_OR_RETURN(std::byte * base, Map(path, size, /*write=*/true));
      buffers_[i] = std::make_shared<Buffer>();
      buffers_[i]->base = base;
      buffers_[i]->size = size;
    }
    const Header* h = buffers_[i]->header();
    std::pair<int32_t, int64_t> number{-1, -1};
    if (h->magic == kMagic && h->complete.load(std::memory_order_acquire) == 1)
      number = {h->tag.lineage, h->tag.number};
    if (free != nullptr && oldest <= number) continue;
    free = buffers_[i];
    oldest = number;
  }
  if (free == nullptr) return Unavailable(dir_ + "/" + name_ + ": both copies are in use");
  Header* h = free->header();
  h->complete.store(0, std::memory_order_release);
  h->magic = kMagic;
  h->tag = tag;
  return Filling(std::move(free));
}

std::span<std::byte> SharedBlock::Filling::bytes() const {
  return {buffer_->base + kHeaderBytes, static_cast<size_t>(buffer_->header()->tag.bytes)};
}

void SharedBlock::Filling::Complete() const {
  buffer_->header()->complete.store(1, std::memory_order_release);
}

StatusOr<std::shared_ptr<const SharedBlock::View>> SharedBlock::Open(int64_t number, int32_t lineage) const {
  struct Mapped final : View {
    Buffer buffer;
    BlockTag found;
    [[nodiscard]] const BlockTag& tag() const override { return found; }
    [[nodiscard]] std::span<const std::byte> bytes() const override {
      return {buffer.base + kHeaderBytes, static_cast<size_t>(found.bytes)};
    }
    [[nodiscard]] bool same() const override {
      const Header* h = buffer.header();
      return h->complete.load(std::memory_order_acquire) == 1 && h->tag.number == found.number &&
             h->tag.lineage == found.lineage;
    }
  };
  for (int i = 0; i < 2; ++i) {
    const std::string path = dir_ + "/" + name_ + "-" + std::to_string(i);
    struct stat st {};
    if (stat(path.c_str(), &st) != 0 || st.st_size < kHeaderBytes) continue;
    auto view = std::make_shared<Mapped>();
    TP_ASSIGN_OR_RETURN(view->buffer.base, Map(path, st.st_size, /*write=*/false));
    view->buffer.size = st.st_size;
    const Header* h = view->buffer.header();
    if (h->magic != kMagic || h->complete.load(std::memory_order_acquire) != 1) continue;
    view->found = h->tag;
    if (h->tag.number != number || (lineage >= 0 && h->tag.lineage != lineage)) continue;
    if (view->found.bytes < 0 || st.st_size < kHeaderBytes + view->found.bytes)
      return DataLoss(path + ": is shorter than its header says");
    return std::shared_ptr<const View>(std::move(view));
  }
  return NotFound(dir_ + "/" + name_ + ": no complete copy of number " + std::to_string(number));
}

StatusOr<BlockTag> SharedBlock::Read(int64_t number, int32_t lineage,
                                     const std::vector<device::ByteStore>& out) const {
  TP_ASSIGN_OR_RETURN(const auto view, Open(number, lineage));
  int64_t bytes = 0;
  for (const auto& p : out) bytes += static_cast<int64_t>(p.size());
  const std::string what = dir_ + "/" + name_ + ", number " + std::to_string(number) + ": ";
  if (view->tag().bytes != bytes) {
    return DataLoss(what + "holds " + std::to_string(view->tag().bytes) + " bytes, not " +
                    std::to_string(bytes));
  }
  size_t at = 0;
  for (const auto& p : out) {
    p.CopyFrom(0, view->bytes().subspan(at, p.size()));
    at += p.size();
  }
  if (!view->same()) return Unavailable(what + "was written again while it was read");
  return view->tag();
}

std::string SharedBlock::FolderOf(const std::string& run_dir, const std::string& secret) {
  struct stat st {};
  const std::string folder =
      stat(run_dir.c_str(), &st) == 0 ? std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino) : run_dir;
  return "/dev/shm/tidepool-" + std::to_string(getuid()) + "-" +
         HmacSha256Hex(secret, "shared memory of " + folder).substr(0, 32);
}

std::string SharedBlock::OfHost(const std::string& folder, const std::string& host) {
  return folder + "/" + Sha256Hex(host).substr(0, 16);
}

void SharedBlock::Remove(const std::string& folder, const std::string& name) {
  std::error_code error;
  for (const char* end : {"-0", "-1"}) std::filesystem::remove(folder + "/" + name + end, error);
  std::filesystem::remove(folder, error);  // if nothing else is there
  RemoveAround(folder);
}

void SharedBlock::RemoveAll(const std::string& folder) {
  std::error_code error;  // what is not there need not be removed
  std::filesystem::remove_all(folder, error);
  RemoveAround(folder);
}

}  // namespace tidepool::workers
