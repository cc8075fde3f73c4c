#include "workers/board/board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/real_file_system.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class BoardTest : public testing::Test {
 protected:
  BoardTest()
      : dir_(fs::path(testing::TempDir()) / ("board_" + std::to_string(::getpid()))),
        board_((dir_ / "runs").string()) {
    fs::remove_all(dir_);
    Write("secret.txt", "outside");
    for (const char* run : {"runs/a-20260101T000000Z", "runs/b c"}) {
      Write(std::string(run) + "/config.yaml",
            std::string("name: ") + (run[5] == 'a' ? "one" : "two") + "\njob: rl\ntrain:\n  steps: 9\n");
      Write(std::string(run) + "/metrics.jsonl",
            R"({"step":1,"wall_s":1,"metrics":{"critic/score/mean":0.5}})"
            "\n");
      Write(std::string(run) + "/logs/controller.log", "first line\nsecond line\n");
    }
  }
  ~BoardTest() override { fs::remove_all(dir_); }
  void Write(const std::string& name, const std::string& text,
             std::ios::openmode mode = std::ios::trunc) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, mode | std::ios::out) << text;
  }
  json Ask(const std::string& path, std::map<std::string, std::string> query = {}, int status = 200) {
    const HttpResponse answer =
        board_.Answer({.method = "GET", .path = path, .query = std::move(query), .body = ""});
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body, nullptr, false);
  }

  const fs::path dir_;
  Board board_;
};

TEST_F(BoardTest, ListsRunsAndFollowsOne) {
  const json list = Ask("/api/runs");
  ASSERT_EQ(list["runs"].size(), 2U);
  const std::string run = "a-20260101T000000Z";
  const json first = Ask("/api/run", {{"run", run}});
  EXPECT_EQ(first["brief"]["step"], 0);
  EXPECT_EQ(first["facts"]["name"], "one");
  EXPECT_EQ(first["values"]["train.steps"], "9");
  EXPECT_EQ(first["curves"]["metrics"]["critic/score/mean"]["y"], json({0.5}));
  Write("runs/" + run + "/metrics.jsonl",
        R"({"step":2,"wall_s":2,"metrics":{"critic/score/mean":0.75}})"
        "\n",
        std::ios::app);
  const json next =
      Ask("/api/run", {{"run", run}, {"cursor", first["curves"]["cursor"]}, {"seen", first["seen"]}});
  EXPECT_EQ(next["curves"]["metrics"]["critic/score/mean"],
            json({{"from", 1}, {"x", {2}}, {"y", {0.75}}, {"max", 0.75}}));
  EXPECT_FALSE(next.contains("config")) << "it did not change";
}

TEST_F(BoardTest, SaysWhatARunWaitsFor) {
  const std::string run = "a-20260101T000000Z";
  Write("runs/" + run + "/status.json",
        R"({"waits_for":"judge at unix:/x: Connection refused","still_s":62,"restarting":[)"
        R"({"place":1,"in_s":3.2,"deaths":2,"why":"process 12 was killed","name":"reward-0"}]})");
  EXPECT_EQ(Ask("/api/run", {{"run", run}})["waits"],
            json({"rewards wait for judge at unix:/x: Connection refused",
                  "no step has ended for 1m02s, far longer than the steps before took",
                  "reward-0: restarting in 4 s (death 2 of the last ten minutes; the sixth is the "
                  "last): process 12 was killed"}));
}

// A controller that died before it wrote a summary has left its last words and nothing else.
TEST_F(BoardTest, ARunThatEndedByLastWordsIsNotNewAnyMore) {
  EXPECT_EQ(Ask("/api/run", {{"run", "b c"}})["brief"]["state"], "new");
  Write("runs/b c/last_words", "error: reward x did not return within 2 s\n");
  // Not before twenty times what the look before cost has gone by.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  json brief;
  do brief = Ask("/api/run", {{"run", "b c"}})["brief"];
  while (brief["state"] == "new" && std::chrono::steady_clock::now() < end);
  EXPECT_EQ(brief["state"], "failed");
  EXPECT_EQ(brief["last_line"], "reward x did not return within 2 s");
}

// They are part of what is sent once, as the facts are: how it ended stands there.
TEST_F(BoardTest, LastWordsAreSeenWithTheFacts) {
  const json first = Ask("/api/run", {{"run", "b c"}});
  ASSERT_FALSE(Ask("/api/run", {{"run", "b c"}, {"seen", first["seen"]}}).contains("exit_code"));
  Write("runs/b c/last_words", "error: reward x did not return within 2 s\n");
  EXPECT_EQ(Ask("/api/run", {{"run", "b c"}, {"seen", first["seen"]}})["exit_code"], 3);
}

