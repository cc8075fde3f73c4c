"""Plug-ins that crash, hang, exit and break their rules (tests/plugins/faulty): whole runs of the real programs end soon and
name the plug-in with its file."""
import json
import re
import signal
import subprocess
import time
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest

REWARD = "configs/test/rl_colocated.yaml"
GAME = "configs/test/rl_episodes.yaml"
CONTROL = "configs/control/cartpole.yaml"
HERE = "tests/plugins/faulty/"
FAULTY_REWARD = f"reward faulty ({HERE}faulty_reward.cc)"
FAULTY_GAME = f"environment faulty_game ({HERE}faulty_game.cc)"
FAULTY_CONTROL = f"control task faulty_control ({HERE}faulty_control.cc)"
FAULTY_TASK = f"task faulty_task ({HERE}faulty_task.cc)"
POLICIES = "configs/multiplexed_demo.yaml"
SOON = "cluster.plugin_timeout_s=2"
LATE = " did not return within 2 s (cluster.plugin_timeout_s) on "
RAISE = "; correct it, or raise cluster.plugin_timeout_s"


def reward(how, timeout_s=5):
    return f'reward.functions=[{{name: "faulty:{how}", timeout_s: {timeout_s}}}]'


def task(**options):
    return "data={task: faulty_task, " + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"


def game(fault, **more):
    return (f'environment={{name: faulty_game, fault: "{fault}", size: 8, held_out: 8, workers: 1, '
            + "".join(f"{key}: {value}, " for key, value in more.items()) + 'max_turn_tokens: 2}')


def control(place, how):
    return f'environment={{name: faulty_control, in: {place}, how: {how}, instances: 2, step_timeout_s: 2}}'


DIGITS = 'model.init.alphabet="0123456789? "'


