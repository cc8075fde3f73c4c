"""Workers that were started by hand join a run; a reward may be a server in another language."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from harness import ROOT, TIDEPOOL, WORKER, RunTest


class JoinTest(RunTest):
    def test_workers_started_by_hand_join_a_run(self):
        run = self.start("configs/test/rl_colocated.yaml", "cluster.launch_workers=false", "train.steps=2")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()),
                                what="control.json", process=run)
        def start(command):
            self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        start([WORKER, "run", "--connect", control["address"], "--token-file", str(self.path("security", "device.token")),
               "--run-id", control["run_id"]])
        # Who does not come is named, with the command that starts it.
        missed = self.wait_for(lambda: re.search(r"nobody is (\S+) .* start it with: (.*)\"\n", self.path("logs", "controller.log").read_text()),
                               30, "a word about who is missing", run)
        self.assertEqual(missed[1], "reward-0")
        start(missed[2].split())
        self.assertEqual(self.finish(run)[0].count("nobody is "), 1)
        self.assert_checked()
        for worker in self.started[1:]:
            worker.communicate(timeout=10)
            self.assertEqual(worker.returncode, 0)

    def test_a_worker_without_the_right_token_does_not_join(self):
        run = self.start("configs/test/rl_colocated.yaml", "train.steps=3")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()),
                                what="control.json", process=run)
        fake = self.dir / "fake.token"
        fake.write_text("0" * 64)
        fake.chmod(0o600)
        stranger = subprocess.run([WORKER, "run", "--connect", control["address"], "--token-file", str(fake), "--run-id", control["run_id"]],
                                  capture_output=True, text=True, timeout=60)
        self.assertNotEqual(stranger.returncode, 0)
        self.finish(run)
        self.assert_checked()


if __name__ == "__main__":
    unittest.main(verbosity=2)
