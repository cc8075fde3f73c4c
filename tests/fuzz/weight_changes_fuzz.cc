// What differs between two versions of weights, as another host says it: what is taken codes to the same
// weights.
#include <span>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/weight_changes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  if (size < 2) return 0;
  const int64_t word_bytes = data[0] % 2 == 0 ? 2 : 4;
  std::vector<std::byte> base(1 + size_t{data[1]} * 3);
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * i);
  std::vector<std::byte> now(base.size()), again(base.size());
  if (!ApplyChanges(std::as_bytes(std::span(data, size)).subspan(2), base, word_bytes, now)) return 0;
  std::string coded;
  if (!CodeChanges(base, now, word_bytes, coded)) return 0;
  TP_CHECK(coded.size() < base.size());
  TP_CHECK(ApplyChanges(std::as_bytes(std::span(coded)), base, word_bytes, again));
  TP_CHECK(again == now);
  return 0;
}
