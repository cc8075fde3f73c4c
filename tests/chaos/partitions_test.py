"""Runs over four hosts whose network is cut, slow, lossy or one-way, and that are lost or frozen; journal and payload are proven.

Hosts are network namespaces on a switch of the test's own (network.py). One has the controller, three a `tidepool host` each:
one trains, the others generate, and graders and environments are spread over them. What goes wrong, where, when and for how
long is drawn from a seed. When the controller's host is lost, frozen or cut off, another host takes over. Afterwards every
sample is compared with an undisturbed run (prove.py).

    TIDEPOOL_PARTITIONS=100 python3 tests/chaos/partitions_test.py     # the nightly amount of schedules (default 10)
    TIDEPOOL_CHAOS_SEED=7 TIDEPOOL_CHAOS_ROUND=3                       # another seed; one schedule of it
"""
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest

import network
from chaos_run import COMMON, Follower
from harness import PATIENCE, ROOT, TIDEPOOL, RunTest
from prove import Run

SCHEDULES = int(os.environ.get("TIDEPOOL_PARTITIONS", "10"))
SEED = int(os.environ.get("TIDEPOOL_CHAOS_SEED", "1"))
ROUND = os.environ.get("TIDEPOOL_CHAOS_ROUND")
AT_A_TIME = 2
FAULTS = 5
HOSTS, DEVICES = 4, 3  # the last host has no place of its own
GOES_ON_S = 100  # after the last fault: a dead connection is noticed (10 s), a worker started again (up to 30 s later), a step made
# A record that opens a state in which something is under way.
STATES = ("T_BEGIN", "T_COMMIT", "STEP_BEGIN", "STEP_COMMIT", "PUBLISH", "LOADED", "CK_BEGIN", "START", "ENQ", "JOIN")
OPTIONS = ["train.steps=100000", "checkpoint.every_steps=10", "checkpoint.keep=1000000", "cluster.heartbeat_s=0.2", "cluster.launch_workers=false",
           "cluster.weight_transport=stream", f"cluster.slots={DEVICES}", "reward.workers=2"]
JOBS = {
    "split": ["configs/test/rl_split.yaml", "scheduler.placement=split"],
    "elastic": ["configs/test/rl_split.yaml", "scheduler.placement=elastic", "scheduler.actor_slots=2", "deterministic=false", "cluster.trusted_fabric=true"],
    "episodes": ["configs/test/rl_episodes.yaml", "scheduler.placement=split", "scheduler.max_lag_versions=1", "rollout.chunk_tokens=1", "rollout.max_new_tokens=64"],
}
NO_NETWORK = network.why_not()


