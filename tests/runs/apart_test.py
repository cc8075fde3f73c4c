"""Quickstart and the agentic demo over four hosts, each of which has one kind of work: the controller; who trains; who
generates; graders and environments. They learn what they learn on one host.

Hosts are network namespaces on a switch of the test's own (tests/chaos/network.py). Runs are deterministic, so that the
weights after each step are the same, bit for bit. `make test` has a few steps of each; with TIDEPOOL_APART=whole (each
night) they are the whole jobs, and have to have learned. Needs root, for the namespaces; without it skipped.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from harness import ROOT, TIDEPOOL, WORKER, RunTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))
import network  # noqa: E402

WHOLE = os.environ.get("TIDEPOOL_APART") == "whole"
NOT_HERE = network.why_not()
CONTROLLER, TRAINS, GENERATES, PLAYS = range(4)
DEVICE, REWARD, ENVIRONMENT = ([WORKER, "run"], "device"), ([TIDEPOOL, "reward-worker"], "reward"), ([TIDEPOOL, "environment-worker"], "environment")
PATIENCE_S = 3000 if WHOLE else 400  # of a run


@unittest.skipIf(NOT_HERE, NOT_HERE)
class ApartTest(RunTest):
    def setUp(self):
        super().setUp()
        self.net = network.Network(4)
        self.addCleanup(self.net.close)
        self.addCleanup(lambda: [self.net.kill(host) for host in range(4)])

    def launch(self, host, command):
        process = subprocess.Popen(self.net.command(host, command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run_apart(self, config, *overrides, places):
        """`places`: what is at each place, and on which host."""
        controller = self.launch(CONTROLLER, [TIDEPOOL, "train", config, "--run-dir", str(self.path()), *overrides, "cluster.launch_workers=false",
                                              "cluster.bind=" + self.net.address(CONTROLLER), "cluster.weight_transport=stream", "cluster.trusted_fabric=true"])
        # A warm start comes first, on the controller's host.
        control = json.loads(self.wait_for(lambda: self.path("control.json").exists() and self.path("control.json").read_text(), "control.json", controller))
        workers = []
        for place, ((program, role), host) in enumerate(places):
            workers.append(self.launch(host, [*program, "--connect", control["address"], "--run-id", control["run_id"], "--place", str(place), "--token-file",
                                              str(self.path("security", role + ".token")), "--control-file", str(self.path("control.json"))]))
        self.finish(controller, timeout=PATIENCE_S)
        for worker in workers:
            self.finish(worker)
        self.assert_checked()

    def assert_as_on_one_host(self, config, *overrides):
        self.assert_done(self.train(config, *overrides, run="alone", timeout=PATIENCE_S))
        apart, alone = self.digests(), self.digests("alone")
        self.assertEqual(apart, alone)
        self.assertGreater(len(set(apart.values())), 1, "no step has changed a weight")
        self.assertEqual(self.summary()["accuracy"], self.summary("alone")["accuracy"])

    def test_quickstart(self):
        job = ["configs/quickstart.yaml", "scheduler.placement=split", "cluster.slots=2", "cluster.threads_per_slot=1", "deterministic=true"]
        if not WHOLE:
            # Without its warm start, and with a reward that is worth something from the first step on.
            (self.dir / "short.yaml").write_text(f"extends: {ROOT}/configs/quickstart.yaml\nmodel: {{init: {{warm_start: ''}}}}\n"
                                                 "reward: {functions: [{name: exact_answer}, {name: 'format:[abcd]'}]}\n")
            job = [str(self.dir / "short.yaml"), *job[1:], "train.steps=3", "eval.every_steps=0", "eval.samples=16"]
        self.run_apart(*job, places=[(DEVICE, TRAINS), (DEVICE, GENERATES), (REWARD, PLAYS)])
        if WHOLE:  # as runs_quickstart has it
            accuracy = self.summary()["accuracy"]
            self.assertGreaterEqual(accuracy["before"], 0.10)
            self.assertLess(accuracy["before"], 0.35)
            self.assertGreater(accuracy["after"], 0.90)
        self.assert_as_on_one_host(*job)

    def test_the_agentic_demo(self):
        job = ["configs/multiplexed_demo.yaml", "deterministic=true", "scheduler.max_lag_versions=0"]
        if not WHOLE:
            job += ["train.steps=3", "train.groups_per_step=4", "environment.latency={median_s: 0.001, tail: 1.3, max_s: 0.1}", "eval.samples=4", "eval.every_steps=0"]
        # Two slots train and generate in turns, the other two generate alone.
        self.run_apart(*job, places=[(DEVICE, TRAINS), (DEVICE, TRAINS), (DEVICE, GENERATES), (DEVICE, GENERATES), (ENVIRONMENT, PLAYS)])
        if WHOLE:
            rewards = [m["critic/score/mean"] for _, m in sorted(self.metrics().items()) if "critic/score/mean" in m]
            self.assertLess(sum(rewards[:10]) / 10, 0.1)
            self.assertGreater(sum(rewards[-10:]) / 10, 0.3)
        self.assert_as_on_one_host(*job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
