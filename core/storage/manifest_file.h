#pragma once
// A file of a checkpoint as its manifest names it, and the digest of one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/fields.h"
#include "core/base/file_system.h"
#include "core/base/status.h"

namespace tidepool::storage {

// SaltedSum(file, 0) of bytes that come in pieces of any size, in order.
class FileDigest {
 public:
  void Update(std::string_view bytes);
  void Update(std::span<const std::byte> bytes) {
    Update(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  [[nodiscard]] uint64_t Finish() const;

 private:
  uint64_t sum_ = 0;
  uint64_t words_ = 0;
  std::string partial_;  // < 8 bytes
};
// `go_on`: asked between pieces; false: kCancelled.
StatusOr<uint64_t> DigestFile(FileSystem& fs, const std::string& path,
                              const std::function<bool()>& go_on = {});

struct ManifestFile {
  std::string path;  // relative to the checkpoint's folder, '/' between parts
  int64_t bytes = 0;
  uint64_t digest = 0;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

TP_FIELDS(ManifestFile, path, bytes, digest)

}  // namespace tidepool::storage
