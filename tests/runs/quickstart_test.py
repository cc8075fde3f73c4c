"""The quickstart as people run it, one seed of it: it learns, and what it claims about itself is so. Other seeds: make nightly."""
import json
import os
import re
import unittest

from harness import RunTest


class QuickstartTest(RunTest):
    def test_learns_to_spell_backwards_from_a_warm_start_that_is_right_now_and_then(self):
        seed = os.environ.get("TIDEPOOL_QUICKSTART_SEED", "3")
        run = self.train("configs/quickstart.yaml", f"seed={seed}", timeout=480)
        self.assert_done(run)
        # A warm start that ends early because it is good enough does not read like one that broke off.
        self.assertRegex(run.stdout, r"warm start: reached [\d.]+ % held-out accuracy at step \d+, as asked \(eval.stop_at_accuracy: 0.15\)\n")
        status = self.command("status", str(self.path("warm_start"))).stdout
        self.assertIn("state       finished\n", status)
        self.assertNotIn("dropped", status)
        accuracy = self.summary()["accuracy"]
        self.assertGreaterEqual(accuracy["before"], 0.10)
        self.assertLess(accuracy["before"], 0.35)
        self.assertGreater(accuracy["after"], 0.90)
        self.assert_checked()
        self.assert_checked("run/warm_start")
        for step, metrics in self.metrics().items():
            if "training/rollout_logp_diff/max" in metrics:
                # One version samples and is trained, and a row of a product does not depend on its batch.
                self.assertEqual(metrics["training/rollout_logp_diff/max"], 0, f"step {step}")
                self.assertEqual(metrics["staleness/max"], 0)
        plan = self.command("train", "configs/quickstart.yaml", "--dry-run").stdout
        for name, peak_bytes in self.summary()["peak_bytes"].items():
            predicted = re.search(rf"^  {name} +([\d.]+) MiB ", plan, re.MULTILINE)
            self.assertTrue(predicted, f"{name} in\n{plan}")
            self.assertLessEqual(peak_bytes, float(predicted[1]) * 2**20, name)
        questions = self.dir / "questions.jsonl"
        questions.write_text('{"prompt": "abc=", "answer": "cba"}\n{"prompt": "xyz=", "answer": "zyx"}\n')
        asked = self.command("eval", "--model", str(self.path("final")), "--data", str(questions), "--max-new-tokens", "8", "--json")
        self.assert_done(asked)
        total = json.loads(asked.stdout)["total"]
        self.assertEqual(total["rows"], 2)
        self.assertGreater(total["accuracy"]["high"], 0.5, "it has learned that")


if __name__ == "__main__":
    unittest.main(verbosity=2)
