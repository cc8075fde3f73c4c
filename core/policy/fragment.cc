#include "core/policy/fragment.h"

#include <algorithm>
#include <cmath>

#include "core/base/little_endian.h"

namespace tidepool::policy {
namespace {

using environments::InstanceState;

constexpr uint32_t kSchema = 1;
constexpr int64_t kMaxCells = int64_t{1} << 26;
constexpr size_t kStateBytes = 8 * 8;

template <typename T>
void PutList(std::string& out, const std::vector<T>& items) {
  PutNumber(out, static_cast<uint32_t>(items.size()));
  for (const T item : items) PutNumber(out, item);
}
template <typename T>
std::vector<T> GetList(ByteReader& reader) {
  std::vector<T> items(reader.Count(sizeof(T)));
  for (T& item : items) item = reader.Number<T>();
  return items;
}

// What services keep of their instances comes behind the states of all, where any has it.
void PutServed(std::string& out, const std::vector<InstanceState>& states) {
  if (std::ranges::all_of(states, [](const auto& s) { return s.digest == 0 && s.actions.empty(); })) return;
  for (const InstanceState& s : states) {
    PutNumber(out, s.digest);
    PutList(out, s.actions);
  }
}
void GetServed(ByteReader& reader, std::vector<InstanceState>& states) {
  if (reader.left() == 0) return;
  for (InstanceState& s : states) {
    s.digest = reader.Number<uint64_t>();
    s.actions = GetList<float>(reader);
  }
}

void PutStates(std::string& out, const std::vector<InstanceState>& states) {
  PutNumber(out, static_cast<uint32_t>(states.size()));
  for (const InstanceState& s : states) {
    PutNumber(out, s.index);
    PutNumber(out, s.episode);
    PutNumber(out, s.steps);
    PutNumber(out, s.score);
    for (const double x : s.state) PutNumber(out, x);
  }
  PutServed(out, states);
}
std::vector<InstanceState> GetStates(ByteReader& reader) {
  std::vector<InstanceState> states(reader.Count(kStateBytes));
  for (InstanceState& s : states) {
    s.index = reader.Number<uint64_t>();
    s.episode = reader.Number<int64_t>();
    s.steps = reader.Number<int64_t>();
    s.score = reader.Number<double>();
    for (double& x : s.state) x = reader.Number<double>();
  }
  GetServed(reader, states);
  return states;
}

bool AllFinite(const std::vector<float>& x) {
  return std::ranges::all_of(x, [](float v) { return std::isfinite(v); });
}

}  // namespace

Status CheckFragment(const Fragment& f, const PolicySpec& spec) {
  const auto wrong = [](const std::string& what) { return InvalidArgument("fragment: " + what); };
  if (f.steps < 1 || f.instances < 1 || f.steps > kMaxCells / f.instances)
    return wrong("no steps or instances, or too many");
  if (f.observation_size != spec.observation_size || f.action_size != spec.action_size())
    return wrong("observations or actions are not those of the policy");
  const auto cells = static_cast<size_t>(f.cells()), rows = cells + static_cast<size_t>(f.instances),
             o = static_cast<size_t>(f.observation_size);
  if (f.observations.size() != rows * o || f.values.size() != (spec.squashed ? 0 : rows) ||
      f.actions.size() != cells * static_cast<size_t>(f.action_size) || f.log_probs.size() != cells ||
      f.rewards.size() != cells || f.flags.size() != cells ||
      f.ends.size() != static_cast<size_t>(f.instances)) {
    return wrong("its columns differ in length");
  }
  if (!AllFinite(f.observations) || !AllFinite(f.values) || !AllFinite(f.actions) ||
      !AllFinite(f.log_probs) || !AllFinite(f.rewards) || !AllFinite(f.final_observations)) {
    return wrong("a number is not finite");
  }
  size_t truncated = 0, ended = 0;
  for (const uint8_t flag : f.flags) {
    if (flag > environments::kTruncated) return wrong("a step is both terminated and truncated");
    truncated += flag == environments::kTruncated ? 1 : 0;
    ended += flag != 0 ? 1 : 0;
  }
  if (f.final_observations.size() != truncated * o)
    return wrong(std::to_string(truncated) +
                 " episodes were truncated, but the final observations are not as many");
  if (f.scores.size() != ended)
    return wrong(std::to_string(ended) + " episodes ended, but " + std::to_string(f.scores.size()) +
                 " have a return");
  if (!spec.continuous) {
    for (const float a : f.actions) {
      if (!(a >= 0 && a < static_cast<float>(spec.actions) && a == std::floor(a)))
        return wrong("a choice does not exist");
    }
  }
  return OkStatus();
}

std::string EncodeFragment(const Fragment& f) {
  std::string out;
  PutNumber(out, kSchema);
  for (const int64_t n : {f.steps, f.instances, f.observation_size, f.action_size}) PutNumber(out, n);
  for (const auto* column : {&f.observations, &f.actions, &f.log_probs, &f.values, &f.rewards})
    PutList(out, *column);
  PutList(out, f.flags);
  PutList(out, f.final_observations);
  PutList(out, f.scores);
  PutStates(out, f.ends);
  return out;
}

StatusOr<Fragment> DecodeFragment(std::string_view bytes) {
  ByteReader reader(bytes);
  Fragment f;
  const auto schema = reader.Number<uint32_t>();
  for (int64_t* n : {&f.steps, &f.instances, &f.observation_size, &f.action_size})
    *n = reader.Number<int64_t>();
  for (auto* column : {&f.observations, &f.actions, &f.log_probs, &f.values, &f.rewards})
    *column = GetList<float>(reader);
  f.flags = GetList<uint8_t>(reader);
  f.final_observations = GetList<float>(reader);
  f.scores = GetList<double>(reader);
  f.ends = GetStates(reader);
  if (!reader.ok() || reader.left() != 0 || schema != kSchema) return DataLoss("the bytes are no fragment");
  return f;
}

int64_t FragmentBytes(const PolicySpec& spec, int64_t steps, int64_t instances, int64_t kept_steps) {
  // A truncated step has its final observation and a return beside the step itself.
  const int64_t step = 4 * (2 * spec.observation_size + spec.action_size() + 3) + 1 + 8;
  const int64_t kept = static_cast<int64_t>(kStateBytes) + 12 + 4 * kept_steps * spec.action_size();
  return 128 + (steps + 1) * instances * step + instances * kept;
}

std::string EncodeStates(const std::vector<InstanceState>& states) {
  std::string out;
  PutStates(out, states);
  return out;
}

StatusOr<std::vector<InstanceState>> DecodeStates(std::string_view bytes) {
  ByteReader reader(bytes);
  auto states = GetStates(reader);
  if (!reader.ok() || reader.left() != 0) return DataLoss("the bytes are no states of environments");
  return states;
}

}  // namespace tidepool::policy
