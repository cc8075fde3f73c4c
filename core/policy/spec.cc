#include "core/policy/spec.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/algorithms/registry.h"
#include "core/files/mapped_file.h"
#include "core/model/config_reader.h"

namespace tidepool::policy {
namespace {

Status Range(const char* what, int64_t value, int64_t high) {
  if (value >= 1 && value <= high) return OkStatus();
  return InvalidArgument(std::string("policy: ") + what + " is " + std::to_string(value) +
                         ", expected 1 to " + std::to_string(high));
}

// Parameters behind each other, each from a multiple of 64 elements on.
struct LayoutWriter {
  std::vector<model::Parameter> parameters = {};
  int64_t at = 0;

  void Add(const std::string& name, std::vector<int64_t> shape) {
    model::Parameter p{name, at, std::move(shape)};
    at += (p.numel() + 63) / 64 * 64;
    parameters.push_back(std::move(p));
  }
  void AddLayer(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", {out, in});
    Add(name + ".bias", {out});
  }
  void AddHidden(const std::string& prefix, int64_t in, const std::vector<int64_t>& widths) {
    for (size_t k = 0; k < widths.size(); ++k) {
      AddLayer(prefix + std::to_string(k), widths[k], in);
      in = widths[k];
    }
  }
};

}  // namespace

Status CheckSpec(const PolicySpec& spec) {
  TP_RETURN_IF_ERROR(Range("the observation's size", spec.observation_size, 65536));
  TP_RETURN_IF_ERROR(Range("the number of actions", spec.actions, 4096));
  TP_RETURN_IF_ERROR(Range("the number of hidden layers", static_cast<int64_t>(spec.hidden.size()), 8));
  for (const int64_t width : spec.hidden) TP_RETURN_IF_ERROR(Range("a hidden layer", width, 4096));
  if (spec.squashed && !(spec.continuous && !spec.shared && std::isfinite(spec.low) &&
                         std::isfinite(spec.high) && spec.low < spec.high))
    return InvalidArgument("policy: a squashed one acts by numbers between finite bounds");
  if (!(spec.initial_log_std >= -10 && spec.initial_log_std <= 4))
    return InvalidArgument("policy: initial_log_std is outside [-10, 4]");
  return OkStatus();
}

std::vector<model::Parameter> PolicyLayout(const PolicySpec& spec) {
  LayoutWriter layout;
  layout.AddHidden("actor.", spec.observation_size, spec.hidden);
  if (!spec.squashed && !spec.shared) layout.AddHidden("critic.", spec.observation_size, spec.hidden);
  layout.AddLayer("policy_head", spec.head_size(), spec.hidden.back());
  if (spec.squashed) return layout.parameters;
  if (spec.continuous) layout.Add("log_std", {spec.actions});
  layout.AddLayer("value_head", 1, spec.hidden.back());
  return layout.parameters;
}

std::vector<model::Parameter> SoftCriticLayout(const PolicySpec& spec) {
  LayoutWriter layout;
  for (const std::string name : {"q1", "q2"}) {
    layout.AddHidden(name + ".", spec.observation_size + spec.actions, spec.hidden);
    layout.AddLayer(name + "_head", 1, spec.hidden.back());
  }
  return layout.parameters;
}

environments::VectorOptions EnvironmentOfJob(const JobConfig& job) {
  const EnvironmentConfig& e = *job.environment();
  environments::VectorOptions o{
      .name = e.name, .options = {}, .max_episode_steps = e.max_episode_steps, .seed = job.seed};
  if (e.is_service()) {
    o.served = environments::VectorSpec{.name = e.name,
                                        .continuous = e.continuous,
                                        .observation_size = e.observation_size,
                                        .actions = e.actions,
                                        .low = e.action_low,
                                        .high = e.action_high,
                                        .max_episode_steps = e.max_episode_steps,
                                        .solved_return = e.solved_return,
                                        .served = true};
  }
  for (const auto& [key, text] : e.options) {
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    o.options[key] = value.is_string() ? value.get<std::string>() : text;
  }
  return o;
}

StatusOr<PolicySpec> SpecOfJob(const JobConfig& job) {
  TP_ASSIGN_OR_RETURN(const environments::VectorSpec environment,
                      environments::FindVectorEnvironment(EnvironmentOfJob(job)));
  PolicySpec spec;
  spec.observation_size = environment.observation_size;
  spec.actions = environment.actions;
  spec.continuous = environment.continuous;
  spec.hidden = job.model.hidden;
  spec.shared = job.model.shared;
  spec.initial_log_std = job.model.initial_log_std;
  spec.environment = environment.name;
  if (job.rl() != nullptr && algorithms::UsesReplay(job.rl()->algorithm)) {
    spec.squashed = true;
    spec.low = environment.low;
    spec.high = environment.high;
  }
  TP_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

Status CheckPlays(const PolicySpec& spec, const environments::VectorSpec& e) {
  if (!spec.environment.empty() && spec.environment != e.name)
    return InvalidArgument("the policy was made for " + spec.environment + ", not for " + e.name);
  if (spec.observation_size == e.observation_size && spec.actions == e.actions &&
      spec.continuous == e.continuous)
    return OkStatus();
  const auto described = [](int64_t sees, int64_t actions, bool numbers) {
    return std::to_string(sees) + " numbers and acts by " + std::to_string(actions) +
           (numbers ? " numbers" : " choices");
  };
  return InvalidArgument("the policy sees " +
                         described(spec.observation_size, spec.actions, spec.continuous) +
                         ", but who plays " + e.name + " with these options sees " +
                         described(e.observation_size, e.actions, e.continuous));
}

StatusOr<PolicySpec> ReadPolicySpec(const std::string& folder) {
  const std::string path = folder + "/config.json";
  TP_ASSIGN_OR_RETURN(const nlohmann::json j, model::ReadJsonObject(path));
  const model::ConfigReader r(path, j);
  PolicySpec spec;
  std::string type;
  TP_RETURN_IF_ERROR(r.Text("model_type", "", type));
  if (type != "mlp_policy") return InvalidArgument(path + ": model_type is not mlp_policy");
  TP_RETURN_IF_ERROR(r.Int("observation_size", 0, spec.observation_size));
  TP_RETURN_IF_ERROR(r.Int("actions", 0, spec.actions));
  TP_RETURN_IF_ERROR(r.Bool("continuous", false, spec.continuous));
  TP_RETURN_IF_ERROR(r.Bool("shared", false, spec.shared));
  TP_RETURN_IF_ERROR(r.Number("initial_log_std", spec.initial_log_std, spec.initial_log_std));
  TP_RETURN_IF_ERROR(r.Bool("squashed", false, spec.squashed));
  TP_RETURN_IF_ERROR(r.Number("action_low", spec.low, spec.low));
  TP_RETURN_IF_ERROR(r.Number("action_high", spec.high, spec.high));
  TP_RETURN_IF_ERROR(r.Text("environment", spec.environment, spec.environment));
  spec.hidden.clear();
  if (const nlohmann::json* widths = r.Find("hidden"); widths != nullptr) {
    if (!widths->is_array()) return r.Wrong("hidden", "a list of widths", *widths);
    for (const nlohmann::json& width : *widths) {
      if (!width.is_number_integer()) return r.Wrong("hidden", "a list of widths", width);
      spec.hidden.push_back(width.get<int64_t>());
    }
  }
  if (const Status sound = CheckSpec(spec); !sound.ok())
    return InvalidArgument(path + ": " + sound.message());
  return spec;
}

Status WritePolicySpec(const PolicySpec& spec, const std::string& folder) {
  nlohmann::json j = {{"model_type", "mlp_policy"},
                      {"observation_size", spec.observation_size},
                      {"actions", spec.actions},
                      {"continuous", spec.continuous},
                      {"hidden", spec.hidden},
                      {"shared", spec.shared},
                      {"initial_log_std", spec.initial_log_std},
                      {"environment", spec.environment}};
  if (spec.squashed) {
    j["squashed"] = true;
    j["action_low"] = spec.low;
    j["action_high"] = spec.high;
  }
  return files::WriteSmallFile(folder + "/config.json", j.dump(2) + "\n");
}

}  // namespace tidepool::policy
