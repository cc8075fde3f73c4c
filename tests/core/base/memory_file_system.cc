#include "tests/core/base/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/rng.h"

namespace tidepool {
namespace {

struct Node;
using NodePtr = std::shared_ptr<Node>;
// Names that change together; null: the name goes away.
using NameChange = std::vector<std::pair<std::string, NodePtr>>;

struct Node {
  bool is_directory = false;
  // File. Durable is `content` up to `synced`, or `before_cut` if it was cut below that since.
  std::string content;
  size_t synced = 0;
  std::optional<std::string> before_cut;
  int64_t reserved = 0;  // bytes of capacity beyond the content
  int64_t links = 1;     // names of it
  int64_t cut = 0;       // the power cut that it has been through last
  // Folder.
  std::map<std::string, NodePtr> names, durable_names;
  std::vector<NameChange> unsynced_changes;
};

NodePtr NewFolder() {
  auto node = std::make_shared<Node>();
  node->is_directory = true;
  return node;
}

void Apply(const NameChange& change, std::map<std::string, NodePtr>& names) {
  for (const auto& [name, node] : change) {
    if (node != nullptr) {
      names[name] = node;
    } else {
      names.erase(name);
    }
  }
}

std::vector<std::string> Parts(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, slash);
    if (!part.empty() && part != ".") parts.emplace_back(part);
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

Status Gone(std::string_view path) {
  return Unavailable(std::string(path) +
                     ": the machine went down (fault injection); open it again after the restart");
}

}  // namespace

struct MemoryFileSystem::Disk {
  std::mutex mu;
  NodePtr root = NewFolder();
  MemoryFaults faults;
  Rng rng{1};
  int64_t operations = 0;
  int64_t used = 0;
  int64_t generation = 0;  // of handles: raised by Crash and Kill
  bool down = false;
  Duration busy{0};
  std::map<NodePtr, std::string> locks;  // file, whatever its name is now -> holder

  // Counts an operation. ok: do it. Else the error; `half_done` is set where the machine goes down now.
  Status Begin(std::string_view doing, std::string_view path, bool* half_done) {
    *half_done = false;
    if (down) return Gone(path);
    const int64_t number = operations++;
    busy += faults.operation_time;
    if (number == faults.crash_at_operation) {
      down = true;
      *half_done = rng.Chance(0.5);
      return Gone(path);
    }
    if (number == faults.fail_operation) return FileError(faults.fail_errno, doing, path);
    if (faults.error_chance > 0 && rng.Chance(faults.error_chance)) return FileError(EIO, doing, path);
    return OkStatus();
  }

  NodePtr Find(const std::vector<std::string>& parts) const {
    NodePtr at = root;
    for (const std::string& part : parts) {
      if (!at->is_directory) return nullptr;
      const auto it = at->names.find(part);
      if (it == at->names.end()) return nullptr;
      at = it->second;
    }
    return at;
  }

  // The folder that holds the last part of `path`, and that part.
  struct Place {
    NodePtr dir;
    std::string name;
    NodePtr node;  // null: the name is free
  };
  StatusOr<Place> Locate(const std::string& path, std::string_view doing) const {
    std::vector<std::string> parts = Parts(path);
    if (parts.empty()) return FileError(EISDIR, doing, path);
    Place place{.dir = nullptr, .name = parts.back(), .node = nullptr};
    parts.pop_back();
    place.dir = Find(parts);
    if (place.dir == nullptr) return FileError(ENOENT, doing, path);
    if (!place.dir->is_directory) return FileError(ENOTDIR, doing, path);
    if (const auto it = place.dir->names.find(place.name); it != place.dir->names.end())
      place.node = it->second;
    return place;
  }

  static void Change(Node& dir, NameChange change) {
    Apply(change, dir.names);
    dir.unsynced_changes.push_back(std::move(change));
  }

  [[nodiscard]] bool Fits(int64_t more) const {
    return faults.capacity_bytes < 0 || used + more <= faults.capacity_bytes;
  }
  void Free(Node& node) {
    if (--node.links == 0) used -= static_cast<int64_t>(node.content.size()) + node.reserved;
  }

