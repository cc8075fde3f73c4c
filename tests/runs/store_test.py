"""Checkpoints outside the run's folder: in a shared directory, and in S3 as moto has it (scripts/setup --tests)."""
import json
import os
import signal
import subprocess
import time
import unittest

from harness import BIN, PATIENCE, ROOT, RunTest, kill
from moto import KEYS, Moto, needs_s3

CONFIG = "configs/test/rl_colocated.yaml"


class StoreTest(RunTest):
    def setUp(self):
        super().setUp()
        self.store = self.dir / "store"
        self.store.mkdir()
        self.mounted = False

    def tearDown(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.store)], check=False)
        super().tearDown()

    def objects(self):
        return sorted(str(path.relative_to(self.store)) for path in self.store.rglob("*") if path.is_file())

    def files_in_run(self):
        return sorted(str(path.relative_to(self.path("checkpoints"))) for path in self.path("checkpoints").rglob("*"))

    def events(self, name):
        return [line for line in self.path("logs/controller.log").read_text().splitlines() if f"event={name}" in line]

    # --- a shared directory
    def test_a_run_with_its_checkpoints_in_a_directory_survives_its_worker_and_its_controller(self):
        keys = ("train.steps=60", f"checkpoint.store={self.store}", "checkpoint.every_steps=5")
        run = self.start(CONFIG, *keys)
        self.wait_step(12, run)
        self.assertTrue(kill(self.worker_pid(0, run)))
        self.wait_step(20, run)
        self.kill_controller(run)
        self.assert_done(self.command("train", str(self.path()), "--resume"))
        self.assertEqual(self.summary()["steps"], 60)
        self.assert_checked()
        # In the run nothing but what names the files.
        steps = sorted(path.name for path in self.path("checkpoints").iterdir())
        self.assertEqual(len(steps), 2, steps)
        self.assertEqual({path.name for path in self.path("checkpoints").rglob("*") if path.is_file()}, {"manifest.json", "store.json"})
        # And in the store nothing but what they name.
        named = set()
        for manifest in self.path("checkpoints").glob("*/manifest.json"):
            place = json.loads((manifest.parent / "store.json").read_text())
            named |= {f"{place['below']}/{file['path']}" for file in json.loads(manifest.read_text())["files"]}
        self.assertEqual(set(self.objects()), named)
        self.assert_done(self.command("export", f"{self.path()}:60", "--out", str(self.dir / "exported")))
        self.assertTrue((self.dir / "exported/config.json").exists())
        self.assert_done(self.command("prune", str(self.path()), "--final-only"))
        self.assertEqual(self.objects(), [])

    def test_an_object_that_is_not_what_was_written_gives_way_to_the_checkpoint_before(self):
        keys = (f"checkpoint.store={self.store}", "checkpoint.every_steps=5")
        self.assert_done(self.train(CONFIG, "train.steps=10", *keys))

        def one_of(step):
            place = json.loads(self.path(f"checkpoints/step_{step}/store.json").read_text())
            return next((self.store / place["below"] / "trainer").iterdir())
        # Of the right size: whoever takes it sees it, before anything is changed by it.
        file = one_of(10)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        checked = self.command("check", str(self.path()))
        self.assert_done(checked, 4)
        self.assertIn(f"trainer/{file.name}", checked.stdout + checked.stderr)
        self.assert_done(self.command("train", str(self.path()), "--resume", "train.steps=15"))
        self.assertTrue(any(f"trainer/{file.name}" in line for line in self.events("state_failed")))
        self.assertTrue(any(r["kind"] == "RESTORE" and r["step"] == 5 for r in self.journal()))
        self.assert_checked()
        # One that is gone is seen before that.
        file = one_of(15)
        file.unlink()
        self.assert_done(self.command("train", str(self.path()), "--resume", "train.steps=20"))
        self.assertTrue(any(f"trainer/{file.name}" in line for line in self.events("checkpoint_unreadable")))
        self.assertTrue(any(r["kind"] == "RESTORE" and r["step"] == 10 for r in self.journal()))
        self.assert_checked()

    def test_a_directory_that_fills_up_or_is_read_only_ends_the_run_with_a_name_and_it_goes_on_after_that(self):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.store)], capture_output=True).returncode != 0:
            self.skipTest("no right to mount a small disk")
        self.mounted = True
        run = self.start(CONFIG, "train.steps=100000", f"checkpoint.store={self.store}", "checkpoint.every_steps=5")
        self.wait_step(7, run)
        hog = self.store / "hog"
        full = False
        deadline = time.monotonic() + 60
        with open(hog, "wb", buffering=0) as file:
            # Full once is not enough: the run deletes its oldest checkpoint, and the next one may fit into that place.
            while run.poll() is None and time.monotonic() < deadline:
                try:
                    file.write(b"x" * (1 << 20))
                except OSError:
                    full = True
                    time.sleep(0.01)
        self.assertTrue(full)
        _, err = self.finish(run, 3)
        for word in ("fault=checkpoint", "host ", str(self.store), "no space left", "free some"):
            self.assertIn(word, err)
        hog.unlink()
        made = max(self.metrics())  # may be more than a few: the disk filled up slowly, or the steps are fast
        run = self.start_again("train.steps=100000")
        self.wait_step(made + 5, run)
        subprocess.run(["mount", "-o", "remount,ro", str(self.store)], check=True)
        _, err = self.finish(run, 3)
        for word in ("fault=checkpoint", "host ", str(self.store), "read-only"):
            self.assertIn(word, err)
        subprocess.run(["mount", "-o", "remount,rw", str(self.store)], check=True)
        last = max(self.metrics())
        self.assert_done(self.command("train", str(self.path()), "--resume", f"train.steps={last + 5}"))
        self.assert_checked()

    def start_again(self, *args):
        process = subprocess.Popen([str(BIN / "tidepool"), "train", str(self.path()), "--resume", *args], cwd=ROOT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def test_a_store_that_is_not_there_is_refused_at_the_start(self):
        refused = self.train(CONFIG, f"checkpoint.store={self.dir}/not_mounted")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("not_mounted: is no directory here; mount it, or make it", refused.stderr)
        for key, why in (("store=relative/dir", "whole path"), ("store=s3://key:secret@bucket", "never here"),
                         ("s3_endpoint=http://127.0.0.1:1", "write checkpoint.store")):
            refused = self.command("validate", CONFIG, f"checkpoint.{key}")
            self.assert_done(refused, 2)
            self.assertIn(why, refused.stderr + refused.stdout)

    # --- S3
    @needs_s3
    def test_stores_of_both_kinds_by_the_same_cases(self):
        endpoint = Moto(self).endpoint
        tests = BIN / "checkpoint_store_test"
        if not tests.exists():
            self.skipTest(f"{tests} is not built")
        done = subprocess.run([str(tests)], env={**os.environ, "TIDEPOOL_TEST_S3": endpoint}, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("SKIPPED", done.stdout)

    @needs_s3
    def test_a_run_with_its_checkpoints_in_s3_survives_its_worker_and_its_controller(self):
        s3 = Moto(self)
        run = self.start(CONFIG, "train.steps=60", "checkpoint.every_steps=10", *s3.keys)
        self.wait_step(22, run)
        self.assertTrue(kill(self.worker_pid(0, run)))
        self.wait_step(30, run)
        self.kill_controller(run)
        self.assert_done(self.command("train", str(self.path()), "--resume"))
        self.assertEqual(self.summary()["steps"], 60)
        self.assert_checked()
        self.assertEqual({path.name for path in self.path("checkpoints").rglob("*") if path.is_file()}, {"manifest.json", "store.json"})
        named = set()
        for manifest in self.path("checkpoints").glob("*/manifest.json"):
            place = json.loads((manifest.parent / "store.json").read_text())
            named |= {f"some/prefix/{place['below']}/{file['path']}" for file in json.loads(manifest.read_text())["files"]}
        self.assertEqual(set(s3.objects()), named)
        self.assert_done(self.command("export", f"{self.path()}:60", "--out", str(self.dir / "exported")))
        self.assertTrue((self.dir / "exported/config.json").exists())
        # The newest is damaged: the one before it.
        weights = next(key for key in named if "/step_60." in key and key.endswith(".bin"))
        self.assertEqual(s3.request("PUT", "/" + weights, b"x" * 10).returncode, 0)
        self.assertIn(weights.rsplit("/", 1)[1], self.command("check", str(self.path())).stderr)
        self.assert_done(self.command("train", str(self.path()), "--resume", "train.steps=65"))
        self.assertTrue(self.events("checkpoint_unreadable"))
        self.assertTrue(any(r["kind"] == "RESTORE" and r["step"] == 50 for r in self.journal()))
        self.assert_checked()
        # No key of the store is in anything that the run wrote.
        for path in self.path().rglob("*"):
            if path.is_file():
                self.assertNotIn(KEYS["AWS_SECRET_ACCESS_KEY"].encode(), path.read_bytes(), path)
        self.assert_done(self.command("prune", str(self.path()), "--final-only"))
        self.assertEqual(s3.objects(), [])

    @needs_s3
    def test_an_s3_that_stops_answering_ends_the_run_with_a_name_and_it_goes_on_after_that(self):
        s3 = Moto(self)
        run = self.start(CONFIG, "train.steps=100000", "checkpoint.every_steps=10", *s3.keys)
        self.wait_step(12, run)
        s3.process.send_signal(signal.SIGSTOP)
        _, err = self.finish(run, 3)
        for word in ("fault=checkpoint", "host ", "s3://tests/some/prefix", s3.endpoint, "checkpoint.store_timeout_s"):
            self.assertIn(word, err)
        refused = self.command("train", str(self.path()), "--resume")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(s3.endpoint, refused.stderr)
        checked = self.command("check", str(self.path()))
        self.assert_done(checked)  # nothing is known of its files
        self.assertIn("were not looked at", checked.stdout)
        s3.process.send_signal(signal.SIGCONT)
        last = max(self.metrics())
        self.assert_done(self.command("train", str(self.path()), "--resume", f"train.steps={last + 5}"))
        self.assert_checked()
        self.assertFalse([r for r in self.journal() if r["kind"] == "CK_REJECT"])

    @needs_s3
    def test_what_is_wrong_with_a_bucket_is_said_at_the_start(self):
        s3 = Moto(self)
        refused = self.train(CONFIG, *s3.keys, "checkpoint.store=s3://not-there")
        self.assertNotEqual(refused.returncode, 0)
        for word in ("host ", "s3://not-there", s3.endpoint, "no such bucket"):
            self.assertIn(word, refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
