#include "workers/data/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/base/file_system.h"
#include "core/base/hash.h"
#include "core/base/thread_annotations.h"

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

// Locks are of the open file, not of the process (F_OFD_SETLK): two blocks of one process keep each other
// out, too, and a lock that was exclusive becomes a shared one without a moment in between.
struct SharedBlock::Buffer {
  std::byte* base = nullptr;
  int64_t size = 0;
  int fd = -1;

  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (base != nullptr) munmap(base, static_cast<size_t>(size));
    if (fd >= 0) close(fd);
  }
  [[nodiscard]] Header* header() const { return reinterpret_cast<Header*>(base); }
  // Its name leads to it: nobody has removed it.
  [[nodiscard]] bool Named() const {
    struct stat st {};
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
  }
  // False: somebody has it.
  bool TakeToFill() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    if (users > 0 || !Lock(F_WRLCK)) return false;
    users = 1;
    filling = true;
    return true;
  }
  bool TakeToRead() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    if (users == 0 && !Lock(F_RDLCK)) return false;
    ++users;
    return true;
  }
  void Filled() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    filling = false;
    (void)Lock(F_RDLCK);  // from an exclusive one it is always given
  }
  void LetGo() TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    if (--users > 0) return;
    filling = false;
    (void)Lock(F_UNLCK);
  }
  // What is being filled here has this tag from the start.
  [[nodiscard]] bool Has(const BlockTag& tag) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    const Header* h = header();
    return (filling || h->complete.load(std::memory_order_acquire) == 1) && h->tag.number == tag.number &&
           h->tag.lineage == tag.lineage && h->tag.digest == tag.digest && h->tag.bytes == tag.bytes;
  }

 private:
  [[nodiscard]] bool Lock(int16_t type) const {
    struct flock all {};  // l_pid has to be 0
    all.l_type = type;
    all.l_whence = SEEK_SET;
    return fcntl(fd, F_OFD_SETLK, &all) == 0;
  }
  Mutex mu;
  int64_t users TP_GUARDED_BY(mu) = 0;  // of this process, by this open file
  bool filling TP_GUARDED_BY(mu) = false;
};

SharedBlock::SharedBlock(std::string folder, std::string name)
    : dir_(std::move(folder)), name_(std::move(name)) {}
SharedBlock::~SharedBlock() = default;

namespace {

// A file is opened as it is, or, where one is to be made, is new. Opening and making are apart, so that what
// somebody else put there is never taken for what was just made.
StatusOr<int> OpenOurs(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    if (errno == ENOENT) return NotFound(path + ": is not there");
    if (errno == EEXIST) return AlreadyExists(path + ": is there already");
    return Unavailable(path + ": cannot be opened (" + std::strerror(errno) + ")");
  }
  struct stat st {};
  const Status ours =
      fstat(fd, &st) == 0 ? CheckOurs(path, st, S_IFREG) : Unavailable(path + ": cannot be looked at");
  if (ours.ok()) return fd;
  close(fd);
  return ours;
}

int64_t SizeOf(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? static_cast<int64_t>(st.st_size) : 0;
}

// fallocate, not ftruncate: a full /dev/shm must be an error here and not a bus error later.
Status Allocate(const std::string& path, int fd, int64_t size) {
  if (posix_fallocate(fd, 0, size) == 0) return OkStatus();
  struct statvfs vfs {};
  statvfs(kSharedMemory, &vfs);
  return ResourceExhausted(path + ": " + std::to_string(size >> 20) + " MiB do not fit into /dev/shm (" +
                           std::to_string((vfs.f_bavail * vfs.f_frsize) >> 20) +
                           " MiB are free); make it larger, or use " +
                           "cluster.weight_transport: stream and checkpoint.recovery_every_steps: 0");
}

StatusOr<std::byte*> Map(const std::string& path, int fd, int64_t size, int protection) {
  void* base = mmap(nullptr, static_cast<size_t>(size), protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED)
    return ResourceExhausted(path + ": cannot be mapped (" + std::strerror(errno) + ")");
  return static_cast<std::byte*>(base);
}

// By lineage: a later one goes back in number.
using Age = std::pair<int32_t, int64_t>;
constexpr Age kEmpty{-1, -1};
Age AgeOf(const Header& h) {
  if (h.magic != kMagic || h.complete.load(std::memory_order_acquire) != 1) return kEmpty;
  return {h.tag.lineage, h.tag.number};
}

}  // namespace