  void PowerCut(Node& node) {
    if (!node.is_directory) {
      if (std::exchange(node.cut, generation) == generation) {
        ++node.links;
        return;
      }
      node.links = 1;
      CutFile(node);
      used += static_cast<int64_t>(node.content.size());
      return;
    }
    const int64_t kept = rng.InRange(0, static_cast<int64_t>(node.unsynced_changes.size()));
    for (int64_t i = 0; i < kept; ++i)
      Apply(node.unsynced_changes[static_cast<size_t>(i)], node.durable_names);
    node.unsynced_changes.clear();
    node.names = node.durable_names;
    for (auto& [name, child] : node.names) PowerCut(*child);
  }

  void CutFile(Node& node) {
    node.reserved = 0;
    if (node.before_cut.has_value() && rng.Chance(0.5)) {
      node.content = *node.before_cut;
    } else {
      const size_t safe = std::min(node.synced, node.content.size());
      const auto at_risk = static_cast<int64_t>(node.content.size() - safe);
      const int64_t fate = rng.Below(4);
      if (fate == 0) node.content.resize(safe);
      if (fate == 1 || fate == 2) node.content.resize(safe + static_cast<size_t>(rng.InRange(0, at_risk)));
      if (fate == 2 && node.content.size() > safe) {  // a hole: later pages came first
        const auto tail = static_cast<int64_t>(node.content.size() - safe);
        const int64_t from = rng.Below(tail);
        const int64_t n = rng.InRange(1, tail - from);
        std::fill_n(node.content.begin() + static_cast<std::ptrdiff_t>(safe) + from, n, '\0');
      }
    }
    node.synced = node.content.size();
    node.before_cut.reset();
  }

  void DropHandles() {
    ++generation;
    locks.clear();
    down = false;
  }
};

namespace {

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(std::shared_ptr<MemoryFileSystem::Disk> disk, NodePtr node, std::string path)
      : disk_(std::move(disk)),
        node_(std::move(node)),
        path_(std::move(path)),
        generation_(disk_->generation) {}
  ~MemoryWritableFile() override {
    const std::lock_guard lock(disk_->mu);
    if (generation_ != disk_->generation) return;
    disk_->used -= node_->reserved;
    node_->reserved = 0;
  }

  Status Append(std::string_view bytes) override {
    const std::lock_guard lock(disk_->mu);
    bool half_done = false;
    Status status = Begin("write", &half_done);
    if (!status.ok()) {
      if (half_done && !bytes.empty())
        Write(bytes.substr(0, static_cast<size_t>(disk_->rng.Below(static_cast<int64_t>(bytes.size())))));
      return status;
    }
    const auto more = static_cast<int64_t>(bytes.size());
    if (!disk_->Fits(std::max<int64_t>(more - node_->reserved, 0))) {
      const int64_t room =
          disk_->faults.capacity_bytes - disk_->used + node_->reserved;  // a short write, as a disk does
      Write(bytes.substr(0, static_cast<size_t>(std::clamp<int64_t>(room, 0, more))));
      return FileError(ENOSPC, "write", path_);
    }
    Write(bytes);
    return OkStatus();
  }

  Status Sync() override {
    const std::lock_guard lock(disk_->mu);
    bool half_done = false;
    TP_RETURN_IF_ERROR(Begin("make writes durable", &half_done));
    node_->synced = node_->content.size();
    node_->before_cut.reset();
    return OkStatus();
  }

  Status Preallocate(int64_t bytes) override {
    const std::lock_guard lock(disk_->mu);
    bool half_done = false;
    TP_RETURN_IF_ERROR(Begin("reserve space", &half_done));
    const int64_t more = bytes - node_->reserved;
    if (more <= 0) return OkStatus();
    if (!disk_->Fits(more)) return FileError(ENOSPC, "reserve " + std::to_string(bytes) + " bytes", path_);
    node_->reserved += more;
    disk_->used += more;
    return OkStatus();
  }

  Status Truncate(int64_t size) override {
    const std::lock_guard lock(disk_->mu);
    TP_CHECK(size >= 0 && size <= static_cast<int64_t>(node_->content.size())) << path_ << ": " << size;
    bool half_done = false;
    TP_RETURN_IF_ERROR(Begin("cut", &half_done));
    if (static_cast<size_t>(size) < node_->synced) {
      if (!node_->before_cut.has_value()) node_->before_cut = node_->content.substr(0, node_->synced);
      node_->synced = static_cast<size_t>(size);
    }
    disk_->used -= static_cast<int64_t>(node_->content.size()) - size + node_->reserved;
    node_->reserved = 0;
    node_->content.resize(static_cast<size_t>(size));
    return OkStatus();
  }

