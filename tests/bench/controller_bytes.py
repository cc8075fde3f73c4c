#!/usr/bin/env python3
"""What passes the controller for each sample and each token: bytes of frames from and to workers, as its page counts them.

    tests/bench/controller_bytes.py [--build build] [--before OTHER_BUILD] [--steps 40] [--cases text,moved,...] [--limits 8,2048] [--config FILE] [overrides...]

text        configs/test/rl_split.yaml, or FILE: one slot trains and one generates; a run for each limit of the response
moved       three slots, of which two leave to train at each step: what they were working on goes on elsewhere
evaluation  held-out questions are asked after each step; an answer is a sample
episodes    configs/test/rl_episodes.yaml: games of several turns
control     configs/test/control.yaml: a sample is a fragment, a token a step of one environment

Workers are on this host; heartbeats and permits count. --before: another build's folder, run in turn with this one: the ratio. One JSON object a line.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from provenance import commit, processor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NO_EVALUATION = ["eval.every_steps=0", "eval.before_train=false", "eval.after_train=false"]
OVERRIDES = ["checkpoint.every_steps=0", "observe.metrics_bind=127.0.0.1", "observe.samples_per_step=0"]
TEXT = ["scheduler.placement=split", "model.init.max_position=2200", "train.micro_batch_tokens=4400"]
CASES = {
    "moved": ("configs/test/rl_split.yaml", [*NO_EVALUATION, "scheduler.placement=multiplexed", "cluster.slots=3", "scheduler.actor_slots=2",
                                             "rollout.max_new_tokens=64", "rollout.chunk_tokens=16", "model.init.max_position=200"]),
    "evaluation": ("configs/test/rl_split.yaml", ["eval.every_steps=1", "rollout.max_new_tokens=8"]),
    "episodes": ("configs/test/rl_episodes.yaml", NO_EVALUATION),
    "control": ("configs/test/control.yaml", NO_EVALUATION),
}
COUNTED = {"in": "tidepool_received_bytes_total", "out": "tidepool_sent_bytes_total", "tokens": "tidepool_generated_tokens_total",
           "samples": "tidepool_issued_samples_total"}
GRADED = 'tidepool_gradings_total{outcome="ok"}'


def page(run, graded):
    """What the page of the run says now, or nothing where it says nothing (yet, or any more)."""
    try:
        address = json.loads((run / "control.json").read_text())["pages"]
        token = (run / "security" / "operator.token").read_text().strip()
        request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": "Bearer " + token})
        text = urllib.request.urlopen(request, timeout=5).read().decode()
    except (OSError, ValueError, KeyError):
        return None
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    counted = {**COUNTED, **({"samples": GRADED} if graded else {})}
    return {name: float(values[key]) for name, key in counted.items()} if all(key in values for key in counted.values()) else None


def measure(build, config, steps, overrides, graded=False):
    with tempfile.TemporaryDirectory(prefix="controller_bytes") as folder:
        run = pathlib.Path(folder) / "run"
        command = [pathlib.Path(build).resolve() / "bin" / "tidepool", "train", config, "--run-dir", run, f"train.steps={steps}", *OVERRIDES, *overrides]
        with open(pathlib.Path(folder) / "out", "w+") as out:
            process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=out, stderr=out)
            last, deadline = None, time.monotonic() + 600
            while process.poll() is None and time.monotonic() < deadline:
                last = page(run, graded) or last
                time.sleep(0.05)
            process.kill()
            if process.wait(30) != 0 or last is None or last["samples"] == 0:
                out.seek(0)
                sys.exit(f"controller_bytes: the run ended with {process.returncode}:\n{out.read()[-2000:]}")
        return last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--before")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--cases", default="text", help=f"of text, {', '.join(CASES)}, or all")
    parser.add_argument("--limits", default="8,2048")
    parser.add_argument("--config", default="configs/test/rl_split.yaml")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    machine, flags = processor()
    builds = {"now": args.build, **({"before": args.before} if args.before else {})}
    runs = []
    for case in ["text", *CASES] if args.cases == "all" else args.cases.split(","):
        if case == "text":
            runs += [(f"text, limit {limit}", args.config, [*TEXT, *NO_EVALUATION, f"rollout.max_new_tokens={limit}"]) for limit in args.limits.split(",")]
        else:
            runs.append((case, *CASES[case]))
    for case, config, overrides in runs:
        overrides = [*overrides, *args.overrides]
        found = {name: measure(build, config, args.steps, overrides, case == "evaluation") for name, build in builds.items()}
        per = {name: {k: v / found[name]["samples"] for k, v in found[name].items()} for name in builds}
        tokens = per["now"]["tokens"]
        for way in ("in", "out"):
            print(json.dumps({"bench": "controller_bytes", "case": f"{case}: {way} of the controller, a sample of {tokens:.1f} tokens", "value": per["now"][way],
                              "unit": "bytes", "ratio": per["now"][way] / per["before"][way] if args.before else None, "goal": 1024 + 2 * tokens,
                              "machine": machine, "instruction_sets": [s for s in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if s in flags],
                              "commit": commit(), "config": {"file": config, "steps": args.steps, "overrides": overrides}}), flush=True)


if __name__ == "__main__":
    main()
