#!/usr/bin/env python3
"""What a change of phases costs: two slots that share the optimizer (train.zero: 1) train, and generate with the new weights.

usage: phase_change.py BUILD_DIR --model models/smollm2-135m-instruct [--steps 8] [--set KEY=VALUE,...]
A whole run of the model, colocated on two slots. Of each step but the first: bytes that moved (phase_change/bytes), those that had to (phase_change/bound_bytes),
the seconds of the slowest slot (timing_s/phase_change). Beside it, right after the run: as many bytes copied, half of them by each of two processes
at the same time, the slower one counting. One JSON line: medians and ranges, bytes / bound, seconds / seconds of copying. --set: other keys of the run, as
train.zero=0."""
import json
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from arguments import Arguments
from provenance import commit, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ["scheduler.placement=colocated", "cluster.slots=2", "cluster.threads_per_slot=1", "train.zero=1", "rollout.group_size=2", "rollout.max_new_tokens=4",
            "rollout.kv_cache_tokens=4096", "train.groups_per_step=2", "eval.before_train=false", "eval.after_train=false", "eval.every_steps=0", "observe.trace=false"]


def copies(size, barrier, times, out):
    source, target = memoryview(bytearray(b"\1") * size), memoryview(bytearray(size))
    for _ in range(times):
        barrier.wait(60)
        begin = time.perf_counter()
        target[:] = source
        out.put(time.perf_counter() - begin)
        barrier.wait(60)


def copying(size, times=7):
    """Seconds of two processes that copy half of `size` bytes each, of every time but the first."""
    barrier, out = multiprocessing.Barrier(3), multiprocessing.Queue()
    both = [multiprocessing.Process(target=copies, args=(size // 2, barrier, times, out)) for _ in range(2)]
    for process in both:
        process.start()
    seconds = []
    for _ in range(times):
        barrier.wait(60)
        seconds.append(max(out.get(timeout=60), out.get(timeout=60)))
        barrier.wait(60)
    for process in both:
        process.join(60)
    return seconds[1:]


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    model, steps = pathlib.Path(value("--model", "models/smollm2-135m-instruct")).resolve(), int(value("--steps", "8"))
    more = [key for key in value("--set", "").split(",") if key]
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run([str(build / "bin" / "tidepool"), "train", "configs/smollm2_products.yaml", "--run-dir", f"{temporary}/run", f"model.path={model}",
                               f"train.steps={steps}", f"checkpoint.every_steps={steps}", *SETTINGS, *more], cwd=ROOT, capture_output=True, text=True, timeout=1200)
        if done.returncode != 0:
            sys.exit(f"phase_change: the run ended with {done.returncode}: {done.stderr[-800:]}")
        rows = [json.loads(line) for line in pathlib.Path(f"{temporary}/run/metrics.jsonl").read_text().splitlines()]
    steps_of = [r["metrics"] for r in rows if r["step"] > 1 and "phase_change/bytes" in r["metrics"]]
    moved, bound, seconds = ([m[name] for m in steps_of] for name in ("phase_change/bytes", "phase_change/bound_bytes", "timing_s/phase_change"))
    size = int(statistics.median(moved))
    line = {"bench": "phase_change", "commit": commit(), "processor": processor()[0], "settings": more, "steps": len(steps_of), "bytes": size, "bound_bytes": int(statistics.median(bound)),
            "seconds": round(statistics.median(seconds), 4), "range": [round(min(seconds), 4), round(max(seconds), 4)],
            "step_s": round(statistics.median(m["timing_s/step"] for m in steps_of if "timing_s/step" in m), 2)}
    if sum(bound) > 0:
        line["bytes_ratio"] = round(sum(moved) / sum(bound), 4)
    if size > 0:
        copy = copying(size)
        line.update({"copy_s": round(statistics.median(copy), 4), "copy_range": [round(min(copy), 4), round(max(copy), 4)],
                     "ratio": round(statistics.median(seconds) / statistics.median(copy), 2)})
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
