"""Slots that train and generate: what a change of phases moves, and how much of it has to."""
import unittest

from harness import RunTest

RL = "configs/test/rl_colocated.yaml"
MODEL = ["model.init.kv_heads=2", "cluster.threads_per_slot=1"]


class PhaseTest(RunTest):
    def changes(self, run):
        return {step: (m["phase_change/bytes"], m["phase_change/bound_bytes"]) for step, m in self.metrics(run).items() if "phase_change/bytes" in m}

    def test_a_change_moves_what_a_slot_lacks_once_and_one_copy_for_who_may_read_it(self):
        published = set()
        for run, layout, moves in (("whole", ["cluster.slots=2"], False), ("zero", ["cluster.slots=2", "train.zero=1"], True), ("cut", ["cluster.slots=2", "train.mesh.tp=2"], True),
                                   ("both", ["cluster.slots=4", "train.mesh.tp=2", "train.zero=1"], True)):
            with self.subTest(layout=run):
                self.assert_done(self.train(RL, *MODEL, *layout, "train.steps=4", run=run))
                self.assert_checked(run)
                changes = self.changes(run)
                self.assertGreaterEqual(set(changes), {1, 2, 3, 4})
                for step, (moved, bound) in changes.items():
                    if step == 1:  # some slots may have read the model of the start from another one
                        continue
                    self.assertEqual(bound > 0, moves, step)
                    if run == "both":  # what aligns small parameters is gathered with them
                        self.assertAlmostEqual(moved - bound, max(published), delta=0.05 * bound)
                    else:
                        published.add(moved - bound)
                self.assertEqual([step for step, m in self.metrics(run).items() if step > 1 and m.get("weights/bytes", 0) > 0], [])
        self.assertEqual(len(published), 1, published)  # the whole weights, in each layout

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


if __name__ == "__main__":
    unittest.main()
