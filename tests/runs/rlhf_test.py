"""Rewards that are models, in complete runs of the real binaries: a reward model that was trained here, a judge."""
import json
import random
import re
import subprocess
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest, kill


class RlhfTest(RunTest):
    @classmethod
    def setUpClass(cls):
        """What policies begin with, and what rewards them: made once."""
        cls.base = base = RunTest()
        base.setUp()
        data = str(base.dir / "data")
        subprocess.run(["scripts/make_preferences", data, "--rows", "4000", "--held-out", "64", "--ask", "a"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        base.assert_done(base.train("configs/rlhf/answers.yaml", *cls.rows("answers"), run="answers"))
        cls.answers = str(base.path("final", run="answers"))
        base.assert_done(base.train("configs/rlhf/reward_model.yaml", *cls.rows("train", "held_out"), f"model.path={cls.answers}", run="rm"))
        cls.scores = str(base.path("final", run="rm"))

    @classmethod
    def tearDownClass(cls):
        cls.base.tearDown()

    @classmethod
    def rows(cls, name, held_out=None):
        data = cls.base.dir / "data"
        return [f"data.path={data / name}.jsonl", f"data.eval_path={data / (held_out or name + '_held_out')}.jsonl"]

    def policy(self, *args, functions=None):
        """Arguments of a run whose reward is the reward model, or `functions`."""
        reward = f"reward.functions={functions}" if functions else f"reward.functions.1.path={self.scores}"
        return ["configs/rlhf/policy.yaml", f"model.path={self.answers}", *self.rows("questions"), reward, *args]

    def test_a_policy_learns_what_its_reward_model_was_taught(self):
        ranked = self.base.summary("rm")["held_out"]["last"]["value"]
        self.assertGreater(ranked, 0.65, "the noise leaves 0.75 in expectation")
        self.assert_done(self.train(*self.policy()))
        self.assert_checked()
        rows, truth = self.metrics(), self.summary()["accuracy"]
        self.assertLess(truth["before"], 0.3, truth)
        self.assertGreater(truth["after"], 0.7, truth)
        self.assertGreater(rows[60]["reward/reward_model/mean"], rows[1]["reward/reward_model/mean"] + 1)
        self.assertIn("eval/reward/reward_model/mean", rows[60])
        asked = self.command("eval", "--model", str(self.path()), "--json")
        self.assert_done(asked)
        said = json.loads(asked.stdout)
        self.assertEqual(said["reward_names"], ["format:^([^a]*a){6}", "reward_model"])
        self.assertAlmostEqual(said["total"]["reward/reward_model"]["value"], rows[60]["eval/reward/reward_model/mean"], places=9)
        self.assertEqual(said["total"]["accuracy"]["value"], truth["after"])

    def test_an_adapter_and_a_head_are_a_reward_model(self):
        train = ["configs/rlhf/reward_model_lora.yaml", *self.rows("train", "held_out"), f"model.path={self.answers}"]
        self.assert_done(self.train(*train, run="rm"))
        self.assert_checked("rm")
        self.assertGreater(self.summary("rm")["held_out"]["last"]["value"], 0.65, "the noise leaves 0.75 in expectation")
        adapter, merged = self.path("final", run="rm"), self.dir / "merged"
        config = json.loads((adapter / "adapter_config.json").read_text())
        self.assertEqual((config["task_type"], config["modules_to_save"]), ("SEQ_CLS", ["score"]))
        self.assertIn("with a reward model's head", self.command("models", str(adapter)).stdout)
        self.assert_done(self.command("export", str(self.path(run="rm")), "--merge", "--out", str(merged)))
        rewards = {}
        for name, folder in (("adapter", adapter), ("merged", merged)):
            self.assert_done(self.train(*self.policy(f"reward.functions.1.path={folder}", "train.steps=3", "eval.every_steps=0"), run="by-" + name))
            rewards[name] = self.metrics("by-" + name)[1]["reward/reward_model/mean"]
        self.assertAlmostEqual(rewards["adapter"], rewards["merged"], places=4)
        # A further adapter on a reward model begins with that one's score, and so with its judgement.
        self.assert_done(self.train(*train, f"model.path={merged}", "train.steps=2", "eval.before_train=true", run="further"))
        self.assertAlmostEqual(self.summary("further")["held_out"]["before"]["value"], self.summary("rm")["held_out"]["last"]["value"], delta=0.02)
        refused = self.command("generate", "--prompt", "x", "--model", str(adapter))
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("writes no text", refused.stderr)
        args = [*train, "deterministic=true", "train.steps=60", "checkpoint.every_steps=10"]
        self.assert_done(self.train(*args, run="whole"))
        cut = self.start(*args, run="cut")
        self.wait_step(14, cut, run="cut")
        self.kill_controller(cut, run="cut")
        self.assert_done(self.train(*args, "--resume", run="cut"))
        self.assertEqual(self.digests("cut"), self.digests("whole"))

    def test_a_grader_that_is_killed_loads_its_model_again_and_changes_no_bit(self):
        args = ["deterministic=true", "train.steps=12", "eval.every_steps=6", "algorithm.keep_groups=[reward_model >= -3]"]
        self.assert_done(self.train(*self.policy(*args), run="whole"))
        self.assert_done(self.train(*self.policy(*args, "reward.workers=2", "reward.batch=8", "reward.threads=2"), run="batches"))
        self.assertEqual(self.digests("batches"), self.digests("whole"), "what is computed together changes nothing")
        run = self.start(*self.policy(*args), run="cut")
        self.wait_step(3, run, run="cut")
        kill(self.worker_pid(1, run, run="cut"))
        self.finish(run)
        self.assert_checked("cut")
        log = self.path("logs", "reward-0.log", run="cut").read_text()
        self.assertEqual(log.count("event=reward_model_loaded"), 2, log)
        self.assertEqual(self.digests("cut"), self.digests("whole"))
        run = self.start(*self.policy(*args), run="resumed")
        self.wait_step(3, run, run="resumed")
        self.kill_controller(run, run="resumed")
        self.assert_done(self.train(*self.policy(*args), "--resume", run="resumed"))
        self.assertEqual(self.digests("resumed"), self.digests("whole"))

    def test_a_host_that_joins_grades_by_models_too(self):
        run = self.start(*self.policy("cluster.launch_workers=false", "security.tls=true", "security.newcomers=true", "train.steps=2", "eval.every_steps=0"))
        self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
        token = self.dir / "join.json"
        self.assert_done(self.command("join-token", str(self.path()), str(token), "--place", "0", "--place", "1"))
        host = subprocess.Popen([TIDEPOOL, "host", str(self.dir / "host"), "--join", str(token)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(host)
        self.finish(run)
        _, said = host.communicate(timeout=PATIENCE)
        self.assertEqual(host.returncode, 0, said)
        self.assertIn("reward/reward_model/mean", self.metrics()[2])

    def test_a_judge_is_asked_and_its_number_is_the_reward(self):
        rng = random.Random(1)
        data = self.dir / "grades.jsonl"
        with open(data, "w") as out:  # its grade is the number of a's
            for _ in range(2000):
                text = "".join(rng.choice("abcd") for _ in range(8))
                out.write(json.dumps({"prompt": f"grade {text} =", "answer": str(text.count("a"))}) + "\n")
        self.assert_done(self.train("configs/rlhf/answers.yaml", "model.init.alphabet=abcdefghijklmnopqrstuvwxyz =0123456789", f"data.path={data}",
                                    "data.eval_path=null", "data.held_out=8", run="judge"))
        judge = self.path("final", run="judge")
        function = f'{{name: "judge:letters", path: {judge}, prompt: "grade {{response}} =", score_max: 8, max_new_tokens: 4, max_tokens: 32}}'
        self.assert_done(self.train(*self.policy("train.steps=3", "observe.samples_per_step=16", "reward.batch=4", functions=f"[{function}]")))
        self.assert_checked()
        rows = [json.loads(line) for line in self.path("samples", "step_1.jsonl").read_text().splitlines()]
        said = {row["text"]: int(re.fullmatch("the judge said '([0-9])'", row["details"]["judge:letters"])[1]) for row in rows}
        self.assertGreater(len(set(said.values())), 1, "it tells answers apart")
        for row in rows:
            self.assertEqual(row["rewards"]["judge:letters"], said[row["text"]] / 8)
        text = rows[0]["text"]
        asked = self.command("generate", str(judge), "--prompt", f"grade {text} =", "--temperature", "0", "--max-new-tokens", "4")
        self.assertIn(str(said[text]), asked.stdout, "what the same model says to the same words")
        self.assertIn("reward/judge:letters/mean", self.metrics()[3])

    def test_a_model_that_cannot_grade_is_refused_by_its_line(self):
        for function, words in {
            f"{{name: reward_model, path: {self.answers}}}": "reward.functions[0].path: " + self.answers + " has no value head",
            f"{{name: judge, path: {self.scores}}}": "has a value head and writes no text, so it cannot be a judge",
            f"{{name: reward_model, path: {self.base.path(run='rm')}}}": "is a run and no model folder; give the model that it ended with",
            f"{{name: exact_answer, path: {self.scores}}}": "reward.functions[0].path: is a key of judge and reward_model",
            "{name: reward_model}": "grades by a model, and none is named",
        }.items():
            with self.subTest(function):
                refused = self.train(*self.policy(functions=f"[{function}]"))
                self.assertEqual(refused.returncode, 2, refused.stdout)
                self.assertIn(words, refused.stderr)
                self.assertFalse(self.path().exists())
        config = self.dir / "x.yaml"
        config.write_text(f"extends: {ROOT}/configs/rlhf/policy.yaml\nreward:\n  functions:\n    - {{name: reward_model,\n       path: {self.answers}}}\n")
        refused = self.command("validate", str(config), f"model.path={self.answers}", *self.rows("questions"))
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn(f"{config}:5: reward.functions[0].path: {self.answers} has no value head", refused.stderr)


if __name__ == "__main__":
    unittest.main()
