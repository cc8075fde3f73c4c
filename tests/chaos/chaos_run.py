"""A run behind the switch whose weights do not move, so that its samples can be compared with those of an undisturbed run."""
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runs"))
from fleet import Fleet  # noqa: E402
from harness import ROOT, RunTest, TIDEPOOL  # noqa: E402
from prove import Run  # noqa: E402

# Weights move so little that no token changes, but every step's digest does.
COMMON = ["deterministic=true", "train.learning_rate=1e-11", "rollout.max_new_tokens=24", "rollout.chunk_tokens=5", "cluster.threads_per_slot=1",
          "eval.before_train=false", "eval.after_train=false", "observe.samples_per_step=-1"]
# Every checkpoint is kept, and so is every payload file: what no checkpoint needs is pruned, and is not provable then.
CHAOS = ["train.steps=100000", "checkpoint.every_steps=10", "checkpoint.keep=1000000", "checkpoint.recovery_every_steps=1", "cluster.heartbeat_s=0.2", "cluster.launch_workers=false"]
PERMIT_S = 0.6  # three heartbeats


class Follower:
    """Reads a journal while it is written."""

    def __init__(self, run):
        self.run, self.changed = run, threading.Condition()
        self.records, self.closed, self.process = [], False, None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while not self.closed:
            self.process = subprocess.Popen([TIDEPOOL, "journal", str(self.run), "--follow", "--json", "--from", str(len(self.records))],
                                            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in self.process.stdout:
                if not line.endswith("\n"):
                    break  # cut off where the process was killed
                with self.changed:
                    self.records.append(json.loads(line))
                    self.changed.notify_all()
            self.process.communicate()
            time.sleep(0.05)

    def next(self, kind, timeout):
        """The next record of this kind; None at the deadline."""
        with self.changed:
            seen, end = len(self.records), time.monotonic() + timeout
            while True:
                for r in self.records[seen:]:
                    if r["kind"] == kind:
                        return r
                seen = len(self.records)
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(left)

    def count(self, kind, **fields):
        with self.changed:
            return sum(r["kind"] == kind and all(r[f] == v for f, v in fields.items()) for r in self.records)

    def losses(self):
        """How often each worker was given up by the controller that lives now."""
        out = {}
        with self.changed:
            for r in reversed(self.records):
                if r["ctl_epoch"] != self.records[-1]["ctl_epoch"]:
                    break
                if r["kind"] == "FENCE":
                    out[r["w"]] = out.get(r["w"], 0) + 1
        return out

    def close(self):
        self.closed = True
        if self.process is not None:
            self.process.kill()
        self.thread.join(timeout=10)


class ChaosRun:
    """Started by the constructor; `settle` and `end` in any case."""

    def __init__(self, test, name, devices, options):
        self.test, self.name = test, name
        self.args = ["configs/test/rl_split.yaml", *COMMON, *CHAOS, *options]
        self.undo = []  # timers
        self.controller = test.start(*self.args, run=name)
        self.fleet = Fleet(test, name, devices)
        self.switch = self.fleet.switch
        self.fleet.begin(self.controller)
        self.follower = Follower(test.path(run=name))

    def worker(self, name):
        return next(w for w in self.fleet.workers if w.name == name)

    def rollout_worker(self):
        """A device that generates now."""
        record = self.follower.next("START", 60)
        self.test.assertIsNotNone(record, "nothing is generated")
        return next(w for w in self.fleet.workers if w.place == record["w"])

    def later(self, seconds, function):
        timer = threading.Timer(seconds, function)
        timer.start()
        self.undo.append(timer)

    def kill_controller(self):
        self.controller.kill()
        self.controller.communicate()
        # It could not remove it: nobody is there until its successor writes its own.
        self.test.path("control.json", run=self.name).unlink(missing_ok=True)

    def resume(self):
        self.controller = self.test.start(*self.args, "--resume", run=self.name)
        self.test.wait_for(self.fleet.control, "a new controller", self.controller)

    def restart_in_order(self):
        self.controller.send_signal(signal.SIGTERM)
        self.test.finish(self.controller)
        self.resume()

    def alive(self, when):
        if self.controller.poll() is not None:
            out, err = self.controller.communicate()
            self.test.fail(f"the run ended by itself ({self.controller.returncode}) {when}\n{out}\n{err}")

    def steps(self, more, timeout, when):
        """Waits for so many more optimizer steps."""
        steps = self.follower.count("STEP_COMMIT")
        self.test.wait_for(lambda: self.follower.count("STEP_COMMIT") >= steps + more, f"{more} steps {when}", self.controller, timeout)

    def settle(self):
        """Nothing is disturbed any more: the run goes on, and ends in order."""
        for timer in self.undo:
            timer.join()
        for name in list(self.switch.ports):
            self.switch.heal(name)
        self.steps(3, 180, "after the last fault")
        self.fleet.finish()
        self.controller.send_signal(signal.SIGTERM)
        self.test.finish(self.controller)
        end = time.monotonic() + 5  # one that had no connection just then looks for the controller for longer
        for w in self.fleet.workers:
            if w.process is None:  # it had just ended when the fleet stopped starting workers again
                continue
            try:
                w.process.wait(timeout=max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass

    def end(self):
        for timer in self.undo:
            timer.cancel()
        self.follower.close()
        self.fleet.close()

    def show(self):
        """What a failure is looked into with."""
        self.test.keep = True
        print(f"{self.name}: failed, kept in {self.test.path(run=self.name)}; its last events:", file=sys.stderr)
        for r in self.follower.records[-25:]:
            print("  " + json.dumps(r)[:240], file=sys.stderr)


class ChaosTestCase(RunTest):
    def batter(self, name, devices, options, strike):
        """A run from its start to its end, with what `strike` does to it; proven but for `like`."""
        run = ChaosRun(self, name, devices, options)
        try:
            run.steps(1, 300, "at the start")
            strike(run)
            run.settle()
        except BaseException:
            run.show()
            raise
        finally:
            run.end()
        self.assert_checked(name)
        return Run(self.path(run=name)).prove()

    def assert_proven(self, runs):
        """`runs`: by name. Compares each with a run that nothing happened to."""
        groups = 1 + max(tid[0] for run in runs.values() for tid in run.payloads)
        args = ["configs/test/rl_colocated.yaml", *COMMON, f"train.steps={(groups + 3) // 4}", "checkpoint.every_steps=0"]
        self.assert_done(self.train(*args, run="undisturbed"))
        like = Run(self.path(run="undisturbed")).prove()
        self.assertEqual(like.wrong, [])
        for name, run in runs.items():
            with self.subTest(proven=name):
                run.prove_like(like)
                self.keep = self.keep or bool(run.wrong)
                self.assertEqual(run.wrong[:20], [], f"in {self.path(run=name)}")
                print(f"{name}: {run.counts}", file=sys.stderr)
