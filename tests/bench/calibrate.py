#!/usr/bin/env python3
"""Simulated against real: the same config run for real and rehearsed by `tidepool simulate --like`.

usage: calibrate.py BUILD_DIR [--slots N] [--steps N] [--paced | --cpu]
Two parts. Paced: N slots (16) with the times of a 7B model on an H100 each. CPU: two slots of one core, with a profile that is
fitted to the engine and optimizer steps of one run (colocated) and then used for the others. One JSON object a comparison:
step time real and simulated (goal: within 10 %), idle shares by role (goal: within 0.05). Exit code 1 if one misses its goal."""
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = ["rollout.max_new_tokens=32", "rollout.chunk_tokens=8", "rollout.group_size=8", "train.groups_per_step=16", "train.micro_batch_tokens=4096",
       "eval.before_train=false", "eval.after_train=false", "checkpoint.every_steps=0", "scheduler.max_lag_versions=1"]


def tidepool(build, *args):
    done = subprocess.run([str(build / "bin" / "tidepool"), *args], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"calibrate: tidepool {' '.join(args)} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def measured(run, scale):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [r["metrics"] for r in rows if "timing_s/step" in r["metrics"]][2:-1]  # the first fill caches, the last has nothing ahead
    mean = lambda name: statistics.mean(m[name] for m in steps if name in m)
    return {"step_s": mean("timing_s/step") / scale, "idle_rollout": mean("perf/idle_ratio/rollout"), "idle_actor": mean("perf/idle_ratio/actor"),
            "missed": steps[-1].get("paced/missed_ratio", 0)}


def fit(run, path):
    """A profile whose engine and optimizer steps take what those of the run took."""
    spans, trained = [], []
    for file in run.glob("trace/device-*.json.gz"):
        for e in json.loads(gzip.open(file, "rt").read())["traceEvents"]:
            if e.get("ph") == "X" and e["name"] == "generate" and e["args"].get("prefill", 0) == 0:
                spans.append((e["args"]["rows"], e["dur"] * 1e-6))
    for line in (run / "metrics.jsonl").read_text().splitlines():
        m = json.loads(line)["metrics"]
        if "timing_s/update_actor" in m:
            trained.append((m["perf/total_num_tokens"], m["timing_s/update_actor"]))
    x, y = zip(*spans)
    mx, my = statistics.mean(x), statistics.mean(y)
    slope = max(1e-7, sum((a - mx) * (b - my) for a, b in spans) / max(1e-9, sum((a - mx) ** 2 for a in x)))
    overhead = max(0.0, my - slope * mx)
    parameters = 1e6  # any: only ratios count
    flops = 2 * parameters / slope
    tokens, seconds = (statistics.mean(v) for v in zip(*trained[2:]))
    efficiency = min(1.0, 6 * parameters * tokens / (seconds * flops))
    path.with_suffix(".hw.yaml").write_text(
        f"name: fitted\nsource: a run on this machine\ntflops: {flops / 1e12}\nmemory_gb: 64\nmemory_gb_per_s: 1.0e6\nlink_gb_per_s: 100\n"
        f"net_gb_per_s: 100\nhost_gb_per_s: 100\nstep_overhead_ms: {overhead * 1e3}\n")
    path.write_text(f"name: fitted\nhardware: {path.with_suffix('.hw.yaml').name}\nengine_efficiency: 1\ntrain_efficiency: {efficiency}\n"
                    f"model: {{parameters: {parameters}, layers: 1, heads: 1, kv_heads: 1, head_size: 1}}\n")
    return {"step_overhead_ms": overhead * 1e3, "per_row_us": slope * 1e6, "train_us_per_token": 1e6 * seconds / tokens}


def compare(build, folder, name, placement, overrides, scale, pace):
    run = folder / f"{name}-{placement}"
    args = [*JOB, f"scheduler.placement={placement}", *overrides]
    tidepool(build, "train", "configs/test/rl_colocated.yaml", "--run-dir", str(run), *args)
    if name == "cpu" and not pace.exists():
        print(json.dumps({"fitted": fit(run, pace)}), file=sys.stderr)
    real = measured(run, scale)
    like = ["--pace", str(pace)] if name == "cpu" else []
    simulated = json.loads(tidepool(build, "simulate", "configs/test/rl_colocated.yaml", *args, "--like", str(run), "--json", *like))
    error = simulated["step_s"] / real["step_s"] - 1
    idle = max(abs(simulated[k] - real[k]) for k in ("idle_rollout", "idle_actor"))
    good = abs(error) <= 0.10 and idle <= 0.05
    print(json.dumps({"bench": "calibrate", "case": f"{name} {placement}", "real": real,
                      "simulated": {k: simulated[k] for k in ("step_s", "idle_rollout", "idle_actor")}, "step_error": round(error, 3),
                      "idle_error": round(idle, 3), "good": good}), flush=True)
    return good


def main():
    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if args else 2
    build = pathlib.Path(args.pop(0)).resolve()
    value = lambda flag, otherwise: int(args[args.index(flag) + 1]) if flag in args else otherwise
    slots, steps = value("--slots", 16), value("--steps", 14)
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if "--cpu" not in args:
            scale = 0.5
            for placement in ("colocated", "split", "multiplexed", "elastic"):
                actor = [] if placement in ("colocated", "elastic") else [f"scheduler.actor_slots={slots // 2}"]
                good &= compare(build, folder, "paced", placement, [f"cluster.slots={slots}", "cluster.threads_per_slot=1", f"train.steps={steps}", *actor,
                                "cluster.pace=configs/pace/qwen7b_h100.yaml", f"cluster.pace_scale={scale}"], scale, None)
        if "--paced" not in args:
            pace = folder / "fitted.yaml"
            for placement in ("colocated", "split", "multiplexed"):
                good &= compare(build, folder, "cpu", placement, ["cluster.slots=2", "cluster.threads_per_slot=1", f"train.steps={4 * steps}",
                                "model.init.hidden_size=128", "model.init.intermediate_size=384", "model.init.layers=4", "model.init.head_size=32",
                                "model.init.heads=4"], 1, pace)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
