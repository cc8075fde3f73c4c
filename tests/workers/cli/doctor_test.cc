#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

TEST(DoctorTest, TellsWhatIsThereAndWhatIsMissing) {
  const ScratchFolder scratch;
  const CliResult r = RunCli({"doctor", "--json"});
  const auto j = nlohmann::json::parse(r.out);
  for (const char* fact :
       {"tidepool", "system", "cpu", "memory", "disk", "worker", "gpus", "network", "sandbox", "limits"}) {
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

nlohmann::json Doctor() { return nlohmann::json::parse(RunCli({"doctor", "--json"}).out); }

std::string Blocking(const nlohmann::json& doctor) {
  std::string all;
  for (const auto& finding : doctor["findings"]) {
    if (finding["blocks"]) all += finding["what"].get<std::string>() + "\n";
  }
  return all;
}

TEST(DoctorTest, TheLineToStartWithIsTrueWhereItIsSaid) {
  const std::string checkout = std::filesystem::current_path().string();
  EXPECT_EQ(Doctor()["line"], "tidepool train configs/quickstart.yaml");
  const ScratchFolder scratch;
  // Elsewhere it names the config of the checkout, which finds its warm start from anywhere.
  const auto j = Doctor();
  EXPECT_EQ(j["line"], "tidepool train " + checkout + "/configs/quickstart.yaml");
  EXPECT_GT(j["example"]["memory_bytes"], 0);
  EXPECT_EQ(Blocking(j).find("quickstart"), std::string::npos) << Blocking(j);
}

TEST(DoctorTest, WhatWouldStopTheLineIsMissing) {
  const ScratchFolder scratch;
  const std::string task =
      "reward: {functions: [exact_answer]}\ndata: {task: products, factors: [2, 9], held_out: 9}\n";
  scratch.Write("configs/quickstart.yaml", "model: {path: no/such/model}\n" + task);
  EXPECT_NE(Blocking(Doctor()).find("quickstart.yaml:1: model.path: "), std::string::npos)
      << Blocking(Doctor());
  scratch.Write("configs/quickstart.yaml", "modell: {path: m}\n" + task);
  EXPECT_NE(Blocking(Doctor()).find("did you mean"), std::string::npos) << Blocking(Doctor());
  scratch.Write("configs/quickstart.yaml",
                "model: {init: {hidden_size: 65536, intermediate_size: 262144, layers: 512, heads: 64, "
                "kv_heads: 64, head_size: 64, max_position: 64, alphabet: \"abcerv =\"}}\n"
                "data: {task: reverse, letters: abc, held_out: 2, length: 2}\n"
                "reward: {functions: [exact_answer]}\nrollout: {max_new_tokens: 8}\n");
  EXPECT_NE(Blocking(Doctor()).find("memory: "), std::string::npos) << Blocking(Doctor());
  EXPECT_NE(Blocking(Doctor()).find("disk: "), std::string::npos) << Blocking(Doctor());
}

}  // namespace
}  // namespace tidepool::workers
