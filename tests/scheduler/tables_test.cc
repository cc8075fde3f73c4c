// The tables behind the hot look-ups agree with the plain maps that they stand for.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "core/base/rng.h"
#include "scheduler/flat_table.h"
#include "scheduler/id_map.h"
#include "scheduler/ordered_ids.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {
namespace {

// Few different keys, so that erasing often leaves a hole inside a run of neighbours. Samples of a group lie
// apart or together.
TEST(FlatTableTest, AgreesWithAPlainMap) {
  Rng rng(1);
  for (int round = 0; round < 60; ++round) {
    FlatTable<SampleId, int64_t> table(
        std::vector<int64_t>{1, 2, 3, 6, 8, 20}[static_cast<size_t>(round % 6)]);
    std::map<SampleId, int64_t> plain;
    for (int i = 0; i < 600; ++i) {
      const int64_t ordinal = rng.Below(20), sample = rng.Below(round % 2 == 0 ? 4 : 20) - 2;
      const SampleId tid{ordinal, static_cast<int32_t>(rng.Below(2)), static_cast<int32_t>(sample)};
      if (rng.Chance(0.5)) {
        const auto [entry, fresh] = table.try_emplace(tid);
        EXPECT_EQ(fresh, plain.emplace(tid, 0).second);
        EXPECT_EQ(entry->second, plain.at(tid));  // a new one is empty, also where another was erased
        entry->second = i;
        plain.at(tid) = i;
      } else {
        EXPECT_EQ(table.erase(tid), plain.erase(tid));
      }
      ASSERT_EQ(table.size(), plain.size());
    }
    std::vector<SampleId> keys;
    for (const auto& [tid, x] : plain) {
      keys.push_back(tid);
      ASSERT_NE(table.find(tid), table.end());
      EXPECT_EQ(table.at(tid), x);
    }
    EXPECT_EQ(table.SortedKeys(), keys);
    for (int64_t ordinal = 0; ordinal < 20; ++ordinal) {
      for (int32_t sample = -2; sample < 20; ++sample) {
        const SampleId tid{ordinal, 1, sample};
        EXPECT_EQ(table.contains(tid), plain.contains(tid)) << ToString(tid);
      }
    }
    EXPECT_EQ(table.find({1000, 0, 0}), nullptr);
    table.clear();
    EXPECT_TRUE(table.empty() && table.SortedKeys().empty());
  }
}

TEST(FlatTableTest, EntriesStayWhereTheyAre) {
  FlatTable<int64_t, int64_t> table;
  int64_t& first = table[7];
  first = 42;
  for (int64_t i = 100; i < 10000; ++i) table[i] = i;
  EXPECT_EQ(&table.at(7), &first);
  EXPECT_EQ(first, 42);
}

TEST(SmallSetTest, AgreesWithAPlainSet) {
  Rng rng(3);
  for (int round = 0; round < 30; ++round) {
    SmallSet<int64_t> small;
    std::set<int64_t> plain;
    for (int i = 0; i < 200; ++i) {
      const int64_t x = rng.Below(20);
      if (rng.Chance(0.5)) {
        const auto [at, fresh] = small.insert(x);
        EXPECT_EQ(*at, x);
        EXPECT_EQ(fresh, plain.insert(x).second);
      } else {
        EXPECT_EQ(small.erase(x), plain.erase(x));
      }
      ASSERT_TRUE(std::ranges::equal(small, plain));
      const int64_t other = rng.Below(20);
      EXPECT_EQ(small.contains(other), plain.contains(other));
      EXPECT_EQ(small.empty(), plain.empty());
    }
    small.clear();
    EXPECT_EQ(small.size(), 0U);
  }
}

TEST(OrderedIdsTest, TheOrderIsThatOfAPlainSet) {
  Rng rng(4);
  using Key = std::pair<int64_t, int64_t>;
  OrderedIds<Key> ids;
  std::map<int64_t, Key> plain;  // by id
  for (int64_t i = 0; i < 20000; ++i) {
    const int64_t id = rng.Below(40);
    if (rng.Chance(0.7)) {
      const Key key{rng.Below(5), rng.Below(5)};  // many ties
      ids.Set(id, key);
      plain[id] = key;
    } else {
      ids.Remove(id);
      plain.erase(id);
    }
    std::vector<std::pair<Key, int64_t>> order;
    for (const auto& [other, key] : plain) order.emplace_back(key, other);
    std::ranges::sort(order);
    ASSERT_EQ(ids.size(), order.size());
    ASSERT_EQ(ids.empty(), order.empty());
    if (!order.empty()) {
      ASSERT_EQ(ids.first(), order.front()) << i;
    }
    const int64_t wanted = rng.Below(12);  // at times of none
    const auto is = [&](const auto& item) { return item.second % 11 == wanted; };
    std::optional<Key> end;
    if (rng.Chance(0.5)) end = Key{rng.Below(5), rng.Below(5)};
    const auto first = std::ranges::find_if(
        order, [&](const auto& item) { return is(item) && (!end || item.first < *end); });
    const auto* found = ids.FirstThat(is, end);
    ASSERT_EQ(found == nullptr, first == order.end()) << i;
    if (found != nullptr) {
      ASSERT_EQ(*found, *first) << i;
    }
  }
  ids.Clear();
  EXPECT_TRUE(ids.empty());
}

TEST(IdMapTest, AgreesWithAPlainMap) {
  Rng rng(2);
  IdMap<WorkerId, int64_t> dense;
  std::map<WorkerId, int64_t> plain;
  for (int64_t i = 0; i < 2000; ++i) {
    const WorkerId id{rng.Below(60)};
    if (rng.Chance(0.4)) {
      EXPECT_EQ(dense.erase(id), plain.erase(id));
    } else {
      dense[id] = plain[id] = i;
    }
    ASSERT_EQ(dense.size(), plain.size());
    ASSERT_EQ(dense.contains(id), plain.contains(id));
    if (i % 50 != 0) continue;
    auto at = plain.begin();  // a walk is in the order of ids
    for (const auto& [key, x] : dense) {
      ASSERT_NE(at, plain.end());
      EXPECT_EQ(key, at->first);
      EXPECT_EQ(x, at->second);
      ++at;
    }
    EXPECT_EQ(at, plain.end());
  }
  EXPECT_EQ(dense.Find({-1}), nullptr);
  EXPECT_EQ(dense.find({1 << 19}), dense.end());
}

// What callers hold stays where it is while the table grows through many blocks, and a copy is another map.
TEST(TablesTest, EntriesStayWhereTheyAreWhileTheirTableGrows) {
  FlatTable<int64_t, int64_t> table;
  IdMap<WorkerId, int64_t> map;
  std::vector<std::pair<int64_t*, int64_t*>> held;
  for (int64_t k = 0; k < 5000; ++k) held.emplace_back(&(table[k] = k), &map.Insert({k}, k));
  const IdMap<WorkerId, int64_t> copy = map;
  for (int64_t k = 0; k < 5000; ++k) {
    const auto& [in_table, in_map] = held[static_cast<size_t>(k)];
    EXPECT_EQ(in_table, &table.at(k));
    EXPECT_EQ(in_map, &map.at({k}));
    EXPECT_EQ(*in_table, k);
    *in_map = -1;
    EXPECT_EQ(copy.at({k}), k);
  }
}

}  // namespace
}  // namespace tidepool::scheduler
