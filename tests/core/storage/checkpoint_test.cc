#include "core/storage/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/base/rng.h"
#include "core/storage/publish_folder.h"
#include "core/storage/share_files.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDir = "run/checkpoints";

Manifest Of(int64_t ckpt) {
  Manifest manifest;
  manifest.run_id = "run-1";
  manifest.ckpt = ckpt;
  manifest.cut = Lsn{100 + ckpt};
  manifest.version = {1, 7};
  manifest.weights_digest = 0xfedcba9876543210ULL;
  manifest.config_digest = "abc";
  manifest.instruction_set = "avx2";
  return manifest;
}

// As the trainer does it: folders and files, synced by nobody.
Status WriteInto(FileSystem& fs, const std::string& dir, const std::string& path, const std::string& bytes) {
  TP_RETURN_IF_ERROR(fs.MakeDirectories(ParentPath(JoinPath(dir, path))));
  TP_ASSIGN_OR_RETURN(const auto file, fs.CreateNew(JoinPath(dir, path)));
  return file->Append(bytes);
}

// What a controller and a trainer do together; `mark` tells attempts apart.
StatusOr<uint64_t> WriteOne(FileSystem& fs, int64_t step, const std::string& mark) {
  static int64_t tries = 0;
  TP_ASSIGN_OR_RETURN(const auto writer,
                      CheckpointWriter::Begin(fs, kDir, {.step = {step}, .ctl_epoch = 1, .ckpt = ++tries}));
  TP_RETURN_IF_ERROR(
      WriteInto(fs, writer->dir(), "model/model.safetensors", "weights " + mark + std::string(500, 'w')));
  TP_RETURN_IF_ERROR(WriteInto(fs, writer->dir(), "model/tokenizer.json", "the same in all of them"));
  TP_RETURN_IF_ERROR(WriteInto(fs, writer->dir(), "state.json", "state " + mark));
  return writer->Commit(Of(step), {"state.json", "model/model.safetensors", "model/tokenizer.json"});
}

TEST(FileDigestTest, PiecesOfAnySizeGiveTheSameDigest) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    for (int64_t n = rng.Below(200); n > 0; --n) bytes.push_back(static_cast<char>(rng.Next()));
    FileDigest digest;
    for (size_t at = 0; at < bytes.size();) {
      const auto n = static_cast<size_t>(rng.InRange(1, 30));
      digest.Update(std::string_view(bytes).substr(at, n));
      at += n;
    }
    EXPECT_EQ(digest.Finish(), SaltedSum(std::as_bytes(std::span(bytes)), 0));
  }
}

TEST(CheckpointTest, CommitsVerifiesAndReadsBackOnBothFileSystems) {
  MemoryFileSystem memory;
  RealFileSystem real;
  std::string root = testing::TempDir() + "/tidepool_ckpt_XXXXXX";
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  const std::vector<std::pair<FileSystem*, std::string>> cases = {{&memory, "run/checkpoints"},
                                                                  {&real, root + "/checkpoints"}};
  for (const auto& [fs, dir] : cases) {
    auto writer = CheckpointWriter::Begin(*fs, dir, {{20}, 1, 3});
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    ASSERT_TRUE(WriteInto(*fs, (*writer)->dir(), "model/config.json", "{}").ok());
    ASSERT_TRUE(WriteInto(*fs, (*writer)->dir(), "optimizer/shard_0", std::string(10000, 'x')).ok());
    const auto digest = (*writer)->Commit(Of(3), {"model/config.json", "optimizer/shard_0"});
    ASSERT_TRUE(digest.ok()) << digest.status().ToString();
    const auto manifest = VerifyCheckpoint(*fs, dir + "/step_20", *digest);
    ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
    EXPECT_EQ(manifest->ckpt, 3);
    EXPECT_EQ(manifest->step, StepNumber{20});
    EXPECT_EQ(manifest->cut, Lsn{103});
    EXPECT_EQ(manifest->version, (Version{1, 7}));
    EXPECT_EQ(manifest->weights_digest, 0xfedcba9876543210ULL);
    EXPECT_EQ(manifest->instruction_set, "avx2");
    ASSERT_EQ(manifest->files.size(), 2U);
    EXPECT_EQ(manifest->files[1].path, "optimizer/shard_0");
    EXPECT_EQ(manifest->files[1].bytes, 10000);
    EXPECT_THAT(*fs->List(dir), ElementsAre("step_20"));
  }
  ASSERT_TRUE(real.RemoveTree(root).ok());
}

