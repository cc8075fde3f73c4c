#!/usr/bin/env python3
"""Simulated against real: the same config run for real and rehearsed by `tidepool simulate --like`.

usage: calibrate.py BUILD_DIR [--paced | --cpu] [--slots N] [--steps N] [--repeat N] [--keep DIR]
Two parts. Paced: N slots (16) with the times of a 7B model on an H100 each, one run a placement. CPU: two slots of one core,
the median of N rounds (3) of one run a placement, with a profile that is measured on the round's colocated run (its traces and journal) and
then used for all four; of the other runs the simulator is given the answer lengths alone. --keep: a folder for the runs and the
profile; runs that are there already are read again, not repeated.
One JSON object a comparison, over the steps from the fourth (CPU: the sixteenth) to the last but one, on both sides: step time (goal: within
10 %), idle shares by role as scheduler/slot_time.h defines them (goal: within 0.05). Exit code 1 if one misses its goal."""
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from arguments import Arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = "configs/test/rl_colocated.yaml"
PLACEMENTS = ("colocated", "split", "multiplexed", "elastic")
JOB = ["rollout.max_new_tokens=32", "rollout.chunk_tokens=8", "rollout.group_size=8", "train.groups_per_step=16", "train.micro_batch_tokens=4096",
       "eval.before_train=false", "eval.after_train=false", "checkpoint.every_steps=0", "scheduler.max_lag_versions=1",
       "train.learning_rate=1e-6"]  # answers keep their many lengths; were they learnt to be alike, all of them would end in one engine step
GROUPS, GROUP_SIZE = 16, 8
GRADES = 16  # in flight at a grader (reward.inflight)
FIRST = {"paced": 4, "cpu": 16}  # steps before it fill caches and pipes, and all samples began at once; the last step has nothing ahead


def tidepool(build, *args):
    done = subprocess.run([str(build / "bin" / "tidepool"), *args], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"calibrate: tidepool {' '.join(args)} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def steps_of(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {r["step"]: r["metrics"] for r in rows if "timing_s/step" in r["metrics"]}


def fold(steps):
    """Step time and idle shares of a window: sums first, then the shares."""
    sums = {k: sum(s[k] for s in steps) for k in ("seconds", "held_rollout", "busy_rollout", "held_actor", "busy_actor")}
    idle = lambda role: max(0.0, 1 - sums["busy_" + role] / sums["held_" + role]) if sums["held_" + role] > 0 else 0.0
    return {"step_s": sums["seconds"] / len(steps), "idle_rollout": idle("rollout"), "idle_actor": idle("actor")}


def measured(run, scale, first):
    steps = steps_of(run)
    window = [steps[k] for k in sorted(steps) if first <= k < max(steps)]
    return fold([{"seconds": m["timing_s/step"] / scale, **{f"{kind}_{role}": m.get(f"pool/{kind}_s/{role}", 0) for kind in ("held", "busy")
                                                            for role in ("rollout", "actor")}} for m in window])


def simulated(build, args, first):
    out = json.loads(tidepool(build, "simulate", CONFIG, *args, "--json"))
    return fold(out["per_step"][first - 1:-1])


def line(points):
    """Least squares: intercept and slope, neither negative."""
    mx, my = (statistics.mean(v) for v in zip(*points))
    slope = max(1e-7, sum((x - mx) * (y - my) for x, y in points) / max(1e-9, sum((x - mx) ** 2 for x, _ in points)))
    return max(0.0, my - slope * mx), slope


def spans_of(run):
    """Spans of each slot, by their begin: (begin, end, name, args), in seconds."""
    slots = {}
    for file in sorted(run.glob("trace/device-*.json.gz")):
        events = json.loads(gzip.open(file, "rt").read())["traceEvents"]
        slots[file.name.split("-")[1]] = sorted((e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6, e["name"], e.get("args", {}))
                                                for e in events if e.get("ph") == "X")
    return slots


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))] if values else 0.0


