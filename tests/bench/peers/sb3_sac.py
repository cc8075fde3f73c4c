"""SAC of stable-baselines3 with the hyper-parameters given, for sac_vs_peer.py. One JSON object on standard output:
{"seconds" of learn() alone, "steps" of environments, "return" over greedy episodes, "deviation"}."""

import json
import sys
import time


def main():
    o = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(o["threads"])
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    model = SAC("MlpPolicy", make_vec_env(o["environment"], n_envs=1, seed=o["seed"]), learning_rate=o["learning_rate"], buffer_size=o["capacity"],
                learning_starts=o["learning_starts"], batch_size=o["batch_size"], tau=o["tau"], gamma=o["gamma"], train_freq=1, gradient_steps=1,
                policy_kwargs={"net_arch": o["hidden"]}, seed=o["seed"], device="cpu")
    start = time.monotonic()
    model.learn(o["total_steps"])
    seconds = time.monotonic() - start
    held_out = make_vec_env(o["environment"], n_envs=1, seed=o["seed"] + 1000)
    mean, deviation = evaluate_policy(model, held_out, n_eval_episodes=o["episodes"], deterministic=True)
    print(json.dumps({"seconds": seconds, "steps": model.num_timesteps, "return": float(mean), "deviation": float(deviation)}))
    held_out.close()


if __name__ == "__main__":
    main()
