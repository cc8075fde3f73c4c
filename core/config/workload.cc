#include "core/config/workload.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <variant>

#include "core/config/schema.h"
#include "core/config/yaml_tree.h"

namespace tidepool::config {
namespace {

struct Entry {
  const char* key;
  std::variant<double*, int64_t*, bool*, std::string*, WordField> field;  // bool: 0 or 1
  double lo = 0, hi = 1e18;
  bool above = false;  // more than lo
  bool required = false;
  double unit = 1;  // of the key, in that of the field
};

void Complain(const Node& at, const std::string& text, std::vector<Problem>& problems) {
  problems.push_back({at.place, text});
}

void Read(const Node& node, const Entry& e, std::vector<Problem>& problems) {
  const std::string key = e.key;
  if (node.kind != Node::Kind::kScalar)
    return Complain(node, key + ": found " + node.Describe() + "; write one value", problems);
  if (auto* text = std::get_if<std::string*>(&e.field)) {
    **text = node.text;
    return;
  }
  if (auto* word = std::get_if<WordField>(&e.field)) {
    if (!word->Set(node.text))
      Complain(node, key + ": found " + node.Describe() + "; write one of " + word->List(), problems);
    return;
  }
  double x = 0;
  const auto* begin = node.text.data();
  const auto* end = begin + node.text.size();
  const auto [rest, error] = std::from_chars(begin, end, x);
  const bool whole = !std::holds_alternative<double*>(e.field);
  if (error != std::errc{} || rest != end || !std::isfinite(x) || (whole && x != std::floor(x))) {
    return Complain(node,
                    key + ": found " + node.Describe() + "; write " + (whole ? "a whole number" : "a number"),
                    problems);
  }
  if (x < e.lo || x > e.hi || (e.above && x <= e.lo)) {
    char range[80];
    std::snprintf(range, sizeof(range), "%s %g and at most %g", e.above ? "above" : "at least", e.lo, e.hi);
    return Complain(node, key + ": is " + node.text + "; it has to be " + range, problems);
  }
  if (auto* number = std::get_if<double*>(&e.field)) **number = x * e.unit;
  if (auto* count = std::get_if<int64_t*>(&e.field)) **count = static_cast<int64_t>(x);
  if (auto* flag = std::get_if<bool*>(&e.field)) **flag = x != 0;
}

void ReadMap(const Node& node, const std::string& name, const std::vector<Entry>& entries,
             std::vector<Problem>& problems) {
  if (node.kind != Node::Kind::kMap)
    return Complain(node, name + ": found " + node.Describe() + "; write key: value pairs", problems);
  for (const auto& [key, value] : node.members) {
    const Entry* found = nullptr;
    for (const Entry& e : entries) found = key == e.key ? &e : found;
    if (found != nullptr) {
      Read(value, *found, problems);
      continue;
    }
    std::string known;
    for (const Entry& e : entries) known += (known.empty() ? "" : ", ") + std::string(e.key);
    Complain(value, name + ": unknown key '" + key + "'; known: " + known, problems);
  }
  for (const Entry& e : entries) {
    if (e.required && node.Find(e.key) == nullptr)
      Complain(node, name + ": " + e.key + " is missing", problems);
  }
}

std::vector<Entry> JobEntries(WorkloadJob& j) {
  return {{"placement", WordField(&j.placement)},
          {"policy", &j.policy},
          {"order", &j.order},
          {"kv_on_update", WordField(&j.kv_on_update)},
          {"on_stale", WordField(&j.on_stale)},
          {"slots", &j.slots, 1, 65536},
          {"devices_per_slot", &j.devices_per_slot, 1, 65536},
          {"actor_slots", &j.actor_slots, 1, 65536},
          {"rollout_floor", &j.rollout_floor, 0, 65536},
          {"groups_per_step", &j.groups_per_step, 1, 1e6},
          {"group_size", &j.group_size, 1, 1e4},
          {"steps", &j.steps, 1, 1e6},
          {"max_lag_versions", &j.max_lag_versions, 0, 1000},
          {"oversample", &j.oversample, 1, 16},
          {"prompt_tokens", &j.prompt_tokens, 1, 1e7},
          {"prompt_once", &j.prompt_once, 0, 1},
          {"max_new_tokens", &j.max_new_tokens, 1, 1e7},
          {"chunk_tokens", &j.chunk_tokens, 0, 1e7},
          {"max_concurrent", &j.max_concurrent, 1, 1e8},
          {"kv_cache_tokens", &j.kv_cache_tokens, 0, 1e15},
          {"reward_workers", &j.reward_workers, 1, 1e5},
          {"mean_tokens", &j.lengths.mean_tokens, 0, 1e7, true},
          {"sigma_between", &j.lengths.sigma_between, 0, 10},
          {"sigma_within", &j.lengths.sigma_within, 0, 10},
          {"growth", &j.lengths.growth, 0, 1e3, true},
          {"growth_groups", &j.lengths.growth_groups, 0, 1e9},
          {"tokens_per_step", &j.tokens_per_step, 1, 100},
          {"mean_turns", &j.turns.mean_turns, 1, 1e5},
          {"sigma_turns", &j.turns.sigma_turns, 0, 10},
          {"max_turns", &j.turns.max_turns, 1, 1e5},
          {"env_step_s", &j.turns.step_s_mean, 0, 1e6},
          {"env_step_sd", &j.turns.step_s_sd, 0, 1e6},
          {"env_slow_chance", &j.turns.slow_chance, 0, 1},
          {"env_slow_s", &j.turns.slow_s, 0, 1e6},
          {"engine_efficiency", &j.engine_efficiency, 0, 1, true},
          {"train_efficiency", &j.train_efficiency, 0, 1, true},
          {"reward_s", &j.reward_s, 0, 1e6},
          {"release_s", &j.release_s, 0, 1e6},
          {"grant_s", &j.grant_s, 0, 1e6},
          {"group_s", &j.group_s, 0, 1e6},
          {"seed", &j.seed, 0, 1e15},
          {"recompute", &j.recompute, 0, 1},
          {"further_models", &j.further_models, 0, 8},
          {"early_columns", &j.early_columns, 0, 1},
          {"kv_pool", &j.kv_pool, 0, 1},
          {"checkpoint_every", &j.checkpoint_every, 0, 1e6}};
}

std::vector<Entry> FaultEntries(FaultShape& f) {
  return {{"delay_spread", &f.delay_spread, 0, 1},
          {"loss", &f.loss, 0, 0.9},
          {"resend_s", &f.resend_s, 0, 1e5},
          {"duplicate", &f.duplicate, 0, 1},
          {"partition_mean_s", &f.partition_mean_s, 0, 1e9},
          {"partition_s", &f.partition_s, 0, 1e6},
          {"kill_mean_s", &f.kill_mean_s, 0, 1e9},
          {"hang_mean_s", &f.hang_mean_s, 0, 1e9},
          {"restart_s", &f.restart_s, 0, 1e6},
          {"slow_share", &f.slow_share, 0, 1},
          {"slow_factor", &f.slow_factor, 1, 1e4},
          {"write_s", &f.write_s, 0, 1e5},
          {"disk_slow_mean_s", &f.disk_slow_mean_s, 0, 1e9},
          {"disk_slow_s", &f.disk_slow_s, 0, 1e6},
          {"disk_slow_factor", &f.disk_slow_factor, 1, 1e6},
          {"checkpoint_fails", &f.checkpoint_fails, 0, 1},
          {"checkpoint_s", &f.checkpoint_s, 0, 1e6},
          {"stop_at_s", &f.stop_at_s, 0, 1e9},
          {"controller_kill_mean_s", &f.controller_kill_mean_s, 0, 1e9},
          {"resume_s", &f.resume_s, 0, 1e6}};
}

StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(path + ": no such file");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return text;
}

Status AllOf(const std::vector<Problem>& problems) {
  if (problems.empty()) return OkStatus();
  std::string text;
  for (const Problem& p : problems) text += (text.empty() ? "" : "\n") + p.place.ToString() + ": " + p.text;
  return InvalidArgument(text);
}

using Variants = std::vector<std::pair<std::string, WorkloadJob>>;

Variants ReadVariants(const Node* list, const WorkloadJob& base, std::vector<Problem>& problems) {
  Variants out;
  if (list == nullptr) return {{"base", base}};
  if (list->kind != Node::Kind::kList) {
    Complain(*list, "variants: found " + list->Describe() + "; write a list", problems);
    return out;
  }
  for (const Node& item : list->items) {
    std::string name;
    WorkloadJob job = base;
    std::vector<Entry> entries = JobEntries(job);
    entries.push_back({.key = "name", .field = &name, .required = true});
    ReadMap(item, "variants", entries, problems);
    out.emplace_back(name, job);
  }
  return out;
}

void ReadModel(const Node& node, ModelShape& m, std::vector<Problem>& problems) {
  ReadMap(node, "model",
          {{"name", &m.name},
           {"parameters", &m.parameters, 0, 1e15, true, true},
           {"active_parameters", &m.active_parameters, 0, 1e15, true},
           {"weight_bytes", &m.weight_bytes, 0, 8, true},
           {"kv_bytes", &m.kv_bytes, 0, 8, true},
           {"kv_bytes_per_token", &m.kv_bytes_per_token, 0, 1e9},
           {"layers", &m.layers, 1, 1e4, false, true},
           {"heads", &m.heads, 1, 1e4, false, true},
           {"kv_heads", &m.kv_heads, 1, 1e4, false, true},
           {"head_size", &m.head_size, 1, 1e5, false, true}},
          problems);
  if (m.active_parameters == 0) m.active_parameters = m.parameters;
}

std::string HardwarePath(const std::string& name, const std::string& from) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(from).parent_path();
  for (const fs::path& candidate :
       {fs::path(name), folder / name, folder / ".." / "hardware" / (name + ".yaml")}) {
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal().string();
  }
  return "configs/hardware/" + name + ".yaml";
}

}  // namespace

