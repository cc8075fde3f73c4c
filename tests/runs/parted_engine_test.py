"""Slots that are one engine (rollout.mesh.tp): runs of every placement, lost ranks, what is refused."""
import unittest

from harness import RunTest, kill

MODEL = ["model.init.kv_heads=2", "cluster.threads_per_slot=1"]  # two heads that can be cut
SPLIT = [*MODEL, "scheduler.placement=split", "scheduler.actor_slots=1", "cluster.slots=3", "rollout.mesh.tp=2"]


class PartedEngineTest(RunTest):
    def generators(self, run="run"):
        return {r["slot"] for r in self.journal(run) if r["kind"] == "START"}

    def gaps(self, run="run"):
        return [m["training/rollout_logp_diff/max"] for m in self.metrics(run).values() if "training/rollout_logp_diff/max" in m]

    def test_every_placement_generates_with_a_model_that_is_cut(self):
        for placement, more in (("split", ["cluster.slots=3", "scheduler.actor_slots=1"]),
                                ("split", ["cluster.slots=4", "scheduler.actor_slots=2", "train.mesh.tp=2"]),
                                ("colocated", ["cluster.slots=2"]),
                                ("colocated", ["cluster.slots=2", "train.mesh.tp=2"]),
                                ("multiplexed", ["cluster.slots=4", "scheduler.actor_slots=2", "train.mesh.tp=2"])):
            with self.subTest(placement=placement, more=more):
                run = f"{placement}-{len(more)}"
                self.assert_done(self.train("configs/test/rl_split.yaml", *MODEL, f"scheduler.placement={placement}", *more, "rollout.mesh.tp=2", "train.steps=6", run=run))
                self.assert_checked(run)
                # The first slot of an engine speaks for it.
                slots, first = int(more[0].split("=")[1]), int(more[1].split("=")[1]) if placement == "split" else 0
                self.assertLessEqual(self.generators(run), set(range(first, slots, 2)))
                self.assertTrue(self.gaps(run))
                self.assertEqual(max(self.gaps(run)), 0)

    def test_a_lost_part_of_an_engine_takes_it_along_and_no_sample_is_lost(self):
        run = self.start("configs/test/rl_split.yaml", *SPLIT, "cluster.slots=5", "train.steps=1200")
        for step, place in ((5, 1), (200, 2), (400, 4), (600, 3)):  # leaders and followers
            self.wait_step(step, run)
            self.assertTrue(kill(self.worker_pid(place, run)))
        self.finish(run)
        self.assert_checked()
        records = self.journal()
        faults = [r for r in records if r["kind"] == "FAULT"]
        with_others = [r for r in faults if "another part of its gang is gone" in r["what"]]
        # With the other part of its engine, if it had one: a kill may come while the engine of before is being replaced.
        self.assertGreaterEqual(len(with_others), 2, faults)
        self.assertGreaterEqual(len(faults), 2 * len(with_others), faults)
        self.assertFalse([r for r in records if r["kind"] == "END" and r["status"] == "error"])
        self.assertEqual(self.summary()["steps"], 1200)

    def test_a_run_goes_on_with_engines_of_another_size(self):
        steps = 0
        for tp, slots in ((2, 3), (1, 2), (2, 5)):
            steps += 5
            self.assert_done(self.train("configs/test/rl_split.yaml", *SPLIT, f"cluster.slots={slots}", f"rollout.mesh.tp={tp}", "checkpoint.every_steps=5", f"train.steps={steps}",
                                        *(["--resume"] if steps > 5 else [])))
            self.assert_checked()
        self.assertEqual(self.summary()["steps"], steps)

    def test_what_cannot_be_is_refused_by_its_key(self):
        for with_it, words in (
            (["scheduler.placement=elastic"], "scheduler.placement elastic"),
            (["cluster.min_slots=2"], "cluster.min_slots 2 of 3 slots"),
            (["cluster.slots=4"], "3 slots generate, which it does not divide"),
            (["scheduler.placement=multiplexed", "cluster.slots=4"], "1 of them train"),
            (["scheduler.placement=colocated", "cluster.slots=1"], "1 slot generates, which it does not divide"),
            (["model.init.kv_heads=1"], "the model has 1 key and value heads, which 2 ranks cannot divide"),
            (["cluster.bind=0.0.0.0", "cluster.advertise=127.0.0.2", "cluster.weight_transport=stream"], "have to be on one host"),
        ):
            result = self.command("validate", "configs/test/rl_split.yaml", *SPLIT, *with_it)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn("rollout.mesh.tp", result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
