"""Control tasks as whole jobs: a policy, environments in their own process, the same journal, ledger and kills."""
import json
import unittest
from xml.etree import ElementTree

from harness import RunTest, kill

CONFIG = "configs/test/control.yaml"


class ControlTest(RunTest):
    def test_large_fragments_that_end_together_reach_the_controller(self):
        """Together they are larger than the largest control message."""
        self.assert_done(self.train("configs/test/control.yaml", "environment.instances=128", "rollout.steps_per_fragment=256",
                                    "train.groups_per_step=8", "train.steps=2"))
        self.assertEqual([r for r in self.journal() if r["kind"] == "FENCE"], [])

    def test_a_short_cartpole_job_leaves_what_every_job_leaves(self):
        self.assert_done(self.train(CONFIG))
        self.assert_checked()
        summary = self.summary()
        self.assertEqual(summary["steps"], 6)
        self.assertEqual(summary["held_out"]["measure"], "return")
        last = summary["held_out"]["last"]
        self.assertEqual(last["total"], 20)
        self.assertTrue(last["low"] <= last["value"] <= last["high"])
        self.assertTrue(self.path("final", "model.safetensors").exists())
        self.assertIn("mlp_policy", self.path("final", "config.json").read_text())
        self.assertEqual(list(self.path("samples").glob("*")), [], "a policy has no text to keep")
        self.assertIn("a policy of control tasks writes no samples", self.command("samples", str(self.path())).stderr)
        rows = self.metrics()
        for step in range(1, 7):
            # The forward of the rollout and that of the trainer are one.
            self.assertEqual(rows[step]["training/rollout_logp_diff/max"], 0)
            self.assertEqual(rows[step]["training/rollout_value_diff/max"], 0)
        enqueued = [r for r in self.journal() if r["kind"] == "ENQ"]
        self.assertEqual(len(enqueued), 12)
        self.assertTrue(all(r["payload_bytes"] > 1000 for r in enqueued))
        self.assertTrue(all(r["payload_file"] >= 1 << 20 for r in enqueued), "who plays them writes them")
        released = [r for r in self.journal() if r["kind"] == "RELEASE"]
        self.assertTrue(released)
        self.assertTrue(all(0 < r["need_bytes"] < r["free_bytes"] for r in released), "memory is proven free for the next role")

        self.evaluates()

    def evaluates(self):
        """`tidepool eval` plays what the run's last evaluation played, and draws it."""
        asked = self.command("eval", "--model", str(self.path()), "--task", "cartpole", "--episodes", "20", "--json",
                             "--render", str(self.dir / "episode.svg"), "--output", str(self.dir / "episodes.jsonl"))
        self.assert_done(asked)
        self.assertIn("final", asked.stderr)
        played, last = json.loads(asked.stdout), self.summary()["held_out"]["last"]
        for key in ("value", "low", "high"):
            self.assertAlmostEqual(played["return"][key], last[key], places=9)
        episodes = [json.loads(line) for line in (self.dir / "episodes.jsonl").read_text().splitlines()]
        self.assertEqual([e["episode"] for e in episodes], list(range(20)))
        self.assertEqual(max(e["return"] for e in episodes), played["return"]["max"])
        self.assertEqual(min(e["steps"] for e in episodes), played["length"]["min"])
        picture = (self.dir / "episode.svg").read_text()
        self.assertIn(f"return {episodes[0]['return']:g} in {episodes[0]['steps']} steps", picture)
        ElementTree.fromstring(picture)
        sampled = self.command("eval", "--model", str(self.path()), "--episodes", "20", "--sampled", "--seed", "5", "--json")
        self.assert_done(sampled)
        self.assertNotEqual(json.loads(sampled.stdout)["return"]["value"], played["return"]["value"])
        for words, why in [(["--task", "pendulum"], "was made for cartpole"), (["--limit", "3"], "--limit is for models of text"),
                           (["--episodes", "3", "--render", "x.svg", "--episode", "3"], "--episode: 3 is not among the 3"),
                           (["--render", "x.gif"], "--render: x.gif: an animated SVG"), (["--option", "map=8x8"], "cartpole has no options")]:
            refused = self.command("eval", "--model", str(self.path()), *words)
            self.assert_done(refused, 2)
            self.assertIn(why, refused.stderr)
        refused = self.command("generate", "--model", str(self.path()), "--prompt", "a")
        self.assert_done(refused, 2)
        self.assertIn("tidepool eval --model", refused.stderr)

    def test_the_same_weights_with_and_without_kills(self):
        self.assert_done(self.train(CONFIG, "train.steps=40", run="quiet"))
        killed = self.start(CONFIG, "train.steps=40", run="killed")
        self.wait_step(3, killed, run="killed")
        self.assertTrue(kill(self.worker_pid(1, killed, run="killed")))  # environments
        self.wait_step(10, killed, run="killed")
        self.assertTrue(kill(self.worker_pid(0, killed, run="killed")))  # device
        self.finish(killed)
        for run in ("quiet", "killed"):
            self.assert_checked(run)
        faults = [r for r in self.journal("killed") if r["kind"] == "FENCE"]
        self.assertGreaterEqual(len(faults), 2)
        self.assertEqual(self.digests("quiet"), self.digests("killed"))

    def test_fragments_that_a_power_cut_has_taken_are_played_anew(self):
        run = self.start(CONFIG, "train.steps=20")
        self.wait_step(7, run)
        self.kill_controller(run)
        enqueued = [r for r in self.journal() if r["kind"] == "ENQ"]
        lost = enqueued[-4:]
        for file in {r["payload_file"] for r in lost}:
            with open(self.path("payload", f"{file:04}.tpp"), "r+b") as payload:
                payload.truncate(min(r["payload_offset"] for r in lost if r["payload_file"] == file))
        self.assert_done(self.train(CONFIG, "train.steps=20", "--resume"))
        self.assert_checked()
        reasons = {r["reason"] for r in self.journal() if r["kind"] == "DROP"}
        self.assertLessEqual(reasons, {"data_invalid", "stale"}, "nobody is to blame for it")

    def test_a_killed_controller_goes_on_where_it_was(self):
        self.assert_done(self.train(CONFIG, "train.steps=40", run="quiet"))
        run = self.start(CONFIG, "train.steps=40")
        self.wait_step(7, run)
        run.kill()
        run.communicate()
        self.assert_done(self.train(CONFIG, "train.steps=40", "--resume"))
        self.assert_checked()
        self.assertEqual(self.digests("quiet"), self.digests())
        self.assertEqual(self.summary()["held_out"]["before"]["value"], self.summary("quiet")["held_out"]["before"]["value"], "of the life before")
        report = self.command("report", str(self.path()))
        self.assert_done(report)
        page = self.path("report.html").read_text()
        self.assertIn('"eval/return/mean":{', page)
        self.assertIn('"eval/return/low":{', page)

    def test_every_placement(self):
        for placement, deterministic in [("split", "true"), ("multiplexed", "true"), ("elastic", "false")]:
            with self.subTest(placement=placement):
                self.assert_done(self.train(CONFIG, f"scheduler.placement={placement}", "cluster.slots=2", "scheduler.max_lag_versions=1",
                                            f"deterministic={deterministic}", run=placement))
                self.assert_checked(placement)
                self.assertEqual(self.summary(placement)["steps"], 6)
                self.assertIn("last", self.summary(placement)["held_out"])

    def refused(self, *overrides, words):
        result = self.command("train", CONFIG, "--dry-run", *overrides)
        self.assertEqual(result.returncode, 2, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_what_contradicts_itself_is_refused(self):
        self.refused("data.task=reverse", words=["data.task", "means nothing to a policy"])
        self.refused("environment.name=cartpol", words=["environment.name", "cartpole"])
        self.refused("environment.name=tally", words=["environment.name", "game of words"])
        self.refused("environment.map=4x4", words=["environment.map", "no options"])
        self.refused("model.initial_log_std=-1", words=["model.initial_log_std", "choices"])
        self.refused("rollout.temperature=0.5", words=["rollout.temperature", "remove it"])
        self.refused("algorithm.advantage=grpo", words=["algorithm.advantage", "gae_env"])
        self.refused("algorithm.loss=gspo", words=["algorithm.loss", "single steps"])
        self.refused("environment.instances=60000", words=["60000 instances", "security.max_control_bytes"])
        self.refused("train.minibatches=100000", words=["train.minibatches", "environment steps"])
        self.refused("model.policy=null", words=["model.policy"])


class SacTest(RunTest):
    CONFIG = "configs/test/control_sac.yaml"

    def test_pendulum_is_solved_in_few_thousand_steps(self):
        self.assert_done(self.train("configs/control/pendulum_sac.yaml", "algorithm.replay.capacity=4000"))
        self.assert_checked()
        before, last = (self.summary()["held_out"][when]["value"] for when in ("before", "last"))
        self.assertLess(before, -800)
        self.assertGreater(last, -300)
        rows = self.metrics()
        self.assertEqual([rows[s]["actor/updates"] for s in (1, 9, 10, 50)], [0, 0, 100, 100])
        self.assertEqual(rows[50]["replay/size"], 4000)
        self.assertLess(rows[50]["actor/alpha"], rows[10]["actor/alpha"])

    def test_the_same_weights_with_and_without_kills(self):
        """Of workers, which take the store from a recovery copy or a checkpoint, and of the controller."""
        self.assert_done(self.train(self.CONFIG, "train.steps=40", run="quiet"))
        self.assert_checked("quiet")
        killed = self.start(self.CONFIG, "train.steps=40", run="killed")
        self.wait_step(8, killed, run="killed")
        self.assertTrue(kill(self.worker_pid(0, killed, run="killed")))  # device
        self.wait_step(16, killed, run="killed")
        killed.kill()
        killed.communicate()
        self.assert_done(self.train(self.CONFIG, "train.steps=40", "--resume", run="killed"))
        self.assert_checked("killed")
        self.assertEqual(self.digests("quiet"), self.digests("killed"))

        def replays(run):
            return {r["step"]: r["replay"] for r in self.journal(run) if r["kind"] == "STEP_COMMIT"}

        self.assertEqual(len(set(replays("quiet").values())), 40)
        self.assertEqual(replays("quiet"), replays("killed"))

    def test_ranks_train_alike_and_every_placement_goes(self):
        for placement, slots in [("split", 2), ("multiplexed", 2), ("colocated", 2)]:
            with self.subTest(placement=placement):
                self.assert_done(self.train(self.CONFIG, f"scheduler.placement={placement}", f"cluster.slots={slots}", "scheduler.max_lag_versions=1",
                                            "train.groups_per_step=2", run=placement))
                self.assert_checked(placement)

    def test_what_means_nothing_to_it_is_refused(self):
        for words, *overrides in [
                (["algorithm.name", "acts by numbers", "choices"], "environment.name=cartpole"),
                (["algorithm.clip_low", "means nothing to algorithm.name: sac"], "algorithm.clip_low=0.1"),
                (["train.epochs", "means nothing to algorithm.name: sac"], "train.epochs=3"),
                (["algorithm.replay.capacity", "environment steps of one step"], "algorithm.replay.capacity=39"),
                (["algorithm.replay.batch_size", "algorithm.replay.capacity"], "algorithm.replay.batch_size=401"),
                (["algorithm.sac.tau"], "algorithm.sac.tau=0"),
                (["algorithm.replay.capacity", "means nothing to algorithm.name: ppo"], "algorithm.name=ppo", "algorithm.advantage=gae_env")]:
            with self.subTest(words):
                result = self.command("train", self.CONFIG, "--dry-run", *overrides)
                self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)
        result = self.command("train", "configs/quickstart.yaml", "--dry-run", "algorithm.name=sac")
        self.assertEqual(result.returncode, 2)
        self.assertIn("model: {policy: mlp}", result.stderr)


if __name__ == "__main__":
    unittest.main()
