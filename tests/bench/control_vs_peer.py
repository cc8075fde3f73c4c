"""CartPole and Pendulum by `tidepool train` and by stable-baselines3: same hyper-parameters, environment steps, network,
threads and machine, one after the other (A B A B ...), several seeds.

Ours is the whole job: controller, device worker and environment worker as processes, journal, checkpoints, evaluation;
`seconds` is the wall time of the command from its start to its end. The peer's is learn() alone, in one process, without
imports and evaluation. Advantages are normalised over the batch here and over each minibatch there. One JSON object a line on
standard output, a table on standard error.

usage: control_vs_peer.py --build build [--seeds 3] [--peer PYTHON] [--only cartpole] [a.b=c ...]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from provenance import commit, instruction_sets, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
GYMNASIUM = {"cartpole": ("CartPole-v1", 475), "pendulum": ("Pendulum-v1", -200)}


def resolved(path):
    """Sections and scalars of a resolved config: two levels, values as JSON."""
    out, section = {}, ""
    for line in path.read_text().splitlines():
        text = line.split(" #")[0].rstrip()
        if not text or text.startswith("#"):
            continue
        key, _, value = text.strip().partition(":")
        if not line.startswith(" "):
            section = key if not value.strip() else ""
        full = f"{section}.{key}" if line.startswith(" ") and section else key
        if value.strip():
            try:
                out[full] = json.loads(value)
            except ValueError:
                out[full] = value.strip()
    return out


def ours(build, name, seed, overrides):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        start = time.monotonic()
        done = subprocess.run([str(build / "bin" / "tidepool"), "train", f"configs/control/{name}.yaml", f"seed={seed}", "--run-dir", str(run), *overrides],
                              cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds = time.monotonic() - start
        if done.returncode != 0:
            raise SystemExit(f"{name} seed {seed}: exit {done.returncode}\n{done.stderr}")
        summary = json.loads((run / "summary.json").read_text())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        config = resolved(run / "config.yaml")
    per_step = config["train.groups_per_step"] * config["environment.instances"] * config["rollout.steps_per_fragment"]
    return {
        "seconds": seconds,
        "train_seconds": sum(summary["seconds"].get(k, 0) for k in ("gen", "update_actor")),
        "steps": summary["steps"] * per_step,
        "return": summary["held_out"]["last"]["value"],
        "interval": [summary["held_out"]["last"][end] for end in ("low", "high")],
        "curve": [[r["step"] * per_step, round(r["metrics"]["critic/score/mean"], 2), round(r["wall_s"], 3)] for r in rows if "critic/score/mean" in r["metrics"]],
    }, config


def theirs(python, name, seed, config):
    options = {
        "environment": GYMNASIUM[name][0],
        "seed": seed,
        "threads": config["cluster.threads_per_slot"],
        "instances": config["environment.instances"] * config["train.groups_per_step"],
        "steps_per_fragment": config["rollout.steps_per_fragment"],
        "minibatches": config["train.minibatches"],
        "epochs": config["train.epochs"],
        "gamma": config["algorithm.advantage_gamma"],
        "lambda": config["algorithm.advantage_lambda"],
        "clip": config.get("algorithm.clip_low") or 0.2,
        "entropy_coef": config["algorithm.entropy_coef"],
        "value_coef": config["algorithm.value_coef"],
        "max_grad_norm": config["train.max_grad_norm"],
        "learning_rate": config["train.learning_rate"],
        "schedule": config["train.schedule"],
        "hidden": config["model.hidden"],
        "total_steps": config["train.steps"] * config["train.groups_per_step"] * config["environment.instances"] * config["rollout.steps_per_fragment"],
    }
    done = subprocess.run([python, str(ROOT / "tests/bench/peers/sb3_ppo.py"), json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} seed {seed}: the peer failed\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if len(values) % 2 else (values[len(values) // 2 - 1] + values[len(values) // 2]) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--peer", default=sys.executable, help="Python with tests/bench/peers/control_requirements.txt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(GYMNASIUM))
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    build = args.build.resolve()
    for name, (_, target) in GYMNASIUM.items():
        if args.only not in (None, name):
            continue
        mine, peer = [], []
        for seed in range(1, args.seeds + 1):
            result, config = ours(build, name, seed, args.overrides)
            mine.append(result)
            peer.append(theirs(args.peer, name, seed, config))
            print(f"{name:9} seed {seed}: ours {mine[-1]['return']:8.2f} in {mine[-1]['seconds']:6.1f} s (rollout and training {mine[-1]['train_seconds']:.1f} s), "
                  f"peer {peer[-1]['return']:8.2f} in {peer[-1]['seconds']:6.1f} s, {mine[-1]['steps']} steps each", file=sys.stderr, flush=True)
        a, b = median([r["seconds"] for r in mine]), median([r["seconds"] for r in peer])
        common = {"case": name, "repeats": args.seeds, "machine": processor()[0], "instruction_sets": instruction_sets(), "commit": commit(),
                  "config": f"configs/control/{name}.yaml"}
        print(json.dumps({"bench": "control_seconds", "value": a, "unit": "s", "better": "lower", "baseline": "stable-baselines3", "baseline_value": b, "ratio": b / a,
                          "spread": max(r["seconds"] for r in mine) - min(r["seconds"] for r in mine), "target": target, **common}), flush=True)
        # A ratio of returns says nothing where they are negative.
        print(json.dumps({"bench": "control_return", "value": median([r["return"] for r in mine]), "unit": "return", "better": "higher", "baseline": "stable-baselines3",
                          "baseline_value": median([r["return"] for r in peer]), "spread": max(r["return"] for r in mine) - min(r["return"] for r in mine),
                          "steps": mine[0]["steps"], "runs": [{"ours": r, "peer": p} for r, p in zip(mine, peer)], **common}), flush=True)


if __name__ == "__main__":
    main()