TEST(CheckpointTest, EveryDamagedByteIsFoundAndNamed) {
  MemoryFileSystem fs;
  const auto digest = WriteOne(fs, 5, "a");
  ASSERT_TRUE(digest.ok());
  const auto names = fs.ListTree("run/checkpoints/step_5");
  for (const std::string& name : names.value()) {
    const std::string path = "run/checkpoints/step_5/" + name;
    for (int64_t i = 0; i < *fs.Size(path); i += 7) {
      fs.FlipByte(path, i, 1);
      const auto verified = VerifyCheckpoint(fs, "run/checkpoints/step_5", *digest);
      EXPECT_EQ(verified.status().code(), StatusCode::kDataLoss);
      EXPECT_THAT(verified.status().message(), HasSubstr(path));
      fs.FlipByte(path, i, 1);
    }
  }
  ASSERT_TRUE(VerifyCheckpoint(fs, "run/checkpoints/step_5", *digest).ok());
  EXPECT_FALSE(VerifyCheckpoint(fs, "run/checkpoints/step_5", *digest + 1).ok())
      << "a checkpoint of another run";
  ASSERT_TRUE(fs.RemoveFile("run/checkpoints/step_5/state.json").ok());
  EXPECT_THAT(VerifyCheckpoint(fs, "run/checkpoints/step_5", *digest).status().message(),
              HasSubstr("state.json: the manifest lists it"));
}