StatusOr<Pace> LoadPace(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  std::vector<Problem> problems;
  const Node root = ParseYaml(text, {path, 0, false}, problems);
  TP_RETURN_IF_ERROR(AllOf(problems));
  Pace p;
  std::string hardware;
  Node rest = root;  // without the model, which is a map of its own
  std::erase_if(rest.members, [](const auto& member) { return member.first == "model"; });
  ReadMap(rest, "pace",
          {{.key = "name", .field = &p.name, .required = true},
           {.key = "hardware", .field = &hardware, .required = true},
           {"devices_per_slot", &p.devices_per_slot, 1, 65536},
           {"engine_efficiency", &p.engine_efficiency, 0, 1, true},
           {"train_efficiency", &p.train_efficiency, 0, 100, true},
           {"token_factor", &p.token_factor, 1, 1e6},
           {.key = "step_gap_ms", .field = &p.step_gap_s, .hi = 1e6, .unit = 1e-3},
           {"slow_beside", &p.slow_beside, 1, 100},
           {"jitter", &p.jitter, 0, 1},
           {.key = "message_ms", .field = &p.message_s, .hi = 1e6, .unit = 1e-3},
           {.key = "reward_ms", .field = &p.reward_s, .hi = 1e6, .unit = 1e-3},
           {.key = "release_ms", .field = &p.release_s, .hi = 1e6, .unit = 1e-3},
           {.key = "grant_ms", .field = &p.grant_s, .hi = 1e6, .unit = 1e-3},
           {.key = "group_ms", .field = &p.group_s, .hi = 1e6, .unit = 1e-3},
           {.key = "publish_ms", .field = &p.publish_s, .hi = 1e6, .unit = 1e-3}},
          problems);
  if (const Node* model = root.Find("model"); model != nullptr) {
    ReadModel(*model, p.model, problems);
  } else {
    Complain(root, "pace: model is missing; give parameters, layers, heads, kv_heads, head_size", problems);
  }
  TP_RETURN_IF_ERROR(AllOf(problems));
  TP_ASSIGN_OR_RETURN(p.hardware, LoadHardware(hardware, path));
  return p;
}

