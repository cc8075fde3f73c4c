// What ranks of one mesh wrote is read by those of any other, to the bit.

#include "workers/device/state_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/model/cut.h"
#include "core/model/layout.h"
#include "core/sharding/intervals.h"

namespace tidepool::workers {
namespace {

using model::ModelSpec;
using model::Part;

ModelSpec SomeModel() {
  ModelSpec s;
  s.architecture = "qwen3";
  s.vocab_size = 53;
  s.hidden_size = 24;
  s.intermediate_size = 36;
  s.layers = 2;
  s.heads = 24;
  s.kv_heads = 12;
  s.head_size = 4;
  s.qk_norm = s.qkv_bias = s.o_bias = s.mlp_bias = true;
  return s;
}
ModelSpec WithExperts() {
  ModelSpec s = SomeModel();
  s.architecture = "qwen3_moe";
  s.layers = 3;
  s.qkv_bias = s.o_bias = s.mlp_bias = false;
  s.moe = {.experts = 12, .experts_per_token = 2, .intermediate_size = 5, .shared_intermediate_size = 7};
  s.moe.dense_layers = {1};
  return s;
}

struct Mesh {
  int64_t data = 1, tensor = 1;
  bool zero = false;
  model::Cut what = model::Cut::kMatrices;
};
void PrintTo(const Mesh& m, std::ostream* out) {
  *out << m.data << " x " << m.tensor << (m.zero ? ", zero" : "");
}

// A state whose elements are all different: what a rank has of it.
struct RankState {
  std::vector<float> m;
  int64_t updates = 7;
  Part part;
  std::optional<train::NamedBytes::Piece> piece;
  [[nodiscard]] train::NamedBytes named() { return {"m", std::as_writable_bytes(std::span(m)), piece, part}; }
  [[nodiscard]] train::NamedBytes count() {
    return {"updates", std::as_writable_bytes(std::span(&updates, 1))};
  }

  RankState(const ModelSpec& spec, const Mesh& mesh, int64_t d, int64_t t, bool filled) {
    part = {t, mesh.tensor, mesh.what};
    const int64_t elements = model::LayoutElements(model::PartSpec(spec, part));
    std::vector<float> whole(static_cast<size_t>(elements), 0.0F);
    for (const auto& parameter : model::Runs(spec, part)) {
      for (const model::Run& run : parameter.runs) {
        for (int64_t row = 0; row < run.rows; ++row) {
          for (int64_t i = 0; i < run.n && filled; ++i)
            whole[static_cast<size_t>(run.in_part + row * run.n + i)] =
                static_cast<float>(1 + run.in_whole + row * run.stride + i);
        }
      }
    }
    const sharding::Interval own =
        mesh.zero ? sharding::Owned(elements, {d, mesh.data}) : sharding::Interval{0, elements};
    m.assign(whole.begin() + own.from, whole.begin() + own.to);
    if (mesh.zero && mesh.data > 1)
      piece = train::NamedBytes::Piece{{own.from * 4, own.to * 4}, elements * 4};
    if (!filled) updates = 0;
  }
};

class StateFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void Write(const Mesh& mesh) { Write(spec_, mesh); }
  void Write(const ModelSpec& spec, const Mesh& mesh) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    for (int64_t d = 0; d < (mesh.zero ? mesh.data : 1); ++d) {
      for (int64_t t = 0; t < mesh.tensor; ++t) {
        RankState state(spec, mesh, d, t, true);
        ASSERT_TRUE(WritePart(dir_ + "/" + PartFile(state.named()), state.named().bytes).ok());
        ASSERT_TRUE(WritePart(dir_ + "/" + PartFile(state.count()), state.count().bytes).ok());
      }
    }
  }
  const ModelSpec spec_ = SomeModel();
  const std::string dir_ = ::testing::TempDir() + "state_files";
};

