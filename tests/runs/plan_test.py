"""`tidepool plan`: the layout that it chooses is one that trains, within the memory that it was given."""
import json
import unittest

from harness import RunTest

# 12 million parameters: whole, a slot that trains takes 454 MiB.
MODEL = ["model.init.hidden_size=512", "model.init.intermediate_size=1536", "model.init.layers=4", "model.init.heads=8", "model.init.kv_heads=4", "model.init.head_size=64"]
SLOT_GB = 0.4


class PlanTest(RunTest):
    def plan(self, *args):
        return self.command("plan", "configs/test/rl_split.yaml", *MODEL, "cluster.slots=3", "cluster.threads_per_slot=1", "train.steps=3", *args)

    def test_what_fits_only_in_parts_trains_in_them_and_takes_what_was_planned(self):
        planned = self.plan("--memory-gb", str(SLOT_GB), "--json", "--top", "50")
        self.assert_done(planned)
        layouts = json.loads(planned.stdout)["layouts"]
        # The best that shares the optimizer, and the best that has parts of the model: one slot of the two that train publishes weights, the other one has its part alone.
        for kind, shares in (("zero", lambda l: l["zero"] > 0 and l["tp"] == 1), ("tp", lambda l: l["tp"] > 1)):
            with self.subTest(kind):
                place = next(i for i, l in enumerate(layouts) if l["placement"] == "split" and shares(l))
                config = self.dir / f"{kind}.yaml"
                self.assert_done(self.plan("--memory-gb", str(SLOT_GB), "--apply", str(config), "--pick", str(place + 1)))
                self.assert_done(self.train(str(config), run=kind))
                self.assert_checked(kind)
                self.assertEqual(self.summary(kind)["steps"], 3)
                self.assertEqual({len(r["members"]) for r in self.journal(kind) if r["kind"] == "STEP_BEGIN"}, {2})
                taken = self.summary(kind)["peak_bytes"]
                peak = min(taken["device-0"], taken["device-1"])
                self.assertLess(peak, SLOT_GB * 1e9)
                self.assertLess(peak, 1.1 * layouts[place]["train_slot_bytes"])
                self.assertGreater(peak, 0.7 * layouts[place]["train_slot_bytes"])


if __name__ == "__main__":
    unittest.main()
