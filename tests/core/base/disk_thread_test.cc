#include "core/base/disk_thread.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace tidepool {
namespace {

struct Global {
  ~Global() { ::_exit(99); }
};

TEST(DiskThreadTest, AProcessThatGaveUpWhatHangsEndsWithItsExitCodeAndTakesNoGlobalsAway) {
  EXPECT_EXIT(
      {
        static const Global global;
        {
          DiskThread thread;
          thread.Do("what hangs",
                    [](const DiskThread::Say&) { std::this_thread::sleep_for(std::chrono::minutes(5)); });
        }
        std::exit(3);
      },
      testing::ExitedWithCode(3), "");
}

TEST(DiskThreadTest, OneThatDidItsWorkChangesNothing) {
  EXPECT_EXIT(
      {
        static const Global global;
        {
          DiskThread thread;
          thread.Do("work", [](const DiskThread::Say&) {});
        }
        std::exit(3);
      },
      testing::ExitedWithCode(99), "");
}

}  // namespace
}  // namespace tidepool
