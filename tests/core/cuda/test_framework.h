#pragma once
// GoogleTest, or as little of it as these tests use, so that they build on a bare GPU machine
// (scripts/cuda-test defines TIDEPOOL_BARE_TEST).

#ifndef TIDEPOOL_BARE_TEST
#include <gtest/gtest.h>
#else

#include <cmath>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace bare {

struct Case {
  std::string name;
  void (*run)();
};
inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}
inline bool failed = false;
inline std::string skipped;

// Collects the streamed message; what happens with it is decided when the statement ends.
struct Message {
  std::ostringstream text;
  template <typename T>
  Message& operator<<(const T& value) {
    text << value;
    return *this;
  }
};
struct Failure {
  std::string where;
  void operator=(const Message& m) const {
    failed = true;
    std::cout << where << ": " << m.text.str() << "\n";
  }
};
struct Skip {
  void operator=(const Message& m) const {
    skipped = m.text.str().empty() ? "no reason given" : m.text.str();
  }
};
inline int Add(const char* suite, const char* name, void (*run)()) {
  Cases().push_back({std::string(suite) + "." + name, run});
  return 0;
}
inline int Main() {
  int bad = 0;
  for (const Case& c : Cases()) {
    failed = false;
    skipped.clear();
    c.run();
    std::cout << (failed            ? "FAILED  "
                  : skipped.empty() ? "OK      "
                                    : "SKIPPED ")
              << c.name << (skipped.empty() ? "" : " (" + skipped + ")") << "\n";
    bad += failed ? 1 : 0;
  }
  std::cout << Cases().size() << " tests, " << bad << " failed\n";
  return bad == 0 ? 0 : 1;
}

}  // namespace bare

#define BARE_WHERE std::string(__FILE__) + ":" + std::to_string(__LINE__)
#define TEST(suite, name)                                                             \
  static void suite##_##name();                                                       \
  static const int suite##_##name##_added = bare::Add(#suite, #name, suite##_##name); \
  static void suite##_##name()
#define EXPECT_TRUE(condition) \
  if (condition) {             \
  } else                       \
    bare::Failure{BARE_WHERE} = bare::Message() << "expected " #condition " "
#define EXPECT_FALSE(condition) EXPECT_TRUE(!(condition))
#define EXPECT_EQ(a, b) EXPECT_TRUE((a) == (b))
#define EXPECT_NEAR(a, b, tolerance) \
  EXPECT_TRUE(std::abs((a) - (b)) <= (tolerance)) << (a) << " and " << (b) << " "
#define ASSERT_TRUE(condition) \
  if (condition) {             \
  } else                       \
    return bare::Failure{BARE_WHERE} = bare::Message() << "expected " #condition " "
#define GTEST_SKIP() return bare::Skip{} = bare::Message()

#endif
