// Pages of a process as whoever asks them sees them.
#include "workers/net/watch_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/hash.h"
#include "workers/net/http_get.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;

struct Pages {
  explicit Pages(std::chrono::seconds turns_within = std::chrono::seconds(600))
      : pages(*WatchPages::Start(
            {.host = "127.0.0.1", .token_digest = Sha256Hex("token"), .turns_within = turns_within})) {}
  [[nodiscard]] HttpGot Get(const std::string& target, const std::string& token = "") const {
    const auto got =
        HttpGet({.address = pages->address(), .target = target, .credentials = {.token = token}});
    EXPECT_TRUE(got.ok()) << got.status().message();
    return got.ok() ? *got : HttpGot{};
  }
  std::unique_ptr<WatchPages> pages;
};

TEST(WatchPagesTest, ReadyIsWhoLacksNothing) {
  const Pages p;
  EXPECT_EQ(p.Get("/readyz").status, 503) << "it has said nothing yet";
  EXPECT_EQ(p.Get("/healthz").status, 200);
  p.pages->Show({}, {"worker device-0 is not here", "the disk is slow"});
  EXPECT_EQ(p.Get("/readyz").status, 503);
  EXPECT_EQ(p.Get("/readyz").body, "worker device-0 is not here\nthe disk is slow\n");
  EXPECT_THAT(p.Get("/metrics").body, HasSubstr("\ntidepool_ready 0\n"));
  p.pages->Show({}, {});
  EXPECT_EQ(p.Get("/readyz").status, 200);
  EXPECT_THAT(p.Get("/metrics").body, HasSubstr("\ntidepool_ready 1\n"));
  EXPECT_EQ(p.Get("/healthz").status, 200) << "what it lacks is no reason to start it again";
}

TEST(WatchPagesTest, HealthyIsWhoseLoopTurns) {
  const Pages stands(std::chrono::seconds(0));  // no turn is soon enough
  stands.pages->Show({}, {});
  EXPECT_EQ(stands.Get("/healthz").status, 503);
  EXPECT_THAT(stands.Get("/healthz").body, HasSubstr("its loop has not come round for"));
  EXPECT_EQ(stands.Get("/readyz").status, 503) << "nor does it work";
}

TEST(WatchPagesTest, TheStatusIsForWhoHasTheToken) {
  const Pages p;
  EXPECT_EQ(p.Get("/status", "token").status, 404) << "a worker has none";
  p.pages->Show({}, {}, R"({"run":"r"})");
  EXPECT_EQ(p.Get("/status").status, 401);
  EXPECT_EQ(p.Get("/status", "toke").status, 401);
  EXPECT_THAT(p.Get("/status", "token").body, testing::ContainsRegex(R"(^\{"age_s":0\.[0-9]+,"run":"r"\}$)"));
}

}  // namespace
}  // namespace tidepool::workers
