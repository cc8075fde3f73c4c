"""Our environments against the Gymnasium package: same start state and actions, same states, rewards and ends.

Whole episodes with time limits through core/environments/vector.h (build/tests/vector_stepper): CartPole, Pendulum,
MountainCar, Acrobot. Where the dynamics make a last bit grow (Acrobot is chaotic, a balanced pole is not stable), steps
are compared in runs of 20 and 50, each from Gymnasium's own state. FrozenLake: its table of transitions (build/bin/conformance) against Gymnasium's,
then episodes of ours, every step of which must be in that table. Prints one line an environment; exit code 1 on a
difference.

usage: control_differential.py --conformance build/bin/conformance --stepper build/tests/vector_stepper [--episodes N]
"""

import argparse
import json
import subprocess
import sys

import gymnasium
import numpy as np

# Two libraries' sines may differ in their last bit, and a trajectory carries that on.
TOLERANCE = 1e-9
CONTROL = {  # ours, Gymnasium's id, time limit, steps compared from one state
    "cartpole": ("CartPole-v1", 500, 50),
    "pendulum": ("Pendulum-v1", 200, 200),
    "mountain_car": ("MountainCar-v0", 200, 200),
    "acrobot": ("Acrobot-v1", 500, 20),
}


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if answer.get("error"):
            raise SystemExit(f"{request.get('name', request.get('op'))}: {answer['error']}")
        return answer


def policy(name, env, rng, episode):
    """Random actions, and on every third episode a rule that gets far, so that late states and limits are met."""
    if name == "pendulum":
        return np.array([rng.uniform(-3, 3)], dtype=np.float32).astype(np.float64)
    if episode % 3 == 0 and name == "cartpole":
        state = env.unwrapped.state
        return int(state[2] + 0.3 * state[3] + 0.02 * state[0] + 0.05 * state[1] > 0)
    if episode % 3 == 0 and name == "mountain_car":
        return 2 if env.unwrapped.state[1] > 0 else 0
    if episode % 3 == 0 and name == "acrobot":
        return 2 if env.unwrapped.state[3] > 0 else 0
    return int(rng.integers(env.action_space.n))


def control(name, stepper, episodes):
    gym_id, limit, run = CONTROL[name]
    env = gymnasium.make(gym_id, disable_env_checker=True)
    if env.spec.max_episode_steps != limit:
        return [f"Gymnasium's limit is {env.spec.max_episode_steps}, ours {limit}"], 0
    rng = np.random.default_rng(7)
    wrong, steps, worst, ends = [], 0, 0.0, {"terminated": 0, "truncated": 0}
    for episode in range(episodes):
        env.reset(seed=episode)
        over, played = False, 0
        while not over:
            start = [float(x) for x in np.array(env.unwrapped.state, dtype=np.float64)]
            actions, truth = [], []
            while not over and len(actions) < run:
                action = policy(name, env, rng, episode)
                observation, reward, terminated, truncated, _ = env.step(action)
                actions.append([float(a) for a in action] if name == "pendulum" else [action])
                truth.append((np.array(observation, dtype=np.float64), float(reward), bool(terminated), bool(truncated),
                              np.array(env.unwrapped.state, dtype=np.float64)))
                over = terminated or truncated
            ours = stepper.ask({"name": name, "limit": limit - played, "state": start, "actions": actions})
            for t, (observation, reward, terminated, truncated, state) in enumerate(truth):
                flag = 1 if terminated else 2 if truncated else 0
                where = f"episode {episode} step {played + t}"
                if ours["flag"][t] != flag:
                    wrong.append(f"{where}: flag {ours['flag'][t]}, Gymnasium terminated={terminated} truncated={truncated}")
                mine = np.array(ours["final"][t] if flag else ours["obs"][t])
                # Observations are float32 on both sides.
                gap = float(np.max(np.abs(mine - observation) / (1 + np.abs(observation))))
                if not gap <= 2e-7:
                    wrong.append(f"{where}: observation {mine.tolist()} against {observation.tolist()}")
                if not abs(ours["reward"][t] - reward) <= 1e-6 * (1 + abs(reward)):
                    wrong.append(f"{where}: reward {ours['reward'][t]} against {reward}")
                if not flag:
                    gap = float(np.max(np.abs(np.array(ours["state"][t][: len(state)]) - state) / (1 + np.abs(state))))
                    worst = max(worst, gap)
                    if not gap <= TOLERANCE:
                        wrong.append(f"{where}: state {ours['state'][t]} against {state.tolist()}")
                if flag:
                    ends["terminated" if terminated else "truncated"] += 1
            played += len(truth)
            if wrong:
                return wrong, steps
        steps += played
    env.close()
    print(f"{name:13} {episodes} episodes, {steps} steps, {ends['terminated']} terminated, {ends['truncated']} truncated, "
          f"states differ by at most {worst:.1e}", flush=True)
    return wrong, steps


