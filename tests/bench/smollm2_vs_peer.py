#!/usr/bin/env python3
"""GRPO on SmolLM2-135M-Instruct, task `products`: Tidepool against TRL, on this machine, in one run.

    make bench-peers                                       # does all set-up, then this
    .deps/peers-venv/bin/python tests/bench/smollm2_vs_peer.py --model models/smollm2-135m-instruct --build build
    .deps/peers-venv/bin/python tests/bench/smollm2_vs_peer.py --lora-rank 16    # an adapter on both sides, the peer's by PEFT

1. Short runs of Tidepool and of each TRL variant, {float32 + bf16 autocast, bfloat16 weights} x micro-batch {8, 64},
   one after another in turn (A B A C A D A E): the TRL variant with the fewest seconds a step is "the peer".
2. Whole runs of both in turn, once per seed: seconds a step (median without the first), share of right answers by step,
   resident memory of all processes together (proportional set size, sampled), held-out accuracy.
3. Short runs of Tidepool with `deterministic: true` and without, in turn: the seconds of a step of one over the other.

Both sides get the same model folder, training questions, group and step sizes, reward rule, learning rate and threads.
One JSON object a line on standard output (docs: benchmarks), a table on standard error. `ratio` > 1: Tidepool is better.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from goals import Goals, add_option
from provenance import commit, instruction_sets, processor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VARIANTS = [("float32", 64), ("float32", 8), ("bfloat16", 64), ("bfloat16", 8)]


class MemoryMonitor(threading.Thread):
    """Samples the resident memory of a process and all its descendants; `peak` bytes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.ended = pid, 0, threading.Event()

    @staticmethod
    def _parents():
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = pathlib.Path("/proc", entry, "stat").read_text()
                    parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
                except (OSError, ValueError):
                    pass  # it ended in between
        return parents

    @staticmethod
    def _bytes(pid):
        try:
            for line in pathlib.Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):  # shared pages are counted once over all that share them
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return 0

    def run(self):
        while not self.ended.wait(0.5):
            parents = self._parents()
            family = {self.pid}
            grown = True
            while grown:
                children = {p for p, parent in parents.items() if parent in family} - family
                family |= children
                grown = bool(children)
            self.peak = max(self.peak, sum(self._bytes(p) for p in family))


