#include "workers/worker_variables.h"

#include <algorithm>
#include <iterator>

namespace tidepool::workers {
namespace {

constexpr std::string_view kNames[] = {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH"};
// Sanitizers and the allocator read theirs in builds for tests.
constexpr std::string_view kPrefixes[] = {"LC_",       "OMP_",  "GOMP_",   "KMP_",  "MKL_",     "ONEDNN_",
                                          "TIDEPOOL_", "CUDA_", "NVIDIA_", "NCCL_", "PYTORCH_", "GRPC_",
                                          "ASAN_",     "LSAN_", "UBSAN_",  "TSAN_"};

}  // namespace

bool IsForWorkers(std::string_view entry) {
  const std::string_view name = entry.substr(0, entry.find('='));
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace tidepool::workers
