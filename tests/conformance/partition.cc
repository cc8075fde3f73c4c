#include "tests/conformance/partition.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tidepool::algorithms {
namespace {

struct Part {
  int64_t total = 0;
  std::vector<int64_t> rows;
};
struct Split {  // parts in falling order of total
  std::vector<Part> parts;
  size_t age = 0;  // ties in spread: the older one first
  [[nodiscard]] int64_t Spread() const { return parts.front().total - parts.back().total; }
};

std::vector<int64_t> Falling(std::span<const int64_t> lengths) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int64_t i) { return lengths[static_cast<size_t>(i)]; });
  return order;
}

Status CheckLengths(std::span<const int64_t> lengths, int64_t largest) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > largest) {
      return InvalidArgument("row " + std::to_string(i) + " has length " + std::to_string(lengths[i]) +
                             "; expected 0 to " + std::to_string(largest));
    }
  }
  return OkStatus();
}

void Sort(Split& s) { std::ranges::stable_sort(s.parts, std::greater<>(), &Part::total); }

std::vector<Part> Differencing(std::span<const int64_t> lengths, int64_t k, bool equal_size) {
  const std::vector<int64_t> order = Falling(lengths);
  const auto parts = static_cast<size_t>(k), step = equal_size ? parts : size_t{1};
  const auto less = [](const Split& a, const Split& b) {
    return std::pair(a.Spread(), b.age) < std::pair(b.Spread(), a.age);
  };
  std::vector<Split> heap;
  for (size_t from = 0; from < order.size(); from += step) {
    Split s{std::vector<Part>(parts), heap.size()};
    for (size_t j = 0; j < step && from + j < order.size(); ++j) {
      const int64_t row = order[from + j];
      s.parts[j] = {lengths[static_cast<size_t>(row)], {row}};
    }
    heap.push_back(std::move(s));
  }
  if (heap.empty()) return std::vector<Part>(parts);
  size_t age = heap.size();
  std::ranges::make_heap(heap, less);
  while (heap.size() > 1) {
    std::ranges::pop_heap(heap, less);
    Split a = std::move(heap.back());
    heap.pop_back();
    std::ranges::pop_heap(heap, less);
    Split b = std::move(heap.back());
    heap.pop_back();
    // The largest of one meets the smallest of the other.
    for (size_t i = 0; i < parts; ++i) {
      Part& mine = a.parts[i];
      Part& theirs = b.parts[parts - 1 - i];
      mine.total += theirs.total;
      if (mine.rows.size() < theirs.rows.size()) std::swap(mine.rows, theirs.rows);
      mine.rows.insert(mine.rows.end(), theirs.rows.begin(), theirs.rows.end());
    }
    Sort(a);
    a.age = age++;
    heap.push_back(std::move(a));
    std::ranges::push_heap(heap, less);
  }
  return std::move(heap.front().parts);
}

// Moves a row, or exchanges two, between the largest and the smallest part as long as that narrows their gap.
// Differencing ends a step or two short of what such exchanges find when there are few rows a part.
void Exchange(std::span<const int64_t> lengths, bool equal_size, std::vector<Part>& parts) {
  for (int round = 0; round < 256; ++round) {
    const auto [least, most] = std::ranges::minmax_element(parts, {}, &Part::total);
    const int64_t gap = most->total - least->total;
    int64_t best = 0;  // what the pair comes nearer by, on the worse side
    size_t give = 0, take = 0;
    for (size_t i = 0; i < most->rows.size(); ++i) {
      const int64_t given = lengths[static_cast<size_t>(most->rows[i])];
      for (size_t j = 0; j <= least->rows.size(); ++j) {  // the last j: nothing in return
        const bool alone = j == least->rows.size();
        if (alone && equal_size && most->rows.size() <= least->rows.size()) continue;
        const int64_t delta = given - (alone ? 0 : lengths[static_cast<size_t>(least->rows[j])]);
        const int64_t gain = std::min(delta, gap - delta);
        if (gain > best) best = gain, give = i, take = j;
      }
    }
    if (best == 0) return;
    const int64_t row = most->rows[give];
    int64_t delta = lengths[static_cast<size_t>(row)];
    if (take < least->rows.size()) {
      delta -= lengths[static_cast<size_t>(least->rows[take])];
      std::swap(most->rows[give], least->rows[take]);
    } else {
      most->rows.erase(most->rows.begin() + static_cast<int64_t>(give));
      least->rows.push_back(row);
    }
    most->total -= delta;
    least->total += delta;
  }
}

}  // namespace

StatusOr<std::vector<std::vector<int64_t>>> BalancedPartition(std::span<const int64_t> lengths, int64_t k,
                                                              bool equal_size) {
  constexpr int64_t kLargest = int64_t{1} << 40;  // totals stay far from overflow
  TP_RETURN_IF_ERROR(CheckLengths(lengths, kLargest));
  if (k < 1 || k > (int64_t{1} << 20))
    return InvalidArgument("k is " + std::to_string(k) + "; expected 1 to 1048576 parts");
  std::vector<Part> parts;
  const auto rows = static_cast<int64_t>(lengths.size());
  if (k > rows && !equal_size) {
    parts = Differencing(lengths, std::max<int64_t>(1, rows), equal_size);
    parts.resize(static_cast<size_t>(k));
  } else {
    parts = Differencing(lengths, k, equal_size);
  }
  // equal_size with rows that k does not divide: the last, short tuple may have met another short side; even
  // out.
  if (equal_size) {
    for (;;) {
      const auto [few, many] =
          std::ranges::minmax_element(parts, {}, [](const Part& p) { return p.rows.size(); });
      if (many->rows.size() - few->rows.size() < 2) break;
      const auto lightest = std::ranges::min_element(
          many->rows, {}, [&](int64_t r) { return lengths[static_cast<size_t>(r)]; });
      few->rows.push_back(*lightest);
      few->total += lengths[static_cast<size_t>(*lightest)];
      many->total -= lengths[static_cast<size_t>(*lightest)];
      many->rows.erase(lightest);
    }
  }
  Exchange(lengths, equal_size, parts);
  std::vector<std::vector<int64_t>> out;
  for (Part& part : parts) {
    std::ranges::sort(part.rows);
    out.push_back(std::move(part.rows));
  }
  return out;
}

int64_t Spread(std::span<const int64_t> lengths, const std::vector<std::vector<int64_t>>& parts) {
  if (parts.empty()) return 0;
  std::vector<int64_t> totals;
  for (const std::vector<int64_t>& part : parts) {
    int64_t total = 0;
    for (const int64_t row : part) total += lengths[static_cast<size_t>(row)];
    totals.push_back(total);
  }
  return *std::ranges::max_element(totals) - *std::ranges::min_element(totals);
}

}  // namespace tidepool::algorithms
