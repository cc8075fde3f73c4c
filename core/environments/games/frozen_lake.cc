// Frozen lake as text (side 4, a tile frozen with p 0.8, a path exists, 20 turns): walk from the
// upper left to the lower right corner without stepping into a hole. Reward 1 at the goal; an action that
// cannot be read leaves the state as it is and costs a little.

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "core/environments/text_game.h"

namespace tidepool::environments {
namespace {

// left, down, right, up: as in FrozenLake-v1
constexpr std::array<const char*, 4> kNames = {"Left", "Down", "Right", "Up"};
constexpr std::array<char, 4> kLetters = {'l', 'd', 'r', 'u'};
constexpr std::array<std::pair<int64_t, int64_t>, 4> kMoves = {{{0, -1}, {1, 0}, {0, 1}, {-1, 0}}};
constexpr double kFormatPenalty = 0.02;

struct LakeOptions {
  std::pair<int64_t, int64_t> side;
  double frozen = 0.8;
  bool near = false, terse = false;
  int64_t max_turns = 20;
};

int64_t SideOf(const std::string& map) {
  int64_t side = 1;
  while (side * side < static_cast<int64_t>(map.size())) ++side;
  return side;
}

// Fewest moves to the goal from every tile; -1: none.
std::vector<int64_t> Distances(const std::string& map) {
  const int64_t side = SideOf(map);
  std::vector<int64_t> distance(map.size(), -1);
  std::deque<int64_t> queue{static_cast<int64_t>(map.size()) - 1};
  distance.back() = 0;
  while (!queue.empty()) {
    const int64_t at = queue.front();
    queue.pop_front();
    for (const auto& [dr, dc] : kMoves) {
      const int64_t r = at / side + dr, c = at % side + dc;
      if (r < 0 || c < 0 || r >= side || c >= side) continue;
      const auto next = static_cast<size_t>(r * side + c);
      if (map[next] == 'H' || distance[next] >= 0) continue;
      distance[next] = distance[static_cast<size_t>(at)] + 1;
      queue.push_back(static_cast<int64_t>(next));
    }
  }
  return distance;
}

class LakeGame : public TextGame {
 public:
  LakeGame(const LakeOptions& options, std::string map)
      : options_(options), map_(std::move(map)), side_(SideOf(map_)), distance_(Distances(map_)) {}

  std::string Reset() override {
    at_ = 0;
    return Describe(/*first=*/true, "");
  }

  TextStep Step(const std::string& action) override {
    const int64_t direction = Read(action);
    TextStep step;
    if (direction < 0) {
      step.reward = -kFormatPenalty;
      step.observation = Describe(false, options_.terse ? "" : "That is no move. ");
      return step;
    }
    const int64_t r =
        std::clamp<int64_t>(at_ / side_ + kMoves[static_cast<size_t>(direction)].first, 0, side_ - 1);
    const int64_t c =
        std::clamp<int64_t>(at_ % side_ + kMoves[static_cast<size_t>(direction)].second, 0, side_ - 1);
    at_ = r * side_ + c;
    const char tile = map_[static_cast<size_t>(at_)];
    step.done = tile == 'H' || tile == 'G';
    step.solved = tile == 'G';
    step.reward = step.solved ? 1 : 0;
    if (!step.done) step.observation = Describe(false, "");
    return step;
  }

  std::string State() const override { return std::to_string(at_) + " of " + map_; }

  std::string Solve() const override {
    const int64_t here = distance_[static_cast<size_t>(at_)];
    for (size_t d = 0; d < kMoves.size(); ++d) {
      const int64_t r = at_ / side_ + kMoves[d].first, c = at_ % side_ + kMoves[d].second;
      if (r < 0 || c < 0 || r >= side_ || c >= side_ ||
          distance_[static_cast<size_t>(r * side_ + c)] != here - 1)
        continue;
      return options_.terse ? std::string(1, kLetters[d]) : std::string("<answer>") + kNames[d] + "</answer>";
    }
    return "";
  }

 private:
  // -1: no direction.
  [[nodiscard]] int64_t Read(const std::string& action) const {
    const std::string answer = AnswerText(action, options_.terse);
    for (size_t d = 0; d < kNames.size(); ++d) {
      if (options_.terse ? !answer.empty() && answer[0] == kLetters[d] : answer == kNames[d])
        return static_cast<int64_t>(d);
    }
    return -1;
  }

