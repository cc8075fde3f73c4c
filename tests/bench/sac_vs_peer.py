"""SAC by `tidepool train` and by stable-baselines3 on an environment of Gymnasium: same hyper-parameters, environment steps, gradient
steps, network, threads and machine, one after the other (A B A B ...), several seeds.

Ours is the whole job: controller, device worker, environment worker and (but with --in-tree) the Python service that serves the
environment, journal, checkpoints; `seconds` is from the command's start to its last step, start-up of all processes among it, and
`command_seconds` to its end with the evaluation. The peer's is learn() alone, in one process, without imports and evaluation. The
peer steps once and updates once; ours plays a fragment, and then makes as many updates. One JSON object a line on standard output,
conditions and a table on standard error.

usage: sac_vs_peer.py ENV --steps N [--config configs/control/halfcheetah_sac.yaml] [--in-tree] [--build build] [--seeds 3] [--peer PYTHON] [a.b=c ...]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from control_vs_peer import median, resolved
from provenance import commit, instruction_sets, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ours(args, seed):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        per_step = args.fragment
        overrides = [f"seed={seed}", f"train.steps={args.steps // per_step}", f"rollout.steps_per_fragment={per_step}", "environment.instances=1",
                     "train.groups_per_step=1", "eval.before_train=false", "eval.every_steps=0", f"environment.held_out={args.episodes}",
                     f"cluster.threads_per_slot={args.threads}"]
        if not args.in_tree:
            overrides += [f"environment.name={args.env}",
                          f'environment.command=[env, "PYTHONPATH={ROOT}/examples/python", "{args.peer}", -m, tidepool_env, serve, "gymnasium:{args.env}"]']
        start = time.monotonic()
        done = subprocess.run([str(args.build / "bin" / "tidepool"), "train", args.config, "--run-dir", str(run), *overrides, *args.overrides], cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        command_seconds = time.monotonic() - start
        if done.returncode != 0:
            raise SystemExit(f"seed {seed}: exit {done.returncode}\n{done.stderr}")
        summary = json.loads((run / "summary.json").read_text())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        config = resolved(run / "config.yaml")
    last = max(rows, key=lambda r: r["step"])
    held_out = summary["held_out"]["last"]
    return {
        "seconds": last["wall_s"],
        "command_seconds": command_seconds,
        "update_seconds": sum(r["metrics"].get("timing_s/update_actor", 0) for r in rows),
        "play_seconds": sum(r["metrics"].get("timing_s/gen", 0) for r in rows),
        "steps": summary["steps"] * per_step,
        "updates": sum(r["metrics"].get("actor/updates", 0) for r in rows),
        "return": held_out["value"],
        "interval": [held_out["low"], held_out["high"]],
    }, config


def theirs(args, seed, config):
    options = {
        "environment": args.env,
        "seed": seed,
        "threads": args.threads,
        "hidden": config["model.hidden"],
        "learning_rate": config["train.learning_rate"],
        "capacity": config["algorithm.capacity"],
        "batch_size": config["algorithm.batch_size"],
        "learning_starts": config["algorithm.learning_starts"],
        "gamma": config["algorithm.gamma"],
        "tau": config["algorithm.tau"],
        "episodes": args.episodes,
        "total_steps": args.steps // args.fragment * args.fragment,
    }
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it runs
        done = subprocess.run([args.peer, str(ROOT / "tests/bench/peers/sb3_sac.py"), json.dumps(options)], cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"seed {seed}: the peer failed\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="an id of Gymnasium")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--config", default="configs/control/halfcheetah_sac.yaml")
    parser.add_argument("--in-tree", action="store_true", help="the config's own environment, which has to be the same task")
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--peer", default=sys.executable, help="Python with tests/bench/peers/control_requirements.txt, the environment, and grpcio")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fragment", type=int, default=250)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    args.build = args.build.resolve()
    load = os.getloadavg()[0]
    print(f"{args.env}, {args.steps} steps, {args.seeds} seeds, {args.threads} threads each, {processor()[0]}, load before {load:.1f}, {args.config} {' '.join(args.overrides)}",
          file=sys.stderr, flush=True)
    mine, peer = [], []
    for seed in range(1, args.seeds + 1):
        result, config = ours(args, seed)
        mine.append(result)
        peer.append(theirs(args, seed, config))
        print(f"seed {seed}: ours {result['return']:9.2f} in {result['seconds']:6.1f} s ({result['steps'] / result['seconds']:.0f} steps/s; updates {result['update_seconds']:.1f} s), "
              f"peer {peer[-1]['return']:9.2f} in {peer[-1]['seconds']:6.1f} s ({peer[-1]['steps'] / peer[-1]['seconds']:.0f} steps/s)", file=sys.stderr, flush=True)
    a, b = median([r["seconds"] for r in mine]), median([r["seconds"] for r in peer])
    common = {"case": args.env, "repeats": args.seeds, "machine": processor()[0], "instruction_sets": instruction_sets(), "commit": commit(), "config": args.config,
              "steps": mine[0]["steps"], "load_before": load}
    print(json.dumps({"bench": "sac_seconds", "value": a, "unit": "s", "better": "lower", "baseline": "stable-baselines3", "baseline_value": b, "ratio": b / a,
                      "spread": max(r["seconds"] for r in mine) - min(r["seconds"] for r in mine), **common}), flush=True)
    print(json.dumps({"bench": "sac_return", "value": median([r["return"] for r in mine]), "unit": "return", "better": "higher", "baseline": "stable-baselines3",
                      "baseline_value": median([r["return"] for r in peer]), "runs": [{"ours": r, "peer": p} for r, p in zip(mine, peer)], **common}), flush=True)


if __name__ == "__main__":
    main()
