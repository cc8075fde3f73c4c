#include "core/environments/toy_text.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

namespace tidepool::environments {
namespace {

using Move = std::pair<int64_t, int64_t>;  // rows down, columns right

auto Key(const Outcome& o) { return std::tuple(o.state, o.action, o.next, o.reward, o.terminated); }

}  // namespace

TransitionTable Merged(TransitionTable table) {
  std::ranges::stable_sort(table, {}, Key);
  TransitionTable out;
  for (const Outcome& o : table) {
    if (!out.empty() && Key(out.back()) == Key(o)) {
      out.back().probability += o.probability;
    } else {
      out.push_back(o);
    }
  }
  return out;
}

std::string_view FrozenLakeTiles(std::string_view map) {
  if (map == "4x4") return "SFFFFHFHFFFHHFFG";
  return map == "8x8" ? "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG" : "";
}

StatusOr<TransitionTable> FrozenLake(std::string_view map, bool slippery, double success_rate) {
  if (map != "4x4" && map != "8x8")
    return Unimplemented("frozen lake: map is '" + std::string(map) + "'; there are 4x4 and 8x8");
  if (!(success_rate >= 0 && success_rate <= 1))
    return InvalidArgument("frozen lake: success_rate is not in [0, 1]");
  const std::string_view tiles = FrozenLakeTiles(map);
  const int64_t side = map == "4x4" ? 4 : 8;
  constexpr std::array<Move, 4> kMoves = {{{0, -1}, {1, 0}, {0, 1}, {-1, 0}}};
  TransitionTable table;
  for (int64_t s = 0; s < side * side; ++s) {
    for (int64_t a = 0; a < 4; ++a) {
      const char here = tiles[static_cast<size_t>(s)];
      if (here == 'H' || here == 'G') {
        table.push_back({s, a, s, 0, true, 1});
        continue;
      }
      const auto go = [&](int64_t direction, double probability) {
        const auto [down, right] = kMoves[static_cast<size_t>((direction + 4) % 4)];
        const int64_t row = std::clamp<int64_t>(s / side + down, 0, side - 1),
                      column = std::clamp<int64_t>(s % side + right, 0, side - 1);
        const char there = tiles[static_cast<size_t>(row * side + column)];
        table.push_back(
            {s, a, row * side + column, there == 'G' ? 1.0 : 0.0, there == 'G' || there == 'H', probability});
      };
      if (!slippery) {
        go(a, 1);
        continue;
      }
      go(a - 1, (1 - success_rate) / 2);
      go(a, success_rate);
      go(a + 1, (1 - success_rate) / 2);
    }
  }
  return Merged(std::move(table));
}

}  // namespace tidepool::environments
