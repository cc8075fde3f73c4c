#!/usr/bin/env python3
"""A model folder from warm cache through `tidepool generate`: seconds to the first token and to the end, and the peak memory of
the worker beside weights, KV cache and a worker without a model to speak of.

  tests/bench/smollm2_generate.py --model models/smollm2-135m-instruct [--build build] [--repeats 7]

Prints JSON lines: median, spread = (max - min) / median, and the goals. Exit code 1 if a run fails, not if a goal is missed.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runs"))


def run(program, model, tokens, prompt):
    """Seconds to the first byte of the answer, to the end, and peak bytes of the largest process under this one so far."""
    started = time.perf_counter()
    process = subprocess.Popen([program, "generate", "--model", model, "--prompt", prompt, "--max-new-tokens", str(tokens), "--threads", "2"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = process.stdout.read(1)
    first_s = time.perf_counter() - started
    _, errors = process.communicate()
    if process.returncode != 0 or not first:
        sys.exit(f"tidepool generate failed ({process.returncode}): {errors.decode()[-2000:]}")
    return first_s, time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def line(case, values, unit, goal, **more):
    median = statistics.median(values)
    print(json.dumps({"bench": "smollm2_generate", "case": case, "value": median, "unit": unit, "better": "lower", "goal": goal, "repeats": len(values),
                      "best": min(values), "spread": (max(values) - min(values)) / median, **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--build", default="build")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    program = str(pathlib.Path(args.build, "bin", "tidepool"))
    from experts_test import write_model  # a model of a few thousand parameters
    with tempfile.TemporaryDirectory() as scratch:
        small = pathlib.Path(scratch, "small")
        write_model(small)
        idle = run(program, str(small), 2, "abc")[2]  # before any larger process: the peak is of all so far
    weights = sum(p.stat().st_size for p in pathlib.Path(args.model).glob("*.safetensors"))
    config = json.loads(pathlib.Path(args.model, "config.json").read_text())
    tokens = 33
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kv = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", config["num_attention_heads"]) * head * 2 * tokens
    run(program, args.model, 1, "The capital")  # what is not in the page cache yet
    runs = [run(program, args.model, tokens, "The capital of France is") for _ in range(args.repeats)]
    line("first token", [r[0] for r in runs], "s", 0.5)
    line(f"{tokens} tokens", [r[1] for r in runs], "s", None)
    allowed = 1.15 * weights + kv + idle
    line("peak memory of the worker", [runs[-1][2] / 1e6], "MB", allowed / 1e6, weights=weights / 1e6, kv=kv / 1e6, idle_worker=idle / 1e6, of_goal=runs[-1][2] / allowed)


if __name__ == "__main__":
    main()
