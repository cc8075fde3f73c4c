#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/device/cpu/row_blocks.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

ModelSpec SmolLm2() {
  ModelSpec s;
  s.vocab_size = 49152;
  s.hidden_size = 576, s.intermediate_size = 1536, s.layers = 30;
  s.heads = 9, s.kv_heads = 3, s.head_size = 64, s.tie_embeddings = true;
  return s;
}

// The same product with the additions in another order: other last bits.
void InTwoHalves(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  const int64_t k = w.size(0), half = k / 2;
  out.copy_(at::mm(x.narrow(1, 0, half), w.narrow(0, 0, half))
                .add_(at::mm(x.narrow(1, half, k - half), w.narrow(0, half, k - half))));
}
// A library whose rows change with batches above `most` rows, as bfloat16 with AMX does.
device::RowBlocks::Product ChangesAbove(int64_t most) {
  return [most](at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
    if (x.size(0) > most)
      InTwoHalves(out, x, w);
    else
      at::mm_out(out, x, w);
  };
}

// Tells a developer whether deterministic mode works on this machine before the bit tests fail in
// less readable ways.
TEST(InvarianceTest, ProductsOfQuickstartAreInvariantHere) {
  ModelSpec s;
  s.vocab_size = 53;
  s.hidden_size = 128, s.intermediate_size = 384, s.layers = 4;
  s.heads = 4, s.kv_heads = 2, s.head_size = 32;
  EXPECT_EQ(device::RowBlocks().Cover(ProductsOf(s), DType::kFloat32), OkStatus());
}

TEST(InvarianceTest, ProductsOfSmolLm2AreInvariantHere) {
  device::RowBlocks blocks;
  EXPECT_EQ(blocks.Cover(ProductsOf(SmolLm2()), DType::kBFloat16), OkStatus());
}

TEST(InvarianceTest, ABlockEndsWhereTheLibraryChanges) {
  ModelSpec s = TinySpec();
  for (const auto& [most, block] : {std::pair<int64_t, int64_t>{128, 128}, {100, 96}, {200, 192}, {16, 16}}) {
    device::RowBlocks blocks(ChangesAbove(most));
    ASSERT_EQ(blocks.Cover(ProductsOf(s), DType::kFloat32), OkStatus());
    EXPECT_EQ(blocks.Largest(s.hidden_size, s.intermediate_size), block);
    EXPECT_NE(blocks.limited().find("down [48, 72] " + std::to_string(block)), std::string::npos)
        << blocks.limited();
  }
  EXPECT_EQ(device::RowBlocks(ChangesAbove(128)).Largest(7, 7), 0);
}

// 300 rows at once, as a training step computes them, and the same rows 16 at a time.
TEST(InvarianceTest, RowsAreEqualInEveryBatchWithALibraryThatChangesAbove128Rows) {
  const ModelSpec s = TinySpec();
  for (const bool deterministic : {true, false}) {
    auto w = std::move(Weights::Create(s, DType::kFloat32)).value();
    Randomize(*w, 3, 0.2);
    auto blocks = std::make_shared<device::RowBlocks>(ChangesAbove(128));
    ASSERT_EQ(blocks->Cover(ProductsOf(s), DType::kFloat32), OkStatus());
    at::Tensor x = w->Get("embedding").repeat({6, 1}).narrow(0, 0, 304).contiguous();
    const at::Tensor down = w->Get("layers.0.qkv").t();
    at::Tensor all = at::zeros({304, down.size(1)}), parts = at::zeros(all.sizes());
    if (deterministic)
      blocks->Multiply(all, x, down);
    else
      ChangesAbove(128)(all, x, down);
    for (int64_t r = 0; r < 304; r += 16) {
      at::Tensor part = parts.narrow(0, r, 16);
      blocks->Multiply(part, x.narrow(0, r, 16), down);
    }
    EXPECT_EQ(all.equal(parts), deterministic);
  }
}

TEST(InvarianceTest, RefusesALibraryWhoseRowsDependOnTheirPlace) {
  device::RowBlocks blocks([](at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
    InTwoHalves(out, x, w);
    at::Tensor first = out.narrow(0, 0, 8);
    at::mm_out(first, x.narrow(0, 0, 8), w);
  });
  const Status refused = blocks.Cover(ProductsOf(TinySpec()), DType::kFloat32);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  for (const char* word :
       {"down [48, 72]", "16 to 256 rows", "deterministic: false", "model.dtype: bfloat16"})
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace tidepool::model
