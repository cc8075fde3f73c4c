"""The bytes of samples: what is trained is what was stored, what is damaged is not trained, what nobody needs goes."""
import json
import unittest

from harness import RunTest

CONFIG = "configs/test/rl_split.yaml"


def key(tid):
    return (tid["ordinal"], tid["issue"], tid["sample"])


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
        for row in rows:
            enq = stored[key(row["tid"])]
            self.assertEqual(row["digest"], enq["digest"])
            self.assertEqual(sum(run["tokens"] for run in enq["versions"]), enq["response_len"])
        self.assertEqual(self.verdict()["payload_rows"], {"proven": len(rows), "pruned": 0})

    def test_a_sample_whose_bytes_are_damaged_takes_its_group_alone(self):
        args = ["train.steps=6", "scheduler.max_lag_versions=3"]  # so that there are always some that wait
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
        self.assertEqual(self.summary()["steps"], 6)
        self.verdict()

    def test_what_a_power_cut_has_taken_is_not_trained_and_the_run_goes_on(self):
        args = ["train.steps=6", "scheduler.max_lag_versions=3"]
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
        self.assertEqual(self.summary()["steps"], 6)
        self.verdict()

    def test_files_that_no_checkpoint_needs_are_deleted(self):
        args = ["train.steps=8", "checkpoint.every_steps=1", "checkpoint.keep=2"]
        self.killed_at(2, *args)
        self.assertTrue(self.path("payload", "0000.tpp").exists())
        self.assert_done(self.train(CONFIG, *args, "--resume"))
        self.assertFalse(self.path("payload", "0000.tpp").exists())
        self.assertTrue(self.path("payload", "0001.tpp").exists())
        rows = self.verdict()["payload_rows"]
        self.assertGreater(rows["pruned"], 0)
        self.assertGreater(rows["proven"], 0)
        self.assertIn("cannot be proven any more", self.command("check", str(self.path())).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
