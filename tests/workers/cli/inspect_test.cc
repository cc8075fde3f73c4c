// status, report, check, samples and journal over a run directory whose journal a whole simulated run
// of the real controller has written.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/real_file_system.h"
#include "core/observe/samples_writer.h"
#include "core/sample/codec.h"
#include "core/storage/journal.h"
#include "core/storage/payload.h"
#include "tests/scheduler/sim_cluster.h"
#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;

std::vector<JournalEntry> SimulatedRun() {
  scheduler::SimCluster cluster(
      {.controller = scheduler::SmallJob(PlacementKind::kColocated), .seed = 1, .faults = {}});
  EXPECT_EQ(cluster.Run().code, 0);
  return cluster.journal();
}

void WriteJournal(const std::string& dir, const std::vector<JournalEntry>& entries,
                  int64_t begun_unix_ms = 0) {
  RealFileSystem real;
  auto writer = storage::JournalWriter::Open(real, dir, "sim", {.begun_unix_ms = begun_unix_ms});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  for (const JournalEntry& entry : entries) (*writer)->Append(entry.record, entry.mono_ns);
  ASSERT_TRUE((*writer)->Close().ok());
}

class InspectTest : public testing::Test {
 protected:
  InspectTest() {
    scratch_.Write(run_ + "/config.yaml",
                   "name: sim\njob: rl\ndata: {task: reverse}\nmodel: {init: {}}\nreward: {functions: "
                   "[{name: exact_answer}]}\n");
  }
  void WriteRun(const std::vector<JournalEntry>& entries) { WriteJournal(run_ + "/journal", entries); }

  ScratchFolder scratch_;
  const std::string run_ = "runs/sim-20260101T000000Z";
};

TEST_F(InspectTest, CheckProvesAWholeRun) {
  const auto entries = SimulatedRun();
  WriteRun(entries);
  const CliResult r = RunCli({"check", "sim"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("ok, " + std::to_string(entries.size()) + " records"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("checkpoints were not looked at"), std::string::npos)
      << "a journal without its run: " << r.out;
  const json j = json::parse(RunCli({"check", run_ + "/journal", "--json"}).out);
  EXPECT_TRUE(j["ok"]);
  EXPECT_EQ(j["journals"][0]["records"], entries.size());
  EXPECT_EQ(j["journals"][0]["issued"],
            j["journals"][0]["trained"].get<int64_t>() + j["journals"][0]["dropped"].get<int64_t>());
}

TEST_F(InspectTest, CheckNamesTheFirstViolationAndItsRecord) {
  std::vector<JournalEntry> entries = SimulatedRun();
  // A step that is committed twice trains its samples twice.
  size_t at = 0;
  while (!std::holds_alternative<record::StepCommit>(entries[at].record)) ++at;
  entries.insert(entries.begin() + static_cast<int64_t>(at) + 1, entries[at]);
  WriteRun(entries);
  const CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.err.find("record " + std::to_string(at + 1) + " violates "), std::string::npos) << r.err;
  const json j = json::parse(RunCli({"check", run_, "--json"}).out);
  EXPECT_FALSE(j["ok"]);
  EXPECT_EQ(j["journals"][0]["violation"]["lsn"], at + 1);
}

// A simulated run whose samples have real payload files, a few samples a file.
std::vector<JournalEntry> WithPayload(const std::string& dir) {
  std::vector<JournalEntry> entries = SimulatedRun();
  RealFileSystem real;
  auto writer = *storage::PayloadWriter::Open(real, dir, "sim", /*file_bytes=*/400);
  std::map<SampleId, uint64_t> digests;
  for (JournalEntry& entry : entries) {
    if (auto* enq = std::get_if<record::Enq>(&entry.record); enq != nullptr) {
      sample::Trajectory t{.tid = enq->tid, .att = enq->att};
      t.prompt = sample::PromptSegment(std::vector<int32_t>(static_cast<size_t>(enq->prompt_len), 3));
      sample::Segment said;
      said.ids.assign(static_cast<size_t>(enq->response_len), 7);
      said.logprobs.assign(said.ids.size(), -1.0F);
      for (const record::VersionTokens& run : enq->versions)
        sample::AddVersion(said.versions, run.v, run.tokens);
      t.segments.push_back(std::move(said));
      const auto ref = writer->Append(t);
      EXPECT_TRUE(ref.ok()) << ref.status().ToString();
      enq->payload_file = ref->file, enq->payload_offset = ref->offset, enq->payload_bytes = ref->bytes;
      digests[enq->tid] = enq->digest = ref->digest;
    }
    if (auto* commit = std::get_if<record::StepCommit>(&entry.record); commit != nullptr) {
      for (record::TrainedRow& row : commit->rows) row.digest = digests[row.tid];
    }
    // The state has the digests of the samples in it.
    if (auto* snapshot = std::get_if<record::Snapshot>(&entry.record); snapshot != nullptr)
      snapshot->state_digest = 0;
  }
  return entries;
}

record::Enq FirstTrained(const std::vector<JournalEntry>& entries) {
  SampleId tid;
  for (const JournalEntry& e : entries) {
    if (const auto* c = std::get_if<record::StepCommit>(&e.record); c != nullptr && tid.ordinal < 0)
      tid = c->rows[0].tid;
  }
  record::Enq found;
  for (const JournalEntry& e : entries) {
    if (const auto* q = std::get_if<record::Enq>(&e.record); q != nullptr && q->tid == tid) found = *q;
  }
  return found;
}

TEST_F(InspectTest, CheckRecomputesWhatWasTrainedFromThePayload) {
  const auto entries = WithPayload(run_ + "/payload");
  WriteRun(entries);
  const CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("their bytes are those that ENQ names"), std::string::npos) << r.out;
  const json j = json::parse(RunCli({"check", run_, "--json"}).out);
  EXPECT_GT(j["journals"][0]["payload_rows"]["proven"], 0);
  EXPECT_EQ(j["journals"][0]["payload_rows"]["pruned"], 0);
}

