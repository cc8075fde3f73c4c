"""Environments that are services of their own: whole runs with Python programs, and what is said of those that do wrong.

Needs gRPC for Python, of the interpreter that runs this, of make interop or of the system (scripts/setup --tests installs
Debian's). Without it the tests skip."""
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import unittest
import unittest.mock

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest, alive, kill

CONFIG = "configs/test/service_episodes.yaml"
PACKAGE = ROOT / "examples" / "python"
GUESS = PACKAGE / "games" / "guess.py"


def python_with_grpc():
    """None: there is none."""
    for python in (sys.executable, os.environ.get("TIDEPOOL_INTEROP_PYTHON", ""), str(ROOT / ".deps/interop-venv/bin/python"), "/usr/bin/python3"):
        if python and os.path.exists(python) and subprocess.run([python, "-c", "import grpc, grpc_tools"], capture_output=True).returncode == 0:
            return python
    return None


PYTHON = python_with_grpc()


def processes(wanted):
    """Those whose words on the command line are wanted."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]):
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


@unittest.skipIf(PYTHON is None, "no Python with grpcio and grpcio-tools (scripts/setup --tests)")
class EnvironmentServiceTest(RunTest):
    def file(self, text, name="game.py"):
        """An environment of this test, and the override that makes it the job's."""
        path = self.dir / name
        path.write_text(text)
        return f'environment.command=[env, "PYTHONPATH={PACKAGE}", "{PYTHON}", "{path}"]'

    def guess(self, *change, name="game.py"):
        """The example, changed: pairs of what is written there and what is there instead."""
        text = (GUESS).read_text()
        for was, now in change:
            self.assertIn(was, text)
            text = text.replace(was, now)
        return self.file(text, name)

    def services(self, guards=False):
        """The programs themselves, or their guards."""
        return processes(lambda words: words[-1:] == [str(self.dir / "game.py")] and ("guard-service" in words) == guards)

    def nothing_is_left(self):
        self.wait_for(lambda: not processes(lambda words: any(str(self.dir) in word for word in words)), "the end of all that was started")

    def drops(self, run="run"):
        return [r["reason"] for r in self.journal(run) if r["kind"] == "DROP"]

    def test_the_page_begins_with_the_example_and_the_example_keeps_the_rules(self):
        page = (ROOT / "docs/adding_an_environment.md").read_text()
        block = re.search(r"^```python\n(.*?)^```$", page, re.S | re.M).group(1)
        self.assertEqual(block, (GUESS).read_text())
        self.assertLessEqual(len(block.splitlines()), 22)
        checks = lambda path, *more: subprocess.run([PYTHON, "-m", "tidepool_env", "check", str(path), *more], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)  # noqa: E731
        made = checks(GUESS)
        self.assert_done(made)
        self.assertNotIn("FAIL", made.stdout)
        for was, now, words in [('random.Random(seed)', 'random.Random()', "loss='pinned'"),
                                ('said = "?" if action not in tuple("12345678") else', 'said = "?" if int(action) > 8 else', "takes whatever a policy says"),
                                ('return 1.0', 'return float("nan")', "a reward is nan"),
                                ('characters="12345678-?moreless"', 'characters="12345678"', "which its characters do not have"),
                                ('said = "1-8?"', 'said = "\\ud800"', "no UTF-8"),
                                ('(yield said)', '(yield said, 0.5)', "a reset gives the reward 0.5"),
                                ('said = "1-8?"', 'return 1.0\n    said = "1-8?"', "the episode is over before it has begun"),
                                ('said = "1-8?"', 'exit(3)\n    said = "1-8?"', "SystemExit: 3"),
                                ('said = "1-8?"', 'while True: pass\n    said = "1-8?"', "is not over after 2 s (--timeout)")]:
            with self.subTest(now):
                self.guess((was, now))
                made = checks(self.dir / "game.py", "--timeout=2")
                self.assert_done(made, 1)
                self.assertIn(words, made.stdout)

    def test_an_environment_that_can_be_open_once_alone_is_checked(self):
        self.guess(("max_turns=6", "max_turns=6, instances=1"))
        made = subprocess.run([PYTHON, "-m", "tidepool_env", "check", str(self.dir / "game.py")], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)
        self.assert_done(made)
        self.assertIn("shares nothing between instances (not tried: instances=1)", made.stdout)

    def test_the_example_finds_the_installed_package_and_that_is_whole(self):
        if subprocess.run([PYTHON, "-c", "import setuptools"], capture_output=True).returncode != 0:
            self.skipTest("no setuptools")
        tree, lib = self.dir / "tree" / "examples" / "python", self.dir / "lib"
        shutil.copytree(PACKAGE, tree, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        (self.dir / "tree" / "proto").mkdir()
        shutil.copy(ROOT / "proto" / "environment.proto", self.dir / "tree" / "proto")

        def run(*words, cwd, code=0, **variables):
            made = subprocess.run([PYTHON, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **variables})
            self.assert_done(made, code)
            return made.stdout + made.stderr

        run("setup.py", "-q", "sdist", "-d", self.dir / "sdist", cwd=tree)
        (packed,) = (self.dir / "sdist").iterdir()
        shutil.unpack_archive(packed, self.dir / "unpacked")
        (source,) = (self.dir / "unpacked").iterdir()
        run("setup.py", "-q", "build_py", f"--build-lib={lib}", cwd=source)
        without_tools = f"import sys; sys.modules['grpc_tools'] = None; sys.path[0] = {str(GUESS.parent)!r}; import guess, tidepool_env.wire; print(tidepool_env.__file__)"
        self.assertIn(str(lib), run("-c", without_tools, cwd=self.dir, PYTHONPATH=str(lib)))
        self.assertIn("pip install ./examples/python", run("-c", without_tools, cwd=self.dir, code=1, PYTHONPATH=str(PACKAGE)))

    def test_a_python_file_is_trained_on_and_whatever_dies_changes_no_weight(self):
        args = ["deterministic=true", "train.steps=14", "checkpoint.every_steps=4", "observe.samples_per_step=-1"]
        self.assert_done(self.train(CONFIG, self.guess(), *args, run="calm"))
        self.nothing_is_left()
        self.assertEqual(self.drops("calm"), [])
        want, metrics = self.digests("calm"), self.metrics("calm")
        self.assertGreater(len(set(want.values())), 7)
        self.assertIn("after", self.summary("calm")["accuracy"])
        asked = self.command("eval", "--model", str(self.path(run="calm")), "--deterministic", "--json")
        self.assert_done(asked)
        total, last = json.loads(asked.stdout)["total"], max(step for step, row in metrics.items() if "eval/reward/mean" in row)
        self.assertEqual(total["rows"], 8)
        self.assertAlmostEqual(total["reward"]["value"], metrics[last]["eval/reward/mean"])
        for step in range(1, 15):
            self.assertEqual(metrics[step]["env/infra_errors"] + metrics[step]["env/data_errors"], 0)
            self.assertNotIn("env/replayed_turns", metrics[step], "an open instance gets what is new alone")
            self.assertGreater(metrics[step]["turns/mean"], 1)
        run = self.start(CONFIG, self.guess(), *args, run="killed")
        self.wait_step(2, run, run="killed")
        worker = self.worker_pid(1, run, run="killed")
        services = self.services()
        self.assertEqual(len(services), 2, "one a worker")
        self.assertTrue(kill(worker))
        self.wait_for(lambda: len([pid for pid in services if alive(pid)]) == 1, "the end of its service", run)
        self.wait_step(4, run, run="killed")
        for pid in self.services():
            kill(pid)
        self.wait_step(7, run, run="killed")
        for pid in self.services(guards=True):
            kill(pid)
        self.finish(run)
        self.nothing_is_left()
        self.assert_checked("killed")
        self.assertEqual(self.drops("killed"), [])
        self.assertEqual(self.digests("killed"), want)
        log = self.path("logs", "environment-0.log", run="killed").read_text() + self.path("logs", "environment-1.log", run="killed").read_text()
        self.assertRegex(log, r'event=environment_service_lost service="environment guess .*" why="it was killed by signal 9 \(SIGKILL\)"')

    def test_a_killed_controller_plays_open_episodes_again(self):
        args = ["deterministic=true", "train.steps=14", "checkpoint.every_steps=1"]
        self.assert_done(self.train(CONFIG, self.guess(), *args, run="calm"))
        run = self.start(CONFIG, self.guess(), *args, run="killed")
        self.wait_step(4, run, run="killed")
        self.kill_controller(run, run="killed")
        self.nothing_is_left()
        self.assert_done(self.train(CONFIG, self.guess(), *args, "--resume", run="killed"))
        self.assert_checked("killed")
        self.assertEqual(self.digests("killed"), self.digests("calm"))

    def test_a_service_that_cannot_be_started_any_more_ends_the_run_by_name(self):
        run = self.start(CONFIG, self.guess(), "train.steps=100000", "checkpoint.every_steps=0", "environment.workers=1")
        self.wait_step(1, run)
        self.file("import nothing_of_that_name")
        for pid in self.services():
            kill(pid)
        _, err = self.finish(run, code=3)
        self.assertRegex(err, r"3 workers in a row died in environment guess, and nothing was played in between; .*exit status 1: "
                              "ModuleNotFoundError: No module named 'nothing_of_that_name'")
        self.nothing_is_left()

    def test_services_that_run_already_are_shared_and_one_that_is_lost_is_done_without(self):
        args = ["deterministic=true", "train.steps=10", "checkpoint.every_steps=5"]
        self.assert_done(self.train(CONFIG, self.guess(), *args, run="calm"))
        sockets = [f"unix:{self.dir}/{name}" for name in ("one", "two")]
        with_token = unittest.mock.patch.dict(os.environ, {"TIDEPOOL_ENVIRONMENT_TOKEN": "a-token"})
        with with_token:
            servers = [subprocess.Popen([PYTHON, "-m", "tidepool_env", "serve", str(self.dir / "game.py"), "--listen", address], cwd=PACKAGE,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for address in sockets]
        self.started += servers
        self.wait_for(lambda: all(pathlib.Path(address[5:]).exists() for address in sockets), "the servers")
        found = ["environment.command=[]", f"environment.addresses={sockets}"]
        self.refused("no token of this environment", *found, "environment.start_timeout_s=1")
        with with_token:
            run = self.start(CONFIG, *found, *args, run="found")
        self.wait_step(3, run, run="found")
        servers[0].kill()
        self.finish(run)
        self.assertEqual(self.drops("found"), [])
        self.assertEqual(self.digests("found"), self.digests("calm"))
        self.assertIsNone(servers[1].poll(), "it is not the run's to end")

    def test_a_pinned_episode_that_is_lost_is_no_reward(self):
        pinned = self.guess(('max_turns=6', 'max_turns=6, loss="pinned"'))
        run = self.start(CONFIG, pinned, "train.steps=100000", "checkpoint.every_steps=0", "scheduler.infra_drop_stop=1", "scheduler.infra_drop_alarm=1")
        step, deadline = 1, time.monotonic() + 60
        while "DROP" not in self.kinds() and time.monotonic() < deadline:
            self.wait_step(step, run)
            for pid in self.services():
                kill(pid)
            step = max(self.metrics()) + 1
        self.wait_step(step + 3, run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.nothing_is_left()
        self.assert_checked()
        journal = self.journal()
        dropped = {tuple(r["tid"].values()) for r in journal if r["kind"] == "DROP" and r["reason"] == "env_infra"}
        self.assertGreater(len(dropped), 0)
        trained = {tuple(row["tid"].values()) for r in journal if r["kind"] == "STEP_COMMIT" for row in r["rows"]}
        self.assertEqual(dropped & trained, set())
        graded = {tuple(r["tid"].values()) for r in journal if r["kind"] == "GRADED"}
        self.assertEqual(dropped & graded, set(), "no reward of 0")
        self.assertRegex(self.path("logs", "controller.log").read_text(),
                         r"event=env_infra .*the instance that played the \d+ turns so far is lost, and the environment says that they cannot be played again")

    def kinds(self):
        made = self.command("journal", str(self.path()), "--json", "--kind", "DROP")
        return made.stdout

    def test_no_more_instances_are_open_than_may_be_and_a_hung_one_of_few_is_made_good(self):
        few = self.file(f"""
import os, pathlib, threading, time
from tidepool_env import environment, serve
here, lock, opened = pathlib.Path("{self.dir}"), threading.Lock(), 0

def count(more):
    global opened
    with lock, open(here / "opened", "a") as file:
        opened += more
        file.write(f"{{opened}}\\n")

@environment(max_turns=3, characters="12345678-?moresl", instances=INSTANCES)
class Few:
    def reset(self, seed):
        count(1)
        self.turn = 0
        return "1-8?"

    def step(self, action):
        self.turn += 1
        if HANGS and self.turn == 2 and not (here / "has_hung").exists():
            (here / "has_hung").touch()
            time.sleep(1000)
        return "?", float(action.strip() == "3"), self.turn == 3, False, {{}}

    def close(self):
        count(-1)

serve(Few)
""")
        game = self.dir / "game.py"
        written = game.read_text()
        for run, described, instances, hangs in (("few", 0, 2, False), ("hung", 1, 1, True)):
            game.write_text(written.replace("INSTANCES", str(described)).replace("HANGS", str(hangs)))
            (self.dir / "opened").unlink(missing_ok=True)
            self.assert_done(self.train(CONFIG, few, "train.steps=3", "environment.workers=1", f"environment.instances={instances}",
                                        "environment.step_timeout_s=3", "environment.max_retries=3", run=run))
            self.assert_checked(run)
            self.assertEqual(self.drops(run), [])
            # What is given up is closed a moment after another one is opened: mostly there are no more.
            self.assertLessEqual(statistics.median(map(int, (self.dir / "opened").read_text().split())), instances)
        self.assertIn("too many of its episodes did not answer", self.path("logs", "environment-0.log", run="hung").read_text())
        self.nothing_is_left()

    def test_episodes_that_end_before_their_game_give_their_instances_back_and_those_without_one_wait(self):
        endless = self.file("""
from tidepool_env import environment, serve

@environment(max_turns=1000, characters="12345678-?moresl", instances=3, loss="pinned")
class Endless:
    def reset(self, seed):
        return "1-8?"

    def step(self, action):
        return "?", 0.0, False, False, {}

serve(Endless)
""")
        self.assert_done(self.train(CONFIG, endless, "train.steps=4", "environment.workers=1", "rollout.max_new_tokens=9"))
        self.assert_checked()
        self.assertEqual(self.drops(), [])
        self.assertEqual({r["status"] for r in self.journal() if r["kind"] == "END"}, {"truncated"})
        self.assertNotIn("event=env_retry", self.path("logs", "controller.log").read_text())
        self.nothing_is_left()

    def test_a_trial_has_the_variables_that_workers_have(self):
        game = self.dir / "game.py"
        game.write_text(GUESS.read_text())
        made = self.command("validate", CONFIG, f'environment.command=["{PYTHON}", "{game}"]', env={"PYTHONPATH": str(PACKAGE)})
        self.assert_done(made, 2)
        self.assertIn("No module named 'tidepool_env'", made.stdout + made.stderr)

    def test_a_service_has_no_descriptors_of_ours_and_words_that_nobody_reads_keep_nobody(self):
        speaks = self.file(f"""
import os, sys
def descriptors(process):
    for name in os.listdir(f"/proc/{{process}}/fd"):
        try: yield os.readlink(f"/proc/{{process}}/fd/{{name}}")
        except OSError: pass

with open("{self.dir}/descriptors", "w") as file:
    file.write("\\n".join([*descriptors("self"), *descriptors(os.getppid())]))
sys.stderr.write("x" * (1 << 20))
""" + GUESS.read_text())
        kept = open(self.dir / "ours", "w")
        self.addCleanup(kept.close)
        unread, ours = os.pipe()
        self.addCleanup(os.close, unread)
        folder = self.dir / "guarded"
        folder.mkdir()
        life, alive_while = os.pipe()
        words = json.loads(speaks.split("=", 1)[1].replace("[env,", '["env",'))
        guard = subprocess.Popen([TIDEPOOL, "guard-service", str(folder), "--", *words], stdin=life, stdout=subprocess.DEVNULL, stderr=ours,
                                 env={**os.environ, "TIDEPOOL_ENVIRONMENT_ADDRESS": f"unix:{folder}/socket"})
        self.started.append(guard)
        os.close(life), os.close(ours)
        self.wait_for((folder / "socket").exists, "the service, which has written more than a pipe holds")
        os.close(alive_while)
        guard.wait(PATIENCE)
        self.nothing_is_left()
        os.set_inheritable(kept.fileno(), True)
        self.assert_done(subprocess.run([TIDEPOOL, "validate", CONFIG, speaks], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, close_fds=False))
        links = (self.dir / "descriptors").read_text().split()
        self.assertGreater(len(links), 5)
        self.assertNotIn(str(self.dir / "ours"), links)

    def test_words_that_are_no_files_are_left_as_they_are(self):
        for name in ("easy", "2"):
            (self.dir / name).mkdir()
        (self.dir / "hard").write_text("")
        game = self.file('import sys; sys.exit(f"given {sys.argv[1:]}")')
        config = self.dir / "job.yaml"
        config.write_text((ROOT / CONFIG).read_text().replace("command: [python3, ../../examples/python/games/guess.py]",
                                                              f'command: ["{PYTHON}", game.py, easy, 2, hard, "", ./hard]'))
        self.assertIn("game.py", config.read_text())
        made = self.command("validate", str(config))
        self.assert_done(made, 2)
        self.assertIn(f"given ['easy', '2', 'hard', '', '{self.dir}/hard']", made.stdout + made.stderr)

    def test_samples_keep_their_prompt_when_one_of_their_group_is_dropped(self):
        drops = self.guess(("import environment, serve", "import BadEpisode, environment, serve"),
                           ('said = "1-8?"', 'said, turns = "1-8?", 0'),
                           ("        if action == number:", '        turns += 1\n        if turns == 6 and action < "5":\n            raise BadEpisode("this one")\n        if action == number:'))
        self.assert_done(self.train(CONFIG, drops, "train.steps=4", "observe.samples_per_step=-1", "eval.before_train=false", "eval.after_train=false",
                                    "scheduler.infra_drop_stop=1", "scheduler.infra_drop_alarm=1"))
        self.assertIn("data_invalid", self.drops())
        lines = [json.loads(line) for file in sorted(self.path("samples").iterdir()) for line in file.read_text().splitlines()]
        self.assertGreater(len(lines), 10)
        self.assertEqual({line["prompt"] for line in lines}, {"1-8?"})

    def test_an_evaluation_opens_no_more_than_may_be_and_waits_for_slow_steps(self):
        self.assert_done(self.train(CONFIG, self.guess(), "train.steps=1", "eval.before_train=false", "eval.after_train=false"))
        for few, slow in ((', instances=2', ''), ('', 'time.sleep(4.2 if said == "1-8?" else 0); ')):  # 8 games: longer than the worker is permitted to serve unseen
            with self.subTest(few or slow):
                self.guess(('max_turns=6', 'max_turns=2' + few), ('import random', 'import random, time'), ('        if action == number', '        ' + slow + 'said = said\n        if action == number'))
                asked = self.command("eval", "--model", str(self.path()), "--deterministic", "--json")
                self.assert_done(asked)
                total = json.loads(asked.stdout)["total"]
                self.assertEqual((total["rows"], total.get("errors", 0)), (8, 0))

    def test_streams_that_end_are_no_end_of_their_service(self):
        refusing = self.guess(("from tidepool_env import environment, serve", """import grpc
from tidepool_env import environment, serve, service

play, refused = service._Servicer.Play, 0


def refuses_six_times(self, requests, context):
    global refused
    refused += 1
    if refused <= 6:
        context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
    yield from play(self, requests, context)


service._Servicer.Play = refuses_six_times"""))
        made = self.command("validate", CONFIG, refusing)
        self.assert_done(made)

    def test_a_run_goes_on_with_an_environment_that_does_all_that_it_should_not(self):
        did = self.file(f"""
import os, subprocess, time
from tidepool_env import environment, serve
subprocess.Popen(["sh", "-c", "sleep 98765", "{self.dir}"], start_new_session=True)
steps = 0

@environment(max_turns=4, characters="12345678-?moresl")
class Wrong:
    def reset(self, seed):
        self.kind, self.turn = seed // 2 % 14, 0
        return "1-8?"

    def step(self, action):
        global steps
        steps += 1
        self.turn += 1
        if steps == 60:
            os._exit(1)
        said, reward = "?", float(action.strip() in tuple("12345678"))
        if self.turn == 2 and self.kind == 0: reward = float("nan")
        if self.turn == 2 and self.kind == 1: raise KeyError("its own")
        if self.turn == 2 and self.kind == 2: time.sleep(1000)
        if self.turn == 2 and self.kind == 3: said = "x" * (100 << 20)
        if self.turn == 2 and self.kind == 4: said = chr(0xd800)
        if self.turn == 2 and self.kind == 5: said = ""
        if self.turn == 2 and self.kind == 6: reward = None
        return said, reward, self.turn == 4, False, {{}}

serve(Wrong)
""")
        run = self.start(CONFIG, did, "train.steps=100000", "checkpoint.every_steps=0", "environment.step_timeout_s=1", "environment.max_retries=1",
                         "scheduler.infra_drop_stop=1", "scheduler.infra_drop_alarm=1", "eval.before_train=false", "eval.after_train=false")
        expected = ("a reward is nan; expected a finite number", "KeyError: 'its own'", "no answer within 1.0 s", "an observation has 104857600 bytes",
                      "an observation is no UTF-8", "an observation is empty, and the episode is not over", "a reward is None; expected a number")
        log = self.path("logs", "controller.log")
        self.wait_for(lambda: log.exists() and all(words in log.read_text() for words in expected), "all that it does", run)
        self.wait_step(1, run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.nothing_is_left()
        self.assert_checked()
        self.assertLessEqual(set(self.drops()), {"env_infra", "data_invalid", "operator"})

    def refused(self, words, *overrides):
        made = self.command("validate", CONFIG, *overrides)
        self.assertEqual(made.returncode, 2, made.stdout + made.stderr)
        self.assertIn(words, made.stdout + made.stderr)
        self.assertRegex(made.stdout + made.stderr, r"(command line|environment\.\w+|model\.init)")
        return made.stdout + made.stderr

    def test_what_cannot_be_used_is_named_before_a_run_begins(self):
        serving = "\nif __name__"
        for words, *overrides in [
                ("environment guess (/no/such/program): it cannot be started (No such file or directory)", "environment.command=[/no/such/program]"),
                ("ended with exit status 1: ModuleNotFoundError: No module named 'nothing_of_that_name'", self.file("import nothing_of_that_name", "a.py")),
                ("it did not answer within 0.", "environment.command=[sleep, 1000]", "environment.start_timeout_s=0.3"),
                ("describes itself with max_turns 0; expected 1 or more", self.guess((serving, "\nguess.max_turns = 0\n" + serving), name="b.py")),
                ("two resets with the same seed say different things first", self.guess(('said = "1-8?"', 'said = str(random.random())'), name="c.py")),
                ("environment.addresses: environment guess: no service to play in for ", "environment.command=[]", "environment.addresses=[127.0.0.1:9]",
                 "environment.start_timeout_s=1"),
                ("environment.addresses: found 'nowhere'; expected host:port", "environment.command=[]", "environment.addresses=[nowhere]"),
                ("environment.command: begins with an empty word", 'environment.command=["", game.py]'),
                ("environment.name: is 'solved', which every environment says of an episode", "environment.name=solved"),
                ("environment.name: found a name of a service with other characters than", "environment.name='a \"b\"'"),
                ("written beside environment.command", "environment.addresses=[127.0.0.1:9]"),
                ("environment.side: is no key of a service; give it to its program", "environment.side=3"),
                ("which environment guess writes or reads", self.guess(('"1-8?"', '"1-9?"'), name="d.py"))]:
            with self.subTest(words):
                self.refused(words, *overrides)
        self.nothing_is_left()
        made = self.command("simulate", CONFIG, self.guess())
        self.assert_done(made, 2)
        self.assertRegex(made.stderr, r"override 'environment\.command=.*': environment\.max_turns: is missing, and nobody plays in a rehearsal")
        self.assert_done(self.command("simulate", CONFIG, self.guess(), "environment.max_turns=6"))


if __name__ == "__main__":
    unittest.main()
