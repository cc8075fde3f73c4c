#include "core/files/float_formats.h"

#include "core/base/check.h"

namespace tidepool::files {

void FloatsToBf16(std::span<const float> in, std::span<uint16_t> out) {
  TP_CHECK(in.size() == out.size()) << in.size() << " values for " << out.size() << " places";
  for (size_t i = 0; i < in.size(); ++i) out[i] = FloatToBf16(in[i]);
}

}  // namespace tidepool::files
