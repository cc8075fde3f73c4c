"""What goes wrong before or at the start: one clear message, the right exit code, nothing half-written, no hang."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest, alive

CONFIG = "configs/test/rl_colocated.yaml"


class BadInputTest(RunTest):
    def refused(self, result, *words, code=2):
        self.assert_done(result, code)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("terminate called", result.stderr)

    def write(self, text):
        path = self.dir / "job.yaml"
        path.write_text(text)
        return str(path)

    def base(self):
        return (ROOT / CONFIG).read_text()

    def test_unknown_key_names_file_line_and_the_nearest_key(self):
        path = self.write(self.base().replace("groups_per_step", "group_per_step"))
        self.refused(self.train(path), "job.yaml:", "group_per_step", "groups_per_step")
        self.assertFalse(self.path().exists(), "a run directory was made for a config that is wrong")

    def test_a_word_that_is_no_command_names_the_nearest_one(self):
        self.refused(self.command("chekc", "runs/x"), "chekc", "did you mean `tidepool check`")
        self.refused(self.command("zzzzzz"), "zzzzzz", "tidepool --help")

    def test_every_environment_that_is_listed_is_one_for_a_config(self):
        names = [e["name"] for e in json.loads(self.command("environments", "--json").stdout)]
        self.assertIn("cartpole", names)
        for name in names:
            result = self.command("train", "configs/control/cartpole.yaml", "--dry-run", f"environment.name={name}")
            self.assertNotIn("no environment is named", result.stderr)

    def test_a_control_task_lists_its_options(self):
        self.assertIn("slippery: true", self.command("environments", "frozen_lake_grid").stdout)
        self.assertIn("options      none", self.command("environments", "cartpole").stdout)

    def test_a_run_that_was_killed_in_its_first_moments_can_be_begun_again(self):
        run = self.path()
        run.mkdir()
        (run / "lock").touch()
        (run / "config.yaml.tmp").write_text("name: x")
        self.refused(self.command("check", str(run)), "ended before it began", "--run-dir")
        self.assert_done(self.train(CONFIG, "train.steps=1", "--resume"))

    def test_resume_and_fresh_need_a_run_that_they_can_go_on_with_or_move_aside(self):
        self.refused(self.train(CONFIG, "--resume"), "--resume: ", "no such folder", "without --resume")
        self.assertFalse(self.path().exists(), "--resume began a new run")
        self.path().mkdir()
        self.refused(self.train(CONFIG, "--resume"), "--resume: ", "holds no run")
        self.refused(self.train(CONFIG, "--resume", "--fresh"), "--resume", "--fresh", "one of them")
        self.refused(self.command("train", CONFIG, "--fresh"), "--fresh", "--run-dir")
        self.refused(self.command("train", CONFIG, "--fresh"), f"tidepool train {CONFIG} --run-dir DIR --fresh`")
        self.refused(self.command("train", CONFIG, "--run-dir", ""), "--run-dir", "is empty")
        (self.path() / "config.yaml").write_text("name: x\n")
        self.refused(self.command("train", str(self.path()), "--fresh", "seed=2"),
                     f"tidepool train {self.path()}/config.yaml --run-dir {self.path()} --fresh seed=2`")
        (self.path() / "lock").mkdir()
        refused = self.train(CONFIG, "--resume")
        self.refused(refused, "lock: cannot open lock file", "folder")
        self.assertNotIn("another process", refused.stderr)

    def test_wrong_type(self):
        path = self.write(self.base().replace("max_new_tokens: 8", "max_new_tokens: many"))
        self.refused(self.train(path), "job.yaml:", "max_new_tokens", "many")

    def test_pace_that_cannot_be_kept_to(self):
        self.refused(self.train("configs/test/paced.yaml", "cluster.pace=no/such/pace.yaml"), "cluster.pace", "no/such/pace.yaml")
        pace = self.dir / "pace.yaml"
        pace.write_text("name: x\nhardware: still\nmodel: {parameters: 1e9, layers: 1, heads: 1, kv_heads: 1, head_size: 8}\n")
        (self.dir / "still").write_text("name: still\nsource: none\ntflops: 1\nmemory_gb: 1\nmemory_gb_per_s: 0\nlink_gb_per_s: 1\nnet_gb_per_s: 1\nhost_gb_per_s: 1\n")
        self.refused(self.train("configs/test/paced.yaml", f"cluster.pace={pace}"), "memory_gb_per_s", "0")
        self.refused(self.train(CONFIG, "cluster.pace_scale=2"), "cluster.pace_scale", "cluster.pace")

    def test_missing_model_folder(self):
        path = self.write("name: x\njob: rl\nmodel: {path: no/such/folder}\ndata: {task: products}\n"
                          "reward: {functions: [{name: exact_answer}]}\n")
        self.refused(self.train(path), "no/such/folder")

    def test_truncated_safetensors(self):
        self.assert_done(self.train(CONFIG, "train.steps=1"))
        model = self.dir / "model"
        shutil.copytree(self.path("final"), model)
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        text = f"name: x\njob: rl\nmodel: {{path: {model}}}\ndata: {{task: reverse, length: [2, 3], letters: abcd, size: 32, held_out: 4}}\n" \
               "reward: {functions: [{name: exact_answer}]}\ntrain: {steps: 1, groups_per_step: 2}\nrollout: {group_size: 2, max_new_tokens: 4}\n"
        self.refused(self.train(self.write(text), run="second"), "model.safetensors")
        self.assertFalse(self.path(run="second").exists(), "a run directory was made for a model that cannot be read")

    def test_a_run_that_is_refused_late_leaves_nothing_in_the_way(self):
        def small():  # config.yaml does not fit, and it is written when the folder is there
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

        def refused(*args):
            return subprocess.run([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path()), "train.steps=1", *args], cwd=ROOT, preexec_fn=small,
                                  capture_output=True, text=True, timeout=PATIENCE)

        self.refused(refused(), "config.yaml")
        self.assertFalse(self.path().exists(), "a run directory is left of a run that was refused")
        self.path().mkdir()
        self.refused(refused(), "config.yaml")
        self.assertEqual(list(self.path().iterdir()), [])
        self.assert_done(self.train(CONFIG, "train.steps=1"))
        late = refused("--fresh")
        self.refused(late, "config.yaml")
        self.assertIn("the old run is back", late.stdout)
        self.assertEqual(self.summary()["steps"], 1)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["run"])

    def test_rows_that_cannot_be_used_are_named_before_a_run_begins(self):
        rows = self.dir / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": "a" * 60, "answer": "a"}) + "\n" for _ in range(8)))
        self.refused(self.train(CONFIG, "data.task=null", "data.length=null", "data.letters=null", "data.size=null", "data.held_out=null", f"data.path={rows}"),
                     "no row of the data can be used", "rows.jsonl:", "the prompt has 6")
        self.assertFalse(self.path().exists(), "a run directory was made for data that cannot be used")

    def test_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(self.train(CONFIG, f"cluster.port={port}"), "cluster.port", str(port))
        self.assertFalse(self.path().exists(), "a run directory was made for a run that cannot begin")

    def test_bind_beyond_loopback(self):
        self.refused(self.train(CONFIG, "cluster.bind=0.0.0.0"), "write the one they can reach to cluster.advertise")
        self.refused(self.train(CONFIG, "cluster.bind=10.0.0.1"), "write cluster.weight_transport: stream")

    def test_run_directory_that_cannot_be_written(self):
        if os.geteuid() == 0:
            # Root writes anywhere; a file in the way is the same failure for everybody.
            (self.dir / "file").write_text("")
            run, remedy = self.dir / "file" / "run", "a part of the path is a file, not a folder; check the path"
        else:
            (self.dir / "locked").mkdir(mode=0o500)
            run, remedy = self.dir / "locked" / "run", "permission"
        self.refused(self.command("train", CONFIG, "--run-dir", str(run)), str(run), remedy)

    def test_worker_binary_that_is_missing(self):
        self.refused(self.train(CONFIG, f"cluster.worker_dir={self.dir}"), "cluster.worker_dir", "tidepool-worker")

    def test_worker_that_dies_at_its_start_three_times(self):
        fake = self.dir / "bin"
        fake.mkdir()
        (fake / "tidepool-worker").write_text("#!/bin/sh\necho 'no such device: x' >&2\nexit 7\n")
        (fake / "tidepool-worker").chmod(0o755)
        result = self.train(CONFIG, f"cluster.worker_dir={fake}")
        self.refused(result, "exit status 7: no such device: x; see logs/device-0.log", code=3)

    def test_worker_that_would_end_so_again_is_started_once(self):
        fake = self.dir / "bin"
        fake.mkdir()
        (fake / "tidepool-worker").write_text(f"#!/bin/sh\necho x >> {self.dir}/starts\necho 'of another build' >&2\nexit 2\n")
        (fake / "tidepool-worker").chmod(0o755)
        result = self.train("configs/test/sft.yaml", "cluster.slots=1", f"cluster.worker_dir={fake}")
        self.refused(result, "would end so again: process", "exit status 2: of another build; see logs/device-0.log", code=3)
        self.assertEqual((self.dir / "starts").read_text(), "x\n")

    def test_batch_that_cannot_fit(self):
        self.refused(self.train(CONFIG, "train.micro_batch_tokens=4"), "micro_batch_tokens")
        self.refused(self.train(CONFIG, "train.micro_batch_tokens=10"), "train.micro_batch_tokens = 10")

    def test_run_directory_that_holds_another_run(self):
        self.assert_done(self.train(CONFIG, "train.steps=1"))
        again = self.train(CONFIG, "train.steps=2", "seed=2", "--resume")
        self.refused(again, "seed", f"tidepool train {CONFIG} --run-dir {self.path()} --fresh train.steps=2 seed=2`")
        self.refused(self.command("train", str(self.path()), "train.steps=2", "seed=2", "--resume"),
                     f"tidepool train {self.path()}/config.yaml --run-dir {self.path()} --fresh train.steps=2 seed=2`")

    def test_disk_full(self):
        mount = self.dir / "small"
        mount.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True)
        if made.returncode != 0:
            self.skipTest("a small file system cannot be mounted here (needs root)")
        try:
            result = subprocess.run([TIDEPOOL, "train", CONFIG, "--run-dir", str(mount / "run"), "train.steps=400", "checkpoint.every_steps=1"],
                                    cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            self.refused(result, "fault=storage actor=controller step=", f"journal: the disk of {mount / 'run'} (host {socket.gethostname()}) has no space left; "
                         "free some (`tidepool prune` of runs that have ended), then --resume", code=3)
            journal = self.command("journal", str(mount / "run"), "--json").stdout.splitlines()
            self.assertIn('"kind":"FAULT"', journal[-2], "why it ended is in the journal")
            self.assertIn('"kind":"END_RUN"', journal[-1])
            self.assert_done(self.command("check", str(mount / "run")))
            self.assertEqual(json.loads((mount / "run" / "status.json").read_text())["state"], "failed")
            said = self.command("status", str(mount / "run")).stdout
            self.assertRegex(said, "state +failed")
            self.assertRegex(said, "why +fault=")
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=False)

    def test_a_reward_server_that_is_not_there_is_named(self):
        result = self.train(CONFIG, 'reward.functions=[{name: mine, endpoint: "127.0.0.1:9", timeout_s: 1}]')
        self.refused(result, "fault=reward_infra", "the last one: mine at 127.0.0.1:9: unreachable for ", "Connection refused", code=3)

    def evaluates(self, model):
        """Two files and a task in one call; each answer with its grade; sets do not change each other's answers."""
        rows = {"a.jsonl": ["abc", "xyz", "q"], "b.jsonl": ["hello", ""]}
        for name, words in rows.items():
            text = "".join(json.dumps({"prompt": f"{w}=", "answer": w[::-1]}) + "\n" for w in words)
            (self.dir / name).write_text(text)
        a, b, out = (str(self.dir / name) for name in ("a.jsonl", "b.jsonl", "answers.jsonl"))
        sampling = ["--model", model, "--samples", "4", "--temperature", "1", "--max-new-tokens", "6"]
        asked = self.command("eval", *sampling, "--task", "reverse", "--limit", "3", "--data", a, "--data", b, "--reward", "exact_answer",
                             "--reward", "length_penalty:4", "--pass-at", "1,3,4", "--output", out, "--json")
        self.assert_done(asked)
        result = json.loads(asked.stdout)
        self.assertEqual([s["set"] for s in result["sets"]], ["reverse", a, b])
        self.assertEqual([s["rows"] for s in result["sets"]], [3, 3, 2])
        self.assertEqual(result["total"]["answers"], 32)
        for key in ("accuracy", "pass@1", "pass@3", "pass@4", "reward", "reward/length_penalty:4"):
            self.assertTrue(result["total"][key]["low"] <= result["total"][key]["value"] <= result["total"][key]["high"], key)
        answers = [json.loads(line) for line in pathlib.Path(out).read_text().splitlines()]
        self.assertEqual(len(answers), 32)
        self.assertEqual([r["sample"] for r in answers[:5]], [0, 1, 2, 3, 0])
        of_b = [r for r in answers if r["set"] == b]
        self.assertEqual([r["line"] for r in of_b], [1] * 4 + [2] * 4)
        # The last row has no answer: it cannot be right or wrong.
        self.assertEqual([r["score"] is None for r in of_b], [False] * 4 + [True] * 4)
        self.assertEqual(result["total"]["unscored"], 4)
        self.assertIn(f"4 of 32 answers are not scored; the first: {b}:2: exact_answer: ", asked.stderr)
        self.assertAlmostEqual(sum(r["reward"] for r in answers if r["set"] == a) / 12, result["sets"][1]["reward"]["value"])
        self.assert_done(self.command("eval", *sampling, "--data", a, "--output", out))
        alone = [json.loads(line)["text"] for line in pathlib.Path(out).read_text().splitlines()]
        self.assertEqual(alone, [r["text"] for r in answers if r["set"] == a])
        table = self.command("eval", "--model", model, "--task", "reverse", "--limit", "4", "--data", a)
        self.assert_done(table)
        self.assertEqual(table.stdout.split()[:3], ["set", "measure", "value"])
        self.assertIn("total", table.stdout)
        (self.dir / "a.jsonl").write_text('{"prompt": "abc="}\n{"prompt": 7}\n')
        self.refused(self.command("eval", "--model", model, "--data", a), "a.jsonl:2: ")

    def test_a_run_of_a_file_is_asked_what_its_last_evaluation_asked(self):
        rows = self.dir / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": f"{a}{b}=", "answer": b + a}) + "\n" for a in "abcd" for b in "abcd"))
        config = self.write(re.sub("data: .*", f"data: {{path: {rows}, held_out: 6}}", self.base()).replace("format:[ab]", "length_penalty:4"))
        self.assert_done(self.train(config, "train.steps=1", "eval.samples=5", "deterministic=true"))
        asked = self.command("eval", "--model", str(self.path()), "--deterministic", "--json")
        self.assert_done(asked)
        result, last = json.loads(asked.stdout), self.metrics()[1]
        self.assertEqual(result["reward_names"], ["exact_answer", "length_penalty:4"])
        self.assertEqual((result["total"]["rows"], result["max_new_tokens"]), (5, 8))
        self.assertEqual(result["sets"][0]["set"], f"{rows} (held out)")
        self.assertNotEqual(last["eval/reward/mean"], 0)
        for name, metric in [("reward", "eval/reward/mean"), ("accuracy", "eval/accuracy"),
                             ("reward/length_penalty:4", "eval/reward/length_penalty:4/mean")]:
            self.assertAlmostEqual(result["total"][name]["value"], last[metric], msg=name)
        # Also where no checkpoint says any more which rows they were.
        self.assert_done(self.command("prune", str(self.path()), "--final-only"))
        self.assertEqual(self.command("eval", "--model", str(self.path()), "--deterministic", "--json").stdout, asked.stdout)
        # Of another file of that name other rows would be held out, and those that were trained on asked.
        rows.write_text(rows.read_text() + '{"prompt": "q=", "answer": "q"}\n')
        self.refused(self.command("eval", "--model", str(self.path())), "have changed since it was trained", "--data FILE")
        rows.unlink()
        self.refused(self.command("eval", "--model", str(self.path())), "rows.jsonl: no such file", "--data")
        self.refused(self.command("eval", "--model", str(self.path()), "--held-out", "3"), "--held-out is for --task")
        shutil.copytree(self.path("final"), self.dir / "no-run")
        self.refused(self.command("eval", "--model", str(self.dir / "no-run")), "give --task or --data")

    def test_a_model_outside_a_run(self):
        self.assert_done(self.train(CONFIG, "train.steps=1"))
        final = str(self.path("final"))
        self.refused(self.command("export", str(self.path()), "--out", str(self.dir / ("x" * 300) / "y")), "too long")
        # Answers end where the model has no more positions.
        self.assert_done(self.command("generate", "--model", final, "--prompt", "ab"))
        # A run is named as everywhere.
        for model, taken in [(str(self.path()), "final"), (str(self.path()) + ":1", "step_1/model")]:
            said = self.command("generate", "--model", model, "--prompt", "ab", "--max-new-tokens", "2")
            self.assert_done(said)
            self.assertIn(taken, said.stderr)
        self.evaluates(final)
        refused = self.command("eval", "--model", str(self.path()) + ":7", "--task", "reverse")
        self.refused(refused, "no checkpoint of step 7; there are those of step 0, 1")
        # Ctrl-C leaves neither its worker nor its files.
        asked = subprocess.Popen([TIDEPOOL, "generate", "--model", final, "--prompt", "ab"], cwd=ROOT, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.started.append(asked)
        child = f"/proc/{asked.pid}/task/{asked.pid}/children"
        worker = int(self.wait_for(lambda: pathlib.Path(child).read_text(), "a worker", asked).split()[0])
        folder = self.wait_for(lambda: re.search("--token-file=(/dev/shm/tidepool-[^/]+)", pathlib.Path(f"/proc/{worker}/cmdline").read_text()), "its command line", asked)
        asked.send_signal(signal.SIGINT)
        self.assertIn("stopped", self.finish(asked, code=3)[1])
        self.assertFalse(alive(worker))
        self.assertFalse(pathlib.Path(folder[1]).exists())
        self.refused(self.command("generate", "--model", final, "--prompt", "ab " * 20), "48 positions", "shorten the prompt", code=3)

    def test_no_arguments_and_unknown_commands_are_usage_errors(self):
        for args in [[], ["trian"], ["train"], ["train", "no/such/file.yaml"]]:
            result = self.command(*args)
            self.assertEqual(result.returncode, 2, args)
            self.assertTrue(result.stderr.strip() or result.stdout.strip())


if __name__ == "__main__":
    unittest.main(verbosity=2)
