#pragma once
// The state of a trainer or an optimizer as bytes of the host, for tests.

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/train/optimizer.h"

namespace tidepool::train {

using StateCopy = std::vector<std::pair<std::string, std::vector<std::byte>>>;

inline StateCopy CopyOf(const std::vector<NamedBytes>& state) {
  StateCopy copy;
  for (const NamedBytes& part : state) {
    copy.emplace_back(part.name, std::vector<std::byte>(part.bytes.size()));
    part.bytes.CopyTo(0, copy.back().second);
  }
  return copy;
}

// Of one part; empty if there is none.
template <typename V>
std::vector<V> PartOf(const std::vector<NamedBytes>& state, std::string_view name) {
  for (const NamedBytes& part : state) {
    if (part.name != name) continue;
    std::vector<V> values(part.bytes.size() / sizeof(V));
    part.bytes.CopyTo(0, std::as_writable_bytes(std::span(values)));
    return values;
  }
  return {};
}

inline void ExpectSame(const StateCopy& a, const StateCopy& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i] == b[i]) << a[i].first;
}

template <typename Trainer>
void Restore(Trainer& trainer, const StateCopy& saved) {
  const std::vector<NamedBytes> live = trainer.State();
  ASSERT_EQ(live.size(), saved.size());
  for (size_t i = 0; i < live.size(); ++i) {
    EXPECT_EQ(live[i].name, saved[i].first);
    live[i].bytes.CopyFrom(0, saved[i].second);
  }
  trainer.WeightsChanged();
}

}  // namespace tidepool::train
