#include "core/train/packing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "core/algorithms/batching.h"
#include "core/base/check.h"

namespace tidepool::train {
namespace {

// Length of what is computed: the prompt and all response tokens but the last.
int64_t Computed(const Row& row) {
  return static_cast<int64_t>(row.prompt.size()) +
         std::max<int64_t>(0, static_cast<int64_t>(row.response.size()) - 1);
}
int32_t TokenAt(const Row& row, int64_t i) {
  const auto p = static_cast<int64_t>(row.prompt.size());
  return i < p ? row.prompt[static_cast<size_t>(i)] : row.response[static_cast<size_t>(i - p)];
}
// What was recorded of the row that computes token i; empty: nothing.
std::string_view RoutingAt(const Row& row, int64_t i, int64_t routing_bytes) {
  const int64_t at = (i + 1 - static_cast<int64_t>(row.prompt.size())) * routing_bytes;
  if (at < 0 || at + routing_bytes > static_cast<int64_t>(row.routing.size())) return {};
  return std::string_view(row.routing).substr(static_cast<size_t>(at), static_cast<size_t>(routing_bytes));
}
int64_t CommonPrefix(const Row& a, const Row& b, int64_t routing_bytes) {
  const int64_t n = std::min(Computed(a), Computed(b));
  int64_t i = 0;
  while (i < n && TokenAt(a, i) == TokenAt(b, i) &&
         RoutingAt(a, i, routing_bytes) == RoutingAt(b, i, routing_bytes))
    ++i;
  return i;
}

// The earlier row that shares the longest beginning with rows[at], and its length: of the same group, or the
// last one of the group before, since prompts of a job often begin alike.
std::pair<size_t, int64_t> LongestShared(std::span<const Row> rows, std::span<const int64_t> places,
                                         size_t at, int64_t routing_bytes) {
  const Row& row = rows[static_cast<size_t>(places[at])];
  std::pair<size_t, int64_t> best{at, 0};
  for (size_t j = at; j-- > 0;) {
    const Row& other = rows[static_cast<size_t>(places[j])];
    const int64_t shared = CommonPrefix(row, other, routing_bytes);
    if (shared > best.second) best = {j, shared};
    if (other.gid != row.gid) break;
  }
  return best;
}

std::vector<std::vector<int64_t>> Groups(std::span<const Row> rows, std::span<const int64_t> places) {
  std::vector<std::vector<int64_t>> groups;
  for (size_t i = 0; i < places.size(); ++i) {
    if (i == 0 || rows[static_cast<size_t>(places[i])].gid != rows[static_cast<size_t>(places[i - 1])].gid)
      groups.emplace_back();
    groups.back().push_back(places[i]);
  }
  return groups;
}

}  // namespace

PackedBatch Pack(std::span<const Row> rows, std::span<const int64_t> places, int64_t routing_bytes) {
  PackedBatch b;
  std::vector<std::vector<int32_t>> token_of(places.size());  // [row][position] -> packed token
  for (size_t k = 0; k < places.size(); ++k) {
    const Row& row = rows[static_cast<size_t>(places[k])];
    TP_CHECK(!row.prompt.empty()) << "row " << places[k] << " has no prompt";
    const auto [from, shared] = LongestShared(rows, places, k, routing_bytes);
    const int64_t length = Computed(row);
    std::vector<int32_t>& tokens = token_of[k];
    tokens.assign(token_of[from].begin(), token_of[from].begin() + shared);
    const auto first_run = static_cast<int32_t>(b.runs.size());
    for (int64_t i = shared; i < length; ++i) {
      const auto place = static_cast<int32_t>(b.ids.size());
      tokens.push_back(place);
      b.ids.push_back(TokenAt(row, i));
      b.positions.push_back(static_cast<int32_t>(i));
      b.slots.push_back(place);
      b.first_run.push_back(first_run);
      b.lengths.push_back(static_cast<int32_t>(i) + 1);
      b.row_of.push_back(places[k]);
    }
    if (shared < length) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0 && tokens[i] == tokens[i - 1] + 1) {
          ++b.runs.back().count;
        } else {
          b.runs.push_back({tokens[i], 1});
        }
      }
    }
    b.rows.push_back(places[k]);
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> pairs;
  for (size_t k = 0; k < places.size(); ++k) {
    const Row& row = rows[static_cast<size_t>(places[k])];
    std::vector<int32_t>& mine = b.pair_of.emplace_back();
    for (size_t t = 0; t < row.response.size(); ++t) {
      const int32_t source = token_of[k][row.prompt.size() + t - 1], target = row.response[t];
      const auto [it, added] = pairs.try_emplace({source, target}, static_cast<int32_t>(b.sources.size()));
      if (added) {
        b.sources.push_back(source);
        b.targets.push_back(target);
      }
      mine.push_back(it->second);
    }
  }
  return b;
}

