"""Slots that train have parts of one model (train.mesh.tp): runs of every placement, lost ranks, resumes on other meshes, what is refused."""
import unittest

from harness import RunTest, kill

# Two heads that can be cut.
MODEL = ["model.init.kv_heads=2"]
TWO = [*MODEL, "scheduler.placement=split", "cluster.slots=3", "scheduler.actor_slots=2", "cluster.threads_per_slot=1", "train.mesh.tp=2"]


class TensorTest(RunTest):
    def members(self, run="run", after=0):
        return {len(r["members"]) for r in self.journal(run) if r["kind"] == "STEP_BEGIN" and r["step"] > after}

    def test_every_placement_trains_a_model_that_is_cut(self):
        for placement, more in (("colocated", ["cluster.slots=2"]), ("multiplexed", TWO[2:4]), ("split", TWO[2:4]),
                                ("both", ["cluster.slots=5", "scheduler.actor_slots=4", "train.zero=1"])):
            with self.subTest(placement=placement):
                named = "split" if placement == "both" else placement
                self.assert_done(self.train("configs/test/rl_split.yaml", *MODEL, f"scheduler.placement={named}", *more, "cluster.threads_per_slot=1", "train.mesh.tp=2",
                                            "train.steps=6", run=placement))
                self.assert_checked(placement)
                self.assertEqual(self.members(placement), {4 if placement == "both" else 2})
                # Engines have whole models, and the sums of parts have the bits of theirs.
                gaps = [m["training/rollout_logp_diff/max"] for m in self.metrics(placement).values() if "training/rollout_logp_diff/max" in m]
                self.assertTrue(gaps)
                self.assertEqual(max(gaps), 0)
                steps = [m for m in self.metrics(placement).values() if m.get("data_plane/batch_bytes", 0) > 0]
                self.assertEqual(len(steps), 6)
                for step in steps:
                    self.assertEqual(step["data_plane/read_bytes"], step["data_plane/batch_bytes"], "ranks with parts of one model share what one of them read")

    def test_four_parts_of_a_model_read_a_batch_once_and_learn_what_one_slot_learns(self):
        served, digests = [], []
        for tp in (1, 4):
            self.assert_done(self.train("configs/test/rl_colocated.yaml", "deterministic=true", "model.init.heads=4", "model.init.kv_heads=4", f"cluster.slots={tp}",
                                        f"train.mesh.tp={tp}", "cluster.threads_per_slot=1", "train.steps=3", run=f"tp{tp}"))
            self.assert_checked(f"tp{tp}")
            steps = [m for m in self.metrics(f"tp{tp}").values() if m.get("data_plane/batch_bytes", 0) > 0]
            for step in steps:
                self.assertEqual(step["data_plane/read_bytes"], step["data_plane/batch_bytes"])
            served.append(sum(step["data_plane/bytes"] for step in steps) / sum(step["data_plane/batch_bytes"] for step in steps))
            digests.append(self.digests(f"tp{tp}"))
        self.assertLess(served[1], 1.01 * served[0], "the list of the rows goes to one of the four")
        self.assertEqual(*digests)

    def test_a_killed_rank_costs_the_steps_since_the_newest_checkpoint_and_the_run_goes_on_on_other_meshes(self):
        run = self.start("configs/test/rl_split.yaml", *TWO, "checkpoint.every_steps=5", "train.steps=200")
        for step in (7, 58, 109):  # a rank that is lost right after a checkpoint costs no step, and nothing goes back
            self.wait_step(step, run)
            self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_checked()
        records = self.journal()
        restores = [(i, r) for i, r in enumerate(records) if r["kind"] == "RESTORE"]
        self.assertTrue(restores)
        for i, r in restores:
            self.assertEqual(r["step"], max(c["step"] for c in records[:i] if c["kind"] == "CK_COMMIT"))
        self.assertEqual(self.members(), {2})
        names = sorted(p.name for p in self.path("checkpoints/step_200/trainer").glob("m.*"))
        self.assertEqual(names, ["m.tp0of2.bin", "m.tp1of2.bin"])
        # One rank, two by two that share the optimizer, two with whole models, two with parts.
        steps = 200
        for actors, tp, zero in ((1, 1, 0), (4, 2, 1), (2, 1, 1), (2, 2, 0)):
            steps += 6
            self.assert_done(self.train("configs/test/rl_split.yaml", *TWO[:2], f"cluster.slots={actors + 1}", f"scheduler.actor_slots={actors}", "cluster.threads_per_slot=1",
                                        f"train.mesh.tp={tp}", f"train.zero={zero}", "checkpoint.every_steps=5", f"train.steps={steps}", "--resume"))
            self.assert_checked()
            self.assertEqual(self.members(after=steps - 6), {actors})
        self.assertEqual(self.summary()["steps"], steps)

    def test_supervised_rows_are_judged_by_all_parts(self):
        for tp in (1, 2):
            self.assert_done(self.train("configs/test/sft.yaml", *MODEL, f"cluster.slots={tp}", "cluster.threads_per_slot=1", f"train.mesh.tp={tp}", "data.held_out=16",
                                        "eval.every_steps=4", "train.steps=8", run=f"tp{tp}"))
            self.assert_checked(f"tp{tp}")
        whole, cut = ([m for m in self.metrics(f"tp{tp}").values() if "eval/sft/loss" in m][-1] for tp in (1, 2))
        self.assertAlmostEqual(whole["eval/sft/loss"], cut["eval/sft/loss"], delta=1e-3)
        self.assertAlmostEqual(whole["eval/sft/token_accuracy"], cut["eval/sft/token_accuracy"], delta=0.05)

    def test_pairs_are_judged_again_by_all_when_a_rank_is_new(self):
        run = self.start("configs/test/dpo.yaml", *MODEL, "cluster.slots=2", "cluster.threads_per_slot=1", "train.mesh.tp=2", "data.held_out=16", "eval.every_steps=20",
                         "checkpoint.every_steps=20", "train.steps=400")
        self.wait_step(25, run)  # the reference's answers are kept by both
        self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_checked()
        self.assertEqual(self.members(), {2})
        self.assertEqual(len([r for r in self.journal() if r["kind"] == "RESTORE"]), 1)

    def test_what_cannot_be_cut_is_refused_by_its_key(self):
        for with_it, words in (
            (["scheduler.placement=elastic", "cluster.slots=3"], "scheduler.placement elastic"),
            (["checkpoint.recovery_every_steps=1", *TWO[1:]], "checkpoint.recovery_every_steps"),
            ([f"checkpoint.store={self.dir}", *TWO[1:]], "checkpoint.store"),
            (["cluster.min_slots=2", *TWO[1:]], "cluster.min_slots 2 of 3 slots"),
            (["train.offload_optimizer=disk", *TWO[1:]], "train.offload_optimizer"),
            (["cluster.slots=3"], "1 slot trains, which it does not divide"),
            (["algorithm.name=ppo", *TWO[1:]], "cannot be cut; write 1, or an advantage without a critic"),
            (["model.init.kv_heads=1", *TWO[1:]], "the model has 1 key and value heads, which 2 ranks cannot divide"),
        ):
            result = self.command("validate", "configs/test/rl_split.yaml", "train.mesh.tp=2", *with_it)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn("train.mesh.tp", result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
