#!/usr/bin/env python3
"""What one controller takes for 10, 100, 1000 workers: a real `tidepool train`, and load_workers in place of devices and graders.

    tests/bench/scale_bench.py --build build [--workers 10,100,1000] [--tls] [--step-ms 100] [--seconds 20] [--pin]

The workers speak the real protocol over real connections and have no tensors (load_workers.cc): each device has up to 8 samples in
work and makes an engine step every --step-ms, so 1000 of them send 10 000 messages/s. One slot trains. With --tls the wire is
encrypted, as it is off loopback. --to-the-end: --steps optimizer steps, to the last one; else the run is stopped after the window.
Every run's journal has to pass `tidepool check`. With --pin the controller has one core to itself and the workers have the others.

One JSON object a line and size:
  cpu            processor seconds of the controller (all its threads) in a second
  us_per_token, us_per_message   of that, by generated token and by message of a worker
  decision_ms    what the controller says of itself (tidepool_decision_seconds): from a message's being read to what it caused being
                 carried out, the journal's sync among it; the bounds between which the quantiles lie, and the share below 50 ms
  chunk_ms       from the end of a chunk, said by a worker, to the next chunk of that sample, at a worker: decision, journal and both ways
  grade_ms       from the end of a sample to its grading at a reward worker: with the write of its tokens
  loop           of cpu: the thread that decides. At 1 it is full, and latencies grow
  late_ms        how late load_workers made its engine steps: where that is much, the load is less than stated, and chunk_ms is the load's
"""
import argparse
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

from provenance import commit, processor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TICK = os.sysconf("SC_CLK_TCK")


def job(args, workers):
    """A very small model: nobody computes it. Samples of 1 to 2 x --tokens tokens in chunks of 64, 8 to a device."""
    devices = workers - rewards(workers)
    groups = max(2, devices)
    return [f"cluster.slots={devices}", f"reward.workers={rewards(workers)}", "cluster.launch_workers=false", "scheduler.max_lag_versions=1",
            f"model.init.max_position={4 * args.tokens}", f"rollout.max_new_tokens={2 * args.tokens}", "rollout.chunk_tokens=64", "rollout.group_size=8",
            f"rollout.max_concurrent={8 * (devices - 1)}", f"train.groups_per_step={groups}", f"train.steps={args.steps}",
            f"train.micro_batch_tokens={8 * args.tokens}", "data.size=100000", "eval.every_steps=0", "eval.before_train=false", "eval.after_train=false",
            "checkpoint.every_steps=0", "observe.samples_per_step=0", "observe.metrics_bind=127.0.0.1", "reward.functions=[{name: exact_answer, weight: 1.0}]",
            *(["security.tls=true"] if args.tls else []), *args.set]