  [[nodiscard]] int64_t size() const override {
    const std::lock_guard lock(disk_->mu);
    return static_cast<int64_t>(node_->content.size());
  }

 private:
  Status Begin(std::string_view doing, bool* half_done) {
    if (generation_ != disk_->generation) return Gone(path_);
    return disk_->Begin(doing, path_, half_done);
  }
  void Write(std::string_view bytes) {
    const auto more = static_cast<int64_t>(bytes.size());
    const int64_t from_reserve = std::min(more, node_->reserved);
    node_->reserved -= from_reserve;
    disk_->used += more - from_reserve;
    node_->content.append(bytes);
  }

  std::shared_ptr<MemoryFileSystem::Disk> disk_;
  NodePtr node_;
  std::string path_;
  int64_t generation_;
};

class MemoryReadableFile : public ReadableFile {
 public:
  MemoryReadableFile(std::shared_ptr<MemoryFileSystem::Disk> disk, NodePtr node, std::string path)
      : disk_(std::move(disk)),
        node_(std::move(node)),
        path_(std::move(path)),
        generation_(disk_->generation) {}

  StatusOr<std::string> ReadAt(int64_t offset, int64_t bytes) override {
    const std::lock_guard lock(disk_->mu);
    if (disk_->down || generation_ != disk_->generation) return Gone(path_);
    if (offset >= static_cast<int64_t>(node_->content.size())) return std::string();
    return node_->content.substr(static_cast<size_t>(offset), static_cast<size_t>(bytes));
  }
  StatusOr<int64_t> Size() override {
    const std::lock_guard lock(disk_->mu);
    if (disk_->down || generation_ != disk_->generation) return Gone(path_);
    return static_cast<int64_t>(node_->content.size());
  }

 private:
  std::shared_ptr<MemoryFileSystem::Disk> disk_;
  NodePtr node_;
  std::string path_;
  int64_t generation_;
};

class MemoryFileLock : public FileLock {
 public:
  MemoryFileLock(std::shared_ptr<MemoryFileSystem::Disk> disk, NodePtr file)
      : disk_(std::move(disk)), file_(std::move(file)), generation_(disk_->generation) {}
  ~MemoryFileLock() override {
    const std::lock_guard lock(disk_->mu);
    if (generation_ == disk_->generation) disk_->locks.erase(file_);
  }
  [[nodiscard]] bool IsAt(const std::string& path) const override {
    const std::lock_guard lock(disk_->mu);
    return disk_->Find(Parts(path)) == file_;
  }

 private:
  std::shared_ptr<MemoryFileSystem::Disk> disk_;
  NodePtr file_;
  int64_t generation_;
};

}  // namespace

MemoryFileSystem::MemoryFileSystem(const MemoryFaults& faults) : disk_(std::make_shared<Disk>()) {
  SetFaults(faults);
}
MemoryFileSystem::~MemoryFileSystem() = default;

void MemoryFileSystem::SetFaults(const MemoryFaults& faults) {
  const std::lock_guard lock(disk_->mu);
  disk_->faults = faults;
  disk_->rng = Rng(faults.seed).Fork("memory_file_system");
  disk_->operations = 0;
}

int64_t MemoryFileSystem::operations() const {
  const std::lock_guard lock(disk_->mu);
  return disk_->operations;
}

bool MemoryFileSystem::crashed() const {
  const std::lock_guard lock(disk_->mu);
  return disk_->down;
}

Duration MemoryFileSystem::busy() const {
  const std::lock_guard lock(disk_->mu);
  return disk_->busy;
}

void MemoryFileSystem::Crash() {
  const std::lock_guard lock(disk_->mu);
  disk_->DropHandles();
  disk_->used = 0;
  disk_->PowerCut(*disk_->root);
}

void MemoryFileSystem::Kill() {
  const std::lock_guard lock(disk_->mu);
  disk_->DropHandles();
}

void MemoryFileSystem::FlipByte(const std::string& path, int64_t offset, uint8_t mask) {
  const std::lock_guard lock(disk_->mu);
  const NodePtr node = disk_->Find(Parts(path));
  TP_CHECK(node != nullptr && offset < static_cast<int64_t>(node->content.size()))
      << path << " at " << offset;
  char& byte = node->content[static_cast<size_t>(offset)];
  byte = static_cast<char>(static_cast<uint8_t>(byte) ^ mask);
}

StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::OpenForAppend(const std::string& path,
                                                                        FileAccess access) {
  {
    const std::lock_guard lock(disk_->mu);
    if (disk_->down) return Gone(path);
    const NodePtr node = disk_->Find(Parts(path));
    if (node != nullptr) {
      if (node->is_directory) return FileError(EISDIR, "open for writing", path);
      return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(disk_, node, path));
    }
  }
  return CreateNew(path, access);
}

StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::CreateNew(const std::string& path,
                                                                    FileAccess access) {
  const std::lock_guard lock(disk_->mu);
  TP_ASSIGN_OR_RETURN(const Disk::Place place, disk_->Locate(path, "create"));
  if (place.node != nullptr) return FileError(EEXIST, "create", path);
  bool half_done = false;
  Status status = disk_->Begin("create", path, &half_done);
  if (!status.ok() && !half_done) return status;
  const auto node = std::make_shared<Node>();
  Disk::Change(*place.dir, {{place.name, node}});
  if (!status.ok()) return status;
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(disk_, node, path));
}

StatusOr<std::unique_ptr<ReadableFile>> MemoryFileSystem::OpenForRead(const std::string& path) {
  const std::lock_guard lock(disk_->mu);
  if (disk_->down) return Gone(path);
  const NodePtr node = disk_->Find(Parts(path));
  if (node == nullptr) return FileError(ENOENT, "open for reading", path);
  if (node->is_directory) return FileError(EISDIR, "open for reading", path);
  return std::unique_ptr<ReadableFile>(std::make_unique<MemoryReadableFile>(disk_, node, path));
}

StatusOr<FileInfo> MemoryFileSystem::Stat(const std::string& path) {
  const std::lock_guard lock(disk_->mu);
  if (disk_->down) return Gone(path);
  const NodePtr node = disk_->Find(Parts(path));
  FileInfo info;
  if (node == nullptr) return info;
  info.exists = true;
  info.is_directory = node->is_directory;
  info.bytes = static_cast<int64_t>(node->content.size());
  return info;
}

StatusOr<std::vector<std::string>> MemoryFileSystem::List(const std::string& dir) {
  const std::lock_guard lock(disk_->mu);
  if (disk_->down) return Gone(dir);
  const NodePtr node = disk_->Find(Parts(dir));
  if (node == nullptr) return FileError(ENOENT, "list folder", dir);
  if (!node->is_directory) return FileError(ENOTDIR, "list folder", dir);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

Status MemoryFileSystem::MakeDirectory(const std::string& dir) {
  const std::lock_guard lock(disk_->mu);
  if (Parts(dir).empty()) return FileError(EEXIST, "create folder", dir);
  TP_ASSIGN_OR_RETURN(const Disk::Place place, disk_->Locate(dir, "create folder"));
  if (place.node != nullptr) return FileError(EEXIST, "create folder", dir);
  bool half_done = false;
  Status status = disk_->Begin("create folder", dir, &half_done);
  if (status.ok() || half_done) Disk::Change(*place.dir, {{place.name, NewFolder()}});
  return status;
}

Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(disk_->mu);
  const std::string doing = "rename to " + to;
  TP_ASSIGN_OR_RETURN(const Disk::Place source, disk_->Locate(from, doing));
  TP_ASSIGN_OR_RETURN(const Disk::Place target, disk_->Locate(to, doing));
  if (source.node == nullptr) return FileError(ENOENT, doing, from);
  if (target.node == source.node) return OkStatus();
  if (target.node != nullptr) {
    if (target.node->is_directory != source.node->is_directory) {
      return FileError(target.node->is_directory ? EISDIR : ENOTDIR, doing, from);
    }
    if (!target.node->names.empty()) return FileError(ENOTEMPTY, doing, from);
  }
  bool half_done = false;
  Status status = disk_->Begin(doing, from, &half_done);
  if (!status.ok() && !half_done) return status;
  if (target.node != nullptr) disk_->Free(*target.node);
  if (source.dir == target.dir) {
    Disk::Change(*source.dir, {{source.name, nullptr}, {target.name, source.node}});
  } else {
    Disk::Change(*target.dir, {{target.name, source.node}});
    Disk::Change(*source.dir, {{source.name, nullptr}});
  }
  return status;
}