// When a process lets go of a run no file changes.
TEST_F(BoardTest, ARunThatNobodyBeginsAnyMoreIsLookedAtAgain) {
  Write("runs/a-20260101T000000Z/summary.json", R"({"exit":0,"finished":false,"stopped":true,"steps":4})");
  for (const auto& [run, state] : {std::pair("b c", "new"), std::pair("a-20260101T000000Z", "stopped")}) {
    SCOPED_TRACE(run);
    RealFileSystem files;
    auto lock = storage::LockRun(files, (dir_ / "runs" / run).string());
    ASSERT_TRUE(lock.ok()) << lock.status().message();
    json brief = Ask("/api/run", {{"run", run}})["brief"];
    EXPECT_EQ(brief["begins"], true);
    lock->reset();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    do brief = Ask("/api/run", {{"run", run}})["brief"];
    while (brief["begins"] == true && std::chrono::steady_clock::now() < end);
    EXPECT_EQ(brief["begins"], false);
    EXPECT_EQ(brief["state"], state);
  }
}

TEST_F(BoardTest, NoNameLeadsOutOfTheFolder) {
  for (const std::string& run :
       {std::string(), std::string("."), std::string(".."), std::string("../runs/b c"), std::string("/etc"),
        std::string("b c/../b c"), std::string("b c\0x", 5)})
    Ask("/api/run", {{"run", run}}, 400);
  Ask("/api/run", {{"run", "none"}}, 404);
  fs::create_symlink(dir_ / "secret.txt", dir_ / "runs/b c/logs/link.log");
  EXPECT_EQ(Ask("/api/logs", {{"run", "b c"}}).size(), 1U) << "a link is no log";
  for (const char* name : {"link.log", "../config.yaml", "../../../secret.txt", "", "/etc/passwd"})
    Ask("/api/log", {{"run", "b c"}, {"name", name}}, 404);
  Ask("/api/samples", {{"run", "b c"}, {"step", "1/../../x"}}, 400);
  Ask("/etc/passwd", {}, 404);
  Ask("/api", {}, 404);
}

TEST_F(BoardTest, ALogIsReadOnFromWhereItWas) {
  json part = Ask("/api/log", {{"run", "b c"}, {"name", "controller.log"}});
  EXPECT_EQ(part["text"], "first line\nsecond line\n");
  Write("runs/b c/logs/controller.log", "third\n", std::ios::app);
  part =
      Ask("/api/log",
          {{"run", "b c"}, {"name", "controller.log"}, {"from", std::to_string(part["to"].get<int64_t>())}});
  EXPECT_EQ(part["text"], "third\n");
  Write("runs/b c/logs/controller.log", "anew\n");
  part = Ask("/api/log", {{"run", "b c"}, {"name", "controller.log"}, {"from", "29"}});
  EXPECT_EQ(part["from"], 0);
  EXPECT_EQ(part["text"], "anew\n");
  Write("runs/b c/logs/controller.log", std::string(1 << 20, 'x') + "\nend\n");
  EXPECT_EQ(Ask("/api/log", {{"run", "b c"}, {"name", "controller.log"}})["text"], "end\n")
      << "the end, from the start of a line";
}

TEST_F(BoardTest, ARunThatIsHalfWrittenOrGoneIsSaidToBeSo) {
  Write("runs/half/config.yaml", "name: ");
  Write("runs/half/metrics.jsonl", "{\"step\":1,\"wa");
  // Only the last segment may be torn.
  for (const char* name : {"0000.tpj", "0001.tpj"})
    Write(std::string("runs/half/journal/") + name, std::string(1000, 'x'));
  json run = Ask("/api/run", {{"run", "half"}});
  EXPECT_EQ(run["curves"]["metrics"], json::object());
  EXPECT_EQ(run["brief"]["state"], "unreadable");
  EXPECT_TRUE(Ask("/api/pool", {{"run", "half"}}).contains("problem"));
  EXPECT_FALSE(Ask("/api/pool", {{"run", "b c"}}).contains("problem")) << "no journal yet";
  EXPECT_EQ(Ask("/api/runs")["runs"].size(), 3U);
  fs::remove_all(dir_ / "runs/half");
  EXPECT_NE(Ask("/api/run", {{"run", "half"}}, 404)["error"].get<std::string>().find("no such run"),
            std::string::npos);
  EXPECT_EQ(Ask("/api/runs")["runs"].size(), 2U);
}