// A sample that was stored and enqueued, and then a shorter record was written over its own.
TEST_F(InspectTest, CheckFindsASampleThatWasOverwrittenAfterItsEnq) {
  const auto entries = WithPayload(run_ + "/payload");
  WriteRun(entries);
  const record::Enq enq = FirstTrained(entries);
  sample::Trajectory shorter{.tid = enq.tid, .att = enq.att};
  shorter.prompt = sample::PromptSegment(std::vector<int32_t>(static_cast<size_t>(enq.prompt_len), 3));
  ASSERT_GT(enq.response_len, 0);
  const std::string name = std::to_string(enq.payload_file);
  std::fstream file(run_ + "/payload/" + std::string(4 - name.size(), '0') + name + ".tpp",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(enq.payload_offset);
  file << *sample::Encode(shorter);
  file.close();
  const CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.err.find("violates Q12: what was trained of " + ToString(enq.tid)), std::string::npos) << r.err;
}

TEST_F(InspectTest, CheckSaysWhichPayloadWasPrunedAndFailsForNoneThatIsMissing) {
  const auto entries = WithPayload(run_ + "/payload");
  WriteRun(entries);
  const record::Enq enq = FirstTrained(entries);
  RealFileSystem real;
  const int64_t below = enq.payload_file + 1;
  ASSERT_GT(*storage::DeletePayloadFilesBelow(real, run_ + "/payload", {{0, below}}, 0), 0);
  const CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("was pruned (files up to " + std::to_string(below - 1) + ")"), std::string::npos)
      << r.out;
  // One of those behind the first that is left has no reason to be missing.
  std::filesystem::remove(run_ + "/payload/000" + std::to_string(below + 1) + ".tpp");
  EXPECT_EQ(RunCli({"check", run_}).exit_code, 4);
  // Where all are gone, the one is named that a run never deletes, or needs.
  std::filesystem::remove_all(run_ + "/payload");
  std::filesystem::create_directory(run_ + "/payload");
  const CliResult none = RunCli({"check", run_});
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_EQ(none.err.find("/0000.tpp"), std::string::npos) << none.err;
}

TEST_F(InspectTest, CheckTakesATornTailButNotADamagedJournal) {
  const auto entries = SimulatedRun();
  WriteRun(entries);
  const std::string segment = run_ + "/journal/0000.tpj";
  const auto size = std::filesystem::file_size(segment);
  std::ofstream(segment, std::ios::app | std::ios::binary) << std::string(7, '\1');
  CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("cut off while it was written"), std::string::npos) << r.out;

  // With a second segment behind it, all of the first one was durable.
  WriteRun({});
  std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<int64_t>(size / 2));
  file << "XXXX";
  file.close();
  r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.err.find("0000.tpj"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("record "), std::string::npos) << r.err;
}

