#include "tests/bench/timed_device.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace tidepool::bench {

void TimedDevice::Print(const std::string& what) {
  timing_ = false;
  const auto memory = of_->Allocate(64).value();
  auto* one = static_cast<float*>(memory->data());
  const double least = Seconds(repeats_, [&] { of_->Sigmoid({.n = 1, .x = one}); });
  std::vector<std::pair<std::string, Part>> parts(parts_.begin(), parts_.end());
  std::ranges::sort(parts, std::greater(), [](const auto& p) { return p.second.seconds; });
  double all = 0;
  int64_t launches = 0;
  for (const auto& [name, part] : parts) {
    all += part.seconds;
    launches += part.launches;
  }
  std::printf("== parts of %s: %ld calls, %.0f us one after the other; the least a call takes: %.1f us\n",
              what.c_str(), static_cast<long>(launches), 1e6 * all, 1e6 * least);
  for (const auto& [name, part] : parts) {
    std::printf("%-40s %6ld calls %9.1f us each %10.0f us in all", name.c_str(),
                static_cast<long>(part.launches), 1e6 * part.seconds / static_cast<double>(part.launches),
                1e6 * part.seconds);
    if (part.bytes > 0)
      std::printf(" %8.0f GB/s of the matrix", 1e-9 * static_cast<double>(part.bytes) / part.seconds);
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace tidepool::bench
