#!/usr/bin/env python3
"""The four placements side by side on the agentic demo: colocated, split, multiplexed, elastic; same slots, same lag, same batch.

usage: placements.py BUILD_DIR [--pools 2,16] [--lags 0,1] [--repeats 5] [--steps N] [--policy DIR] [--settings JSON] [--quick]
Pool 2: two CPU slots of one thread each. Pool 16: paced slots (configs/pace/qwen7b_h100.yaml), each with the times of a 7B model on
an H100; a run in which more than 1 % of the steps miss their pace is not counted and said to be invalid.
All runs generate with one policy that has learned the game (--policy, or a run of configs/multiplexed_demo.yaml that is made first) and train with a
learning rate that leaves it as it is, so every run has the same work. Of colocated, split and multiplexed the number of training slots, the
length of a chunk and the number of concurrent samples are swept first, one after another, each kept where it is better (elastic chooses
its slots itself and takes what multiplexed found for the rest); then the best settings of all four run in turn, `repeats` times. The first two steps
fill caches and pipes and the last has nothing generated ahead: they are not counted. One JSON line a run and one a comparison: samples/s end to
end, generated tokens/s, idle shares by role, median and range, and the ratio to the better of colocated and split. --settings: what an earlier sweep
found, by placement, instead of another one. --quick: one repeat, no sweep."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from arguments import Arguments

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = "configs/multiplexed_demo.yaml"
PLACEMENTS = ("colocated", "split", "multiplexed", "elastic")
GROUPS = {2: 64, 16: 64}  # of 8 samples, a step: enough to keep the slots busy
REAL = [f"train.groups_per_step={GROUPS[2]}", "cluster.slots=2"]
SCALE = 0.05  # of modelled seconds, in the paced pool
# There a turn is 64 times as many tokens, about 1.3 s; its environment's time keeps its proportion to that (0.01 s of 0.017 in the demo).
PACED = [f"train.groups_per_step={GROUPS[16]}", "cluster.slots=16", "cluster.pace=configs/pace/qwen7b_h100.yaml", f"cluster.pace_scale={SCALE}",
         "environment.latency={median_s: 0.75, tail: 1.3, max_s: 75}", "environment.step_timeout_s=1000"]
WARM = 2     # steps that are not counted


def tidepool(build, *args):
    return subprocess.run([str(build / "bin" / "tidepool"), *args], cwd=ROOT, capture_output=True, text=True)


def policy(build, folder):
    run = folder / "policy"
    done = tidepool(build, "train", DEMO, "--run-dir", str(run), "eval.every_steps=0", "checkpoint.every_steps=0")
    if done.returncode != 0:
        sys.exit(f"placements: the demo ended with {done.returncode}: {done.stderr[-800:]}")
    return run / "final"


class Bench:
    def __init__(self, build, folder, steps, final):
        self.build, self.folder, self.steps, self.count = build, folder, steps, 0
        self.final = final or policy(build, folder)

    def run(self, pool, lag, placement, settings):
        """Figures of one run; None where the pace was missed."""
        self.count += 1
        run = self.folder / f"run-{self.count}"
        batch = REAL if pool == 2 else PACED
        chosen = [f"{key}={value}" for key, value in settings.items()]
        done = tidepool(self.build, "train", DEMO, "--run-dir", str(run), "model.init=null", f"model.path={self.final}", f"scheduler.placement={placement}",
                        f"scheduler.max_lag_versions={lag}", "train.learning_rate=1.0e-12", f"train.steps={self.steps}", "eval.before_train=false",
                        "eval.after_train=false", "eval.every_steps=0", "checkpoint.every_steps=0", "checkpoint.save_final=false", "observe.trace=false",
                        *batch, *chosen)
        if done.returncode != 0:
            sys.exit(f"placements: {placement} {chosen} ended with {done.returncode}: {done.stderr[-800:]}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [r for r in rows if "timing_s/step" in r["metrics"]]
        counted = rows[WARM:-1]
        scale = 1 if pool == 2 else SCALE
        seconds = (counted[-1]["wall_s"] - rows[WARM - 1]["wall_s"]) / scale
        samples = len(counted) * GROUPS[pool] * 8
        mean = lambda name: statistics.mean(r["metrics"].get(name, 0) for r in counted)
        total = lambda name: sum(r["metrics"].get(name, 0) for r in counted)
        idle = lambda role: round(max(0.0, 1 - total(f"pool/busy_s/{role}") / max(1e-9, total(f"pool/held_s/{role}"))), 3)
        line = {"samples_per_s": round(samples / seconds, 2), "tokens_per_s": round(mean("response_length/mean") * samples / seconds, 1),
                "step_s": round(seconds / len(counted), 3), "idle_rollout": idle("rollout"), "idle_actor": idle("actor"), "missed": counted[-1]["metrics"].get("paced/missed_ratio", 0)}
        print(json.dumps({"bench": "placements", "pool": pool, "paced": pool != 2, "lag": lag, "placement": placement, "settings": settings, **line}),
              file=sys.stderr, flush=True)
        return None if line["missed"] > 0.01 else line

    def sweep(self, pool, lag, placement):
        shares = {"colocated": [None], "split": [1] if pool == 2 else [8, 4, 6, 10], "multiplexed": [1] if pool == 2 else [12, 8, 14]}[placement]
        choices = [("scheduler.actor_slots", [s for s in shares if s is not None]), ("rollout.chunk_tokens", [8, 32]),
                   ("rollout.max_concurrent", [1024, 256])]
        best, settings = -1, {}
        for key, values in choices:
            for value in values:
                if settings.get(key) == value:
                    continue
                trial = {**settings, key: value}
                if best >= 0 and len(values) > 1 and value == values[0]:
                    settings = {**settings, key: value}  # what has run already
                    continue
                # The first value of later keys is what the first runs had.
                full = {**{k: v[0] for k, v in choices if v}, **trial}
                line = self.run(pool, lag, placement, full)
                if line and line["samples_per_s"] > best:
                    best, settings = line["samples_per_s"], trial
        return {**{k: v[0] for k, v in choices if v}, **settings}


def main():
    args = Arguments(__doc__)
    build, value = args.build, args.value
    quick = args.has("--quick")
    repeats = 1 if quick else int(value("--repeats", "5"))
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(build, pathlib.Path(temporary), int(value("--steps", "8")), value("--policy", None))
        for pool in map(int, value("--pools", "2,16").split(",")):
            for lag in map(int, value("--lags", "0,1").split(",")):
                actor = lambda p: {"scheduler.actor_slots": 8 if pool == 16 and p in ("split", "multiplexed") else 1}
                found = json.loads(value("--settings", "{}"))
                settings = {p: found[p] if p in found else {**actor(p), "rollout.max_concurrent": 1024} if quick else bench.sweep(pool, lag, p)
                            for p in PLACEMENTS if p != "elastic"}
                settings["elastic"] = {**settings["multiplexed"], "scheduler.actor_slots": 1}  # 1: as many as it likes
                runs = {p: [] for p in PLACEMENTS}
                for _ in range(repeats):
                    for p in PLACEMENTS:
                        runs[p].append(bench.run(pool, lag, p, settings[p]))
                summary = {}
                for p, lines in runs.items():
                    good = [x for x in lines if x]
                    if not good:
                        summary[p] = {"invalid": len(lines)}
                        continue
                    of = lambda name: [x[name] for x in good]
                    summary[p] = {"samples_per_s": statistics.median(of("samples_per_s")), "range": [min(of("samples_per_s")), max(of("samples_per_s"))],
                                  "tokens_per_s": statistics.median(of("tokens_per_s")), "idle_rollout": statistics.median(of("idle_rollout")),
                                  "idle_actor": statistics.median(of("idle_actor")), "invalid": len(lines) - len(good), "settings": settings[p]}
                rate = lambda p: summary[p].get("samples_per_s", 0)
                base = max(rate("colocated"), rate("split"))
                ratios = {p: round(rate(p) / base, 3) for p in ("multiplexed", "elastic")} if base else {}
                print(json.dumps({"bench": "placements", "case": f"{pool} slots, lag {lag}", "paced": pool != 2, "of": summary, "over_the_better_baseline": ratios}),
                      flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