class FaultyPluginsTest(RunTest):
    def ends_with(self, result, *said, code=3):
        self.assert_done(result, code)
        for words in said:
            self.assertIn(words, result.stdout + result.stderr)

    def wait_for_words(self, path, words, process):
        self.wait_for(lambda: path.exists() and words in path.read_text(), words, process)

    def told(self, run="run"):
        return json.loads(self.command("status", str(self.path(run=run)), "--json").stdout)

    # --- in worker processes

    def test_a_reward_that_crashes_exits_or_hangs_ends_the_run_by_name(self):
        for how, words in [("crash", "while it ran " + FAULTY_REWARD), ("exit", "while it ran " + FAULTY_REWARD),
                           ("hang", FAULTY_REWARD + " did not return within 1 s (its timeout_s) on sample ")]:
            with self.subTest(how):
                result = self.train(REWARD, reward(how, 1), "eval.samples=0", run=how)
                self.ends_with(result, "3 workers in a row died in " + FAULTY_REWARD, words)

    def test_a_reward_that_throws_is_told_when_it_begins_and_ends_the_run_by_name(self):
        result = self.train(REWARD, reward("throw"), "eval.samples=0")
        self.ends_with(result, "fault=reward_infra", f"faulty ({HERE}faulty_reward.cc) threw an exception: no such place")
        told = [line for line in self.path("logs", "controller.log").read_text().splitlines() if "event=rewards_fail" in line]
        self.assertEqual(len(told), 1, "once a minute at most")
        self.assertIn("threw an exception: no such place", told[0])

    def test_the_words_of_a_plug_in_blame_nobody(self):
        run = self.start(REWARD, reward("slander"), "eval.samples=0", "train.steps=1")
        # Three in a row would have ended the run by the name of the plug-in.
        log = self.path("logs", "controller.log")
        self.wait_for(lambda: log.exists() and log.read_text().count("event=worker_lost") == 4, "the fourth death", run)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=PATIENCE)
        self.assertIn("reward innocent", log.read_text())
        self.assertNotIn("died in reward innocent", out + err + log.read_text())

    def test_a_game_that_crashes_or_hangs_in_a_run_ends_it_by_name(self):
        for how, words in [("crash", "while it ran " + FAULTY_GAME),
                           ("hang", FAULTY_GAME + " did not return within 1 s (environment.step_timeout_s) on turn ")]:
            with self.subTest(how):
                result = self.train(GAME, game("Turn " + how, step_timeout_s=1), DIGITS, "eval.samples=0", run=how)
                self.ends_with(result, "3 workers in a row died in " + FAULTY_GAME, words)

    def test_a_turn_that_waits_behind_slow_ones_is_not_late(self):
        result = self.train(GAME, game("Turn slow", step_timeout_s=1), DIGITS, "eval.samples=1", "train.steps=1",
                            "train.groups_per_step=1")
        self.assert_done(result)
        self.assertNotIn("did not end within its deadline", result.stdout + result.stderr)

    def test_a_game_that_breaks_its_rules_in_a_run_is_named(self):
        result = self.train(GAME, game("Turn nan"), DIGITS, "eval.samples=0")
        self.ends_with(result, FAULTY_GAME, "not one of the first", "Step gave the reward nan in turn 1")

    def test_a_control_task_that_crashes_ends_the_run_by_name(self):
        for place, how in [("Observe", "crash"), ("Observe", "flood"), ("Play", "crash"), ("Start", "crash")]:
            with self.subTest(f"{place} {how}"):
                begin = time.monotonic()
                result = self.train(CONTROL, control(place, how), run=f"{place}-{how}")
                # The first states are made by the controller itself.
                self.ends_with(result, FAULTY_CONTROL, code=-signal.SIGSEGV if place == "Start" else 3)
                self.assertLess(time.monotonic() - begin, 60)

    def test_a_control_task_that_hangs_in_a_worker_of_its_own_is_named(self):
        result = self.train(CONTROL, control("Play", "hang"))
        self.ends_with(result, FAULTY_CONTROL + " did not return within 2 s (environment.step_timeout_s)")

    def test_the_end_of_a_run_does_not_wait_for_a_call_that_hangs_and_names_it(self):
        for name, config, log, label, settings in [
                ("reward", REWARD, "reward-0.log", FAULTY_REWARD, [reward("hang", 100)]),
                ("game", GAME, "environment-0.log", FAULTY_GAME, [game("Turn hang", step_timeout_s=100), DIGITS])]:
            with self.subTest(name):
                run = self.start(config, *settings, "eval.samples=0", run=name)
                self.wait_for_words(self.path("logs", log, run=name), "it hangs", run)
                begin = time.monotonic()
                run.send_signal(signal.SIGTERM)
                out, err = run.communicate(timeout=PATIENCE)
                self.assertLess(time.monotonic() - begin, 90)  # of 100
                logs = out + err + self.path("logs", "controller.log", run=name).read_text()
                self.assertIn("the end did not wait for " + label + " to come back", logs)
                self.assertIn("the end waits for " + label, self.path("logs", log, run=name).read_text())

    def test_a_loss_that_hangs_when_the_run_is_stopped_is_named(self):
        run = self.start(REWARD, "algorithm={name: loss_hangs}", "cluster.plugin_timeout_s=100", "eval.samples=0")
        log, label = self.path("logs", "device-0.log"), f"loss loss_hangs ({HERE}faulty_loss.cc)"
        self.wait_for_words(log, "it hangs", run)
        begin = time.monotonic()
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE)
        self.assertLess(time.monotonic() - begin, 90)  # of 100
        self.assertIn("the end waits for " + label + " on a micro-batch of ", log.read_text())
        self.assertRegex(self.path("logs", "controller.log").read_text(),
                         "level=warn run=[^ ]+ host=[^ ]+ epoch=1 role=controller event=end_waits worker=device-0 text=\"the end did not wait for " + re.escape(label) + " to come back")

    def test_a_loss_that_throws_or_crashes_ends_the_run_by_name(self):
        for how, words in [("throws", " threw an exception: no such place"),
                           ("crashes", ", and no step was trained in between; correct it and build again")]:
            with self.subTest(how):
                result = self.train(REWARD, f"algorithm={{name: loss_{how}}}", "eval.samples=0", run=how)
                self.ends_with(result, f"loss loss_{how} ({HERE}faulty_loss.cc)" + words, "fault=train")
                if how == "throws":
                    self.assertRegex(result.stderr, r"fault=train actor=\S+ step=(\d+): step \1 failed 3 times: ")

    def test_a_loss_or_an_advantage_that_hangs_ends_the_run_by_name(self):
        for kind, algorithm, words in [("loss", "name: loss_hangs", "a micro-batch of "),
                                       ("advantage", "name: grpo, advantage: advantage_hangs", "a batch of ")]:
            with self.subTest(kind):
                result = self.train(REWARD, f"algorithm={{{algorithm}}}", SOON, "eval.samples=0", run=kind)
                label = f"{kind} {kind}_hangs ({HERE}faulty_loss.cc)"
                self.ends_with(result, "3 workers in a row died in " + label, "fault=train")
                self.assertIn(label + LATE + words, self.path("logs", "device-0.log", run=kind).read_text())

    # --- before a run

    def test_a_game_that_breaks_its_rules_is_refused_with_the_function_that_did(self):
        for fault, words in [("Make crash", "training game 0, Make(): was killed by signal 11"),
                             ("max_turns throw", "max_turns(): threw an exception: no such place"),
                             ("Step nan", "gave the reward nan"), ("State crash", "turn 1, State(): was killed"),
                             ("make throw", "its .make threw an exception: no such place")]:
            with self.subTest(fault):
                made = self.command("validate", GAME, game(fault), DIGITS)
                self.ends_with(made, FAULTY_GAME, words, code=2)
        made = self.command("validate", GAME, game("make crash"), DIGITS)
        self.ends_with(made, "while it ran " + FAULTY_GAME, code=-signal.SIGSEGV)

    def test_a_factory_that_throws_or_crashes_is_named(self):
        for function in ("make", "units"):
            made = self.command("validate", REWARD, task(**{function: "throw"}, size=8))
            self.ends_with(made, f"{FAULTY_TASK}: its .{function} threw an exception: no such place", code=2)
            made = self.command("validate", REWARD, task(**{function: "crash"}, size=8))
            self.ends_with(made, f"while it ran {FAULTY_TASK} on the options of the job (its .{function})", code=-signal.SIGSEGV)
        made = self.command("validate", REWARD, reward("make exit"))
        self.ends_with(made, REWARD + ": cannot be used: the process was ended by a call of exit() while it ran " + FAULTY_REWARD, "; correct it and build again")
        made = self.command("validate", REWARD, reward("make crash"))
        self.ends_with(made, "while it ran " + FAULTY_REWARD, code=-signal.SIGSEGV)
        made = self.command("validate", CONTROL, control("make", "crash"))
        self.ends_with(made, "while it ran " + FAULTY_CONTROL, code=-signal.SIGSEGV)

    def test_a_question_that_crashes_exits_or_throws_is_named(self):
        for how, words, code in [("crash", f"the process was killed by SIGSEGV while it ran {FAULTY_TASK} on question ", -signal.SIGSEGV),
                                 ("exit", f"the process was ended by a call of exit() while it ran {FAULTY_TASK} on question ", 3),
                                 ("throw", f"{FAULTY_TASK} threw an exception on question ", 2)]:
            for command in ("train", "validate"):
                with self.subTest(f"{command} {how}"):
                    more = ["--run-dir", str(self.dir / how)] if command == "train" else []
                    made = self.command(command, REWARD, task(question=how, size=100000, held_out=0), "eval.samples=0", *more)
                    begin = "" if how == "throw" else "error: " if command == "train" else REWARD + ": cannot be used: "
                    self.ends_with(made, begin + words, code=code)
                    self.assertEqual(made.stderr.count(words), 1)
                    self.assertNotIn("internal error", made.stderr)

    def test_a_question_that_does_wrong_where_a_task_is_shown_is_named(self):
        for how, words, code in [("crash", f"error: the process was killed by SIGSEGV while it ran {FAULTY_TASK} on question 10000", -signal.SIGSEGV),
                                 ("throw", f"{FAULTY_TASK} threw an exception on question 10000: no such place", 2)]:
            with self.subTest(how):
                shown = self.command("tasks", "faulty_task", "--samples", "10001", "--option", "question=" + how)
                self.ends_with(shown, words, code=code)
                self.assertNotIn("internal error", shown.stderr)

    def test_a_call_that_hangs_before_a_run_ends_the_command_by_name(self):
        self.assert_done(self.train(GAME, game("no"), DIGITS, SOON, "train.steps=1", "eval.samples=0"))
        config = self.path("config.yaml")
        config.write_text(re.sub(r"fault: .*", 'fault: "max_turns hang"', config.read_text()))
        made = LATE + "the options of the job (its .make)" + RAISE
        cases = [(["validate", REWARD, task(make="hang", size=8, held_out=8), SOON], FAULTY_TASK + made),
                 (["validate", REWARD, task(units="hang", size=8), SOON], FAULTY_TASK + made.replace(".make", ".units")),
                 (["validate", REWARD, task(sizes="hang", size=8, held_out=8), SOON], FAULTY_TASK + made.replace(".make", "train_size()")),
                 (["validate", REWARD, task(question="hang", size=100000, held_out=0), SOON, "eval.samples=0"], FAULTY_TASK + LATE + "question "),
                 (["validate", REWARD, reward("make hang"), SOON], FAULTY_REWARD + made),
                 (["validate", GAME, game("make hang"), DIGITS, SOON], FAULTY_GAME + made),
                 (["validate", CONTROL, control("make", "hang"), SOON], FAULTY_CONTROL + made),
                 (["eval", "--model", str(self.path()), "--limit", "2"], FAULTY_GAME + made.replace(".make", "max_turns()"))]
        processes = [subprocess.Popen([TIDEPOOL, *args], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                     for args, _ in cases]
        self.started += processes
        for process, (args, words) in zip(processes, cases):
            with self.subTest(" ".join(args)):
                _, err = process.communicate(timeout=PATIENCE)
                self.assertIn(("error: " if args[0] == "eval" else f"{args[1]}: cannot be used: ") + words, err)
                self.assertEqual(process.returncode, 3)

    def test_a_config_whose_plug_in_hangs_or_ends_its_process_is_named_and_the_others_are_validated(self):
        files = {"good": ROOT / REWARD}
        for how in ("hang", "crash", "exit", "quit"):
            files[how] = self.dir / f"{how}.yaml"
            files[how].write_text(f"extends: {ROOT / REWARD}\ncluster: {{plugin_timeout_s: 1}}\n"
                                  f"data: {{task: faulty_task, make: {how}, size: 8, held_out: 8}}\n")
        words = {"hang": FAULTY_TASK + " did not return within 1 s (cluster.plugin_timeout_s)",
                 "exit": "the process was ended by a call of exit() while it ran " + FAULTY_TASK,
                 "quit": "a plug-in that it names ended the process with exit status 0; correct it and build again",
                 "crash": "the process was killed by SIGSEGV while it ran " + FAULTY_TASK}
        paths = [str(files[how]) for how in ("hang", "exit", "quit", "good")]
        made = self.command("validate", *paths)
        self.ends_with(made, *(f"{files[how]}: cannot be used: {words[how]}" for how in ("hang", "exit", "quit")), f"{files['good']}: ok")
        made = self.command("validate", "--json", *paths, str(files["crash"]), str(files["good"]))
        self.assertEqual(made.returncode, -signal.SIGSEGV)
        told = [json.loads(line) for line in made.stdout.splitlines()]
        self.assertEqual([(entry["config"], entry["ok"]) for entry in told],
                         [(str(files[how]), how == "good") for how in ("hang", "exit", "quit", "good", "crash", "good")])
        for entry, how in zip(told, ("hang", "exit", "quit", "good", "crash")):
            if how != "good":
                self.assertTrue(entry["error"].startswith(words[how]), entry)

    def test_validate_ends_quietly_when_nobody_reads_any_more(self):
        made = subprocess.run(f"{TIDEPOOL} validate " + 8 * f"{REWARD} " + "| head -1; echo ${PIPESTATUS[0]}", shell=True, executable="/bin/bash",
                              cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(made.stderr, "")
        self.assertEqual(made.stdout.splitlines(), [f"{REWARD}: ok", str(128 + signal.SIGPIPE)])

    def test_who_looks_at_a_run_calls_none_of_its_plug_ins(self):
        self.assert_done(self.train(REWARD, task(make="no", size=8, held_out=8), reward("fine"), "train.steps=1", "eval.samples=0"))
        config, run = self.path("config.yaml"), str(self.path())
        written = config.read_text()
        for was, now in [("make: .*", "make: crash"), ("make: .*", "make: hang"), ("make: .*", "make: quit"),
                         ("task: .*", "task: of_yesterday"), ('name: "?faulty:fine"?', "name: of_yesterday"), ("(?m)^  loss: .*", "  loss: of_yesterday")]:
            with self.subTest(now):
                self.assertRegex(written, was)
                config.write_text(re.sub(was, now, written))
                said = self.told()
                self.assertEqual((said["state"], said["job"]), ("finished", "rl"))
                self.assertIn("worker=device-0/inc", self.command("journal", run, "--worker", "device-0", "--kind", "JOIN").stdout)
                for command in ("status", "samples", "report", "check", "runs", "prune"):
                    self.assert_done(self.command(command, str(self.dir) if command == "runs" else run, *(["--dry-run"] if command == "prune" else [])))

    def test_a_factory_may_take_as_long_as_the_config_gives_it(self):
        slow = ["validate", REWARD, task(make="late", size=8, held_out=8)]
        made = self.command(*slow, "cluster.plugin_timeout_s=1")
        self.ends_with(made, FAULTY_TASK + " did not return within 1 s (cluster.plugin_timeout_s) on the options of the job (its .make)" + RAISE)
        self.assert_done(self.command(*slow, "cluster.plugin_timeout_s=20"))

    def test_the_limit_is_that_of_the_config_that_is_validated_or_run(self):
        # In either order: a longer limit of another config, and of the run that is gone on with.
        file = self.dir / "late.yaml"
        file.write_text(f"extends: {ROOT / REWARD}\ncluster: {{plugin_timeout_s: 1}}\n"
                        "data: {task: faulty_task, make: late, size: 8, held_out: 8}\n")
        self.ends_with(self.command("validate", REWARD, str(file)), FAULTY_TASK + " did not return within 1 s (cluster.plugin_timeout_s)")
        self.assert_done(self.train(POLICIES, "cluster.plugin_timeout_s=12", "train.steps=1"))
        resumed = self.command("train", str(self.path()), "--resume", "scheduler.policy=hangs", SOON, "train.steps=2")
        self.ends_with(resumed, f"policy hangs ({HERE}faulty_policy.cc)" + LATE + "a plan" + RAISE)

    def test_the_plug_ins_of_a_warm_start_have_the_limit_of_its_config(self):
        warm, main = self.dir / "warm.yaml", self.dir / "main.yaml"
        warm.write_text(f"extends: {ROOT / 'configs/test/sft.yaml'}\ncluster: {{plugin_timeout_s: 1}}\n"
                        "data: {task: faulty_task, size: 100000, question: hang, held_out: 0}\nrollout: {max_new_tokens: 16}\n")
        main.write_text(f"extends: {ROOT / REWARD}\nmodel: {{init: {{warm_start: warm.yaml}}}}\ncluster: {{plugin_timeout_s: 6}}\n")
        key = f"cluster.plugin_timeout_s of {warm}"
        for command in (["validate", str(main)], ["train", str(main), "--run-dir", str(self.path())]):
            with self.subTest(command[0]):
                self.ends_with(self.command(*command), f"{FAULTY_TASK} did not return within 1 s ({key}) on question ", f"; correct it, or raise {key}")

    def test_the_controller_of_a_warm_start_has_the_limit_of_its_config(self):
        warm, main = self.dir / "warm.yaml", self.dir / "main.yaml"
        warm.write_text(f"extends: {ROOT / 'configs/test/sft.yaml'}\ncluster: {{plugin_timeout_s: 1, slots: 2}}\neval: {{every_steps: 5}}\n"
                        "scheduler: {placement: multiplexed, policy: hangs}\nrollout: {max_new_tokens: 16}\n")
        main.write_text(f"extends: {ROOT / REWARD}\nmodel: {{init: {{warm_start: warm.yaml}}}}\ncluster: {{plugin_timeout_s: 9}}\n")
        made = self.command("train", str(main), "--run-dir", str(self.path()))
        self.ends_with(made, f"error: policy hangs ({HERE}faulty_policy.cc) did not return within 1 s (cluster.plugin_timeout_s) on a plan")

    def test_validate_calls_each_reward_on_a_row_and_names_one_that_does_wrong(self):
        made = self.command("validate", REWARD, reward("fine"))
        self.assert_done(made)
        self.assertRegex(made.stdout, r"reward faulty:fine says of .*, answered by its own answer: 1\n")
        for how, words in [("crash", "was killed by signal 11"), ("exit", "ended its process with exit status 0"),
                           ("throw", "threw an exception: no such place"), ("nan", "gave the score nan")]:
            with self.subTest(how):
                made = self.command("validate", REWARD, reward(how, 1))
                self.ends_with(made, "reward.functions[0]: " + FAULTY_REWARD + " on ", ", answered by its own answer: ", words, code=2)
        made = self.command("validate", REWARD, reward("hang", 1))
        self.ends_with(made, "reward.functions[0]: " + FAULTY_REWARD + " did not return within 1 s (its timeout_s) on ",
                       ", answered by its own answer; correct it, or raise its timeout_s", code=2)

    def test_a_reward_that_hangs_on_a_row_without_an_answer_is_ended_by_its_own_limit(self):
        rows = self.dir / "rows.jsonl"
        rows.write_text('{"prompt": "a"}\n' * 40)
        made = self.command("validate", REWARD, reward("look hang", 1), f"data={{path: {rows}, held_out: 0}}", "eval.samples=0")
        self.ends_with(made, REWARD + ": cannot be used: " + FAULTY_REWARD + f" did not return within 1 s (its timeout_s) on {rows}:1; correct it, or raise its timeout_s")

    def test_status_says_which_call_ended_the_controller(self):
        label = f"policy {{}} ({HERE}faulty_policy.cc)"
        for policy, code, words in [("hangs", 3, label.format("hangs") + LATE + "a plan" + RAISE),
                                    ("crashes", -signal.SIGSEGV, "the process was killed by SIGSEGV while it ran " + label.format("crashes") + " on a plan")]:
            with self.subTest(policy):
                made = self.train(POLICIES, f"scheduler.policy={policy}", SOON, "train.steps=2", run=policy)
                self.ends_with(made, "error: " + words, code=code)
                run = str(self.path(run=policy))
                said = self.told(policy)
                self.assertEqual((said["state"], said["summary"]["exit"]), ("failed", code if code > 0 else 128 - code))
                self.assertTrue(said["summary"]["why"].startswith(words), said["summary"])
                shown = self.command("status", run).stdout
                self.assertIn(words, shown)
                self.assertNotRegex(shown, r"(?m)[:,]\s*$|weights *$")  # no line, and no part of one, without a value
                log = self.path("logs", "controller.log", run=policy).read_text()
                self.assertRegex(log, r'(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=error run=[^ ]+ host=[^ ]+ (epoch=1 )?role=controller event=died_in_call text="' + re.escape(words))
                for line in log.splitlines():
                    self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\S+Z level=\w+ run=\S+ host=\S+ (epoch=1 )?role=controller event=")
                self.assert_done(self.command("check", run))
                self.assert_done(self.command("train", run, "--resume", "scheduler.policy="))
                self.assertFalse(self.path("last_words", run=policy).exists())
                self.assertEqual(self.told(policy)["state"], "finished")

    def test_a_call_that_holds_the_controller_is_told_while_it_does(self):
        run = self.start(POLICIES, "scheduler.policy=hangs", "cluster.plugin_timeout_s=16", "train.steps=2")
        held = f"the controller waits for policy hangs ({HERE}faulty_policy.cc) to come back from a plan, for at most 16 s (cluster.plugin_timeout_s)"
        self.wait_for_words(self.path("logs", "controller.log"), f'role=controller event=call_held text="{held}"', run)
        self.wait_for(lambda: self.status().get("call_held"), "the call in status.json", run)
        shown = self.command("status", str(self.path())).stdout
        self.assertRegex(shown, r"(?m)^waits +" + re.escape(held) + "$")
        self.finish(run, code=3)

    def test_a_begin_that_hangs_in_the_controller_ends_the_run_by_name(self):
        begin = game("Begin hang", reset_timeout_s=2).replace("size: 8", "size: 1000")
        result = self.train(GAME, begin, DIGITS, "eval.samples=0", run="game")
        self.ends_with(result, "error: " + FAULTY_GAME + " did not return within 2 s (environment.reset_timeout_s) on the begin of training game ",
                       "; correct it, or raise environment.reset_timeout_s")
        asked = re.search(r"it was asked for training game (\d+)\n", result.stderr).group(1)
        self.assertIn(f"on the begin of training game {asked} (row ", result.stderr)
        result = self.train(CONTROL, control("Start", "hang"), run="control")
        self.ends_with(result, "error: " + FAULTY_CONTROL + " did not return within 2 s (environment.step_timeout_s) on the start of its instances")

    def test_a_second_signal_ends_a_run_that_a_begin_holds(self):
        begin = game("Begin hang", reset_timeout_s=100).replace("size: 8", "size: 1000")
        errors = self.dir / "errors"
        with open(errors, "w", encoding="utf-8") as err:
            run = subprocess.Popen([TIDEPOOL, "train", GAME, begin, DIGITS, "eval.samples=0", "--run-dir", str(self.path())],
                                   cwd=ROOT, stdout=subprocess.DEVNULL, stderr=err)
        self.started.append(run)
        self.wait_for_words(errors, "it hangs", run)
        run.send_signal(signal.SIGTERM)
        self.wait_for_words(errors, "the end waits for " + FAULTY_GAME + " on the begin of training game ", run)
        self.assertIn("to come back; a second signal ends it now\n", errors.read_text())
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(timeout=PATIENCE), 3)
        self.assertIn("error: stopped by a signal while it ran " + FAULTY_GAME, errors.read_text())
        self.assertRegex(errors.read_text(), r"\ngo on with: \S*tidepool train " + re.escape(str(self.path())) + r" --resume\n$")
        self.assertIn("stopped by a signal while it ran " + FAULTY_GAME, self.told()["summary"]["why"])

    def test_a_policy_that_never_trains_is_named_by_train_and_by_simulate(self):
        for policy, point in [("never_trains", "where a batch is ready"), ("stays", "where the trainer's state is to be made")]:
            for command in (["simulate"], ["train"]):
                with self.subTest(f"{command} {policy}"):
                    more = ["--run-dir", str(self.dir / policy)] if command == ["train"] else []
                    made = self.command(*command, POLICIES, f"scheduler.policy={policy}", *more)
                    self.ends_with(made, f"policy {policy} ({HERE}faulty_policy.cc) {point}", "gives no slot the role actor", code=2 if command == ["simulate"] else 3)

    def test_a_policy_that_throws_crashes_or_hangs_is_named_by_train_and_by_simulate(self):
        label = f"policy {{}} ({HERE}faulty_policy.cc)"
        for command in ("simulate", "train"):
            for policy, words, code in [("throws", "decide() threw an exception: no such place", 2 if command == "simulate" else 3),
                                        ("crashes", "error: the process was killed by SIGSEGV while it ran " + label.format("crashes"), -signal.SIGSEGV),
                                        ("hangs", "error: " + label.format("hangs") + LATE + "a plan" + RAISE, 3)]:
                with self.subTest(f"{command} {policy}"):
                    more = ["--run-dir", str(self.dir / policy)] if command == "train" else []
                    made = self.command(command, POLICIES, f"scheduler.policy={policy}", SOON, *more)
                    self.ends_with(made, label.format(policy), words, code=code)

    # --- eval

    def test_eval_names_a_control_task_that_hangs(self):
        self.assert_done(self.train(CONTROL, control("Play", "fine"), "train.steps=1", "eval.samples=0"))
        made = self.command("eval", "--model", str(self.path()), "--episodes", "2", "--option", "how=hang")
        self.ends_with(made, FAULTY_CONTROL + " did not return within 2 s (environment.step_timeout_s) on a start or a step of its instances")

    def test_eval_names_a_control_task_that_hangs_when_an_episode_is_drawn(self):
        self.assert_done(self.train(CONTROL, control("Replay", "fine"), "train.steps=1", "eval.samples=0"))
        made = self.command("eval", "--model", str(self.path()), "--episodes", "1", "--option", "how=hang", "--render", str(self.dir / "episode.svg"))
        self.ends_with(made, FAULTY_CONTROL + " did not return within 2 s (environment.step_timeout_s) on the episode that is drawn")

    def test_eval_names_a_reward_that_hangs_or_crashes_and_ends_at_a_signal(self):
        self.assert_done(self.train(REWARD, reward("fine", 1), "train.steps=1", "eval.samples=4"))
        config = self.path("config.yaml")
        config.write_text(config.read_text().replace("faulty:fine", "faulty:hang"))
        made = self.command("eval", "--model", str(self.path()), "--limit", "4")
        self.ends_with(made, FAULTY_REWARD + " did not return within 1 s (its timeout_s) on ")
        asked = ["eval", "--model", str(self.path()), "--task", "reverse", "--limit", "4", "--reward"]
        self.ends_with(self.command(*asked, "faulty:crash"), "while it ran " + FAULTY_REWARD, code=-signal.SIGSEGV)
        for number in (signal.SIGTERM, signal.SIGINT):
            errors = self.dir / f"errors-{number}"
            with open(errors, "w", encoding="utf-8") as err:
                process = subprocess.Popen([TIDEPOOL, *asked, "faulty:hang"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=err)
            self.started.append(process)
            self.wait_for_words(errors, "it hangs", process)
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=PATIENCE), 3)
            self.assertIn("stopped while it ran " + FAULTY_REWARD, errors.read_text())


if __name__ == "__main__":
    unittest.main()