TEST_F(BoardTest, ARunOnADiskThatHangsHoldsUpNeitherTheListNorOtherRuns) {
  const std::string pipe = (dir_ / "runs/b c/summary.json").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // whoever reads it waits
  const auto status = [&](const std::string& path, std::map<std::string, std::string> query) {
    return board_.Answer({.method = "GET", .path = path, .query = std::move(query), .body = ""}).status;
  };
  // Only threads that may hang ask for it: each is a look at the run, or is told that somebody looks.
  std::atomic<int> told = 0;
  std::vector<std::jthread> stuck;
  for (int i = 0; i < 3; ++i) {
    stuck.emplace_back([&] { told += status("/api/run", {{"run", "b c"}}) == 503 ? 1 : 0; });
    stuck.emplace_back([&] { status("/api/runs", {}); });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (told == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::yield();
  }
  EXPECT_EQ(status("/api/run", {{"run", "a-20260101T000000Z"}}), 200);
  const json runs = Ask("/api/runs")["runs"];
  ASSERT_EQ(runs.size(), 2U);
  for (const json& run : runs) EXPECT_EQ(run["state"] == "unreadable", run["run"] == "b c") << run;
  // Until nobody opens it any more.
  const int writer = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  fs::remove(pipe);
  ::close(writer);
  stuck.clear();
  EXPECT_EQ(status("/api/run", {{"run", "b c"}}), 200);
}

TEST_F(BoardTest, SlotsAreReadAgainWhenTheJournalGrows) {
  Write("runs/b c/journal/lock", "a file that does not change and has the last name");
  Write("runs/b c/journal/0000.tpj", "");
  const std::map<std::string, std::string> run = {{"run", "b c"}};
  EXPECT_FALSE(Ask("/api/pool", run).contains("problem"));
  // Only the last segment may be torn: what is said changes, so it was read again. Not before twenty times
  // what the first reading cost has gone by.
  for (const char* name : {"0000.tpj", "0001.tpj"})
    Write(std::string("runs/b c/journal/") + name, std::string(1000, 'x'));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool again = false;
  while (!again && std::chrono::steady_clock::now() < end) again = Ask("/api/pool", run).contains("problem");
  EXPECT_TRUE(again);
}

TEST_F(BoardTest, AComparisonSaysThatALongRunIsNotReadToItsEnd) {
  std::string rows;
  for (int step = 2; step <= 30000; ++step)
    rows += R"({"step":)" + std::to_string(step) + R"(,"note":")" + std::string(900, 'x') +
            R"(","metrics":{"critic/score/mean":0.5}})" + "\n";
  Write("runs/b c/metrics.jsonl", rows + R"({"step":30001,"metrics":{"critic/score/mean":0.75}})" + "\n");
  const std::map<std::string, std::string> runs = {{"runs", "a-20260101T000000Z/b c"}};
  EXPECT_EQ(Ask("/api/compare", runs)["more"], true);
  json data;
  do data = Ask("/api/compare", runs);
  while (data["more"] == true);
  EXPECT_EQ(data["metrics"][0]["runs"][1]["last"], 0.75);
}

TEST_F(BoardTest, StepsThatHaveSamplesAreListedAgainWhenThereIsAnother) {
  const std::map<std::string, std::string> run = {{"run", "b c"}};
  EXPECT_EQ(Ask("/api/run", run)["steps"], json::array());
  for (int step = 1; step <= 1000; ++step)
    Write("runs/b c/samples/step_" + std::to_string(step) + ".jsonl", "{}\n");
  // Not before twenty times what the list before cost has gone by.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  json steps = json::array();
  while ((steps.empty() || steps.back() != 1000) && std::chrono::steady_clock::now() < end)
    steps = Ask("/api/run", run)["steps"];
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 1000) << "of many some are offered, the newest among them";
}

TEST_F(BoardTest, ComparesRunsAndServesAPageWhoseScriptAloneMayRun) {
  const json data = Ask("/api/compare", {{"runs", "a-20260101T000000Z/b c"}});
  EXPECT_EQ(data["labels"], json({"one", "two"}));
  EXPECT_EQ(data["config"][0]["key"], "name");
  EXPECT_EQ(data["metrics"][0]["runs"][0]["last"], 0.5);
  Ask("/api/compare", {{"runs", "../x/b c"}}, 400);
  const auto page = [&] { return board_.Answer({.method = "GET", .path = "/", .query = {}, .body = ""}); };
  const HttpResponse one = page(), other = page();
  EXPECT_EQ(one.body.find("{{"), std::string::npos);
  EXPECT_NE(one.body, other.body) << "each answer has a nonce of its own";
  ASSERT_EQ(one.headers.size(), 1U);
  const std::string& policy = one.headers[0].second;
  const size_t at = policy.find("'nonce-") + 7;
  EXPECT_NE(one.body.find("<script nonce=\"" + policy.substr(at, policy.find('\'', at) - at) + "\">"),
            std::string::npos);
}

}  // namespace
}  // namespace tidepool::workers
