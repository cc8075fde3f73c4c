"""A run whose workers the test starts itself, each behind the switch; whoever ends is started again."""
import json
import signal
import subprocess
import threading
import time

from harness import ROOT, TIDEPOOL, WORKER, kill
from switch import Switch


class Worker:
    def __init__(self, name, place, kind):
        self.name, self.place, self.kind = name, place, kind
        self.process = None
        self.address = ""
        self.exits = []
        self.due = 0.0  # when it is started again


class Fleet:
    def __init__(self, test, run, devices, rewards=1):
        self.test, self.run = test, run
        self.switch = Switch()
        self.workers = [Worker(f"device-{i}", i, "device") for i in range(devices)]
        self.workers += [Worker(f"reward-{i}", devices + i, "reward") for i in range(rewards)]
        for w in self.workers:
            w.address = self.switch.listen(w.name, self.controller, weights=w.kind == "device")
        self.run_id = ""
        self.ending = False
        self.lock = threading.Lock()
        self.keeper = threading.Thread(target=self.keep, daemon=True)

    def control(self):
        try:
            return json.loads(self.test.path("control.json", run=self.run).read_text())
        except (OSError, ValueError):
            return None

    def controller(self):
        """Where the controller listens now: asked anew for each connection, so that the switch finds its successor."""
        control = self.control()
        if control is None:
            return None
        host, port = control["address"].rsplit(":", 1)
        return host, int(port)

    def begin(self, controller):
        control = self.test.wait_for(self.control, "control.json", controller)
        self.run_id = control["run_id"]
        self.keeper.start()

    def launch(self, w):
        token = self.test.path("security", f"{w.kind}.token", run=self.run)
        program = [WORKER, "run"] if w.kind == "device" else [TIDEPOOL, "reward-worker"]
        with open(self.test.path("logs", f"{w.name}.log", run=self.run), "ab") as log:
            w.process = subprocess.Popen([*program, "--connect", w.address, "--token-file", str(token), "--run-id", self.run_id,
                                          "--place", str(w.place)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.test.started.append(w.process)

    def keep(self):
        while not self.ending:
            with self.lock:
                for w in self.workers:
                    if w.process is not None and w.process.poll() is not None:
                        w.exits.append(w.process.returncode)
                        w.process, w.due = None, time.monotonic() + 1
                    if w.process is None and time.monotonic() >= w.due and not self.ending:
                        self.launch(w)
            time.sleep(0.2)

    def signal(self, w, number):
        with self.lock:
            return w.process is not None and w.process.poll() is None and kill(w.process.pid, number)

    def finish(self):
        """No worker is started again from here on."""
        self.ending = True
        self.keeper.join(timeout=10)

    def close(self):
        self.finish()
        for w in self.workers:
            if w.process is not None:
                kill(w.process.pid, signal.SIGCONT)
                w.process.kill()
        self.switch.close()