TEST(CheckpointTest, OtherFilesThanItsWriterToldOfAreNotCommitted) {
  for (const bool missing : {true, false}) {
    MemoryFileSystem fs;
    auto writer = CheckpointWriter::Begin(fs, kDir, {{1}, 1, 1});
    ASSERT_TRUE(WriteInto(fs, (*writer)->dir(), "model", "1234").ok());
    ASSERT_TRUE(missing || WriteInto(fs, (*writer)->dir(), "shard", "of another").ok());
    const auto told =
        missing ? std::vector<std::string>{"model", "shard"} : std::vector<std::string>{"model"};
    const auto digest = (*writer)->Commit(Of(1), told);
    EXPECT_EQ(digest.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(digest.status().message(), HasSubstr("shard"));
  }
}

TEST(CheckpointTest, WhatHasNotChangedIsThereOnceAndStaysForWhoeverHasIt) {
  RealFileSystem fs;
  std::string root = testing::TempDir() + "/tidepool_shared_XXXXXX";
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  std::filesystem::current_path(root);
  ASSERT_TRUE(WriteOne(fs, 1, "a").ok());
  const auto second = WriteOne(fs, 2, "b");
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  const auto names = [](int step, const char* path) {
    return std::filesystem::hard_link_count(std::string(kDir) + "/step_" + std::to_string(step) + "/" + path);
  };
  EXPECT_EQ(names(2, "model/tokenizer.json"), 2U);
  EXPECT_EQ(names(2, "model/model.safetensors"), 1U);
  const auto again = WriteOne(fs, 3, "b");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(names(3, "model/model.safetensors"), 2U) << "no update was made since";
  EXPECT_EQ(names(3, "model/tokenizer.json"), 3U);
  EXPECT_THAT(*fs.List(std::string(kDir) + "/step_3/model"),
              ElementsAre("model.safetensors", "tokenizer.json"));
  ASSERT_TRUE(RemoveCheckpoint(fs, kDir, StepNumber{1}).ok());
  ASSERT_TRUE(RemoveCheckpoint(fs, kDir, StepNumber{2}).ok());
  EXPECT_TRUE(VerifyCheckpoint(fs, "run/checkpoints/step_3", *again).ok());
  std::filesystem::current_path("/");
  ASSERT_TRUE(fs.RemoveTree(root).ok());
}

TEST(CheckpointTest, DamageOfASharedFileIsFoundInBoth) {
  MemoryFileSystem fs;
  const auto first = WriteOne(fs, 1, "a"), second = WriteOne(fs, 2, "b");
  ASSERT_TRUE(first.ok() && second.ok());
  fs.FlipByte("run/checkpoints/step_2/model/tokenizer.json", 3);
  EXPECT_EQ(VerifyCheckpoint(fs, "run/checkpoints/step_1", *first).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(VerifyCheckpoint(fs, "run/checkpoints/step_2", *second).status().code(), StatusCode::kDataLoss);
}

TEST(CheckpointTest, BaseModelIsLinkedWholeOrNotAtAllAndNamedWhereItWasChanged) {
  MemoryFileSystem fs;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "README.md"})
    ASSERT_TRUE(WriteInto(fs, "models/base", name, std::string("base ") + name).ok());
  auto writer = *CheckpointWriter::Begin(fs, kDir, {{0}, 1, 0});
  const std::string model = writer->dir() + "/model";
  for (int64_t at = 0; at < 4; ++at) {  // another disk, another owner: the trainer writes the model itself
    fs.SetFaults({.fail_operation = at, .fail_errno = EXDEV});
    EXPECT_FALSE(LinkModel(fs, "models/base", model).ok());
    EXPECT_FALSE(fs.Exists(model));
  }
  fs.SetFaults({});
  EXPECT_EQ(LinkModel(fs, "models", model).code(), StatusCode::kNotFound) << "it has no weights";
  EXPECT_FALSE(fs.Exists(model));
  ASSERT_TRUE(LinkModel(fs, "models/base", model).ok());
  ASSERT_TRUE(WriteInto(fs, writer->dir(), "trainer/m.bin", "zeros").ok());
  Manifest manifest = Of(0);
  manifest.notes[kBaseModel] = "models/base";
  const auto digest = writer->Commit(
      manifest, {"model/config.json", "model/model.safetensors", "model/tokenizer.json", "trainer/m.bin"});
  ASSERT_TRUE(digest.ok()) << digest.status().ToString();
  fs.FlipByte("models/base/tokenizer.json", 2);
  EXPECT_TRUE(VerifyCheckpoint(fs, "run/checkpoints/step_0", *digest).ok()) << "people edit it where it is";
  fs.FlipByte("models/base/model.safetensors", 2);
  EXPECT_THAT(VerifyCheckpoint(fs, "run/checkpoints/step_0", *digest).status().message(),
              HasSubstr("it is the file of the base model models/base (a hard link), which was changed"));
  fs.FlipByte("models/base/model.safetensors", 2);
  ASSERT_TRUE(fs.RemoveTree("models/base").ok());
  EXPECT_TRUE(VerifyCheckpoint(fs, "run/checkpoints/step_0", *digest).ok()) << "it does not need the folder";
}

// The first trainer was given up, and still writes while its successor does, under the same controller.
TEST(CheckpointTest, TwoTriesOfAStepDoNotMeet) {
  MemoryFileSystem fs;
  auto first = CheckpointWriter::Begin(fs, kDir, {{7}, 1, 4});
  ASSERT_TRUE(WriteInto(fs, (*first)->dir(), "model", "of the first").ok());
  auto second = CheckpointWriter::Begin(fs, kDir, {{7}, 1, 5});
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(WriteInto(fs, (*second)->dir(), "model", "of the second").ok());
  ASSERT_TRUE(WriteInto(fs, (*first)->dir(), "trainer", "of the first").ok()) << "its folder is still there";
  ASSERT_TRUE((*second)->Commit(Of(5), {"model"}).ok());
  EXPECT_EQ(*fs.ReadFile(JoinPath(kDir, "step_7/model")), "of the second");
}