TEST_F(InspectTest, CheckLooksAtTheWarmStartToo) {
  WriteRun(SimulatedRun());
  WriteJournal(run_ + "/warm_start/journal", SimulatedRun());
  const json j = json::parse(RunCli({"check", run_, "--json"}).out);
  ASSERT_EQ(j["journals"].size(), 2);
  EXPECT_EQ(j["journals"][0]["journal"], run_ + "/warm_start/journal");
  // And to its files: the folder is there, the checkpoints that its journal names are not.
  std::filesystem::create_directories(run_ + "/warm_start/checkpoints");
  const CliResult r = RunCli({"check", run_});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.err.find(run_ + "/warm_start/checkpoints/"), std::string::npos) << r.err;
}

TEST_F(InspectTest, JournalPrintsOneLineARecordFromWhereItIsAsked) {
  const auto entries = SimulatedRun();
  WriteRun(entries);
  std::istringstream lines(RunCli({"journal", "sim", "--json"}).out);
  std::string line;
  size_t lsn = 0;
  while (std::getline(lines, line)) {
    const json j = json::parse(line);
    EXPECT_EQ(j["lsn"], lsn);
    EXPECT_EQ(j["kind"], RecordName(entries[lsn].record));
    ++lsn;
  }
  EXPECT_EQ(lsn, entries.size());
  EXPECT_NE(RunCli({"journal", "sim", "--from", "-1"}).err.find("is -1; expected 0 or more"),
            std::string::npos);
  const CliResult tail = RunCli({"journal", "sim", "--from", std::to_string(entries.size() - 2)});
  EXPECT_EQ(std::count(tail.out.begin(), tail.out.end(), '\n'), 2);
  EXPECT_NE(tail.out.find("END_RUN"), std::string::npos) << tail.out;
  EXPECT_NE(RunCli({"journal", "sim", "--from", "999999"}).err.find("there is none"), std::string::npos);
}

TEST_F(InspectTest, JournalFollowsUntilTheRunEnds) {
  const auto entries = SimulatedRun();
  WriteRun(entries);
  const CliResult r = RunCli({"journal", "sim", "--follow"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), static_cast<int64_t>(entries.size()));
}

TEST_F(InspectTest, JournalFindsWhatItIsAskedFor) {
  constexpr uint64_t kSecond = 1'000'000'000;
  const record::StepCommit third{{3}, {0, 3}, 7, {{{12, 0, 3}, {0, 2}}}};
  WriteJournal(run_ + "/journal",
               {{Lsn{0}, 1, 0, record::Issue{{12, 0, 3}, {}, 0, 5, 8}},
                {Lsn{1}, 1, kSecond, record::Fault{"worker_lost", "w2", {7}, "it was killed"}},
                {Lsn{2}, 1, 2 * kSecond, record::Loaded{{{2}, {8}}, {0, 3}, 7}},
                {Lsn{3}, 1, 3 * kSecond, third},
                {Lsn{4}, 1, 4 * kSecond, record::StepCommit{{4}, {0, 4}, 8, {}}}},
               /*begun_unix_ms=*/1769860800000);
  const auto lsns = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"journal", "sim", "--json"});
    std::istringstream lines(RunCli(words).out);
    std::string line, out;
    while (std::getline(lines, line)) out += json::parse(line)["lsn"].dump();
    return out;
  };
  EXPECT_EQ(lsns({}), "01234");
  EXPECT_EQ(lsns({"--kind", "fault,STEP_COMMIT"}), "134");
  EXPECT_EQ(lsns({"--kind", "FAULT", "--kind", "LOADED"}), "12");
  EXPECT_EQ(lsns({"--sample", "12.0.3"}), "03");
  EXPECT_EQ(lsns({"--sample", "12"}), "03");
  EXPECT_EQ(lsns({"--sample", "12.1"}), "");
  EXPECT_EQ(lsns({"--worker", "2"}), "12");
  EXPECT_EQ(lsns({"--worker", "w2", "--kind", "LOADED"}), "2");
  EXPECT_EQ(lsns({"--worker", "w2/inc7"}), "1");
  EXPECT_EQ(lsns({"--worker", "2/inc8"}), "2");
  EXPECT_EQ(lsns({"--worker", "2/inc9"}), "");
  EXPECT_EQ(lsns({"--step", "4"}), "4");
  EXPECT_EQ(lsns({"--step", "3-4"}), "34");
  EXPECT_EQ(lsns({"--since", "3"}), "34");
  EXPECT_EQ(lsns({"--since", "2026-01-31T12:00:01", "--until", "2026-01-31T12:00:03Z"}), "123");
  EXPECT_EQ(lsns({"--tail", "2"}), "34");
  EXPECT_EQ(lsns({"--kind", "STEP_COMMIT", "--tail", "1"}), "4");
  EXPECT_EQ(lsns({"--from", "1", "--until", "1"}), "1");
  const CliResult text = RunCli({"journal", "sim", "--kind", "FAULT"});
  EXPECT_NE(text.out.find("2026-01-31T12:00:01.000Z  e1      1.000s  FAULT"), std::string::npos) << text.out;
  EXPECT_EQ(json::parse(RunCli({"journal", "sim", "--json", "--tail", "1"}).out)["time"],
            "2026-01-31T12:00:04.000Z");
  EXPECT_NE(RunCli({"journal", "sim", "--kind", "DROP"}).err.find("none of the 5 records"),
            std::string::npos);
  EXPECT_NE(RunCli({"journal", "sim", "--kind", "FALT"}).err.find("FAULT"), std::string::npos);
  for (const auto& [option, value] :
       {std::pair("--sample", "x"), std::pair("--worker", "w"), std::pair("--worker", "2/inc"),
        std::pair("--worker", "2/7"), std::pair("--worker", "/inc7"), std::pair("--step", "4-3"),
        std::pair("--since", "noon")}) {
    const CliResult wrong = RunCli({"journal", "sim", option, value});
    EXPECT_EQ(wrong.exit_code, 2) << option;
    EXPECT_NE(wrong.err.find(std::string(option) + ": is " + value), std::string::npos) << wrong.err;
  }
  for (const char* option : {"--sample", "--worker", "--step", "--since", "--until"}) {
    const CliResult wrong = RunCli({"journal", "sim", option, ""});
    EXPECT_EQ(wrong.exit_code, 2) << option << wrong.out;
    EXPECT_NE(wrong.err.find("is empty"), std::string::npos) << wrong.err;
  }
}

