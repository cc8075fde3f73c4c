#include "core/environments/toy_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

namespace tidepool::environments {
namespace {

using Move = std::pair<int64_t, int64_t>;  // rows down, columns right

auto Key(const Outcome& o) { return std::tuple(o.state, o.action, o.next, o.reward, o.terminated); }

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

}  // namespace

StatusOr<TransitionTable> FrozenLake(std::string_view map, bool slippery, double success_rate) {
  constexpr std::string_view kSmall = "SFFFFHFHFFFHHFFG";
  constexpr std::string_view kLarge = "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG";
  if (map != "4x4" && map != "8x8")
    return Unimplemented("frozen lake: map is '" + std::string(map) + "'; there are 4x4 and 8x8");
  if (!(success_rate >= 0 && success_rate <= 1))
    return InvalidArgument("frozen lake: success_rate is not in [0, 1]");
  const std::string_view tiles = map == "4x4" ? kSmall : kLarge;
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

TransitionTable CliffWalking(bool slippery) {
  constexpr std::array<Move, 4> kMoves = {{{-1, 0}, {0, 1}, {1, 0}, {0, -1}}};
  TransitionTable table;
  for (int64_t s = 0; s < 48; ++s) {
    for (int64_t a = 0; a < 4; ++a) {
      const auto go = [&](int64_t direction, double probability) {
        const auto [down, right] = kMoves[static_cast<size_t>((direction + 4) % 4)];
        const int64_t row = std::clamp<int64_t>(s / 12 + down, 0, 3),
                      column = std::clamp<int64_t>(s % 12 + right, 0, 11);
        const bool cliff = row == 3 && column >= 1 && column <= 10;
        const int64_t next = cliff ? 36 : row * 12 + column;
        table.push_back({s, a, next, cliff ? -100.0 : -1.0, next == 47, probability});
      };
      if (slippery) {
        for (int64_t d = -1; d <= 1; ++d) go(a + d, 1.0 / 3.0);
      } else {
        go(a, 1);
      }
    }
  }
  return Merged(std::move(table));
}

TransitionTable Taxi() {
  constexpr std::array<Move, 4> kStops = {{{0, 0}, {0, 4}, {4, 0}, {4, 3}}};
  constexpr std::array<Move, 6> kWallsRightOf = {{{0, 1}, {1, 1}, {3, 0}, {4, 0}, {3, 2}, {4, 2}}};
  const auto wall = [&](int64_t row, int64_t column) {
    return std::ranges::count(kWallsRightOf, Move{row, column}) > 0;
  };
  TransitionTable table;
  for (int64_t s = 0; s < 500; ++s) {
    for (int64_t a = 0; a < 6; ++a) {
      int64_t row = s / 100, column = s / 20 % 5, passenger = s / 4 % 5;
      const int64_t destination = s % 4;
      double reward = -1;
      bool done = false;
      const auto stop = std::ranges::find(kStops, Move{row, column});
      const int64_t here = stop == kStops.end() ? -1 : stop - kStops.begin();
      if (a == 0) row = std::min<int64_t>(row + 1, 4);
      if (a == 1) row = std::max<int64_t>(row - 1, 0);
      if (a == 2 && !wall(row, column)) column = std::min<int64_t>(column + 1, 4);
      if (a == 3 && !(column > 0 && wall(row, column - 1))) column = std::max<int64_t>(column - 1, 0);
      if (a == 4) {
        if (passenger < 4 && here == passenger) {
          passenger = 4;
        } else {
          reward = -10;
        }
      }
      if (a == 5) {
        if (passenger == 4 && here == destination) {
          passenger = destination;
          done = true;
          reward = 20;
        } else if (passenger == 4 && here >= 0) {
          passenger = here;
        } else {
          reward = -10;
        }
      }
      table.push_back({s, a, ((row * 5 + column) * 5 + passenger) * 4 + destination, reward, done, 1});
    }
  }
  return table;
}

}  // namespace tidepool::environments
