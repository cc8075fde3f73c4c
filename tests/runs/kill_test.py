"""Real processes are killed at chosen moments: nothing that was completed is lost, nothing is trained twice."""
import os
import random
import signal
import time
import unittest

from harness import PATIENCE, RunTest, alive, kill


class KillTest(RunTest):
    CONFIG = "configs/test/rl_colocated.yaml"
    STEPS = 150  # enough to be alive when the kill comes, also where a step takes 10 ms

    def lost_nothing(self, run="run"):
        """The checker proves it; this is what a user would look at."""
        self.assert_checked(run)
        trained = {}
        undone_after = None
        for r in self.journal(run):
            if r["kind"] == "RESTORE":
                trained = {tid: step for tid, step in trained.items() if step <= r["step"]}
            if r["kind"] == "STEP_COMMIT":
                for row in r["rows"]:
                    tid = tuple(row["tid"].values())
                    self.assertNotIn(tid, trained, f"{tid} was trained twice in one lineage")
                    trained[tid] = r["step"]
        return trained

    def test_a_killed_device_worker_is_replaced_and_the_run_goes_on(self):
        run = self.start(self.CONFIG, f"train.steps={self.STEPS}")
        self.wait_step(2, run)
        self.assertTrue(kill(self.worker_pid(0, run)))
        self.finish(run)
        self.assert_killed()
        self.lost_nothing()
        self.assertEqual(self.summary()["steps"], self.STEPS)

    def test_killed_rollout_and_actor_workers_of_a_split_run(self):
        for place, name in [(1, "rollout"), (0, "actor")]:
            with self.subTest(killed=name):
                run = self.start("configs/test/rl_split.yaml", f"train.steps={self.STEPS}", run=name)
                self.wait_step(2, run, run=name)
                self.assertTrue(kill(self.worker_pid(place, run, run=name)))
                self.finish(run)
                self.assert_killed(name)
                self.lost_nothing(name)

    def test_a_recovery_copy_loses_at_most_one_step(self):
        run = self.start("configs/test/rl_split.yaml", f"train.steps={self.STEPS}", "checkpoint.every_steps=0", "checkpoint.recovery_every_steps=1")
        self.wait_step(4, run)
        self.assertTrue(kill(self.worker_pid(0, run)))
        self.finish(run)
        self.assert_killed()
        self.lost_nothing()
        commits = 0
        for r in self.journal():
            if r["kind"] == "STEP_COMMIT":
                commits = r["step"]
            if r["kind"] == "RESTORE":
                self.assertGreaterEqual(r["step"], commits - 1)

    def test_a_killed_reward_worker_is_replaced(self):
        run = self.start(self.CONFIG, f"train.steps={self.STEPS}")
        self.wait_step(2, run)
        self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_killed()
        self.lost_nothing()

    def test_a_killed_controller_is_resumed_and_its_workers_end_by_themselves(self):
        run = self.start(self.CONFIG, f"train.steps={self.STEPS}")
        self.wait_step(3, run)
        workers = [w["pid"] for w in self.workers(run)]
        run.kill()
        run.communicate()
        end = time.monotonic() + 5
        while any(alive(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertFalse([pid for pid in workers if alive(pid)], "workers outlived their controller by 5 s")
        self.assert_done(self.train(self.CONFIG, f"train.steps={self.STEPS}", "--resume"))
        self.lost_nothing()
        self.assertEqual(self.summary()["steps"], self.STEPS)

    def assert_killed(self, run="run"):
        """The kill came while the run was going on, or the test proves nothing."""
        kinds = [r["kind"] for r in self.journal(run)]
        self.assertIn("FENCE", kinds)

    def test_killed_in_the_first_second_and_in_the_warm_start(self):
        config = "configs/test/warm_start.yaml"
        for seed, delay in enumerate([0.05, 0.3, 0.8, 1.5]):
            with self.subTest(delay=delay):
                name = f"early{seed}"
                run = self.start(config, run=name)
                time.sleep(delay)
                run.kill()
                run.communicate()
                resume = ["--resume"] if self.path("config.yaml", run=name).exists() else []
                self.assert_done(self.train(config, *resume, run=name))
                self.assert_checked(name)

    def test_deterministic_runs_end_alike_whether_or_not_they_were_killed(self):
        config = "configs/test/deterministic.yaml"
        steps = 60
        self.assert_done(self.train(config, f"train.steps={steps}", run="unbroken"))
        want = self.digests("unbroken")
        self.assertGreater(len(set(want.values())), steps / 2)  # most steps changed something, or equal digests prove nothing
        rng = random.Random(int(os.environ.get("TIDEPOOL_KILL_SEED", "1")))
        for attempt in range(int(os.environ.get("TIDEPOOL_KILLS", "3"))):
            k = rng.randrange(0, 12)
            victim = rng.choice(["controller", "worker"])
            with self.subTest(step=k, victim=victim):
                name = f"killed{attempt}"
                run = self.start(config, f"train.steps={steps}", run=name)
                self.wait_step(k, run, run=name)
                time.sleep(rng.random() * 0.1)
                if victim == "worker":
                    self.assertTrue(kill(self.worker_pid(0, run, run=name)))
                    self.finish(run)
                else:
                    run.kill()
                    run.communicate()
                    self.assert_done(self.train(config, f"train.steps={steps}", "--resume", run=name))
                self.lost_nothing(name)
                self.assertEqual(self.digests(name), want)

    def test_sigterm_checkpoints_and_exits_0_within_20_s_and_resume_goes_on(self):
        run = self.start(self.CONFIG, "train.steps=500")
        self.wait_step(3, run)
        begin = time.monotonic()
        run.send_signal(signal.SIGTERM)
        self.finish(run, code=0)
        self.assertLess(time.monotonic() - begin, 20)
        stopped_at = self.summary()["steps"]
        self.assertGreaterEqual(stopped_at, 3)
        self.assert_checked()
        self.assert_done(self.train(self.CONFIG, f"train.steps={stopped_at + 2}", "--resume"))
        self.lost_nothing()

    def test_a_second_signal_ends_at_once(self):
        run = self.start(self.CONFIG, "train.steps=500")
        self.wait_step(2, run)
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        begin = time.monotonic()
        try:
            run.communicate(timeout=PATIENCE)
        except Exception:
            self.fail("a second signal did not end it")
        self.assertIn(run.returncode, (0, 3))
        self.assertLess(time.monotonic() - begin, 6)

    def test_workers_with_a_grace_outlive_the_controller_and_attach_to_its_successor(self):
        config = ["configs/test/rl_split.yaml", f"train.steps={self.STEPS}", "cluster.reattach_grace_s=30"]
        run = self.start(*config)
        self.wait_step(2, run)
        before = {w["place"]: w["pid"] for w in self.workers(run)}
        run.kill()
        run.communicate()
        try:
            self.assert_done(self.train(*config, "--resume"))
            self.lost_nothing()
            incs = {}
            for r in self.journal():
                if r["kind"] == "JOIN":
                    incs.setdefault(r["w"], set()).add(r["inc"])
            self.assertTrue(all(len(i) == 1 for i in incs.values()), f"a worker was started again: {incs}")
        finally:
            for pid in before.values():
                kill(pid)


if __name__ == "__main__":
    unittest.main(verbosity=2)
