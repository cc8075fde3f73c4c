// Each run of a test binary has a folder of its own for what testing::TempDir() names: the same binary may
// run twice at a time (on several devices, in several build folders).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (std::getenv("TEST_TMPDIR") != nullptr) return RUN_ALL_TESTS();  // asked for, or a death test's process
  std::string folder = testing::TempDir() + "tidepool-tests-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr || setenv("TEST_TMPDIR", folder.c_str(), 1) != 0) {
    std::perror(folder.c_str());
    return 1;
  }
  const int failed = RUN_ALL_TESTS();
  std::error_code ignored;  // what is left in it is of no use to anybody
  std::filesystem::remove_all(folder, ignored);
  return failed;
}
