// For tests/interop/sac_differential.py: gradient steps of core/policy/sac_trainer.h on weights and batches
// that are given. One JSON object a line. {"observation_size", "actions", "hidden", "initial_alpha",
// "learning_rate", "gamma", "tau", "target_entropy", "actor": {name: [..]}, "critics": {..}} begins anew;
// {"seen", "acted", "next", "rewards", "terminated", "noise", "next_noise"} is a gradient step, answered with
// its losses, and gradients and new weights by name.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/policy/network.h"
#include "core/policy/sac_trainer.h"

namespace {

using nlohmann::json;
using namespace tidepool;

void Fill(model::Weights& weights, const json& given) {
  auto* base = reinterpret_cast<float*>(weights.bytes().data());
  for (const model::Parameter& p : weights.layout()) {
    const auto values = given.at(p.name).get<std::vector<float>>();
    std::ranges::copy(values, base + p.offset);
  }
}
json Named(const model::Weights& weights, const float* base) {
  json out;
  for (const model::Parameter& p : weights.layout())
    out[p.name] = std::vector<float>(base + p.offset, base + p.offset + p.numel());
  return out;
}
const float* Base(const model::Weights& weights) {
  return reinterpret_cast<const float*>(weights.bytes().data());
}

struct Session {
  std::unique_ptr<model::Weights> weights;
  std::unique_ptr<policy::SacTrainer> trainer;
  double rate = 0;
};

StatusOr<Session> Begin(const json& j) {
  policy::SacTrainerOptions o;
  o.policy = {.observation_size = j.at("observation_size"),
              .actions = j.at("actions"),
              .continuous = true,
              .hidden = j.at("hidden"),
              .squashed = true,
              .low = -1,
              .high = 1};
  o.replay.capacity = 1;
  o.optimizer = {.max_grad_norm = 0};
  o.sac.gamma = j.at("gamma");
  o.sac.tau = j.at("tau");
  o.sac.initial_alpha = j.at("initial_alpha");
  o.sac.target_entropy = j.at("target_entropy");
  Session s{.rate = j.at("learning_rate")};
  TP_ASSIGN_OR_RETURN(s.weights,
                      model::Weights::FromLayout(policy::PolicyLayout(o.policy), model::DType::kFloat32));
  Fill(*s.weights, j.at("actor"));
  TP_ASSIGN_OR_RETURN(s.trainer, policy::SacTrainer::Create(*s.weights, o));
  Fill(s.trainer->critics(), j.at("critics"));
  Fill(s.trainer->targets(), j.at("critics"));
  return s;
}

json Step(Session& s, const json& j) {
  policy::SacTrainer::Batch b{.rows = static_cast<int64_t>(j.at("rewards").size()),
                              .seen = j.at("seen"),
                              .acted = j.at("acted"),
                              .next = j.at("next"),
                              .rewards = j.at("rewards"),
                              .terminated = j.at("terminated"),
                              .noise = j.at("noise"),
                              .next_noise = j.at("next_noise")};
  const auto losses = s.trainer->GradientStep(b, {.actor = s.rate, .critic = s.rate, .alpha = s.rate});
  return {{"critic_loss", losses.critic},
          {"actor_loss", losses.actor},
          {"alpha_loss", losses.alpha},
          {"alpha", s.trainer->alpha()},
          {"actor_gradients", Named(*s.weights, s.trainer->actor_gradients().data())},
          {"critic_gradients", Named(s.trainer->critics(), s.trainer->critic_gradients().data())},
          {"actor", Named(*s.weights, Base(*s.weights))},
          {"critics", Named(s.trainer->critics(), Base(s.trainer->critics()))},
          {"targets", Named(s.trainer->critics(), Base(s.trainer->targets()))}};
}

}  // namespace

int main() {
  Session session;
  std::string line;
  while (std::getline(std::cin, line)) {
    json answer;
    try {
      const json request = json::parse(line);
      if (request.contains("actor")) {
        auto begun = Begin(request);
        if (!begun.ok()) throw std::runtime_error(begun.status().message());
        session = *std::move(begun);
      } else {
        answer = Step(session, request);
      }
    } catch (const std::exception& e) {
      answer["error"] = e.what();
    }
    std::cout << (answer.is_null() ? "{}" : answer.dump()) << "\n" << std::flush;
  }
}
