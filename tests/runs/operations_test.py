"""How a run is operated: what its processes inherit, who may work on it, how its end is finished later."""
import datetime
import fcntl
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import time
import unittest

from frozen_disk import READS, FrozenDisk
from harness import PATIENCE, ROOT, TIDEPOOL, WORKER, RunTest, kill

CONFIG = "configs/test/rl_colocated.yaml"


def listening_ports(pid):
    """TCP ports on which a process accepts connections."""
    sockets = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except OSError:
            continue
    ports = []
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


class OperationsTest(RunTest):
    def test_a_deterministic_run_goes_on_with_the_instruction_set_that_it_began_with(self):
        def train(isa, *arguments):
            return subprocess.run([TIDEPOOL, "train", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
                                  env={**os.environ, "TIDEPOOL_CPU_ISA": isa})
        misspelt = train("avx-512", CONFIG, "--run-dir", str(self.path()))
        self.assert_done(misspelt, 2)
        self.assertIn("TIDEPOOL_CPU_ISA=avx-512 is no instruction set of the kernels; set one of baseline, avx2", misspelt.stderr)
        self.assertFalse(self.path().exists(), "nothing is made")
        self.assert_done(train("baseline", CONFIG, "--run-dir", str(self.path()), "deterministic=true", "train.steps=2"))
        manifest = json.loads(self.path("checkpoints", "step_2", "manifest.json").read_text())
        self.assertEqual(manifest["instruction_set"], "baseline")
        other = train("", str(self.path()), "--resume", "train.steps=3")
        if "avx2" in pathlib.Path("/proc/cpuinfo").read_text():
            self.assert_done(other, 2)
            self.assertIn("checkpoints/step_2 was computed with the instruction set baseline", other.stderr)
            self.assertIn("set TIDEPOOL_CPU_ISA=baseline", other.stderr)
        self.assert_done(train("baseline", str(self.path()), "--resume", "train.steps=3"))
        # Others round alike: of float32 all from AVX-512 on.
        if "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text():
            alike = str(self.path(run="alike"))
            self.assert_done(train("avx512", CONFIG, "--run-dir", alike, "deterministic=true", "model.dtype=float32", "train.steps=1"))
            self.assert_done(train("avx512_bf16", alike, "--resume", "train.steps=2"))
        # Without that promise it is said, and the run goes on.
        plain = str(self.path(run="plain"))
        self.assert_done(train("baseline", CONFIG, "--run-dir", plain, "train.steps=1"))
        on = train("", plain, "--resume", "train.steps=2")
        self.assert_done(on)
        if "avx2" in pathlib.Path("/proc/cpuinfo").read_text():
            self.assertIn("warning: checkpoints/step_1 was computed with the instruction set baseline", on.stdout + on.stderr)

    def test_secrets_in_the_environment_do_not_reach_workers(self):
        run = subprocess.Popen([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path()), "train.steps=100000"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1",
                                    "CUDA_VISIBLE_DEVICES": "0", "AWS_SECRET_ACCESS_KEY": "hidden-1", "HF_TOKEN": "hidden-2"})
        self.started.append(run)
        for place in [0, 1]:  # a device worker and a grader
            environ = pathlib.Path(f"/proc/{self.worker_pid(place, run)}/environ").read_text()
            self.assertNotIn("hidden", environ)
            for name in ["PATH=", "HOME=", "LC_ALL=", "OMP_NUM_THREADS=", "CUDA_VISIBLE_DEVICES="]:
                self.assertIn(name, environ)
        run.send_signal(signal.SIGINT)
        self.finish(run)

    def test_two_controllers_never_work_on_one_run(self):
        run = self.start(CONFIG, "train.steps=100000")
        self.wait_step(1, run)
        for how in ["--fresh", "--resume"]:
            second = self.train(CONFIG, how)
            self.assert_done(second, 2)
            self.assertIn(f"pid {run.pid}", second.stderr)
            self.assertTrue(self.path("journal").exists(), "the live run's folder was moved")
        self.assertEqual([p.name for p in self.dir.iterdir()], ["run"])
        self.wait_for(lambda: re.search(r" left, weights.*learning +reward [0-9.]+", self.command("status", str(self.path())).stdout, re.DOTALL),
                      what="the time that is left and the reward of a step", process=run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.assert_checked()
        self.assert_done(self.train(CONFIG, "--fresh", "train.steps=1"))
        self.assertEqual(len(list(self.dir.iterdir())), 2, "the old run is kept aside")

    def test_a_run_whose_folder_is_moved_ends_and_says_where_it_is(self):
        run = self.start(CONFIG, "train.steps=100000")
        self.wait_step(1, run)
        run.send_signal(signal.SIGSTOP)
        self.assertRegex(self.command("status", str(self.path())).stdout,
                         rf"running, controller pid {run.pid}\nsilent +its controller has said nothing for \d+ s: it is paused .*kill -CONT {run.pid} ")
        run.send_signal(signal.SIGCONT)
        moved = self.dir / "moved"
        self.path().rename(moved)
        out, err = self.finish(run, code=3)
        self.assertIn(f"its folder {self.path()} was moved to {moved} while the run was at work", err)
        self.assertIn(f"train {moved} --resume\n", out)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["moved"], "something is left, or made, where it was")
        ended = self.summary("moved")
        self.assertEqual(ended["exit"], 3)
        self.assertTrue((moved / "report.html").exists())
        self.assert_done(self.command("train", str(moved), "--resume", f"train.steps={ended['steps'] + 1}"))
        self.assert_checked("moved")

    def test_a_controller_that_stood_still_says_so_and_goes_on(self):
        run = self.start(CONFIG, "train.steps=100000")
        at = self.wait_step(1, run)
        run.send_signal(signal.SIGSTOP)
        stopped = time.time()
        time.sleep(3)  # more than workers/controller/loop_clock.h takes for a slow turn
        on = time.time()
        run.send_signal(signal.SIGCONT)
        self.wait_for(lambda: "event=stood_still" in self.path("logs", "controller.log").read_text(), what="a word of it", process=run)
        self.wait_step(self.status()["step"] + 2, run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.assert_checked()
        # Nothing happened in that time, by the time of day: that of the records behind it is not early by as long.
        times = [datetime.datetime.fromisoformat(r["time"].replace("Z", "+00:00")).timestamp() for r in self.journal()]
        self.assertEqual([t for t in times if stopped + 0.5 < t < on - 1.1], [])
        self.assertGreater(times[-1], on)
        self.assertNotIn("event=suspended", self.path("logs", "controller.log").read_text(), "the machine did not sleep")

    def test_a_run_says_for_how_long_the_machine_slept(self):
        clock, slept = os.environ.get("TIDEPOOL_OTHER_CLOCK"), self.path(run="slept")
        if not clock:
            self.skipTest("TIDEPOOL_OTHER_CLOCK names no library: a build with a sanitizer has none")
        run = subprocess.Popen([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path()), "train.steps=100000"], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, "LD_PRELOAD": clock, "TIDEPOOL_TEST_SLEPT": str(slept)})
        self.started.append(run)
        self.wait_step(1, run)
        slept.touch()
        log = self.path("logs", "controller.log")
        self.wait_for(lambda: "event=suspended" in log.read_text(), what="a word of the suspension", process=run)
        run.send_signal(signal.SIGINT)
        self.finish(run)
        told = [line for line in log.read_text().splitlines() if "event=suspended" in line]
        self.assertEqual(len(told), 1, told)
        self.assertIn("seconds=3600", told[0])

    def test_a_folder_that_becomes_read_only_is_named_with_its_host_and_the_run_goes_on_after_that(self):
        library = os.environ.get("TIDEPOOL_READ_ONLY_DISK")
        if not library:
            self.skipTest("TIDEPOOL_READ_ONLY_DISK names no library: a build with a sanitizer has none")
        flags = {who: self.dir / f"read_only_{who}" for who in ("controller", "trains", "generates")}

        def start(who, *command):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
                **os.environ, "LD_PRELOAD": library, "TIDEPOOL_TEST_READ_ONLY": str(self.path()), "TIDEPOOL_TEST_READ_ONLY_WHILE": str(flags.get(who, ""))})
            self.started.append(process)
            return process
        log, host = self.path("logs", "controller.log"), socket.gethostname()
        run = start("controller", TIDEPOOL, "train", "configs/test/rl_split.yaml", "--run-dir", str(self.path()), "train.steps=100000", "checkpoint.every_steps=2",
                    "cluster.launch_workers=false")
        control = json.loads(self.wait_for(lambda: self.path("control.json").exists() and self.path("control.json").read_text(), what="control.json", process=run))
        for place, (who, program, role) in enumerate([("trains", [WORKER, "run"], "device"), ("generates", [WORKER, "run"], "device"),
                                                      ("grades", [TIDEPOOL, "reward-worker"], "reward")]):
            start(who, *program, "--connect", control["address"], "--run-id", control["run_id"], "--place", str(place), "--token-file",
                  str(self.path("security", role + ".token")), "--control-file", str(self.path("control.json")))
        self.wait_step(3, run)
        # Whoever generates sends what it can no longer write.
        flags["generates"].touch()
        self.wait_for(lambda: "event=token_log" in log.read_text(), what="a word of the token log", process=run)
        self.assertRegex(log.read_text(), f'event=token_log worker=device-1 text="[^"]*host {host}: {self.path("tokens")}/[^"]*the file system is read-only; mount it for writing')
        self.wait_step(max(self.metrics()) + 4, run)
        # Without checkpoints there is no going on.
        flags["trains"].touch()
        _, err = self.finish(run, 3)
        self.assertIn("fault=checkpoint actor=controller step=", err)
        self.assertIn(f"3 checkpoints in a row could not be written: host {host}: {self.path('checkpoints')}/", err)
        self.assertIn("the file system is read-only; mount it for writing", err)
        # Nor without a journal.
        kept = max(self.digests())
        run = start("controller", TIDEPOOL, "train", str(self.path()), "--resume", "cluster.launch_workers=true")
        self.wait_step(kept + 3, run)
        flags["controller"].touch()
        _, err = self.finish(run, 3)
        self.assertIn("fault=storage actor=controller step=", err)
        self.assertIn(f"journal: the disk of {self.path()} (host {host}) cannot be written: {self.path('journal')}/", err)
        self.assertIn("the file system is read-only; mount it for writing, or choose a folder on another disk; mend that, then --resume", err)
        flags["controller"].unlink()
        last = max(self.digests())
        self.assertGreaterEqual(last, kept + 3)
        self.assert_done(self.command("train", str(self.path()), "--resume", f"train.steps={last + 3}"))
        self.assertEqual(max(self.digests()), last + 3)
        self.assert_checked()

    def test_a_dry_run_says_what_the_disk_has_and_whether_that_is_enough(self):
        fits = self.command("train", CONFIG, "--dry-run", "--run-dir", str(self.path()))
        self.assert_done(fits)
        self.assertRegex(fits.stdout, rf"(?m)^disk free +[0-9.]+ [KMGT]?i?B where {re.escape(str(self.dir))} is$")
        self.assertNotIn("would be refused", fits.stderr)
        much = self.command("train", CONFIG, "--dry-run", "--run-dir", str(self.path()), "train.steps=1000000", "checkpoint.every_steps=1",
                            "checkpoint.keep=1000000", "model.init.hidden_size=1024", "model.init.intermediate_size=4096")
        self.assert_done(much)
        self.assertRegex(much.stderr, r"warning: this run would be refused: .*lower checkpoint\.keep")
        self.assertFalse(self.path().exists())

    def test_a_run_whose_files_are_deleted_says_so(self):
        run = self.start(CONFIG, "train.steps=100000")
        self.wait_step(3, run)
        subprocess.run(["rm", "-rf", str(self.path())], stderr=subprocess.DEVNULL)  # may meet a file that was just made
        out, err = self.finish(run, code=3)
        self.assertIn(f"its folder {self.path()} was removed while the run was at work", err)
        self.assertNotIn("go on with", out, "there is nothing to go on with")
        left = list(self.path().rglob("*.json")) if self.path().exists() else []
        self.assertEqual([p.name for p in left if p.name == "summary.json"], [])
        self.assertFalse((ROOT / "summary.json").exists() or (ROOT / "status.json").exists(), "it was written where the program was started")

    def test_a_run_that_waits_while_its_files_are_deleted_says_so(self):
        for stop in [False, True]:
            with self.subTest(stop=stop):
                shutil.rmtree(self.path(), ignore_errors=True)
                run = self.start(CONFIG, f"reward.functions=[{{name: judge, endpoint: 'unix:{self.dir}/nobody', timeout_s: 60}}]")
                self.wait_for(lambda: '"waits_for": "judge' in self.path("status.json").read_text() if self.path("status.json").exists() else False,
                              what="the reward that nobody serves", process=run)
                for file in self.path().iterdir():
                    subprocess.run(["rm", "-rf", str(file)], check=True)
                if stop:
                    run.send_signal(signal.SIGINT)  # before it has looked again
                out, err = self.finish(run, code=3)
                self.assertIn(f"its folder {self.path()} was removed while the run was at work", err)
                self.assertNotIn("go on with", out, "there is nothing to go on with")
                self.assertNotIn("checkpoint:", out)
                self.assertEqual(list(self.path().rglob("*.json")), [])

    def test_each_life_of_a_run_is_told_as_it_is(self):
        def page():
            self.assert_done(self.command("report", str(self.path())))
            html = self.path("report.html").read_text()
            return json.loads(html.split('id="run">')[1].split("</script>")[0])
        job = ["train.steps=100000", "checkpoint.every_steps=1000000"]
        run = self.start(CONFIG, *job)
        self.wait_step(2, run)
        run.send_signal(signal.SIGINT)
        out, _ = self.finish(run)
        ended = self.summary()
        stopped_at = ended["steps"]
        self.assertIn(f"stopped by a signal at step {stopped_at} of 100000; checkpoint: {self.path('checkpoints')}/step_{stopped_at}\n", out)
        self.assertTrue(self.path("checkpoints", f"step_{stopped_at}", "manifest.json").exists())
        self.assertNotIn(" after: ", out, "nothing was evaluated after training")
        self.assertEqual((ended["stopped"], ended["finished"], ended["checkpoint_step"]), (True, False, stopped_at))
        self.assertNotIn("after", ended["accuracy"])
        self.assertNotIn("last", ended["held_out"])
        self.assertEqual(page()["state"], "stopped")
        self.assertIn("event=stop_requested by=SIGINT ", self.path("logs", "controller.log").read_text())
        config = self.path("config.yaml")
        before = config.read_text()
        self.assertEqual(config.stat().st_mode & 0o777, 0o600)
        secret = self.path("security", "secret")
        secret.chmod(0o644)
        for steps, said in [(stopped_at - 1, f"step {stopped_at} is done already"), (99999, "chmod 600 it")]:
            refused = self.command("train", str(self.path()), "--resume", f"train.steps={steps}")
            self.assert_done(refused, 2)
            self.assertIn(said, refused.stderr)
            self.assertEqual(config.read_text(), before, "a resume that was refused changed the config")
        secret.chmod(0o600)
        go_on = out.strip().splitlines()[-1]
        self.assertTrue(go_on.startswith("go on with: "), out)
        run = subprocess.Popen(shlex.split(go_on.removeprefix("go on with: ")), cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # as it is said, nothing added
        self.started.append(run)
        self.wait_step(stopped_at + 3, run)
        self.assertFalse(self.path("summary.json").exists(), "what the last life said is not true of this one")
        self.kill_controller(run)
        self.assertEqual(page()["state"], "")
        reached = max(self.metrics())
        again = self.train(CONFIG, "--resume", f"train.steps={reached + 2}")
        self.assert_done(again)
        self.assertRegex(again.stdout, rf"the run goes back from step \d+ to step {stopped_at} \(checkpoint \d+\)")
        last = page()
        self.assertEqual(last["state"], "finished")
        self.assertGreaterEqual(last["pool"]["restores"][-1]["from"], reached)
        self.assertEqual(last["pool"]["restores"][-1]["to"], stopped_at)
        proven = json.loads(self.command("check", str(self.path()), "--json").stdout)["journals"][0]
        self.assertEqual(proven["steps"], reached + 2)
        self.assertGreaterEqual(proven["undone_steps"], reached - stopped_at)
        self.assertIn("device-0", self.summary()["peak_bytes"])

    def test_a_stop_in_the_warm_start_says_how_to_go_on(self):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored
        run = self.start("configs/test/warm_start.yaml")
        self.wait_for(self.path("warm_start", "control.json").exists, "the warm start", run)
        run.send_signal(signal.SIGHUP)
        out, _ = self.finish(run)
        self.assertRegex(out, r"stopped by a signal in the warm start, at step \d+ of \d+; .*\ngo on with: ")

    def test_a_terminal_that_is_held_holds_up_what_is_shown_alone(self):
        unread, terminal = os.pipe()
        self.addCleanup(os.close, unread)
        os.write(terminal, b"x" * fcntl.fcntl(terminal, fcntl.F_GETPIPE_SZ))  # it takes nothing more
        run = subprocess.Popen([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path())], cwd=ROOT, stdout=terminal,
                               stderr=subprocess.PIPE, text=True)
        os.close(terminal)
        self.started.append(run)
        self.wait_for(lambda: self.path("final").exists(), what="the end of the run", process=run)
        self.wait_for(lambda: self.path("summary.json").exists(), process=run)
        self.assertNotIn("FENCE", self.command("journal", str(self.path())).stdout)

    def test_what_ctrl_c_left_of_the_end_is_done_on_resume(self):
        steps = 80  # so that the run lasts until its workers have been seen
        # Many questions and a grader that stands still: the last evaluation lasts until the signal.
        job = [f"train.steps={steps}", "data.held_out=40", "eval.samples=40", "eval.before_train=false"]
        for attempt in range(8):
            name = f"run-{attempt}"
            run = self.start(CONFIG, *job, run=name)
            grader = self.worker_pid(1, run, run=name)
            self.wait_step(steps, run, run=name)  # its line is written before the last evaluation begins
            kill(grader, signal.SIGSTOP)
            run.send_signal(signal.SIGINT)
            out, _ = self.finish(run)
            if not self.path("final", run=name).exists():
                break
            self.assertNotIn("go on with", out, "there is nothing to go on with")
        else:
            self.fail("the last evaluation was always over before the signal came")
        again = self.train(CONFIG, *job, "--resume", run=name)
        self.assert_done(again)
        self.assertNotIn("this run is finished", again.stdout)
        self.assertTrue(self.path("final", "model.safetensors", run=name).exists())
        self.assertIn("eval/accuracy", self.metrics(name)[steps])
        self.assert_checked(name)
        self.assertIn("this run is finished", self.train(CONFIG, *job, "--resume", run=name).stdout)

    def test_a_flood_of_connections_at_few_descriptors_does_not_end_a_run(self):
        for limit in [128, 256]:
            with self.subTest(limit=limit):
                name = f"limit-{limit}"
                run = subprocess.Popen([TIDEPOOL, "train", "configs/test/rl_split.yaml", "--run-dir", str(self.path(run=name)),
                                        "train.steps=100000", "checkpoint.every_steps=3", "cluster.weight_transport=stream"],
                                       cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
                self.started.append(run)
                self.wait_step(1, run, run=name)
                doors = listening_ports(run.pid) + listening_ports(self.worker_pid(0, run, run=name))
                self.assertGreaterEqual(len(doors), 2)
                strangers = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for port in doors for _ in range(300)]
                at = self.status(name)["step"]
                self.wait_step(at + 4, run, run=name)  # a checkpoint and new weights in the middle of it
                killed = self.worker_pid(1, run, run=name)
                kill(killed)
                self.wait_for(lambda: self.worker_pid(1, run, run=name) != killed, "a new worker", run)
                at = self.status(name)["step"]
                self.wait_step(at + 3, run, run=name)
                for stranger in strangers:
                    stranger.close()
                run.send_signal(signal.SIGINT)
                self.finish(run)
                self.assert_checked(name)

    def test_a_report_that_takes_long_is_said_and_a_signal_leaves_it_out(self):
        run = self.start(CONFIG, "train.steps=40")
        self.wait_step(1, run)
        events = self.dir / "events.json"
        events.write_text(json.dumps({"traceEvents": [{"ph": "none"}] * 200_000}))
        for i in range(300):  # long to read, and little to keep
            os.symlink(events, self.path("trace", f"long-{i}.json"))
        lines = []
        while not (lines and "writing report.html" in lines[-1]):
            lines.append(run.stdout.readline())
            self.assertTrue(lines[-1], "the end of its output")
        run.send_signal(signal.SIGINT)
        out, err = self.finish(run)
        self.assertIn(f"tidepool report {self.path()}", err)
        self.assertIn(f"run: {self.path()}", out)
        self.assertFalse(self.path("report.html").exists())
        self.assertEqual(self.summary()["steps"], 40)

    def test_a_run_that_may_open_too_few_files_is_refused_and_one_with_just_enough_is_not(self):
        def train(limit, run, files=()):
            return subprocess.run([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path(run=run)), "train.steps=2"], cwd=ROOT,
                                  capture_output=True, text=True, timeout=PATIENCE, pass_fds=files,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        for limit in [16, 40]:
            refused = train(limit, "refused")
            self.assert_done(refused, 2)
            said = re.search(r"only (\d+) files open here \(ulimit -Hn\), and this job needs (\d+): raise the limit", refused.stderr)
            self.assertTrue(said, refused.stderr)
            self.assertEqual(int(said[1]), limit)
            self.assertIn(f"ulimit -Hn {said[2]}", refused.stderr)
            self.assertFalse(self.path(run="refused").exists())
        need = int(said[2])
        self.assert_done(train(need, "enough"))
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        self.addCleanup(lambda: [os.close(file) for file in opened])
        refused = train(need, "refused", opened)
        self.assert_done(refused, 2)
        self.assertIn(f"this job needs {need + 20}, with 20 that were open before it began", refused.stderr)
        self.assert_done(train(need + 20, "with-more", opened))

    def test_a_run_of_many_workers_has_files_enough_at_the_limit_that_is_asked_for(self):
        job = ["train.steps=2", "reward.workers=20"]
        def train(limit, run):
            return subprocess.run([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path(run=run)), *job], cwd=ROOT,
                                  capture_output=True, text=True, timeout=PATIENCE,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        need = int(re.search(r"this job needs (\d+):", train(40, "refused").stderr)[1])
        self.assert_done(train(need, "enough"))
        self.assertEqual([r for r in self.journal("enough") if r["kind"] == "FENCE"], [], "no worker was lost")

    def on_frozen_disk(self, disk, operation, *job):
        """A run whose disk stood still for a while, and that went on. `operation`: of the controller, that is to be named; None: who of its
        workers waits for the disk first, and whether the controller does, is chance."""
        self.addCleanup(disk.end)
        run = subprocess.Popen([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path()), "cluster.heartbeat_s=0.5", *job,
                                "train.steps=100000"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=disk.preexec)
        self.started.append(run)
        if not disk.begin():
            self.skipTest("this kernel has no seccomp notifications")
        self.wait_step(1, run)
        workers = [self.worker_pid(place, run) for place in [0, 1]]
        disk.freeze()
        said = self.status()
        if operation is not None:
            said = self.wait_for(lambda: "the disk is slow" in self.status().get("last_warning", "") and self.status(),
                                 "a warning", run)
            self.assertRegex(said["last_warning"], operation)
        self.wait_for(lambda: self.status().get("elapsed_s", 0) > said["elapsed_s"] + 3, "a loop that goes on", run)
        disk.thaw()
        self.wait_step(self.status()["step"] + 2, run)
        self.assertEqual([self.worker_pid(place, run) for place in [0, 1]], workers, "a worker lost its permit by a slow disk")
        return run

    def test_a_frozen_disk_holds_no_worker_up_and_is_named_when_it_hangs(self):
        disk = FrozenDisk()
        # The mode with most syncs. No checkpoint is made: a run whose checkpoint stands still soon has nothing to sync.
        job = ["cluster.reattach_grace_s=5", "cluster.stall_timeout_s=10", "checkpoint.every_steps=1000000"]
        run = self.on_frozen_disk(disk, "(fsync|write) of ", *job)
        at = self.status()["step"]
        disk.freeze()
        _, err = self.finish(run, code=3)
        self.assertRegex(err, r"fault=storage actor=controller.*the disk hangs: (fsync|write) of \S+ has not ended for \d+\.\d s"
                              r"; the journal may lack this and the last \d+ records")
        self.assert_done(self.train(CONFIG, *job, f"train.steps={at + 4}", "--resume"))
        self.assert_checked()

    def test_payload_that_cannot_be_read_for_a_while_holds_nobody_up(self):
        # A checkpoint is read back, too, and its thread may take as long as the scheduler allows.
        disk = FrozenDisk(READS)
        run = self.on_frozen_disk(disk, None, "checkpoint.every_steps=1000000", "cluster.stall_timeout_s=10")
        disk.freeze()
        _, err = self.finish(run, code=3)
        # A grader that waits, or a trainer, is seen by what does not go on.
        self.assertRegex(err, r"fault=storage actor=controller.*the disk hangs: read of (payload|tokens)/ has not ended for \d+\.\d s\n|fault=\w*progress\b")
        self.assertEqual([r["kind"] for r in self.journal()[-2:]], ["FAULT", "END_RUN"])  # which takes records all the same
        self.assert_checked()

    def test_a_run_goes_on_under_another_name_and_when_its_checkpoints_are_back(self):
        self.assert_done(self.train(CONFIG, "train.steps=3", "eval.after_train=false"))
        away = self.dir / "away"
        self.path("checkpoints").rename(away)
        lost = self.train(CONFIG, "--resume", "train.steps=4")
        self.assert_done(lost, 3)
        self.assertIn("no checkpoint of this run can be read (the newest: ", lost.stderr)
        shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
        away.rename(self.path("checkpoints"))
        for name, steps in [("run/", 4), ("./run", 5)]:
            self.assert_done(self.command("train", CONFIG, "--run-dir", f"{self.dir}/{name}", "--resume", f"train.steps={steps}"))
        self.path().rename(self.dir / "moved")
        self.assert_done(self.command("train", CONFIG, "--run-dir", str(self.dir / "moved"), "--resume", "train.steps=6"))
        self.assert_checked("moved")
        final = self.dir / "moved" / "final"
        # A model may be moved, too, but it is the one that the run began with.
        model, other, elsewhere = self.dir / "model", self.dir / "other", self.dir / "elsewhere"
        shutil.copytree(final, model)
        self.assert_done(self.train(CONFIG, "model.init=null", f"model.path={model}", "train.steps=1", run="with-model"))
        model.rename(elsewhere)
        shutil.copytree(elsewhere, other)
        (other / "tokenizer.json").write_text((elsewhere / "tokenizer.json").read_text() + " ")
        before = self.path("config.yaml", run="with-model").read_text()
        for path, code, said in [(other, 2, "is another model than the run began with"), (elsewhere, 0, "model.path: was ")]:
            self.assertEqual(self.path("config.yaml", run="with-model").read_text(), before)
            done = self.command("train", str(self.path(run="with-model")), "--resume", f"model.path={path}", "train.steps=2")
            self.assert_done(done, code)
            self.assertIn(said, done.stdout + done.stderr)
        long = self.command("train", CONFIG, "--dry-run", "model.init=null", f"model.path={final}", "rollout.max_new_tokens=100",
                            "train.micro_batch_tokens=4096", "rollout.kv_cache_tokens=4096")
        self.assert_done(long, 2)
        self.assertRegex(long.stderr, "rollout.max_new_tokens is 100, but .*final has 48 positions")

    def test_a_run_goes_on_by_its_own_config_and_says_what_changes(self):
        def go_on(*args, code=0, cwd=ROOT, run="run"):
            done = subprocess.run([os.path.abspath(TIDEPOOL), "train", str(self.path(run=run)), "--resume", *args], cwd=cwd,
                                  capture_output=True, text=True, timeout=PATIENCE)
            self.assert_done(done, code)
            return done.stdout + done.stderr
        warm = "configs/test/warm_start.yaml"
        self.assert_done(self.train(warm, "train.steps=2", "eval.samples=2", "train.learning_rate=1e-4"))
        self.assertIn("this run is finished (step 2)", go_on())
        self.assertIn("seed: was 1, is 2\n", go_on("seed=2", "train.steps=9", code=2))
        said = go_on("train.steps=3", cwd="/")  # from where no config and no warm start can be found
        self.assertIn("train.steps: was 2, is 3\n", said)
        self.assertNotIn("learning_rate", said)
        self.assertNotIn("eval.samples", said)
        # By a config: what it asks for, and what it takes back is named.
        said = self.train(warm, "--resume", "train.steps=4", "eval.samples=2").stdout
        self.assertIn("train.learning_rate: was 1e-04, is 0.001 (an override given earlier, which is not repeated)\n", said)
        config = self.path("config.yaml").read_text()
        self.assertRegex(config, r"# Resumed at step 2, \S+:\n#   train.steps: was 2, is 3\n# Resumed at step 3, \S+:\n#   train.steps: "
                                 r"was 3, is 4\n#   train.learning_rate: was 1e-04, is 0.001\n")
        self.assertIn("warm_start: warm_start/config.yaml ", config)
        self.assert_checked()

    def test_rows_may_be_moved_but_not_exchanged(self):
        rows = self.dir / "rows.jsonl"
        rows.write_text("".join(f'{{"prompt": "{a}{b}=", "answer": "{b}{a}"}}\n' for a in "abcd" for b in "abcd"))
        job = self.dir / "job.yaml"
        base = [line for line in (ROOT / CONFIG).read_text().splitlines()]
        self.assertTrue(any(line.startswith("data: {") for line in base))
        job.write_text("\n".join("data: {path: rows.jsonl, held_out: 2}" if line.startswith("data: {") else line for line in base))
        self.assert_done(self.train(str(job), "train.steps=1"))
        other, moved = self.dir / "other.jsonl", self.dir / "elsewhere" / "rows.jsonl"
        moved.parent.mkdir()
        other.write_text(rows.read_text().replace("ab", "aa"))
        rows.rename(moved)
        for path, code, said in [(other, 2, "hold other rows than the run was trained on"), (moved, 0, "data.path: was ")]:
            done = self.command("train", str(self.path()), "--resume", f"data.path={path}", "train.steps=2")
            self.assert_done(done, code)
            self.assertIn(said, done.stdout + done.stderr)
        self.assert_checked()

    def test_checkpoints_without_a_journal_are_not_trained_over(self):
        self.assert_done(self.train(CONFIG, "train.steps=1"))
        self.path("journal").rename(self.dir / "journal")
        refused = self.command("train", str(self.path()), "--resume", "train.steps=2")
        self.assert_done(refused, 2)
        self.assertIn("has checkpoints but no journal/", refused.stderr)
        (self.dir / "journal").rename(self.path("journal"))
        self.assert_done(self.command("train", str(self.path()), "--resume", "train.steps=2"))

    def test_two_copies_of_a_run_go_on_at_the_same_time(self):
        split = "configs/test/rl_split.yaml"
        self.assert_done(self.train(split, "train.steps=1", "checkpoint.recovery_every_steps=1"))
        shutil.copytree(self.path(), self.path(run="copy"))
        both = [subprocess.Popen([TIDEPOOL, "train", str(self.path(run=run)), "--resume", "train.steps=4"], cwd=ROOT,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for run in ["run", "copy"]]
        self.started.extend(both)
        for process, run in zip(both, ["run", "copy"]):
            self.finish(process)
            self.assert_checked(run)

    def test_a_stop_while_the_trainer_comes_back_loses_no_step(self):
        run = self.start(CONFIG, "train.steps=100000", "checkpoint.every_steps=1000000", "checkpoint.recovery_every_steps=1")
        self.wait_step(3, run)
        os.kill(self.worker_pid(0, run), signal.SIGKILL)
        self.wait_for(lambda: self.status().get("restarts", 0) > 0, "the loss to be seen", run)
        run.send_signal(signal.SIGINT)
        out, _ = self.finish(run)
        self.assertIn("stopped by a signal at step ", out)
        self.assertNotIn("so it goes back", out)
        done = self.summary()["steps"]
        self.assertTrue(self.path("checkpoints", f"step_{done}").exists(), f"no checkpoint of step {done}")
        self.assert_checked()

    def dry(self, path):
        result = self.command("train", str(path), "--dry-run")
        self.assert_done(result, 2)
        return result.stderr

    def test_a_dry_run_looks_for_what_the_job_reads(self):
        rows = self.dir / "rows.jsonl"
        job = self.dir / "job.yaml"
        job.write_text(f"name: x\njob: rl\nmodel: {{path: no/such/folder}}\ndata: {{path: {rows}}}\n"
                       "reward: {functions: [{name: exact_answer}]}\n")
        rows.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
        self.assertRegex(self.dry(job), r"job.yaml:3: model.path: .*no/such/folder")
        base = (ROOT / CONFIG).read_text()
        self.assertIn("\ndata: {", base)
        lines = [f"data: {{path: {self.dir}/none.jsonl}}" if line.startswith("data: {") else line for line in base.splitlines()]
        job.write_text("\n".join(lines) + "\n")
        self.assertRegex(self.dry(job), r"job.yaml:\d+: .*none.jsonl")

    def test_validate_and_a_dry_run_say_what_the_data_hold(self):
        rows, job = self.dir / "rows.jsonl", self.dir / "job.yaml"
        lines = [json.dumps({"prompt": "ab" + "=" * (i % 3), "answer": "ba"}) for i in range(300)]
        lines[6] = json.dumps({"prompt": "a" * 60, "answer": "a"})
        lines[8] = "broken"
        rows.write_text("\n".join(lines) + "\n")
        base = (ROOT / CONFIG).read_text().splitlines()
        job.write_text("\n".join(f"data: {{path: {rows}, held_out: 0}}" if line.startswith("data: {") else line for line in base) + "\n")
        for command in [["validate", str(job)], ["train", str(job), "--dry-run"]]:
            said = self.command(*command)
            self.assert_done(said)
            self.assertIn("298 rows to train on, 0 held out", said.stdout)
            self.assertRegex(said.stdout, r"longest prompt: 6\d tokens \(.*rows.jsonl:7\); data.max_prompt_tokens is \d+")
            self.assertRegex(said.stdout, r"too long: 1, left out:\n +.*rows.jsonl:7: the prompt has 6\d tokens")
            self.assertRegex(said.stdout, r"bad lines: 1, left out:\n +.*rows.jsonl:9: no valid JSON")
        said = json.loads(self.command("validate", "--json", str(job)).stdout)
        self.assertEqual((said["ok"], said["data"]["rows"], said["data"]["too_long"]["count"]), (True, 298, 1))
        rows.write_text('{"question": "x"}\n')
        said = self.command("validate", str(job))
        self.assert_done(said, 2)
        self.assertIn("rows.jsonl:1: no prompt", said.stderr)

    def test_a_scheduling_policy_that_is_not_there_is_refused_where_it_is_written(self):
        job = self.dir / "job.yaml"
        job.write_text((ROOT / CONFIG).read_text())
        text = job.read_text()
        self.assertIn("placement: ", text)
        job.write_text(text.replace("placement: ", "policy: nope, placement: "))
        for command in [["validate", str(job)], ["train", str(job), "--run-dir", str(self.dir / "run")]]:
            result = self.command(*command)
            self.assert_done(result, 2)
            self.assertRegex(result.stderr, r"job.yaml:\d+: scheduler.policy: no policy is named 'nope'; there are colocated")
        self.assertFalse((self.dir / "run").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
