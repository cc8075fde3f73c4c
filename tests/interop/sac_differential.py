"""core/policy's soft actor-critic against stable-baselines3's: on the same weights, batches and noise, the same losses,
gradients, and weights after several gradient steps (build/tests/sac_stepper).

The peer's own `SAC.train` runs; its batches and its normal draws are given to it, and what its optimizers see is kept. It adds 1e-6 to
1 - tanh^2 before the logarithm, and ours is exact, which the tolerance covers. Prints one line a quantity; exit code 1 on a difference.

usage: sac_differential.py --stepper build/tests/sac_stepper [--steps N]
"""

import argparse
import json
import subprocess
import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

SEEN, ACTS, HIDDEN, ROWS = 11, 3, [64, 48], 256
LOSS, GRADIENT, WEIGHT = 2e-5, 5e-4, 2e-5  # relative to the largest number of a quantity


class Space(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SEEN,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTS,), np.float32)


def layers(module):
    return [m for m in module.modules() if isinstance(m, torch.nn.Linear)]


def flat(tensor):
    return tensor.detach().numpy().astype(np.float64).ravel().tolist()


def actor_names(actor, of):
    """Our names for what `of` takes of the peer's parameters; its two heads are one of ours."""
    out = {}
    for k, layer in enumerate(layers(actor.latent_pi)):
        out[f"actor.{k}.weight"], out[f"actor.{k}.bias"] = flat(of(layer.weight)), flat(of(layer.bias))
    out["policy_head.weight"] = flat(of(actor.mu.weight)) + flat(of(actor.log_std.weight))
    out["policy_head.bias"] = flat(of(actor.mu.bias)) + flat(of(actor.log_std.bias))
    return out


def critic_names(critic, of):
    out = {}
    for q, network in enumerate((critic.qf0, critic.qf1), 1):
        *hidden, head = layers(network)
        for k, layer in enumerate(hidden):
            out[f"q{q}.{k}.weight"], out[f"q{q}.{k}.bias"] = flat(of(layer.weight)), flat(of(layer.bias))
        out[f"q{q}_head.weight"], out[f"q{q}_head.bias"] = flat(of(head.weight)), flat(of(head.bias))
    return out


def value(parameter):
    return parameter


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stepper", required=True)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = SAC("MlpPolicy", Space(), learning_rate=1e-3, batch_size=ROWS, policy_kwargs={"net_arch": HIDDEN}, ent_coef="auto_0.3", seed=3, device="cpu")
    losses = {}
    model.set_logger(Logger(None, []))
    model.logger.record = lambda key, number, **_: losses.__setitem__(key, number)
    rng = np.random.default_rng(5)
    stepper = subprocess.Popen([args.stepper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(request):
        stepper.stdin.write(json.dumps(request) + "\n")
        stepper.stdin.flush()
        answer = json.loads(stepper.stdout.readline())
        if "error" in answer:
            raise SystemExit(answer["error"])
        return answer

    ask({"observation_size": SEEN, "actions": ACTS, "hidden": HIDDEN, "initial_alpha": 0.3, "learning_rate": 1e-3, "gamma": model.gamma, "tau": model.tau,
         "target_entropy": float(model.target_entropy), "actor": actor_names(model.actor, value), "critics": critic_names(model.critic, value)})

    seen_by = {}  # gradients as the optimizers see them: the actor's loss adds to the critics' afterwards
    for name, network, names in (("actor_gradients", model.actor, actor_names), ("critic_gradients", model.critic, critic_names)):
        step = network.optimizer.step

        def keeping(*a, name=name, network=network, names=names, step=step, **k):
            seen_by[name] = names(network, lambda p: p.grad)
            return step(*a, **k)

        network.optimizer.step = keeping
    noise = []
    torch.distributions.Normal.rsample = lambda self, *_: self.loc + self.scale * torch.as_tensor(noise.pop(0), dtype=torch.float32)

    worst = {}

    def compare(what, ours, theirs, tolerance):
        a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        off = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-8))
        worst[what] = max(worst.get(what, (0, 0))[0], off), tolerance

    for _ in range(args.steps):
        draw = {"seen": rng.normal(size=(ROWS, SEEN)), "next": rng.normal(size=(ROWS, SEEN)), "actions": rng.uniform(-1, 1, size=(ROWS, ACTS)),
                "rewards": rng.normal(size=ROWS), "terminated": (rng.random(ROWS) < 0.2).astype(float), "noise": rng.normal(size=(ROWS, ACTS)),
                "next_noise": rng.normal(size=(ROWS, ACTS))}
        draw = {k: v.astype(np.float32) for k, v in draw.items()}
        tensor = {k: torch.as_tensor(v) for k, v in draw.items()}
        samples = ReplayBufferSamples(tensor["seen"], tensor["actions"], tensor["next"], tensor["terminated"].reshape(-1, 1), tensor["rewards"].reshape(-1, 1))
        model.replay_buffer.sample = lambda *_, samples=samples, **__: samples
        noise[:] = [draw["noise"], draw["next_noise"]]
        model.train(gradient_steps=1, batch_size=ROWS)
        acted = np.concatenate([draw["seen"], draw["actions"]], axis=1)
        mine = ask({"acted": acted.ravel().tolist(), **{k: v.ravel().tolist() for k, v in draw.items() if k != "actions"}})
        compare("critic loss", mine["critic_loss"], losses["train/critic_loss"], LOSS)
        compare("actor loss", mine["actor_loss"], losses["train/actor_loss"], LOSS)
        compare("alpha loss", mine["alpha_loss"], losses["train/ent_coef_loss"], LOSS)
        compare("alpha", mine["alpha"], float(torch.exp(model.log_ent_coef.detach())), LOSS)
        for name, theirs in seen_by.items():
            for parameter, numbers in theirs.items():
                compare(name.replace("_", " "), mine[name][parameter], numbers, GRADIENT)
        for name, theirs in (("actor", actor_names(model.actor, value)), ("critics", critic_names(model.critic, value)), ("targets", critic_names(model.critic_target, value))):
            for parameter, numbers in theirs.items():
                compare(f"weights of {name}", mine[name][parameter], numbers, WEIGHT)
    for what, (off, tolerance) in worst.items():
        print(f"{what:22} largest difference {off:.2e} of the largest number, allowed {tolerance:.0e}{'' if off <= tolerance else '  DIFFERS'}")
    sys.exit(0 if all(off <= tolerance for off, tolerance in worst.values()) else 1)


if __name__ == "__main__":
    main()
