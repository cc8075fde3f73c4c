"""The page of `tidepool compare` in a browser."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import browser


class ComparePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def compare(self, *folders, width=1400, dark=False):
        page = self.dir / "compare.html"
        subprocess.run([browser.TIDEPOOL, "compare", *map(str, folders), "--out", str(page)], check=True, capture_output=True, timeout=60)
        tab = self.browser.open(page.as_uri(), width, dark)
        self.assertEqual(tab.console, [])
        self.assertEqual(tab.too_wide(), [])
        return tab

    def test_two_runs_of_a_kind_over_each_other_by_step_and_by_time(self):
        def rows(end):
            return [(step, {"critic/score/mean": end * step / 20, "rollout/tok_s": 1000, "timing_s/step": 2}) for step in range(1, 21)]
        folders = [browser.write_run(self.dir / f"run-{rate}", "rl", rows(end), f"train:\n  learning_rate: {rate}\n  steps: 20\n") for rate, end in [("1e-3", 1), ("2e-3", .5)]]
        for width, dark in [(1400, False), (390, True)]:
            tab = self.compare(*folders, width=width, dark=dark)
            text = tab.text()
            for part in ["2 runs compared", "train.learning_rate", "1e-3", "2e-3", "run-1e-3", "run-2e-3", "critic/score/mean"]:
                self.assertIn(part, text)
            self.assertNotIn("train.steps", tab.evaluate("document.getElementById('differences').textContent"))
            reward = "[...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent === 'Reward')"
            self.assertEqual(tab.evaluate(f"[...{reward}.querySelectorAll('.legend button')].map(b => b.textContent)"), ["run-1e-3 1", "run-2e-3 0.5"])
            ticks = f"[...{reward}.querySelectorAll('.tick')].map(t => t.textContent).join()"
            by_step = tab.evaluate(ticks)
            tab.evaluate("[...document.querySelectorAll('.switch button')].find(b => b.textContent === 'by time').click()")
            self.assertNotEqual(tab.evaluate(ticks), by_step)
            self.assertIn("40 s", tab.evaluate(ticks))
            tab.evaluate("document.querySelector('details').open = true")
            tab.wait("document.querySelectorAll('details figure').length === 3", what="every metric to choose from")
            self.assertEqual(tab.console, [])

    def test_jobs_of_different_kinds_show_what_they_share(self):
        sft = browser.write_run(self.dir / "sft", "sft", [(step, {"sft/loss": 1 / step, "actor/grad_norm": 1}) for step in range(1, 9)])
        rl = browser.write_run(self.dir / "rl", "rl", [(step, {"critic/score/mean": step, "actor/grad_norm": 2}) for step in range(1, 9)])
        tab = self.compare(sft, rl)
        self.assertEqual(tab.titles(), ["Gradient norm"])
        data = json.loads(subprocess.run([browser.TIDEPOOL, "compare", str(sft), str(rl), "--json"], check=True, capture_output=True, timeout=60).stdout)
        self.assertEqual([m["metric"] for m in data["metrics"]], ["actor/grad_norm"])


if __name__ == "__main__":
    browser.need_chromium()
    unittest.main()
