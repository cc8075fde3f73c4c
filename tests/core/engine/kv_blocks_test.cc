#include "core/engine/kv_blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/rng.h"

namespace tidepool::engine {
namespace {

constexpr int64_t kBlock = 4;

std::unique_ptr<Sequence> Make(int64_t ordinal, int32_t sample, std::vector<int32_t> prompt,
                               std::vector<int32_t> generated, int64_t new_tokens) {
  auto s = std::make_unique<Sequence>();
  s->tid = {ordinal, 0, sample};
  s->gid = GroupId{ordinal};
  s->prompt_tokens = static_cast<int64_t>(prompt.size());
  s->tokens = std::move(prompt);
  s->tokens.insert(s->tokens.end(), generated.begin(), generated.end());
  s->chunk_end = s->size() + new_tokens;
  s->sample_end = s->chunk_end;
  return s;
}

// A KV cache whose slot holds "the prefix up to here": a wrong share or copy shows at once.
class Memory {
 public:
  explicit Memory(int64_t blocks)
      : slots_(static_cast<size_t>(blocks * kBlock)),
        kv_blocks_(blocks, kBlock, [this](int64_t from, int64_t to, int64_t count) {
          for (int64_t i = 0; i < count; ++i)
            slots_[static_cast<size_t>(to + i)] = slots_[static_cast<size_t>(from + i)];
        }) {}
  KvBlocks& operator*() { return kv_blocks_; }
  KvBlocks* operator->() { return &kv_blocks_; }

  std::vector<int32_t>& At(const Sequence& s, int64_t t) {
    return slots_[static_cast<size_t>(s.blocks[static_cast<size_t>(t / kBlock)] * kBlock + t % kBlock)];
  }
  void Write(const Sequence& s, int64_t t) { At(s, t).assign(s.tokens.begin(), s.tokens.begin() + t + 1); }
  void Expect(const Sequence& s) {
    for (int64_t t = 0; t < s.computed; ++t) {
      ASSERT_EQ(At(s, t), std::vector<int32_t>(s.tokens.begin(), s.tokens.begin() + t + 1))
          << ToString(s.tid) << " token " << t;
    }
  }
  void Compute(Sequence& s, int64_t rows) {
    const int64_t before = s.computed;
    kv_blocks_.Cover(s, before + rows);
    for (int64_t t = before; t < before + rows; ++t) Write(s, t);
    s.computed += rows;
    kv_blocks_.Publish(
        s, before,
        std::as_bytes(std::span<const int32_t>(s.tokens.data(), static_cast<size_t>(s.prompt_tokens))));
  }

 private:
  std::vector<std::vector<int32_t>> slots_;
  KvBlocks kv_blocks_;
};

std::vector<int32_t> Iota(int32_t n, int32_t from = 0) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), from);
  return v;
}

TEST(KvBlocksTest, SiblingsFollowTheFirstAndShareItsPrompt) {
  Memory memory(16);
  auto a = Make(1, 0, Iota(10), {}, 4);
  auto b = Make(1, 1, Iota(10), {}, 4);
  ASSERT_TRUE(memory->Place(*a, {}));
  ASSERT_TRUE(memory->Place(*b, {a.get()}));
  EXPECT_EQ(b->leader, a.get());
  EXPECT_EQ(b->follow_tokens, 10);
  EXPECT_EQ(a->promised, 4);  // 13 tokens
  EXPECT_EQ(b->promised, 2);  // without the two full blocks
  memory.Compute(*a, 10);
  ASSERT_TRUE(memory->Attach(*b, {a.get(), b.get()}));
  memory->SettleTail(*a);
  EXPECT_EQ(b->leader, nullptr);
  EXPECT_EQ(b->missing(), 0);
  EXPECT_FALSE(b->sample_state.empty());
  EXPECT_EQ(a->blocks[1], b->blocks[1]);
  EXPECT_NE(a->blocks[2], b->blocks[2]);  // the partly filled one was copied
  memory.Expect(*a);
  memory.Expect(*b);
  for (Sequence* s : {a.get(), b.get()}) {
    s->tokens.push_back(s == a.get() ? 50 : 60);
    memory.Compute(*s, 1);
  }
  memory.Expect(*a);
  memory.Expect(*b);
  // A third one comes later and finds everything.
  auto c = Make(1, 2, Iota(10), {}, 4);
  ASSERT_TRUE(memory->Place(*c, {a.get(), b.get()}));
  EXPECT_EQ(c->missing(), 0);
  memory.Expect(*c);
}

TEST(KvBlocksTest, OnlyWhatCanNeverFitNowIsLeftOutAndNothingChanges) {
  Memory memory(4);
  auto a = Make(1, 0, Iota(5), {}, 8);  // 12 tokens: 3 blocks
  auto b = Make(2, 0, Iota(5, 100), {}, 8);
  ASSERT_TRUE(memory->Place(*a, {}));
  EXPECT_FALSE(memory->Place(*b, {a.get()}));
  EXPECT_EQ(memory->pool().Available(), 1);
  memory.Compute(*a, 5);
  memory->SettleTail(*a);
  memory->Release(*a, false);
  EXPECT_EQ(memory->pool().Available(), 4);
  EXPECT_TRUE(memory->Place(*b, {}));
}

