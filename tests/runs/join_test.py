"""Workers that were started by hand join a run; a reward may be a server in another language."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, WORKER, RunTest, kill


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
        missed = self.wait_for(lambda: re.search(r"nobody is reward-0 .* start it with: (.*)\"\n", self.path("logs", "controller.log").read_text()),
                               "a word about who is missing", run)
        start(missed[1].split())
        self.assertIn(self.finish(run)[0].count("nobody is reward-0 "), (1, 2))  # again where the first one came so late that it was named, too
        self.assert_checked()
        for worker in self.started[1:]:
            worker.communicate(timeout=PATIENCE)
            self.assertEqual(worker.returncode, 0)

    def test_a_newcomer_stays_for_longer_than_its_certificate_holds(self):
        """Its certificate is made anew in mid-run, and so are those of the run; nothing stops for it, and what starts later takes the new one.
        (heartbeat_s: nobody starts workers again that a busy machine has given no turn for a while.)"""
        begun = time.monotonic()
        run = self.start("configs/test/rl_colocated.yaml", "cluster.launch_workers=false", "cluster.heartbeat_s=5", "train.steps=100000", "checkpoint.every_steps=100000",
                         "security.tls=true", "security.newcomers=true", "security.certificate_hours=0.01")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()),
                                what="control.json", process=run)

        def start(command, log):
            with open(self.dir / log, "w") as out:
                self.started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
            return self.started[-1]
        start([WORKER, "run", "--connect", control["address"], "--token-file", str(self.path("security", "device.token")), "--run-id", control["run_id"]],
              "device.log")
        away = self.dir / "away"
        self.assert_done(self.command("join-token", str(self.path()), str(self.dir / "join.json"), "--place", "1"))
        joined = self.command("join", str(self.dir / "join.json"), str(away))
        self.assert_done(joined)
        command = [str(pathlib.Path(TIDEPOOL).parent / joined.stdout.split()[0]), *joined.stdout.split()[1:]]
        newcomer = start(command, "reward.log")
        first, key = (away / "reward.crt").read_text(), (away / "reward.key").read_text()
        self.wait_for(lambda: "certificates_renewed" in (self.dir / "reward.log").read_text(), "a new certificate", run)
        self.assertNotEqual((away / "reward.crt").read_text(), first)
        self.assertNotEqual((away / "reward.key").read_text(), key)
        self.wait_for(lambda: "all roles have new certificates" in self.path("logs", "controller.log").read_text(), "an exchange of the run's", run)
        time.sleep(max(0, begun + 45 - time.monotonic()))  # the first ones hold for 36 s
        self.assertFalse([r for r in self.journal() if r["kind"] == "FAULT"], "what was connected is so still")
        for line in (self.dir / "reward.log").read_text().splitlines():
            if "certificates_not_renewed" in line:  # the connection was cut, as where the machine is busy
                self.assertRegex(line, "(CANCELLED|Deadline Exceeded|no controller is there).*; it is tried again")
        # Over a connection of its own: the new certificate, and authorities that were exchanged since it joined.
        newcomer.kill()
        start(command, "again.log")
        self.wait_for(lambda: sum(r["kind"] == "JOIN" for r in self.journal()) == 3, "the worker", run)
        self.wait_step(max(self.metrics()) + 2, run)
        self.assertIn("a newcomer has its certificate made anew", self.path("logs", "controller.log").read_text())
        run.send_signal(signal.SIGTERM)
        self.finish(run)

    def test_a_host_comes_with_a_join_token_alone(self):
        run = self.start("configs/test/rl_colocated.yaml", "cluster.launch_workers=false", "cluster.heartbeat_s=5", "train.steps=100000", "checkpoint.every_steps=100000",
                         "security.tls=true", "security.newcomers=true", "security.certificate_hours=0.1")  # who joins waits less long, then
        self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
        token, mine = self.dir / "join.json", self.dir / "host1"
        made = self.command("join-token", str(self.path()), str(token), "--place", "0", "--place", "1")
        self.assert_done(made)
        self.assertIn("for device-0, reward-0", made.stdout)
        several = self.command("join", str(token), str(self.dir / "none"))
        self.assertEqual(several.returncode, 2)
        self.assertIn("is for 2 places; `tidepool host DIR --join FILE` starts their workers", several.stderr)
        host = subprocess.Popen([TIDEPOOL, "host", str(mine), "--join", str(token)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(host)
        # What is lost is started again, with the identity that it had.
        self.wait_step(2, run)
        second = self.command("host", str(mine))
        self.assertEqual(second.returncode, 2, second.stderr)
        self.assertRegex(second.stderr, rf"host.lock: locked by a host that has joined, pid {host.pid}\b")
        first = (mine / "place-1" / "reward.crt").read_text()
        pids = subprocess.run(["pgrep", "-f", f"token-file={mine}/place-1/"], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(pids), 1)
        self.assertTrue(kill(int(pids[0])))
        self.wait_for(lambda: sum(r["kind"] == "JOIN" for r in self.journal()) == 3, "the worker again", run)
        self.wait_step(max(self.metrics()) + 2, run)
        run.send_signal(signal.SIGTERM)
        self.finish(run)
        _, said = host.communicate(timeout=PATIENCE)
        self.assertEqual(host.returncode, 0, said)
        self.assertIn("reward-0: ", said)
        self.assertIn("its workers have ended in order", said)
        self.assertFalse(token.exists())
        self.assertEqual((mine / "place-1" / "reward.crt").read_text(), first)
        self.assertFalse(list(mine.rglob("secret")), "the secret of the run stays where it is")
        # Its folder is enough to come back; here nobody is there any more.
        late = self.command("host", str(mine), "--patience", "1")
        self.assertEqual(late.returncode, 3)
        self.assertIn("no worker has reached the controller", late.stderr)

    def test_a_worker_without_the_right_token_does_not_join(self):
        run = self.start("configs/test/rl_colocated.yaml", "train.steps=3")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()),
                                what="control.json", process=run)
        fake = self.dir / "fake.token"
        fake.write_text("0" * 64)
        fake.chmod(0o600)
        stranger = subprocess.run([WORKER, "run", "--connect", control["address"], "--token-file", str(fake), "--run-id", control["run_id"]],
                                  capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(stranger.returncode, 0)
        self.finish(run)
        self.assert_checked()


if __name__ == "__main__":
    unittest.main(verbosity=2)
