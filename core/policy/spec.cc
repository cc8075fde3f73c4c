#include "core/policy/spec.h"

#include <nlohmann/json.hpp>

#include "core/files/mapped_file.h"
#include "core/model/config_reader.h"

namespace tidepool::policy {
namespace {

Status Range(const char* what, int64_t value, int64_t high) {
  if (value >= 1 && value <= high) return OkStatus();
  return InvalidArgument(std::string("policy: ") + what + " is " + std::to_string(value) +
                         ", expected 1 to " + std::to_string(high));
}

}  // namespace

Status CheckSpec(const PolicySpec& spec) {
  TP_RETURN_IF_ERROR(Range("the observation's size", spec.observation_size, 65536));
  TP_RETURN_IF_ERROR(Range("the number of actions", spec.actions, 4096));
  TP_RETURN_IF_ERROR(Range("the number of hidden layers", static_cast<int64_t>(spec.hidden.size()), 8));
  for (const int64_t width : spec.hidden) TP_RETURN_IF_ERROR(Range("a hidden layer", width, 4096));
  if (!(spec.initial_log_std >= -10 && spec.initial_log_std <= 4))
    return InvalidArgument("policy: initial_log_std is outside [-10, 4]");
  return OkStatus();
}

std::vector<model::Parameter> PolicyLayout(const PolicySpec& spec) {
  std::vector<model::Parameter> layout;
  int64_t at = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    model::Parameter p{name, at, std::move(shape)};
    at += (p.numel() + 63) / 64 * 64;
    layout.push_back(std::move(p));
  };
  const auto trunk = [&](const std::string& prefix) {
    int64_t in = spec.observation_size;
    for (size_t k = 0; k < spec.hidden.size(); ++k) {
      add(prefix + std::to_string(k) + ".weight", {spec.hidden[k], in});
      add(prefix + std::to_string(k) + ".bias", {spec.hidden[k]});
      in = spec.hidden[k];
    }
  };
  trunk("actor.");
  if (!spec.shared) trunk("critic.");
  add("policy_head.weight", {spec.actions, spec.hidden.back()});
  add("policy_head.bias", {spec.actions});
  if (spec.continuous) add("log_std", {spec.actions});
  add("value_head.weight", {1, spec.hidden.back()});
  add("value_head.bias", {1});
  return layout;
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
  const nlohmann::json j = {{"model_type", "mlp_policy"},
                            {"observation_size", spec.observation_size},
                            {"actions", spec.actions},
                            {"continuous", spec.continuous},
                            {"hidden", spec.hidden},
                            {"shared", spec.shared},
                            {"initial_log_std", spec.initial_log_std},
                            {"environment", spec.environment}};
  return files::WriteSmallFile(folder + "/config.json", j.dump(2) + "\n");
}

}  // namespace tidepool::policy
