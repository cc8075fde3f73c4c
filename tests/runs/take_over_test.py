"""A run that another controller takes over, or tries to: which of them has it, and when the other one ends."""
import signal
import socket
import subprocess
import time
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest

CONFIG = "configs/test/rl_split.yaml"


class TakeOverTest(RunTest):
    def take_over(self, *overrides):
        return self.start(str(self.path()), "--resume", "--take-over", *overrides)

    def test_one_that_is_refused_leaves_the_run_alone(self):
        first = self.start(CONFIG, "train.steps=100000", "checkpoint.every_steps=100000")
        self.wait_step(1, first)
        model = {path: path.stat().st_mtime_ns for path in self.path("model").iterdir()}
        self.assertTrue(model)
        (self.dir / "nothing").mkdir()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for says, *wrong in (("cluster.port", f"cluster.port={port}"),
                                 ("observe.metrics_port", "observe.metrics_bind=127.0.0.1", f"observe.metrics_port={port}"),
                                 ("authority.crt", "security.tls=true", "--certificates", str(self.dir / "nothing"))):
                _, err = self.finish(self.take_over(*wrong), 2)
                self.assertIn(says, err)
                self.wait_step(max(self.metrics()) + 2, first)
        self.assertFalse(self.path("security", "authority.crt").exists())
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.path("model").iterdir()}, model)
        first.send_signal(signal.SIGTERM)
        self.finish(first)
        self.assert_checked()

    def test_who_has_taken_over_has_the_lock_and_an_idle_one_that_was_taken_over_ends(self):
        def waits(process):
            """It has begun, and waits for workers that nobody starts."""
            control = self.path("control.json")
            self.wait_for(lambda: control.exists() and f'"pid": {process.pid}' in control.read_text(), "control.json", process)

        def refused():
            third = subprocess.run([TIDEPOOL, "train", str(self.path()), "--resume"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(third.returncode, 2, third.stdout + third.stderr)
            self.assertIn(f"locked by controller pid {second.pid} ", third.stderr)
            self.assertIn("--take-over", third.stderr)

        first = self.start(CONFIG, "cluster.launch_workers=false", "cluster.start_timeout_s=600")
        waits(first)
        first.send_signal(signal.SIGSTOP)
        second = self.take_over()
        waits(second)
        refused()
        first.kill()
        first.communicate()
        refused()
        third = self.take_over()
        waits(third)
        since = time.monotonic()
        _, err = self.finish(second, 4)
        self.assertLess(time.monotonic() - since, 60, "it looks whether it still has the run")
        self.assertIn("another controller has claimed it", err)
        self.assertIsNone(third.poll())


if __name__ == "__main__":
    unittest.main()
