"""Runs of an older program: what looks at a run reads them, what continues a run refuses them by name.

tests/runs/data/schema_2_run.tar.gz is a run in the format of commit 56ac54e, written by the formatted tree that followed it (journal of schema 2, payload files of schema 1): one step
of two groups of two episodes, made by
    tidepool train configs/test/rl_episodes.yaml train.steps=1 train.groups_per_step=2 rollout.group_size=2 name=old
        model.init.hidden_size=8 model.init.intermediate_size=8 model.init.layers=1 model.init.heads=1 model.init.head_size=8
without what no test here reads.
"""
import json
import pathlib
import tarfile
import unittest

from harness import RunTest

DATA = pathlib.Path(__file__).parent / "data"


class OldFormatTest(RunTest):
    def setUp(self):
        super().setUp()
        self.run_dir = self.dir / "old"
        with tarfile.open(DATA / "schema_2_run.tar.gz") as archive:
            archive.extractall(self.run_dir)

    def looked_at(self, *args):
        result = self.command(*args)
        self.assert_done(result)
        return result.stdout

    def test_check_proves_its_journal_and_its_payload(self):
        verdict = json.loads(self.looked_at("check", str(self.run_dir), "--json"))["journals"][0]
        self.assertTrue(verdict["ok"])
        self.assertEqual(verdict["trained"], 4)
        self.assertEqual(verdict["payload_rows"], {"proven": 4, "pruned": 0})

    def test_a_byte_of_its_payload_that_changed_is_found(self):
        file = self.run_dir / "payload" / "0000.tpp"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        result = self.command("check", str(self.run_dir))
        self.assert_done(result, 4)
        self.assertIn("violates Q12", result.stderr)

    def test_what_shows_a_run_shows_it(self):
        records = [json.loads(line) for line in self.looked_at("journal", str(self.run_dir), "--json").splitlines()]
        commit = next(r for r in records if r["kind"] == "STEP_COMMIT")
        self.assertEqual(len(commit["rows"]), 4)
        self.assertEqual([r["lsn"] for r in records], list(range(len(records))))
        self.assertIn("sample", self.looked_at("samples", str(self.run_dir), "--step", "1"))
        self.looked_at("report", str(self.run_dir))
        self.assertTrue((self.run_dir / "report.html").exists())
        self.looked_at("export", str(self.run_dir), "--out", str(self.dir / "model"))
        self.assertTrue((self.dir / "model" / "model.safetensors").exists())

    def test_to_go_on_with_it_is_refused_by_name(self):
        before = (self.run_dir / "journal" / "0000.tpj").read_bytes()
        result = self.command("train", str(self.run_dir / "config.yaml"), "--run-dir", str(self.run_dir), "--resume", "train.steps=2")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("this journal has schema 2", result.stderr)
        self.assertEqual((self.run_dir / "journal" / "0000.tpj").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
