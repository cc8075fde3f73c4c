#include "workers/cli/game_eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "core/environments/episode.h"
#include "workers/side/environment_services.h"

namespace tidepool::workers {
namespace {

// One that goes on, and the record that the model reads: all that was said, as tokens.
struct GoingOn {
  std::shared_ptr<environments::Playing> game;  // with a call that was given up
  std::vector<int32_t> record;
  int64_t begun = 0;  // tokens of the record before the first turn
  size_t at = 0;      // in the results
};

// What the games of a job are, and how long their calls may take.
struct GamesOfJob {
  const EnvironmentConfig& config;
  std::shared_ptr<const environments::EpisodeSource> source;

  // Tokens that the next turn may have; 0: the episode is over.
  [[nodiscard]] int64_t Room(const GoingOn& g, int64_t max_new_tokens) const {
    const int64_t left = max_new_tokens - (static_cast<int64_t>(g.record.size()) - g.begun);
    return std::max<int64_t>(0, config.max_turn_tokens > 0 ? std::min(left, config.max_turn_tokens) : left);
  }
  // Of the next turn of a game; before the first its reset.
  [[nodiscard]] PluginCall CallOf(const PlayedGame& p) const {
    const bool begins = p.said.empty();
    // A service is given up at its own time, which is to come first.
    const double more = source->is_service() ? 30 : 0;
    const std::string key = begins ? "environment.reset_timeout_s" : "environment.step_timeout_s";
    return {.what = source->label(),
            .on = (begins ? "the begin" : "turn " + std::to_string(p.turns + 1)) + " of held-out game " +
                  std::to_string(p.game),
            .limit_s = (begins ? config.reset_timeout_s : config.step_timeout_s) + more,
            .key = key};
  }
  [[nodiscard]] static environments::PlayLimit Within(double seconds) {
    using Clock = std::chrono::steady_clock;
    return {.deadline = Clock::now() +
                        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))};
  }
};

}  // namespace

StatusOr<std::vector<PlayedGame>> PlayGames(InferenceSession& session, const RowSource& text,
                                            PluginCalls& calls, const JobConfig& job,
                                            const GameEvalOptions& o,
                                            const std::function<void(const PlayedGame&)>& on_done) {
  const EnvironmentConfig& e = *job.environment();
  const auto services =
      e.is_service() ? EnvironmentServices::Start(e, {.tools = text.tool_format()}) : nullptr;
  TP_ASSIGN_OR_RETURN(environments::EpisodeSource source, environments::EpisodeSource::Create(job, services));
  const GamesOfJob games{e, std::make_shared<const environments::EpisodeSource>(std::move(source))};
  std::vector<PlayedGame> out;
  std::vector<GoingOn> going;
  const int64_t all = e.held_out * o.samples;
  // That may be open at once; of a service that has not begun one yet it is not known.
  const auto most = [&]() -> size_t {
    if (services == nullptr) return static_cast<size_t>(all);
    const auto described = services->Describe(GamesOfJob::Within(0));
    if (!described.ok()) return 1;
    return static_cast<size_t>(described->instances > 0 ? std::min(e.instances, described->instances)
                                                        : e.instances);
  };
  // Begins games while there is room for more.
  const auto begin = [&]() -> Status {
    while (static_cast<int64_t>(out.size()) < all && going.size() < most()) {
      const int64_t i = static_cast<int64_t>(out.size()) / o.samples;
      const auto k = static_cast<int32_t>(static_cast<int64_t>(out.size()) % o.samples);
      GoingOn& g = going.emplace_back();
      g.at = out.size();
      PlayedGame& played = out.emplace_back();
      played.game = i;
      played.sample = k;
      using Opened = std::shared_ptr<StatusOr<environments::Begun>>;
      const auto opened =
          calls.Call<Opened>(games.CallOf(played), [source = games.source, i, limit_s = e.reset_timeout_s] {
            return std::make_shared<StatusOr<environments::Begun>>(
                source->Begin({i, 0, SampleId::kEvalSample}, 0, GamesOfJob::Within(limit_s)));
          });
      TP_RETURN_IF_ERROR(calls.lost());
      const Status begun = opened.ok() ? (*opened)->status() : opened.status();
      if (!begun.ok()) {
        played.error = begun.message();
        if (on_done) on_done(played);
        going.pop_back();
        continue;
      }
      g.game = std::move((*opened)->value().game);
      const environments::TextStep& first = (*opened)->value().first.step;
      played.said.push_back(first.observation);
      auto row = text.EncodeFirst({first.observation, first.conversation});
      if (!row.ok()) {
        played.error = row.status().message();
        if (on_done) on_done(played);
        going.pop_back();
        continue;
      }
      g.record = std::move(row->prompt);
      g.begun = static_cast<int64_t>(g.record.size());
    }
    return OkStatus();
  };
  TP_RETURN_IF_ERROR(begin());
  const int64_t max_turns = games.source->max_turns();
  // Names the noise: the turns of one game stand together.
  const auto ordinal = [&](const PlayedGame& p) { return p.game * max_turns + p.turns; };
  while (!going.empty()) {
    std::vector<InferenceSession::Request> requests;
    for (const GoingOn& g : going)
      requests.push_back({ordinal(out[g.at]), out[g.at].sample, g.record, o.greedy,
                          games.Room(g, o.max_new_tokens), o.adapter});
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
        using Answer = std::shared_ptr<StatusOr<environments::Told>>;
        const auto told =
            calls.Call<Answer>(games.CallOf(played), [game = g.game, action, limit_s = e.step_timeout_s] {
              return std::make_shared<StatusOr<environments::Told>>(
                  game->Step(action, GamesOfJob::Within(limit_s)));
            });
        TP_RETURN_IF_ERROR(calls.lost());
        const Status stepped = told.ok() ? (*told)->status() : told.status();
        const environments::TextStep step =
            stepped.ok() ? (*told)->value().step : environments::TextStep{.done = true};
        ++played.turns;
        played.tokens += answer.tokens.size();
        played.said.push_back(action);
        if (!stepped.ok()) {
          played.error = stepped.message();
        } else if (!std::isfinite(step.reward)) {
          played.error = games.source->label() + " gave a reward that is not finite";
        }
        played.reward += step.reward;
        played.ended = stepped.ok() && step.done;
        played.solved = step.done && step.solved;
        over = step.done || !played.error.empty() || played.turns >= max_turns;
        if (!step.observation.empty()) played.said.push_back(step.observation);
        if (!over) {
          const bool closed = answer.tokens.size() > 0 && text.IsEnd(answer.tokens.ids.back());
          TP_ASSIGN_OR_RETURN(const std::vector<int32_t> heard,
                              text.EncodeObservation({step.observation, step.conversation}, closed));
          g.record.insert(g.record.end(), answer.tokens.ids.begin(), answer.tokens.ids.end());
          g.record.insert(g.record.end(), heard.begin(), heard.end());
          over = games.Room(g, o.max_new_tokens) == 0;
        }
      }
      if (!over) {
        left.push_back(std::move(g));
      } else if (on_done) {
        on_done(played);
      }
    }
    going = std::move(left);
    TP_RETURN_IF_ERROR(begin());
  }
  return out;
}

}  // namespace tidepool::workers