def lake(conformance, stepper, episodes):
    wrong, steps = [], 0
    for size, slippery in (("4x4", True), ("4x4", False), ("8x8", True), ("8x8", False)):
        env = gymnasium.make("FrozenLake-v1" if size == "4x4" else "FrozenLake8x8-v1", is_slippery=slippery)
        theirs = {}
        for s, by_action in env.unwrapped.P.items():
            for a, outcomes in by_action.items():
                for probability, after, reward, terminated in outcomes:
                    key = (int(s), int(a), int(after), float(reward), bool(terminated))
                    theirs[key] = theirs.get(key, 0.0) + float(probability)
        rows = conformance.ask({"id": 0, "op": "env.frozen_lake", "params": {"map": size, "slippery": slippery, "success_rate": 1 / 3}, "inputs": {}})
        table = rows["outputs"]["transitions"] if "outputs" in rows else rows["transitions"]
        ours = {(int(r[0]), int(r[1]), int(r[2]), float(r[3]), bool(r[4])): float(r[5]) for r in unpack(table)}
        if ours.keys() != theirs.keys() or any(abs(ours[k] - theirs[k]) > 1e-12 for k in ours):
            wrong.append(f"{size} slippery={slippery}: the tables differ")
        limit = env.spec.max_episode_steps
        rng = np.random.default_rng(3)
        actions = [[int(rng.integers(4))] for _ in range(400 * episodes)]
        played = stepper.ask({"name": "frozen_lake_grid", "options": {"map": size, "slippery": "true" if slippery else "false"}, "actions": actions})
        place, count = 0, 0
        for t, (action,) in enumerate(actions):
            count += 1
            flag = played["flag"][t]
            seen = played["final"][t] if flag else played["obs"][t]
            after = int(np.argmax(seen))
            key = (place, action, after, float(played["reward"][t]), flag == 1)
            if key not in theirs:
                wrong.append(f"{size} slippery={slippery} step {t}: {key} cannot happen")
                break
            if (flag == 2) != (count == limit and flag != 1) or (flag == 0 and count >= limit):
                wrong.append(f"{size} slippery={slippery} step {t}: flag {flag} after {count} of {limit} steps")
                break
            place, count = (0, 0) if flag else (after, count)
            steps += 1
    print(f"{'frozen_lake':13} 4 tables, {steps} steps", flush=True)
    return wrong, steps


def unpack(value):
    """A matrix as the conformance program writes it: nested lists, or shape and data."""
    if isinstance(value, dict):
        rows, columns = value["shape"]
        return [value["data"][r * columns : (r + 1) * columns] for r in range(rows)]
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conformance", required=True)
    parser.add_argument("--stepper", required=True)
    parser.add_argument("--episodes", type=int, default=60)
    args = parser.parse_args()
    stepper, conformance = Program(args.stepper), Program(args.conformance)
    failed = False
    for name in CONTROL:
        wrong, _ = control(name, stepper, args.episodes)
        failed = failed or bool(wrong)
        for line in wrong[:5]:
            print(f"{name}: {line}")
    wrong, _ = lake(conformance, stepper, args.episodes)
    for line in wrong[:5]:
        print(f"frozen_lake: {line}")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
