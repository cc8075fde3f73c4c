"""Environment steps a second of tasks of Gymnasium: served by tidepool_env to a job's device worker, beside gymnasium's
AsyncVectorEnv, with as many instances, actions drawn at random, one after the other (A B A B ...) on one machine.

Ours is the whole way: from the one who acts over an environment worker to the programs and back (tests/bench/environment_bench.cc).
The peer's is step() in the process that acts, with shared memory, an instance a process as it always has. Both make their
environments without the checker. One JSON object a line on standard output.

usage: environment_vs_peer.py --build build [--peer PYTHON] [--instances 64] [--processes 2] [--seconds 3] [--repeats 3] [TASK ...]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from provenance import commit, instruction_sets, processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEER = """
import json, sys, time
import gymnasium, numpy
task, instances, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
made = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make(task, disable_env_checker=True)] * instances)
made.reset(seed=1)
rng, single = numpy.random.default_rng(1), made.single_action_space
discrete = isinstance(single, gymnasium.spaces.Discrete)
def act():
    return rng.integers(0, single.n, instances) if discrete else rng.uniform(-1, 1, (instances, *single.shape)).astype(numpy.float32)
warm = time.perf_counter() + 0.5
while time.perf_counter() < warm:
    made.step(act())
steps, begun = 0, time.perf_counter()
while time.perf_counter() - begun < seconds:
    made.step(act())
    steps += instances
print(json.dumps({"steps": steps, "seconds": time.perf_counter() - begun}))
made.close()
"""


def rate(words, **variables):
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        raise SystemExit(f"{words[0]}: exit {done.returncode}\n{done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    return measured["steps"] / measured["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--peer", default=sys.executable, help="Python with tests/interop/control_requirements.txt")
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("tasks", nargs="*", default=["CartPole-v1", "Pendulum-v1"])
    args = parser.parse_args()
    for task in args.tasks:
        ours, theirs = [], []
        for _ in range(args.repeats):
            ours.append(rate([str(args.build.resolve() / "bin/environment_bench"), str(args.processes), str(args.instances), str(args.seconds),
                              args.peer, "-m", "tidepool_env", "serve", f"gymnasium:{task}"], PYTHONPATH=str(ROOT / "examples/python")))
            theirs.append(rate([args.peer, "-c", PEER, task, str(args.instances), str(args.seconds)]))
        a, b = statistics.median(ours), statistics.median(theirs)
        print(json.dumps({"bench": "environment_steps", "case": task, "value": round(a), "unit": "steps/s", "better": "higher", "baseline": "gymnasium AsyncVectorEnv",
                          "baseline_value": round(b), "ratio": round(a / b, 2), "goal": 1.2, "spread": round(max(ours) - min(ours)), "instances": args.instances,
                          "processes": args.processes, "repeats": args.repeats, "machine": processor()[0], "instruction_sets": instruction_sets(),
                          "commit": commit()}), flush=True)


if __name__ == "__main__":
    main()
