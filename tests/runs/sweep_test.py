"""Sweeps: runs that differ in some values train adapters over one model on one device, each as if it were alone."""
import json
import os
import signal
import subprocess
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest, descendants, kill

CONFIG = "configs/lora/tiny.yaml"
EXACT = ["deterministic=true", "cluster.threads_per_slot=1"]


class SweepTest(RunTest):
    def sweep(self, *args, timeout=PATIENCE):
        return self.command("sweep", *args, timeout=timeout)

    def start_sweep(self, *args):
        process = subprocess.Popen([TIDEPOOL, "sweep", *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def result(self, name="s"):
        with open(self.path("sweep.json", run=name)) as file:
            return json.load(file)

    def assert_as_alone(self, labels, name="s"):
        """Each run of the sweep left what `tidepool train` leaves of its config alone."""
        for label in labels:
            config = self.path(label, "config.yaml", run=name)
            self.assert_done(self.train(config, run=f"alone-{label}"))
            self.assertEqual(self.digests(f"{name}/{label}"), self.digests(f"alone-{label}"), label)
            self.assert_checked(f"{name}/{label}")

    def pool_of(self, process):
        return next((pid for pid, words in self.processes(process) if "pool" in words[1:2]), None)

    @staticmethod
    def processes(process):
        for pid in descendants(process.pid):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    yield pid, file.read().decode().split("\0")
            except OSError:
                continue

    def test_runs_are_what_they_are_alone(self):
        rates = ["learning_rate-1.0e-2", "learning_rate-2.0e-2"]
        labels = [f"{rate}_rank-{rank}" for rate in rates for rank in (2, 4)]
        config = self.dir / "mine.yaml"
        config.write_text(f"extends: {ROOT}/{CONFIG}\n")
        self.assert_done(self.sweep(config, "train.learning_rate=1.0e-2, 2.0e-2", "model.lora.rank=2,4", *EXACT, "--run-dir", self.path(run="s")))
        result = self.result()
        self.assertEqual([run["run"] for run in result["runs"]], labels)
        self.assertEqual({run["state"] for run in result["runs"]}, {"finished"})
        self.assertIn(result["best"], labels)
        self.assertEqual(len({json.dumps(self.digests(f"s/{label}")) for label in labels}), 4)
        self.assert_as_alone(labels)
        of_sweep = self.command("status", self.path(run="s"))
        self.assertEqual(of_sweep.returncode, 2)
        self.assertIn("a sweep, whose runs are folders in it", of_sweep.stderr)
        # Elsewhere each run still has the model that the sweep made for all.
        config.unlink()  # what it was begun with is in the sweep
        self.path(run="s").rename(self.dir / "moved")
        self.assert_done(self.sweep(self.dir / "moved", "--resume"))
        self.assert_done(self.command("generate", "--model", self.dir / "moved" / labels[0], "--prompt", "rev abc=", "--max-new-tokens", "4"))

    def test_supervised_runs_are_what_they_are_alone(self):
        for job, rates in (("sft", ["1.0e-3", "2.0e-3"]), ("dpo", ["3.0e-3", "4.0e-3"])):
            self.assert_done(self.sweep(f"configs/test/{job}.yaml", "train.learning_rate=" + ",".join(rates), "model.lora.rank=2", "train.steps=3", *EXACT,
                                        "--run-dir", self.path(run=job)))
            self.assert_as_alone([f"learning_rate-{rate}" for rate in rates], job)

    def test_what_is_killed_goes_on_and_spoils_nothing(self):
        labels = ["learning_rate-1.0e-2", "learning_rate-2.0e-2"]
        process = self.start_sweep(CONFIG, "train.learning_rate=1.0e-2,2.0e-2", *EXACT, "train.steps=60", "--run-dir", self.path(run="s"))
        self.wait_step(3, process, run=f"s/{labels[0]}")
        self.assertTrue(kill(self.pool_of(process)))
        self.wait_step(8, process, run=f"s/{labels[0]}")
        of_first = [pid for pid, words in self.processes(process) if words[1:2] == ["train"] and any(labels[0] in word for word in words)]
        self.assertTrue(kill(of_first[0]))
        said = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("pool: ", said)
        self.assertIn("it goes on", said)
        self.assert_as_alone(labels)

    def test_a_signal_stops_all_and_resume_goes_on(self):
        labels = ["seed-1", "seed-2"]
        model = self.path("final", run="base")
        self.assert_done(self.train("configs/test/sft.yaml", "train.steps=2", run="base"))
        process = self.start_sweep("configs/test/rl_colocated.yaml", "model.init=null", f"model.path={model}", "model.lora.rank=2", "seed=1,2", *EXACT,
                                   "train.steps=80", "--run-dir", self.path(run="s"))
        self.wait_step(3, process, run="s/seed-1")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("--resume", said)
        self.assertEqual({run["state"] for run in self.result()["runs"]}, {"stopped"})
        again = self.sweep("configs/test/rl_colocated.yaml", "model.init=null", f"model.path={model}", "model.lora.rank=2", "seed=1,2",
                           "--run-dir", self.path(run="s"))
        self.assertEqual(again.returncode, 2)
        self.assertIn("--resume", again.stderr)
        self.assert_done(self.sweep(self.path(run="s"), "--resume"))
        self.assert_as_alone(labels)

    def test_the_best_run_is_that_of_the_rows_held_out(self):
        result = self.sweep("configs/test/reward_model.yaml", "model.lora.rank=2", "train.learning_rate=1e-3,1e-2", "--run-dir", self.path(run="s"))
        self.assert_done(result)
        runs = {run["run"]: run for run in self.result()["runs"]}
        self.assertEqual({run["held_out"]["measure"] for run in runs.values()}, {"accuracy"})
        # By the loss of the last training batch it would be the other one.
        self.assertLess(runs["learning_rate-1e-3"]["loss"], runs["learning_rate-1e-2"]["loss"])
        self.assertGreater(runs["learning_rate-1e-2"]["held_out"]["value"], runs["learning_rate-1e-3"]["held_out"]["value"])
        self.assertEqual(self.result()["best"], "learning_rate-1e-2")
        self.assertIn("held-out accuracy", result.stdout)

    def test_a_run_that_is_stopped_alone_is_not_done(self):
        process = self.start_sweep(CONFIG, "train.learning_rate=1.0e-2,2.0e-2", "train.steps=40", "--run-dir", self.path(run="s"))
        self.wait_step(3, process, run="s/learning_rate-1.0e-2")
        told = next(pid for pid, words in self.processes(process) if words[1:2] == ["train"] and any("2.0e-2" in word for word in words))
        self.assertTrue(kill(told, signal.SIGTERM))
        said = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 3, said)
        self.assertIn("learning_rate-2.0e-2: stopped", said)
        self.assertIn("go on with: ", said)
        self.assertEqual([run["state"] for run in self.result()["runs"]], ["finished", "stopped"])
        # A run that went on by itself to other steps is finished, too; from anywhere.
        self.assert_done(self.command("train", self.path("learning_rate-2.0e-2", run="s"), "--resume", "train.steps=45"))
        again = subprocess.run([TIDEPOOL, "sweep", self.path(run="s"), "--resume"], cwd="/", capture_output=True, text=True, timeout=PATIENCE)
        self.assert_done(again)

    def test_nobody_has_to_read_what_it_tells(self):
        process = self.start_sweep(CONFIG, "train.learning_rate=1.0e-2,2.0e-2", "--run-dir", self.path(run="s"))
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=PATIENCE), 0)
        process.stdout = None
        self.assertEqual({run["state"] for run in self.result()["runs"]}, {"finished"})

    def test_bad_input_is_refused_before_anything_starts(self):
        for words, said in {
            ("train.learning_rate=1e-2",): "no key has several values",
            ("train.learning_rate=1e-2,,2e-2",): "a value of train.learning_rate is empty",
            ("train.learning_rate=1e-2,1e-2",): "has a value twice",
            ("train.learning_rat=1e-2,2e-2",): "train.learning_rat",
            ("train.learning_rate",): "expected KEY=VALUE,VALUE",
            ("model.lora.rank=0,2",): "trains the whole model",
            ("model.init.hidden_size=32,64",): "in the warm start",
            ("cluster.threads_per_slot=1,2",): "share one device",
            ("deterministic=true,false",): "whole process",
            ("seed=1,2",): "model.path",
            ("seed=" + ",".join(map(str, range(65))),): "64 are the most",
            ("train.learning_rate=1e-2,2e-2", "cluster.slots=2"): "set cluster.slots=1",
        }.items():
            with self.subTest(words=words):
                result = self.sweep(CONFIG, *words, "--run-dir", self.path(run="never"))
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(said, result.stderr)
                self.assertFalse(os.path.exists(self.path(run="never")))

    def test_dry_run_prints_the_runs(self):
        result = self.sweep(CONFIG, "train.learning_rate=1e-2,2e-2", "model.lora.targets=[q],[q, v]", "--dry-run", "--run-dir", self.path(run="never"))
        self.assert_done(result)
        self.assertIn("4 runs on one device", result.stdout)
        self.assertIn("[q, v]", result.stdout)
        self.assertFalse(os.path.exists(self.path(run="never")))


if __name__ == "__main__":
    unittest.main()
