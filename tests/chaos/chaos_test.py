"""Real processes and real wires are killed, cut, held up and paused in the middle of what they do; journal and payload are proven.

Workers reach the controller through a switch (switch.py). What strikes, whom, when and for how long is drawn from a seed; the
moment is that of the journal's record which opens a state: a transition, a grant, an optimizer step, a publication, a load, a
checkpoint. Afterwards every sample is compared with an undisturbed run (prove.py).

    TIDEPOOL_CHAOS_FAULTS=200 python3 tests/chaos/chaos_test.py     # the nightly amount (default 20)
    TIDEPOOL_CHAOS_SEED=7 TIDEPOOL_CHAOS_ROUND=3                    # another seed; one round of it
"""
import json
import os
import random
import signal
import sys
import time
import unittest

from chaos_run import PERMIT_S, ChaosTestCase

FAULTS = int(os.environ.get("TIDEPOOL_CHAOS_FAULTS", "20"))
SEED = int(os.environ.get("TIDEPOOL_CHAOS_SEED", "1"))
ROUND = os.environ.get("TIDEPOOL_CHAOS_ROUND")
PER_ROUND = 10
LOSSES_OF_ONE_WORKER = 3  # in one life of a controller: more, and it is retired, as it should be
# State -> the record that opens it.
STATES = {"draining": "T_BEGIN", "granting": "T_COMMIT", "training": "STEP_BEGIN", "publishing": "STEP_COMMIT", "loading": "PUBLISH",
          "loaded": "LOADED", "checkpointing": "CK_BEGIN", "generating": "START", "grading": "ENQ", "joining": "JOIN"}
# Devices, options.
ROUNDS = {
    "split": (2, ["scheduler.placement=split", "cluster.slots=2", "cluster.weight_transport=stream"]),
    "elastic": (3, ["deterministic=false", "scheduler.placement=elastic", "cluster.slots=3", "scheduler.actor_slots=2"]),
    "multiplexed": (3, ["scheduler.placement=multiplexed", "cluster.slots=3", "scheduler.actor_slots=2"]),
}


