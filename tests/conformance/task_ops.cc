// env.* and task.*
#include <array>
#include <functional>

#include "core/environments/control.h"
#include "core/environments/toy_text.h"
#include "core/tasks/grading.h"
#include "tests/conformance/formulas.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

namespace env = tidepool::environments;

// Plays all actions from the given state; `actions` of T are checked by the caller.
template <size_t kState, typename T, typename Step, typename Observe = std::identity>
Status Play(Request& r, const std::vector<T>& actions, const Step& step, const Observe& observe = {}) {
  const std::vector<double> given = r.Vector("state", static_cast<int64_t>(kState));
  if (!r.ok()) return r.status();
  std::array<double, kState> state{};
  for (size_t i = 0; i < kState; ++i) state[i] = given[i];
  std::vector<double> observations, rewards;
  std::vector<bool> terminated;
  const size_t width = observe(state).size();
  for (const T action : actions) {
    const auto next = step(state, action);
    state = next.state;
    const auto seen = observe(state);
    observations.insert(observations.end(), seen.begin(), seen.end());
    rewards.push_back(next.reward);
    terminated.push_back(next.terminated);
  }
  r.Put("obs", observations, {static_cast<int64_t>(actions.size()), static_cast<int64_t>(width)});
  r.PutVector("reward", rewards);
  r.PutBits("terminated", terminated);
  return OkStatus();
}

std::vector<int64_t> Choices(Request& r, int64_t count) {
  const std::vector<int64_t> actions = r.Integers("actions", -1);
  for (const int64_t a : actions) {
    if (a < 0 || a >= count)
      r.Fail(
          InvalidArgument("action " + std::to_string(a) + " is not one of 0.." + std::to_string(count - 1)));
  }
  return actions;
}

Status CartPole(Request& r) {
  r.params().Known({});
  return Play<4>(r, Choices(r, 2), env::StepCartPole);
}
Status Pendulum(Request& r) {
  r.params().Known({});
  return Play<2>(r, r.Vector("actions", -1), env::StepPendulum, env::ObservePendulum);
}
Status MountainCar(Request& r) {
  r.params().Known({});
  return Play<2>(r, Choices(r, 3), env::StepMountainCar);
}
Status Acrobot(Request& r) {
  r.params().Known({});
  return Play<4>(r, Choices(r, 3), env::StepAcrobot, env::ObserveAcrobot);
}

Status PutTable(Request& r, const env::TransitionTable& table) {
  std::vector<double> rows;
  for (const env::Outcome& o : table) {
    for (const double v : {static_cast<double>(o.state), static_cast<double>(o.action),
                           static_cast<double>(o.next), o.reward, o.terminated ? 1.0 : 0.0, o.probability}) {
      rows.push_back(v);
    }
  }
  r.Put("transitions", rows, {static_cast<int64_t>(table.size()), 6});
  return OkStatus();
}

Status FrozenLake(Request& r) {
  const Params& p = r.params().Known({"map", "slippery", "success_rate"});
  const std::string map = p.Text("map", "4x4");
  const bool slippery = p.Flag("slippery");
  const double rate = p.Number("success_rate", 1.0 / 3.0);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const env::TransitionTable table, env::FrozenLake(map, slippery, rate));
  return PutTable(r, table);
}
Status Cliff(Request& r) {
  const bool slippery = r.params().Known({"slippery"}).Flag("slippery");
  if (!r.ok()) return r.status();
  return PutTable(r, env::CliffWalking(slippery));
}
Status TaxiOp(Request& r) {
  r.params().Known({});
  if (!r.ok()) return r.status();
  return PutTable(r, env::Taxi());
}

// A text; nothing if it is null or absent.
std::optional<std::string> MaybeText(Request& r, const char* name) {
  const Json* v = r.Raw(name);
  if (v == nullptr) return std::nullopt;
  if (!v->is_string()) {
    r.Fail(InvalidArgument("input " + std::string(name) + " is not a text"));
    return std::nullopt;
  }
  return v->get<std::string>();
}
std::string Text(Request& r, const char* name) {
  const auto text = MaybeText(r, name);
  if (!text) r.Fail(InvalidArgument("input " + std::string(name) + " is missing"));
  return text.value_or("");
}

Status Extract(Request& r) {
  (void)r.params().Known({"tag"}).Choice("tag", "answer", {"answer"});
  const std::string response = Text(r, "response");
  if (!r.ok()) return r.status();
  const auto answer = tasks::ExtractAnswer(response);
  r.PutJson("answer", answer ? Json(*answer) : Json(nullptr));
  return OkStatus();
}