Status MemoryFileSystem::Link(const std::string& from, const std::string& to) {
  const std::lock_guard lock(disk_->mu);
  const std::string doing = "give the name " + to + " to";
  TP_ASSIGN_OR_RETURN(const Disk::Place source, disk_->Locate(from, doing));
  TP_ASSIGN_OR_RETURN(const Disk::Place target, disk_->Locate(to, doing));
  if (source.node == nullptr) return FileError(ENOENT, doing, from);
  if (source.node->is_directory) return FileError(EPERM, doing, from);
  if (target.node != nullptr) return FileError(EEXIST, doing, to);
  bool half_done = false;
  Status status = disk_->Begin(doing, from, &half_done);
  if (!status.ok() && !half_done) return status;
  ++source.node->links;
  Disk::Change(*target.dir, {{target.name, source.node}});
  return status;
}

Status MemoryFileSystem::SyncFile(const std::string& path) {
  {
    const std::lock_guard lock(disk_->mu);
    if (disk_->down) return Gone(path);
    if (disk_->Find(Parts(path)) == nullptr) return FileError(ENOENT, "open", path);
  }
  TP_ASSIGN_OR_RETURN(const auto file, OpenForAppend(path));
  return file->Sync();
}

Status MemoryFileSystem::RemoveFile(const std::string& path) {
  const std::lock_guard lock(disk_->mu);
  TP_ASSIGN_OR_RETURN(const Disk::Place place, disk_->Locate(path, "remove"));
  if (place.node == nullptr) return FileError(ENOENT, "remove", path);
  if (place.node->is_directory) return FileError(EISDIR, "remove", path);
  bool half_done = false;
  Status status = disk_->Begin("remove", path, &half_done);
  if (!status.ok() && !half_done) return status;
  disk_->Free(*place.node);
  Disk::Change(*place.dir, {{place.name, nullptr}});
  return status;
}

Status MemoryFileSystem::RemoveDirectory(const std::string& dir) {
  const std::lock_guard lock(disk_->mu);
  TP_ASSIGN_OR_RETURN(const Disk::Place place, disk_->Locate(dir, "remove folder"));
  if (place.node == nullptr) return FileError(ENOENT, "remove folder", dir);
  if (!place.node->is_directory) return FileError(ENOTDIR, "remove folder", dir);
  if (!place.node->names.empty()) return FileError(ENOTEMPTY, "remove folder", dir);
  bool half_done = false;
  Status status = disk_->Begin("remove folder", dir, &half_done);
  if (status.ok() || half_done) Disk::Change(*place.dir, {{place.name, nullptr}});
  return status;
}

Status MemoryFileSystem::SyncDir(const std::string& dir) {
  const std::lock_guard lock(disk_->mu);
  if (disk_->down) return Gone(dir);
  const NodePtr node = disk_->Find(Parts(dir));
  if (node == nullptr) return FileError(ENOENT, "open folder", dir);
  if (!node->is_directory) return FileError(ENOTDIR, "open folder", dir);
  bool half_done = false;
  TP_RETURN_IF_ERROR(disk_->Begin("make names durable in", dir, &half_done));
  node->durable_names = node->names;
  node->unsynced_changes.clear();
  return OkStatus();
}

StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::Lock(const std::string& path, const std::string& who) {
  TP_ASSIGN_OR_RETURN(const auto file, OpenForAppend(path, FileAccess::kShared));
  const std::lock_guard lock(disk_->mu);
  const NodePtr node = disk_->Find(Parts(path));
  if (node == nullptr) return FileError(ENOENT, "lock", path);
  const auto [it, free] = disk_->locks.try_emplace(node, who);
  if (!free) {
    return FailedPrecondition(path + ": locked by " + it->second +
                              "; wait until it ends or stop it, or use another folder");
  }
  return std::unique_ptr<FileLock>(std::make_unique<MemoryFileLock>(disk_, node));
}

StatusOr<int64_t> MemoryFileSystem::FreeBytes(const std::string& path) {
  const std::lock_guard lock(disk_->mu);
  if (disk_->down) return Gone(path);
  if (disk_->Find(Parts(path)) == nullptr) return FileError(ENOENT, "read the free space of", path);
  return disk_->faults.capacity_bytes < 0 ? INT64_MAX
                                          : std::max<int64_t>(disk_->faults.capacity_bytes - disk_->used, 0);
}

}  // namespace tidepool
