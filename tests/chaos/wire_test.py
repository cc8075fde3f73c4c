"""Faults of wires at moments that were seen to go wrong, one after another in one run: what must come of each is stated.

    TIDEPOOL_WIRE_CASES=a_reset_wire python3 tests/chaos/wire_test.py    # some of them
"""
import os
import signal
import sys
import time
import unittest

from chaos_run import ChaosTestCase
from fleet import Worker

# Two engines, so that samples go on elsewhere; the times of a small model on one core, so that there is always a chunk under
# way; batches ahead, so that samples wait between their end and their step.
OPTIONS = ["scheduler.placement=split", "cluster.slots=3", "scheduler.max_lag_versions=3", "cluster.reattach_grace_s=15",
           "cluster.pace=configs/pace/small_cpu.yaml", "rollout.chunk_tokens=24"]


class Wires:
    def __init__(self, run):
        self.run, self.test, self.switch, self.fleet = run, run.test, run.switch, run.fleet

    def goes_on(self, when):
        self.run.steps(3, 60, when)

    def in_the_middle(self):
        """A worker some tokens into its chunks."""
        w = self.run.rollout_worker()
        time.sleep(0.05)
        return w

    def stays(self, w, pid):
        self.test.assertEqual((w.exits[-1:], w.process.pid), ([], pid), "the worker gave up")

    def frozen_while_its_wire_is_cut(self):
        """Its samples go on with another worker. What it offers when it is back must not take their place."""
        w = self.in_the_middle()
        self.fleet.signal(w, signal.SIGSTOP)
        self.switch.cut(w.name)
        time.sleep(0.6)
        self.fleet.signal(w, signal.SIGCONT)
        self.goes_on("after the freeze")

    def a_reset_wire(self):
        """Both sides know at once. The worker comes back, and generates: its chunks are not started in vain again and again."""
        w, follower = self.in_the_middle(), self.run.follower
        starts, ends = follower.count("START"), follower.count("ENQ")
        pid = w.process.pid
        self.switch.cut(w.name)
        since = len(follower.records)
        self.test.wait_for(lambda: self.finished(w, since), "the worker to end a sample", self.run.controller)
        self.goes_on("after the reset")
        self.stays(w, pid)
        self.test.assertLess(follower.count("START") - starts, 20 * (follower.count("ENQ") - ends) + 200)

    def finished(self, w, since):
        """A sample ended whose last chunk was this worker's."""
        last = {}
        for r in self.run.follower.records[since:]:
            if r["kind"] == "START":
                last[str(r["tid"])] = r["w"]
            elif r["kind"] == "END" and r["status"] == "ok" and last.get(str(r["tid"])) == w.place:
                return True
        return False

    def dials_before_the_end_of_its_old_connection_is_seen(self):
        """It is the same process, so it gets its place back."""
        w = self.in_the_middle()
        pid = w.process.pid
        self.switch.cut_near(w.name)
        self.goes_on("after the worker dialled anew")
        self.stays(w, pid)

    def a_dead_wire(self):
        """Nobody is told. Both sides find out by silence, and the worker dials again."""
        w = self.in_the_middle()
        pid, dials = w.process.pid, self.switch.ports[w.name].dials
        self.switch.swallow(w.name)
        self.test.wait_for(lambda: self.switch.ports[w.name].dials > dials, "the worker to dial again")
        self.goes_on("after the wire died")
        self.stays(w, pid)

    def a_refused_connection(self):
        """The controller closes it, also where the refused worker never hears of it: frozen before it has said its token, and after."""
        for greeted in (False, True):
            twin = Worker(f"twin-{greeted}", 1, "device")
            twin.address = self.switch.listen(twin.name, self.fleet.controller)
            self.fleet.launch(twin)
            self.test.wait_for(lambda: self.switch.open_connections(twin.name), "the second worker's connection")
            if greeted:
                self.switch.delay(twin.name, 1, ("down",))
                self.test.wait_for(lambda: self.switch.bytes(twin.name, "up") > 400, "the second worker's Hello")
            self.switch.hold(twin.name, ("down",))
            self.fleet.signal(twin, signal.SIGSTOP)
            try:
                self.test.wait_for(lambda: not self.switch.open_connections(twin.name), "the controller to close a connection that it refused")
            finally:
                self.fleet.signal(twin, signal.SIGKILL)
        self.goes_on("after a second worker for a place")

    CASES = [frozen_while_its_wire_is_cut, a_reset_wire, dials_before_the_end_of_its_old_connection_is_seen, a_dead_wire,
             a_refused_connection]


class WireTest(ChaosTestCase):
    def test_every_wire_is_found_out_and_no_token_is_lost_or_doubled(self):
        wanted = os.environ.get("TIDEPOOL_WIRE_CASES", "")
        cases = [c for c in Wires.CASES if not wanted or c.__name__ in wanted.split(",")]

        def strike(run):
            wires = Wires(run)
            for case in cases:
                begin = time.monotonic()
                print(case.__name__, end=" ", file=sys.stderr, flush=True)
                case(wires)
                print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
        self.assert_proven({"wires": self.batter("wires", 3, OPTIONS, strike)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
