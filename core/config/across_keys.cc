// Rules between keys. Each says which keys it reads; it is skipped where one could not be read.

#include <algorithm>
#include <cctype>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "core/algorithms/registry.h"
#include "core/base/group_condition.h"
#include "core/base/limited_call.h"
#include "core/base/loopback.h"
#include "core/base/names.h"
#include "core/base/utf8.h"
#include "core/config/binder.h"
#include "core/config/layout_rules.h"
#include "core/config/policy_rules.h"
#include "core/config/service_rules.h"
#include "core/config/training_slots.h"
#include "core/config/workload.h"
#include "core/environments/text_game.h"
#include "core/environments/trial.h"
#include "core/environments/vector.h"
#include "core/model/adapter_target.h"
#include "core/model/hugging_face.h"
#include "core/tasks/judge.h"
#include "core/tasks/reward.h"
#include "core/tasks/reward_endpoint.h"
#include "core/tasks/task.h"

namespace tidepool::config {
namespace {

std::string Text(int64_t n) { return std::to_string(n); }

void CheckModel(Binder& b, LoadedConfig& loaded) {
  const JobConfig& c = loaded.config;
  if (b.AllGood({"model.path", "model.init"})) {
    if (c.model.path.empty() && !c.model.init) {
      b.Complain(
          "model",
          "has neither path nor init; give path: a Hugging Face folder, or init: {...} for a fresh model");
    } else if (!c.model.path.empty() && c.model.init) {
      b.Complain(
          "model.path",
          "written beside model.init; keep one of the two (model.init=null takes an inherited one away)");
    }
  }
  if (!c.model.init) return;
  const ModelInit& m = *c.model.init;
  b.Rule({"model.init.kv_heads", "model.init.heads"}, m.heads % m.kv_heads != 0,
         Text(m.kv_heads) + " key and value heads do not divide " + Text(m.heads) +
             " query heads; choose a divisor");
  b.Rule({"model.init.head_size"}, m.head_size % 2 != 0,
         "is " + Text(m.head_size) + ", but rotary positions turn pairs; make it even");
  if (b.Good("model.init.alphabet")) {
    std::vector<std::string> letters = Characters(m.alphabet);
    std::ranges::sort(letters);
    const auto twice = std::ranges::adjacent_find(letters);
    if (letters.empty()) b.Complain("model.init.alphabet", "is empty; the model would know no characters");
    if (twice != letters.end())
      b.Complain("model.init.alphabet", "has '" + *twice + "' twice; each character is one token");
    const auto wide = std::ranges::find_if(letters, [](const std::string& c) { return c.size() > 1; });
    if (wide != letters.end())
      b.Complain("model.init.alphabet",
                 "has '" + *wide + "', which is not ASCII; each character is a token of one byte");
  }
}

// A tiny model reads one token a character: what its alphabet lacks of texts that it has to read or write.
class MissingCharacters {
 public:
  explicit MissingCharacters(const std::string& alphabet) {
    for (const std::string& character : Characters(alphabet)) known_.insert(character);
  }
  void Look(const std::string& text) {
    for (const std::string& character : Characters(text)) {
      if (!known_.contains(character)) missing_.insert(character);
    }
  }
  [[nodiscard]] std::string list() const {
    std::string list;
    for (const std::string& character : missing_) list += character == "\n" ? "\\n" : character;
    return list;
  }

