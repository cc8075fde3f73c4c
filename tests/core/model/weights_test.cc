#include "core/model/weights.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

TEST(WeightsTest, LayoutIsAlignedInModuleOrderAndCoversTheSpec) {
  const std::vector<Parameter> layout = Layout(TinySpec("qwen2"));
  int64_t end = 0;
  for (const Parameter& p : layout) {
    EXPECT_EQ(p.offset % 64, 0) << p.name;
    EXPECT_GE(p.offset, end) << p.name;
    EXPECT_LT(p.offset - end, 64) << p.name;
    end = p.offset + p.numel();
  }
  EXPECT_EQ(layout.front().name, "embedding");
  EXPECT_EQ(layout.back().name, "final_norm");
  EXPECT_EQ(LayoutElements(TinySpec("qwen2")) % 64, 0);
}

TEST(WeightsTest, AGivenArenaIsUsedInPlace) {
  const ModelSpec s = TinySpec();
  std::vector<float> memory(static_cast<size_t>(LayoutElements(s)) + 16);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const auto bytes = static_cast<size_t>(LayoutElements(s)) * 4;
  auto w = Weights::Create(s, DType::kFloat32, {aligned, bytes});
  ASSERT_TRUE(w.ok());
  (*w)->Initialize(1, 0.02);
  EXPECT_EQ((*w)->bytes().data(), aligned);
  EXPECT_EQ((*w)->Get("final_norm").const_data_ptr<float>()[0], 1.0F);
  EXPECT_EQ(Weights::Create(s, DType::kFloat32, {aligned, bytes - 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(WeightsTest, DigestSeesEveryByteAndPlace) {
  auto w = std::move(Weights::Create(TinySpec(), DType::kBFloat16)).value();
  w->Initialize(3, 0.02);
  const uint64_t digest = w->Digest();
  EXPECT_EQ(digest, w->Digest());
  w->bytes()[1001] ^= std::byte{1};
  EXPECT_NE(digest, w->Digest());
  w->bytes()[1001] ^= std::byte{1};
  EXPECT_EQ(digest, w->Digest());
  std::swap_ranges(w->bytes().begin(), w->bytes().begin() + 8, w->bytes().begin() + 64);
  EXPECT_NE(digest, w->Digest());
}

TEST(WeightsTest, InitializationIsAFunctionOfTheSeed) {
  auto a = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  auto b = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  a->Initialize(3, 0.02);
  b->Initialize(3, 0.02);
  EXPECT_EQ(a->Digest(), b->Digest());
  b->Initialize(4, 0.02);
  EXPECT_NE(a->Digest(), b->Digest());
}

TEST(WeightsTest, RefusesSizesThatCannotBe) {
  ModelSpec s = TinySpec();
  s.kv_heads = 3;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  s = TinySpec();
  s.head_size = 23;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  s = TinySpec();
  s.hidden_size = int64_t{1} << 40;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::model