class Chaos:
    """The faults of one run."""

    def __init__(self, run, rng):
        self.run, self.rng = run, rng
        self.switch, self.fleet, self.follower = run.switch, run.fleet, run.follower
        self.log = run.test.path("chaos.jsonl", run=run.name)

    def say(self, **fields):
        with open(self.log, "a") as log:
            log.write(json.dumps({"t": round(time.monotonic(), 3), "lsn": len(self.follower.records), **fields}) + "\n")

    def directions(self):
        return self.rng.choice([("up",), ("down",), ("up", "down")])

    def kill_worker(self, w):
        self.fleet.signal(w, signal.SIGKILL)

    def kill_controller(self, _):
        self.run.kill_controller()
        time.sleep(self.rng.choice([0, 0.5]))
        self.run.resume()

    def pause(self, w, seconds):
        self.fleet.signal(w, signal.SIGSTOP)
        self.run.later(seconds, lambda: self.fleet.signal(w, signal.SIGCONT))

    def pause_within_the_permit(self, w):
        self.pause(w, self.rng.choice([0.2, 0.7]) * PERMIT_S)

    def pause_beyond_the_permit(self, w):
        self.pause(w, 2.5 * PERMIT_S)

    def pause_until_given_up(self, w):
        self.pause(w, 11)  # a worker is dead after ten seconds of silence

    def pause_controller(self, _):
        self.run.controller.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.choice([0.5, 3]) * PERMIT_S)
        self.run.controller.send_signal(signal.SIGCONT)

    def freeze_and_cut(self, w):
        self.fleet.signal(w, signal.SIGSTOP)
        self.switch.cut(w.name)
        self.run.later(0.6, lambda: self.fleet.signal(w, signal.SIGCONT))

    def reset(self, w):
        self.switch.cut(w.name)

    def close(self, w):
        self.switch.cut(w.name, reset=False)

    def reset_for_the_worker_alone(self, w):
        self.switch.cut_near(w.name)

    def reset_all(self, _):
        for w in self.fleet.workers:
            self.switch.cut(w.name)

    def reset_and_refuse(self, w):
        self.switch.refuse(w.name, self.rng.choice(["reset", "silent"]))
        self.switch.cut(w.name)
        self.run.later(self.rng.choice([0.3, 2.0]), lambda: self.switch.heal(w.name))

    def half_open(self, w):
        self.switch.swallow(w.name, self.directions())
        self.run.later(self.rng.choice([0.5, 2.0]), lambda: self.switch.cut(w.name))

    def hold(self, w):
        """As in a network that sends again what was lost."""
        self.switch.hold(w.name, self.directions())
        self.run.later(self.rng.choice([0.5, 1.5, 5]) * PERMIT_S, lambda: self.switch.heal(w.name))

    def slow(self, w):
        self.switch.delay(w.name, self.rng.choice([0.01, 0.1]))
        self.run.later(2, lambda: self.switch.heal(w.name))

    def weights(self, w):
        name = w.name + "/weights"
        if name not in self.switch.ports:
            return self.reset(w)
        how = self.rng.choice(["cut", "hold", "refuse"])
        self.say(how=how)
        if how == "hold":
            self.switch.hold(name)
        elif how == "refuse":
            self.switch.refuse(name)
        if how != "hold":
            self.switch.cut(name)
        self.run.later(1, lambda: self.switch.heal(name))

    FAULTS = [(kill_worker, 3), (kill_controller, 2), (pause_within_the_permit, 2), (pause_beyond_the_permit, 1), (pause_until_given_up, 0.3),
              (pause_controller, 1), (freeze_and_cut, 2), (reset, 2), (close, 1), (reset_for_the_worker_alone, 1), (reset_all, 0.5),
              (reset_and_refuse, 1), (half_open, 2), (hold, 2), (slow, 1), (weights, 1)]

    def strike(self, faults):
        states = list(STATES)
        self.rng.shuffle(states)
        for i in range(faults):
            self.run.alive(f"after {i} faults")
            if max(self.follower.losses().values(), default=0) >= LOSSES_OF_ONE_WORKER:
                self.say(what="SIGTERM and --resume")  # a new life of the controller counts failures anew
                self.run.restart_in_order()
            state = states[i % len(states)]
            fault = self.rng.choices([f for f, _ in self.FAULTS], [n for _, n in self.FAULTS])[0]
            victim = self.rng.choice(self.fleet.workers)
            opened = self.follower.next(STATES[state], timeout=2)
            self.say(fault=i, what=fault.__name__, victim=victim.name, state=state if opened else "any")
            fault(self, victim)
            time.sleep(self.rng.random() * 0.5)


class ChaosTest(ChaosTestCase):
    def test_no_fault_loses_or_changes_a_token(self):
        rng = random.Random(SEED)
        runs = {}
        for i in range(max(1, (FAULTS + PER_ROUND - 1) // PER_ROUND)):
            of_round = random.Random(rng.random())
            if ROUND is not None and i != int(ROUND):
                continue
            name = f"{list(ROUNDS)[i % len(ROUNDS)]}-{i}"
            devices, options = ROUNDS[name.split("-")[0]]
            grace = 8 if i % 2 else 0  # half of the rounds have workers that outlive their controller
            options = [*options, f"cluster.reattach_grace_s={grace}"]
            faults = min(PER_ROUND, FAULTS - PER_ROUND * i)
            with self.subTest(seed=SEED, round=i):
                begin = time.monotonic()
                run = self.batter(name, devices, options, lambda chaos_run: Chaos(chaos_run, of_round).strike(faults))
                runs[name] = run
                kinds = [r["kind"] for r in run.records]
                print(f"seed {SEED} {name}: {faults} faults in {time.monotonic() - begin:.0f} s, {kinds.count('FENCE')} workers given up, "
                      f"{run.records[-1]['ctl_epoch']} lives, {kinds.count('STEP_COMMIT')} steps, {kinds.count('RESTORE')} restores, "
                      f"{kinds.count('T_ROLLED_BACK')} rolled back", file=sys.stderr)
        self.assert_proven(runs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
