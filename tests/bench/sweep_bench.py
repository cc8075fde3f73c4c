#!/usr/bin/env python3
"""A sweep against its runs one after another: wall clock of the commands, from start to exit, the same job both ways in turns.

usage: sweep_bench.py BUILD_DIR [--config configs/lora/smollm2_products.yaml] [--key train.learning_rate=1e-4,2e-4,3e-4,4e-4] [--steps 6] [--groups 1]
         [--tokens 64] [--rounds 3] [--set KEY=VALUE ...] [--exact]
KEY takes values without commas in them. A lone run is `tidepool train` with one of them. A round is both ways, in an order that changes from round to round; nothing is
evaluated and no final model saved, unless --set (to the end of the line) says so. --exact: deterministic, and every run of the sweep has to end with the
weights of its lone run, bit for bit (else exit code 1). One JSON line: median seconds, and the median of the rounds' shares, sweep / lone runs."""
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from arguments import Arguments
from provenance import commit, instruction_sets, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOAL = 0.6  # of the seconds of the runs one after another
QUIET = ["eval.before_train=false", "eval.after_train=false", "checkpoint.save_final=false"]


def seconds(*command):
    begin = time.perf_counter()
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=3600)
    took = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"sweep_bench: {' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-800:]}{done.stderr[-800:]}")
    return took


def weights(run):
    """Of its last checkpoint."""
    newest = max(run.glob("checkpoints/step_*"), key=lambda path: int(path.name.split("_")[1]))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted((newest / "model").glob("*.safetensors")))).hexdigest()


def metrics(run):
    return [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def main():
    args = Arguments(__doc__)
    value = args.value
    tidepool = args.build / "bin" / "tidepool"
    config, key, rounds = value("--config", "configs/lora/smollm2_products.yaml"), value("--key", "train.learning_rate=1e-4,2e-4,3e-4,4e-4"), int(value("--rounds", "3"))
    steps, groups, tokens = (int(value(name, otherwise)) for name, otherwise in (("--steps", "6"), ("--groups", "1"), ("--tokens", "64")))
    more = args.rest[args.rest.index("--set") + 1:] if args.has("--set") else []
    settings = [f"train.steps={steps}", f"train.groups_per_step={groups}", f"rollout.max_new_tokens={tokens}", *QUIET, *more]
    if args.has("--exact"):
        settings += ["deterministic=true", f"checkpoint.every_steps={steps}"]
    print(f"sweep_bench: {processor()[0]}, {' '.join(instruction_sets())}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, commit {commit()}, "
          f"{config}, {key}, {' '.join(settings)}", file=sys.stderr, flush=True)
    alone_s, swept_s, equal = [], [], True
    with tempfile.TemporaryDirectory() as temporary:
        for n in range(rounds):
            folder = pathlib.Path(temporary) / str(n)
            def sweep():
                swept_s.append(seconds(tidepool, "sweep", config, key, *settings, "--run-dir", folder / "sweep"))

            def alone():
                name, values = key.split("=", 1)
                alone_s.append(sum(seconds(tidepool, "train", config, f"{name}={one}", *settings, "--run-dir", folder / f"alone-{i}")
                                   for i, one in enumerate(values.split(","))))

            for way in (sweep, alone) if n % 2 == 0 else (alone, sweep):
                way()
            swept = [folder / "sweep" / run["run"] for run in json.loads((folder / "sweep" / "sweep.json").read_text())["runs"]]
            lone = [folder / f"alone-{i}" for i in range(len(swept))]
            if args.has("--exact"):
                equal &= [weights(run) for run in swept] == [weights(run) for run in lone]
            step_s = lambda runs: statistics.median(m["timing_s/step"] for run in runs for m in metrics(run)[1:] if "timing_s/step" in m)
            print(f"round {n + 1}: sweep {swept_s[-1]:.1f} s, one after another {alone_s[-1]:.1f} s, {swept_s[-1] / alone_s[-1]:.3f}; a step {step_s(swept):.2f} and "
                  f"{step_s(lone):.2f} s", file=sys.stderr, flush=True)
    shares = [a / b for a, b in zip(swept_s, alone_s)]
    share, swept, alone = statistics.median(shares), statistics.median(swept_s), statistics.median(alone_s)
    print(json.dumps({"bench": "sweep", "case": f"{len(lone)} runs, {steps} steps of {groups} groups, {tokens} tokens at most", "value": round(swept, 2), "unit": "s",
                      "better": "lower", "baseline": "the runs one after another", "baseline_value": round(alone, 2), "ratio": round(1 / share, 3),
                      "share": round(share, 3), "goal": GOAL, "repeats": rounds, "spread": [round(min(shares), 3), round(max(shares), 3)], "machine": processor()[0],
                      "instruction_sets": instruction_sets(), "cores": len(os.sched_getaffinity(0)), "commit": commit(), "config": [config, key, *settings],
                      **({"same_weights": equal} if args.has("--exact") else {})}), flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