TEST_F(StateFilesTest, WhatOneMeshWroteAnotherReads) {
  const Mesh meshes[] = {{1, 1}, {2, 1, true}, {1, 2},       {1, 3},
                         {1, 4}, {2, 2, true}, {3, 2, true}, {3, 1, true}};
  for (const Mesh& from : meshes) {
    Write(from);
    for (const Mesh& to : meshes) {
      SCOPED_TRACE(::testing::PrintToString(from) + " to " + ::testing::PrintToString(to));
      for (int64_t d = 0; d < to.data; ++d) {
        for (int64_t t = 0; t < to.tensor; ++t) {
          RankState state(spec_, to, d, t, /*filled=*/false);
          const Status read = ReadShared(dir_, state.named(), spec_, nullptr);
          ASSERT_TRUE(read.ok()) << read.message();
          EXPECT_TRUE(state.m == RankState(spec_, to, d, t, true).m);
          ASSERT_TRUE(ReadShared(dir_, state.count(), spec_, nullptr).ok());
          EXPECT_EQ(state.updates, 7);
        }
      }
    }
  }
}

// Slots that each have a part of the experts, as many as they like.
TEST_F(StateFilesTest, WhatSomeRanksWithExpertsWroteOthersRead) {
  const ModelSpec spec = WithExperts();
  constexpr auto kExperts = model::Cut::kExperts;
  const Mesh meshes[] = {
      {1, 1}, {2, 1, true}, {1, 2, false, kExperts}, {1, 3, false, kExperts}, {1, 12, false, kExperts}};
  for (const Mesh& from : meshes) {
    Write(spec, from);
    for (const Mesh& to : meshes) {
      SCOPED_TRACE(::testing::PrintToString(from) + " to " + ::testing::PrintToString(to));
      for (int64_t rank = 0; rank < to.data * to.tensor; ++rank) {
        const int64_t d = rank / to.tensor, t = rank % to.tensor;
        RankState state(spec, to, d, t, /*filled=*/false);
        const Status read = ReadShared(dir_, state.named(), spec, nullptr);
        ASSERT_TRUE(read.ok()) << read.message();
        EXPECT_TRUE(state.m == RankState(spec, to, d, t, true).m);
      }
    }
  }
  Write(spec, {1, 2, false, kExperts});
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/m.ep1of2.bin"));
  std::filesystem::remove(dir_ + "/m.ep1of2.bin");
  RankState whole(spec, {}, 0, 0, /*filled=*/false);
  EXPECT_THAT(ReadShared(dir_, whole.named(), spec, nullptr).message(),
              ::testing::HasSubstr("of the model is in no file"));
}

TEST_F(StateFilesTest, APartThatIsNotThereOrThereTwiceIsDataLoss) {
  RankState whole(spec_, {}, 0, 0, /*filled=*/false);
  Write({1, 2});
  std::filesystem::remove(dir_ + "/m.tp1of2.bin");
  const Status missing = ReadShared(dir_, whole.named(), spec_, nullptr);
  EXPECT_EQ(missing.code(), StatusCode::kDataLoss);
  EXPECT_THAT(missing.message(), ::testing::HasSubstr("of the model is in no file"));
  Write({1, 2});
  RankState third(spec_, {1, 3}, 0, 1, true);
  ASSERT_TRUE(WritePart(dir_ + "/" + PartFile(third.named()), third.named().bytes).ok());
  const Status twice = ReadShared(dir_, whole.named(), spec_, nullptr);
  EXPECT_EQ(twice.code(), StatusCode::kDataLoss);
  EXPECT_THAT(twice.message(), ::testing::HasSubstr("have the same elements"));
  std::filesystem::rename(dir_ + "/m.tp1of3.bin", dir_ + "/m.tp5of2.bin");
  EXPECT_THAT(ReadShared(dir_, whole.named(), spec_, nullptr).message(),
              ::testing::HasSubstr("no part of this model has that name"));
}

}  // namespace
}  // namespace tidepool::workers