TEST(CheckpointTest, ManifestCannotReachOutsideItsFolder) {
  Manifest manifest = Of(1);
  for (const char* path : {"../x", "/etc/passwd", "a//b", "a/./b", "", "a/../../b"}) {
    manifest.files = {{.path = path, .bytes = 1, .digest = 2}};
    EXPECT_EQ(ParseManifest(ManifestToJson(manifest), "m").status().code(), StatusCode::kDataLoss) << path;
  }
  manifest.files = {{.path = "model/a", .bytes = 1, .digest = 2}};
  EXPECT_EQ(ParseManifest(ManifestToJson(manifest), "m")->files, manifest.files);
  manifest.schema = 2;
  EXPECT_EQ(ParseManifest(ManifestToJson(manifest), "m").status().code(), StatusCode::kFailedPrecondition);
  for (const char* text : {"", "[]", "{}", "{\"schema\":\"x\"}", "{\"schema\":1,\"files\":3}"}) {
    EXPECT_EQ(ParseManifest(text, "m").status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(CheckpointTest, ListsRemovesAndTidies) {
  MemoryFileSystem fs;
  EXPECT_TRUE(ListCheckpoints(fs, kDir)->empty());
  for (const int64_t step : {0, 9, 20, 100}) ASSERT_TRUE(WriteOne(fs, step, "x").ok());
  auto unfinished = CheckpointWriter::Begin(fs, kDir, {{120}, 1, 1});
  auto older = CheckpointWriter::Begin(fs, kDir, {{120}, 2, 1});  // does not touch the first's folder
  ASSERT_TRUE(WriteInto(fs, (*unfinished)->dir(), "a", "b").ok());
  EXPECT_NE((*unfinished)->dir(), (*older)->dir());
  EXPECT_THAT(*ListCheckpoints(fs, kDir),
              ElementsAre(StepNumber{0}, StepNumber{9}, StepNumber{20}, StepNumber{100}));
  ASSERT_TRUE(RemoveCheckpoint(fs, kDir, StepNumber{9}).ok());
  ASSERT_TRUE(RemoveCheckpoint(fs, kDir, StepNumber{9}).ok());
  EXPECT_EQ(RemoveLeftovers(fs, kDir)->handled, 2);
  EXPECT_THAT(*fs.List(kDir), ElementsAre("step_0", "step_100", "step_20"));
}

TEST(CheckpointTest, FullDiskLeavesNothingHalfWritten) {
  MemoryFileSystem fs;
  const auto first = WriteOne(fs, 1, "a");
  ASSERT_TRUE(first.ok());
  for (int64_t capacity = 1200; capacity < 2600; capacity += 50) {
    fs.SetFaults({.capacity_bytes = capacity});
    const auto second = WriteOne(fs, 2, "b");
    if (second.ok()) break;
    EXPECT_EQ(second.status().code(), StatusCode::kResourceExhausted);
    fs.SetFaults({});
    ASSERT_TRUE(RemoveLeftovers(fs, kDir).ok());
    EXPECT_THAT(*fs.List(kDir), ElementsAre("step_1"));
  }
  EXPECT_TRUE(VerifyCheckpoint(fs, "run/checkpoints/step_1", *first).ok());
}

// A power cut at every operation of: a second checkpoint, the replacement of a first one of the same step,
// and the removal of an old one.
TEST(CheckpointTest, SurvivesAPowerCutAtEveryOperation) {
  int committed_without_reply = 0;
  for (int64_t at = 0;; ++at) {
    bool reached = false;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "operation " << at << " seed " << seed);
      MemoryFileSystem fs;
      ASSERT_TRUE(fs.MakeDirectories(kDir).ok());
      const uint64_t kept = *WriteOne(fs, 1, "kept");
      const uint64_t replaced = *WriteOne(fs, 2, "undone branch");
      fs.SetFaults({.seed = seed * 100 + static_cast<uint64_t>(at), .crash_at_operation = at});
      const auto third = WriteOne(fs, 3, "c");
      const auto second = third.ok() ? WriteOne(fs, 2, "again") : third;
      const Status removed = second.ok() ? RemoveCheckpoint(fs, kDir, StepNumber{1}) : second.status();
      reached = fs.crashed();
      fs.Crash();
      fs.SetFaults({.seed = seed});
      ASSERT_TRUE(RemoveLeftovers(fs, kDir).ok());

      // Whatever carries the name of a checkpoint is whole.
      const auto steps = ListCheckpoints(fs, kDir);
      ASSERT_TRUE(steps.ok());
      for (const StepNumber step : *steps) {
        const auto verified = VerifyCheckpoint(fs, JoinPath(kDir, CheckpointName(step)), std::nullopt);
        ASSERT_TRUE(verified.ok()) << verified.status().ToString();
      }
      const auto names = fs.List(kDir);
      EXPECT_THAT(names.value(), testing::Each(testing::Not(testing::ContainsRegex("tmp|old"))));
      // What was committed is there, what was being replaced is there in one of its two forms.
      EXPECT_TRUE(!third.ok() || VerifyCheckpoint(fs, "run/checkpoints/step_3", *third).ok());
      if (!third.ok() && fs.Exists("run/checkpoints/step_3")) ++committed_without_reply;
      const auto step2 =
          VerifyCheckpoint(fs, "run/checkpoints/step_2", second.ok() ? std::optional(*second) : std::nullopt);
      EXPECT_TRUE(step2.ok()) << step2.status().ToString();
      EXPECT_TRUE(third.ok() || VerifyCheckpoint(fs, "run/checkpoints/step_2", replaced).ok());
      EXPECT_TRUE(second.ok() || VerifyCheckpoint(fs, "run/checkpoints/step_1", kept).ok());
      EXPECT_TRUE(!removed.ok() || !fs.Exists("run/checkpoints/step_1"));
    }
    if (!reached) break;
    ASSERT_LT(at, 1000);
  }
  EXPECT_GT(committed_without_reply, 0) << "the case 'renamed but not told' has to occur";
}

// A folder that another process wrote, its files not synced by anybody.
Status WriteFinal(FileSystem& fs, const std::string& dir, const std::string& mark) {
  TP_RETURN_IF_ERROR(fs.MakeDirectories(dir));
  for (const char* name : {"config.json", "model.safetensors"}) {
    TP_ASSIGN_OR_RETURN(const auto file, fs.CreateNew(JoinPath(dir, name)));
    TP_RETURN_IF_ERROR(file->Append(mark + std::string(100, 'x')));
  }
  return OkStatus();
}

TEST(PublishFolderTest, ThePublishedFolderIsWholeWhateverIsCut) {
  for (int64_t at = 0;; ++at) {
    ASSERT_LT(at, 200);
    MemoryFileSystem fs({.seed = static_cast<uint64_t>(at)});
    ASSERT_TRUE(WriteFinal(fs, "run/final.tmp-1", "old").ok());
    ASSERT_TRUE(PublishFolder(fs, "run/final.tmp-1", "run/final").ok());
    ASSERT_TRUE(WriteFinal(fs, "run/final.tmp-2", "new").ok());
    fs.SetFaults({.seed = static_cast<uint64_t>(at), .crash_at_operation = at});
    const Status published = PublishFolder(fs, "run/final.tmp-2", "run/final");
    const bool reached = fs.crashed();
    fs.Crash();
    fs.SetFaults({});
    if (!fs.Exists("run/final")) ASSERT_FALSE(published.ok());  // between two names
    ASSERT_TRUE(FinishPublish(fs, "run/final").ok());
    EXPECT_FALSE(fs.Exists("run/final.old"));
    const auto config = fs.ReadFile("run/final/config.json"),
               weights = fs.ReadFile("run/final/model.safetensors");
    ASSERT_TRUE(config.ok() && weights.ok()) << "cut at operation " << at;
    EXPECT_EQ(*config, *weights);
    EXPECT_EQ(config->size(), 103U);
    if (published.ok()) EXPECT_TRUE(config->starts_with("new"));
    if (!reached) break;
  }
  MemoryFileSystem fs;
  EXPECT_FALSE(PublishFolder(fs, "run/none", "run/final").ok());
}

}  // namespace
}  // namespace tidepool::storage
