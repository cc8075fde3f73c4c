#include "workers/cli/game_eval.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace tidepool::workers {
namespace {

// One that goes on, and the record that the model reads: all that was said, as tokens.
struct GoingOn {
  std::shared_ptr<environments::TextGame> game;  // with a call that was given up
  std::vector<int32_t> record;
  int64_t begun = 0;  // tokens of the record before the first turn
  size_t at = 0;      // in the results
};

// Tokens that the next turn may have; 0: the episode is over.
int64_t Room(const GoingOn& g, const GameEvalOptions& o) {
  const int64_t left = o.max_new_tokens - (static_cast<int64_t>(g.record.size()) - g.begun);
  return std::max<int64_t>(0, o.max_turn_tokens > 0 ? std::min(left, o.max_turn_tokens) : left);
}

// Of the next turn of a game; before the first its reset.
PluginCall CallOf(const GameEvalOptions& o, const PlayedGame& p) {
  const bool begins = p.said.empty();
  const std::string key = begins ? "environment.reset_timeout_s" : "environment.step_timeout_s";
  return {.what = environments::LabelOf(*environments::FindTextEnvironment(o.game)),
          .on = (begins ? "the begin" : "turn " + std::to_string(p.turns + 1)) + " of held-out game " +
                std::to_string(p.game),
          .limit_s = begins ? o.reset_timeout_s : o.step_timeout_s,
          .key = key};
}

}  // namespace

StatusOr<std::vector<PlayedGame>> PlayGames(InferenceSession& session, const RowSource& text,
                                            PluginCalls& calls, const GameEvalOptions& o,
                                            const std::function<void(const PlayedGame&)>& on_done) {
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<const environments::TextEnvironment> environment,
                      environments::MakeTextEnvironment(o.game, o.options, o.seed));
  TP_ASSIGN_OR_RETURN(int64_t max_turns, environments::MaxTurns(o.game, *environment));
  if (o.max_turns > 0) max_turns = std::min(o.max_turns, max_turns);
  std::vector<PlayedGame> out;
  std::vector<GoingOn> going;
  for (int64_t i = 0; i < o.games; ++i) {
    for (int32_t k = 0; k < o.samples; ++k) {
      GoingOn& g = going.emplace_back();
      g.at = out.size();
      PlayedGame& played = out.emplace_back();
      played.game = i;
      played.sample = k;
      using Begun = std::pair<std::shared_ptr<environments::TextGame>, std::string>;
      auto begun = calls.Call<Begun>(CallOf(o, played), [environment, i] {
        std::shared_ptr<environments::TextGame> game = environment->Make(/*held_out=*/true, i);
        std::string said = game->Reset();
        return Begun(std::move(game), std::move(said));
      });
      TP_RETURN_IF_ERROR(calls.lost());
      if (!begun.ok()) {
        played.error = begun.status().message();
        if (on_done) on_done(played);
        going.pop_back();
        continue;
      }
      g.game = std::move(begun->first);
      played.said.push_back(std::move(begun->second));
      TP_ASSIGN_OR_RETURN(g.record, text.EncodePrompt(played.said.front()));
      g.begun = static_cast<int64_t>(g.record.size());
    }
  }
  // Names the noise: the turns of one game stand together.
  const auto ordinal = [&](const PlayedGame& p) { return p.game * max_turns + p.turns; };
  while (!going.empty()) {
    std::vector<InferenceSession::Request> requests;
    for (const GoingOn& g : going)
      requests.push_back({ordinal(out[g.at]), out[g.at].sample, g.record, o.greedy, Room(g, o)});
    TP_ASSIGN_OR_RETURN(const std::vector<Completion> answers, session.Complete(requests));
    std::vector<GoingOn> left;
    for (size_t i = 0; i < going.size(); ++i) {
      GoingOn& g = going[i];
      PlayedGame& played = out[g.at];
      const Completion& answer = answers[i];
      played.error = answer.error;
      bool over = !answer.error.empty();
      if (!over) {
        const std::string action = text.ResponseText(answer.tokens.ids);
        const auto stepped = calls.Call<environments::TextStep>(
            CallOf(o, played), [game = g.game, action] { return game->Step(action); });
        TP_RETURN_IF_ERROR(calls.lost());
        const environments::TextStep step = stepped.ok() ? *stepped : environments::TextStep{.done = true};
        ++played.turns;
        played.tokens += answer.tokens.size();
        played.said.push_back(action);
        if (!stepped.ok()) {
          played.error = stepped.status().message();
        } else if (!std::isfinite(step.reward)) {
          played.error = CallOf(o, played).what + " gave a reward that is not finite";
        }
        played.reward += step.reward;
        played.ended = stepped.ok() && step.done;
        played.solved = step.done && step.solved;
        over = step.done || !played.error.empty() || played.turns >= max_turns;
        if (!step.observation.empty()) played.said.push_back(step.observation);
        if (!over) {
          const bool closed = answer.tokens.size() > 0 && text.IsEnd(answer.tokens.ids.back());
          TP_ASSIGN_OR_RETURN(const std::vector<int32_t> heard,
                              text.EncodeObservation(step.observation, closed));
          g.record.insert(g.record.end(), answer.tokens.ids.begin(), answer.tokens.ids.end());
          g.record.insert(g.record.end(), heard.begin(), heard.end());
          over = Room(g, o) == 0;
        }
      }
      if (!over) {
        left.push_back(std::move(g));
      } else if (on_done) {
        on_done(played);
      }
    }
    going = std::move(left);
  }
  return out;
}

}  // namespace tidepool::workers
