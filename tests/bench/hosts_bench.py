#!/usr/bin/env python3
"""What goes between hosts, measured on hosts that are network namespaces with links of a stated speed.

    sudo tests/bench/hosts_bench.py --build build [--mbit 400] [--only weights,rows]

weights   seconds from the publication of a version to the last host's having it, 1 and 4 hosts that generate (one slot each, or
          --slots-per-host): a chain should take as long as one. Bytes that the trainer's host sent with four, over those with one, and
          bytes that each host of the chain sent, over those of the weights that the first of them pulled: no host should send more than
          1.1 times the weights.
newcomer  seconds from a newcomer's JOIN, in the middle of a run of two hosts, to its having weights, over twice the bytes that it
          pulled / the links' speed
changes   bytes and seconds of a pull of SmolLM2 (--model) by the second of two hosts: the first version, which comes whole, and the
          next ones, of which what changed comes; and the share of weights that a step changed, from its checkpoints
rows      bytes of rows that the 4 training slots of 2 hosts read, over the bytes of the rows of their batches: each row once. They are
          read in the run's directory, which the hosts share, so the links carry none of them; what the controller sends is lists of rows
lengths   the same bytes, measured, beside what a rectangle of the longest prompt and response would take at as many bytes a token, which
          is computed, where responses are about a fifth of the longest
tls       a step of SmolLM2 (--model), one slot that trains and one that generates, weights streamed, on loopback: encrypted over plain
hosts     a step of the quickstart, the same two slots on two hosts (encrypted, streamed) over one host (plain, shared memory, workers of
          the controller's own), and over one host that does as two would

One JSON object a line. Needs root (`ip netns`, `tc`). Every link between hosts is TLS. The last two take turns, --rounds times.
"""
import argparse
import gzip
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from provenance import commit, processor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# About 100 million parameters, which generate little: what is measured is their way.
MODEL = ["model.init.hidden_size=1024", "model.init.intermediate_size=4096", "model.init.layers=6", "model.init.heads=16", "model.init.kv_heads=4",
         "model.init.head_size=64", "model.dtype=bfloat16"]


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class Network:
    """Hosts on a switch; each may send and receive so many Mbit/s."""

    def __init__(self, hosts, mbit):
        self.names = [f"tpbench{os.getpid()}-{i}" for i in range(hosts)]
        self.switch = f"tpbench{os.getpid()}-s"
        self.hosts = hosts
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "sw", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "sw", "up")
        for i, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"p{i}", "netns", self.switch)
            run("ip", "-n", self.switch, "link", "set", f"p{i}", "master", "sw", "up")
            run("ip", "-n", name, "addr", "add", f"10.92.0.{i + 1}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            if mbit:
                for where, device in ((name, "wire"), (self.switch, f"p{i}")):
                    run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")

    def command(self, host, command):
        return ["nsenter", f"--net=/run/netns/{self.names[host]}", "unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *command]

    def sent(self, host):
        text = subprocess.run(["ip", "-n", self.names[host], "-s", "-j", "link", "show", "wire"], check=True, capture_output=True, text=True).stdout
        return json.loads(text)[0]["stats64"]["tx"]["bytes"]

    def close(self):
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Job:
    """A run whose controller is on host 0; `places`: the host of each slot."""

    def __init__(self, network, build, folder, places, overrides, config="configs/test/rl_split.yaml"):
        self.dir, self.network, self.processes = folder, network, []
        self.bin = ROOT / build / "bin"
        self.start(0, [self.bin / "tidepool", "train", config, "--run-dir", folder, "cluster.launch_workers=false", "cluster.bind=10.92.0.1",
                       "cluster.weight_transport=stream", "cluster.trusted_fabric=true", f"cluster.slots={len(places)}", *overrides])
        self.control = self.wait(lambda: (folder / "control.json").exists() and json.loads((folder / "control.json").read_text()), "control.json")
        for place, host in enumerate(places):
            if host is not None:  # else it comes later
                self.worker(host, place, "device")
        self.worker(0, len(places), "reward")

    def worker(self, host, place, role):
        program = [self.bin / "tidepool-worker", "run"] if role == "device" else [self.bin / "tidepool", "reward-worker"]
        self.start(host, [*program, "--connect", self.control["address"], "--run-id", self.control["run_id"], "--place", str(place), "--token-file",
                          self.dir / "security" / f"{role}.token", "--control-file", self.dir / "control.json"])

    def start(self, host, command):
        log = open(self.dir.with_suffix(f".{len(self.processes)}.log"), "w")
        self.processes.append(subprocess.Popen(self.network.command(host, list(map(str, command))), cwd=ROOT, stdout=log, stderr=log))

    def wait(self, what, name, seconds=300):
        end = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > end or self.processes[0].poll() not in (None, 0):
                sys.exit(f"{name} did not come; logs: {self.dir}.*.log\n" + self.dir.with_suffix(".0.log").read_text()[-2000:])
            time.sleep(0.05)
        return found

    def finish(self):
        if self.processes[0].wait(600) != 0:
            sys.exit("the run failed:\n" + self.dir.with_suffix(".0.log").read_text()[-2000:])

    def journal(self):
        out = subprocess.run([self.bin / "tidepool", "journal", str(self.dir), "--json"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def pulls(self, place):
        """Version, seconds and bytes of each pull of weights by the worker at this place."""
        with gzip.open(next(self.dir.glob(f"trace/device-{place}-*"))) as file:
            spans = [e for e in json.load(file)["traceEvents"] if e.get("name") == "pull"]
        return [(e["args"]["version"], e["dur"] / 1e6, e["args"]["bytes"]) for e in spans]

    def metrics(self):
        rows = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
        return [row.get("metrics", row) for row in rows]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(20)


class Bench:
    def __init__(self, args):
        self.args = args
        self.machine, flags = processor()
        self.sets = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]

    def emit(self, case, value, unit, ratio, goal, **config):
        print(json.dumps({"bench": "hosts", "case": case, "value": value, "unit": unit, "ratio": ratio, "goal": goal, "machine": self.machine,
                          "instruction_sets": self.sets, "commit": commit(), "config": {"mbit": self.args.mbit, **config}}), flush=True)

    def job(self, hosts, places, overrides, read, *config, meanwhile=lambda job: None):
        network = Network(hosts, self.args.mbit)
        with tempfile.TemporaryDirectory(prefix="hosts_bench") as folder:
            job = None
            try:
                job = Job(network, self.args.build, pathlib.Path(folder) / "run", places, overrides, *config)
                meanwhile(job)
                job.finish()
                return read(job, network)
            finally:
                if job:
                    job.close()
                network.close()

    def weights(self):
        def read(job, network):
            journal, seconds = job.journal(), []
            published = {}
            for r in journal:
                at = r["mono_ns"] / 1e9 if "mono_ns" in r else r["time_s"]
                if r["kind"] == "PUBLISH":
                    published[str(r["v"])] = [at, at]
                elif r["kind"] == "LOADED" and str(r["v"]) in published:
                    published[str(r["v"])][1] = at
            seconds = [to - at for at, to in published.values() if to > at]
            # What is sent beside weights (tokens and words to and from the controller) is in it.
            return seconds, [network.sent(host) for host in range(network.hosts)], sum(size for _, _, size in job.pulls(1))

        found = {}
        for hosts in (1, 4):
            places = [0] + [host + 1 for host in range(hosts) for _ in range(self.args.slots_per_host)]
            found[hosts] = self.job(hosts + 1, places, [*MODEL, f"train.steps={self.args.steps}", "eval.every_steps=0", "eval.before_train=false",
                                                        "eval.after_train=false", "scheduler.max_lag_versions=1", "checkpoint.every_steps=0"], read)
        one, four = (statistics.median(found[n][0]) for n in (1, 4))
        self.emit("publication to the last of 4 hosts, over 1", four, "s", four / one, 1.2, one_s=one, slots_per_host=self.args.slots_per_host,
                  all_s={n: found[n][0] for n in found})
        self.emit("bytes that the trainer's host sent with 4 hosts, over 1", found[4][1][0], "bytes", found[4][1][0] / found[1][1][0], 1.1)
        _, sent, pulled = found[4]
        self.emit("bytes that a host of the chain of 4 sent, the one with the most, over the weights pulled", max(sent), "bytes", max(sent) / pulled, 1.1,
                  pulled_bytes=pulled, each=[round(n / pulled, 3) for n in sent])

    def newcomer(self):
        def loaded(job):
            return next((r for r in job.journal() if r["kind"] == "LOADED" and r["slot"] == 2), None)

        def come(job):
            job.wait(lambda: any(r["kind"] == "STEP_COMMIT" for r in job.journal()), "the first step")
            job.worker(2, 2, "device")
            job.wait(lambda: loaded(job), "the newcomer's weights")

        def read(job, network):
            # The clock of the journal's records, which are ordered by it.
            at = lambda r: r["mono_ns"] / 1e9
            join = next(r for r in job.journal() if r["kind"] == "JOIN" and r["slots"] == [2])
            return at(loaded(job)) - at(join), job.pulls(2)[0], loaded(job)["v"]["number"]

        # A host that trains, one that generates; the newcomer is a third one.
        seconds, (_, pull_s, size), version = self.job(3, [0, 1, None], [*MODEL, f"train.steps={4 * self.args.steps}", "cluster.min_slots=2", *SAME,
                                                                         "scheduler.max_lag_versions=1"], read, meanwhile=come)
        bound = 2 * size * 8 / (self.args.mbit * 1e6) if self.args.mbit else None
        self.emit("a newcomer's JOIN to its having weights, over 2 x weights / bandwidth", seconds, "s", bound and seconds / bound, 1.0, pulled_bytes=size,
                  pull_s=pull_s, bound_s=bound, version=version, loadavg=os.getloadavg()[0])

    def changes(self):
        config = "configs/smollm2_products.yaml"

        def read(job, network):
            return (job.pulls(1),
                    [changed_share(job.dir, step, 2 if dtype == "bfloat16" else 4) for step in range(1, self.args.steps)], network.sent(0))

        for dtype, rate in (("bfloat16", "1e-6"), ("bfloat16", "1e-5"), ("float32", "1e-6")):
            (first, *later), shares, sent = self.job(2, [0, 1], [
                f"model.path={self.args.model}", f"model.dtype={dtype}", f"train.learning_rate={rate}", f"train.steps={self.args.steps}", *SPLIT,
                "eval.every_steps=0", "eval.before_train=false", "eval.after_train=false", "checkpoint.every_steps=1", f"checkpoint.keep={self.args.steps + 1}",
                "checkpoint.recovery_every_steps=0", "cluster.heartbeat_s=8"], read, config)  # also on a machine that others keep busy
            shared = {"dtype": dtype, "learning_rate": rate, "steps": self.args.steps, "changed_share": shares, "loadavg": os.getloadavg()[0]}
            for i, unit in ((1, "s"), (2, "bytes")):
                values = [pull[i] for pull in later]
                self.emit(f"pull of what changed over the whole, {dtype}, {rate}", statistics.median(values), unit, statistics.median(values) / first[i], None,
                          whole=first[i], all=values, **shared)
            self.emit(f"all that the trainer's host sent over as many whole versions, {dtype}, {rate}", sent, "bytes", sent / first[2] / (1 + len(later)), None, **shared)

    def read_rows(self, *overrides):
        """Of all batches of a run with 4 training slots on 2 hosts (and one that generates, on a third): bytes, and lengths."""
        rows = self.job(3, [0, 0, 1, 1, 2], ["scheduler.actor_slots=4", "train.steps=6", "rollout.max_new_tokens=1500", "rollout.chunk_tokens=1500",
                                             "model.init.max_position=2100", "train.micro_batch_tokens=8000", "train.groups_per_step=16", *SAME, *overrides],
                        lambda job, network: [r for r in job.metrics() if r.get("data_plane/batch_bytes", 0) > 0])
        sums = {key: sum(r["data_plane/" + key] for r in rows) for key in ("bytes", "read_bytes", "batch_bytes", "padded_bytes_avoided")}
        lengths = {name.replace("_length/", "_"): statistics.mean(r[name] for r in rows) for name in ("prompt_length/mean", "response_length/mean", "response_length/max")}
        return sums, {"steps": len(rows), **lengths}

    def rows(self):
        sums, lengths = self.read_rows("data.length=[200, 256]")
        self.emit("bytes of rows that 4 training slots on 2 hosts read, over those of their batches", sums["read_bytes"], "bytes",
                  sums["read_bytes"] / sums["batch_bytes"], 1.0, **lengths)
        self.emit("bytes that the controller sent them of batches, over those of their batches", sums["bytes"], "bytes", sums["bytes"] / sums["batch_bytes"], None)

    def lengths(self):
        # The longest of 512 rows is about five times the mean.
        sums, lengths = self.read_rows("train.groups_per_step=128", "train.steps=3")
        padded = sums["batch_bytes"] + sums["padded_bytes_avoided"]
        self.emit("bytes of rows read (measured), over a padded rectangle (computed)", sums["read_bytes"], "bytes", sums["read_bytes"] / padded, 0.2,
                  rectangle_bytes=padded, response_mean_over_max=lengths["response_mean"] / lengths["response_max"], **lengths)

    def alone(self, config, overrides):
        """Seconds of the steps of a run on this host, whose workers the controller starts."""
        with tempfile.TemporaryDirectory(prefix="hosts_bench") as folder:
            done = subprocess.run([ROOT / self.args.build / "bin" / "tidepool", "train", config, "--run-dir", f"{folder}/run", *overrides], cwd=ROOT, capture_output=True,
                                  text=True, timeout=600)
            if done.returncode != 0:
                sys.exit("the run failed:\n" + done.stdout[-1000:] + done.stderr[-1000:])
            return step_seconds(pathlib.Path(folder) / "run")

    def by_turns(self, case, goal, one, other, **config):
        """Two ways to make the same steps; the first steps of a run, in which everything is new, do not count."""
        found = ([], [])
        for _ in range(self.args.rounds):
            for steps, way in zip(found, (one, other)):
                steps += way()[self.args.skip:]
        medians = [statistics.median(steps) for steps in found]
        self.emit(case, medians[1], "s", medians[1] / medians[0], goal, beside_s=medians[0], steps=len(found[0]), rounds=self.args.rounds,
                  spread_s=[[round(q, 4) for q in statistics.quantiles(steps, n=4)[::2]] for steps in found], loadavg=os.getloadavg()[0], **config)

    def tls(self):
        config = "configs/smollm2_products.yaml"
        overrides = [f"model.path={self.args.model}", *SAME, *SPLIT, "cluster.weight_transport=stream", f"train.steps={self.args.steps}"]
        way = lambda on: lambda: self.alone(config, [*overrides, f"security.tls={on}"])
        self.by_turns("step of SmolLM2, encrypted over plain", 1.05, way("false"), way("true"), mbit=0, config=config)

    def two_hosts(self):
        config = "configs/quickstart.yaml"
        overrides = [*SAME, *SPLIT, "model.init.warm_start=", f"train.steps={self.args.steps}"]
        on = lambda places: lambda: self.job(max(places) + 1, places, overrides, lambda job, network: step_seconds(job.dir), config)
        self.by_turns("step of the quickstart, two hosts over one", 1.15, lambda: self.alone(config, overrides), on([0, 1]), config=config)
        # As between hosts, what is decided is on the disk before it is done, and all that is said is encrypted.
        self.by_turns("the same, over one host whose workers are started by hand", None, on([0, 0]), on([0, 1]), config=config)


SAME = ["eval.every_steps=0", "eval.before_train=false", "eval.after_train=false", "checkpoint.every_steps=0", "checkpoint.recovery_every_steps=0"]
SPLIT = ["scheduler.placement=split", "scheduler.actor_slots=1", "cluster.slots=2", "cluster.threads_per_slot=1"]


def changed_share(run, step, word_bytes):
    """Of the weights after `step`, those that are others after the next one."""
    one, other = (open(run / f"checkpoints/step_{n}/model/model.safetensors", "rb") for n in (step, step + 1))
    changed = words = 0
    with one, other:
        while a := one.read(1 << 24):
            differ = (int.from_bytes(a, "little") ^ int.from_bytes(other.read(1 << 24), "little")).to_bytes(len(a), "little")
            planes = [int.from_bytes(differ[i::word_bytes], "little") for i in range(word_bytes)]
            words += len(differ) // word_bytes
            changed += len(differ) // word_bytes - (planes[0] | planes[1] | (planes[2] | planes[3] if word_bytes == 4 else 0)).to_bytes(len(differ) // word_bytes + 1, "little").count(0) + 1
    return changed / words


def step_seconds(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["metrics"]["timing_s/step"] for row in rows if "timing_s/step" in row["metrics"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--mbit", type=int, default=400, help="of each host's link in each direction; 0: no limit")
    parser.add_argument("--slots-per-host", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", type=int, default=1)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--only", default="weights,newcomer,rows,lengths,hosts", help="and changes and tls, which need --model")
    args = parser.parse_args()
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc", "nsenter")):
        sys.exit("hosts_bench: needs root, ip, tc and nsenter (iproute2, util-linux)")
    for part in args.only.split(","):
        {"weights": Bench(args).weights, "newcomer": Bench(args).newcomer, "changes": Bench(args).changes, "rows": Bench(args).rows, "lengths": Bench(args).lengths, "tls": Bench(args).tls, "hosts": Bench(args).two_hosts}[part]()


if __name__ == "__main__":
    main()
