"""The quickstart as people run it, one seed of it: it learns, and what it claims about itself is so. Other seeds: make nightly."""
import json
import os
import unittest

from harness import RunTest


class QuickstartTest(RunTest):
    def test_learns_to_spell_backwards_from_a_warm_start_that_is_right_now_and_then(self):
        seed = os.environ.get("TIDEPOOL_QUICKSTART_SEED", "3")
        self.assert_done(self.train("configs/quickstart.yaml", f"seed={seed}", timeout=480))
        accuracy = self.summary()["accuracy"]
        self.assertGreaterEqual(accuracy["before"], 0.10)
        self.assertLess(accuracy["before"], 0.35)
        self.assertGreater(accuracy["after"], 0.90)
        self.assert_checked()
        self.assert_checked("run/warm_start")
        for step, metrics in self.metrics().items():
            if "training/rollout_logp_diff/max" in metrics:
                self.assertLess(metrics["training/rollout_logp_diff/max"], 0.01, f"step {step}")
                self.assertEqual(metrics["staleness/max"], 0)
        questions = self.dir / "questions.jsonl"
        questions.write_text('{"prompt": "abc=", "answer": "cba"}\n{"prompt": "xyz=", "answer": "zyx"}\n')
        asked = self.command("eval", "--model", str(self.path("final")), "--data", str(questions), "--max-new-tokens", "8", "--json")
        self.assert_done(asked)
        self.assertEqual(json.loads(asked.stdout)["questions"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
