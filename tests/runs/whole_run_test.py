"""Complete runs of the real binaries: every placement and kind of job, and what they leave behind."""
import gzip
import json
import pathlib
import re
import shlex
import unittest

from harness import RunTest


class WholeRunTest(RunTest):
    def check_run(self, run="run", steps=4):
        rows = self.metrics(run)
        self.assertEqual([s for s in rows if s > 0], list(range(1, steps + 1)))
        self.assert_checked(run)
        summary = self.summary(run)
        self.assertEqual(summary["exit"], 0)
        self.assertEqual(summary["steps"], steps)
        for name in ["config.yaml", "report.html", "final/config.json", "final/model.safetensors", "final/tokenizer.json"]:
            self.assertTrue(self.path(name, run=run).exists(), name)
        self.assertTrue(list(self.path("tb", run=run).iterdir()))
        # The time line shows every worker at work.
        spans = {}
        for file in self.path("trace", run=run).iterdir():
            events = json.loads(gzip.open(file, "rt").read())["traceEvents"]
            spans.setdefault(file.name.split("-")[0], set()).update(e["cat"] for e in events if e["ph"] == "X")
        wanted = {"device": {"rollout", "train"}, "reward": {"reward"}} if summary["job"] == "rl" else {"device": {"train"}}
        for kind, categories in wanted.items():
            self.assertLessEqual(categories, spans.get(kind, set()), kind)
        return rows

    def test_colocated_run_leaves_everything_a_user_looks_at(self):
        result = self.train("configs/test/rl_colocated.yaml")
        self.assert_done(result)
        rows = self.check_run()
        self.assertIn("critic/score/mean", rows[1])
        for step in range(1, 5):  # 4 groups a step
            self.assertIn(rows[step]["reward/frac_reward_zero_std"], [0, .25, .5, .75, 1])
            self.assertLessEqual(rows[step]["reward/solve_none"] + rows[step]["reward/solve_all"], rows[step]["reward/frac_reward_zero_std"])
        self.assertEqual(max(r["staleness/max"] for s, r in rows.items() if s > 0), 0)
        self.assertIn("eval/accuracy", rows[0])
        self.assertIn("eval/accuracy", rows[4])
        # The speed in the end is that of all steps, not of the last one.
        timed = [r for r in rows.values() if "rollout/tok_s" in r]
        mean = sum(r["rollout/tok_s"] * r["timing_s/step"] for r in timed) / sum(r["timing_s/step"] for r in timed)
        self.assertAlmostEqual(self.status()["tokens_per_s"] / mean, 1, places=3)
        self.assertIn(" tok/s generated, mean of the steps", result.stdout + result.stderr)
        samples = [json.loads(line) for line in self.path("samples", "step_1.jsonl").read_text().splitlines()]
        self.assertEqual(len(samples), 4)
        for sample in samples:
            self.assertEqual(len(sample["ids"]), len(sample["logprobs"]))
            self.assertEqual(len(sample["ids"]), len(sample["versions"]))
            self.assertEqual(sample["rewards"]["exact_answer"] + 0.5 * sample["rewards"]["format:[ab]"], sample["reward"])
        # Chunks are three tokens here: some sample crossed one.
        self.assertTrue(any(len(s["ids"]) > 3 for s in samples))
        generated = self.command("generate", "--model", str(self.path("final")), "--prompt", "rev abc=", "--max-new-tokens", "4")
        self.assert_done(generated)

    def test_paced_slots_take_the_time_of_the_modelled_hardware_and_say_so(self):
        result = self.train("configs/test/paced.yaml")
        self.assert_done(result)
        self.assertIn("paced:", result.stdout)
        rows = self.check_run()
        paced = self.summary()["paced"]
        self.assertGreater(paced["steps"], 50)
        # 30M parameters, three times a forward, at 0.09 TFLOP/s: every step of some hundred tokens takes longer than this.
        for step in [2, 3, 4]:
            self.assertGreater(rows[step]["timing_s/update_actor"], 0.05)
        self.assertIn('"paced_note":"', self.path("report.html").read_text())

    def test_split_run_trains_within_its_lag_bound_on_either_transport(self):
        for transport in ["shared_memory", "stream"]:
            with self.subTest(transport=transport):
                result = self.train("configs/test/rl_split.yaml", f"cluster.weight_transport={transport}", run=transport)
                self.assert_done(result)
                rows = self.check_run(run=transport)
                self.assertLessEqual(max(r["staleness/max"] for s, r in rows.items() if s > 0), 1)

    def test_a_slot_that_generates_has_the_weights_once_and_one_that_trains_twice(self):
        d, ff, layers, heads, kv = 768, 2048, 10, 12, 4
        parameters = layers * (d * 64 * 2 * (heads + kv) + 3 * d * ff)  # without what does not count: embedding, norms

        def held_by(run, *model):  # pages that each process alone has, not published ones
            started = self.start("configs/test/rl_split.yaml", "model.dtype=bfloat16", *model, "train.steps=1000", "train.micro_batch_tokens=128",
                                 "checkpoint.every_steps=0", "eval.every_steps=0", "eval.samples=2", run=run)
            self.wait_step(3, started, run=run)
            held = []
            for place in [0, 1]:
                status = pathlib.Path(f"/proc/{self.worker_pid(place, started, run=run)}/status").read_text()
                held.append(int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024)
            self.kill_controller(started, run=run)
            return held

        without = held_by("tiny")  # nearly no weights
        held = held_by("large", f"model.init.hidden_size={d}", f"model.init.intermediate_size={ff}", f"model.init.layers={layers}", f"model.init.heads={heads}",
                       f"model.init.kv_heads={kv}", "model.init.head_size=64")
        # Optimizer and gradients in bytes a parameter. Keys, values and what a step computes take less than half of these weights.
        weights, besides = 2 * parameters, 40e6
        self.assertLessEqual(held[1] - without[1], 1.1 * weights + besides)
        self.assertLessEqual(held[0] - without[0], 2.1 * weights + (10 + 4) * parameters + besides)

    def test_every_placement_on_several_slots_trains_and_is_proven(self):
        cases = {"colocated": ["cluster.slots=2"],
                 "split": ["cluster.slots=3", "scheduler.actor_slots=2"],
                 "multiplexed": ["cluster.slots=3", "scheduler.actor_slots=2"],
                 # Long enough steps that a second slot is worth a try; the policy may find out that it does not pay here.
                 "elastic": ["cluster.slots=3", "scheduler.actor_slots=2", "train.epochs=40"]}
        for placement, overrides in cases.items():
            with self.subTest(placement=placement):
                # Two slots train together, in every placement. On a busy machine the second worker may join after the first dozen of such
                # short steps; then there have to be more of them.
                for steps in (12, 60, 300):
                    run = f"{placement}-{steps}"
                    self.assert_done(self.train("configs/test/rl_split.yaml", f"scheduler.placement={placement}", *overrides, f"train.steps={steps}", run=run))
                    rows = self.check_run(run=run, steps=steps)
                    self.assertLessEqual(max(r["staleness/max"] for s, r in rows.items() if s > 0), 1)
                    records = self.journal(run)
                    members = [len(r["members"]) for r in records if r["kind"] == "STEP_BEGIN"]
                    if 2 in members:
                        break
                self.assertIn(2, members)
                if placement in ("multiplexed", "elastic"):
                    # Training slots went to training and came back, again and again, and the others never stopped.
                    self.assertGreater(sum(r["kind"] == "T_DONE" for r in records), 12)
                    trained = {s["slot"] for r in records if r["kind"] == "T_BEGIN" for s in r["slots"] if s["to"] == "actor"}
                    self.assertNotIn(2, trained if placement == "multiplexed" else set())
                self.assertFalse([r for r in records if r["kind"] == "T_ROLLED_BACK"])
                # A slot that changed hands was proven to have room for its next role.
                releases = [r for r in records if r["kind"] == "RELEASE"]
                self.assertEqual(bool(releases), placement != "split")
                for r in releases:
                    self.assertGreater(r["need_bytes"], 0)
                    self.assertGreaterEqual(r["free_bytes"], r["need_bytes"])

    def test_deterministic_runs_train_the_same_weights_in_every_placement_whoever_generated(self):
        digests, moved = {}, 0
        for placement, slots in [("colocated", 1), ("split", 2), ("multiplexed", 2)]:
            self.assert_done(self.train("configs/test/deterministic.yaml", f"scheduler.placement={placement}", f"cluster.slots={slots}",
                                        "cluster.threads_per_slot=1", "train.steps=12", run=placement))
            digests[placement] = self.digests(placement)
            workers = {}
            for r in self.journal(placement):
                if r["kind"] == "START":
                    workers.setdefault(tuple(r["tid"].values()), set()).add(r["w"])
            moved += sum(len(w) > 1 for w in workers.values())
        self.assertEqual(len(set(digests["colocated"].values())), 12)  # every step changed something
        self.assertEqual(digests["split"], digests["colocated"])
        self.assertEqual(digests["multiplexed"], digests["colocated"])
        self.assertGreater(moved, 0)  # samples went on elsewhere, with their tokens, as if they had not moved

    def test_split_without_lag_is_synchronous(self):
        self.assert_done(self.train("configs/test/rl_split.yaml", "scheduler.max_lag_versions=0"))
        rows = self.check_run()
        self.assertEqual(max(r["staleness/max"] for s, r in rows.items() if s > 0), 0)

    def test_colocated_run_with_lag_keeps_the_bound(self):
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "scheduler.max_lag_versions=2"))
        rows = self.check_run()
        self.assertLessEqual(max(r["staleness/max"] for s, r in rows.items() if s > 0), 2)

    def test_supervised_job_lowers_its_loss(self):
        self.assert_done(self.train("configs/test/sft.yaml", "train.steps=20"))
        rows = self.metrics()
        self.assert_checked()
        self.assertLess(rows[20]["actor/loss"], rows[1]["actor/loss"])
        self.assertLess(rows[20]["eval/loss"], rows[1]["eval/loss/before"])

    def test_supervised_job_runs_on_every_placement(self):
        for placement, slots in [("split", 2), ("colocated", 2), ("multiplexed", 2)]:
            with self.subTest(placement=placement):
                self.assert_done(self.train("configs/test/sft.yaml", f"scheduler.placement={placement}", f"cluster.slots={slots}", run=placement))
                self.assert_checked(placement)

    def test_warm_start_is_a_job_of_its_own_and_the_main_job_starts_from_it(self):
        self.assert_done(self.train("configs/test/warm_start.yaml"))
        self.check_run()
        self.assert_checked("run/warm_start")
        self.assertEqual(self.summary("run/warm_start")["exit"], 0)

    def test_deterministic_mode_recomputes_every_log_prob_exactly(self):
        for name, extra in [("colocated", []), ("split", ["scheduler.placement=split", "scheduler.actor_slots=1",
                                                          "cluster.slots=2", "cluster.threads_per_slot=1"])]:
            with self.subTest(placement=name):
                self.assert_done(self.train("configs/test/deterministic.yaml", *extra, run=name))
                for step, row in self.metrics(name).items():
                    if step > 0:
                        self.assertEqual(row["training/rollout_logp_diff/max"], 0.0, f"step {step}")
        # One slot of two threads or two of one: the same numbers, so the same weights.
        self.assertEqual(self.digests("colocated"), self.digests("split"))

    def test_two_deterministic_runs_end_with_the_same_weights(self):
        self.assert_done(self.train("configs/test/deterministic.yaml", run="a"))
        self.assert_done(self.train("configs/test/deterministic.yaml", run="b"))
        self.assertEqual(self.digests("a"), self.digests("b"))

    def test_a_finished_run_says_so_and_is_not_run_again(self):
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "train.steps=1"))
        before = self.path("metrics.jsonl").read_text()
        again = self.train("configs/test/rl_colocated.yaml", "train.steps=1", "--resume")
        self.assert_done(again)
        self.assertIn("finished", again.stdout + again.stderr)
        named = self.command("train", str(self.path()), "--resume")
        anew = re.search("start over with `(.*)`", named.stdout)[1]
        self.assertIn(f"{self.path()}/config.yaml --run-dir {self.path()} --fresh", anew)
        self.assertEqual(self.path("metrics.jsonl").read_text(), before)
        status = self.command("status", str(self.path()))
        self.assert_done(status)
        self.assertIn(f"weights {self.summary()['policy_version']}", status.stdout)

        over = self.command(*shlex.split(anew)[1:])
        self.assert_done(over)
        self.assertIn("the old run is now", over.stdout)

    def test_the_last_step_of_a_short_run_is_told(self):
        run = self.train("configs/test/rl_split.yaml", "train.steps=2")
        self.assert_done(run)
        self.assertRegex(run.stdout, r"(?m)^finished  step 2/2  reward [0-9.]+ ")
        self.assertRegex(self.command("status", str(self.path())).stdout, r"learning +reward [0-9.]+")

    def test_a_run_that_learns_nothing_warns_once_and_goes_on(self):
        run = self.train("configs/test/rl_colocated.yaml", "train.steps=22", "data.length=8", "rollout.max_new_tokens=1",
                         "reward.functions=[{name: exact_answer}]")
        self.assert_done(run)
        self.assertEqual(run.stdout.count("warning: all rewards of each group were equal for 20 steps: nothing is learned"), 1)
        self.assertEqual(self.path("logs/controller.log").read_text().count("event=nothing_learned step=20 "), 1)

    def test_a_finished_run_goes_on_with_more_steps(self):
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "train.steps=2"))
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "train.steps=4", "--resume"))
        self.check_run()


if __name__ == "__main__":
    unittest.main(verbosity=2)
