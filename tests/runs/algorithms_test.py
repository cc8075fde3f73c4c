"""Further models and kinds of job in complete runs of the real binaries: critic, reference, pairs, a teacher."""
import json
import unittest

from harness import RunTest, kill


class AlgorithmsTest(RunTest):
    def values(self, name, run="run"):
        return {step: row[name] for step, row in self.metrics(run).items() if name in row}

    def test_ppo_with_a_critic_killed_at_any_time_ends_with_the_same_bits(self):
        steps = "train.steps=60"
        self.assert_done(self.train("configs/test/ppo.yaml", steps, run="whole"))
        rows = self.metrics("whole")
        self.assertEqual(rows[1]["actor/updates"], 0, "the first step warms the critic up")
        self.assertEqual(rows[2]["actor/updates"], 1)
        for name in ["critic/vf_loss", "critic/values/mean", "critic/vf_explained_var", "ref/kl", "actor/kl_coef"]:
            self.assertIn(name, rows[60])
        self.assertNotEqual(rows[60]["actor/kl_coef"], rows[1]["actor/kl_coef"])
        # The worker is killed, later the controller; the run is resumed from what the journal says.
        run = self.start("configs/test/ppo.yaml", steps, run="cut")
        self.wait_step(3, run, run="cut")
        kill(self.worker_pid(0, run, run="cut"))
        self.wait_step(7, run, run="cut")
        kill(run.pid)
        run.communicate()
        self.assert_done(self.train("configs/test/ppo.yaml", steps, "--resume", run="cut"))
        self.assert_checked("cut")
        self.assertEqual(self.digests("cut"), self.digests("whole"))

    def test_ppo_trains_on_two_slots_and_a_newcomer_has_the_critic_too(self):
        overrides = ["scheduler.placement=split", "cluster.slots=3", "scheduler.actor_slots=2", "cluster.threads_per_slot=1", "train.steps=30"]
        run = self.start("configs/test/ppo.yaml", *overrides)
        self.wait_step(2, run)
        kill(self.worker_pid(1, run))
        self.finish(run)
        self.assert_checked()
        self.assertEqual(self.summary()["steps"], 30)

    def test_columns_that_were_computed_before_their_step_change_no_bit_and_a_trainer_that_had_some_may_die(self):
        # Few samples at a time, so that the groups of a batch end one after another.
        split = ["scheduler.placement=split", "cluster.threads_per_slot=1", "rollout.max_concurrent=4", "train.steps=24"]
        for actors in [1, 2]:
            slots = [*split, f"scheduler.actor_slots={actors}", f"cluster.slots={actors + 1}"]
            early, late = f"early-{actors}", f"late-{actors}"
            self.assert_done(self.train("configs/test/ppo.yaml", *slots, run=early))
            self.assert_done(self.train("configs/test/ppo.yaml", *slots, "train.early_columns=false", run=late))
            shares = self.values("data_plane/columns_early", early)
            self.assertEqual(len(shares), 24)
            self.assertGreater(max(shares.values()), 0.4, shares)
            self.assertGreater(sum(self.values("timing_s/columns_early", early).values()), 0)
            self.assertFalse(self.values("data_plane/columns_early", late))
            self.assertEqual(self.digests(early), self.digests(late))
        run = self.start("configs/test/ppo.yaml", *slots, run="cut")
        self.wait_step(3, run, run="cut")
        kill(self.worker_pid(0, run, run="cut"))  # the other rank has the state
        self.finish(run)
        self.assert_checked("cut")
        self.assertEqual(self.digests("cut"), self.digests(late))

    def test_samples_of_every_kind_of_algorithm(self):
        for name, overrides in {
            "grpo_kl": ["algorithm.kl.coef=0.05"],
            "remax": ["algorithm.name=remax"],
            "gdpo": ["algorithm.name=gdpo"],
            "otb_m2po": ["algorithm.name=otb", "algorithm.m2po=0.1", "algorithm.opsm=0.5"],
        }.items():
            with self.subTest(name=name):
                self.assert_done(self.train("configs/test/rl_colocated.yaml", "train.steps=2", "cluster.threads_per_slot=1", *overrides, run=name))
                self.assert_checked(name)
                self.assertEqual(self.metrics(name)[2]["actor/updates"], 1)

    def test_pairs_are_learned_and_judged(self):
        for job in ["dpo", "reward_model"]:
            with self.subTest(job=job):
                config = f"configs/test/{job}.yaml"
                best = ["checkpoint.every_steps=2", "eval.every_steps=2", f"checkpoint.keep_best=eval/{job}/margin"]
                done = self.train(config, "train.steps=6", "deterministic=true", *best, run=job)
                self.assert_done(done)
                margins = {step: row[f"eval/{job}/margin"] for step, row in self.metrics(job).items() if f"eval/{job}/margin" in row}
                margins[0] = self.metrics(job)[1][f"eval/{job}/margin/before"]
                kept = json.loads(self.path("best", "evaluation.json", run=job).read_text())
                self.assertEqual((kept["metric"], kept["value"]), (f"eval/{job}/margin", max(margins.values())))
                self.assertEqual(kept["value"], margins[kept["step"]])
                self.assertRegex(done.stdout, r"held-out accuracy after: .* 8 rows\)")
                self.assertIn("held-out margin: ", done.stdout)
                self.assert_checked(job)
                rows = self.metrics(job)
                self.assertAlmostEqual(rows[1][f"{job}/loss"], 0.6931, places=3, msg="log 2: nothing is known yet")
                self.assertIn(f"eval/{job}/accuracy/before", rows[1])
                for name in ["accuracy", "loss", "margin"]:
                    self.assertIn(f"eval/{job}/{name}", rows[6])
                for name in ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "eval/rewards/margins", "eval/loss"]:
                    self.assertIn(name, rows[6])
                self.assertNotIn("reward/frac_reward_zero_std", rows[6], "pairs have no rewards to compare")
                run = self.start(config, "train.steps=6", "deterministic=true", *best, run=job + "-cut")
                self.wait_step(2, run, run=job + "-cut")
                kill(run.pid)
                run.communicate()
                self.assert_done(self.train(config, "train.steps=6", "deterministic=true", *best, "--resume", run=job + "-cut"))
                self.assertEqual(json.loads(self.path("best", "evaluation.json", run=job + "-cut").read_text()), kept)
                self.assertEqual(self.digests(job + "-cut"), self.digests(job))
                self.assertEqual(self.summary(job + "-cut")["held_out"], self.summary(job)["held_out"])
        self.assertEqual(json.loads(self.path("final", "config.json", run="reward_model").read_text())["architectures"], ["LlamaForSequenceClassification"])

    def test_text_to_be_learned_is_evaluated_by_its_loss(self):
        data = self.dir / "text.jsonl"
        data.write_text("".join(json.dumps({"text": "abcd"[i % 4:] + "=" + "ab" * (i % 5 + 1) + "cd"[i % 2]}) + "\n" for i in range(40)))
        done = self.train("configs/test/sft.yaml", "data.task=null", "data.length=null", "data.letters=null", "data.size=null",
                          f"data.path={data}", "data.held_out=8", "eval.every_steps=2", "train.steps=4", "checkpoint.every_steps=4")
        self.assert_done(done)
        self.assertIn("no held-out row has an `answer`", done.stdout)
        rows = self.metrics()
        self.assertLess(rows[4]["eval/loss"], rows[1]["eval/loss/before"])
        self.assertIn("eval/sft/token_accuracy", rows[2])
        held_out = self.summary()["held_out"]
        self.assertEqual((held_out["measure"], held_out["last"]["step"], held_out["last"]["value"]), ("loss", 4, rows[4]["eval/loss"]))
        self.assert_checked()

    def test_pairs_of_several_turns_are_learned(self):
        data = self.dir / "turns.jsonl"
        said = lambda role, text: {"role": role, "content": text}
        turns = lambda asked, first, second: [said("user", asked + "="), said("assistant", first), said("user", " again="), said("assistant", second)]
        words = [a + b for a in "abcd" for b in "abcd" if a != b]
        data.write_text("".join(json.dumps({"chosen": turns(w, w[::-1], w[::-1]), "rejected": turns(w, w + "a", w)}) + "\n" for w in words))
        self.assert_done(self.train("configs/test/dpo.yaml", "data.task=null", "data.length=null", "data.letters=null", "data.size=null",
                                    f"data.path={data}", "data.held_out=4", "train.steps=3"))
        self.assertEqual(self.metrics()[3]["eval/dpo/total"], 4)
        self.assert_checked()

    def test_a_row_that_is_no_pair_is_named(self):
        data = self.dir / "pairs.jsonl"
        rows = [{"prompt": "ab=", "chosen": "ba", "rejected": "ab"} for _ in range(3)] + [{"prompt": "ab=", "chosen": "ba"}]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = self.train("configs/test/dpo.yaml", "data.task=null", "data.length=null", "data.letters=null", "data.size=null", "data.held_out=null",
                            f"data.path={data}", run="bad")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("pairs.jsonl:4: no rejected", result.stderr)

    def test_a_student_comes_nearer_to_its_teacher(self):
        self.assert_done(self.train("configs/test/sft.yaml", "train.steps=30", "cluster.threads_per_slot=1", run="teacher"))
        teacher = self.path("final", run="teacher")
        self.assert_done(self.train("configs/test/distill.yaml", f"distill.teacher={teacher}", "train.steps=12"))
        self.assert_checked()
        loss = self.values("distill/loss")
        self.assertLess(loss[12], 0.9 * loss[1])
        self.assertIn("eval/accuracy", self.metrics()[12])
        # And by its own samples, which the teacher scores.
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "algorithm.name=on_policy_distill", f"algorithm.teacher={teacher}", "reward.functions=[{name: exact_answer}]",
                                    "train.steps=30", "cluster.threads_per_slot=1", run="own"))
        self.assert_checked("own")
        kl = self.values("teacher/kl", run="own")
        self.assertLess(sum(kl[s] for s in range(26, 31)), 0.8 * sum(kl[s] for s in range(1, 6)))


if __name__ == "__main__":
    unittest.main()