Status SharedBlock::Write(BlockTag tag, const std::vector<device::ByteSource>& parts) {
  tag.bytes = 0;
  for (const auto& p : parts) tag.bytes += static_cast<int64_t>(p.size());
  TP_ASSIGN_OR_RETURN(Filling filling, Begin(tag));
  size_t at = 0;
  for (const auto& p : parts) {
    p.CopyTo(0, filling.bytes().subspan(at, p.size()));
    at += p.size();
  }
  filling.Complete();
  return OkStatus();
}

std::shared_ptr<const void> SharedBlock::HeldBy(const std::shared_ptr<Buffer>& buffer) {
  return {buffer.get(), [buffer](const void*) { buffer->LetGo(); }};
}

std::string SharedBlock::PathOf(int i) const { return dir_ + "/" + name_ + "-" + std::to_string(i); }

StatusOr<std::shared_ptr<const void>> SharedBlock::Take(int i, int64_t size) {
  const std::string path = PathOf(i);
  const auto had = [this, i] { return Unavailable(PathOf(i) + ": is in use"); };
  if (buffers_[i] != nullptr && !buffers_[i]->Named()) buffers_[i].reset();
  if (buffers_[i] == nullptr) {
    auto buffer = std::make_shared<Buffer>();
    auto fd = OpenOurs(path, O_RDWR);
    if (fd.ok()) {
      buffer->fd = *fd;
      if (!buffer->TakeToFill() || !buffer->Named()) return had();
      if (SizeOf(buffer->fd) != size) {  // who has mapped it keeps what it had
        unlink(path.c_str());
        buffer = std::make_shared<Buffer>();
        fd = NotFound(path + ": was of another size");
      }
    }
    if (fd.status().code() == StatusCode::kNotFound) {
      fd = OpenOurs(path, O_RDWR | O_CREAT | O_EXCL);
      if (fd.status().code() == StatusCode::kAlreadyExists) return had();  // another one was quicker
      TP_RETURN_IF_ERROR(fd.status());
      buffer->fd = *fd;
      if (!buffer->TakeToFill() || !buffer->Named()) return had();
      if (const Status allocated = Allocate(path, buffer->fd, size); !allocated.ok()) {
        unlink(path.c_str());
        return allocated;
      }
    }
    TP_RETURN_IF_ERROR(fd.status());
    TP_ASSIGN_OR_RETURN(buffer->base, Map(path, buffer->fd, size, PROT_READ | PROT_WRITE));
    buffer->size = size;
    buffers_[i] = std::move(buffer);
  } else if (buffers_[i]->size != size) {
    if (!buffers_[i]->TakeToFill()) return had();
    buffers_[i]->LetGo();
    buffers_[i].reset();
    return Take(i, size);
  } else if (!buffers_[i]->TakeToFill()) {
    return had();
  }
  return HeldBy(buffers_[i]);
}

Status SharedBlock::MakeFolderOf(const std::string& folder) {
  if (const std::string around = ParentPath(folder); around != kSharedMemory)
    TP_RETURN_IF_ERROR(MakeFolder(around));
  return MakeFolder(folder);
}

StatusOr<SharedBlock::Filling> SharedBlock::Begin(const BlockTag& tag, Keep keep) {
  TP_RETURN_IF_ERROR(MakeFolderOf(dir_));
  // What is there is looked at without a lock, or else a reader of it would be turned away meanwhile.
  Age ages[2] = {kEmpty, kEmpty};
  for (int i = 0; i < 2; ++i) {
    const auto view = Look(PathOf(i));
    if (view.ok()) ages[i] = AgeOf(*(*view)->header());
    if (view.status().code() == StatusCode::kPermissionDenied) return view.status();
  }
  const int oldest = ages[1] < ages[0] ? 1 : 0;
  std::string why = "the newest one is kept";
  for (const int i : {oldest, 1 - oldest}) {
    if (i != oldest && keep == Keep::kNewest && ages[i] != kEmpty) continue;
    auto fills = Take(i, kHeaderBytes + tag.bytes);
    if (fills.status().code() == StatusCode::kUnavailable) {
      why = fills.status().message();
      continue;
    }
    TP_RETURN_IF_ERROR(fills.status());
    Header* h = buffers_[i]->header();
    if (AgeOf(*h) != ages[i] && AgeOf(*h) != kEmpty) continue;  // another one has just filled it
    h->complete.store(0, std::memory_order_release);
    h->magic = kMagic;
    h->tag = tag;
    return Filling(buffers_[i], *std::move(fills), tag);
  }
  return Unavailable(dir_ + "/" + name_ + ": both copies are in use (" + why + ")");
}

