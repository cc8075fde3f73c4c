#include "core/base/field_bytes.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/base/rng.h"

namespace tidepool {
namespace {

int64_t Read(std::string_view bytes, bool* ok) {
  ByteReader reader(bytes);
  const int64_t x = GetShort(reader);
  *ok = reader.ok() && reader.left() == 0;
  return x;
}

TEST(ShortNumbersTest, EveryNumberComesBackInItsFewestBytes) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    int64_t x = static_cast<int64_t>(rng.Next()) >> rng.Below(64);
    if (i < 2) x = i == 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    std::string bytes;
    PutShort(bytes, x);
    size_t fewest = 1;  // seven bits a byte
    for (int64_t most = 63; fewest < 10 && (x < -most - 1 || x > most); ++fewest) {
      if (fewest < 9) most = most * 128 + 127;
    }
    EXPECT_EQ(bytes.size(), fewest) << x;
    bool ok = false;
    EXPECT_EQ(Read(bytes, &ok), x);
    EXPECT_TRUE(ok) << x;
    (void)Read(std::string_view(bytes).substr(0, bytes.size() - 1), &ok);
    EXPECT_FALSE(ok) << "it is cut short";
    // The same number in one byte more.
    bytes.back() = static_cast<char>(bytes.back() | 0x80);
    bytes.push_back(0);
    (void)Read(bytes, &ok);
    EXPECT_FALSE(ok) << x;
  }
}

struct Texts : FieldReader<Texts, true> {
  template <typename T>
  void operator()(const char*, T& x, size_t = 0) {
    Get(x);
  }
};

TEST(ShortNumbersTest, ANumberThatDoesNotFitItsFieldAndACountThatDoesNotFitTheBytesFail) {
  std::string wide;
  PutShort(wide, int64_t{1} << 31);
  Texts reader{{ByteReader(wide)}};
  int32_t narrow = 0;
  reader.Get(narrow);
  EXPECT_FALSE(reader.reader.ok());
  for (const int64_t count : {int64_t{-1}, int64_t{3}, int64_t{1} << 62}) {
    std::string bytes;
    PutShort(bytes, count);
    bytes += "ab";
    Texts list{{ByteReader(bytes)}};
    std::vector<int32_t> items;
    list.Get(items);
    EXPECT_FALSE(list.reader.ok()) << count;
    EXPECT_TRUE(items.empty());
  }
}

}  // namespace
}  // namespace tidepool
