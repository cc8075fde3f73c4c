"""PPO of stable-baselines3 with the hyper-parameters given, for control_vs_peer.py. One JSON object on standard output:
{"seconds" of learn() alone, "steps" of environments, "return" over 100 greedy episodes, "deviation", "curve"}."""

import json
import sys
import time


def main():
    o = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(o["threads"])
    import numpy as np
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    class Curve(BaseCallback):
        """Mean return of the last 100 training episodes at each rollout's end, as the library itself keeps it."""

        def __init__(self):
            super().__init__()
            self.points = []

        def _on_step(self):
            return True

        def _on_rollout_end(self):
            episodes = self.model.ep_info_buffer
            if episodes:
                self.points.append([self.num_timesteps, round(float(np.mean([e["r"] for e in episodes])), 2), round(time.monotonic() - start, 3)])

    rate = o["learning_rate"]
    model = PPO(
        "MlpPolicy",
        make_vec_env(o["environment"], n_envs=o["instances"], seed=o["seed"]),
        n_steps=o["steps_per_fragment"],
        batch_size=o["instances"] * o["steps_per_fragment"] // o["minibatches"],
        n_epochs=o["epochs"],
        gamma=o["gamma"],
        gae_lambda=o["lambda"],
        clip_range=o["clip"],
        ent_coef=o["entropy_coef"],
        vf_coef=o["value_coef"],
        max_grad_norm=o["max_grad_norm"],
        learning_rate=(lambda left: rate * left) if o["schedule"] == "linear" else rate,
        policy_kwargs={"net_arch": {"pi": o["hidden"], "vf": o["hidden"]}},
        seed=o["seed"],
        device="cpu",
    )
    curve = Curve()
    start = time.monotonic()
    model.learn(o["total_steps"], callback=curve)
    seconds = time.monotonic() - start
    held_out = make_vec_env(o["environment"], n_envs=1, seed=o["seed"] + 1000)
    mean, deviation = evaluate_policy(model, held_out, n_eval_episodes=100, deterministic=True)
    print(json.dumps({"seconds": seconds, "steps": model.num_timesteps, "return": float(mean), "deviation": float(deviation), "curve": curve.points}))
    held_out.close()


if __name__ == "__main__":
    main()