Status Countdown(Request& r) {
  const Params& p = r.params().Known({"rule", "score", "format_score"});
  (void)p.Choice("rule", "answer tag on the last line", {"answer tag on the last line"});
  const double score = p.Number("score", 1), format = p.Number("format_score", 0.1);
  const std::string response = Text(r, "response");
  const std::vector<int64_t> numbers = r.Integers("numbers", -1);
  const int64_t target = r.IntegerScalar("target");
  if (!r.ok()) return r.status();
  r.PutScalar("score", tasks::CountdownScore(response, numbers, target, score, format));
  return OkStatus();
}

Status CountdownExpression(Request& r) {
  r.params().Known({});
  const auto answer = MaybeText(r, "answer");
  const std::vector<int64_t> numbers = r.Integers("numbers", -1);
  const double target = r.Scalar("target");
  if (!r.ok()) return r.status();
  r.PutScalar("score", tasks::CountdownExpressionScore(answer, numbers, target));
  return OkStatus();
}

Status Decimal(Request& r) {
  r.params().Known({});
  const auto answer = MaybeText(r, "answer");
  const std::string oracle = Text(r, "oracle");
  if (!r.ok()) return r.status();
  r.PutScalar("score", answer ? tasks::DecimalScore(*answer, oracle) : 0);
  return OkStatus();
}

Status Gsm8k(Request& r) {
  const std::string method = r.params().Known({"method"}).Choice("method", "strict", {"strict", "flexible"});
  const std::string response = Text(r, "response"), truth = Text(r, "truth");
  if (!r.ok()) return r.status();
  r.PutScalar("score", tasks::Gsm8kScore(
                           response, truth,
                           method == "strict" ? tasks::Gsm8kMethod::kStrict : tasks::Gsm8kMethod::kFlexible));
  return OkStatus();
}

Status Sorting(Request& r) {
  const Params& p = r.params().Known({"direction", "tolerance"});
  const bool up = p.Choice("direction", "ascending", {"ascending", "descending"}) == "ascending";
  const double tolerance = p.Number("tolerance", 0);
  // The list as text, or as it is.
  const Json* given = r.Raw("answer");
  const auto answer = given != nullptr && given->is_array()
                          ? std::optional(given->dump(-1, ' ', false, Json::error_handler_t::replace))
                          : MaybeText(r, "answer");
  std::vector<double> expected;
  if (const Json* list = r.Raw("expected"); list != nullptr && list->is_array()) {
    for (const Json& item : *list) {
      char* end = nullptr;
      const std::string text = item.is_string() ? item.get<std::string>() : "";
      const double value = item.is_number() ? item.get<double>() : std::strtod(text.c_str(), &end);
      if (!item.is_number() && (text.empty() || *end != 0))
        return InvalidArgument("input expected is not a list of numbers");
      expected.push_back(value);
    }
  } else {
    expected = r.Vector("expected", -1);
  }
  if (!r.ok()) return r.status();
  r.PutScalar("score", answer ? tasks::SortingScore(
                                    *answer, expected,
                                    up ? tasks::SortDirection::kAscending : tasks::SortDirection::kDescending,
                                    tolerance)
                              : 0);
  return OkStatus();
}

Status Maze(Request& r) {
  r.params().Known({});
  const Json* grid = r.Raw("grid");
  if (grid == nullptr || !grid->is_array()) return InvalidArgument("input grid is not a list of texts");
  std::vector<std::string> lines;
  for (const Json& line : *grid) {
    if (!line.is_string()) return InvalidArgument("input grid is not a list of texts");
    lines.push_back(line.get<std::string>());
  }
  if (!r.ok()) return r.status();
  const auto distance = MazeDistance(lines);
  r.PutJson("distance", distance ? Json(*distance) : Json(nullptr));
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> TaskOperations() {
  return {{"env.cartpole", CartPole},
          {"env.pendulum", Pendulum},
          {"env.mountain_car", MountainCar},
          {"env.acrobot", Acrobot},
          {"env.frozen_lake", FrozenLake},
          {"env.cliff", Cliff},
          {"env.taxi", TaxiOp},
          {"task.extract", Extract},
          {"task.countdown", Countdown},
          {"task.countdown_expr", CountdownExpression},
          {"task.decimal", Decimal},
          {"task.gsm8k", Gsm8k},
          {"task.sorting", Sorting},
          {"task.maze", Maze}};
}

}  // namespace tidepool::algorithms::conformance