TEST_F(InspectTest, JournalFindsFaultsOfAWorkerByItsFieldAndThoseOfOlderProgramsByItsName) {
  WriteRun({{Lsn{0}, 1, 0, record::Fault{"worker_lost", "w1", {7}, "of a program without the field"}},
            {Lsn{1}, 1, 0, record::Fault{"worker_lost", "reward-0", {8}, "killed", {1}}},
            {Lsn{2}, 1, 0, record::Fault{"retired", "reward-1", {}, "killed w1", {2}}},
            {Lsn{3}, 1, 0, record::Fault{"storage", "controller", {}, "full"}}});
  const auto count = [](const char* worker) {
    const std::string out = RunCli({"journal", "sim", "--worker", worker}).out;
    return std::count(out.begin(), out.end(), '\n');
  };
  EXPECT_EQ(count("1"), 2);
  EXPECT_EQ(count("reward-0"), 2);
  EXPECT_EQ(count("2"), 1);
  EXPECT_EQ(count("reward-0/inc8"), 1);
  EXPECT_EQ(count("w1/inc7"), 1);
  EXPECT_EQ(count("reward-0/inc9"), 0);
  EXPECT_EQ(count("reward-1/inc1"), 0);
  EXPECT_EQ(count("device-0"), 0);
  const std::string out = RunCli({"journal", "sim", "--kind", "FAULT"}).out;
  EXPECT_NE(out.find(" what=killed worker=reward-0/inc8"), std::string::npos) << out;
  EXPECT_EQ(out.find("actor=reward-0"), std::string::npos) << "the worker is said once: " << out;
  EXPECT_NE(out.find("actor=w1 what=\"of a program"), std::string::npos) << out;
  EXPECT_NE(out.find("actor=controller what=full\n"), std::string::npos) << out;
}

