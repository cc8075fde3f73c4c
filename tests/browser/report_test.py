"""The report in a browser: each kind of job has its own cards, both themes and a narrow window draw without an error."""
import pathlib
import subprocess
import tempfile
import unittest

import browser


def report(folder):
    subprocess.run([browser.TIDEPOOL, "report", str(folder)], check=True, capture_output=True, timeout=60)
    return f"file://{folder}/report.html"


class ReportPage(unittest.TestCase):
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

    def show(self, folder, width=1400, dark=False):
        tab = self.browser.open(report(folder), width, dark)
        self.assertEqual(tab.console, [])
        self.assertEqual(tab.too_wide(), [])
        theme = "document.documentElement.dataset.theme"
        self.assertEqual(tab.evaluate(theme), "dark" if dark else "light", "as the system has it")
        tab.evaluate("document.querySelector('button.theme').click()")
        self.assertEqual(tab.evaluate(theme), "light" if dark else "dark", "and by the switch")
        return tab

    def test_reinforcement_learning(self):
        rows = [(step, {"critic/score/mean": step / 20, "reward/frac_reward_zero_std": .9, "reward/solve_none": .6, "reward/solve_all": .3, "rollout/tok_s": 1000 + step,
                        "perf/throughput": 3000, "timing_s/step": 2, "timing_s/gen": 1, "staleness/mean": 0, "staleness/max": 1}) for step in range(1, 21)]
        rows[-1][1].update({"rollout/tok_s": 5000, "timing_s/step": 6})
        rows.append((20, {"eval/accuracy": .5, "eval/total": 57, "eval/lost": 7, "eval/reward/mean": .4, "eval/reward/low": .3, "eval/reward/high": .5,
                          "eval/reward/format/mean": .9, "eval/reward/judge/mean": .2}))
        shown = self.show(browser.write_run(self.dir / "rl", "rl", rows), dark=True)
        for title in ["Reward", "Held-out reward", "Held-out reward by function", "Held-out accuracy", "Groups without a signal", "Lag", "Throughput"]:
            self.assertIn(title, shown.titles())
        self.assertIn("95 % interval 0.3 to 0.5", shown.dom())
        self.assertIn("57 of 64 answers, the others are lost", shown.dom())
        tile = shown.evaluate("[...document.querySelectorAll('.tile')].find(t => t.textContent.startsWith('throughput')).textContent")
        self.assertRegex(tile, r"^throughput1,?554", "generated tokens a second, of all steps by their time")
        self.assertRegex(tile, r"generated, mean of the steps; last step 5,?000$")
        self.assertIn("first reward is above 0.5", shown.dom())
        self.assertNotIn("Margin", shown.titles())

    def test_preference_pairs(self):
        rows = [(step, {"dpo/loss": .7 - step / 100, "dpo/accuracy": .5 + step / 50, "dpo/margin": step / 10, "dpo/chosen": step / 20, "dpo/rejected": -step / 20,
                        "actor/loss": .7, "rollout/tok_s": 0, "staleness/mean": 0, "staleness/max": 0, "perf/throughput": 900}) for step in range(1, 21)]
        rows[0][1]["eval/dpo/loss/before"] = .69
        for step, metrics in rows[::5]:
            metrics |= {"eval/dpo/loss": .6, "eval/dpo/accuracy": .8, "eval/dpo/margin": .5}
        shown = self.show(browser.write_run(self.dir / "dpo", "dpo", rows), width=390)
        for title in ["Loss", "Pairs ranked right", "Margin", "Chosen and rejected"]:
            self.assertIn(title, shown.titles())
        for text in ["Held-out accuracy", "greedy", "Lag", "Samples", "Response length", "mean over the tokens"]:
            self.assertNotIn(text, shown.evaluate("document.getElementById('page').textContent"))
        self.assertIn("held-out pairs ranked right", shown.dom())
        self.assertIn("implicit reward of the chosen answer minus", shown.dom())

    def test_supervised(self):
        rows = [(step, {"sft/loss": 3 - step / 10, "actor/loss": 1, "rollout/tok_s": 0, "staleness/max": 0}) for step in range(1, 21)]
        rows[-1][1]["eval/loss"] = 1.25
        shown = self.show(browser.write_run(self.dir / "sft", "sft", rows))
        self.assertEqual(shown.titles()[0], "Loss")
        self.assertIn("held-out loss", shown.dom())
        for title in ["Reward", "Lag", "Groups without a signal", "Pairs ranked right"]:
            self.assertNotIn(title, shown.titles())

    def test_a_run_of_which_nothing_is_known(self):
        shown = self.show(browser.write_run(self.dir / "none", "rl", []), width=390, dark=True)
        self.assertIn("No metrics yet.", shown.dom())

    def test_a_run_that_a_call_of_a_plug_in_ended(self):
        run = browser.write_run(self.dir / "crashed", "rl", [], status={"state": "running", "step": 3})
        words = "the process was killed by SIGSEGV while it ran policy mine (mine.cc) on a plan"
        (run / "last_words").write_text(f"error: {words}\n")
        shown = self.show(run)
        self.assertEqual(shown.evaluate("document.querySelector('.badge').textContent"), "failed, exit code 139")
        self.assertIn(words, shown.evaluate("document.querySelector('.card.warn').textContent"))


if __name__ == "__main__":
    browser.need_chromium()
    unittest.main()
