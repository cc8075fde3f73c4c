"""The bytes of samples: what is trained is what was stored, what is damaged is not trained, what nobody needs goes."""
import json
import os
import shutil
import struct
import unittest

from bad_journal_test import crc32c
from harness import RunTest

CONFIG = "configs/test/rl_split.yaml"


def key(tid):
    return (tid["ordinal"], tid["issue"], tid["sample"])


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def hash64(data):
    """Hash64 of core/base/hash.h: the digest of a sample."""
    h = mix64(len(data) * 0x9E3779B97F4A7C15 % 2**64)
    for at in range(0, len(data), 8):
        h = mix64(h ^ int.from_bytes(data[at:at + 8], "little"))
    return h


class PayloadTest(RunTest):
    def killed_at(self, step, *args):
        """A run whose controller is killed at this step."""
        run = self.start(CONFIG, *args)
        self.wait_step(step, run)
        self.kill_controller(run)

    def verdict(self):
        result = self.command("check", str(self.path()), "--json")
        self.assert_done(result)
        return json.loads(result.stdout)["journals"][0]

    def test_every_row_was_trained_on_the_bytes_of_its_enq(self):
        self.assert_done(self.train(CONFIG, "train.steps=3"))
        stored = {key(r["tid"]): r for r in self.journal() if r["kind"] == "ENQ"}
        rows = [row for r in self.journal() if r["kind"] == "STEP_COMMIT" for row in r["rows"]]
        self.assertEqual(len(rows), 3 * 16)
        self.assertTrue(all(r["payload_file"] >= 1 << 20 for r in stored.values()), "who samples writes")
        for row in rows:
            enq = stored[key(row["tid"])]
            self.assertEqual(row["digest"], enq["digest"])
            self.assertEqual(sum(run["tokens"] for run in enq["versions"]), enq["response_len"])
        self.assertEqual(self.verdict()["payload_rows"], {"proven": len(rows), "pruned": 0})

    def test_a_sample_whose_bytes_are_damaged_takes_its_group_alone(self):
        args = ["train.steps=16", "scheduler.max_lag_versions=3"]  # so that there are always some that wait
        self.killed_at(2, *args)
        records = self.journal()
        gone = {key(row["tid"]) for r in records if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        gone |= {key(r["tid"]) for r in records if r["kind"] == "DROP"}
        # One that is not graded yet is found when it is graded, and goes alone.
        graded = {key(r["tid"]) for r in records if r["kind"] == "GRADED" and r["outcome"] == "ok"}
        waiting = [r for r in records if r["kind"] == "ENQ" and key(r["tid"]) in graded - gone]
        if not waiting:
            self.skipTest("all that was stored had been trained when the controller was killed")
        damaged = waiting[-1]
        file = self.path("payload", f"{damaged['payload_file']:04}.tpp")
        data = bytearray(file.read_bytes())
        data[damaged["payload_offset"] + damaged["payload_bytes"] // 2] ^= 1
        file.write_bytes(data)
        self.assert_done(self.train(CONFIG, *args, "--resume"))
        records = self.journal()
        group = key(damaged["tid"])[:2]
        trained = {key(row["tid"])[:2] for r in records if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        self.assertNotIn(group, trained)
        dropped = [r for r in records if r["kind"] == "DROP" and r["reason"] == "data_invalid"]
        self.assertLessEqual({key(r["tid"])[:2] for r in dropped}, {group})  # or it became too old before its lease
        self.assertEqual(self.summary()["steps"], 16)
        self.verdict()

    def test_a_sample_that_the_trainer_cannot_use_takes_its_group_alone(self):
        """Its bytes are damaged, and what names them was written after that: nobody finds it before a rank looks at the row."""
        args = ["train.steps=16", "scheduler.max_lag_versions=3", "cluster.slots=4", "scheduler.placement=split", "scheduler.actor_slots=2"]
        self.killed_at(2, *args)
        records = self.journal()
        gone = {key(row["tid"]) for r in records if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        gone |= {key(r["tid"]) for r in records if r["kind"] == "DROP"}
        graded = {key(r["tid"]) for r in records if r["kind"] == "GRADED" and r["outcome"] == "ok"} - gone
        folded = max(r["lsn"] for r in records if r["kind"] == "SNAPSHOT")  # what is older is in a hash that would not be right
        size = next(r["group_size"] for r in records if r["kind"] == "CONFIG")
        whole = {t[:2] for t in graded if sum(o[:2] == t[:2] for o in graded) == size}
        waiting = [r for r in records if r["kind"] == "ENQ" and r["lsn"] > folded and key(r["tid"])[:2] in whole]
        if not waiting:
            self.skipTest("all that was stored had been trained when the controller was killed")
        enq = min(waiting, key=lambda r: key(r["tid"]))  # of the group that is trained first
        file = self.path("payload", f"{enq['payload_file']:04}.tpp")
        data = bytearray(file.read_bytes())
        begin, end = enq["payload_offset"], enq["payload_offset"] + enq["payload_bytes"]
        first_id = begin + 26  # format, tid, att, finish, segments; kind, columns and size of the prompt (all small)
        data[first_id:first_id + 4] = struct.pack("<i", 1 << 30)  # no token of the model
        file.write_bytes(data)
        self.replace_in_journal(enq["lsn"], struct.pack("<Q", int(enq["digest"], 16)), struct.pack("<Q", hash64(data[begin:end])))

        self.assert_done(self.train(CONFIG, *args, "--resume"))
        records = self.journal()
        faults = [r for r in records if r["kind"] == "FAULT" and r["class"] == "row"]
        self.assertEqual([key(f["tid"]) for f in faults], [key(enq["tid"])])
        self.assertIn("token id 1073741824 is outside the model's vocabulary", faults[0]["what"])
        group = key(enq["tid"])[:2]
        refused = next(r for r in records if r["kind"] == "LEASE" and key(enq["tid"]) in map(key, r["tids"]))
        others = {key(t) for t in refused["tids"] if key(t)[:2] != group}
        again = next(r for r in records if r["kind"] == "LEASE" and r["lsn"] > refused["lsn"])
        self.assertLessEqual(others, set(map(key, again["tids"])))
        self.assertTrue(others)
        self.assertEqual({key(r["tid"])[:2] for r in records if r["kind"] == "DROP" and r["reason"] == "data_invalid"}, {group})
        self.assertEqual(self.summary()["steps"], 16)
        name = ".".join(map(str, key(enq["tid"])))
        self.assertIn(f"sample {name} is dropped with its group, the trainer cannot use it: token id", self.summary()["lost"]["data_invalid"])
        self.assertIn(name, self.command("journal", str(self.path()), "--kind", "FAULT", "--sample", name).stdout)
        self.verdict()

    def replace_in_journal(self, lsn, old, new):
        """In the one segment of a run that has had one life."""
        segment = self.path("journal", "0000.tpj")
        data = bytearray(segment.read_bytes())
        at = struct.unpack_from("<I", data, 12)[0]
        while struct.unpack_from("<Q", data, at + 8)[0] != lsn:
            at += 8 + struct.unpack_from("<I", data, at)[0]
        length = struct.unpack_from("<I", data, at)[0]
        record = bytes(data[at + 8:at + 8 + length])
        self.assertEqual(record.count(old), 1)
        record = record.replace(old, new)
        data[at + 4:at + 8 + length] = struct.pack("<I", crc32c(record)) + record
        segment.write_bytes(data)

    def test_what_a_power_cut_has_taken_is_not_trained_and_the_run_goes_on(self):
        args = ["train.steps=16", "scheduler.max_lag_versions=3"]
        self.killed_at(2, *args)
        records = self.journal()
        gone = {key(row["tid"]) for r in records if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        gone |= {key(r["tid"]) for r in records if r["kind"] == "DROP"}
        waiting = [r for r in records if r["kind"] == "ENQ" and key(r["tid"]) not in gone]
        if not waiting:
            self.skipTest("all that was stored had been trained when the controller was killed")
        # The journal is older than the tokens that it names: the last half of what waits never reached the disk.
        lost = waiting[len(waiting) // 2:]
        for file in {r["payload_file"] for r in lost}:
            with open(self.path("payload", f"{file:04}.tpp"), "r+b") as payload:
                payload.truncate(min(r["payload_offset"] for r in lost if r["payload_file"] == file))
        self.assert_done(self.train(CONFIG, *args, "--resume"))
        trained = {key(row["tid"]) for r in self.journal() if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        self.assertFalse(trained & {key(r["tid"]) for r in lost})
        self.assertEqual(self.summary()["steps"], 16)
        self.verdict()

    def test_files_that_no_checkpoint_needs_are_deleted(self):
        args = ["train.steps=16", "checkpoint.every_steps=1", "checkpoint.keep=2"]
        self.killed_at(2, *args)
        first = set(self.path("payload").glob("*.tpp"))
        self.assertTrue(first)
        self.assert_done(self.train(CONFIG, *args, "--resume"))
        left = set(self.path("payload").glob("*.tpp"))
        self.assertFalse(first & left)
        self.assertTrue(left)
        rows = self.verdict()["payload_rows"]
        self.assertGreater(rows["pruned"], 0)
        self.assertGreater(rows["proven"], 0)
        self.assertIn("cannot be proven any more", self.command("check", str(self.path())).stdout)


class DiskTest(RunTest):
    def model(self, *parts, run="run"):
        return self.path("checkpoints", *parts, run=run)

    def test_what_is_equal_is_there_once_and_the_best_model_stays(self):
        config = "configs/test/rl_colocated.yaml"
        args = ["checkpoint.every_steps=1", "eval.every_steps=1", "checkpoint.keep_best=eval/reward/mean"]
        self.assert_done(self.train(config, *args))
        for folder in ["final", "best"]:  # people write there
            for file in self.path(folder).iterdir():
                self.assertEqual(file.stat().st_nlink, 1, file)
        self.assertTrue(os.path.samefile(self.model("step_3", "model", "tokenizer.json"), self.model("step_4", "model", "tokenizer.json")))
        best = json.loads(self.path("best", "evaluation.json").read_text())
        means = {r["step"]: r["mean"] for r in self.journal() if r["kind"] == "EVAL_RESULT"}
        self.assertEqual(len(means), 5)
        self.assertEqual(best["value"], max(means.values()))
        self.assertEqual(best["step"], min(step for step, mean in means.items() if mean == best["value"]))
        self.assertIn(f"at step {best['step']}, its model is", self.command("status", str(self.path())).stdout)
        base = self.dir / "base"
        self.assert_done(self.command("export", f"{self.path()}:best", "--out", str(base)))

        # Step 0 of a run from a base model has no weights of its own, and needs the folder no more.
        self.assert_done(self.train(config, "model.init=null", f"model.path={base}", "train.steps=1", run="second"))
        self.assertTrue(os.path.samefile(base / "model.safetensors", self.model("step_0", "model", "model.safetensors", run="second")))
        shutil.rmtree(base)
        self.assert_done(self.command("check", str(self.path(run="second"))))

        self.assert_done(self.command("prune", str(self.path()), str(self.path(run="second"))))
        self.assertEqual([p.name for p in self.model().iterdir()], ["step_4"])
        self.assert_done(self.command("check", str(self.path())))
        self.assert_done(self.train(config, *args, "train.steps=5", "--resume"))
        self.assertEqual(self.summary()["steps"], 5)
        self.assert_done(self.command("check", str(self.path())))

        self.assert_done(self.command("prune", str(self.path()), "--final-only", "--keep-best", "--payload", "--samples"))
        left = {p.name for p in self.path().iterdir()}
        self.assertTrue({"final", "best", "journal", "metrics.jsonl", "report.html"} <= left, left)
        self.assertFalse({"payload", "samples", "offload"} & left, left)
        self.assert_done(self.command("check", str(self.path())))
        refused = self.train(config, *args, "train.steps=6", "--resume")
        self.assert_done(refused, 2)
        self.assertIn("its checkpoints were deleted (`tidepool prune --final-only`)", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