 private:
  std::set<std::string> known_, missing_;
};

// `whose`: "which questions of task x contain".
std::string LackText(const std::string& missing, const std::string& whose) {
  return "lacks '" + missing + "', " + whose + "; add them, or choose another style";
}

// Different picks are to give different questions: those that are there twice are trained on more often than
// others, and one that is held out may be among them. Told of the first questions; all may be millions.
void WarnOfRepeats(Binder& b, const JobConfig& c, const tasks::Task& task) {
  constexpr int64_t kMost = 256;
  std::map<std::string, std::string> seen;  // question -> its name
  int64_t looked = 0, repeats = 0;
  std::string first;
  const auto look = [&](const tasks::Question& q, const std::string& name) {
    std::string text = q.prompt + '\0' + q.answer;
    for (const auto& message : q.messages) text += '\0' + message.content;
    for (const auto& [key, value] : q.fields) text += '\0' + key + '\0' + value;
    ++looked;
    const auto [at, fresh] = seen.emplace(std::move(text), name);
    if (fresh) return;
    if (++repeats == 1) first = name + " is " + at->second;
  };
  for (int64_t i = 0; i < std::min(kMost, task.held_out_size()); ++i)
    look(task.HeldOut(i), "held-out question " + std::to_string(i));
  for (int64_t i = 0; i < std::min(kMost, task.train_size()); ++i)
    look(task.Train(i), "question " + std::to_string(i));
  if (repeats == 0) return;
  b.Warn("data.task", std::to_string(repeats) + " of the first " + std::to_string(looked) +
                          " questions of task " + c.data.task + " are there before (" + first +
                          "); give each pick a question of its own in " + tasks::FindTask(c.data.task)->file);
}

void CheckTaskQuestions(Binder& b, const JobConfig& c, const tasks::Task& task) {
  const bool letters = c.model.init && b.Good("model.init.alphabet");
  MissingCharacters missing(letters ? c.model.init->alphabet : "");
  try {
    WarnOfRepeats(b, c, task);
    if (!letters) return;
    for (const bool held_out : {false, true}) {
      const int64_t count = held_out ? task.held_out_size() : task.train_size();
      for (int64_t i = 0; i < std::min<int64_t>(64, count); ++i) {
        const tasks::Question q = held_out ? task.HeldOut(i) : task.Train(i);
        missing.Look(q.prompt + q.answer);
      }
    }
  } catch (const PluginThrew& threw) {
    return b.Complain("data.task", threw.what());
  }
  if (const std::string list = missing.list(); !list.empty())
    b.Complain("model.init.alphabet", LackText(list, "which questions of task " + c.data.task + " contain"));
}

void CheckData(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  if (!b.AllGood({"data.task", "data.path"})) return;
  if (c.data.task.empty() && c.data.path.empty()) {
    return b.Complain(
        "data",
        "has neither task nor path; give task: a generated one (`tidepool tasks`), or path: a JSONL file");
  }
  if (!c.data.task.empty() && !c.data.path.empty()) {
    return b.Complain("data.path",
                      "written beside data.task; keep one of the two (null takes an inherited one away)");
  }
  if (c.data.task.empty()) {
    if (b.Written("data.size"))
      b.Complain("data.size", "belongs to a generated task; the rows of data.path are all used; remove it");
    if (!b.Written("data.held_out")) {
      Adjust(
          loaded, "data.held_out", c.data.held_out, 0,
          c.data.eval_path.empty() ? "nothing is held out of a file unless asked" : "all rows of eval_path");
    } else if (!c.data.eval_path.empty() && b.Good("data.held_out")) {
      b.Complain("data.held_out",
                 "written beside data.eval_path, whose rows are the held-out ones; keep one of the two");
    }
    return;
  }
  if (b.Written("data.eval_path")) {
    b.Complain(
        "data.eval_path",
        "belongs to data.path; a generated task holds out questions of its own (data.held_out); remove it");
  }
  if (b.as_written()) return;
  for (const tasks::Option& option : tasks::FindTask(c.data.task)->options) {
    if (!b.Good("data." + option.name)) return;
  }
  if (!b.AllGood({"data.size", "data.held_out"})) return;
  if (!b.Written("data.held_out")) {
    const StatusOr<int64_t> units = tasks::CountUnits(c.data.task, c.data.options);
    if (!units.ok()) return b.ComplainOf("data.", units.status());
    if (units.value() / 4 < c.data.held_out) {
      Adjust(loaded, "data.held_out", c.data.held_out, units.value() / 4, "a quarter of what the task has");
    }
  }
  const auto task = tasks::MakeTask({.name = c.data.task,
                                     .options = c.data.options,
                                     .size = c.data.size,
                                     .held_out = c.data.held_out,
                                     .seed = c.seed});
  if (!task.ok()) {
    return b.ComplainOf("data.", task.status());
  }
  CheckTaskQuestions(b, c, *task.value());
}

// rollout.endpoint is an environment whose episodes programs outside play; rows of data are their tasks.
void TakeEndpoint(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  auto* rl = std::get_if<RlJob>(&c.job);
  if (rl == nullptr || !b.AllGood({"rollout.endpoint", "environment.name"})) return;
  EnvironmentConfig& e = rl->environment;
  if (!c.rollout.endpoint) {
    if (e.is_endpoint())
      b.Complain("environment.name", "is endpoint; write rollout.endpoint: true, which takes its place");
    return;
  }
  if (!e.name.empty() && !e.is_endpoint()) {
    return b.Complain("rollout.endpoint",
                      "written beside environment.name: the programs that call are the environment; keep one "
                      "of the two");
  }
  if (e.name.empty())
    Adjust(loaded, "environment.name", e.name, EnvironmentConfig::kEndpoint, "of rollout.endpoint");
  // An agent calls tools, and people.
  if (!b.Written("environment.step_timeout_s"))
    Adjust(loaded, "environment.step_timeout_s", e.step_timeout_s, 600, "of rollout.endpoint");
  if (!b.Written("environment.episode_timeout_s"))
    Adjust(loaded, "environment.episode_timeout_s", e.episode_timeout_s, 7200, "of rollout.endpoint");
  if (!b.Written("environment.held_out"))
    Adjust(loaded, "environment.held_out", e.held_out, 0, "of rollout.endpoint");
  b.Rule({"environment.held_out"}, e.held_out != 0,
         "is " + Text(e.held_out) +
             ", but programs that call rollout.endpoint evaluate themselves: on `tidepool serve`; remove it");
  b.Rule({"environment.workers"}, e.workers != 1,
         "is " + Text(e.workers) + ", but rollout.endpoint is one address, of one worker; remove it");
  b.Rule({"environment.latency.median_s", "environment.latency.straggler_share"},
         e.latency.median_s > 0 || e.latency.straggler_share > 0,
         "is drawn for games of this process; the programs that call rollout.endpoint take their own time; "
         "remove it");
}

// An environment takes the place of data and rewards.
void CheckEnvironment(Binder& b, const JobConfig& c, const EnvironmentConfig& e) {
  if (!b.AllGood({"environment.name", "environment.command", "environment.addresses"}) || b.as_written())
    return;
  for (const char* key :
       {"data.task", "data.path", "data.eval_path", "data.size", "data.held_out", "reward.functions"}) {
    const bool task = e.is_endpoint() && std::string_view(key).starts_with("data.");
    if (b.Written(key) && !task) {
      b.Complain(key,
                 "written beside environment.name: an environment gives the first prompt and the reward; "
                 "keep one of the two "
                 "(null takes an inherited one away)");
    }
  }
  if (e.is_service()) {
    if (!CheckService(b, e)) return;
  } else {
    const environments::TextEnvironmentInfo* info = environments::FindTextEnvironment(e.name);
    if (info == nullptr && environments::FindVectorEnvironment({.name = e.name}).ok()) {
      return b.Complain("environment.name",
                        e.name +
                            " is a control task, which a language model cannot play; write "
                            "model.policy: mlp in place of the model");
    }
    if (info == nullptr) return b.Complain("environment.name", environments::NoSuchEnvironment(e.name));
    for (const tasks::Option& option : info->options) {
      if (!b.Good("environment." + option.name)) return;
    }
    const auto environment = environments::MakeTextEnvironment(e.name, e.options, c.seed);
    if (!environment.ok()) {
      return b.ComplainOf("environment.", environment.status());
    }
  }
  b.Rule("environment.max_turn_tokens", {"environment.max_turn_tokens", "rollout.max_new_tokens"},
         e.max_turn_tokens > c.rollout.max_new_tokens,
         "is " + Text(e.max_turn_tokens) + ", more than the whole episode may have (rollout.max_new_tokens " +
             Text(c.rollout.max_new_tokens) + "); lower it");
  b.Rule(
      {"rollout.record_routing"}, c.rollout.record_routing,
      "is on, but nobody routed the tokens that an environment says, so there is nothing to replay for them; "
      "turn it off");
  const EnvironmentLatency& latency = e.latency;
  const double longest = (latency.median_s > 0 ? (latency.tail > 0 ? latency.max_s : latency.median_s) : 0) +
                         (latency.straggler_share > 0 ? latency.straggler_s : 0);
  b.Rule(
      b.FirstWritten({"environment.latency.straggler_s", "environment.latency.max_s",
                      "environment.latency.median_s", "environment.step_timeout_s"}),
      {"environment.latency.straggler_share", "environment.latency.straggler_s", "environment.latency.max_s",
       "environment.latency.median_s", "environment.latency.tail", "environment.step_timeout_s"},
      longest >= e.step_timeout_s,
      "a turn may be drawn to take as long as environment.step_timeout_s allows, and would then fail at "
      "every try; lower it");
}

void CheckModelReward(Binder& b, const RewardFunction& f, const std::string& key) {
  const tasks::RewardInfo* info = tasks::FindReward(f.name);
  if (info == nullptr || !info->by_model()) return;  // its path is one key too many
  if (info->name != "judge") return;
  const Status judge = tasks::Judge::Create(f).status();
  if (judge.ok()) return;
  const size_t colon = judge.message().find(": ");
  b.Complain(key + "." + judge.message().substr(0, colon), judge.message().substr(colon + 2));
}

void CheckReward(Binder& b, const JobConfig& c) {
  if (!b.Good("reward.functions")) return;
  if (c.reward.functions.empty()) {
    return b.Complain(
        "reward.functions",
        "is empty, so there is nothing to learn from; for example [{name: exact_answer, weight: 1.0}]");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < c.reward.functions.size(); ++i) {
    const RewardFunction& f = c.reward.functions[i];
    const std::string key = "reward.functions[" + std::to_string(i) + "]";
    if (!b.AllGood({(key + ".name").c_str(), (key + ".endpoint").c_str()})) continue;
    if (f.name.empty()) {
      b.Complain(key + ".name", "is missing; `tidepool rewards` lists them");
      continue;
    }
    for (const Key& k : Keys()) {
      if (!k.path.starts_with("reward.functions[].")) continue;
      const std::string name = k.path.substr(k.path.rfind('.') + 1);
      if (!b.Written(key + "." + name) || tasks::Reads(f, name)) continue;
      std::string readers;
      for (const tasks::RewardInfo& info : tasks::ListRewards()) {
        if (std::ranges::count(info.keys, name) > 0) readers += (readers.empty() ? "" : " and ") + info.name;
      }
      b.Complain(key + "." + name, "is a key of " + readers + ", and this is " + f.name +
                                       (f.endpoint.empty() ? "" : " at an endpoint") + "; remove it");
    }
    if (!names.insert(f.name).second)
      b.Complain(key + ".name", "'" + f.name + "' is there twice; add the weights up instead");
    if (f.endpoint.empty() && f.by_model()) {
      CheckModelReward(b, f, key);
    } else if (f.endpoint.empty()) {
      const auto reward = tasks::MakeReward(f.name);
      if (!reward.ok()) b.Complain(key + ".name", reward.status().message());
    } else if (const auto endpoint = tasks::ParseRewardEndpoint(f.endpoint); !endpoint.ok()) {
      b.Complain(key + ".endpoint", endpoint.status().message());
    }
  }
}

// Parts that contradict each other, by the registry's own rules.
void CheckAlgorithm(Binder& b, const JobConfig& c, const RlJob& rl) {
  if (!b.AllGood({"algorithm.name", "algorithm.advantage", "algorithm.loss", "algorithm.aggregation",
                  "algorithm.correction"}))
    return;
  const auto resolved = algorithms::Resolve(rl.algorithm, c.rollout.max_new_tokens);
  if (!resolved.ok()) {
    return b.ComplainOf("", resolved.status());
  }
  const algorithms::ResolvedAlgorithm& r = resolved.value();
  const CriticConfig& critic = rl.algorithm.critic;
  for (const Key& key : Keys()) {
    if (key.path.starts_with("algorithm.critic.") && !r.needs_critic() && b.Says(key.path))
      b.Complain(key.path,
                 "advantage " + r.advantage->name + " has no critic; write advantage: gae, or remove it");
  }
  std::vector<std::string> values = {"reward", "reward_std", "response_tokens"};
  for (const RewardFunction& f : c.reward.functions) values.push_back(f.name);
  if (!rl.environment.name.empty()) values.insert(values.end(), {"solved", rl.environment.name});
  for (const std::string& text : rl.algorithm.keep_groups) {
    const std::string name = ParseGroupCondition(text)->value;  // Resolve has read it
    if (std::ranges::find(values, name) == values.end())
      b.Complain("algorithm.keep_groups",
                 "'" + text + "': nothing here gives " + name + "; " + DidYouMean(name, values));
  }
  if (!rl.algorithm.kl.reference.empty() && !r.needs_reference())
    b.Complain("algorithm.kl.reference",
               "nothing reads a reference model; write kl.coef above 0, or remove it");
  if (critic.warmup_steps > 0 && critic.warmup_steps >= c.train.steps) {
    b.Warn("algorithm.critic.warmup_steps", "is " + Text(critic.warmup_steps) + " of " + Text(c.train.steps) +
                                                " steps (train.steps), so the policy will not be trained");
  }
  b.Rule("train.mesh.ep", {"train.mesh.ep", "algorithm.name", "algorithm.advantage"},
         c.train.mesh.ep > 1 && r.needs_critic(),
         "is " + Text(c.train.mesh.ep) + ", but the critic of advantage " + r.advantage->name +
             " has no experts that are divided yet; write 1");
  b.Rule("train.mesh.tp", {"train.mesh.tp", "algorithm.name", "algorithm.advantage"},
         c.train.mesh.tp > 1 && r.needs_critic(),
         "is " + Text(c.train.mesh.tp) + ", but the critic of advantage " + r.advantage->name +
             " cannot be cut; write 1, or an advantage without a critic");
  b.Rule("model.lora.rank", {"model.lora.rank", "algorithm.name", "algorithm.advantage"},
         c.model.trains_adapter() && r.needs_critic(),
         "is " + Text(c.model.lora.rank) + ", so an adapter is trained, and the critic of advantage " +
             r.advantage->name +
             " is a model of its own, which none is trained for; write 0, or an advantage "
             "without a critic");
  const auto uses = [&](algorithms::Provision provision) { return r.advantage->Uses(provision); };
  const RewardShapingConfig& shaping = c.reward.shaping;
  const std::string advantage = "advantage " + r.advantage->name,
                    size = "is " + Text(c.rollout.group_size) + ", but ";
  b.Rule("rollout.redundancy", {"deterministic"}, c.deterministic && c.rollout.redundancy > 0,
         "drops whichever samples come last, and deterministic promises the same ones; write 0, or "
         "deterministic: "
         "false");
  b.Rule("rollout.redundancy", {"rollout.group_size"}, c.rollout.redundancy > 0 && c.rollout.group_size < 2,
         "is begun beside the samples of a group, and rollout.group_size is 1; write 0, or a group_size of 2 "
         "or more");
  b.Rule("rollout.redundancy", {"algorithm.advantage", "algorithm.name"},
         uses(algorithms::Provision::kGreedy) && c.rollout.redundancy > 0,
         "may drop any sample of a group, and the first one is the baseline of " + advantage +
             "; write 0, or another advantage");
  b.Rule("rollout.group_size", {}, uses(algorithms::Provision::kGreedy) && c.rollout.group_size < 2,
         size + "the first sample of a group is the greedy baseline of " + r.advantage->name +
             " and is not trained; raise it to 2 or more");
  b.Rule(b.FirstWritten({"algorithm.advantage", "algorithm.name"}), {"environment.name"},
         uses(algorithms::Provision::kTurns) && rl.environment.name.empty(),
         advantage +
             " is over turns of episodes, and this job has no environment; write environment: {name: ...} "
             "(`tidepool environments`) in place of data and reward, or another advantage");
  b.Rule(
      {"algorithm.advantage", "algorithm.name"},
      uses(algorithms::Provision::kComponents) && !rl.environment.name.empty(),
      advantage +
          " compares single reward functions, and an environment gives one reward; take another advantage");
  b.Rule("reward.shaping.mean", {},
         uses(algorithms::Provision::kComponents) &&
             (shaping.mean != Scope::kNone || shaping.deviation != Scope::kNone),
         "normalises the sum of the rewards, but " + advantage + " reads each reward by itself; remove it");
  b.Rule({"reward.shaping.leave_one_out"}, shaping.leave_one_out && shaping.mean == Scope::kNone,
         "says how the mean is formed, but reward.shaping.mean is none; write batch or group");
  b.Rule({"rollout.group_size"}, r.advantage->compares && c.rollout.group_size < 2,
         size + rl.algorithm.name +
             " compares samples of one prompt and needs 2 or more; raise it, or write algorithm.name: "
             "reinforce_pp");
}

void CheckRl(Binder& b, const JobConfig& c, const RlJob& rl) {
  if (rl.environment.name.empty() && !b.as_written()) CheckReward(b, c);
  if (!b.as_written()) CheckAlgorithm(b, c, rl);
  b.Rule({"rollout.temperature"}, c.rollout.temperature <= 0,
         "is 0, so all samples of a prompt would be the same and nothing could be learned; raise it, 1.0 is "
         "usual");
  b.Rule("algorithm.overlong_buffer_tokens", {"algorithm.overlong_buffer_tokens", "rollout.max_new_tokens"},
         rl.algorithm.overlong_buffer_tokens > static_cast<double>(c.rollout.max_new_tokens),
         "is larger than rollout.max_new_tokens (" + Text(c.rollout.max_new_tokens) + "); lower it");
}

// Supervised rows, pairs and distillation: nothing is sampled to be trained on.
void CheckSupervised(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  // What an evaluation on the way is judged by: a supervised row says its whole answer.
  if (AnswersHeldOut(c)) c.reward.functions = {{.name = "exact_answer"}};
  if (c.eval.stop_at_accuracy > 0 && b.Good("eval.stop_at_accuracy")) {
    if (TrainsOnPairs(c)) {
      b.Complain("eval.stop_at_accuracy", std::string("counts right answers, and a job: ") + Name(c.kind()) +
                                              " gives none; remove it");
    } else if (c.eval.every_steps <= 0) {
      b.Complain("eval.stop_at_accuracy", "needs evaluations on the way; write eval.every_steps");
    }
  }
  if (const auto* job = std::get_if<DistillJob>(&c.job)) {
    const DistillConfig& d = job->distill;
    b.Rule({"distill.teacher"}, d.teacher.empty(), "is missing; name the model folder of the teacher");
    if (b.Says("distill.weight") && d.divergence != DistillDivergence::kMixed &&
        d.divergence != DistillDivergence::kGkd) {
      b.Complain("distill.weight",
                 std::string("weighs the parts of mixed and gkd, but distill.divergence is ") +
                     Name(d.divergence) + "; remove it");
    }
  }
  if (const auto* dpo = std::get_if<DpoJob>(&c.job)) {
    b.Rule("preference.label_smoothing", {"preference.loss", "preference.label_smoothing"},
           dpo->preference.loss == PreferenceLoss::kIpo && dpo->preference.label_smoothing > 0,
           "belongs to sigmoid, and preference.loss is ipo; remove it");
  }
}

// Prompt and response have to fit the micro-batch, the model's positions and the KV cache. A default
// max_prompt_tokens gives way; one that was written is held to.
void CheckLengths(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  if (!b.AllGood({"data.max_prompt_tokens", "rollout.max_new_tokens", "train.micro_batch_tokens",
                  "rollout.kv_cache_tokens", "model.init.max_position"}))
    return;
  struct Limit {
    std::string key;
    int64_t tokens;
  };
  std::vector<Limit> limits = {{"train.micro_batch_tokens", c.train.micro_batch_tokens}};
  if (c.model.init) limits.push_back({"model.init.max_position", c.model.init->max_position});
  if (!c.model.init && !c.model.path.empty() && b.Good("model.path")) {
    // A folder that cannot be read is the business of those who read its tensors.
    if (const auto spec = model::ReadSpec(c.model.path); spec.ok())
      limits.push_back({"max_position_embeddings of model.path", spec->max_position});
  }
  const bool answers = AnswersHeldOut(c);
  if (answers && c.rollout.kv_cache_tokens > 0)
    limits.push_back({"rollout.kv_cache_tokens", c.rollout.kv_cache_tokens});
  // What is learned from is as long as the data; rows that do not fit are named when they are read.
  const int64_t response = answers ? c.rollout.max_new_tokens : 1;
  int64_t room = std::numeric_limits<int64_t>::max();
  std::string tightest;
  for (const Limit& limit : limits) {
    const int64_t left = limit.tokens - response;
    const bool folder = FindKey(limit.key) == nullptr;
    // The resolved config of an earlier run has the usual value written; it may go on.
    const bool written = folder ? b.Says("data.max_prompt_tokens") : b.Written("data.max_prompt_tokens");
    if (!answers && (left < 1 || written)) continue;
    // A job's CheckInputs says so; `tidepool generate` lets an answer end where the positions do.
    if (folder && left < 1) continue;
    if (left < 1 || (written && left < c.data.max_prompt_tokens)) {
      const std::string key = !folder && b.Written(limit.key)
                                  ? limit.key
                                  : b.FirstWritten({"rollout.max_new_tokens", "data.max_prompt_tokens"});
      b.Complain(
          key, "the longest row has " + Text(written ? c.data.max_prompt_tokens : 1) + " prompt + " +
                   Text(c.rollout.max_new_tokens) + " new tokens" +
                   (b.Written("rollout.max_new_tokens") ? "" : " by default") +
                   " (data.max_prompt_tokens, rollout.max_new_tokens) and does not fit " + limit.key + " = " +
                   Text(limit.tokens) +
                   (folder ? "; lower them, or take another model" : "; raise that, or lower the others"));
      return;
    }
    if (left < room) {
      room = left;
      tightest = limit.key;
    }
  }
  if (room < c.data.max_prompt_tokens) {
    Adjust(loaded, "data.max_prompt_tokens", c.data.max_prompt_tokens, room, "what " + tightest + " leaves");
  }
}

void CheckPlacement(Binder& b, const JobConfig& c) {
  if (!b.AllGood({"scheduler.placement", "cluster.slots", "scheduler.actor_slots"})) return;
  const int64_t slots = c.cluster.slots, actors = c.scheduler.actor_slots, floor = c.scheduler.rollout_floor;
  const std::string of_slots = " of " + Text(slots) + " slots ";
  switch (c.scheduler.placement) {
    case PlacementKind::kSplit:
      b.Rule({"cluster.slots", "scheduler.placement"}, slots < 2,
             "split needs 2 or more slots, one to generate and one to train, and cluster.slots is " +
                 Text(slots) + "; raise it, or write scheduler.placement: colocated");
      return b.Rule(
          "scheduler.actor_slots", {}, slots >= 2 && actors >= slots,
          "is " + Text(actors) + " of " + Text(slots) + " slots, which leaves none to generate; lower it");
    case PlacementKind::kMultiplexed:
      if (b.Good("scheduler.rollout_floor") && slots - actors < floor)
        return b.Complain(b.FirstWritten({"scheduler.actor_slots", "cluster.slots", "scheduler.placement"}),
                          Text(actors) + of_slots + "train, which leaves fewer than " + Text(floor) +
                              " (scheduler.rollout_floor) to generate; lower it");
      break;
    case PlacementKind::kElastic:
      if (b.Good("scheduler.rollout_floor") && slots <= floor)
        return b.Complain(
            b.FirstWritten({"scheduler.rollout_floor", "cluster.slots", "scheduler.placement"}),
            Text(floor) + of_slots +
                "always generate (scheduler.rollout_floor), which leaves none to train; lower it");
      break;
    case PlacementKind::kColocated:
      break;
  }
  b.Rule("scheduler.placement", {"deterministic"},
         c.deterministic && c.scheduler.placement == PlacementKind::kElastic,
         "is elastic, which changes how many slots train and so how sums round, and deterministic promises "
         "the same; write "
         "colocated, split or multiplexed");
  b.Rule("scheduler.actor_slots", {}, b.Written("scheduler.actor_slots") && actors > slots,
         "is " + Text(actors) + ", but there are " + Text(slots) + " slots (cluster.slots)");
}

// With fewer slots than all the placement still has to have somebody for each role, and sums that may round
// as they like.
void CheckMinSlots(Binder& b, const JobConfig& c) {
  const std::string key = "cluster.min_slots";
  if (!b.AllGood({"cluster.min_slots", "scheduler.placement", "cluster.slots", "scheduler.actor_slots"}))
    return;
  const int64_t least = c.cluster.min_slots, slots = c.cluster.slots, floor = c.scheduler.rollout_floor;
  if (least == 0) return;
  const PlacementKind placement = c.scheduler.placement;
  const std::string is = "is " + Text(least);
  if (least > slots)
    return b.Complain(key, is + ", but there are " + Text(slots) + " slots (cluster.slots); lower it");
  if (placement == PlacementKind::kSplit && least < 2)
    return b.Complain(key,
                      is + ", but with scheduler.placement split one slot trains and another one generates; "
                           "write 2 or more");
  const bool takes = placement == PlacementKind::kMultiplexed || placement == PlacementKind::kElastic;
  if (takes && b.Good("scheduler.rollout_floor") && least <= floor)
    return b.Complain(key,
                      is + ", and " + Text(floor) +
                          " always generate (scheduler.rollout_floor), which leaves none to train; write " +
                          Text(floor + 1) + " or more");
  if (least == slots || OneSlotTrains(c)) return;
  b.Rule(key, {"deterministic"}, c.deterministic && placement == PlacementKind::kColocated,
         is + " of " + Text(slots) +
             " slots: how many train decides how sums round, and deterministic promises the same; write " +
             Text(slots) +
             ", or let one slot train (scheduler.actor_slots: 1 with placement split or multiplexed)");
  b.Rule(key, {"scheduler.uneven_dp"}, !c.scheduler.uneven_dp && placement != PlacementKind::kElastic,
         is + " of " + Text(slots) +
             " slots, and how many train then need not divide train.groups_per_step, as scheduler.uneven_dp: "
             "false asks; write " +
             Text(slots) + ", or scheduler.uneven_dp: true");
}

// A trainer's memory is needed by another role only where a slot has both in turns.
void CheckOffload(Binder& b, const JobConfig& c) {
  const std::string key = "train.offload_optimizer";
  const bool wanted = c.train.offload_optimizer != Offload::kNone;
  const PlacementKind placement = c.scheduler.placement;
  const bool generates = AnswersHeldOut(c);
  b.Rule(key, {"train.offload_optimizer", "job", "eval.every_steps"}, wanted && !generates,
         std::string("is disk, but this job: ") + Name(c.kind()) +
             " only trains, so no other role needs the trainer's memory; remove it");
  b.Rule(
      key, {"train.offload_optimizer", "scheduler.placement"},
      wanted && generates && placement == PlacementKind::kSplit,
      "is disk, but with scheduler.placement split no slot has both roles, so the trainer never leaves its "
      "memory; remove it, or write scheduler.placement: colocated or multiplexed");
  b.Rule(
      key, {"train.offload_optimizer", "scheduler.placement"},
      wanted && generates && placement == PlacementKind::kElastic,
      "is disk, but with scheduler.placement elastic slots that begin to train fetch the state from one that "
      "may generate, which would have put it aside; remove it, or write scheduler.placement: colocated or "
      "multiplexed");
}

// The parts of a shared state have no copy: what moves or copies a whole one is not done with it. `is`: what
// the key says and that slots have parts; `off`: the value without parts.
void CheckParts(Binder& b, const JobConfig& c, const char* key, const std::string& is,
                const std::string& off) {
  b.Rule(key, {key, "scheduler.placement"}, c.scheduler.placement == PlacementKind::kElastic,
         is + "and with scheduler.placement elastic their number changes from step to step; write " + off +
             ", or scheduler.placement: multiplexed");
  b.Rule(key, {key, "cluster.min_slots", "cluster.slots"},
         c.cluster.min_slots > 0 && c.cluster.min_slots < c.cluster.slots && !OneSlotTrains(c),
         is + "and with cluster.min_slots " + Text(c.cluster.min_slots) + " of " + Text(c.cluster.slots) +
             " slots their number may change; write " + off + ", or cluster.min_slots: 0");
  b.Rule(
      key, {key, "checkpoint.recovery_every_steps"}, c.checkpoint.recovery_every_steps > 0,
      is + "and none has all of it, to be copied for recovery; write " + off +
          ", or checkpoint.recovery_every_steps: 0 (a worker that is lost costs the steps since the newest "
          "checkpoint)");
  b.Rule(key, {key, "checkpoint.store"}, !c.checkpoint.store.empty(),
         is + "and only one worker brings files to checkpoint.store; write " + off +
             ", or leave checkpoint.store out");
}

void CheckZero(Binder& b, const JobConfig& c) {
  const std::string key = "train.zero";
  if (!b.Good(key) || c.train.zero == 0) return;
  const std::string is =
      "is " + Text(c.train.zero) + ", so each slot that trains has a part of the optimizer's state, ";
  b.Rule(key, {"train.zero"}, c.model.is_policy(),
         "is " + Text(c.train.zero) +
             ", but policies of control tasks (model.policy) are too small to be shared; remove it");
  b.Rule(key, {"train.zero", "train.mesh.tp"}, c.train.zero >= 2 && c.train.mesh.tp > 1,
         "is " + Text(c.train.zero) + ", but with train.mesh.tp " + Text(c.train.mesh.tp) +
             " gradients are not shared yet; write 1");
  if (c.train.zero >= 3) {
    const auto placement = c.scheduler.placement;
    b.Rule(key, {"train.zero", "scheduler.placement"},
           AnswersHeldOut(c) && placement != PlacementKind::kSplit && !OneSlotTrains(c),
           "is 3, but with scheduler.placement " + std::string(Name(placement)) +
               " slots that train generate, too, with the whole weights; write 2, or scheduler.placement: "
               "split");
    b.Rule(key, {"train.zero", "job"}, c.kind() == JobKind::kRewardModel,
           "is 3, but the weights of a reward model are not shared yet; write 2");
    b.Rule(key, {"train.zero", "cluster.device"}, c.cluster.device == DeviceKind::kCuda,
           "is 3, but the weights of GPUs are not shared yet; write 2");
    b.Rule(key, {"train.zero", "cluster.bind"}, !IsLoopback(c.cluster.bind),
           "is 3, so the slots that train have to be on one host, which is not seen to yet where workers may "
           "be on several (cluster.bind " +
               c.cluster.bind + "); write 2, or cluster.bind: 127.0.0.1");
  }
  CheckParts(b, c, "train.zero", is, "0");
}

// The same of a model that is cut, and what cannot be cut.
void CheckMesh(Binder& b, const JobConfig& c) {
  const std::string key = "train.mesh.tp";
  const int64_t tp = c.train.mesh.tp;
  if (!b.Good(key) || tp == 1) return;
  const std::string is =
      "is " + Text(tp) + ", so each of as many slots has a part of the model and its optimizer, ";
  b.Rule(
      key, {"train.mesh.tp"}, c.model.is_policy(),
      "is " + Text(tp) + ", but policies of control tasks (model.policy) are too small to be cut; remove it");
  b.Rule(key, {"train.mesh.tp", "job"}, c.kind() == JobKind::kRewardModel || c.kind() == JobKind::kDistill,
         "is " + Text(tp) + ", but the model of a job " + Name(c.kind()) + " cannot be cut; write 1");
  b.Rule(key, {"train.mesh.tp", "cluster.device"}, c.cluster.device == DeviceKind::kCuda,
         "is " + Text(tp) + ", but on GPUs the model is not cut yet; write 1");
  b.Rule(key, {"train.mesh.tp", "cluster.pace"}, !c.cluster.pace.empty(),
         "is " + Text(tp) + ", which the times of cluster.pace do not know; write 1, or remove cluster.pace");
  CheckParts(b, c, "train.mesh.tp", is, "1");
  const int64_t slots = TrainingSlots(c);
  b.Rule(
      key, {"train.mesh.tp", "scheduler.actor_slots", "cluster.slots"},
      c.scheduler.placement != PlacementKind::kElastic && slots % tp != 0,
      "is " + Text(tp) + ", but " + Text(slots) + (slots == 1 ? " slot trains" : " slots train") +
          ", which it does not divide; write a divisor, or another number of slots (" +
          (c.scheduler.placement == PlacementKind::kColocated ? "cluster.slots" : "scheduler.actor_slots") +
          ")");
  b.Rule(key, {"train.mesh.tp", "train.offload_optimizer"}, c.train.offload_optimizer != Offload::kNone,
         is + "which are not put aside yet; write 1, or remove train.offload_optimizer");
}

// The same of experts that are divided. What the model has is asked where it is read (workers/controller).
void CheckExperts(Binder& b, const JobConfig& c) {
  constexpr const char* key = "train.mesh.ep";
  const int64_t ep = c.train.mesh.ep;
  if (!b.Good(key) || ep == 1) return;
  const std::string is =
      "is " + Text(ep) + ", so each of as many slots has a part of the experts and their optimizer, ";
  b.Rule(key, {key}, c.model.is_policy(),
         "is " + Text(ep) + ", but policies of control tasks (model.policy) have no experts; remove it");
  b.Rule(key, {key, "job"}, c.kind() == JobKind::kRewardModel || c.kind() == JobKind::kDistill,
         "is " + Text(ep) + ", but the experts of a job " + Name(c.kind()) + " are not divided yet; write 1");
  b.Rule(key, {key, "cluster.device"}, c.cluster.device == DeviceKind::kCuda,
         "is " + Text(ep) + ", but on GPUs experts are not divided yet; write 1");
  b.Rule(key, {key, "cluster.pace"}, !c.cluster.pace.empty(),
         "is " + Text(ep) + ", which the times of cluster.pace do not know; write 1, or remove cluster.pace");
  b.Rule(key, {key, "train.mesh.tp"}, c.train.mesh.tp > 1,
         "is " + Text(ep) + ", but with train.mesh.tp " + Text(c.train.mesh.tp) +
             " experts are not divided yet; write 1 for one of them");
  b.Rule(
      key, {key, "train.zero"}, c.train.zero > 0,
      is + "which train.zero " + Text(c.train.zero) + " does not share yet; write train.zero: 0, or 1 here");
  CheckParts(b, c, "train.mesh.ep", is, "1");
  const int64_t slots = TrainingSlots(c);
  b.Rule(
      key, {key, "scheduler.actor_slots", "cluster.slots"},
      c.scheduler.placement != PlacementKind::kElastic && slots % ep != 0,
      "is " + Text(ep) + ", but " + Text(slots) + (slots == 1 ? " slot trains" : " slots train") +
          ", which it does not divide; write a divisor, or another number of slots (" +
          (c.scheduler.placement == PlacementKind::kColocated ? "cluster.slots" : "scheduler.actor_slots") +
          ")");
  b.Rule(key, {key, "train.offload_optimizer"}, c.train.offload_optimizer != Offload::kNone,
         is + "which are not put aside yet; write 1, or remove train.offload_optimizer");
}

// What cannot be trained by an adapter yet. What the model has is asked where it is read
// (workers/controller).
void CheckLora(Binder& b, const JobConfig& c) {
  constexpr const char* key = "model.lora.rank";
  if (!b.Good(key) || !c.model.trains_adapter() || c.model.is_policy()) return;
  const std::vector<std::string>& targets = c.model.lora.targets;
  if (b.Good("model.lora.targets")) {
    if (targets.empty()) b.Complain("model.lora.targets", "is empty, so nothing would be trained; name some");
    for (const std::string& target : targets) {
      if (!FromWord<model::AdapterTarget>(target) && target != model::kExpertsWord)
        b.Complain("model.lora.targets", "'" + target + "' is none; there are " +
                                             Listed(kWords<model::AdapterTarget>) +
                                             ", and experts, which are experts_gate_up and experts_down");
      if (std::ranges::count(targets, target) > 1)
        return b.Complain("model.lora.targets", "names '" + target + "' twice");
    }
  }
  const std::string is = "is " + Text(c.model.lora.rank) + ", so an adapter is trained, ";
  b.Rule("model.lora.targets", {"model.lora.targets", "job"},
         c.kind() == JobKind::kRewardModel && std::ranges::count(targets, "head") > 0,
         "names 'head', and a reward model has a head of its own in its place, which is trained whole; "
         "remove it");
  b.Rule(
      key, {key, "deterministic", "cluster.device"}, c.deterministic && c.cluster.device == DeviceKind::kCuda,
      is + "and on a GPU its products do not give a row the same bits in every batch yet, as deterministic "
           "promises; write 0, or deterministic: false");
  b.Rule("model.lora.targets", {"model.lora.targets", "cluster.device"},
         c.cluster.device == DeviceKind::kCuda &&
             std::ranges::any_of(targets, [](const std::string& t) { return t.starts_with("experts"); }),
         "names experts, whose adapters are not computed on GPUs yet; leave them out, or write "
         "cluster.device: cpu");
  b.Rule("train.zero", {key, "train.zero"}, c.train.zero > 0,
         "is " + Text(c.train.zero) + ", but an adapter (model.lora) is too small to be shared; remove it");
  for (const auto& [mesh, parts] : {std::pair("train.mesh.tp", c.train.mesh.tp),
                                    {"train.mesh.ep", c.train.mesh.ep},
                                    {"rollout.mesh.tp", c.rollout.mesh.tp}})
    b.Rule(mesh, {key, mesh}, parts > 1,
           "is " + Text(parts) + ", but a model with an adapter (model.lora) is not cut yet; write 1");
}

// Engines that several slots are.
void CheckEngines(Binder& b, const JobConfig& c) {
  constexpr const char* key = "rollout.mesh.tp";
  const int64_t tp = c.rollout.mesh.tp;
  if (!b.Good(key) || tp == 1) return;
  const std::string is = "is " + Text(tp) + ", ";
  b.Rule(key, {key}, c.model.is_policy(),
         is + "but policies of control tasks (model.policy) are too small to be cut; remove it");
  b.Rule(key, {key, "job", "eval.every_steps"}, !c.model.is_policy() && !AnswersHeldOut(c),
         is + "but this job: " + Name(c.kind()) + " only trains, so no slot generates; remove it");
  b.Rule(key, {key, "cluster.device"}, c.cluster.device == DeviceKind::kCuda,
         is + "but on GPUs the model is not cut yet; write 1");
  b.Rule(key, {key, "cluster.pace"}, !c.cluster.pace.empty(),
         is + "which the times of cluster.pace do not know; write 1, or remove cluster.pace");
  b.Rule(
      key, {key, "cluster.bind"}, !IsLoopback(c.cluster.bind),
      is +
          "and the slots of an engine have to be on one host, which is not seen to yet where workers may be "
          "on several (cluster.bind " +
          c.cluster.bind + "); write 1, or cluster.bind: 127.0.0.1");
  b.Rule(key, {key, "scheduler.placement"}, c.scheduler.placement == PlacementKind::kElastic,
         is + "which the forecasts of scheduler.placement elastic do not know; write 1, or "
              "scheduler.placement: multiplexed");
  b.Rule(key, {key, "cluster.min_slots", "cluster.slots"},
         c.cluster.min_slots > 0 && c.cluster.min_slots < c.cluster.slots,
         is + "and with cluster.min_slots " + Text(c.cluster.min_slots) + " of " + Text(c.cluster.slots) +
             " slots those of an engine need not all be there; write 1, or cluster.min_slots: 0");
  b.Rule(key, {key, "train.offload_optimizer"}, c.train.offload_optimizer != Offload::kNone,
         is + "and a state that is put aside is not known there yet; write 1, or remove "
              "train.offload_optimizer");
  const bool split = c.scheduler.placement == PlacementKind::kSplit;
  const int64_t slots = c.cluster.slots - FirstEngineSlot(c);
  b.Rule(key, {key, "cluster.slots", "scheduler.actor_slots"},
         c.scheduler.placement != PlacementKind::kElastic && slots > 0 && slots % tp != 0,
         is + "but " + Text(slots) + (slots == 1 ? " slot generates" : " slots generate") +
             ", which it does not divide; write a divisor, or another number of slots (cluster.slots" +
             (split ? " less scheduler.actor_slots)" : ")"));
  b.Rule(key, {key, "scheduler.actor_slots"},
         c.scheduler.placement == PlacementKind::kMultiplexed && c.scheduler.actor_slots % tp != 0,
         is + "and the slots of an engine leave it together, but " + Text(c.scheduler.actor_slots) +
             " of them train (scheduler.actor_slots), which it does not divide; write a divisor, or another "
             "number");
}

void CheckCluster(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  const std::string& bind = c.cluster.bind;
  const bool leaves = !IsLoopback(bind);
  b.Rule({"cluster.bind", "cluster.advertise"}, IsAnyAddress(bind) && c.cluster.advertise.empty(),
         "the controller would listen on every address of its host, and workers would not know which to "
         "dial; write the one "
         "they can reach to cluster.advertise");
  const std::string& advertise = c.cluster.advertise;
  b.Rule({"cluster.bind", "cluster.advertise"}, !leaves && !advertise.empty() && !IsLoopback(advertise),
         "the controller would listen on " + bind + ", which nobody reaches at " + advertise +
             "; write an address of this host that others reach, or 0.0.0.0, to cluster.bind, or remove "
             "cluster.advertise");
  const size_t colon = advertise.rfind(':');
  const bool has_port = colon != std::string::npos && colon + 1 < advertise.size() &&
                        advertise.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                        (advertise.find(':') == colon || advertise[colon - 1] == ']');
  b.Rule("cluster.advertise", {"cluster.advertise"}, has_port,
         "is '" + advertise + "', a host and a port; write the host alone, the port is cluster.port");
  b.Rule("cluster.advertise", {"cluster.advertise"}, IsAnyAddress(advertise),
         "is '" + advertise + "', which no worker can dial; write the host name or address that they reach");
  b.Rule({"cluster.bind", "cluster.weight_transport"},
         leaves && c.cluster.weight_transport != WeightTransport::kStream,
         "workers may be on other hosts, where shared memory of this one is not; write "
         "cluster.weight_transport: stream");
  b.Rule({"cluster.trusted_fabric", "cluster.bind"}, leaves && !OneSlotTrains(c) && !c.cluster.trusted_fabric,
         "several slots train, and the sums of their gradients are not encrypted on their way; write true "
         "where the network "
         "between them is the job's own, or let one slot train (scheduler.actor_slots: 1 with placement "
         "split or multiplexed)");
  b.Rule({"cluster.bind"}, leaves && c.model.is_policy(),
         "others can reach '" + bind +
             "', and the hosts of control tasks (model.policy) do not encrypt what they say yet; write "
             "127.0.0.1");
  const std::string& pages = c.observe.metrics_bind;
  const bool shown = !pages.empty() && !IsLoopback(pages);
  b.Rule("observe.metrics_bind", {"observe.metrics_bind", "cluster.bind", "security.tls"},
         shown && !leaves && !c.security.tls,
         "others can reach " + pages +
             ", and the job has no certificates, so what its processes show would not be encrypted; write "
             "security.tls: true, or 127.0.0.1 here");
  b.Rule("observe.metrics_bind", {"observe.metrics_bind", "cluster.advertise"},
         shown && IsAnyAddress(pages) && advertise.empty(),
         "the controller would show its pages on every address of its host, and nobody would be told which "
         "to ask; write one address here, or the one that others reach to cluster.advertise");
  b.Rule("observe.metrics_port", {"observe.metrics_bind", "observe.metrics_port"},
         pages.empty() && c.observe.metrics_port != 0,
         "nothing listens there without observe.metrics_bind; write observe.metrics_bind: 127.0.0.1");
  b.Rule({"security.newcomers", "security.tls"}, c.security.newcomers && !leaves && !c.security.tls,
         "newcomers get certificates, and the job has none; write security.tls: true, or the address of a "
         "network to cluster.bind");
  b.Rule({"security.max_control_bytes", "security.max_frame_bytes"},
         c.security.max_control_bytes < c.security.max_frame_bytes,
         "a frame of messages may have fewer bytes than one of rows: no batch would ever arrive; let "
         "security.max_control_bytes be at least security.max_frame_bytes");
  b.Rule({"cluster.stall_timeout_s", "cluster.heartbeat_s"},
         c.cluster.stall_timeout_s < 4 * c.cluster.heartbeat_s,
         "the stall time-out is shorter than four heartbeats; every run would look stalled");
  if (!b.AllGood({"cluster.plugin_timeout_s", "cluster.stall_timeout_s"}) ||
      c.cluster.plugin_timeout_s <= c.cluster.stall_timeout_s)
    return;
  const std::string key = "cluster.plugin_timeout_s";
  if (!b.Written(key))
    return Adjust(loaded, key, c.cluster.plugin_timeout_s, c.cluster.stall_timeout_s,
                  "cluster.stall_timeout_s is shorter");
  b.Complain(key,
             "is " + ValueText(FindKey(key)->field(c, 0)) + " s, more than the " +
                 ValueText(FindKey("cluster.stall_timeout_s")->field(c, 0)) +
                 " s of cluster.stall_timeout_s, so the run would end without the name of a plug-in that "
                 "does not return; lower it, or raise cluster.stall_timeout_s");
}

// What a GPU does not do.
void CheckDevice(Binder& b, const JobConfig& c) {
  if (!b.Good("cluster.device") || c.cluster.device != DeviceKind::kCuda) return;
  b.Rule({"cluster.device"}, c.model.is_policy(),
         "is cuda, but a policy of control tasks (model.policy) is computed on the CPU; write cpu");
}

// A pace that cannot be kept to is found before a process starts.
void CheckPace(Binder& b, const JobConfig& c) {
  if (!b.Good("cluster.pace")) return;
  if (c.cluster.pace.empty()) {
    if (b.Says("cluster.pace_scale"))
      b.Complain("cluster.pace_scale", "stretches the times of cluster.pace, which is not written");
    return;
  }
  if (const auto pace = LoadPace(c.cluster.pace); !pace.ok())
    b.Complain("cluster.pace", "cannot be used: " + pace.status().message());
}

// The warm start is a config of its own that trains the very model of this one.
void CheckWarmStart(Binder& b, const LoadedConfig& loaded) {
  const JobConfig& c = loaded.config;
  const std::string key = "model.init.warm_start";
  if (!c.model.init || c.model.init->warm_start.empty() || !b.Good(key)) return;
  std::error_code error;
  if (!std::filesystem::exists(c.model.init->warm_start, error)) {
    return b.Complain(key, "no file '" + c.model.init->warm_start +
                               "', neither beside this config nor in the current directory");
  }
  if (c.kind() == JobKind::kSft) return b.Complain(key, "an sft job starts from fresh weights; remove it");
  const auto warm = LoadWarmStart(c);
  if (!warm.ok()) return b.Complain(key, "cannot be used:\n" + warm.status().message());
  const JobConfig& w = warm.value().config;
  if (w.kind() != JobKind::kSft)
    return b.Complain(key, c.model.init->warm_start + " is a job: " + Name(w.kind()) + "; expected job: sft");
  if (!w.model.init)
    return b.Complain(key, c.model.init->warm_start + " has no model.init; give it the same as here");
  if (w.model.trains_adapter())
    b.Complain(key, c.model.init->warm_start +
                        " has model.lora, and a warm start makes the model itself; remove it there");
  // Equal tasks with equal seeds hold out equal questions only if they also hold out the same number. A job
  // with an environment has no task.
  if (c.environment() == nullptr && c.data.task == w.data.task &&
      (c.data.options != w.data.options || c.data.held_out != w.data.held_out)) {
    b.Complain("data.task", "its options or held_out differ from those of the warm start " +
                                c.model.init->warm_start +
                                ", which could train on held-out questions of this job; make them equal");
  }
  JobConfig mine = c;
  JobConfig theirs = w;
  for (const Key& k : Keys()) {
    // The warm start trains the model itself, and an adapter is then trained on that.
    if (!k.path.starts_with("model.") || k.path.starts_with("model.lora.") || k.path == key) continue;
    const std::string here = ValueText(k.field(mine, 0));
    const std::string there = ValueText(k.field(theirs, 0));
    if (here != there)
      b.Complain(k.path, "is " + here + " here and " + there + " in the warm start " +
                             c.model.init->warm_start + "; make them equal");
  }
}

void CheckName(Binder& b, const JobConfig& c) {
  const auto plain = [](char ch) {
    return std::isalnum(static_cast<unsigned char>(ch)) != 0 || ch == '-' || ch == '_' || ch == '.';
  };
  b.Rule({"name"},
         c.name.empty() || c.name[0] == '.' || c.name.size() > 100 || !std::ranges::all_of(c.name, plain),
         "found '" + c.name + "'; it names a folder: letters, digits, - _ . (1 to 100, no point first)");
}

// What rl jobs of every kind of model are scheduled by.
void CheckSchedule(Binder& b, const JobConfig& c) {
  b.Rule({"rollout.pin_version", "scheduler.on_stale"},
         c.rollout.pin_version && c.scheduler.on_stale == OnStale::kMask,
         "a pinned sample ends on one version, so there is nothing of it to mask; write scheduler.on_stale: "
         "reissue or drop");
  b.Rule({"scheduler.infra_drop_alarm", "scheduler.infra_drop_stop"},
         c.scheduler.infra_drop_alarm > c.scheduler.infra_drop_stop,
         "the alarm lies above the stop; the run would end before it warns");
}

// Keys that nothing reads in this job.
void CheckIdleKeys(Binder& b, const JobConfig& c) {
  JobConfig values = c;
  // `where` follows from `reads`.
  const auto idle = [&](std::initializer_list<const char*> reads, bool where,
                        std::initializer_list<const char*> keys, const std::string& why) {
    if (!where || !b.AllGood(reads)) return;
    for (const char* key : keys) {
      if (b.Says(key))
        b.Complain(key, "is " + ValueText(FindKey(key)->field(values, 0)) + ", but " + why +
                            "remove it (null takes an inherited one away)");
    }
  };
  const bool rl = c.rl() != nullptr;
  const std::string job = std::string("a job: ") + Name(c.kind());
  idle({"job"}, !rl,
       {"rollout.temperature", "rollout.top_k", "rollout.top_p", "rollout.min_p", "rollout.record_routing"},
       job + " draws no samples to train on, and evaluation is greedy; ");
  idle({"job", "eval.every_steps"}, !rl && !AnswersHeldOut(c),
       {"rollout.chunk_tokens", "rollout.stop", "rollout.stop_token_ids", "rollout.max_concurrent",
        "rollout.block_tokens", "rollout.kv_cache_tokens", "rollout.max_batched_tokens",
        "rollout.kv_on_update", "rollout.cuda_graphs"},
       job + (TrainsOnPairs(c) ? " generates nothing; "
                               : " generates only for evaluations on the way; write eval.every_steps, or "));
  idle({"job", "eval.every_steps"}, c.kind() == JobKind::kDistill && !AnswersHeldOut(c), {"eval.samples"},
       job + " is evaluated on the way alone; write eval.every_steps, or ");
  idle({"model.policy"}, c.model.is_policy(), {"rollout.admission", "train.router_aux_coef"},
       std::string("means nothing to a policy of control tasks (model.policy: ") + Name(c.model.policy) +
           "); ");
  idle({"model.lora.rank"}, !c.model.trains_adapter(),
       {"model.lora.alpha", "model.lora.targets", "model.lora.init", "model.lora.rslora", "model.lora.path"},
       "no adapter is trained; write model.lora.rank, or ");
  idle({"rollout.pin_version"}, !c.rollout.pin_version, {"rollout.repack_s"},
       "it moves pinned samples; write rollout.pin_version: true, or ");
  // tail_rounds also gives groups a round that were overtaken because samples may be of older weights.
  idle({"scheduler.oversample", "scheduler.max_lag_versions"},
       c.scheduler.oversample <= 1 &&
           (c.scheduler.oversample_mode == OversampleMode::kFirstDone || c.scheduler.max_lag_versions == 0),
       {"scheduler.oversample_mode"}, "there are no surplus groups; raise scheduler.oversample above 1, or ");
  idle({"train.schedule"}, c.train.schedule == Schedule::kConstant, {"train.min_learning_rate_ratio"},
       "train.schedule is constant; write linear or cosine, or ");
}

void CheckStore(Binder& b, const JobConfig& c) {
  const std::string key = "checkpoint.store", &store = c.checkpoint.store;
  const std::string &endpoint = c.checkpoint.s3_endpoint, &region = c.checkpoint.s3_region;
  const bool s3 = store.starts_with("s3://");
  if (s3 && store.find_first_of("@?") != std::string::npos) {
    return b.Complain(key,
                      "has more than bucket and prefix; write s3://BUCKET/PREFIX, an endpoint into "
                      "checkpoint.s3_endpoint, and credentials where AWS' own tools look for them "
                      "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials), never here");
  }
  const bool named = s3 ? store.size() > 5 && store[5] != '/' : store.starts_with("/");
  if (!store.empty() && (!named || store.ends_with("/"))) {
    return b.Complain(key, "is '" + store +
                               "', which is neither a directory by its whole path (/shared/checkpoints) nor "
                               "s3://BUCKET/PREFIX");
  }
  b.Rule("checkpoint.s3_endpoint", {"checkpoint.store"}, !endpoint.empty() && !s3,
         "is of a store in S3; write checkpoint.store");
  b.Rule("checkpoint.s3_region", {"checkpoint.store"}, !region.empty() && !s3,
         "is of a store in S3; write checkpoint.store");
  const bool http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  if (!endpoint.empty() &&
      (!http || endpoint.find_first_of("@?") != std::string::npos || endpoint.ends_with("/"))) {
    b.Complain("checkpoint.s3_endpoint",
               "is '" + endpoint + "', which is no http://HOST:PORT or https://HOST");
  }
}

// The best checkpoint is known by an evaluation of its step.
void CheckBest(Binder& b, const JobConfig& c) {
  const std::string key = "checkpoint.keep_best", &metric = c.checkpoint.keep_best;
  if (!b.Good(key) || metric.empty()) return;
  std::vector<std::string> known;
  const std::string judged = std::string("eval/") + Name(c.kind());  // by the trainer
  if (TrainsOnPairs(c)) {
    known = {"eval/loss", judged + "/accuracy", judged + "/margin"};
  } else {
    if (c.kind() == JobKind::kSft) known = {"eval/loss", judged + "/token_accuracy"};
    known.emplace_back("eval/reward/mean");
    if (c.model.is_policy()) known.emplace_back("eval/return/mean");
    known.emplace_back("eval/accuracy");
    for (const RewardFunction& f : c.reward.functions) known.push_back("eval/reward/" + f.name + "/mean");
  }
  // The names of an environment's rewards are its own.
  const bool named =
      c.environment() != nullptr && metric.starts_with("eval/reward/") && metric.ends_with("/mean");
  if (!named && std::ranges::find(known, metric) == known.end()) {
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
    return b.Complain(key, "is " + metric + ", which no evaluation of this job has; one of " + list);
  }
  b.Rule(key, {"eval.every_steps"}, c.eval.every_steps <= 0,
         "needs evaluations on the way; write eval.every_steps");
  b.Rule(key, {"data.held_out", "data.eval_path"},
         c.environment() == nullptr && c.data.held_out == 0 && c.data.eval_path.empty(),
         "needs held-out rows to evaluate; write data.held_out");
  const int64_t every = c.checkpoint.every_steps;
  b.Rule(key, {"eval.every_steps", "checkpoint.every_steps"},
         c.eval.every_steps > 0 && (every <= 0 || c.eval.every_steps % every != 0),
         "needs a checkpoint at each evaluation, but evaluations are every " + Text(c.eval.every_steps) +
             " steps and checkpoints " +
             (every > 0 ? "every " + Text(every) : "at the start and the end alone") +
             "; make eval.every_steps a multiple of checkpoint.every_steps");
}

// Rules of language models.
void CheckText(Binder& b, LoadedConfig& loaded) {
  TakeEndpoint(b, loaded);
  const JobConfig& c = loaded.config;
  for (const auto& [key, origin] : loaded.origins) {
    if (!b.Written(key) || !b.Good(key)) continue;
    if (BelongsToPolicies(key, c)) {
      b.Complain(key, "belongs to a policy of control tasks; write model.policy: mlp, or remove it");
    } else if (key.starts_with("environment.") && key != "environment.name" && c.environment() == nullptr &&
               b.Good("environment.name")) {
      b.Complain(key,
                 "belongs to an environment, and environment.name is missing; name one (`tidepool "
                 "environments`), or remove the section");
    }
  }
  CheckModel(b, loaded);
  if (auto* rl = std::get_if<RlJob>(&loaded.config.job);
      rl != nullptr && rl->environment.is_service() && !b.Written("environment.instances"))
    Adjust(loaded, "environment.instances", rl->environment.instances, 256, "of a service");
  if (const EnvironmentConfig* environment = c.environment()) {
    CheckEnvironment(b, c, *environment);
    if (environment->is_endpoint() && !(c.data.task.empty() && c.data.path.empty())) CheckData(b, loaded);
  } else {
    CheckData(b, loaded);
  }
  if (b.Good("job")) {
    if (const RlJob* rl = c.rl()) {
      CheckRl(b, c, *rl);
    } else {
      CheckSupervised(b, loaded);
    }
  }
  CheckLengths(b, loaded);
  b.Rule("train.minibatches", {"train.minibatches", "train.groups_per_step"},
         c.train.minibatches > c.train.groups_per_step,
         "is " + Text(c.train.minibatches) + ", more than the " + Text(c.train.groups_per_step) +
             " groups of a step (train.groups_per_step); lower it");
  CheckPace(b, c);
  if (!b.as_written()) CheckWarmStart(b, loaded);
}

}  // namespace

void CheckAcrossKeys(Binder& b, LoadedConfig& loaded) {
  const JobConfig& c = loaded.config;
  if (c.model.is_policy() && b.Good("model.policy")) {
    CheckPolicy(b, loaded);
  } else {
    CheckText(b, loaded);
  }
  CheckIdleKeys(b, c);
  CheckSchedule(b, c);
  CheckPlacement(b, c);
  CheckMinSlots(b, c);
  CheckOffload(b, c);
  CheckZero(b, c);
  CheckMesh(b, c);
  CheckExperts(b, c);
  CheckLora(b, c);
  CheckEngines(b, c);
  CheckStore(b, c);
  CheckBest(b, c);
  CheckCluster(b, loaded);
  CheckDevice(b, c);
  CheckName(b, c);
}

std::vector<std::string> LayoutProblems(LoadedConfig loaded) {
  // Whoever tries them says them: they are what has to be changed.
  for (const char* key :
       {"scheduler.placement", "scheduler.actor_slots", "train.mesh.tp", "train.mesh.ep", "train.zero"})
    loaded.origins[key].kind = Origin::Kind::kOverride;
  std::vector<Problem> problems;
  Binder b(loaded, problems, /*as_written=*/false);
  const JobConfig& c = loaded.config;
  if (const RlJob* rl = c.rl(); rl != nullptr && !c.model.is_policy()) CheckAlgorithm(b, c, *rl);
  CheckLengths(b, loaded);
  CheckPlacement(b, c);
  CheckMinSlots(b, c);
  CheckOffload(b, c);
  CheckZero(b, c);
  CheckMesh(b, c);
  CheckExperts(b, c);
  CheckEngines(b, c);
  CheckCluster(b, loaded);
  std::vector<std::string> texts;
  for (Problem& problem : problems) texts.push_back(std::move(problem.text));
  return texts;
}

StatusOr<std::string> TryGames(LoadedConfig& loaded, const AskService& ask_service) {
  const JobConfig& c = loaded.config;
  const EnvironmentConfig* e = c.environment();
  const bool service = e != nullptr && e->is_service();
  if (service && c.model.is_policy()) return AskSpaces(loaded, ask_service);
  const auto* info = e == nullptr || service ? nullptr : environments::FindTextEnvironment(e->name);
  if ((info == nullptr && !service) || (service && e->is_endpoint())) return std::string();
  const UsualLimitFor limit(UsualLimitOf(loaded));
  const auto told = [&](const char* key, const char* section, const std::string& what) {
    const bool written = loaded.OriginOf(key).kind != Origin::Kind::kDefault;
    return loaded.OriginOf(written ? key : section).Where() + ": " + key + ": " + what;
  };
  MissingCharacters missing(c.model.init ? c.model.init->alphabet : "");
  const auto lacks = [&](const std::string& list, const std::string& name) -> StatusOr<std::string> {
    if (list.empty() || !c.model.init) return std::string();
    return InvalidArgument(told("model.init.alphabet", "model.init",
                                LackText(list, "which environment " + name + " writes or reads")));
  };
  if (service) {
    const char* key = e->command.empty() ? "environment.addresses" : "environment.command";
    const auto said = ask_service(c);
    if (said.status().code() == StatusCode::kUnavailable)
      return told(key, key, "environment " + e->name + " was not tried: " + said.status().message());
    if (!said.ok()) return InvalidArgument(told(key, key, said.status().message()));
    missing.Look(said->characters);
    return lacks(missing.list(), e->name);
  }
  TP_ASSIGN_OR_RETURN(const auto environment, environments::MakeTextEnvironment(e->name, e->options, c.seed));
  const auto played = environments::PlayTrial(
      *environment, environments::LabelOf(*info),
      {.reset_s = e->reset_timeout_s, .step_s = e->step_timeout_s},
      [&](const std::string& text, environments::Said /*said*/) { missing.Look(text); },
      [&] { return missing.list(); });
  if (played.status().code() == StatusCode::kUnavailable)
    return told("environment.name", "environment.name",
                "games of " + environments::LabelOf(*info) + " were not tried: " + played.status().message());
  if (!played.ok()) {
    return InvalidArgument(told("environment.name", "environment.name",
                                "a trial of its games failed: " + played.status().message() +
                                    "; correct it and build again (environment.step_timeout_s limits a step, "
                                    "reset_timeout_s a reset)"));
  }
  return lacks(*played, info->name);
}

}  // namespace tidepool::config