TEST(KvBlocksTest, AChunkGoesOnFromItsOwnTailWithoutACopy) {
  Memory memory(8);
  auto a = Make(1, 0, Iota(5), {}, 3);
  ASSERT_TRUE(memory->Place(*a, {}));
  memory.Compute(*a, 5);
  memory->SettleTail(*a);
  for (const int32_t id : {70, 71, 72}) {
    if (a->missing() > 0) memory.Compute(*a, a->missing());
    a->tokens.push_back(id);
  }
  const int32_t tail = a->blocks.back();
  EXPECT_EQ(a->computed, 7);
  memory->Release(*a, true);
  auto next = Make(1, 0, Iota(5), {70, 71, 72}, 3);
  ASSERT_TRUE(memory->Place(*next, {}));
  EXPECT_EQ(next->computed, 7);
  EXPECT_EQ(next->blocks.back(), tail);
  memory.Expect(*next);
}

// Random schedules against the rule that every computed token's slot holds its own prefix, with few
// blocks, shared prefixes, chunks, cancellation and forgetting. At the end nothing is leaked.
TEST(KvBlocksTest, RandomSchedulesNeverMixUpOrLeakBlocks) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int64_t blocks = rng.InRange(10, 40);
    Memory memory(blocks);
    std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>> generated;  // of samples that may go on
    std::vector<std::unique_ptr<Sequence>> running;
    const auto raw = [&] {
      std::vector<Sequence*> v;
      for (const auto& s : running) v.push_back(s.get());
      return v;
    };
    const auto prompt_of = [](int64_t g) {
      auto p = Iota(static_cast<int32_t>(3 + g * 2));  // all begin alike
      if (g % 2 == 1) p.back() = 900 + static_cast<int32_t>(g);
      return p;
    };
    for (int step = 0; step < 150; ++step) {
      memory->Tick();
      for (int64_t i = rng.Below(3); i > 0; --i) {
        const int64_t g = rng.Below(6);
        const auto k = static_cast<int32_t>(rng.Below(3));
        bool here = false;
        for (const auto& s : running) here = here || (s->tid.ordinal == g && s->tid.sample == k);
        if (here) continue;
        auto s = Make(g, k, prompt_of(g), generated[{g, k}], rng.InRange(1, 6));
        if (memory->BlocksFor(s->chunk_end - 1) > blocks) continue;
        if (memory->Place(*s, raw())) running.push_back(std::move(s));
      }
      const auto all = raw();
      std::vector<Sequence*> worked;
      for (Sequence* s : all) {
        if (s->leader != nullptr || s->missing() == 0 || rng.Chance(0.3)) continue;
        memory.Compute(*s, rng.InRange(1, s->missing()));
        worked.push_back(s);
      }
      for (Sequence* s : all) {
        if (s->leader != nullptr && s->leader->computed >= s->follow_tokens) {
          ASSERT_TRUE(memory->Attach(*s, all));
        }
      }
      for (Sequence* s : worked) memory->SettleTail(*s);
      for (size_t i = 0; i < running.size();) {
        Sequence& s = *running[i];
        memory.Expect(s);
        bool out = false;
        if (s.leader == nullptr && s.missing() == 0) {
          s.tokens.push_back(static_cast<int32_t>(1000 + rng.Below(2)));
          const bool chunk_ends = s.size() == s.chunk_end;
          const bool eos = rng.Chance(0.1);
          if (chunk_ends || eos) {
            memory->Release(s, !eos);
            auto& kept = generated[{s.tid.ordinal, s.tid.sample}];
            kept.assign(s.tokens.begin() + s.prompt_tokens, s.tokens.end());
            if (eos || kept.size() > 12) {
              kept.clear();
              memory->tree().Forget(s.tid);
            }
            out = true;
          }
        } else if (s.leader == nullptr && rng.Chance(0.03)) {  // cancelled, and its followers start over
          for (const auto& f : running) {
            if (f->leader == &s) memory->Release(*f, false);
          }
          memory->Release(s, false);
          std::erase_if(
              running, [&](const auto& f) { return f.get() != &s && f->blocks.empty() && f->promised == 0; });
          i = 0;
          while (running[i].get() != &s) ++i;
          out = true;
        }
        if (out) {
          running.erase(running.begin() + static_cast<int64_t>(i));
        } else {
          ++i;
        }
      }
      if (rng.Chance(0.05)) memory->tree().ForgetGroup(GroupId{rng.Below(6)});
    }
    for (const auto& s : running) memory->Release(*s, rng.Chance(0.5));
    EXPECT_EQ(memory->pool().promised(), 0);
    EXPECT_EQ(memory->pool().Available(), blocks);
    memory->Clear();
    EXPECT_EQ(memory->pool().free(), blocks);
  }
}

}  // namespace
}  // namespace tidepool::engine
