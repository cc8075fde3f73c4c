#!/usr/bin/env python3
"""What it saves that a trainer asks the reference about groups while their batch is still generated (train.early_columns).

usage: early_columns.py BUILD_DIR [--lags 0,1] [--repeats 3] [--steps 6]
Split placement, one slot trains and four generate; GRPO with a KL to a frozen reference. The small model of configs/test with the times of a 7B model on
an H100 a slot (configs/pace/qwen7b_h100.yaml), the forward of the reference included; seconds are modelled ones, and a run in which more than 1 % of the
steps miss their pace is said to be invalid. Runs with and without take turns. deterministic: true, so at lag 0 both have to end with the same weights,
bit for bit (else exit code 1). The first step is not counted. One JSON line a run, and one a comparison: seconds a step (median of the runs, and their range), their
ratio, share of rows that were early."""
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
SCALE = 0.02  # of modelled seconds
WARM = 1      # steps that are not counted
SETTINGS = ["deterministic=true", "algorithm={name: grpo, kl: {coef: 0.01}}", "scheduler.actor_slots=1", "cluster.threads_per_slot=1", "rollout.group_size=8",
            "rollout.max_new_tokens=32", "rollout.chunk_tokens=8", "rollout.max_concurrent=32", "train.groups_per_step=32", "cluster.slots=5",
            "cluster.pace=configs/pace/qwen7b_h100.yaml", f"cluster.pace_scale={SCALE}", "eval.before_train=false", "eval.after_train=false",
            "eval.every_steps=0", "checkpoint.every_steps=0", "observe.trace=false"]


def run(build, folder, lag, steps, early):
    done = subprocess.run([str(build / "bin" / "tidepool"), "train", CONFIG, "--run-dir", str(folder), *SETTINGS, f"scheduler.max_lag_versions={lag}",
                           f"train.steps={steps}", f"train.early_columns={str(early).lower()}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"early_columns: a run at lag {lag} ended with {done.returncode}: {done.stderr[-800:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if "timing_s/step" in r["metrics"] or r["step"] == 1]
    counted = rows[WARM:]
    mean = lambda name: statistics.mean(r["metrics"].get(name, 0) for r in counted)
    weights = hashlib.sha256((folder / "final" / "model.safetensors").read_bytes()).hexdigest()[:16]
    return {"step_s": round((counted[-1]["wall_s"] - rows[WARM - 1]["wall_s"]) / len(counted) / SCALE, 2),
            "columns_early": round(mean("data_plane/columns_early"), 3), "early_s": round(mean("timing_s/columns_early") / SCALE, 2),
            "missed": counted[-1]["metrics"].get("paced/missed_ratio", 0), "weights": weights}


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    repeats, steps = int(value("--repeats", "3")), value("--steps", "6")
    same = True
    with tempfile.TemporaryDirectory() as temporary:
        for lag in map(int, value("--lags", "0,1").split(",")):
            runs = {True: [], False: []}
            for repeat in range(repeats):
                for early in (True, False):
                    line = run(build, pathlib.Path(temporary) / f"{lag}-{repeat}-{early}", lag, steps, early)
                    runs[early].append(line)
                    print(json.dumps({"bench": "early_columns", "lag": lag, "early_columns": early, **line}), flush=True)
            of = lambda early, name: [r[name] for r in runs[early]]
            median = {early: statistics.median(of(early, "step_s")) for early in runs}
            equal = len({*of(True, "weights"), *of(False, "weights")}) == 1
            same &= equal or lag != 0
            print(json.dumps({"bench": "early_columns", "commit": commit(), "processor": processor()[0], "lag": lag, "runs": repeats,
                              "step_s": median[True], "range": [min(of(True, "step_s")), max(of(True, "step_s"))], "step_s_without": median[False],
                              "range_without": [min(of(False, "step_s")), max(of(False, "step_s"))], "ratio": round(median[True] / median[False], 3),
                              "valid": all(m <= 0.01 for early in runs for m in of(early, "missed")),
                              "columns_early": statistics.median(of(True, "columns_early")), "same_weights": equal}), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
