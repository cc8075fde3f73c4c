#!/usr/bin/env python3
"""What a bound on lag costs and wins: the agentic demo with 1 % stragglers at scheduler.max_lag_versions 0, 1, 2, 4.

usage: lags.py BUILD_DIR [--lags 0,1,2,4] [--seeds 1,2,3] [--steps N] [--keep DIR]
configs/multiplexed_demo.yaml; of its samples 1 % are stragglers, each turn of which takes 0.3 s longer than the others' (median
0.01 s with a heavy tail), so that such a walk takes as long as several optimizer steps. Lags take turns, one run of each a
seed. One JSON line a run, then one a lag with medians: largest lag that was trained on (never above the bound; else exit code 1), samples/s
from the third step to the last but one, accuracy on held-out lakes after the last step, samples that were dropped as stale and generated anew."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from arguments import Arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIP = 2  # steps that fill caches and pipes


def run(build, folder, lag, seed, steps):
    done = subprocess.run([str(build / "bin" / "tidepool"), "train", "configs/multiplexed_demo.yaml", "--run-dir", str(folder), f"seed={seed}",
                           f"scheduler.max_lag_versions={lag}", f"train.steps={steps}", "environment.latency.straggler_share=0.01",
                           "environment.latency.straggler_s=0.3", "eval.every_steps=0", "checkpoint.every_steps=0", "observe.trace=false"],
                          cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lags: a run at lag {lag} ended with {done.returncode}: {done.stderr[-800:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if "timing_s/step" in r["metrics"] or r["step"] == 1]
    summary = json.loads((folder / "summary.json").read_text())
    seconds = rows[-2]["wall_s"] - rows[SKIP - 1]["wall_s"]  # the last has nothing generated ahead
    samples = (len(rows) - SKIP - 1) * 16 * 8
    return {"lag": lag, "seed": seed, "largest_lag": max(r["metrics"]["staleness/max"] for r in rows), "samples_per_s": round(samples / seconds, 1),
            "accuracy": summary["accuracy"]["after"],
            "stale": sum(r["metrics"].get("drop/stale", 0) for r in rows)}


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    lags = [int(x) for x in value("--lags", "0,1,2,4").split(",")]
    kept = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(value("--keep", temporary)).resolve()
        runs = {lag: [] for lag in lags}
        for seed in map(int, value("--seeds", "1,2,3").split(",")):
            for lag in lags:
                line = run(build, folder / f"lag{lag}-seed{seed}", lag, seed, int(value("--steps", "140")))
                runs[lag].append(line)
                kept &= line["largest_lag"] <= lag
                print(json.dumps({"bench": "lags", **line}), flush=True)
        for lag, lines in runs.items():
            of = lambda name: [line[name] for line in lines]
            print(json.dumps({"bench": "lags", "lag": lag, "runs": len(lines), "largest_lag": max(of("largest_lag")), "kept": max(of("largest_lag")) <= lag,
                              "samples_per_s": statistics.median(of("samples_per_s")), "accuracy": statistics.median(of("accuracy")),
                              "accuracy_range": [min(of("accuracy")), max(of("accuracy"))], "stale": statistics.median(of("stale"))}), flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