def fit(build, run, path):
    """A profile of this machine from one run: what its engine and optimizer steps took, and what lay between them."""
    slots = spans_of(run)
    steps, turn_of, gaps, turn = [], [], [], 0
    for slot, spans in slots.items():
        others = [s for name, other in slots.items() if name != slot for s in other if s[2] in ("generate", "train")]
        last = None
        for begin, end, name, args in spans:
            turn += name == "train"
            if name != "generate":
                last = None
                continue
            shared = sum(max(0.0, min(end, e) - max(begin, b)) for b, e, *_ in others) / (end - begin)
            work = args["rows"] + args.get("prefill", 0)  # a token costs about the same in either
            steps.append((work, end - begin, shared))
            turn_of.append((slot, turn))
            if last is not None:
                gaps.append(begin - last)
            last = end
    # A step beside a working slot takes `slow` times as long: the factor under which one line describes all steps best.
    def fitted(slow):
        stretch = [1 + (slow - 1) * shared for *_, shared in steps]
        overhead, slope = line([(work, took / f) for (work, took, _), f in zip(steps, stretch)])
        return sum((took - f * (overhead + slope * work)) ** 2 for (work, took, _), f in zip(steps, stretch)), slow, overhead, slope
    _, slow, overhead, slope = min(fitted(1 + 0.02 * k) for k in range(51))
    # How much faster or slower than that a slot went from one training step to the next.
    turns = {}
    for (work, took, shared), turn in zip(steps, turn_of):
        sums = turns.setdefault(turn, [0.0, 0.0])
        sums[0] += took
        sums[1] += (1 + (slow - 1) * shared) * (overhead + slope * work)
    weight = sum(expected for _, expected in turns.values())
    mean = sum(took for took, _ in turns.values()) / weight
    jitter = min(1.0, (sum(expected * (took / expected - mean) ** 2 for took, expected in turns.values()) / weight) ** 0.5)
    gap = quantile(gaps, 0.5)
    waits = [g for g in gaps if 1e-3 < g < 2e-2]  # the engine had nothing to do until the controller had heard and answered
    compute, tokens = [], []
    metrics = steps_of(run)
    for k in sorted(metrics):
        m = metrics[k]
        if k < FIRST["cpu"]:
            continue
        rows = GROUPS * GROUP_SIZE
        response = m["response_length/mean"]
        prompt = m["perf/total_num_tokens"] / rows - response
        # The simulator has its own wait for the slower rank. Colocated: both slots train, a half each.
        compute.append(m["timing_s/update_actor"] - m["timing_s/actor_reduce"])
        tokens.append((GROUPS * prompt + rows * response) / 2)
    flops = 2e6 / slope  # of a model with a million parameters: any would do, only ratios count
    efficiency = 6e6 * sum(tokens) / (sum(compute) * flops)
    moved = {"release": [], "grant": [], "publish": [], "reward": []}
    begun, ends, graded, committed = {}, [], {}, None
    for text in tidepool(build, "journal", str(run), "--json").splitlines():
        r = json.loads(text)
        kind, now = r["kind"], r["mono_ns"] * 1e-9
        if kind == "T_BEGIN":
            begun = {"at": now}
        elif kind == "RELEASE" and begun:
            moved["release"].append(now - begun["at"])
        elif kind == "T_COMMIT" and begun:
            begun["commit"] = now
        elif kind == "T_DONE" and "commit" in begun:
            moved["grant"].append(now - begun["commit"])
        elif kind == "END":
            ends.append((now, json.dumps(r["tid"])))
        elif kind == "GRADED":
            graded[json.dumps(r["tid"])] = now
        elif kind == "STEP_COMMIT":
            committed = now
        elif kind == "PUBLISH" and committed is not None:
            moved["publish"].append(now - committed)
            committed = None
    # A grader takes GRADES at a time: of samples that ended together each lot waits for the one before.
    while ends:
        lot = [x for x in ends if x[0] - ends[0][0] < 1e-3]
        ends = ends[len(lot):]
        last = max((graded[tid] for _, tid in lot if tid in graded), default=None)
        if last is not None:
            moved["reward"].append((last - lot[-1][0]) / -(-len(lot) // GRADES))
    # Half of the slots drain an engine step first: the quickest tenth is what a release itself takes.
    extra = {"step_gap_ms": gap * 1e3, "slow_beside": slow, "jitter": jitter, "message_ms": quantile(waits, 0.5) * 1e3 / 2, "release_ms": quantile(moved["release"], 0.1) * 1e3,
             "grant_ms": quantile(moved["grant"], 0.5) * 1e3, "publish_ms": quantile(moved["publish"], 0.5) * 1e3, "reward_ms": quantile(moved["reward"], 0.5) * 1e3}
    hardware = path.with_suffix(".hw.yaml")
    hardware.write_text(
        f"name: this machine\nsource: a colocated run on it (tests/bench/calibrate.py)\ntflops: {flops / 1e12}\nmemory_gb: 64\nmemory_gb_per_s: 1.0e6\n"
        f"link_gb_per_s: 5\nnet_gb_per_s: 5\nhost_gb_per_s: 5\nstep_overhead_ms: {(overhead + gap) * 1e3}\n")
    path.write_text(f"name: this machine\nhardware: {hardware.name}\nengine_efficiency: 1\ntrain_efficiency: {efficiency}\n"
                    "model: {parameters: 1.0e6, layers: 1, heads: 1, kv_heads: 1, head_size: 1}\n" + "".join(f"{k}: {v}\n" for k, v in extra.items()))
    print(json.dumps({"profile": {"step_overhead_ms": round(overhead * 1e3, 3), "per_token_us": round(slope * 1e6, 1),
                                  "train_us_per_token": round(1e6 * sum(compute) / sum(tokens), 1), **{k: round(v, 3) for k, v in extra.items()}}}), flush=True)


def pairs_of(build, folder, kind, overrides_of, repeat, scale):
    """Real and simulated, by placement: rounds of one run each, so that placements share the hour of the machine."""
    real, simulation = ({p: [] for p in PLACEMENTS} for _ in range(2))
    for k in range(repeat):
        pace = folder / f"fitted-{k}.yaml"
        for placement in PLACEMENTS:
            args = [*JOB, f"scheduler.placement={placement}", *overrides_of(placement)]
            run = folder / f"{kind}-{placement}-{k}"
            if not (run / "summary.json").exists():
                tidepool(build, "train", CONFIG, "--run-dir", str(run), *args)
            if kind == "cpu" and not pace.exists():
                fit(build, run, pace)
            real[placement].append(measured(run, scale, FIRST[kind]))
            simulation[placement].append(simulated(build, [*args, "--like", str(run), *(["--pace", str(pace)] if kind == "cpu" else [])], FIRST[kind]))
    return real, simulation


def judge(kind, placement, real, simulation):
    median = lambda all_: {key: round(statistics.median(x[key] for x in all_), 4) for key in all_[0]}
    r, s = median(real), median(simulation)
    error = s["step_s"] / r["step_s"] - 1
    idle = max(abs(s[key] - r[key]) for key in ("idle_rollout", "idle_actor"))
    good = abs(error) <= 0.10 and idle <= 0.05
    print(json.dumps({"bench": "calibrate", "case": f"{kind} {placement}", "runs": len(real), "real": r, "simulated": s, "step_error": round(error, 3),
                      "idle_error": round(idle, 3), "good": good}), flush=True)
    return good


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    slots, steps, repeat = int(value("--slots", 16)), int(value("--steps", 14)), int(value("--repeat", 3))
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(value("--keep", temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        actors = lambda placement, n: [] if placement in ("colocated", "elastic") else [f"scheduler.actor_slots={n}"]
        parts = []
        if not args.has("--cpu"):
            scale = 0.5
            parts.append(("paced", lambda p: [f"cluster.slots={slots}", "cluster.threads_per_slot=1", f"train.steps={steps}", *actors(p, slots // 2),
                                              "cluster.pace=configs/pace/qwen7b_h100.yaml", f"cluster.pace_scale={scale}"], 1, scale))
        if not args.has("--paced"):
            parts.append(("cpu", lambda p: ["cluster.slots=2", "cluster.threads_per_slot=1", f"train.steps={4 * steps + 4}", *actors(p, 1),
                                            "model.init.hidden_size=128", "model.init.intermediate_size=384", "model.init.layers=4",
                                            "model.init.head_size=32", "model.init.heads=4"], repeat, 1))
        for kind, overrides_of, rounds, scale in parts:
            real, simulation = pairs_of(build, folder, kind, overrides_of, rounds, scale)
            for placement in PLACEMENTS:
                good &= judge(kind, placement, real[placement], simulation[placement])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