StatusOr<HardwareProfile> LoadHardware(const std::string& name, const std::string& from) {
  const std::string path = HardwarePath(name, from);
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  std::vector<Problem> problems;
  const Node root = ParseYaml(text, {path, 0, false}, problems);
  HardwareProfile p;
  if (problems.empty()) {
    ReadMap(root, "profile",
            {{.key = "name", .field = &p.name, .required = true},
             {.key = "source", .field = &p.source, .required = true},
             {"tflops", &p.flops, 0, 1e9, true, true, 1e12},
             {"memory_gb", &p.memory_bytes, 0, 1e9, true, true, 1e9},
             {"memory_gb_per_s", &p.bytes_per_s, 0, 1e9, true, true, 1e9},
             {"link_gb_per_s", &p.link_bytes_per_s, 0, 1e9, true, true, 1e9},
             {"net_gb_per_s", &p.net_bytes_per_s, 0, 1e9, true, true, 1e9},
             {"host_gb_per_s", &p.host_bytes_per_s, 0, 1e9, true, true, 1e9},
             {.key = "step_overhead_ms", .field = &p.step_overhead_s, .hi = 1e6, .unit = 1e-3},
             {.key = "collective_ms", .field = &p.collective_s, .hi = 1e6, .unit = 1e-3},
             {"train_efficiency", &p.train_efficiency, 0, 100, true},
             {"part_efficiency", &p.part_efficiency, 0, 1, true}},
            problems);
  }
  TP_RETURN_IF_ERROR(AllOf(problems));
  return p;
}

