#include "workers/cli/model_lookup.h"

#include <gtest/gtest.h>

#include "core/base/real_file_system.h"
#include "core/storage/checkpoint.h"
#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

const char* const kModel = R"({"model_type":"llama"})";

// A whole checkpoint of a step; `model` goes into its config.json, none where it is empty.
void WriteCheckpoint(const std::string& run, int64_t step, const std::string& model = kModel) {
  RealFileSystem files;
  auto writer = storage::CheckpointWriter::Begin(files, run + "/checkpoints", {{step}, 1, step});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_TRUE(files.MakeDirectories((*writer)->dir() + "/" + name.substr(0, name.find('/'))).ok());
    auto file = files.CreateNew((*writer)->dir() + "/" + name);
    ASSERT_TRUE(file.ok() && (*file)->Append(text).ok());
  };
  std::vector<std::string> written = {"trainer/state"};
  write("trainer/state", "moments");
  if (!model.empty()) {
    write("model/config.json", model);
    written.push_back("model/config.json");
  }
  storage::Manifest manifest;
  manifest.run_id = "r";
  manifest.step = {step};
  ASSERT_TRUE((*writer)->Commit(manifest, written).ok());
}

void ExpectFound(const std::string& name, const std::string& dir) {
  const auto found = FindModel(name, "--model");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->dir, dir);
  EXPECT_EQ(found->architecture, "llama");
}

void ExpectMissing(const std::string& name, const std::string& why) {
  const auto found = FindModel(name, "--model");
  ASSERT_FALSE(found.ok()) << found->dir;
  EXPECT_NE(found.status().message().find(why), std::string::npos) << found.status().message();
  EXPECT_TRUE(found.status().message().starts_with("--model: ")) << found.status().message();
}

TEST(FindModelTest, TakesAFolderAndOfARunItsFinalModel) {
  const ScratchFolder scratch;
  scratch.Write("models/small/config.json", kModel);
  ExpectFound("models/small/", "models/small");
  const std::string run = "runs/quick-20260301T000000Z";
  scratch.Write(run + "/config.yaml", "name: quick\n");
  WriteCheckpoint(run, 10);
  scratch.Write(run + "/final/config.json", kModel);
  for (const std::string& name : {run, std::string("quick"), std::string("quick-20260301T000000Z")})
    ExpectFound(name, run + "/final");
  ExpectFound("quick:10", run + "/checkpoints/step_10/model");
  ExpectFound(run + "/checkpoints/step_10", run + "/checkpoints/step_10/model");
  scratch.Write(run + "/journal/0001.tpj", "");
  EXPECT_EQ(FindModel(run + "/final", "x")->run, run);
  EXPECT_EQ(FindModel(run + "/checkpoints/step_10/model", "x")->run, run);
  EXPECT_EQ(FindModel("models/small", "x")->run, "");
  ExpectMissing("quick:best", "has no best/");
  scratch.Write(run + "/best/config.json", kModel);
  ExpectFound("quick:best", run + "/best");
  EXPECT_EQ(DescribeModel(*FindModel("quick:10", "x")), run + "/checkpoints/step_10/model (step 10)");
}

TEST(FindModelTest, TakesTheNewestCheckpointOfARunWithoutAFinalModel) {
  const ScratchFolder scratch;
  const std::string run = "runs/quick-20260301T000000Z";
  scratch.Write(run + "/config.yaml", "name: quick\n");
  ExpectMissing("quick", "neither a final model nor a checkpoint");
  for (const int64_t step : {2, 9, 10}) WriteCheckpoint(run, step);
  WriteCheckpoint(run, 11, /*model=*/"");  // one without a model of its own
  ExpectFound("quick", run + "/checkpoints/step_10/model");
  EXPECT_EQ(DescribeModel(*FindModel("quick", "x")),
            run + "/checkpoints/step_10/model (step 10; the run has no final model)");
  ExpectFound("quick:2", run + "/checkpoints/step_2/model");
  ExpectMissing("quick:3", "no checkpoint of step 3; there are those of step 2, 9, 10");
  scratch.Write(run + "/checkpoints/step_9/model/config.json", R"({"model_type":"qwen2"})");
  ExpectMissing("quick:9", "is not what the checkpoint's manifest says");
}

TEST(FindModelTest, SaysWhatThereIs) {
  const ScratchFolder scratch;
  scratch.Write("models/small/config.json", kModel);
  scratch.Write("runs/quick-20260301T000000Z/config.yaml", "name: quick\n");
  scratch.Write("notes/readme.txt", "x");
  ExpectMissing("slow", "the newest under runs/: quick-20260301T000000Z; models: models/small");
  ExpectMissing("notes", "neither a model folder (it has no config.json) nor a run directory");
  ExpectMissing("", "is empty");
}

}  // namespace
}  // namespace tidepool::workers
