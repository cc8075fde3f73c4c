"""Slots that train and generate: what a change of phases moves is what it has to, and no copy is made that nobody reads."""
import unittest

from harness import RunTest, kill

RL = "configs/test/rl_colocated.yaml"
MODEL = ["model.init.kv_heads=2", "cluster.threads_per_slot=1"]


class PhaseTest(RunTest):
    def changes(self, run):
        return {step: (m["phase_change/bytes"], m["phase_change/bound_bytes"]) for step, m in self.metrics(run).items() if "phase_change/bytes" in m}

    def test_a_change_moves_what_a_slot_lacks_and_nothing_twice(self):
        for run, layout, moves in (("whole", ["cluster.slots=2"], False), ("zero", ["cluster.slots=2", "train.zero=1"], True), ("cut", ["cluster.slots=2", "train.mesh.tp=2"], True),
                                   ("both", ["cluster.slots=4", "train.mesh.tp=2", "train.zero=1"], True)):
            with self.subTest(layout=run):
                slots = int(layout[0].rpartition("=")[2])
                self.assert_done(self.train(RL, *MODEL, *layout, f"cluster.min_slots={slots}", "train.steps=6", run=run))
                self.assert_checked(run)
                changes = self.changes(run)
                # Before all slots trained a step, some may read the model of another one, or have it copied for those that are to come.
                whole = [r["step"] for r in self.journal(run) if r["kind"] == "STEP_BEGIN" and len(r["members"]) == slots]
                judged = [step for step in whole if step > whole[0] and step in changes]
                self.assertGreaterEqual(len(judged), 3)
                for step in judged:
                    moved, bound = changes[step]
                    # What aligns small parameters is gathered with them.
                    self.assertAlmostEqual(moved, bound, delta=0.05 * bound if run == "both" else 0, msg=step)
                    self.assertEqual(moved > 0, moves, step)
                metrics = self.metrics(run)
                self.assertEqual([step for step in judged if metrics[step].get("weights/bytes", 0) > 0], [])

    def test_an_engine_that_needs_less_than_its_trainer_brings_together_is_counted_as_it_is(self):
        self.assert_done(self.train(RL, *MODEL, "cluster.slots=2", "train.mesh.tp=2", "rollout.mesh.tp=2", "train.steps=3"))
        for step, (moved, bound) in self.changes("run").items():
            if step > 1:
                self.assertEqual(bound, 0)
                self.assertGreater(moved, 0)

    def test_slots_that_only_train_change_no_phase(self):
        self.assert_done(self.train("configs/test/rl_split.yaml", "train.steps=2"))
        self.assertEqual(self.changes("run"), {})
        self.assertTrue(any(m.get("weights/bytes", 0) > 0 for m in self.metrics().values()))

    def test_a_slot_that_is_new_has_the_weights_copied_for_it(self):
        run = self.start(RL, *MODEL, "cluster.slots=2", "checkpoint.every_steps=50", "train.steps=150")
        for step, place in ((10, 1), (60, 0), (100, 1)):
            self.wait_step(step, run)
            self.assertTrue(kill(self.worker_pid(place, run)))
        self.finish(run)
        self.assert_checked()
        self.assertEqual(self.summary()["steps"], 150)


if __name__ == "__main__":
    unittest.main()
