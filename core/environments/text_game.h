#pragma once
// Text games of several turns, with rewards that a program can check.
//
// A game is a pure function of (environment, options, seed, index, actions): no clock, no state outside of
// the object, the same on every machine. So an episode that was lost with its process is rebuilt anywhere by
// replaying the actions on record. Games that are held out are never trained on: their layout is drawn again
// until the hash of what it says puts it on the right side.
//
//   TP_ASSIGN_OR_RETURN(auto environment, MakeTextEnvironment("frozen_lake", {{"side", "4"}}, /*seed=*/1));
//   auto game = environment->Make(/*held_out=*/false, /*index=*/0);
//   std::string prompt = game->Reset();
//   TextStep step = game->Step("d");
//
// A new environment: one file in core/environments/games/ (docs/adding_an_environment.md).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/plugin.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/tasks/options.h"

namespace tidepool::environments {

struct TextStep {
  std::string observation;  // what the policy reads next; not empty unless `done`
  double reward = 0;        // of this step, finite; an episode's reward is the sum
  bool done = false;        // the episode is over
  bool solved = false;      // with done: what an evaluation counts as right
  // The observation is {"messages": [{"role", "content"}, ...], "tools": [...]}, as JSON, which the policy
  // reads in the form of its chat template.
  bool conversation = false;
};

// One episode. Owned by one thread.
class TextGame {
 public:
  virtual ~TextGame() = default;
  // The first observation; the game is as at its beginning afterwards.
  [[nodiscard]] virtual std::string Reset() = 0;
  // `action`: the text of one turn, whatever it says; what cannot be read is the game's to judge.
  [[nodiscard]] virtual TextStep Step(const std::string& action) = 0;
  // Names the state that the policy now acts in: equal wherever what can still happen is the same, however
  // the game got there. Advantages of equal states are compared (algorithm: {name: gigpo}). requires that it
  // is not over.
  [[nodiscard]] virtual std::string State() const = 0;
  // An action that a good player could take now: for tests and for looking at a game.
  [[nodiscard]] virtual std::string Solve() const = 0;
};

// A family of games under fixed options. Immutable; any thread.
class TextEnvironment {
 public:
  virtual ~TextEnvironment() = default;
  // Game `index` >= 0 of the training or of the held-out ones.
  [[nodiscard]] virtual std::unique_ptr<TextGame> Make(bool held_out, int64_t index) const = 0;
  [[nodiscard]] virtual int64_t max_turns() const = 0;
};

struct TextEnvironmentInfo {
  std::string name = {};  // the plug-in's
  std::string file = {};  // that defines it
  std::string doc;        // one or two sentences
  std::string action;     // what is read
  std::string reward;
  std::vector<tasks::Option> options;
  StatusOr<std::unique_ptr<TextEnvironment>> (*make)(const tasks::OptionValues& options,
                                                     uint64_t seed) = nullptr;
};
// All text environments, by name.
const std::vector<TextEnvironmentInfo>& ListTextEnvironments();
// Null if there is none of that name.
const TextEnvironmentInfo* FindTextEnvironment(std::string_view name);
// "environment frozen_lake (core/environments/games/frozen_lake.cc)", for messages.
std::string LabelOf(const TextEnvironmentInfo& info);
// "no environment is named 'x'; did you mean ...".
std::string NoSuchEnvironment(const std::string& name);
// kNotFound: no such environment; kInvalidArgument: an option is unknown or out of range ("NAME: ...").
StatusOr<std::unique_ptr<TextEnvironment>> MakeTextEnvironment(
    const std::string& name, const std::map<std::string, std::string>& options, uint64_t seed);
// Its max_turns(), called as any function of a plug-in. kInvalidArgument: it threw.
StatusOr<int64_t> MaxTurns(const std::string& name, const TextEnvironment& environment);

// For families: draws with `draw` until the text that says all about a layout falls on the asked side; one
// layout in four is held out. Gives up after 1000 draws and takes the last (a family with one layout has
// nothing to hold out).
std::string DrawLayout(uint64_t seed, bool held_out, int64_t index,
                       const std::function<std::string(Rng&)>& draw);

// Text of the last <answer>...</answer>, trimmed; else, with `bare`, the whole text trimmed.
std::string AnswerText(const std::string& text, bool bare);

using TextEnvironmentPlugin = TextEnvironmentInfo;
std::span<const Plugin<TextEnvironmentPlugin>> TextEnvironmentPlugins();  // the table that the build writes

}  // namespace tidepool::environments
