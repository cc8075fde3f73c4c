#include "core/storage/s3_module.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace tidepool::storage {
namespace {

StatusOr<S3OpenFunction*> Load() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (self.parent_path() / "libtidepool_s3.so").string();
  if (!std::filesystem::exists(path, error)) {
    return FailedPrecondition("this build has no S3 (" + path +
                              " is not there); `make s3` builds it, or name a shared "
                              "directory as checkpoint.store");
  }
  // Arrow has a TLS library of its own, which is not to call into that of the program.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition(
        path + ": cannot be loaded: " + (why == nullptr ? "no reason given" : why) +
        "; a build needs .deps/arrow of scripts/setup --s3, a wheel needs pyarrow beside it (pip install "
        "'tidepool[s3]')");
  }
  auto* abi = reinterpret_cast<S3AbiFunction*>(dlsym(library, "tidepool_s3_abi"));
  auto* open = reinterpret_cast<S3OpenFunction*>(dlsym(library, "tidepool_s3_open"));
  if (abi == nullptr || open == nullptr || abi() != TIDEPOOL_S3_INTERFACE)
    return FailedPrecondition(path + ": is of other sources than this program; build both again");
  return open;
}

}  // namespace

StatusOr<std::unique_ptr<CheckpointStore>> OpenS3Store(const StorePlace& place) {
  static const StatusOr<S3OpenFunction*> open = Load();
  if (!open.ok()) return open.status();
  S3Opened opened = Internal("libtidepool_s3.so gave no answer");
  (*open)(&place, &opened);
  return opened;
}

}  // namespace tidepool::storage
