#!/usr/bin/env python3
"""Generation and training steps on SmolLM2-135M's shape, and on one with experts, in bfloat16: Tidepool beside llama.cpp, transformers and PyTorch, on
this machine, in one run, by turns.

    make bench-peers                    # does all set-up, then this and the other comparisons
    tests/bench/language_vs_peer.py --build build --llama .deps/peer-llama [--rounds 3] [--only decode,prefill,train]

Run by the Python that has torch and transformers. Each peer in its fastest setting that was found: llama.cpp built for this
processor with flash attention, its batched benchmark; transformers with SDPA attention in bfloat16; PyTorch with bfloat16
weights or float32 under autocast, in micro-batches of 1 024 and 4 096 tokens, whichever is faster.

One JSON object a line on standard output, a table on standard error. `ratio` > 1: Tidepool is better; the baseline is the best
peer. `goal` is that of the kind of processor at hand, null where that has none (goals.py).
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

from goals import Goals, add_option
from provenance import commit, instruction_sets, processor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TRAIN_VARIANTS = [(weights, micro) for weights in ("float32", "bfloat16") for micro in (4096, 1024)]


def output_of(command):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Comparison:
    def __init__(self, args):
        self.args = args
        self.model = processor()[0]
        self.sets = instruction_sets()
        self.goals = Goals(self.sets, args.goals)
        self.commit = commit()

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def emit(self, case, values, unit, peers, goal, better="higher"):
        """values: of the rounds; peers: {name: values}; goal: of the ratio to the best peer, or to 1 without peers."""
        value = statistics.median(values)
        best = max if better == "higher" else min
        name = best(peers, key=lambda p: statistics.median(peers[p])) if peers else None
        peer = statistics.median(peers[name]) if peers else None
        ratio = value if peer is None else (value / peer if better == "higher" else peer / value)
        print(json.dumps({"bench": "language_vs_peer", "case": case, "value": value, "unit": unit, "better": better, "baseline": name,
                          "baseline_value": peer, "ratio": ratio, "goal": goal, "repeats": len(values), "spread": [min(values), max(values)],
                          "peers": {p: [min(v), statistics.median(v), max(v)] for p, v in peers.items()}, "machine": self.model,
                          "instruction_sets": self.sets, "commit": self.commit, "config": {"threads": self.args.threads}}), flush=True)
        mark = "" if goal is None else self.goals.judge(case, f"{case}: {ratio:.3g} (goal {goal})", ratio >= goal)
        others = ", ".join(f"{p} {statistics.median(v):.3g}" for p, v in peers.items())
        self.say(f"  {mark}{case}: {value:.4g} {unit}" +
                 (f"; {others}; ratio {ratio:.2f}" if peers else "") + ("" if goal is None else f" (goal {goal})"))

    # Tidepool's figures of one run of the engine's benchmark: {case: value}.
    def engine(self, groups, samples, prompt, new, *more):
        command = [self.args.bin / "engine_bench", "--groups", groups, "--samples", samples, "--prompt", prompt, "--new", new, *more]
        return {line["case"]: line["value"] for line in json_lines(output_of(command))}

    def llama(self, batch, prompt, new, shared):
        command = [self.args.llama / "bin" / "llama-batched-bench", "-m", self.args.llama / "bf16.gguf", "-c", (prompt + new) * batch + 256, "-b", 2048,
                   "-ub", 1024, "-npp", prompt, "-ntg", new, "-npl", batch, "-t", self.args.threads, "-tb", self.args.threads, "-fa", "on",
                   "--output-format", "jsonl"] + (["-pps"] if shared else [])
        line = json_lines(output_of(command))[-1]
        return line["speed_pp"], line["speed_tg"]

    def transformers(self, batch, prompt, new, shape="smollm2"):
        line = json.loads(output_of([sys.executable, HERE / "peers" / "transformers_decode.py", "--batch", batch, "--prompt", prompt, "--new", new,
                                     "--threads", self.args.threads, "--shape", shape]))
        return line["prefill"], line["decode"]

    def decode(self):
        for case, groups, samples, prompt, new, shared, goal in [
                ("decode, 1 sample, prompt 64", 1, 1, 64, 64, False, None),
                ("decode, 16 samples, 2 prompts of 64", 2, 8, 64, 64, False, self.goals.pick(5, 4)),
                ("decode, 8 samples of one prompt of 1024", 1, 8, 1024, 32, True, self.goals.pick(8, 8)),
                ("decode, 1 sample, prompt 1000", 1, 1, 1000, 32, False, None),
                ("decode, 16 samples of one prompt of 1000", 1, 16, 1000, 32, True, None),
                ("decode, 1 sample, prompt 8000", 1, 1, 8000, 16, False, None),
                ("decode, 16 samples of one prompt of 8000", 1, 16, 8000, 16, True, None)]:
            ours, read, peers = [], [], {"llama.cpp": [], "transformers": []}
            for _ in range(self.args.rounds):
                figure = self.engine(groups, samples, prompt, new)
                ours.append(figure["decode_tokens_per_s"])
                read.append(figure["read_share"])
                peers["llama.cpp"].append(self.llama(groups * samples, prompt, new, shared)[1])
                if prompt < 8000:  # there it takes minutes
                    peers["transformers"].append(self.transformers(groups * samples, prompt, new)[1])
            peers = {p: v for p, v in peers.items() if v}
            self.emit(case, ours, "tokens/s", peers, goal)
            if groups * samples == 1 and prompt == 64:
                self.emit("decode, 1 sample, share of the time that reading the weights takes", read, "ratio", {}, self.goals.pick(0.7, 0.7))
        ours, peer = [], []
        for _ in range(self.args.rounds):
            ours.append(self.engine(2, 8, 64, 64, "--shape", "experts")["decode_tokens_per_s"])
            peer.append(self.transformers(16, 64, 64, "experts")[1])
        self.emit("decode with experts, 16 samples, 2 prompts of 64", ours, "tokens/s", {"transformers": peer}, None)
        busy = [self.engine(2, 8, 64, 64, "--busy", self.args.threads)["speed_beside_busy_processes"] for _ in range(self.args.rounds)]
        self.emit("decode, 16 samples, beside one busy process a core, share of quiet", busy, "ratio", {}, self.goals.pick(0.4, 0.4))

    def prefill(self):
        ours, peers = [], {"llama.cpp": [], "transformers": []}
        for _ in range(self.args.rounds):
            ours.append(self.engine(1, 1, 1024, 1)["prefill_tokens_per_s"])
            peers["llama.cpp"].append(self.llama(1, 1024, 1, False)[0])
            peers["transformers"].append(self.transformers(1, 1024, 1)[0])
        self.emit("prefill, 1024", ours, "tokens/s", peers, self.goals.pick(2.5, 1.1))

    def train(self):
        draw = random.Random(1)
        tail = sorted((min(1000, max(16, int(draw.expovariate(1 / 200)))) for _ in range(63)), reverse=True)
        for case, shape, lengths, goal in [("training step, 4 rows of 1000", "smollm2", [1000] * 4, self.goals.pick(3, 1.3)),
                                           ("training step, 1 row of 4000", "smollm2", [4000], None),
                                           ("training step, 64 rows, long-tailed", "smollm2", [1000] + tail, self.goals.pick(2, 1.3)),
                                           ("training step with experts, 4 rows of 1000", "experts", [1000] * 4, None)]:
            ours, peers = [], {}
            for _ in range(self.args.rounds):
                listed = ",".join(str(n - 1) for n in lengths)
                lines = json_lines(output_of([self.args.bin / "train_bench", "--steps", 2, "--prompt", 1, "--lengths", listed, "--micro", 4096, "--threads",
                                              self.args.threads, "--shape", shape]))
                ours.append(next(line["value"] for line in lines if line["case"] == "step"))
                for weights, micro in TRAIN_VARIANTS:
                    if micro < 4096 and len(lengths) == 1:
                        continue  # a single row is one micro-batch either way
                    seconds = json.loads(output_of([sys.executable, HERE / "peers" / "torch_steps.py", "--lengths", ",".join(map(str, lengths)), "--weights",
                                                    weights, "--micro", micro, "--threads", self.args.threads, "--shape", shape]))["seconds"]
                    peers.setdefault(f"PyTorch {weights} {micro}", []).append(statistics.median(seconds))
            self.emit(case, ours, "s", peers, goal, better="lower")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--llama", default=".deps/peer-llama")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="decode,prefill,train")
    add_option(parser)
    args = parser.parse_args()
    args.bin = ROOT / args.build / "bin"
    args.llama = ROOT / args.llama
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    comparison = Comparison(args)
    comparison.say(f"machine: {comparison.model} ({', '.join(comparison.sets)}), {args.threads} threads, commit {comparison.commit}")
    for part in args.only.split(","):
        {"decode": comparison.decode, "prefill": comparison.prefill, "train": comparison.train}[part]()


if __name__ == "__main__":
    main()
