"""What the whole-run tests share: start the real binaries, watch a run directory, look at what it left."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TIDEPOOL_BIN", ROOT / "build" / "bin"))
TIDEPOOL = str(BIN / "tidepool")
WORKER = str(BIN / "tidepool-worker")
# Seconds that a test waits for what has to happen, however much else the machine does. Only what hangs takes so long; a test
# that is about how soon something comes measures it.
PATIENCE = 300


class RunTest(unittest.TestCase):
    """A test with a folder of its own; whatever it started is ended with it."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-test-"))
        self.started = []
        self.keep = bool(os.environ.get("TIDEPOOL_KEEP_RUNS"))  # a test that fails may set it

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if self.keep:
            print("kept", self.dir, file=sys.stderr)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)

    def command(self, *args, timeout=PATIENCE, env=None):
        """Runs `tidepool ARGS` to its end."""
        return subprocess.run([TIDEPOOL, *args], cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(env or {})})

    def train(self, config, *args, run="run", timeout=PATIENCE):
        return self.command("train", config, "--run-dir", str(self.dir / run), *args, timeout=timeout)

    def start(self, config, *args, run="run"):
        """Starts `tidepool train` and returns at once."""
        process = subprocess.Popen([TIDEPOOL, "train", config, "--run-dir", str(self.dir / run), *args], cwd=ROOT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def assert_done(self, result, code=0):
        self.assertEqual(result.returncode, code, f"stdout:\n{result.stdout}\nstderr:\n{result.stderr}")

    def finish(self, process, code=0, timeout=PATIENCE):
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"still running after {timeout} s\nstdout:\n{out}\nstderr:\n{err}\nstatus:\n{self.status()}")
        self.assertEqual(process.returncode, code, f"stdout:\n{out}\nstderr:\n{err}")
        return out, err

    # --- what a run left ---
    def path(self, *parts, run="run"):
        return self.dir.joinpath(run, *parts)

    def status(self, run="run"):
        try:
            return json.loads(self.path("status.json", run=run).read_text())
        except (OSError, ValueError):
            return {}

    def metrics(self, run="run"):
        rows = {}
        for line in self.path("metrics.jsonl", run=run).read_text().splitlines():
            row = json.loads(line)
            rows.setdefault(row["step"], {}).update(row["metrics"])
        return rows

    def summary(self, run="run"):
        return json.loads(self.path("summary.json", run=run).read_text())

    def journal(self, run="run"):
        result = self.command("journal", str(self.path(run=run)), "--json")
        self.assert_done(result)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def digests(self, run="run"):
        """Digest of the weights after each step, the last life of a step counting."""
        return {r["step"]: r["digest"] for r in self.journal(run) if r["kind"] == "STEP_COMMIT"}

    def assert_checked(self, run="run"):
        result = self.command("check", str(self.path(run=run)))
        self.assert_done(result)

    # --- while it runs ---
    def wait_for(self, condition, what="the condition", process=None, timeout=PATIENCE):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            if process is not None and process.poll() is not None:
                out, err = process.communicate()
                self.fail(f"ended ({process.returncode}) before {what}\nstdout:\n{out}\nstderr:\n{err}")
            time.sleep(0.003)
        self.fail(f"waited {timeout} s for {what}; status: {self.status()}")

    def wait_step(self, step, process, run="run", timeout=PATIENCE):
        """Waits for a step's line in the metrics: it is there at once, while status.json is a picture of a moment ago."""
        def reached():
            try:
                lines = self.path("metrics.jsonl", run=run).read_text().splitlines()
                return max((json.loads(line)["step"] for line in lines), default=-1) >= step
            except (OSError, ValueError):  # not there yet, or a line that is being written
                return False
        self.wait_for(reached, f"step {step}", process, timeout)

    def workers(self, process, run="run"):
        """As status.json shows them: a picture of a moment ago, which may be of before they came."""
        return self.wait_for(lambda: self.status(run).get("workers"), what="workers in status.json", process=process)

    def kill_controller(self, process, run="run"):
        """Kills it, and waits until its workers have ended by themselves. It does nothing more from the call on."""
        process.send_signal(signal.SIGSTOP)
        workers = descendants(process.pid) + [w["pid"] for w in self.status(run).get("workers", []) if w["pid"] > 0]
        process.kill()
        process.communicate()
        end = time.monotonic() + PATIENCE
        while any(alive(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)

    def worker_pid(self, place, process, run="run"):
        """The process at a place; waits for a status that names it."""
        def pid():
            for worker in self.status(run).get("workers", []):
                if worker["place"] == place and worker["pid"] > 0:
                    return worker["pid"]
            return 0
        return self.wait_for(pid, f"a worker at place {place}", process)


def descendants(pid):
    """The processes that it started, and theirs."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, at = children.get(pid, []), 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False
