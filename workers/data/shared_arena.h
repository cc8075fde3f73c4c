#pragma once
// Named shared memory of a run: published weights and recovery copies, written by one process and
// read by others on the same host, alive when its writer is not.
//
// A block is two buffers and a header each: the writer fills one, then marks it complete with what it holds,
// so a reader or a crash never sees a torn one as whole. Files live in /dev/shm under the run's own folder
// and are removed by RemoveAll at the end of the run. Readers check tag and digest.
//
// Several processes of a host may bring weights there. A buffer that one of them fills, or that somebody
// reads (Filling, View, Hold), is locked, so no other fills it; locks end with their process. The block fills
// the older one of those that nobody has. A buffer is mapped for as long as the block, or one of these, has
// it.
//
// Everybody may make names in /dev/shm. So the folder's name is made from a secret of the run and cannot be
// guessed; it has mode 0700, its files 0600; and who opens one looks whether it is a plain file or folder of
// this user that nobody else can enter. kPermissionDenied: it is not.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/device/byte_store.h"

namespace tidepool::workers {

struct BlockTag {
  int64_t number = -1;  // step or version number
  int32_t lineage = 0;
  uint64_t digest = 0;  // of the bytes that matter, as the writer knows it
  int64_t bytes = 0;
};

// The block of the model that adapters are on (host_base.h).
inline constexpr const char* kBaseBlock = "base";

class SharedBlock {
  struct Buffer;

 public:
  // `folder`: FolderOf this run.
  SharedBlock(std::string folder, std::string name);
  ~SharedBlock();

  // Copies `parts` into a buffer. Errors of Begin.
  Status Write(BlockTag tag, const std::vector<device::ByteSource>& parts);
  // The same in two: a buffer of tag.bytes bytes, to be filled, and whole from Complete on, when others may
  // fill it with something else. Hold, on any thread, keeps them from it for as long as what it returns
  // lives; null: it has something else by now. kResourceExhausted: /dev/shm is full (with the numbers).
  // kUnavailable: both buffers are in use.
  class Filling {
   public:
    [[nodiscard]] const BlockTag& tag() const { return tag_; }
    [[nodiscard]] std::span<std::byte> bytes() const;
    void Complete();
    [[nodiscard]] std::shared_ptr<const void> Hold() const;

   private:
    friend class SharedBlock;
    Filling(std::shared_ptr<Buffer> buffer, std::shared_ptr<const void> fills, const BlockTag& tag)
        : buffer_(std::move(buffer)), fills_(std::move(fills)), tag_(tag) {}
    std::shared_ptr<Buffer> buffer_;
    std::shared_ptr<const void> fills_;  // null: it is complete
    BlockTag tag_;
  };
  // kNewest: the newest complete buffer is in use, too.
  enum class Keep : uint8_t { kNothing, kNewest };
  StatusOr<Filling> Begin(const BlockTag& tag, Keep keep = Keep::kNothing);
  // A complete buffer where it stands, with this number and lineage (any lineage: -1). kNotFound: there is
  // none.
  class View {
   public:
    [[nodiscard]] virtual const BlockTag& tag() const = 0;
    [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
    virtual ~View() = default;
  };
  StatusOr<std::shared_ptr<const View>> Open(int64_t number, int32_t lineage) const;
  // The newest one whose tag `fits`.
  StatusOr<std::shared_ptr<const View>> OpenNewest(const std::function<bool(const BlockTag&)>& fits) const;
  // Copies what Open finds into `out` (sizes must add up). kDataLoss: another size.
  StatusOr<BlockTag> Read(int64_t number, int32_t lineage, const std::vector<device::ByteStore>& out) const;
  // A complete buffer that has not what its tag says is not complete from now on, for anybody.
  void Reject(const BlockTag& tag) const;

  // "/dev/shm/tidepool-<uid>-<digits>". `secret`: of the run. A copy of a run folder has the same secret, so
  // the digits follow from the folder itself, too: wherever it is moved to, it is another one than its copy.
  // What a folder's numbers are differs from host to host, so the controller alone makes this name and tells
  // it.
  static std::string FolderOf(const std::string& run_dir, const std::string& secret);
  // Its part for the workers of one host, by the address that others reach them at: hosts that are containers
  // may have one /dev/shm.
  static std::string OfHost(const std::string& folder, const std::string& host);
  // Makes it where it is not there yet. Errors of a folder that cannot be used.
  static Status MakeFolderOf(const std::string& folder);
  // With all that is in it, and the folder around it if that is empty then.
  static void RemoveAll(const std::string& folder);
  static void Remove(const std::string& folder, const std::string& name);  // a block of it

 private:
  [[nodiscard]] std::string PathOf(int i) const;
  // As it is, without a lock. kNotFound.
  static StatusOr<std::shared_ptr<Buffer>> Look(const std::string& path);
  // Lets go of it in the end.
  static std::shared_ptr<const void> HeldBy(const std::shared_ptr<Buffer>& buffer);
  // To be filled. kUnavailable: somebody has it.
  StatusOr<std::shared_ptr<const void>> Take(int i, int64_t size);

  std::string dir_;
  std::string name_;
  std::shared_ptr<Buffer> buffers_[2];  // shared with Fillings; null: not mapped yet
};

}  // namespace tidepool::workers
