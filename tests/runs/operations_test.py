"""How a run is operated: what its processes inherit, who may work on it, how its end is finished later."""
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import unittest

from frozen_disk import READS, FrozenDisk
from harness import ROOT, TIDEPOOL, RunTest, kill

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
    def test_secrets_in_the_environment_do_not_reach_workers(self):
        run = subprocess.Popen([TIDEPOOL, "train", CONFIG, "--run-dir", str(self.path()), "train.steps=100000"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1",
                                    "AWS_SECRET_ACCESS_KEY": "hidden-1", "HF_TOKEN": "hidden-2"})
        self.started.append(run)
        for place in [0, 1]:  # a device worker and a grader
            environ = pathlib.Path(f"/proc/{self.worker_pid(place, run)}/environ").read_text()
            self.assertNotIn("hidden", environ)
            for name in ["PATH=", "HOME=", "LC_ALL=", "OMP_NUM_THREADS="]:
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
        status = self.wait_for(lambda: " left, weights" in (out := self.command("status", str(self.path())).stdout) and out,
                               what="the time that is left", process=run)
        self.assertRegex(status, r"learning +reward [0-9.]+")
        run.send_signal(signal.SIGINT)
        self.finish(run)
        self.assert_checked()
        self.assert_done(self.train(CONFIG, "--fresh", "train.steps=1"))
        self.assertEqual(len(list(self.dir.iterdir())), 2, "the old run is kept aside")

    def test_each_life_of_a_run_is_told_as_it_is(self):
        def page():
            self.assert_done(self.command("report", str(self.path())))
            html = self.path("report.html").read_text()
            return json.loads(html.split('id="run">')[1].split("</script>")[0])
        job = ["train.steps=100000", "checkpoint.every_steps=1000000"]
        run = self.start(CONFIG, *job)
        self.wait_step(2, run)
        run.send_signal(signal.SIGINT)
        self.assertIn("go on with: ", self.finish(run)[0])
        self.assertEqual(page()["state"], "stopped")
        stopped_at = self.summary()["steps"]
        run = self.start(CONFIG, *job, "--resume")
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
        self.wait_for(self.path("warm_start", "control.json").exists, 30, "the warm start", run)
        run.send_signal(signal.SIGHUP)
        out, _ = self.finish(run)
        self.assertRegex(out, "stopped at step .* go on with: ")

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
        # Many questions and a grader that stands still: the last evaluation lasts until the signal.
        job = ["train.steps=12", "data.held_out=40", "eval.samples=40", "eval.before_train=false"]
        for attempt in range(8):
            name = f"run-{attempt}"
            run = self.start(CONFIG, *job, run=name)
            grader = self.worker_pid(1, run, run=name)
            self.wait_step(12, run, run=name)  # its line is written before the last evaluation begins
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
        self.assertIn("eval/accuracy", self.metrics(name)[12])
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
                strangers = [socket.create_connection(("127.0.0.1", port), timeout=20) for port in doors for _ in range(300)]
                at = self.status(name)["step"]
                self.wait_step(at + 4, run, run=name)  # a checkpoint and new weights in the middle of it
                killed = self.worker_pid(1, run, run=name)
                kill(killed)
                self.wait_for(lambda: self.worker_pid(1, run, run=name) != killed, 60, "a new worker", run)
                at = self.status(name)["step"]
                self.wait_step(at + 3, run, run=name)
                for stranger in strangers:
                    stranger.close()
                run.send_signal(signal.SIGINT)
                self.finish(run)
                self.assert_checked(name)

    def on_frozen_disk(self, disk, operation, *job):
        """A run whose disk stood still for a while, and that went on."""
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
        said = self.wait_for(lambda: "the disk is slow" in self.status().get("last_warning", "") and self.status(), 30,
                             "a warning", run)
        self.assertIn(operation, said["last_warning"])
        self.wait_for(lambda: self.status().get("elapsed_s", 0) > said["elapsed_s"] + 3, 30, "a loop that goes on", run)
        disk.thaw()
        self.wait_step(self.status()["step"] + 2, run)
        self.assertEqual([self.worker_pid(place, run) for place in [0, 1]], workers, "a worker lost its permit by a slow disk")
        return run

    def test_a_frozen_disk_holds_no_worker_up_and_is_named_when_it_hangs(self):
        disk = FrozenDisk()
        job = ["cluster.reattach_grace_s=5", "cluster.stall_timeout_s=10"]  # the mode with most syncs
        run = self.on_frozen_disk(disk, "fsync of ", *job)
        at = self.status()["step"]
        disk.freeze()
        _, err = self.finish(run, code=3, timeout=60)
        self.assertRegex(err, r"fault=storage actor=controller.*the disk hangs: fsync of \S+ has not ended for \d+\.\d s"
                              r"; the journal may lack this and the last \d+ records")
        self.assert_done(self.train(CONFIG, *job, f"train.steps={at + 4}", "--resume"))
        self.assert_checked()

    def test_payload_that_cannot_be_read_for_a_while_holds_nobody_up(self):
        # A checkpoint is read back, too, and its thread may take as long as the scheduler allows.
        disk = FrozenDisk(READS)
        run = self.on_frozen_disk(disk, "read of payload/", "checkpoint.every_steps=1000000", "cluster.stall_timeout_s=10")
        disk.freeze()
        _, err = self.finish(run, code=3, timeout=60)
        self.assertRegex(err, r"fault=storage actor=controller.*the disk hangs: read of payload/ has not ended for \d+\.\d s\n")
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
        long = self.command("train", CONFIG, "--dry-run", "model.init=null", f"model.path={final}", "rollout.max_new_tokens=100",
                            "train.micro_batch_tokens=4096", "rollout.kv_cache_tokens=4096")
        self.assert_done(long, 2)
        self.assertRegex(long.stderr, "rollout.max_new_tokens is 100, but .*final has 48 positions")

    def test_a_stop_while_the_trainer_comes_back_loses_no_step(self):
        run = self.start(CONFIG, "train.steps=100000", "checkpoint.every_steps=1000000", "checkpoint.recovery_every_steps=1")
        self.wait_step(3, run)
        os.kill(self.worker_pid(0, run), signal.SIGKILL)
        self.wait_for(lambda: self.status().get("restarts", 0) > 0, 30, "the loss to be seen", run)
        run.send_signal(signal.SIGINT)
        out, _ = self.finish(run)
        self.assertIn("stopped at step ", out)
        self.assertNotIn("older than the last step", out)
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

    def test_devices_that_do_not_exist_yet_are_refused(self):
        job = self.dir / "job.yaml"
        job.write_text((ROOT / CONFIG).read_text())
        result = self.command("validate", str(job))
        self.assert_done(result)
        text = (ROOT / CONFIG).read_text()
        self.assertIn("device: cpu", text)
        job.write_text(text.replace("device: cpu", "device: cuda"))
        result = self.command("validate", str(job))
        self.assert_done(result, 2)
        self.assertRegex(result.stderr, r"job.yaml:\d+: cluster.device: found text 'cuda'; expected one of cpu")


if __name__ == "__main__":
    unittest.main(verbosity=2)