TEST_F(InspectTest, JournalWritesIdsAsPeopleDo) {
  record::StepCommit commit{{3}, {0, 3}, 7, {{{12, 0, 3}, {0, 2}}}};
  record::Loaded loaded{{{2}, {7}}, {0, 3}, 7};
  WriteRun({{Lsn{0}, 1, 0, commit}, {Lsn{1}, 1, 0, loaded}});
  const CliResult r = RunCli({"journal", "sim"});
  EXPECT_NE(r.out.find("rows=1[12.0.3@0:2]"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("worker=reward-1/inc7 v=0:3"), std::string::npos) << r.out;
  const CliResult bare = RunCli({"journal", run_ + "/journal"});  // without the config
  EXPECT_NE(bare.out.find("worker=place-2/inc7 v=0:3"), std::string::npos) << bare.out;
}

observe::SampleRow SomeSample(const SampleId& tid, const std::string& text, double reward) {
  observe::SampleRow row;
  row.tid = tid;
  row.prompt = "reverse abc";
  row.text = text;
  row.answer = "cba";
  row.ids = {1, 2, 3, 4};
  row.logprobs = {-0.1F, -0.2F, -0.3F, -0.4F};
  row.versions = {6, 6, 7, 7};
  row.reward = reward;
  row.rewards = {{"exact_answer", reward}};
  row.ended = true;
  return row;
}

TEST_F(InspectTest, SamplesShowsPromptTextAndReward) {
  observe::SampleRow row = SomeSample({4, 0, 1}, "cba", 1);
  std::filesystem::create_directories(run_ + "/samples");
  ASSERT_TRUE(observe::WriteSamples(run_, 3, std::vector<observe::SampleRow>(5, row)).ok());
  row.text = "later\x1b[2J";
  row.details = {{"judge", "too long\x1b[2J"}};
  ASSERT_TRUE(observe::WriteSamples(run_, 12, {row}).ok());

  const CliResult newest = RunCli({"samples", "sim"});
  EXPECT_NE(newest.out.find("later\\x1b[2J"), std::string::npos)
      << newest.out;  // the terminal stays as it is
  EXPECT_NE(newest.out.find("detail       judge: too long\\x1b[2J"), std::string::npos) << newest.out;
  const CliResult equal = RunCli({"samples", "sim", "--step", "3"});
  EXPECT_NE(equal.out.find("6 x2, 7 x2"), std::string::npos) << equal.out;
  EXPECT_NE(equal.out.find("5 equal answers"), std::string::npos) << equal.out;
  EXPECT_EQ(equal.out.find("response"), equal.out.rfind("response")) << "equal answers are shown once";
  const CliResult all = RunCli({"samples", "sim", "--step", "3", "--json"});
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 5);
  EXPECT_EQ(json::parse(all.out.substr(0, all.out.find('\n')))["reward"], 1.0);
  const CliResult none = RunCli({"samples", "sim", "--step", "4"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("3 to 12"), std::string::npos) << none.err;
}

TEST(SamplesTest, ARunThatWillHaveNoneSaysWhatThereIs) {
  const ScratchFolder scratch;
  const std::string model = "model: {init: {max_position: 64}}\ndata: {task: reverse}\n";
  scratch.Write("runs/a/config.yaml", "name: a\njob: sft\n" + model);
  scratch.Write("runs/b/config.yaml", "name: b\njob: dpo\n" + model);
  scratch.Write("runs/c/config.yaml",
                "name: c\nreward: {functions: [exact_answer]}\nobserve: {samples_per_step: 0}\nrollout: "
                "{max_new_tokens: 8}\n" +
                    model);
  const auto error = [](const char* run) { return RunCli({"samples", run}).err; };
  EXPECT_NE(error("a").find("a job: sft learns from the rows of its data"), std::string::npos) << error("a");
  EXPECT_NE(error("a").find("tidepool eval --model runs/a --data"), std::string::npos) << error("a");
  EXPECT_EQ(error("b").find("tidepool eval"), std::string::npos) << error("b");
  EXPECT_NE(error("c").find("observe.samples_per_step is 0"), std::string::npos) << error("c");
}

TEST_F(InspectTest, SamplesAreChosenByGroupRewardAndRow) {
  std::vector<observe::SampleRow> rows;
  for (int64_t group = 0; group < 3; ++group) {
    for (int32_t k = 0; k < 4; ++k) {
      rows.push_back(
          SomeSample({group, 0, k}, "g" + std::to_string(group) + "k" + std::to_string(k), k * 0.25));
      rows.back().file = "rows.jsonl";
      rows.back().row = 10 + group;
      rows.back().line = 20 + group;
      rows.back().messages = {{"system", "Be brief."}, {"user", "reverse abc"}};
    }
  }
  std::filesystem::create_directories(run_ + "/samples");
  ASSERT_TRUE(observe::WriteSamples(run_, 1, {SomeSample({0, 0, 0}, "early", 0)}).ok());
  ASSERT_TRUE(observe::WriteSamples(run_, 3, rows).ok());

  const CliResult one = RunCli({"samples", "sim", "--groups", "1", "-n", "2"});
  EXPECT_NE(one.out.find("rows.jsonl:20 (row 10)"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("system       Be brief."), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("g0k1"), std::string::npos) << one.out;
  EXPECT_EQ(one.out.find("g0k2"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("2 more answers; -n 4 shows all\n2 more groups\n"), std::string::npos) << one.out;

  const CliResult whole = RunCli({"samples", "sim", "-n", "all"});
  EXPECT_NE(whole.out.find("g2k3"), std::string::npos) << whole.err;
  EXPECT_EQ(whole.out.find("more answers"), std::string::npos) << whole.out;
  EXPECT_EQ(RunCli({"samples", "sim", "-n", "al"}).exit_code, 2);

  const CliResult good = RunCli({"samples", "sim", "--min-reward", "0.5", "--max-reward", "0.5"});
  for (const char* text : {"g0k2", "g1k2", "g2k2"})
    EXPECT_NE(good.out.find(text), std::string::npos) << good.out;
  EXPECT_EQ(good.out.find("k3"), std::string::npos) << good.out;

  rows.front().row = 11;
  ASSERT_TRUE(observe::WriteSamples(run_, 2, {rows.front()}).ok());
  const CliResult row = RunCli({"samples", "sim", "--row", "11", "--json"});  // of all steps
  EXPECT_EQ(std::count(row.out.begin(), row.out.end(), '\n'), 5) << row.out;
  EXPECT_EQ(json::parse(row.out.substr(0, row.out.find('\n')))["step"], 2);

  const CliResult none = RunCli({"samples", "sim", "--min-reward", "2"});
  EXPECT_EQ(none.out, "");
  EXPECT_NE(none.err.find("none of the 12 samples on record of step 3"), std::string::npos) << none.err;
}

TEST_F(InspectTest, SamplesReadsNoFurtherThanItShows) {
  std::vector<observe::SampleRow> rows;
  for (int32_t k = 0; k < 3000; ++k)
    rows.push_back(SomeSample({k / 4, 0, k % 4}, "k" + std::to_string(k), 1));
  std::filesystem::create_directories(run_ + "/samples");
  ASSERT_TRUE(observe::WriteSamples(run_, 1, rows).ok());
  // Whoever reads on fails: the end of this step is damaged, and so is the next one.
  std::ofstream(run_ + "/samples/step_1.jsonl", std::ios::app) << "nonsense\n";
  std::ofstream(run_ + "/samples/step_2.jsonl") << "nonsense\n";
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"-n", "5"}, {"--groups", "2"}, {"--json", "-n", "5"}}) {
    std::vector<std::string> args = {"samples", "sim", "--row", "0"};
    args.insert(args.end(), how.begin(), how.end());
    const CliResult some = RunCli(args);
    EXPECT_EQ(some.exit_code, 0) << some.err;
    EXPECT_EQ(some.err, "") << how[0];
    EXPECT_NE(some.out.find("k4"), std::string::npos) << some.out;
    EXPECT_EQ(some.out.find("k8"), std::string::npos) << some.out;
  }
  const CliResult some = RunCli({"samples", "sim", "--row", "0", "-n", "5"});
  EXPECT_NE(some.out.find("at least "), std::string::npos) << "what is left was not counted to its end";
  EXPECT_NE(RunCli({"samples", "sim", "--step", "1", "-n", "4000"}).exit_code, 0);
}