bool IsWorkload(const std::string& path) {
  const auto text = ReadWhole(path);
  if (!text.ok()) return false;
  std::vector<Problem> problems;
  const Node root = ParseYaml(*text, {path, 0, false}, problems);
  return problems.empty() && root.kind == Node::Kind::kMap && root.Find("workload") != nullptr;
}

StatusOr<Workload> LoadWorkload(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  std::vector<Problem> problems;
  const Node root = ParseYaml(text, {path, 0, false}, problems);
  TP_RETURN_IF_ERROR(AllOf(problems));
  Workload w;
  WorkloadJob base;
  if (root.kind != Node::Kind::kMap)
    return InvalidArgument(path + ": found " + root.Describe() + "; a workload is key: value pairs");
  for (const auto& member : root.members) {
    const std::string& key = member.first;
    const Node& value = member.second;
    const auto scalar = [&](std::string& into) {
      Read(value, {.key = key.c_str(), .field = &into}, problems);
    };
    if (key == "workload")
      scalar(w.name);
    else if (key == "what")
      scalar(w.what);
    else if (key == "hardware")
      scalar(w.hardware);
    else if (key == "model") {
      ReadModel(value, w.model, problems);
    } else if (key == "job") {
      ReadMap(value, "job", JobEntries(base), problems);
    } else if (key == "faults") {
      ReadMap(value, "faults", FaultEntries(w.faults), problems);
    } else if (key == "published") {
      for (const Node& item : value.items) {
        Workload::Published p;
        ReadMap(item, "published",
                {{.key = "what", .field = &p.what, .required = true},
                 {.key = "value", .field = &p.value, .required = true},
                 {.key = "source", .field = &p.source, .required = true}},
                problems);
        w.published.push_back(std::move(p));
      }
    } else if (key == "left_out") {
      for (const Node& item : value.items) w.left_out.push_back(item.text);
    } else if (key != "variants" && key != "sweep") {
      Complain(
          value,
          "unknown key '" + key +
              "'; known: workload, what, hardware, model, job, faults, variants, published, left_out, sweep",
          problems);
    }
  }
  if (w.name.empty()) problems.push_back({root.place, "workload: is missing; it names the workload"});
  if (w.hardware.empty())
    problems.push_back({root.place, "hardware: is missing; name a profile of configs/hardware"});
  if (w.model.parameters <= 0) problems.push_back({root.place, "model: is missing"});
  w.variants = ReadVariants(root.Find("variants"), base, problems);
  if (const Node* sweep = root.Find("sweep"); sweep != nullptr) {
    if (sweep->kind != Node::Kind::kMap)
      Complain(*sweep, "sweep: found " + sweep->Describe() + "; write key: [values]", problems);
    for (const auto& [key, values] : sweep->members) {
      Workload::Sweep s;
      s.key = key;
      if (values.kind != Node::Kind::kList)
        Complain(values, "sweep." + key + ": found " + values.Describe() + "; write a list of values",
                 problems);
      for (const Node& item : values.items) {
        WorkloadJob job = base;
        const std::vector<Entry> entries = JobEntries(job);
        const Entry* found = nullptr;
        for (const Entry& e : entries) found = key == e.key ? &e : found;
        if (found == nullptr) {
          Complain(values, "sweep: unknown key '" + key + "'; it has to be one of job", problems);
          break;
        }
        Read(item, *found, problems);
        s.points.emplace_back(item.text, ReadVariants(root.Find("variants"), job, problems));
      }
      w.sweeps.push_back(std::move(s));
    }
  }
  TP_RETURN_IF_ERROR(AllOf(problems));
  return w;
}

}  // namespace tidepool::config
