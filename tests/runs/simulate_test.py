"""`tidepool simulate`: what it writes and what it says, by the binary itself."""
import json
import re
import unittest

from harness import RunTest

WORKLOAD = """\
workload: lives
what: "a small job whose controller is stopped once and killed now and then"
hardware: h100
model: {name: dense-8B, parameters: 8e9, layers: 32, heads: 32, kv_heads: 8, head_size: 128}
job: {slots: 4, devices_per_slot: 1, actor_slots: 2, groups_per_step: 8, group_size: 4, steps: 8, max_lag_versions: 1, max_new_tokens: 4096, mean_tokens: 800, sigma_between: 0.7, sigma_within: 0.3, chunk_tokens: 256, checkpoint_every: 2}
faults: {stop_at_s: 30, controller_kill_mean_s: 60, resume_s: 5}
variants:
  - {name: split, placement: split}
  - {name: elastic, placement: elastic}
"""


class SimulateTest(RunTest):
    def test_journal_over_several_lives_of_the_controller_is_one_log(self):
        workload = self.dir / "lives.yaml"
        workload.write_text(WORKLOAD)
        result = self.command("simulate", str(workload), "--journal", str(self.dir / "journals"))
        self.assert_done(result)
        # | split | faults | deaths | ctl. lives | ...: of the second table
        rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in result.stdout.splitlines() if line.startswith("| ")]
        faults = rows[next(i for i, row in enumerate(rows) if row[0] == "with faults") + 1:]
        lives = {row[0]: int(row[3]) for row in faults if row[0] in ("split", "elastic")}
        self.assertEqual(set(lives), {"split", "elastic"})
        for variant, times in lives.items():
            with self.subTest(variant):
                self.assertGreater(times, 1, "nothing was started again: this tests nothing")
                journal = self.dir / "journals" / variant
                self.assertEqual(len(list(journal.glob("*.tpj"))), times, "a segment a life, as in a real run")
                checked = self.command("check", str(journal))
                self.assert_done(checked)
                self.assertIn("proven at every record", checked.stdout)
                self.assertIn(f"in {times} segments", checked.stdout)
                shown = self.command("journal", str(journal))
                self.assert_done(shown)
                records = re.findall(r"^\s*(\d+)\s+e(\d+)\s.*?s\s+(\w+)", shown.stdout, re.M)
                self.assertEqual([int(lsn) for lsn, _, _ in records], list(range(len(records))))
                epochs = [int(epoch) for _, epoch, _ in records]
                self.assertEqual(epochs, sorted(epochs))
                self.assertEqual(set(epochs), set(range(1, times + 1)), "who wrote a record is told by its epoch")
                self.assertEqual(sum(name == "RESTORE" for _, _, name in records) + 1, times)
                # A second one does not go into the same folder.
                self.assert_done(self.command("simulate", str(workload), "--journal", str(self.dir / "journals")), 2)

    def test_latency_of_a_paced_job_is_in_modelled_seconds(self):
        """pace_scale stretches what the real run waits; what it stands for, and so the rehearsal, stays the same."""
        step_s = {}
        for scale in ("0.25", "1", "4"):
            result = self.command("simulate", "configs/test/rl_episodes.yaml", "--json", "train.steps=6", "cluster.pace=configs/pace/small_cpu.yaml",
                                  f"cluster.pace_scale={scale}", "environment.latency.median_s=2", "environment.latency.tail=0.5", "environment.latency.max_s=10")
            self.assert_done(result)
            step_s[scale] = json.loads(result.stdout)["step_s"]
        self.assertGreater(step_s["1"], 2, "a step has turns to wait for")
        for scale in ("0.25", "4"):
            self.assertAlmostEqual(step_s[scale] / step_s["1"], 1, delta=0.1, msg=str(step_s))


if __name__ == "__main__":
    unittest.main(verbosity=2)
