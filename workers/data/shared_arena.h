#pragma once
// Named shared memory of a run: published weights and recovery copies, written by one process and
// read by others on the same host, alive when its writer is not.
//
// A block is two buffers and a header each: the writer fills the older one, then marks it complete
// with what it holds, so a reader or a crash never sees a torn one as whole. Files live in /dev/shm
// under the run's own folder and are removed by RemoveAll at the end of the run.
// One writer; readers check tag and digest.
//
// Everybody may make names in /dev/shm. So the folder's name is made from a secret of the run and cannot be
// guessed; it has mode 0700, its files 0600; and who opens one looks whether it is a plain file or folder of
// this user that nobody else can enter. kPermissionDenied: it is not.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

class SharedBlock {
 public:
  // `folder`: FolderOf this run.
  SharedBlock(std::string folder, std::string name);
  ~SharedBlock();

  // Copies `parts` into the older buffer. Errors of Begin.
  Status Write(BlockTag tag, const std::vector<device::ByteSource>& parts);
  // The same in two: the older buffer of tag.bytes bytes, which is filled, and whole from Complete on.
  // kResourceExhausted: /dev/shm is full (with the numbers).
  struct Memory {
    std::shared_ptr<const void> owner;
    std::span<std::byte> bytes;
  };
  StatusOr<Memory> Begin(const BlockTag& tag);
  void Complete();  // requires Begin
  // A complete buffer where it stands, with this number and lineage (any lineage: -1). kNotFound: there is
  // none.
  class View {
   public:
    [[nodiscard]] virtual const BlockTag& tag() const = 0;
    [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
    [[nodiscard]] virtual bool same() const = 0;  // it has not been written since
    virtual ~View() = default;
  };
  StatusOr<std::shared_ptr<const View>> Open(int64_t number, int32_t lineage) const;
  // Copies what Open finds into `out` (sizes must add up). kDataLoss: another size; kUnavailable: it was
  // written meanwhile.
  StatusOr<BlockTag> Read(int64_t number, int32_t lineage, const std::vector<device::ByteStore>& out) const;

  // "/dev/shm/tidepool-<uid>-<digits>". `secret`: of the run. A copy of a run folder has the same secret, so
  // the digits follow from the folder itself, too: wherever it is moved to, it is another one than its copy.
  static std::string FolderOf(const std::string& run_dir, const std::string& secret);
  static void RemoveAll(const std::string& folder);
  static void Remove(const std::string& folder, const std::string& name);  // a block of it

 private:
  struct Buffer;
  std::string dir_;
  std::string name_;
  std::shared_ptr<Buffer> buffers_[2];
  std::shared_ptr<Buffer> filling_;  // since Begin
};

}  // namespace tidepool::workers
