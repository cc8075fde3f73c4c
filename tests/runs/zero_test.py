"""Slots that train share the optimizer's state (train.zero: 1), gradients, too (2), and weights (3): the same weights, and a part that is lost costs the steps since a checkpoint."""
import re
import resource
import unittest

from harness import RunTest, kill

TWO = ["scheduler.placement=split", "cluster.slots=3", "scheduler.actor_slots=2", "cluster.threads_per_slot=1"]


class ZeroTest(RunTest):
    def planned(self, part, *config):
        """Bytes of it in the plan of a slot that trains."""
        plan = self.command("train", *config, "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stdout + plan.stderr)
        number, of = re.search(rf"device-0 .* {part} ([0-9.]+) (\w+)", plan.stdout).groups()
        return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[of]

    def test_the_weights_of_every_step_are_those_of_whole_optimizers(self):
        for tokens in (512, 48):  # one micro-batch a slot, and several: then sums are formed after each
            for zero in (0, 1, 2, 3):
                run = f"zero{zero}-{tokens}"
                self.assert_done(self.train("configs/test/deterministic.yaml", *TWO, f"train.zero={zero}", f"train.micro_batch_tokens={tokens}", "train.steps=6", run=run))
                self.assert_checked(run)
                self.assertEqual(self.digests(run), self.digests(f"zero0-{tokens}"), run)
            self.assertEqual(len(set(self.digests(f"zero3-{tokens}").values())), 6)
        self.assertNotEqual(self.digests("zero0-48"), self.digests("zero0-512"))

    def test_the_plan_shows_what_a_slot_holds_of_gradients_and_the_step_what_it_held(self):
        planned = {}
        config = ["configs/test/rl_split.yaml", *TWO, "model.init.layers=8", "train.steps=3"]
        for zero in (1, 2):
            planned[zero] = self.planned("gradients", *config, f"train.zero={zero}")
        self.assertLess(planned[2], 0.85 * planned[1])  # half of it, two of eight blocks and the embedding
        self.assert_done(self.train(*config, "train.zero=2"))
        held = [m["memory/gradients_bytes"] for m in self.metrics().values() if "memory/gradients_bytes" in m]
        self.assertEqual(len(held), 3)
        self.assertLess(abs(max(held) / planned[2] - 1), 0.1)

    def test_weights_stand_once_in_shared_memory_and_a_killed_rank_costs_a_step_at_most(self):
        config = ["configs/test/rl_split.yaml", *TWO, "model.init.layers=8", "train.zero=3", "checkpoint.every_steps=1", "train.steps=60"]
        planned = self.planned("weights", *config)
        run = self.start(*config)
        self.wait_step(4, run)
        self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_checked()
        records = self.journal()
        # Its part is read from the newest checkpoint; where that is of the last step, no step is lost, and no record tells of one.
        self.assertIn("event=restored", self.path("logs", "controller.log").read_text())
        for i, r in [(i, r) for i, r in enumerate(records) if r["kind"] == "RESTORE"]:
            done = max(x["step"] for x in records[:i] if x["kind"] == "STEP_COMMIT")
            self.assertGreaterEqual(r["step"], done - 1)
        held = [m["memory/weights_bytes"] for m in self.metrics().values() if "memory/weights_bytes" in m]
        self.assertGreaterEqual(len(held), 59)
        self.assertLess(abs(max(held) / planned - 1), 0.1)
        # The checkpoint is whole, and of use without parts.
        self.assert_done(self.train("configs/test/rl_split.yaml", "model.init.layers=8", "cluster.slots=2", "scheduler.actor_slots=1", "train.zero=0", "train.steps=62", "--resume"))
        self.assert_checked()

    def test_a_model_that_does_not_fit_a_slot_trains_where_slots_share_it(self):
        config = ["configs/test/rl_split.yaml", *TWO, "train.steps=2", "eval.before_train=false", "eval.after_train=false", "model.init.hidden_size=512", "model.init.intermediate_size=1536",
                  "model.init.layers=12", "model.init.heads=8", "model.init.kv_heads=2", "model.init.head_size=64"]
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (735 * 2**20, before[1]))  # of each process that is started; shared memory does not count
        try:
            whole = self.start(*config, "train.zero=0", run="whole")
            self.wait_for(lambda: any("out of memory" in log.read_text() for log in self.path("logs", run="whole").glob("device-[01].log")), what="a slot without room", process=whole)
            whole.kill()
            self.assert_done(self.train(*config, "train.zero=3", run="shared"))
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        self.assert_checked("shared")
        held = [m["memory/weights_bytes"] for m in self.metrics("shared").values() if "memory/weights_bytes" in m]
        self.assertEqual(len(held), 2)
        self.assertLess(abs(max(held) / self.planned("weights", *config, "train.zero=3") - 1), 0.1)

    def test_a_killed_rank_costs_the_steps_since_the_newest_checkpoint_and_the_run_goes_on_with_other_slots(self):
        run = self.start("configs/test/rl_split.yaml", *TWO, "train.zero=2", "checkpoint.every_steps=5", "train.steps=60")
        self.wait_step(7, run)
        self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_checked()
        records = self.journal()
        restores = [(i, r) for i, r in enumerate(records) if r["kind"] == "RESTORE"]
        self.assertTrue(restores)
        for i, r in restores:
            self.assertEqual(r["step"], max(c["step"] for c in records[:i] if c["kind"] == "CK_COMMIT"))
        self.assertEqual({len(r["members"]) for r in records if r["kind"] == "STEP_BEGIN"}, {2})
        # Each rank wrote what it had.
        for part in ("m", "v"):
            files = sorted(p.name for p in self.path("checkpoints/step_60/trainer").glob(f"{part}.*"))
            self.assertEqual(len(files), 2, files)
            places = sorted(tuple(map(int, re.fullmatch(part + r"\.(\d+)-(\d+)\.bin", name).groups())) for name in files)
            self.assertEqual((places[0][0], places[0][1]), (0, places[1][0]))
            self.assertLess(abs(places[0][1] * 2 / places[1][1] - 1), 0.01)
        # Three ranks, three with all of it, two, one: nothing is undone, and each reads what it needs.
        steps = 60
        for actors, zero in ((3, 2), (3, 0), (2, 1), (2, 2), (1, 2)):
            steps += 6
            self.assert_done(self.train("configs/test/rl_split.yaml", *TWO[:1], f"cluster.slots={actors + 1}", f"scheduler.actor_slots={actors}", "cluster.threads_per_slot=1",
                                        f"train.zero={zero}", "checkpoint.every_steps=5", f"train.steps={steps}", "--resume"))
            self.assert_checked()
            begun = [r for r in self.journal() if r["kind"] == "STEP_BEGIN" and r["step"] > steps - 6]
            if zero:  # without it a group begins with whoever is there
                self.assertEqual({len(r["members"]) for r in begun}, {actors})
        self.assertEqual(self.summary()["steps"], steps)

    def test_every_placement_shares_and_parks(self):
        for placement, more in (("colocated", ["cluster.slots=2"]), ("multiplexed", [*TWO[1:3], "train.offload_optimizer=disk"])):
            with self.subTest(placement=placement):
                self.assert_done(self.train("configs/test/rl_split.yaml", f"scheduler.placement={placement}", *more, "train.zero=2", "train.steps=8", run=placement))
                self.assert_checked(placement)
                self.assertEqual({len(r["members"]) for r in self.journal(placement) if r["kind"] == "STEP_BEGIN"}, {2})

    def test_what_moves_whole_states_is_refused_by_its_key(self):
        for with_it, words in ((["scheduler.placement=elastic", "cluster.slots=3"], "scheduler.placement elastic"),
                               (["checkpoint.recovery_every_steps=1", *TWO], "checkpoint.recovery_every_steps"),
                               ([f"checkpoint.store={self.dir}", *TWO], "checkpoint.store"),
                               (["cluster.min_slots=2", *TWO], "cluster.min_slots 2 of 3 slots")):
            result = self.command("validate", "configs/test/rl_split.yaml", "train.zero=1", *with_it)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn("train.zero: is 1, so each slot that trains has a part of the optimizer's state", result.stderr)
            self.assertIn(words, result.stderr)
        result = self.command("validate", "configs/test/rl_split.yaml", "train.zero=2", "train.mesh.tp=2", "cluster.slots=5", "scheduler.actor_slots=4")
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("train.zero: is 2, but with train.mesh.tp 2 gradients are not shared yet; write 1", result.stderr)
        for with_it, words in ((["scheduler.placement=multiplexed", *TWO[1:]], "with scheduler.placement multiplexed slots that train generate, too"),
                               (["cluster.bind=0.0.0.0", "cluster.advertise=trainer", "cluster.weight_transport=stream", *TWO], "have to be on one host"),
                               (["cluster.device=cuda", *TWO], "the weights of GPUs are not shared yet")):
            result = self.command("validate", "configs/test/rl_split.yaml", "train.zero=3", *with_it)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn("train.zero: is 3, ", result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
