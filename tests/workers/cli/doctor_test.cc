#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

TEST(DoctorTest, TellsWhatIsThereAndWhatIsMissing) {
  const ScratchFolder scratch;
  const CliResult r = RunCli({"doctor", "--json"});
  const auto j = nlohmann::json::parse(r.out);
  for (const char* fact :
       {"tidepool", "system", "cpu", "memory", "disk", "worker", "gpus", "network", "limits"}) {
    EXPECT_TRUE(j.contains(fact)) << fact;
  }
  EXPECT_GT(j["memory"]["total_bytes"], 0);
  EXPECT_TRUE(j["network"]["loopback"]);
  EXPECT_GT(j["disk"]["sync_ms"], 0.0);
  // No worker stands beside this test program: that blocks a run, and what to do is said.
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_FALSE(j["ok"]);
  bool found = false;
  for (const auto& finding : j["findings"]) {
    found = found || (finding["blocks"] && finding["what"].get<std::string>().starts_with("tidepool-worker"));
    EXPECT_FALSE(finding["advice"].get<std::string>().empty());
  }
  EXPECT_TRUE(found) << r.out;
}

TEST(DoctorTest, SaysItForPeopleToo) {
  const ScratchFolder scratch;
  const CliResult r = RunCli({"doctor"});
  EXPECT_NE(r.out.find("paste from here"), std::string::npos);
  EXPECT_NE(r.out.find("MISSING tidepool-worker"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace tidepool::workers