  // What lies left, down, right and up; '#' outside.
  [[nodiscard]] std::string Around() const {
    std::string tiles;
    for (const auto& [dr, dc] : kMoves) {
      const int64_t r = at_ / side_ + dr, c = at_ % side_ + dc;
      tiles += r < 0 || c < 0 || r >= side_ || c >= side_ ? '#' : map_[static_cast<size_t>(r * side_ + c)];
    }
    return tiles;
  }

  [[nodiscard]] std::string Map() const {
    std::string text;
    for (int64_t i = 0; i < static_cast<int64_t>(map_.size()); ++i) {
      text += i == at_ ? 'P' : map_[static_cast<size_t>(i)];
      if (!options_.terse && (i + 1) % side_ == 0) text += '\n';
    }
    return text;
  }

  [[nodiscard]] std::string Describe(bool first, const std::string& note) const {
    const std::string seen = options_.near ? Around() : Map();
    if (options_.terse) return seen + "?";
    std::string text = note;
    if (first) {
      text +=
          "You stand on a frozen lake. Walk to the goal G; a hole H ends the walk. Reply with one move a "
          "turn: "
          "<answer>Left</answer>, <answer>Down</answer>, <answer>Right</answer> or <answer>Up</answer>.\n";
    }
    if (options_.near)
      return text + "Left: " + seen[0] + ", down: " + seen[1] + ", right: " + seen[2] + ", up: " + seen[3] +
             ".";
    return text + seen;
  }

  LakeOptions options_;
  std::string map_;
  int64_t side_;
  std::vector<int64_t> distance_;
  int64_t at_ = 0;
};

class LakeEnvironment : public TextEnvironment {
 public:
  LakeEnvironment(const LakeOptions& options, uint64_t seed) : options_(options), seed_(seed) {}
  std::unique_ptr<TextGame> Make(bool held_out, int64_t index) const override {
    return std::make_unique<LakeGame>(
        options_, DrawLayout(seed_, held_out, index, [this](Rng& rng) { return Draw(rng); }));
  }
  int64_t max_turns() const override { return options_.max_turns; }

 private:
  // A map with a way through. Maps without one are drawn again; after 200 of them holes are left out.
  std::string Draw(Rng& rng) const {
    const int64_t side = rng.InRange(options_.side.first, options_.side.second);
    for (int tries = 0;; ++tries) {
      std::string map(static_cast<size_t>(side * side), 'F');
      for (char& tile : map) tile = rng.Chance(options_.frozen) || tries > 200 ? 'F' : 'H';
      map.front() = 'S';
      map.back() = 'G';
      if (Distances(map).front() > 0) return map;
    }
  }

  LakeOptions options_;
  uint64_t seed_;
};

}  // namespace

TP_PLUGIN(TextEnvironment, frozen_lake) {
  using tasks::OptionKind;
  return {
      .doc = "Walk over a frozen lake to the goal without stepping into a hole.",
      .action = "one move a turn: <answer>Left</answer>, Down, Right, Up; terse: l, d, r, u",
      .reward = "1 at the goal, 0 in a hole or after the last turn, -0.02 for an answer that is no move",
      .options =
          {{"side", OptionKind::kRange, "[4, 4]", 2, 12, {}, "tiles a side"},
           {"frozen", OptionKind::kInt, "80", 30, 100, {}, "a tile is frozen with this chance, in percent"},
           tasks::ChoiceOption("view", {"map", "near"}, "all of the lake, or the four tiles around"),
           tasks::ChoiceOption("style", {"chat", "terse"}, "sentences, or a few letters for a tiny model"),
           {"turns", OptionKind::kInt, "20", 1, 1000, {}, "of an episode"}},
      .make = [](const tasks::OptionValues& o, uint64_t seed) -> StatusOr<std::unique_ptr<TextEnvironment>> {
        const LakeOptions options{.side = o.Range("side"),
                                  .frozen = static_cast<double>(o.Int("frozen")) / 100,
                                  .near = o.Text("view") == "near",
                                  .terse = o.Text("style") == "terse",
                                  .max_turns = o.Int("turns")};
        std::unique_ptr<TextEnvironment> made = std::make_unique<LakeEnvironment>(options, seed);
        return made;
      }};
}

}  // namespace tidepool::environments