def run(command, log, env=None):
    """Runs a command to its end; (seconds, peak bytes). Ends this program with the log's tail if it fails."""
    begin = time.monotonic()
    with open(log, "w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=env)
        monitor = MemoryMonitor(process.pid)
        monitor.start()
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            monitor.ended.set()
    if code != 0:
        tail = "".join(open(log).readlines()[-15:])
        sys.exit(f"{' '.join(map(str, command))}\nended with code {code}; last lines of {log}:\n{tail}")
    return time.monotonic() - begin, monitor.peak


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def run_ours(args, seed, steps, folder, *settings):
    run_dir = folder / "run"
    evaluate = steps == args.steps
    command = [args.tidepool, "train", args.config, "--run-dir", run_dir, f"seed={seed}", f"train.steps={steps}",
               f"model.path={args.model}", f"cluster.threads_per_slot={args.threads}", f"train.learning_rate={args.learning_rate}",
               f"model.lora.rank={args.lora_rank}"]
    if not evaluate:  # a short run for timing alone
        command += ["eval.before_train=false", "eval.after_train=false", "checkpoint.save_final=false"]
    seconds, peak = run(list(map(str, [*command, *args.override, *settings])), folder / "log")
    rows = read_lines(run_dir / "metrics.jsonl")
    steps_seen, previous = {}, None
    for row in rows:
        metrics = row["metrics"]
        wall = row["wall_s"] - previous if previous is not None else None
        previous = row["wall_s"]
        if "critic/score/mean" in metrics:
            steps_seen[row["step"]] = {"seconds": metrics.get("timing_s/step", wall), "reward": metrics["critic/score/mean"]}
    summary = json.loads((run_dir / "summary.json").read_text())
    return result(steps_seen, seconds, peak, (summary.get("accuracy") or {}).get("after"))


def run_peer(args, seed, steps, folder, weights, micro_batch):
    out = folder / "steps.jsonl"
    command = [sys.executable, HERE / "peers" / "trl_products.py", "--model", args.model, "--out", out, "--weights", weights,
               "--micro-batch", micro_batch, "--steps", steps, "--seed", seed, "--threads", args.threads, "--learning-rate", args.learning_rate,
               "--lora-rank", args.lora_rank]
    if steps == args.steps:
        command.append("--evaluate")
    seconds, peak = run(list(map(str, command)), folder / "log")
    rows = read_lines(out)
    accuracy = next((row.get("accuracy") for row in rows if row.get("done")), None)
    return result({row["step"]: row for row in rows if "step" in row}, seconds, peak, accuracy)


def result(steps, seconds, peak, accuracy):
    if not steps:
        sys.exit("a run ended without a single step in its record")
    times = [steps[s]["seconds"] for s in sorted(steps) if steps[s]["seconds"] is not None]
    return {"times": times[1:] or times, "rewards": [steps[s]["reward"] for s in sorted(steps)], "seconds": seconds,
            "peak": peak, "accuracy": accuracy}


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--build", default="build")
    parser.add_argument("--config", default="configs/smollm2_products.yaml")
    parser.add_argument("--lora-rank", type=int, default=0, help="of an adapter in place of the whole model; 0: the whole model")
    parser.add_argument("--learning-rate", type=float, help="default: 2e-5, with an adapter 2e-4")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--probe-steps", type=int, default=3, help="of the short runs; 0 skips them and takes --peer")
    parser.add_argument("--deterministic-steps", type=int, default=6, help="of the runs with and without deterministic: true; 0: none")
    parser.add_argument("--peer", default="float32:64", help="weights:micro_batch, used with --probe-steps 0")
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    add_option(parser)
    parser.add_argument("--keep", help="folder for logs and runs (default: a temporary one, removed at the end)")
    parser.add_argument("override", nargs="*", help="a.b=c for Tidepool's config")
    args = parser.parse_args()
    if args.learning_rate is None:
        args.learning_rate = 2e-4 if args.lora_rank > 0 else 2e-5
    args.tidepool = ROOT / args.build / "bin" / "tidepool"
    args.model = str((ROOT / args.model).resolve())
    if not args.tidepool.exists():
        sys.exit(f"{args.tidepool} is not there; run `make build` first")
    if not os.path.exists(os.path.join(args.model, "config.json")):
        sys.exit(f"{args.model} holds no model; run `make smollm2-model` first")

    work = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="tidepool_peers_")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    say = lambda text: print(text, file=sys.stderr, flush=True)

    def folder(name):
        path = work / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    sets = instruction_sets()
    machine = f"{processor()[0]}, {os.cpu_count()} cores"
    kept = Goals(sets, args.goals)
    step_goal = 8 if args.lora_rank > 0 else kept.pick(10, 8)
    say(f"machine: {machine} ({', '.join(sets)}); threads: {args.threads}; commit: {commit()}")
    best = (args.peer.split(":")[0], int(args.peer.split(":")[1]))
    lines = []

    def emit(case, value, unit, better, baseline, baseline_value, repeats, spread, goal=None, **config):
        case += f", adapter of rank {args.lora_rank}" if args.lora_rank > 0 else ""
        ratio = None
        if baseline_value:
            ratio = baseline_value / value if better == "lower" else value / baseline_value
        line = {"bench": "smollm2_vs_peer", "case": case, "value": value, "unit": unit, "better": better, "baseline": baseline,
                "baseline_value": baseline_value, "ratio": ratio, "goal": goal, "repeats": repeats, "spread": spread, "machine": machine,
                "instruction_sets": sets, "commit": commit(), "config": {"threads": args.threads, "steps": args.steps, "seeds": args.seeds, "lora_rank": args.lora_rank,
                           "learning_rate": args.learning_rate, **config}}
        lines.append(line)
        print(json.dumps(line), flush=True)

    if args.probe_steps > 0:
        say("\nshort runs, in turn")
        ours, peers = [], {}
        for weights, micro_batch in VARIANTS:
            ours += run_ours(args, 1, args.probe_steps, folder("probe_ours"))["times"]
            peers[weights, micro_batch] = run_peer(args, 1, args.probe_steps, folder(f"probe_{weights}_{micro_batch}"), weights, micro_batch)["times"]
            say(f"  tidepool {statistics.median(ours):6.2f} s/step    trl {weights} micro-batch {micro_batch}: "
                f"{statistics.median(peers[weights, micro_batch]):6.2f} s/step")
        best = min(peers, key=lambda variant: statistics.median(peers[variant]))
        for variant, times in peers.items():
            emit(f"probe seconds per step, trl {variant[0]} micro-batch {variant[1]}", statistics.median(ours), "s", "lower", "trl",
                 statistics.median(times), len(times), [min(times), max(times)])
    name = f"trl{' with peft' if args.lora_rank > 0 else ''} {best[0]}{' + bf16 autocast' if best[0] == 'float32' else ''}, micro-batch {best[1]}"

    say(f"\nwhole runs, in turn; peer: {name}")
    ours, peer = [], []
    for seed in [int(s) for s in args.seeds.split(",")]:
        ours.append(run_ours(args, seed, args.steps, folder(f"ours_{seed}")))
        peer.append(run_peer(args, seed, args.steps, folder(f"peer_{seed}"), *best))
        say(f"  seed {seed}              tidepool      peer")
        say(f"    s/step             {statistics.median(ours[-1]['times']):9.2f} {statistics.median(peer[-1]['times']):9.2f}")
        say(f"    resident GB        {ours[-1]['peak'] / 1e9:9.2f} {peer[-1]['peak'] / 1e9:9.2f}")
        say(f"    whole run s        {ours[-1]['seconds']:9.1f} {peer[-1]['seconds']:9.1f}")
        say(f"    held-out accuracy  {ours[-1]['accuracy'] if ours[-1]['accuracy'] is not None else float('nan'):9.2f} "
            f"{peer[-1]['accuracy'] if peer[-1]['accuracy'] is not None else float('nan'):9.2f}")
        say("    right by step      tidepool " + " ".join(f"{r:.2f}" for r in ours[-1]["rewards"]))
        say("                       peer     " + " ".join(f"{r:.2f}" for r in peer[-1]["rewards"]))

    our_times = [t for r in ours for t in r["times"]]
    peer_times = [t for r in peer for t in r["times"]]
    n = len(ours)
    emit("seconds per step", statistics.median(our_times), "s", "lower", name, statistics.median(peer_times), n, [min(our_times), max(our_times)],
         goal=step_goal, peer_spread=[min(peer_times), max(peer_times)])
    emit("resident bytes of all processes", max(r["peak"] for r in ours), "bytes", "lower", name, max(r["peak"] for r in peer), n, None)
    emit("seconds of the whole run", mean(r["seconds"] for r in ours), "s", "lower", name, mean(r["seconds"] for r in peer), n,
         [min(r["seconds"] for r in ours), max(r["seconds"] for r in ours)])
    early = lambda runs: mean(mean(r["rewards"][:14]) for r in runs)
    late = lambda runs: min(mean(r["rewards"][15:20]) for r in runs)
    emit("right answers, mean of steps 1-14", early(ours), "share", "higher", name, early(peer), n, None,
         curves={"tidepool": [r["rewards"] for r in ours], "peer": [r["rewards"] for r in peer]})
    if args.steps >= 20:
        emit("right answers, mean of steps 16-20, worst seed", late(ours), "share", "higher", name, late(peer), n, None)

    speed = statistics.median(peer_times) / statistics.median(our_times)
    goals = [
        (f"{max(r['peak'] for r in ours) / 1e9:.2f} GB resident in all processes (goal 3.5)", max(r["peak"] for r in ours) <= 3.5e9),
        (f"steps 1-14: {early(ours):.3f} right, the peer {early(peer):.3f} (goal: at most 0.05 less)", early(ours) >= early(peer) - 0.05),
        (f"whole run {max(r['seconds'] for r in ours):.0f} s (goal 240)", max(r["seconds"] for r in ours) <= 240),
    ]
    if step_goal is not None:
        goals.append((f"{speed:.2f} times as fast per step as the peer's best (goal {step_goal} on this kind of processor)", speed >= step_goal))
    if args.steps >= 20:
        goals.append((f"steps 16-20: {late(ours):.3f} right on the worst seed (goal 0.9)", late(ours) >= 0.9))
    if args.deterministic_steps > 0:
        times = {"false": [], "true": []}
        for _ in range(2):
            for setting, seen in times.items():
                seen += run_ours(args, 1, args.deterministic_steps, folder(f"deterministic_{setting}"), f"deterministic={setting}")["times"]
        normal, exact = statistics.median(times["false"]), statistics.median(times["true"])
        emit("seconds per step, deterministic", exact, "s", "lower", "not deterministic", normal, 2, [min(times["true"]), max(times["true"])],
             baseline_spread=[min(times["false"]), max(times["false"])])
        goals.append((f"deterministic over normal {exact / normal:.3f} (goal 1.05)", exact / normal <= 1.05))
    say("")
    for text, reached in goals:
        say(f"  {kept.judge(text, text, reached)} {text}")
    if not args.keep:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