Status CheckFits(const Row& row, int64_t budget, int64_t further) {
  if (Computed(row) + further <= budget) return OkStatus();
  return InvalidArgument(
      std::to_string(row.prompt.size()) + " prompt and " + std::to_string(row.response.size()) +
      " response tokens are more than train.micro_batch_tokens = " + std::to_string(budget) +
      "; raise it or shorten data.max_prompt_tokens or rollout.max_new_tokens");
}

StatusOr<std::vector<std::vector<int64_t>>> MicroBatches(std::span<const Row> rows,
                                                         std::span<const int64_t> places, int64_t budget,
                                                         int64_t routing_bytes) {
  struct Item {
    std::vector<int64_t> places;
    int64_t tokens;
  };
  std::vector<Item> items;
  for (const std::vector<int64_t>& group : Groups(rows, places)) {
    Item item{{}, 0};
    for (const int64_t place : group) {
      const Row& row = rows[static_cast<size_t>(place)];
      TP_RETURN_IF_ERROR(CheckFits(row, budget).At("row " + ToString(row.tid)));
      item.places.push_back(place);
      const int64_t tokens = item.tokens + Computed(row) -
                             LongestShared(rows, item.places, item.places.size() - 1, routing_bytes).second;
      if (tokens <= budget) {
        item.tokens = tokens;
        continue;
      }
      item.places.pop_back();
      items.push_back(std::exchange(item, Item{{place}, Computed(row)}));
    }
    items.push_back(std::move(item));
  }
  std::vector<int64_t> lengths;
  for (const Item& item : items) lengths.push_back(item.tokens);
  TP_ASSIGN_OR_RETURN(const auto bins, algorithms::FirstFitDecreasing(lengths, budget));
  std::vector<std::vector<int64_t>> out;
  for (const std::vector<int64_t>& bin : bins) {
    std::vector<int64_t>& micro = out.emplace_back();
    for (const int64_t i : bin) {
      const std::vector<int64_t>& more = items[static_cast<size_t>(i)].places;
      micro.insert(micro.end(), more.begin(), more.end());
    }
  }
  return out;
}

std::vector<std::vector<int64_t>> SplitGroups(std::span<const Row> rows, int64_t parts) {
  std::vector<int64_t> places(rows.size());
  std::iota(places.begin(), places.end(), int64_t{0});
  const std::vector<std::vector<int64_t>> groups = Groups(rows, places);
  std::vector<std::vector<int64_t>> out;
  const auto n = static_cast<int64_t>(groups.size());
  for (int64_t p = 0; p < parts; ++p) {
    std::vector<int64_t> part;
    for (int64_t g = n * p / parts; g < n * (p + 1) / parts; ++g) {
      part.insert(part.end(), groups[static_cast<size_t>(g)].begin(), groups[static_cast<size_t>(g)].end());
    }
    if (!part.empty()) out.push_back(std::move(part));
  }
  return out;
}

}  // namespace tidepool::train