TEST_F(InspectTest, AnEpisodeSaysWhoSpeaks) {
  observe::SampleRow row = SomeSample({4, 0, 1}, "left left", 0.5);
  row.turns = {
      {"environment", "You are at 0."}, {"policy", "left"}, {"environment", "A wall."}, {"policy", "left"}};
  std::filesystem::create_directories(run_ + "/samples");
  ASSERT_TRUE(observe::WriteSamples(run_, 3, {row}).ok());
  const CliResult r = RunCli({"samples", "sim"});
  EXPECT_NE(r.out.find("environment  You are at 0.\n"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("policy       left\nenvironment  A wall.\npolicy       left\n"), std::string::npos)
      << r.out;
}

TEST_F(InspectTest, StatusOfAFinishedRunTellsItsSummary) {
  WriteRun(SimulatedRun());
  scratch_.Write(
      run_ + "/summary.json",
      R"({"exit":0,"steps":3,"version":"0:3","accuracy":{"before":0.25,"after":0.9},"seconds":{"gen":1.5},"peak_bytes":{"device-0":1048576},"finished":true,"issued":400,"drops":{"data_invalid":8,"operator":256,"stale":2},"lost":{"data_invalid":"sample 7.0.3 is dropped, it cannot be graded: judge gave a score that is not finite"}})");
  const json j = json::parse(RunCli({"status", "sim", "--json"}).out);
  EXPECT_EQ(j["state"], "finished");
  EXPECT_EQ(j["summary"]["steps"], 3);
  const CliResult text = RunCli({"status", "sim"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("before 25.0 %, after 90.0 %"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("left over   256 samples"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("dropped     data_invalid 8, stale 2\n"), std::string::npos) << text.out;
  EXPECT_NE(
      text.out.find("lost        8 of 400 samples lost (data_invalid), the last: sample 7.0.3 is dropped, "
                    "it cannot be graded: judge gave a score that is not finite\n"),
      std::string::npos)
      << text.out;
}

TEST_F(InspectTest, StatusOfAKilledRunSaysHowToGoOn) {
  std::vector<JournalEntry> entries = SimulatedRun();
  entries.resize(entries.size() / 2);
  WriteRun(entries);
  scratch_.Write(run_ + "/control.json", R"({"address":"127.0.0.1:1","pid":)" + std::to_string(getpid()) +
                                             "}");  // alive, but not a controller
  scratch_.Write(
      run_ + "/status.json",
      R"({"phase":"running","step":1,"steps":3,"workers":[{"place":0,"inc":1,"pid":1,"peak_bytes":1048576}]})");
  const CliResult r = RunCli({"status", "sim"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("dead"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("tidepool train " + run_ + " --resume"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("(gone)"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("resume      begins at step "), std::string::npos) << r.out;
}

TEST_F(InspectTest, StatusTellsAnEndThatItsFullDiskKeptOutOfTheJournal) {
  std::vector<JournalEntry> entries = SimulatedRun();
  entries.resize(entries.size() / 2);
  WriteRun(entries);
  scratch_.Write(run_ + "/status.json", R"({"workers":[{"place":12,"pid":7}]})");
  EXPECT_NE(RunCli({"status", "sim"}).out.find("reward-11   pid 7"), std::string::npos);
  scratch_.Write(run_ + "/summary.json", R"({"exit":3,"why":"fault=storage actor=controller: no space"})");
  const CliResult r = RunCli({"status", "sim"});
  EXPECT_NE(r.out.find("state       failed"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("why         fault=storage"), std::string::npos) << r.out;
}

TEST_F(InspectTest, StatusBelievesTheLastWordOfARunWhoseDiskHadNoRoomForItsSummary) {
  std::vector<JournalEntry> entries = SimulatedRun();
  entries.resize(entries.size() / 2);
  WriteRun(entries);
  scratch_.Write(run_ + "/status.json",
                 R"({"state":"failed","exit":3,"why":"fault=storage actor=controller: full","step":1})");
  const json j = json::parse(RunCli({"status", "sim", "--json"}).out);
  EXPECT_EQ(j["state"], "failed");
  EXPECT_EQ(j["summary"]["exit"], 3);
  EXPECT_NE(RunCli({"status", "sim"}).out.find("why         fault=storage"), std::string::npos);
  scratch_.Write(run_ + "/status.json", R"({"state":"running","step":1})");
  EXPECT_EQ(json::parse(RunCli({"status", "sim", "--json"}).out)["state"], "dead");
}

// The number of a process says nothing: it may be another's, or of the run that this is a copy of.
TEST_F(InspectTest, ARunIsAliveWhileItsJournalIsLocked) {
  WriteRun(SimulatedRun());
  scratch_.Write(run_ + "/control.json",
                 R"({"address":"127.0.0.1:1","pid":)" + std::to_string(getpid()) + "}");
  RealFileSystem real;
  auto lock = real.Lock(run_ + "/journal/lock", "controller pid 1 on host a");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(json::parse(RunCli({"status", "sim", "--json"}).out)["state"], "running");
  lock->reset();
  EXPECT_EQ(json::parse(RunCli({"status", "sim", "--json"}).out)["state"], "finished");
}

TEST_F(InspectTest, StatusAndRunsAgreeOnAJournalThatIsCutOrDamaged) {
  const auto states = [] {
    const json list = json::parse(RunCli({"runs", "--json"}).out);
    const std::string by_status = json::parse(RunCli({"status", "sim", "--json"}).out)["state"];
    EXPECT_EQ(list[0]["state"], by_status);
    return by_status;
  };
  std::vector<JournalEntry> cut = SimulatedRun();
  cut.resize(cut.size() / 2);
  WriteRun(cut);
  EXPECT_EQ(states(), "dead");
  // A copy that came without its end; or the end is on a disk that lost it.
  scratch_.Write(run_ + "/summary.json", R"({"exit":0,"steps":3,"finished":true})");
  EXPECT_EQ(states(), "finished");
  EXPECT_NE(RunCli({"status", "sim"}).out.find("journal     lacks the end of the run: "), std::string::npos);

  WriteRun({});  // with a second segment behind it, all of the first one was durable
  std::fstream file(run_ + "/journal/0000.tpj", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(200);
  file << "XXXX";
  file.close();
  EXPECT_EQ(states(), "finished");
  const CliResult told = RunCli({"status", "sim"});
  EXPECT_NE(told.out.find("journal     " + run_ + "/journal/0000.tpj"), std::string::npos) << told.out;
  std::filesystem::remove(run_ + "/summary.json");
  EXPECT_EQ(states(), "unreadable");
  const CliResult damaged = RunCli({"status", "sim"});
  EXPECT_EQ(damaged.exit_code, 0) << damaged.err;
  EXPECT_NE(damaged.out.find("state       unreadable"), std::string::npos) << damaged.out;
}

TEST_F(InspectTest, AControllerThatSaysNothingAndRewardsThatWaitAreTold) {
  WriteRun(SimulatedRun());
  scratch_.Write(run_ + "/control.json", R"({"address":"127.0.0.1:1","pid":12})");
  const std::string status = run_ + "/status.json";
  scratch_.Write(status, R"({"step":1,"waits_for":"judge at unix:/x: Connection refused"})");
  RealFileSystem real;
  const auto lock = real.Lock(run_ + "/journal/lock", "controller pid 12 on host a");
  ASSERT_TRUE(lock.ok());
  CliResult r = RunCli({"status", "sim"});
  EXPECT_NE(r.out.find("state       running, controller pid 12\n"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("waits       rewards wait for judge at unix:/x: Connection refused\n"),
            std::string::npos)
      << r.out;
  scratch_.Write(status, R"({"step":1,"still_s":62,"left_s":null,"restarts":1,"refused":29,"restarting":[)"
                         R"({"place":1,"in_s":3.2,"deaths":2,"why":"process 12 was killed"}]})");
  r = RunCli({"status", "sim"});
  EXPECT_NE(r.out.find("waits       no step has ended for 1m02s"), std::string::npos) << r.out;
  EXPECT_NE(
      r.out.find("1 restarts, 29 messages refused (late ones of workers that are gone, or without a token)"),
      std::string::npos)
      << r.out;
  EXPECT_NE(
      r.out.find("restarting in 4 s (death 2 of the last ten minutes; the sixth is the last): process 12"),
      std::string::npos)
      << r.out;
  scratch_.Write(status, R"({"step":1,"open_groups":4,"awaiting":3,"queued":1})");
  std::filesystem::last_write_time(status,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::seconds(60));
  r = RunCli({"status", "sim"});
  EXPECT_NE(r.out.find("silent      its controller has said nothing for 60 s: "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("3 groups wait for their rewards"), std::string::npos) << r.out;
  EXPECT_NE(RunCli({"runs"}).out.find("running (silent 60 s)"), std::string::npos);
}

TEST_F(InspectTest, StatusBeforeTheFirstRecordIsNotAnError) {
  const json j = json::parse(RunCli({"status", "sim", "--json"}).out);
  EXPECT_EQ(j["state"], "new");
}

TEST_F(InspectTest, ReportWritesItsPageAndSaysWhere) {
  WriteRun(SimulatedRun());
  scratch_.Write(
      run_ + "/metrics.jsonl",
      "{\"step\":1,\"version\":1,\"lineage\":0,\"wall_s\":1.0,\"metrics\":{\"critic/score/mean\":0.5}}\n");
  const CliResult r = RunCli({"report", "sim"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, run_ + "/report.html\n");
  EXPECT_GT(std::filesystem::file_size(run_ + "/report.html"), 1000U);
}

TEST_F(InspectTest, WhatIsNotThereIsOneClearMessage) {
  for (const char* command : {"status", "report", "check", "samples", "journal"}) {
    const CliResult r = RunCli({command, "nothing"});
    EXPECT_EQ(r.exit_code, 2) << command;
    EXPECT_NE(r.err.find("nothing: no such run"), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_EQ(RunCli({command}).exit_code, 2) << command;
  }
  for (const char* command : {"check", "journal", "samples"}) {
    const CliResult r = RunCli({command, "sim"});  // a run that has not begun
    EXPECT_EQ(r.exit_code, 2) << command << r.err;
    EXPECT_FALSE(r.err.empty());
  }
  for (const char* command : {"check", "journal"}) {
    EXPECT_NE(RunCli({command, "sim"}).err.find("--resume"), std::string::npos) << "how to go on";
  }
}

}  // namespace
}  // namespace tidepool::workers
