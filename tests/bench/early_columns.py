#!/usr/bin/env python3
"""What it saves that a trainer asks the reference about groups while their batch is still generated (train.early_columns).

usage: early_columns.py BUILD_DIR [--jobs paced,real] [--lags 0,1] [--repeats 3] [--steps 6]
Split placement, one slot trains; GRPO with a KL to a frozen reference. `paced`: the small model of configs/test with the times of a 7B model on an H100
(configs/pace/qwen7b_h100.yaml), reference included, 4 slots that generate, seconds are modelled ones; a run in which more than 1 % of the steps miss
their pace is said to be invalid. `real`: nothing is paced, one slot of one thread generates, the reference is eight times as large as the policy.
Runs with and without take turns. deterministic: true, so both have to end with the same weights, bit for bit (else exit code 1). The first step
is not counted. One JSON line a run, and one a comparison: seconds a step (median of the runs, and their range), their ratio, share of rows that were early,
seconds that a trained batch waited for the reference and the like (timing_s/actor_prepare)."""
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from arguments import Arguments
from provenance import commit, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = "configs/test/rl_split.yaml"
SCALE = 0.01  # of modelled seconds
WARM = 1      # steps that are not counted
COMMON = ["deterministic=true", "algorithm={name: grpo, kl: {coef: 0.01}}", "scheduler.actor_slots=1", "cluster.threads_per_slot=1", "rollout.group_size=8", "rollout.max_new_tokens=32", "rollout.chunk_tokens=8",
          "rollout.max_concurrent=32", "eval.before_train=false", "eval.after_train=false", "eval.every_steps=0", "checkpoint.every_steps=0",
          "observe.trace=false"]
JOBS = {"paced": ["train.groups_per_step=32", "cluster.slots=5", "cluster.pace=configs/pace/qwen7b_h100.yaml", f"cluster.pace_scale={SCALE}"],
        "real": ["train.groups_per_step=16", "cluster.slots=2", "train.micro_batch_tokens=512"]}


def train(build, folder, *settings):
    done = subprocess.run([str(build / "bin" / "tidepool"), "train", CONFIG, "--run-dir", str(folder), *settings], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"early_columns: {settings} ended with {done.returncode}: {done.stderr[-800:]}")


def run(build, folder, job, lag, steps, early, reference):
    settings = [*COMMON, *JOBS[job], f"scheduler.max_lag_versions={lag}", f"train.steps={steps}", f"train.early_columns={str(early).lower()}"]
    if job == "real":
        settings.append(f"algorithm.kl.reference={reference}")
    train(build, folder, *settings)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if "timing_s/step" in r["metrics"] or r["step"] == 1]
    counted, scale = rows[WARM:], SCALE if job == "paced" else 1
    mean = lambda name: statistics.mean(r["metrics"].get(name, 0) for r in counted)
    weights = hashlib.sha256((folder / "final" / "model.safetensors").read_bytes()).hexdigest()[:16]
    return {"step_s": round((counted[-1]["wall_s"] - rows[WARM - 1]["wall_s"]) / len(counted) / scale, 4), "columns_early": round(mean("data_plane/columns_early"), 3),
            "prepare_s": round(mean("timing_s/actor_prepare"), 4), "missed": counted[-1]["metrics"].get("paced/missed_ratio", 0), "weights": weights}


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    repeats, steps = int(value("--repeats", "3")), value("--steps", "6")
    same = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        large = ["model.init.hidden_size=256", "model.init.intermediate_size=768", "model.init.layers=8", "model.init.warm_start=null"]
        train(build, folder / "reference", *large, "train.steps=0", "eval.before_train=false", "eval.after_train=false")
        for job in value("--jobs", "paced,real").split(","):
            for lag in value("--lags", "0,1").split(","):
                runs = {True: [], False: []}
                for repeat in range(repeats):
                    for early in (True, False):
                        line = run(build, folder / f"{job}-{lag}-{repeat}-{early}", job, lag, steps, early, folder / "reference" / "final")
                        runs[early].append(line)
                        print(json.dumps({"bench": "early_columns", "job": job, "lag": int(lag), "early_columns": early, **line}), flush=True)
                step = {early: statistics.median(r["step_s"] for r in lines) for early, lines in runs.items()}
                spread = {early: [min(r["step_s"] for r in lines), max(r["step_s"] for r in lines)] for early, lines in runs.items()}
                equal = len({r["weights"] for lines in runs.values() for r in lines}) == 1
                same &= equal or lag != "0"
                print(json.dumps({"bench": "early_columns", "commit": commit(), "processor": processor()[0], "job": job, "lag": int(lag), "runs": repeats,
                                  "step_s": step[True], "range": spread[True], "step_s_without": step[False], "range_without": spread[False],
                                  "ratio": round(step[True] / step[False], 3), "valid": all(r["missed"] <= 0.01 for lines in runs.values() for r in lines),
                                  "columns_early": statistics.median(r["columns_early"] for r in runs[True]),
                                  "prepare_s": statistics.median(r["prepare_s"] for r in runs[True]),
                                  "prepare_s_without": statistics.median(r["prepare_s"] for r in runs[False]), "same_weights": equal}), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
