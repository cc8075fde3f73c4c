"""Journals, workloads, profiles and plans that are wrong: one clear message, the right exit code, nothing changed."""
import shutil
import struct
import unittest

from harness import RunTest

CONFIG = "configs/test/rl_split.yaml"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class BadJournalTest(RunTest):
    def simulated(self, name="j", *overrides):
        """The journal of a rehearsal: real records, by the real controller, in a moment."""
        path = self.dir / name
        self.assert_done(self.command("simulate", CONFIG, "--journal", str(path), "train.steps=3", *overrides))
        return path

    def contents(self, folder):
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}

    def checked(self, journal, code, *words):
        """`check` says so in one line and leaves every byte as it was."""
        before = self.contents(journal)
        result = self.command("check", str(journal))
        self.assert_done(result, code)
        for word in words:
            self.assertIn(word, result.stdout + result.stderr)
        if code != 0:
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertEqual(self.contents(journal), before)

    def last_segment(self, journal):
        return sorted(journal.glob("*.tpj"))[-1]

    def test_simulated_journal_passes(self):
        self.checked(self.simulated(), 0, "proven at every record", "W7")

    def test_torn_tail_is_mentioned_and_is_no_violation(self):
        journal = self.simulated()
        segment = self.last_segment(journal)
        segment.write_bytes(segment.read_bytes()[:-7])
        self.checked(journal, 0, "cut off", segment.name)

    def test_other_schema_is_named_on_both_sides(self):
        journal = self.simulated()
        segment = self.last_segment(journal)
        data = bytearray(segment.read_bytes())
        header = struct.unpack_from("<I", data, 12)[0]
        struct.pack_into("<I", data, 8, 77)
        struct.pack_into("<I", data, header - 4, crc32c(data[:header - 4]))
        segment.write_bytes(data)
        self.checked(journal, 4, "schema", "77")

    def test_segment_of_another_run_is_named(self):
        journal, other = self.simulated("a"), self.simulated("b", "name=another")
        shutil.copy(self.last_segment(other), journal / "0001.tpj")
        self.checked(journal, 4, "0001.tpj")

    def test_record_that_breaks_a_predicate_is_named(self):
        """A journal in order whose contents are wrong: the last lease is written twice."""
        journal = self.simulated()
        segment = self.last_segment(journal)
        data = segment.read_bytes()
        header = struct.unpack_from("<I", data, 12)[0]
        records, at = [], header
        while at + 8 <= len(data):
            length = struct.unpack_from("<I", data, at)[0]
            if length == 0 or at + 8 + length > len(data):
                break
            records.append(data[at + 8:at + 8 + length])
            at += 8 + length
        kind = lambda r: struct.unpack_from("<H", r, 20)[0] & 0x7FFF  # noqa: E731
        lease = max(i for i, r in enumerate(records) if kind(r) == 7)
        records.insert(lease, records[lease])
        out = bytearray(data[:header])
        for lsn, record in enumerate(records):
            record = struct.pack("<Q", lsn) + record[8:]
            out += struct.pack("<II", len(record), crc32c(record)) + record
        segment.write_bytes(out)
        self.checked(journal, 4, "violates Q1", f"record {lease + 1} ")

    def test_run_with_a_damaged_checkpoint_or_journal(self):
        """On a real run, whose records were durable one by one: damage in the middle is no torn tail."""
        self.assert_done(self.train("configs/test/rl_colocated.yaml", "train.steps=2", "checkpoint.every_steps=1"))
        self.assert_checked()
        newest = max(self.path("checkpoints").iterdir(), key=lambda p: int(p.name.split("_")[1]))
        largest = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        good = largest.read_bytes()
        damaged = bytearray(good)
        damaged[len(damaged) // 2] ^= 1
        largest.write_bytes(damaged)
        result = self.command("check", str(self.path()))
        self.assert_done(result, 4)
        self.assertIn("violates C2", result.stderr)
        self.assertIn(largest.name, result.stderr)
        largest.write_bytes(good)
        self.assert_checked()

        segment = self.last_segment(self.path("journal"))
        data = bytearray(segment.read_bytes())
        data[len(data) // 3] ^= 0xFF
        segment.write_bytes(data)
        self.checked(self.path("journal"), 4, segment.name, "record")
        for command in [("journal", str(self.path())), ("train", "configs/test/rl_colocated.yaml", "--run-dir", str(self.path()), "--resume", "train.steps=3")]:
            refused = self.command(*command)
            self.assertIn(refused.returncode, (2, 3, 4), refused.stderr)
            self.assertIn(segment.name, refused.stderr)
        self.assertEqual(segment.read_bytes(), bytes(data))


class BadPlanTest(RunTest):
    def refused(self, *args, words, code=2):
        before = sorted(p.name for p in self.dir.iterdir())
        result = self.command(*args)
        self.assert_done(result, code)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), before)

    def test_placements_that_cannot_be(self):
        for command in ["simulate", "plan", "train"]:
            self.refused(command, CONFIG, "scheduler.placement=sideways", words=["scheduler.placement", "sideways"])
        for command in ["simulate", "train"]:
            self.refused(command, CONFIG, "scheduler.placement=multiplexed", "cluster.slots=2", "scheduler.actor_slots=2",
                         words=["scheduler.rollout_floor"])
            self.refused(command, CONFIG, "scheduler.placement=split", "cluster.slots=2", "scheduler.actor_slots=5", words=["scheduler.actor_slots"])

    def test_workload_with_unknown_keys(self):
        text = "workload: x\nwhat: y\nhardware: h100\nmodel: {name: m, parameters: 1e9, layers: 2, heads: 2, kv_heads: 2, head_size: 64}\n" \
               "job: {slots: 2, group_per_step: 2}\nvariants:\n  - {name: split, placement: split}\n"
        path = self.dir / "w.yaml"
        path.write_text(text)
        self.refused("simulate", str(path), words=["w.yaml:5", "group_per_step"])
        path.write_text(text.replace("group_per_step", "groups_per_step") + "publsihed: []\n")
        self.refused("simulate", str(path), words=["w.yaml:8", "publsihed"])
        path.write_text(text.replace("group_per_step", "groups_per_step").replace("variants:", "variants: []\nignored:"))
        self.refused("simulate", str(path), words=["w.yaml:"])

    def test_hardware_without_bandwidth(self):
        profile = self.dir / "still.yaml"
        profile.write_text("name: still\nsource: none\ntflops: 1\nmemory_gb: 1\nmemory_gb_per_s: 0\nlink_gb_per_s: 1\nnet_gb_per_s: 1\nhost_gb_per_s: 1\n")
        for command in ["simulate", "plan"]:
            self.refused(command, CONFIG, "--hardware", str(profile), words=["memory_gb_per_s", "0"])
            self.refused(command, CONFIG, "--hardware", str(self.dir / "none.yaml"), words=["none.yaml"])

    def test_journal_of_a_simulation_does_not_overwrite(self):
        (self.dir / "there").mkdir()
        self.refused("simulate", CONFIG, "--journal", str(self.dir / "there"), words=["there", "exists"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
