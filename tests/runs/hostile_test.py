"""A grader and an environment that mean ill, with the token of their role, beside one that is honest: the run goes on, what
they do is named, and journal and payload are proven. hostile_worker.cc has what they do."""
import json
import pathlib
import signal
import subprocess
import sys
import unittest

from harness import BIN, ROOT, TIDEPOOL, WORKER, RunTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))
from prove import Run  # noqa: E402

DID = ("answers with a sample that is not there", "answers with a sample of no number, as wrong data", "answers with another one's sample",
       "answers with an attempt that was never made", "answers with twice", "answers with a reward that is no number",
       "answers with a megabyte of lines as the reason", "answers with what it could not read", "answers with more than was asked for", "never: ",
       "answers with a failure", "as another role", "says bytes that are no message", "says a message that is cut short",
       "says a message of 32 MiB: Received message larger than max", "flood of 300 connections")


class HostileTest(RunTest):
    def goes_on(self, role, devices, *job):
        """With an honest one at the first place of this role, and one that means ill at the second."""
        run = self.start(*job, "train.steps=1000000", "checkpoint.every_steps=20", "cluster.launch_workers=false", "eval.before_train=false", "eval.after_train=false")
        control = json.loads(self.wait_for(lambda: self.path("control.json").exists() and self.path("control.json").read_text(), what="control.json", process=run))
        for place, (program, whose) in enumerate([([WORKER, "run"], "device")] * devices + [([TIDEPOOL, role + "-worker"], role)]):
            self.started.append(subprocess.Popen([*program, "--connect", control["address"], "--run-id", control["run_id"], "--place", str(place), "--token-file",
                                                  str(self.path("security", whose + ".token"))], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        did = self.dir / "did"
        with open(did, "w") as out:
            hostile = subprocess.Popen([str(BIN / "hostile_worker"), role, str(self.path()), str(devices + 1), "1"], cwd=ROOT, stdout=out, stderr=out)
        self.started.append(hostile)
        # All of it, and once more what it began with.
        self.wait_for(lambda: all(words in did.read_text() for words in DID) and did.read_text().count(DID[0]) > 1, "all that it does", run)
        self.assertIsNone(hostile.poll())
        self.wait_step(max(self.metrics()) + 5, run)
        run.send_signal(signal.SIGTERM)
        out, err = self.finish(run)
        self.assertIn("stopped by a signal", out + err)
        self.assert_checked()
        taken = [m[name] for m in self.metrics().values() for name in ("timing_s/reward", "env/step_s", "env/reset_s") if name in m]
        self.assertTrue(taken)
        self.assertLess(max(taken), 1e6, "what nobody has asked for does not count")
        # Two moves alike with the same log-probabilities are no wonder where a game is played again and again.
        self.assertEqual([wrong for wrong in Run(self.path()).prove().wrong if not wrong.startswith("doubled")], [])
        log = self.path("logs", "controller.log")
        self.assertRegex(log.read_text(), rf"event=worker_refused text=\"the {role} worker at \S+ is thrown out for what it says: ")
        self.assertLess(max(len(line) for line in log.read_text().splitlines()), 20_000, "what it says is cut")
        return log.read_text()

    def test_a_run_goes_on_beside_a_grader_that_means_ill(self):
        said = self.goes_on("reward", 2, "configs/test/rl_split.yaml", "reward.workers=2",
                            'reward.functions=[{name: exact_answer, timeout_s: 2}, {name: "format:[ab]", timeout_s: 2}]')
        self.assertRegex(said, r"event=worker_lost worker=reward-1/inc\d+ text=\"worker reward-1: the controller ended it: ")
        self.assertRegex(said, r"event=reward_retry tid=\S+ worker=reward-1/inc\d+ text=\"sample \S+ is graded once more, its grader failed: ")
        self.assertNotIn("worker_lost worker=reward-0", said)

    def test_a_run_goes_on_beside_an_environment_that_means_ill(self):
        said = self.goes_on("environment", 1, "configs/test/rl_episodes.yaml", "environment.workers=2", "environment.step_timeout_s=2")
        self.assertRegex(said, r"event=worker_lost worker=environment-1/inc\d+ text=\"worker environment-1: the controller ended it: turn \d+ of sample \S+ did not end within its deadline")
        self.assertRegex(said, r"event=env_retry tid=\S+ worker=environment-1/inc\d+ text=\"turn \d+ of sample \S+ is played once more, its environment failed: ")
        self.assertNotIn("worker_lost worker=environment-0", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