std::span<std::byte> SharedBlock::Filling::bytes() const {
  return {buffer_->base + kHeaderBytes, static_cast<size_t>(tag_.bytes)};
}

void SharedBlock::Filling::Complete() {
  buffer_->header()->complete.store(1, std::memory_order_release);
  buffer_->Filled();
  fills_.reset();
}

std::shared_ptr<const void> SharedBlock::Filling::Hold() const {
  if (!buffer_->TakeToRead()) return nullptr;
  auto held = HeldBy(buffer_);
  return buffer_->Has(tag_) ? std::move(held) : nullptr;
}

StatusOr<std::shared_ptr<SharedBlock::Buffer>> SharedBlock::Look(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const int fd, OpenOurs(path, O_RDONLY));
  auto buffer = std::make_shared<Buffer>();
  buffer->fd = fd;
  const int64_t size = SizeOf(fd);
  if (size < kHeaderBytes) return NotFound(path + ": has just been made");
  TP_ASSIGN_OR_RETURN(buffer->base, Map(path, fd, size, PROT_READ));
  buffer->size = size;
  return buffer;
}

StatusOr<std::shared_ptr<const SharedBlock::View>> SharedBlock::Open(int64_t number, int32_t lineage) const {
  auto found = OpenNewest(
      [&](const BlockTag& tag) { return tag.number == number && (lineage < 0 || tag.lineage == lineage); });
  if (found.status().code() != StatusCode::kNotFound) return found;
  return NotFound(dir_ + "/" + name_ + ": no complete copy of number " + std::to_string(number));
}

StatusOr<std::shared_ptr<const SharedBlock::View>> SharedBlock::OpenNewest(
    const std::function<bool(const BlockTag&)>& fits) const {
  struct Locked final : View {
    std::shared_ptr<Buffer> buffer;  // its lock ends with it
    BlockTag found;
    [[nodiscard]] const BlockTag& tag() const override { return found; }
    [[nodiscard]] std::span<const std::byte> bytes() const override {
      return {buffer->base + kHeaderBytes, static_cast<size_t>(found.bytes)};
    }
  };
  std::vector<std::pair<Age, std::shared_ptr<Buffer>>> fitting;
  // Looked at without a lock, which would keep a writer from one that is not wanted.
  for (int i = 0; i < 2; ++i) {
    auto buffer = Look(PathOf(i));
    if (buffer.status().code() == StatusCode::kNotFound) continue;
    TP_RETURN_IF_ERROR(buffer.status());
    const Header* h = (*buffer)->header();
    if (const Age age = AgeOf(*h); age != kEmpty && fits(h->tag))
      fitting.emplace_back(age, *std::move(buffer));
  }
  std::ranges::sort(fitting, std::greater(), [](const auto& f) { return f.first; });
  for (const auto& [age, buffer] : fitting) {
    if (!buffer->TakeToRead()) continue;  // it is being filled
    auto view = std::make_shared<Locked>();
    view->buffer = buffer;
    view->found = buffer->header()->tag;
    if (AgeOf(*buffer->header()) == kEmpty || !fits(view->found)) continue;
    if (view->found.bytes < 0 || buffer->size < kHeaderBytes + view->found.bytes)
      return DataLoss(dir_ + "/" + name_ + ": is shorter than its header says");
    return std::shared_ptr<const View>(std::move(view));
  }
  return NotFound(dir_ + "/" + name_ + ": no such complete copy");
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
  return view->tag();
}

void SharedBlock::Reject(const BlockTag& tag) const {
  for (int i = 0; i < 2; ++i) {
    const std::string path = PathOf(i);
    auto fd = OpenOurs(path, O_RDWR);
    if (!fd.ok()) continue;
    Buffer buffer;
    buffer.fd = *fd;
    if (SizeOf(*fd) < kHeaderBytes || !buffer.TakeToRead()) continue;  // it is being filled
    auto base = Map(path, *fd, kHeaderBytes, PROT_READ | PROT_WRITE);
    if (!base.ok()) continue;
    buffer.base = *base;
    buffer.size = kHeaderBytes;
    if (buffer.Has(tag)) buffer.header()->complete.store(0, std::memory_order_release);
  }
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
  for (const char* end : {"-0", "-1", "-turn"}) std::filesystem::remove(folder + "/" + name + end, error);
  std::filesystem::remove(folder, error);  // if nothing else is there
  RemoveAround(folder);
}

void SharedBlock::RemoveAll(const std::string& folder) {
  std::error_code error;  // what is not there need not be removed
  std::filesystem::remove_all(folder, error);
  RemoveAround(folder);
}

}  // namespace tidepool::workers
