"""Real workers and controllers are killed, and stopped for a while, in the middle of what they do; the journal is proven afterwards.

The moment is not left to luck: the journal is followed while the run goes on, and the blow falls when the record comes that
opens a state (a transition, a grant, an optimizer step, a publication, a checkpoint). Afterwards the journal tells which
state each death fell into.

    TIDEPOOL_CHAOS_KILLS=200 python3 tests/chaos/chaos_test.py     # the nightly amount (default 20)
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runs"))
from harness import ROOT, RunTest, TIDEPOOL, kill  # noqa: E402

# State -> the record that opens it.
STATES = {"draining": "T_BEGIN", "granting": "T_COMMIT", "training": "STEP_BEGIN", "publishing": "STEP_COMMIT",
          "loading": "PUBLISH", "checkpointing": "CK_BEGIN", "generating": "START", "grading": "ENQ"}
KILLS = int(os.environ.get("TIDEPOOL_CHAOS_KILLS", "20"))
SEED = int(os.environ.get("TIDEPOOL_CHAOS_SEED", "1"))
DEATHS_OF_ONE_WORKER = 3  # of one life of a controller: more, and it is retired, as it should be
CONFIGS = {
    "multiplexed": ["scheduler.placement=multiplexed", "cluster.slots=3", "scheduler.actor_slots=2"],
    "elastic": ["scheduler.placement=elastic", "cluster.slots=3", "scheduler.actor_slots=2"],
    "split": ["scheduler.placement=split", "cluster.slots=2"],
}


class Follower:
    """Reads a journal while it is written."""

    def __init__(self, run):
        self.process = subprocess.Popen([TIDEPOOL, "journal", str(run), "--follow", "--json"], cwd=ROOT, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def wait(self, kind, after_ns, timeout):
        """The next record of this kind that is younger than `after_ns` on the controller's clock; None at the deadline."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if not line:
                return None
            record = json.loads(line)
            if record["kind"] == kind and record["mono_ns"] >= after_ns:
                return record
        return None

    def close(self):
        self.process.kill()
        self.process.communicate()


class ChaosTest(RunTest):
    def batter(self, name, kills, rng):
        args = ["configs/test/rl_split.yaml", *CONFIGS[name], "train.steps=100000", "checkpoint.every_steps=10",
                "checkpoint.recovery_every_steps=1", "eval.before_train=false", "eval.after_train=false"]
        run = self.start(*args, run=name)
        self.wait_step(2, run, run=name)
        started = time.monotonic()
        deaths, struck, stops = {}, 0, 0
        states = list(STATES)
        while struck < kills:
            self.assertLess(time.monotonic() - started, 60 + 15 * kills, f"{struck} of {kills} kills done; status: {self.status(name)}")
            if run.poll() is not None:
                out, err = run.communicate()
                self.fail(f"the run ended by itself ({run.returncode}) after {struck} kills\n{out}\n{err}")
            state = states[(struck + stops) % len(states)]
            follower = Follower(self.path(run=name))
            try:
                now_ns = int(self.status(name).get("elapsed_s", 0) * 1e9)
                record = follower.wait(STATES[state], now_ns, timeout=10)
            finally:
                follower.close()
            if record is None:  # the fleet is down to what cannot reach this state just now
                stops += 1
                continue
            workers = [w for w in self.status(name).get("workers", []) if w["pid"] > 0]
            roll = rng.random()
            if roll < 0.15:
                run.kill()
                run.communicate()
                deaths = {}
                struck += 1
                run = self.start(*args, "--resume", run=name)
                self.wait_for(lambda: self.path("control.json", run=name).exists(), 30, "a new controller", run)
                continue
            if not workers:
                continue
            victim = rng.choice(workers)
            if roll < 0.3:  # not dead: it stops for longer than its lease, or not, and comes back
                kill(victim["pid"], signal.SIGSTOP)
                time.sleep(rng.choice([0.2, 2.5]))
                kill(victim["pid"], signal.SIGCONT)
                stops += 1
                continue
            if deaths.get(victim["place"], 0) >= DEATHS_OF_ONE_WORKER:
                run.send_signal(signal.SIGTERM)  # enough of this life
                self.finish(run, timeout=40)
                deaths = {}
                run = self.start(*args, "--resume", run=name)
                self.wait_for(lambda: self.status(name).get("workers"), 30, "workers", run)
                continue
            if kill(victim["pid"]):
                deaths[victim["place"]] = deaths.get(victim["place"], 0) + 1
                struck += 1
        # It still works: a step that began after the last blow is committed.
        steps = self.status(name).get("step", 0)
        self.wait_for(lambda: self.status(name).get("step", 0) > steps + 1, 90, "steps after the last kill", run)
        run.send_signal(signal.SIGTERM)
        self.finish(run, timeout=40)
        self.assert_checked(name)
        return self.hits(name)

    def hits(self, name):
        """Into which state each death fell, by the journal."""
        hits = {}
        transitions, step, publishing, checkpointing, epoch = {}, False, False, False, None
        for r in self.journal(name):
            kind = r["kind"]
            death = kind == "FENCE" or (epoch is not None and r["ctl_epoch"] != epoch)
            epoch = r["ctl_epoch"]
            if death:
                for state, on in [("draining", any(not c for c in transitions.values())), ("granting", any(transitions.values())), ("training", step),
                                  ("publishing", publishing), ("checkpointing", checkpointing)]:
                    hits[state] = hits.get(state, 0) + on
                hits["deaths"] = hits.get("deaths", 0) + 1
            if kind == "T_BEGIN":
                transitions[r["t"]] = False
            elif kind == "T_COMMIT":
                transitions[r["t"]] = True
            elif kind in ("T_DONE", "T_ROLLED_BACK"):
                transitions.pop(r["t"], None)
                hits["rolled back"] = hits.get("rolled back", 0) + (kind == "T_ROLLED_BACK")
            elif kind == "STEP_BEGIN":
                step = True
            elif kind in ("STEP_COMMIT", "STEP_ABORT"):
                step, publishing = False, kind == "STEP_COMMIT"
            elif kind == "PUBLISH":
                publishing = False
            elif kind in ("CK_BEGIN", "CK_COMMIT"):
                checkpointing = kind == "CK_BEGIN"
        return hits

    def test_deaths_in_every_state_lose_nothing(self):
        rng = random.Random(SEED)
        total = {}
        names = list(CONFIGS)
        for i in range(max(1, (KILLS + 9) // 10)):
            name = names[i % len(names)]
            with self.subTest(round=i, placement=name):
                hits = self.batter(name, min(10, KILLS - 10 * i), random.Random(rng.random()))
                print(f"round {i} {name}: {hits}", file=sys.stderr)
                for state, count in hits.items():
                    total[state] = total.get(state, 0) + count
                # The next round of this placement is another run.
                self.path(run=name).rename(self.dir / f"{name}-{i}")
        print(f"all rounds: {total}", file=sys.stderr)
        # A death that the controller did not live to write down is not in the journal.
        self.assertGreaterEqual(total.get("deaths", 0), KILLS / 2)
        if KILLS >= 100:
            for states in [("training", "publishing"), ("draining", "granting"), ("checkpointing",)]:
                self.assertGreater(sum(total.get(s, 0) for s in states), 0, states)


if __name__ == "__main__":
    unittest.main(verbosity=2)
