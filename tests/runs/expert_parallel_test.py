"""Slots that train divide the experts of a model (train.mesh.ep): it learns, ranks are lost, runs go on with other divisions, they take what was planned, what is refused."""
import json
import unittest

from experts_test import CONFIG, write_model
from harness import RunTest, kill

TWO = ["cluster.slots=3", "scheduler.actor_slots=2", "train.mesh.ep=2"]


class ExpertParallelTest(RunTest):
    def config(self):
        if not (self.dir / "model").exists():
            write_model(self.dir / "model", experts=6)
        path = self.dir / "experts.yaml"
        path.write_text(CONFIG.format(model=self.dir / "model"))
        return str(path)

    def members(self, run="run", after=0):
        return {len(r["members"]) for r in self.journal(run) if r["kind"] == "STEP_BEGIN" and r["step"] > after}

    def test_divided_experts_learn_to_the_bit_what_whole_ones_learn(self):
        digests = []
        for ep in (1, 2):
            self.assert_done(self.train(self.config(), *TWO[:2], f"train.mesh.ep={ep}", "train.steps=30", "train.learning_rate=3e-3",
                                        'reward.functions=[{name: "contains:a", weight: 1.0}]', run=f"ep{ep}"))
            self.assert_checked(f"ep{ep}")
            metrics = [m for m in self.metrics(f"ep{ep}").values() if "critic/score/mean" in m]
            first, last = (sum(m["critic/score/mean"] for m in part) / 6 for part in (metrics[:6], metrics[-6:]))
            self.assertGreater(last, first + 0.05, "recorded routing and all, it learns")
            for step in metrics:
                # What engines with all experts recorded is what divided ones say.
                self.assertEqual(step.get("training/rollout_logp_diff/max", 0), 0)
            digests.append(self.digests(f"ep{ep}"))
        self.assertEqual(*digests)

    def test_a_killed_rank_costs_a_step_at_most_and_the_run_goes_on_with_other_divisions(self):
        config = self.config()
        run = self.start(config, *TWO, "checkpoint.every_steps=1", "train.steps=40")
        for step in (4, 20):
            self.wait_step(step, run)
            self.assertTrue(kill(self.worker_pid(1, run)))
        self.finish(run)
        self.assert_checked()
        records = self.journal()
        for i, r in enumerate(records):
            if r["kind"] == "RESTORE":
                done = [c["step"] for c in records[:i] if c["kind"] == "STEP_COMMIT"]
                self.assertLessEqual(max(done) - r["step"], 1)
        self.assertEqual(self.members(), {2})
        names = sorted(p.name for p in self.path("checkpoints/step_40/trainer").glob("m.*"))
        self.assertEqual(names, ["m.ep0of2.bin", "m.ep1of2.bin"])
        # One slot; three that divide six experts; four, of which two do and two others; two with all of them.
        steps = 40
        for actors, ep in ((1, 1), (3, 3), (4, 2), (2, 1), (2, 2)):
            steps += 2
            self.assert_done(self.train(config, f"cluster.slots={actors + 1}", f"scheduler.actor_slots={actors}", f"train.mesh.ep={ep}", "checkpoint.every_steps=1",
                                        f"train.steps={steps}", "--resume"))
            self.assert_checked()
            self.assertEqual(self.members(after=steps - 2), {actors})

    def test_slots_that_generate_as_well_divide_experts(self):
        for placement in ("colocated", "multiplexed"):
            self.assert_done(self.train(self.config(), f"scheduler.placement={placement}", f"cluster.slots={2 if placement == 'colocated' else 3}", *TWO[1:], run=placement))
            self.assert_checked(placement)
            self.assertEqual(self.members(placement), {2})

    def test_slots_take_the_memory_that_was_planned(self):
        write_model(self.dir / "model", experts=6, intermediate=1 << 14)  # 19 million parameters, nearly all of experts
        peaks = []
        for ep in (1, 2):
            # Rows that fill a micro-batch nearly.
            args = [*TWO[:2], f"train.mesh.ep={ep}", "train.micro_batch_tokens=48", "train.steps=2", "checkpoint.every_steps=0", "checkpoint.save_final=false"]
            planned = self.command("plan", self.config(), *args, "--json", "--top", "50")
            self.assert_done(planned)
            planned = next(layout for layout in json.loads(planned.stdout)["layouts"] if layout["given"])["train_slot_bytes"]
            self.assert_done(self.train(self.config(), *args, run=f"ep{ep}"))
            # Of the slot that publishes nothing: who was ready last.
            taken = self.summary(f"ep{ep}")["peak_bytes"]
            peaks.append(min(taken["device-0"], taken["device-1"]))
            self.assertLess(peaks[-1], 1.1 * planned)
            self.assertGreater(peaks[-1], 0.85 * planned)
        self.assertLess(peaks[1], peaks[0] - 8 * 19e6 / 2, "at least half of the optimizer is the other's")

    def test_what_cannot_be_divided_is_refused_by_its_key(self):
        config = self.config()
        for with_it, words in (
            (["train.mesh.ep=4", "cluster.slots=5", "scheduler.actor_slots=4"], "each layer has 6 experts, which 4 ranks cannot divide; write a divisor of 6"),
            (["train.mesh.ep=2", "scheduler.actor_slots=3", "cluster.slots=4"], "is 2, but 3 slots train, which it does not divide"),
            ([*TWO, "cluster.device=cuda"], "is 2, but on GPUs experts are not divided yet"),
            ([*TWO, "train.mesh.tp=2"], "with train.mesh.tp 2 experts are not divided yet"),
            ([*TWO, "train.zero=1"], "which train.zero 1 does not share yet"),
            ([*TWO, "checkpoint.recovery_every_steps=1"], "checkpoint.recovery_every_steps"),
            ([*TWO, "train.offload_optimizer=disk"], "train.offload_optimizer"),
            ([*TWO, "algorithm.name=ppo"], "has no experts that are divided yet"),
            ([*TWO, "deterministic=false", "scheduler.placement=elastic"], "scheduler.placement elastic"),
        ):
            result = self.command("validate", config, *with_it)
            self.assertEqual(result.returncode, 2, f"{with_it}: {result.stdout}{result.stderr}")
            self.assertIn("train.mesh.ep", result.stderr)
            self.assertIn(words, result.stderr)
        result = self.command("validate", "configs/test/rl_split.yaml", *TWO)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertIn("train.mesh.ep: the model has no experts, which 2 ranks could divide; write 1", result.stderr)


if __name__ == "__main__":
    unittest.main()
