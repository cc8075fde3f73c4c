"""Adapters (model.lora): every job learns by one, the model below it stays as it is, and a run that broke off ends alike."""
import unittest

from harness import RunTest, kill

SFT, RL = "configs/test/sft.yaml", "configs/test/rl_colocated.yaml"
LORA = ["model.lora.rank=8", "model.init.init_std=0.1", "train.learning_rate=1.0e-2"]
SHORT = ["deterministic=true", "cluster.threads_per_slot=1"]


class LoraTest(RunTest):
    def test_sft_learns_and_goes_on_alike_where_it_was_stopped(self):
        args = [*LORA, *SHORT, "train.steps=40", "checkpoint.every_steps=10"]
        self.assert_done(self.train(SFT, *args))
        self.assert_checked()
        rows = self.metrics()
        self.assertLess(rows[40]["eval/loss"], 0.7 * rows[1]["eval/loss/before"])
        cut = self.start(SFT, *args, run="cut")
        self.wait_step(14, cut, run="cut")
        self.kill_controller(cut, run="cut")
        self.assert_done(self.train(SFT, *args, "--resume", run="cut"))
        self.assertEqual(self.digests("cut"), self.digests())
        self.assertEqual(self.metrics("cut")[40]["eval/loss"], rows[40]["eval/loss"])

    def test_rl_samples_and_trains_by_one_forward_wherever_it_is(self):
        for name, layout in {"colocated": ["cluster.slots=1"], "split": ["cluster.slots=2", "scheduler.placement=split"]}.items():
            with self.subTest(layout=name):
                self.assert_done(self.train(RL, *LORA, *SHORT, *layout, "train.steps=8", "algorithm.kl.coef=0.01", run=name))
                self.assert_checked(name)
                rows = self.metrics(name)
                for step in range(1, 9):
                    self.assertEqual(rows[step]["training/rollout_logp_diff/max"], 0, step)
                self.assertAlmostEqual(rows[1]["actor/kl_loss"], 0, places=6)  # B is zeros: the reference is the model itself
                self.assertGreater(rows[8]["actor/kl_loss"], 1e-4)
        self.assertEqual(self.digests("split"), self.digests("colocated"))

    def test_head_and_embedding_are_trained_by_the_forward_that_samples(self):
        args = [*LORA, *SHORT, "model.lora.targets=[embedding, head]", "train.steps=6", "algorithm.kl.coef=0.01"]
        for tied in ("true", "false"):
            with self.subTest(tied=tied):
                self.assert_done(self.train(RL, *args, f"model.init.tie_embeddings={tied}", run=tied))
                self.assert_checked(tied)
                rows = self.metrics(tied)
                for step in range(1, 7):
                    self.assertEqual(rows[step]["training/rollout_logp_diff/max"], 0, step)
                self.assertAlmostEqual(rows[1]["actor/kl_loss"], 0, places=6)
                self.assertGreater(rows[6]["actor/kl_loss"], 1e-4)
                merged = self.dir / f"merged-{tied}"
                self.assert_done(self.command("export", str(self.path(run=tied)), "--merge", "--out", str(merged)))
                words = ("--prompt", "rev abc=", "--max-new-tokens", "8", "--threads", "1")
                adapted = self.command("generate", "--model", str(self.path(run=tied)), *words)
                self.assert_done(adapted)
                self.assertEqual(self.command("generate", "--model", str(merged), *words).stdout, adapted.stdout)

    def test_workers_that_are_killed_find_the_model_again(self):
        args = [*LORA, *SHORT, "cluster.slots=2", "scheduler.placement=split", "train.steps=30"]
        self.assert_done(self.train(RL, *args, run="unbroken"))
        run = self.start(RL, *args)
        for place, step in [(1, 3), (0, 10)]:
            self.wait_step(step, run)
            self.assertTrue(kill(self.worker_pid(place, run)))
        self.finish(run)
        self.assertIn("FENCE", [r["kind"] for r in self.journal()])
        self.assert_checked()
        self.assertEqual(self.digests(), self.digests("unbroken"))

    def test_dpo_starts_from_its_reference(self):
        self.assert_done(self.train(SFT, "job=dpo", *LORA, *SHORT, "train.steps=3"))
        rows = self.metrics()
        self.assertAlmostEqual(rows[1]["dpo/loss"], 0.693147, places=5)  # which is the model itself
        self.assertNotAlmostEqual(rows[3]["dpo/loss"], 0.693147, places=3)

    def test_what_an_adapter_cannot_do_is_said_before_anything_starts(self):
        for args, said in {
            ("model.lora.rank=17",): "rank 17 is above 16, the smaller side of target k",
            ("model.lora.rank=4", "model.lora.targets=[q, router]"): "'router' is none; there are q, k, v, o, gate, up, down, experts_gate_up, experts_down, embedding, head, and experts",
            ("model.lora.rank=4", "model.lora.targets=[q, experts]"): "target experts_gate_up, and no layer of the model has experts",
            ("model.lora.rank=4", "model.lora.targets=[experts]", "cluster.device=cuda"): "names experts, whose adapters are not computed on GPUs yet",
            ("model.lora.rank=33", "model.lora.targets=[head]"): "the smaller side of target head",
            ("model.lora.rank=4", "train.zero=1", "cluster.slots=2"): "too small to be shared",
            ("model.lora.rank=4", "model.lora.dropout=0.1"): "only 0",
            ("model.lora.alpha=8",): "no adapter is trained",
            ("job=reward_model", "model.lora.rank=4", "model.lora.targets=[q, head]"): "a reward model has a head of its own",
        }.items():
            with self.subTest(args=args):
                result = self.train(SFT, *args)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(said, result.stderr)
                self.assertFalse(self.path().exists())


if __name__ == "__main__":
    unittest.main()
