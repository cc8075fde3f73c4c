"""Control tasks that are programs of their own: whole runs of a small policy with a Python program, and what is said of those that do
wrong. Skips as environment_service_test.py; what needs Gymnasium skips where the interpreter has none."""
import json
import os
import signal
import subprocess
import unittest

from environment_service_test import PACKAGE, PYTHON, processes
from harness import PATIENCE, ROOT, RunTest, alive, kill

CONFIG = "configs/test/service_control.yaml"
CORRIDOR = PACKAGE / "control" / "corridor.py"
SLOW = ("    def step(self, action):\n", "    def step(self, action):\n        import time; time.sleep(0.002)\n")


def python_with_gymnasium():
    for python in (os.environ.get("TIDEPOOL_GYMNASIUM_PYTHON", ""), PYTHON, str(ROOT / ".deps/control-venv/bin/python")):
        if python and os.path.exists(python) and subprocess.run([python, "-c", "import grpc, grpc_tools, gymnasium"], capture_output=True).returncode == 0:
            return python
    return None


@unittest.skipIf(PYTHON is None, "no Python with grpcio and grpcio-tools (scripts/setup --tests)")
class ControlServiceTest(RunTest):
    def corridor(self, *change, name="game.py"):
        """The example, changed: pairs of what is written there and what is there instead."""
        text = CORRIDOR.read_text()
        for was, now in change:
            self.assertIn(was, text)
            text = text.replace(was, now)
        path = self.dir / name
        path.write_text(text)
        return f'environment.command=[env, "PYTHONPATH={PACKAGE}", "{PYTHON}", "{path}"]'

    def programs(self):
        return processes(lambda words: words[-1:] == [str(self.dir / "game.py")] and "guard-service" not in words)

    def nothing_is_left(self):
        self.wait_for(lambda: not processes(lambda words: any(str(self.dir) in word for word in words)), "the end of all that was started")

    def drops(self, run="run"):
        return [r["reason"] for r in self.journal(run) if r["kind"] == "DROP"]

    def log(self, name, run="run"):
        path = self.path("logs", name, run=run)
        return path.read_text() if path.exists() else ""

    def test_the_page_has_the_example_and_the_example_keeps_the_rules(self):
        page = (ROOT / "docs/adding_a_control_task.md").read_text()
        self.assertIn("```python\n" + CORRIDOR.read_text() + "```", page)
        checks = lambda path, *more: subprocess.run([PYTHON, "-m", "tidepool_env", "check", str(path), *more], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)  # noqa: E731
        made = checks(CORRIDOR)
        self.assert_done(made)
        self.assertNotIn("FAIL", made.stdout)
        for was, now, words in [("random.Random(seed).randint(0, 4)", "random.Random().random()", "loss='pinned'"),
                                ("return [self.place / 4 - 1]\n", "return [1, 2]\n", "an observation has 2 numbers; expected 1"),
                                ("1.0 if there", "float('nan') if there", "a reward is nan"),
                                ("return [self.place / 4 - 1], 1.0", "return [1e999], 1.0", "has inf; expected finite numbers"),
                                ("def step(self, action):\n", "def step(self, action):\n        return 3\n", "step returned 3"),
                                ("def step(self, action):\n", "def step(self, action):\n        while True: pass\n", "is not over after 2 s")]:
            with self.subTest(now):
                self.corridor((was, now))
                made = checks(self.dir / "game.py", "--timeout=2")
                self.assert_done(made, 1)
                self.assertIn(words, made.stdout)

    def test_a_python_file_is_learnt_and_whatever_dies_changes_no_weight(self):
        args = ["deterministic=true", "train.steps=20"]
        self.assert_done(self.train(CONFIG, self.corridor(), *args, run="calm"))
        self.nothing_is_left()
        self.assertEqual(self.drops("calm"), [])
        metrics, want = self.metrics("calm"), self.digests("calm")
        self.assertGreater(metrics[20]["critic/score/mean"], 0.3, "the corridor is learnt")
        asked = self.command("eval", "--model", str(self.path(run="calm")), "--episodes=10", "--json")
        self.assert_done(asked)
        played = json.loads(asked.stdout)
        self.assertEqual((played["task"], played["episodes"], played["solved"]["value"], played["solved"]["return"]), ("corridor", 10, 1.0, 0.3))
        self.nothing_is_left()
        for flag, words in [("--option=map=3", "map is no option of a service"), ("--render=x.svg", "is a service, whose states nobody here can draw")]:
            made = self.command("eval", "--model", str(self.path(run="calm")), "--episodes=2", flag)
            self.assert_done(made, 2)
            self.assertIn(words, made.stderr)

        run = self.start(CONFIG, self.corridor(SLOW), *args, run="killed")
        self.wait_step(2, run, run="killed")
        programs = self.programs()
        self.assertEqual(len(programs), 2, "environment.processes")
        self.assertTrue(kill(programs[0]))
        self.wait_step(6, run, run="killed")
        worker = self.worker_pid(1, run, run="killed")
        programs = self.programs()
        self.assertTrue(kill(worker))
        self.wait_for(lambda: not [pid for pid in programs if alive(pid)], "the end of its programs", run)
        self.wait_step(9, run, run="killed")
        self.kill_controller(run, run="killed")
        self.nothing_is_left()
        self.assert_done(self.command("train", "--resume", str(self.path(run="killed"))))
        self.assertEqual(self.digests("killed"), want)
        self.assertEqual(self.drops("killed"), [])
        self.assert_checked("killed")
        self.nothing_is_left()

    def test_one_that_was_started_by_hand_is_found(self):
        self.corridor()
        address = f"unix:{self.dir}/socket"
        server = subprocess.Popen([PYTHON, "-m", "tidepool_env", "serve", str(self.dir / "game.py"), "--listen", address], cwd=PACKAGE, stderr=subprocess.DEVNULL)
        self.started.append(server)
        self.wait_for((self.dir / "socket").exists, "the service")
        self.assert_done(self.train(CONFIG, "environment.command=[]", f"environment.addresses=['{address}']", "environment.processes=null", "train.steps=3"))
        self.assertIsNone(server.poll(), "it is not the run's to end")
        self.assertEqual(self.drops(), [])

    def test_a_pinned_fragment_that_is_lost_is_thrown_away_and_no_reward(self):
        pinned = self.corridor(SLOW, ("solved_return=0.3", 'solved_return=0.3, loss="pinned"'))
        run = self.start(CONFIG, pinned, "train.steps=100000", "checkpoint.every_steps=0", "environment.processes=1")
        self.wait_step(2, run)
        for _ in range(3):
            step = max(self.metrics())
            for pid in self.programs():
                kill(pid)
            self.wait_step(step + 3, run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.nothing_is_left()
        self.assert_checked()
        self.assertIn("event=environment_instances_lost", self.log("environment-0.log"))
        self.assertLessEqual(set(self.drops()), {"env_infra", "operator"})

    def faulty(self, steps, was, now):
        """The example, with `now` in place of `was` where so many steps were taken in its process: SOON in it."""
        return self.corridor(("class Corridor:\n", "class Corridor:\n    steps = 0\n\n"), ("        self.place = max", "        Corridor.made_of.steps += 1\n        self.place = max"),
                             (was, now.replace("SOON", f"Corridor.made_of.steps > {steps}")))

    def test_what_breaks_the_rules_is_data_what_fails_is_infra_and_neither_is_a_reward(self):
        for words, reason, *change in [
                ("its observation is nan, but a policy takes finite numbers", "data_invalid",
                 "return [self.place / 4 - 1], 1.0", "return [float('nan') if SOON else 0.0], 1.0"),
                ("its reward is inf", "data_invalid", "1.0 if there else -0.1", "float('inf') if SOON else -0.1"),
                ("an observation has 3 numbers; expected 1", "data_invalid", "return [self.place / 4 - 1], 1.0", "return [0.0] * (3 if SOON else 1), 1.0"),
                ("KeyError: 'its own'", "env_infra", "        there =", "        if SOON: raise KeyError('its own')\n        there =")]:
            with self.subTest(words):
                made = self.train(CONFIG, self.faulty(300, *change), "environment.max_retries=0", "train.steps=1000", "environment.processes=1",
                                  "eval.before_train=false", "eval.after_train=false", run=reason + words[:9])
                self.assertEqual(made.returncode, 3, made.stdout + made.stderr)
                self.assertIn(words, made.stdout + made.stderr)
                self.assertIn("fault=" + reason, made.stdout + made.stderr)
                self.assertEqual(set(self.drops(reason + words[:9])) - {"operator"}, {reason})
                self.assert_checked(reason + words[:9])
                self.nothing_is_left()

    def test_one_that_does_not_answer_is_ended_and_the_run_goes_on(self):
        hangs = self.faulty(2000, "        there =", "        import time; time.sleep(1000 if SOON else 0)\n        there =")
        self.assert_done(self.train(CONFIG, hangs, "environment.step_timeout_s=1", "train.steps=20", "environment.processes=1", "eval.before_train=false", "eval.after_train=false"))
        self.assertRegex(self.log("environment-0.log"), r"event=environment_replay .*no answer within 1\.\d s")
        self.assertIn("it was ended, because", self.log("environment-0.log"))
        self.assertEqual(self.drops(), [])
        self.assert_checked()
        self.nothing_is_left()

    def test_what_cannot_be_used_is_named_before_a_run_begins(self):
        for words, *overrides in [
                ("describes itself as of kind TEXT; model.policy plays environments of kind VECTOR",
                 f'environment.command=[env, "PYTHONPATH={PACKAGE}", "{PYTHON}", "{PACKAGE}/games/guess.py"]'),
                ("describes itself with observations of 1 numbers and actions of 2 choices; the job's policy is for observations of 5 numbers",
                 self.corridor(), "environment.observation_size=5", "environment.actions=2"),
                ("begin with different observations", self.corridor(("random.Random(seed).randint(0, 4)", "random.Random().random()"), name="a.py")),
                ("an observation has 2 numbers; expected 1", self.corridor(("        return [self.place / 4 - 1]\n", "        return [1, 2]\n"), name="b.py")),
                ("its observation is nan", self.corridor(("        return [self.place / 4 - 1]\n", "        return [float('nan')]\n"), name="c.py")),
                ("train.minibatches: is 1000, more than the 256 environment steps", self.corridor(), "train.minibatches=1000"),
                ("model.initial_log_std: is of a Gaussian policy", self.corridor(), "model.initial_log_std=1"),
                ("environment.processes", "environment.command=null", "environment.name=cartpole")]:
            with self.subTest(words):
                made = self.command("validate", CONFIG, *overrides)
                self.assert_done(made, 2)
                self.assertIn(words, made.stdout + made.stderr)
        made = self.command("train", CONFIG, self.corridor(), "--dry-run")
        self.assert_done(made)
        self.nothing_is_left()

    @unittest.skipIf(python_with_gymnasium() is None, "no Python with gymnasium (make interop)")
    def test_tasks_of_gymnasium_are_served_by_their_names(self):
        python = python_with_gymnasium()
        for task in ("CartPole-v1", "Pendulum-v1"):
            command = f'environment.command=[env, "PYTHONPATH={PACKAGE}", "{python}", -m, tidepool_env, serve, "gymnasium:{task}"]'
            made = subprocess.run([python, "-m", "tidepool_env", "check", f"gymnasium:{task}", "--seeds=2"], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)
            self.assert_done(made)
            self.assert_done(self.train(CONFIG, command, f"environment.name={task}", "train.steps=2", run=task))
            self.assertEqual(self.drops(task), [])
        # Its Box says what an off-policy algorithm has to know.
        self.assert_done(self.train("configs/test/control_sac.yaml", command, f"environment.name={task}", "train.steps=4", run="sac"))
        self.assertIn('"action_low": -2.0', self.path("final", "config.json", run="sac").read_text())


if __name__ == "__main__":
    unittest.main()