class HostsRun:
    """Started by the constructor; `settle` and `end` in any case."""

    def __init__(self, test, name, job, options, rng):
        self.test, self.name, self.rng = test, name, rng
        self.network = network.Network(HOSTS, rng.random())
        self.lock = threading.Lock()
        self.timers, self.troubles, self.processes, self.others = [], [], [], []
        self.hosts = [None] * HOSTS  # `tidepool host` of each
        self.lost, self.frozen = set(), set()
        self.at, self.controller, self.follower = HOSTS - 1, None, None
        self.config, self.overrides = job[0], [*COMMON, *OPTIONS, *job[1:], *options]
        self.log = test.path("schedule.jsonl", run=name)

    def begin(self):
        self.controller = self.launch(self.at, "controller", [TIDEPOOL, "train", self.config, "--run-dir", str(self.test.path(run=self.name)), *self.overrides,
                                                             "cluster.bind=" + self.network.address(self.at)])
        self.test.wait_for(self.test.path("control.json", run=self.name).exists, "control.json", self.controller)
        for host in range(DEVICES):
            self.boot(host)
        self.follower = Follower(self.test.path(run=self.name))
        self.steps(1, PATIENCE, "at the start")

    def launch(self, host, what, command):
        with open(f"{self.test.path(run=self.name)}.{len(self.processes)}-{what}.log", "w") as log:
            process = subprocess.Popen(self.network.command(host, command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def boot(self, host):
        if host < DEVICES:
            self.hosts[host] = self.launch(host, f"host{host}", [TIDEPOOL, "host", str(self.test.path(run=self.name)), "--index", str(host)])

    def take_over(self, host):
        self.others.append(self.controller)
        self.at = host
        self.say(what="take-over", host=host)
        self.controller = self.launch(host, "controller", [TIDEPOOL, "train", str(self.test.path(run=self.name)), "--resume", "--take-over",
                                                           "cluster.bind=" + self.network.address(host)])

    def say(self, **fields):
        with open(self.log, "a") as log:
            log.write(json.dumps({"t": round(time.monotonic(), 3), "lsn": len(self.follower.records), **fields}) + "\n")

    def later(self, seconds, function):
        def act():
            with self.lock:
                function()
        timer = threading.Timer(seconds, act)
        timer.start()
        self.timers.append(timer)

    # --- what goes wrong ---

    def some(self):
        return set(self.rng.sample(range(HOSTS), self.rng.choice([1, 1, 2])))

    def seconds(self):
        """Below a permit, below the silence of a worker that is endured, and rarely beyond it."""
        return self.rng.choices([0.3, 1.0, 3.0, 7.0, 12.0], [3, 4, 4, 1, 1])[0]

    def disturb(self, paths, seconds, **how):
        self.say(paths=paths, seconds=seconds, **how)
        self.later(seconds, self.network.disturb(paths, **how))

    def partition(self):
        self.disturb(self.network.between(self.some()), self.seconds(), cut=True)

    def one_way_cut(self):
        some = self.some()
        if self.rng.random() < 0.5:
            some = set(range(HOSTS)) - some
        self.disturb(self.network.between(some, one_way=True), self.seconds(), cut=True)

    def cut_between_two(self):
        a, b = self.rng.sample(range(HOSTS), 2)
        self.disturb([(a, b), (b, a)] if self.rng.random() < 0.5 else [(a, b)], self.seconds(), cut=True)

    def flapping(self):
        paths = self.network.between(self.some())
        for i in range(6):
            self.later(0.5 * i, lambda: self.later(self.rng.choice([0.1, 0.4]), self.network.disturb(paths, cut=True)))
        self.say(paths=paths)

    def slow(self):
        how = self.rng.choice([{"delay_s": 0.02, "jitter_s": 0.02}, {"delay_s": 0.2}, {"bytes_per_s": 30_000}, {"delay_s": 0.05, "loss": 0.02}])
        self.disturb(self.network.between(self.some(), one_way=self.rng.random() < 0.5), 2 + self.seconds(), **how)

    def lossy(self):
        self.disturb(self.network.between(self.some(), one_way=self.rng.random() < 0.5), 1 + self.seconds(), loss=self.rng.choice([0.05, 0.3]))

    def lost_host(self):
        """It says no farewell: its packets are gone before its processes are."""
        host, seconds = self.rng.randrange(HOSTS), self.seconds()
        if host in self.lost:
            return
        self.say(host=host, seconds=seconds)
        heal = self.network.disturb(self.network.between({host}), cut=True)
        self.network.kill(host)
        self.lost.add(host)
        if self.at == host and self.rng.random() < 0.7:
            self.take_over(self.elsewhere())

        def back():
            heal()
            self.lost.discard(host)
            self.boot(host)
            if self.at == host:
                self.take_over(host)
        self.later(seconds, back)

    def frozen_host(self):
        host, seconds = self.rng.randrange(HOSTS), self.seconds()
        if host in self.lost | self.frozen:
            return
        self.say(host=host, seconds=seconds)
        self.frozen.add(host)
        self.network.signal(host, signal.SIGSTOP)
        if self.at == host and self.rng.random() < 0.5:
            self.take_over(self.elsewhere())

        def wake():
            self.frozen.discard(host)
            self.network.signal(host, signal.SIGCONT)
        self.later(seconds, wake)

    def controller_cut_off(self):
        """It lives, but none reaches it; another one takes over, and the first has to notice it by the run directory."""
        self.disturb(self.network.between({self.at}), 3.0, cut=True)
        self.take_over(self.elsewhere())

    def elsewhere(self):
        return self.rng.choice([h for h in range(HOSTS) if h not in self.lost | self.frozen | {self.at}] or [self.at])

    FAULTS = [(partition, 3), (one_way_cut, 3), (cut_between_two, 2), (flapping, 1), (slow, 2), (lossy, 2), (lost_host, 3), (frozen_host, 2), (controller_cut_off, 1)]

    def strike(self):
        for i in range(FAULTS):
            fault = self.rng.choices([f for f, _ in self.FAULTS], [n for _, n in self.FAULTS])[0]
            state, gap = self.rng.choice(STATES), 1.5 * self.rng.random()
            opened = self.follower.next(state, timeout=1.5)
            with self.lock:
                self.say(fault=i, what=fault.__name__, state=state if opened else "any")
                fault(self)
            time.sleep(gap)
            self.alive(f"after fault {i}, {fault.__name__}")

    # --- what has to be so ---

    def alive(self, when):
        with self.lock:
            if self.at not in self.lost and self.controller.poll() is not None:
                self.test.fail(f"{self.name}: the run ended by itself ({self.controller.returncode}) {when}\n{self.said(self.controller)}")
            for host, process in enumerate(self.hosts):
                if process is not None and host not in self.lost and process.poll() is not None:
                    self.test.fail(f"{self.name}: `tidepool host` {host} ended by itself ({process.returncode}) {when}\n{self.said(process)}")

    def said(self, process):
        number = self.processes.index(process)
        return "".join(p.read_text() for p in self.test.dir.glob(f"{self.name}.{number}-*.log"))[-3000:]

    def steps(self, more, timeout, when):
        before, end = self.follower.count("STEP_COMMIT"), time.monotonic() + timeout
        while self.follower.count("STEP_COMMIT") < before + more:
            self.alive(when)
            if time.monotonic() > end:
                self.test.fail(f"{self.name}: no {more} steps within {timeout} s {when}; status: {self.test.status(self.name)}")
            time.sleep(0.05)

    def settle(self):
        """All is well again: the run goes on, and ends in order; so do its hosts, and who lost it knows."""
        while any(t.is_alive() for t in self.timers):
            for timer in list(self.timers):  # a timer may set another one
                timer.join()
        healed = time.monotonic()
        self.steps(3, GOES_ON_S, "after the last fault")
        self.say(what="goes on", after_s=round(time.monotonic() - healed, 1))
        self.controller.send_signal(signal.SIGTERM)
        self.expect(self.controller, (0,))
        for host in filter(None, self.hosts):
            host.send_signal(signal.SIGTERM)
        for host in filter(None, self.hosts):
            self.expect(host, (0,))
        for other in self.others:
            self.expect(other, (4, -signal.SIGKILL, 128 + signal.SIGKILL))

    def expect(self, process, codes):
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.test.fail(f"{self.name}: does not end\n{self.said(process)}")
        if process.returncode not in codes:
            self.test.fail(f"{self.name}: exit code {process.returncode}\n{self.said(process)}")

    def end(self):
        for timer in self.timers:
            timer.cancel()
        if self.follower is not None:
            self.follower.close()
        for host in range(HOSTS):
            self.network.kill(host)
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE)
        self.network.close()


@unittest.skipIf(NO_NETWORK, NO_NETWORK)
class PartitionsTest(RunTest):
    def test_no_trouble_between_hosts_loses_or_changes_a_token(self):
        rng = random.Random(SEED)
        schedules = [(i, list(JOBS)[i % len(JOBS)], random.Random(rng.random())) for i in range(SCHEDULES)]
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            results = list(pool.map(lambda s: self.schedule(*s), (s for s in schedules if ROUND in (None, str(s[0])))))
        for job in JOBS:
            with self.subTest(job=job):
                self.compare(job, {name: run for name, run in results if run is not None and name.startswith(job)})
        self.assertEqual([name for name, run in results if run is None], [], f"failed, seed {SEED}; kept in {self.dir}")

    def test_hosts_that_are_far_apart_work_together(self):
        """0.4 s there and back: a worker's connection takes more than a second."""
        run = HostsRun(self, "far", JOBS["split"], ["cluster.heartbeat_s=0.5"], random.Random(SEED))
        try:
            run.network.disturb(run.network.paths, delay_s=0.2)
            run.begin()
            run.steps(2, PATIENCE, "far apart")
            run.settle()
        finally:
            run.end()
        self.assert_checked("far")

    def schedule(self, i, job, rng):
        name, begin = f"{job}-{i}", time.monotonic()
        options = [f"cluster.reattach_grace_s={rng.choice([0, 10])}"]
        run = HostsRun(self, name, JOBS[job], options, rng)
        try:
            run.begin()
            run.strike()
            run.settle()
            self.assert_checked(name)
            proven = Run(self.path(run=name)).prove()
            kinds = [r["kind"] for r in proven.records]
            print(f"seed {SEED} {name}: {FAULTS} faults in {time.monotonic() - begin:.0f} s, {kinds.count('FENCE')} workers given up, "
                  f"{proven.records[-1]['ctl_epoch']} lives, {kinds.count('STEP_COMMIT')} steps, {kinds.count('RESTORE')} restores", file=sys.stderr)
            return name, proven
        except BaseException:
            self.keep = True
            print(f"{name} (TIDEPOOL_CHAOS_SEED={SEED} TIDEPOOL_CHAOS_ROUND={i}) failed, kept in {self.path(run=name)}\n{traceback.format_exc()}", file=sys.stderr)
            return name, None
        finally:
            run.end()

    def compare(self, job, runs):
        if not runs:
            return
        groups = 1 + max(tid[0] for run in runs.values() for tid in run.payloads)
        config, *options = JOBS[job]
        alone = [o for o in options if not o.startswith(("scheduler.", "cluster."))]
        self.assert_done(self.train(config, *COMMON, *alone, "scheduler.placement=colocated", "scheduler.max_lag_versions=0", "scheduler.actor_slots=1", "cluster.slots=1",
                                    f"train.steps={(groups + 3) // 4}", "checkpoint.every_steps=0", run=job))
        like = Run(self.path(run=job)).prove()
        self.assertEqual(like.wrong, [])
        for name, run in runs.items():
            run.prove_like(like)
            print(f"{name}: {run.counts}", file=sys.stderr)
            self.keep = self.keep or bool(run.wrong)
            with self.subTest(run=name):
                self.assertEqual(run.wrong[:20], [], f"in {self.path(run=name)}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
