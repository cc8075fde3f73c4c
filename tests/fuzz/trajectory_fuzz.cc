// Trajectories and segments: what is taken encodes to the bytes that it was read from.
#include "core/base/check.h"
#include "core/sample/codec.h"
#include "core/storage/payload_v1.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  const std::string bytes(fuzz::View(data, size));
  if (const auto t = sample::Decode(bytes); t.ok()) TP_CHECK(*sample::Encode(*t) == bytes);
  if (const auto s = sample::DecodeSegment(bytes); s.ok()) TP_CHECK(sample::Encode(*s) == bytes);
  (void)storage::DecodePayloadV1(bytes);
  return 0;
}
