#!/usr/bin/env python3
"""A program with plug-ins from outside of the tree, -DTIDEPOOL_PLUGINS=examples/plugins: own_plugins_test.py BUILD.

Builds the templates of `tidepool new` into the whole program, runs their tests, lists each, and trains with the reward.
Compiles most of Tidepool again where the compiler cache does not have it.
"""
import os
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build")
OWN = os.path.join(BUILD, "own_plugins")
KINDS = {"reward": "rewards", "task": "tasks", "environment": "environments", "control": "environments",
         "algorithm": "algorithms", "model": "models", "policy": "policies"}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


class OwnPluginsTest(unittest.TestCase):
    def test_templates_are_plugins_that_work(self):
        made = run("cmake", "-S", ".", "-B", OWN, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTIDEPOOL_PLUGINS=examples/plugins")
        self.assertEqual(made.returncode, 0, made.stderr)
        tests = [f"my_{kind}_test" for kind in KINDS]
        made = run("ninja", "-C", OWN, "-j", "2", "tidepool", "tidepool-worker", *tests)
        self.assertEqual(made.returncode, 0, made.stdout[-4000:])
        for test in tests:
            made = run(os.path.join(OWN, "tests", test))
            self.assertEqual(made.returncode, 0, made.stdout)
        for kind, command in KINDS.items():
            made = run(os.path.join(OWN, "bin/tidepool"), command, *([f"my_{kind}"] if kind != "policy" else []))
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertIn(f"my_{kind}", made.stdout)
        with tempfile.TemporaryDirectory() as folder:
            for name, config, override in [("rl", "configs/test/rl_colocated.yaml", "reward.functions=[{name: my_reward}]"),
                                           ("algorithm", "configs/test/rl_colocated.yaml", "algorithm={name: my_algorithm}"),
                                           ("environment", "configs/test/rl_episodes.yaml", "environment={name: my_environment, workers: 1}"),
                                           ("control", "configs/control/cartpole.yaml", "environment.name=my_control"),
                                           ("policy", "configs/multiplexed_demo.yaml", "scheduler.policy=my_policy")]:
                made = run(os.path.join(OWN, "bin/tidepool"), "train", config, "--run-dir", os.path.join(folder, name), "train.steps=1", override, *(['model.init.alphabet="0123456789?"'] if name == "environment" else []))
                self.assertEqual(made.returncode, 0, made.stderr)


if __name__ == "__main__":
    unittest.main()
