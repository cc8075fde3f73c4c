#!/usr/bin/env python3
"""What a long tail of slow environments costs, and what is won against it: samples that are begun in excess, and a lag.

usage: environment_tail.py BUILD_DIR [--rounds 3] [--steps 12] [--straggler-share 0.08] [--straggler-s 0.5] [--redundancy 2]
Whole runs of configs/test/rl_episodes.yaml (a very small model on a frozen lake, 4 groups of 4 a step) whose environments wait: each turn a log-normal
time (median 20 ms, tail 1, at most 0.4 s), each turn of some samples --straggler-s more. By turns in each round: as it is; rollout.redundancy; a lag
of 2 versions; both. One JSON line: of each the median seconds of a run's steps, and the ratio to the first; of redundancy the mean length of what was
trained and of what was not awaited."""
import json
import pathlib
import statistics
import subprocess
import tempfile

from arguments import Arguments
from provenance import commit, instruction_sets, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(build, keys, steps, folder):
    done = subprocess.run([str(build / "bin" / "tidepool"), "train", "configs/test/rl_episodes.yaml", "--run-dir", folder, f"train.steps={steps}",
                           "checkpoint.every_steps=0", "eval.before_train=false", "eval.after_train=false", "environment.step_timeout_s=30", *keys],
                          cwd=ROOT, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    rows = {}
    for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["step"], {}).update(row["metrics"])
    checked = subprocess.run([str(build / "bin" / "tidepool"), "check", folder], cwd=ROOT, capture_output=True, text=True, timeout=300)
    if checked.returncode != 0:
        raise SystemExit(checked.stdout + checked.stderr)
    return [rows[step] for step in sorted(rows) if step > 1]  # the first has what the others have in advance


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    rounds, steps, redundancy = int(value("--rounds", "3")), int(value("--steps", "12")), value("--redundancy", "2")
    tail = ["environment.latency.median_s=0.02", "environment.latency.tail=1", "environment.latency.max_s=0.4",
            f"environment.latency.straggler_share={value('--straggler-share', '0.08')}", f"environment.latency.straggler_s={value('--straggler-s', '0.5')}"]
    more, lag = [f"rollout.redundancy={redundancy}"], ["scheduler.max_lag_versions=2"]
    ways = {"plain": [], "redundancy": more, "lag": lag, "lag_and_redundancy": [*more, *lag]}
    seconds, lengths = {way: [] for way in ways}, {"trained": [], "not_awaited": []}
    for _ in range(rounds):
        for way, keys in ways.items():
            with tempfile.TemporaryDirectory() as temporary:
                rows = run(build, tail + keys, steps, f"{temporary}/run")
            seconds[way].append(sum(row["timing_s/step"] for row in rows))
            if "redundancy" in way:
                lengths["trained"] += [row["response_length/mean"] for row in rows]
                lengths["not_awaited"] += [row["drop/overflow_policy/length"] for row in rows if "drop/overflow_policy/length" in row]
    medians = {way: round(statistics.median(s), 2) for way, s in seconds.items()}
    print(json.dumps({
        "bench": "environment_tail", "commit": commit(), "processor": processor()[0], "instruction_sets": instruction_sets(), "seconds": medians, "of_plain": {way: round(medians["plain"] / s, 2) for way, s in medians.items()},
        "length": {name: round(statistics.mean(values), 1) for name, values in lengths.items() if values},
        "rounds": rounds, "steps": steps, "settings": tail, "redundancy": int(redundancy)}), flush=True)


if __name__ == "__main__":
    main()
