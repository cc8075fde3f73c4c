#include "core/base/process_memory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace tidepool {
namespace {

int64_t OfStatus(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::strtoll(line.c_str() + field.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

int64_t PrivateResidentBytes() { return OfStatus("RssAnon:"); }
int64_t PeakResidentBytes() { return OfStatus("VmHWM:"); }

}  // namespace tidepool