def rewards(workers):
    return max(1, workers // 50)


def stat(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    loop = open(f"/proc/{pid}/task/{pid}/stat").read().rsplit(")", 1)[1].split()
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
    kib = lambda key: int(status[key].split()[0]) * 1024
    return {"user_s": int(fields[11]) / TICK, "system_s": int(fields[12]) / TICK, "loop_s": (int(loop[11]) + int(loop[12])) / TICK,
            "threads": int(status["Threads"]), "rss": kib("VmRSS"), "peak": kib("VmHWM"), "files": len(os.listdir(f"/proc/{pid}/fd"))}


def sockets(port):
    """Bytes that the controller has sent and received over connections that are open now."""
    text = subprocess.run(["ss", "-tinH", "state", "established", "sport", "=", f":{port}"], capture_output=True, text=True, timeout=30).stdout
    total = lambda key: sum(int(word.split(":")[1]) for word in text.split() if word.startswith(key + ":"))
    return {"out": total("bytes_sent"), "in": total("bytes_received")}


def decisions(run, control, tls):
    """How many decisions took at most so many seconds, as the controller's page has it; a page is made four times a second."""
    request = urllib.request.Request(f"http{'s' if tls else ''}://{control['pages']}/metrics")
    request.add_header("Authorization", "Bearer " + (run / "security/operator.token").read_text().strip())
    context = ssl._create_unverified_context() if tls else None
    if tls:
        context.load_cert_chain(run / "security/operator.crt", run / "security/operator.key")
    text = urllib.request.urlopen(request, timeout=20, context=context).read().decode()
    return {float(bound): float(count) for bound, count in re.findall(r'tidepool_decision_seconds_bucket{le="([^"]+)"} (\S+)', text)}


def spread(begin, end):
    """Bounds around quantiles of what came between two pages."""
    counts = {bound: end[bound] - begin.get(bound, 0) for bound in sorted(end)}
    n = counts[float("inf")]
    if not n:
        return None
    found = {"n": round(n), "below_50": round(counts[0.05] / n, 5)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        at = next(i for i, count in enumerate(counts.values()) if count >= share * n)
        found[name] = [1e3 * bound for bound in ([0, *counts][at], [*counts][at])]
    return found


def wait(what, seconds):
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            return None
        time.sleep(0.05)
    return found


def measure(args, workers):
    bin_dir = ROOT / args.build / "bin"
    with tempfile.TemporaryDirectory(prefix="scale_bench", dir=args.dir) as folder:
        run = pathlib.Path(folder) / "run"
        log = open(pathlib.Path(folder) / "log", "w+")
        first, *others = sorted(os.sched_getaffinity(0))
        on = lambda cores: {"preexec_fn": lambda: os.sched_setaffinity(0, cores)} if args.pin and others else {}
        controller = subprocess.Popen([bin_dir / "tidepool", "train", "configs/test/rl_split.yaml", "--run-dir", run, *job(args, workers)], cwd=ROOT, stdout=log,
                                      stderr=log, **on([first]))
        load = None
        try:
            control = wait(lambda: (run / "control.json").exists() and json.loads((run / "control.json").read_text()), 60)
            if not control:
                raise RuntimeError("the controller did not begin")
            port = control["address"].rsplit(":", 1)[1]
            load = subprocess.Popen([bin_dir / "load_workers", "--run-dir", run, "--devices", str(workers - rewards(workers)), "--rewards", str(rewards(workers)),
                                     "--step-ms", str(args.step_ms), "--tokens", str(args.tokens), "--warm", str(args.warm), "--seconds", str(args.seconds)],
                                    cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, **on(others))
            found = {}
            for line in load.stdout:
                said = json.loads(line)
                phase = said.pop("phase")
                found[phase] = said
                if args.verbose:
                    print(phase, said, file=sys.stderr, flush=True)
                if phase in ("begin", "end"):
                    found[phase].update(stat(control["pid"]), load=stat(load.pid), **sockets(port))
                    found[phase]["decisions"] = decisions(run, control, args.tls)
                if phase == "end" and not args.to_the_end:
                    controller.send_signal(signal.SIGINT)
            load.wait(60)
            if "end" not in found:
                raise RuntimeError("the workers ended before the window did")
            code = controller.wait(120)
            checked = subprocess.run([bin_dir / "tidepool", "check", run], cwd=ROOT, capture_output=True, text=True, timeout=600)
            if checked.returncode != 0:
                raise RuntimeError("the journal does not pass its check:\n" + checked.stdout + checked.stderr)
            if args.to_the_end and code != 0:
                raise RuntimeError(f"the run ended with exit code {code}")
            emit(args, workers, found)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            log.seek(0)
            print(f"scale_bench: {workers} workers: {error}\n{log.read()[-3000:]}", file=sys.stderr)
            return False
        finally:
            for process in (controller, load):
                if process and process.poll() is None:
                    process.kill()
                    process.wait(20)
    return True


def emit(args, workers, found):
    begin, end = found["begin"], found["end"]
    diff = lambda key: end[key] - begin[key]
    seconds = diff("t_s")
    cpu, user = (diff("user_s") + diff("system_s")) / seconds, diff("user_s") / seconds
    machine, flags = processor()
    up, tokens = diff("messages_up"), diff("tokens")
    load = {key: round((end["load"][key] - begin["load"][key]) / seconds, 3) for key in ("user_s", "system_s")}
    print(json.dumps({
        "bench": "scale", "case": f"{workers} workers" + (", TLS" if args.tls else ""),
        "messages_per_s": round(up / seconds), "messages_down_per_s": round(diff("messages_down") / seconds), "tokens_per_s": round(tokens / seconds),
        "cpu": round(cpu, 3), "cpu_user": round(user, 3), "loop": round(diff("loop_s") / seconds, 3), "us_per_token": round(1e6 * cpu * seconds / tokens, 2),
        "us_per_message": round(1e6 * cpu * seconds / up, 1), "ms_per_worker_s": round(1e3 * cpu / workers, 3),
        "decision_ms": spread(begin["decisions"], end["decisions"]), "chunk_ms": end["chunk_ms"], "grade_ms": end["grade_ms"], "late_ms": end["late_ms"],
        "rss_mb": round(end["rss"] / 1e6, 1), "rss_mb_begin": round(begin["rss"] / 1e6, 1), "peak_mb": round(end["peak"] / 1e6, 1),
        "bytes_per_new_token": round((end["rss"] - begin["rss"]) / tokens, 1), "threads": end["threads"], "files": end["files"],
        "in_bytes_per_s": round(diff("in") / seconds), "out_bytes_per_s": round(diff("out") / seconds), "dialed_s": round(found["attached"]["dialed_s"], 2),
        "steps": diff("steps"), "rows": diff("rows"), "load_cpu": load, "load_threads": end["load"]["threads"], "refused": found.get("over", {}).get("refused"),
        "machine": machine, "cores": os.cpu_count(), "instruction_sets": [s for s in ("amx_bf16", "avx512f", "avx2", "vaes") if s in flags],
        "loadavg": os.getloadavg()[0], "commit": commit(),
        "config": {"step_ms": args.step_ms, "tokens": args.tokens, "tls": args.tls, "seconds": round(seconds, 1), "pinned": args.pin, "to_the_end": args.to_the_end}}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--workers", default="10,100,1000")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--step-ms", type=float, default=100)
    parser.add_argument("--tokens", type=int, default=256, help="of a sample, on average")
    parser.add_argument("--warm", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--to-the-end", action="store_true")
    parser.add_argument("--dir", help="where run directories are made")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the job")
    args = parser.parse_args()
    sys.exit(0 if all([measure(args, int(n)) for n in args.workers.split(",")]) else 1)


if __name__ == "__main__":
    main()
