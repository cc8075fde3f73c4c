"""The script of `tidepool slurm` under a real Slurm: three nodes, a lost one, the time limit, the queue, and the same weights.

Nodes are network namespaces with a slurmd each, a fourth has slurmctld; munge, its key and all of Slurm's files are in the
test's folder, so a Slurm of this machine is not touched. Slurm lets a job that was queued again wait for two minutes, so
this takes ten. Needs root and Debian's slurmctld, slurmd, slurm-client and munge (scripts/setup --nightly); else skipped.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

from harness import PATIENCE, ROOT, RunTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))
import network  # noqa: E402

NODES, HEAD = 3, 3
STEPS = 300
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun", "squeue")
MISSING = [p for p in PROGRAMS if not shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
NOT_HERE = f"no {', '.join(MISSING)} (scripts/setup --nightly)" if MISSING else network.why_not()

CONF = """
ClusterName=tidepool
SlurmctldHost=head({head})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@unittest.skipIf(NOT_HERE, NOT_HERE)
class SlurmTest(RunTest):
    def setUp(self):
        super().setUp()
        self.net = network.Network(NODES + 1)
        self.addCleanup(self.net.close)
        self.addCleanup(lambda: [self.net.kill(i) for i in range(NODES + 1)])
        self.slurm = self.dir / "slurm"
        (self.slurm / "state").mkdir(parents=True)
        names = [*(f"node{i}" for i in range(NODES)), "head"]
        (self.slurm / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{self.net.address(i)} {name}\n" for i, name in enumerate(names)))
        (self.slurm / "slurm.conf").write_text(CONF.format(dir=self.slurm, head=self.net.address(HEAD), nodes="\n".join(
            f"NodeName=node{i} NodeHostname=node{i} NodeAddr={self.net.address(i)} CPUs=8 RealMemory=4000 State=UNKNOWN" for i in range(NODES))))
        (self.slurm / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.slurm / "munge.key").write_bytes(os.urandom(1024))
        (self.slurm / "munge.key").chmod(0o400)
        self.env = {**os.environ, "SLURM_CONF": str(self.slurm / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        self.daemon(["munged", "--foreground", "--force", f"--socket={self.slurm}/munge.socket", f"--key-file={self.slurm}/munge.key",
                     f"--pid-file={self.slurm}/munged.pid", f"--seed-file={self.slurm}/munged.seed", f"--log-file={self.slurm}/munged.log"])
        self.wait_for((self.slurm / "munge.socket").exists, "munged")
        self.daemon(self.on(HEAD, "head", ["slurmctld", "-D"]))
        for i in range(NODES):
            self.daemon(self.on(i, f"node{i}", ["slurmd", "-D", "-N", f"node{i}"]))
        self.wait_for(lambda: self.ask("sinfo", "-h", "-o", "%D %t").split() == ["3", "idle"], "three idle nodes")

    def daemon(self, command):
        with open(self.slurm / "daemons.log", "a") as log:
            self.started.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def on(self, host, name, command):
        return self.net.command(host, ["unshare", "--uts", "sh", "-c", f'hostname {name} && mount --bind {self.slurm}/hosts /etc/hosts && exec "$@"', "sh", *command])

    def ask(self, *command):
        result = subprocess.run(self.on(HEAD, "head", list(command)), cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        return result.stdout + (result.stderr if result.returncode else "")

    def job(self, number):
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", number)))

    def wait_job(self, number, timeout, **fields):
        def so():
            job = self.job(number)
            return all(job.get(key) in value for key, value in fields.items())
        end = time.monotonic() + timeout
        while not so():
            if time.monotonic() > end:
                self.fail(f"no {fields} within {timeout} s: {self.job(number)}\n{self.text(number)}")
            time.sleep(1)

    def text(self, number):
        log = pathlib.Path(f"{self.path()}.slurm-{number}.log")
        return log.read_text() if log.exists() else ""

    def step(self):
        try:
            return max(self.metrics(), default=0)
        except (OSError, ValueError):
            return 0

    def wait_steps(self, number, steps, timeout):
        end = time.monotonic() + timeout
        while self.step() < steps:
            if time.monotonic() > end:
                self.fail(f"no step {steps} within {timeout} s: {self.job(number)}\n{self.text(number)}\n{self.status()}")
            time.sleep(0.5)

    def submit(self, text):
        """Its number, once its run has made some steps."""
        script = self.dir / "job.sh"
        script.write_text(text)
        submitted = self.ask("sbatch", str(script))
        self.assertRegex(submitted, r"Submitted batch job \d+")
        number = submitted.split()[-1]
        self.wait_steps(number, 10, 120)
        return number

    def test_a_lost_node_and_the_time_limit_queue_the_job_again_and_the_weights_are_the_same(self):
        # A step takes half a second, so that a job outlives its time limit on every machine.
        job = ["configs/test/rl_split.yaml", "deterministic=true", "scheduler.max_lag_versions=0", "cluster.slots=3", "checkpoint.every_steps=5", "eval.before_train=false",
               "eval.after_train=false", f"train.steps={STEPS}"]
        printed = self.command("slurm", *job, "cluster.pace=configs/pace/small_cpu.yaml", "cluster.pace_scale=0.3", "-N", str(NODES), "--run-dir", str(self.path()),
                               "--time", "00:04:00")
        self.assert_done(printed)
        number = self.submit(printed.stdout)

        heal = self.net.disturb(self.net.between({NODES - 1}), cut=True)
        self.wait_job(number, 120, Restarts=("1",))
        heal()
        self.wait_steps(number, self.step() + 10, 300)
        self.assertNotIn("stopped by a signal", self.text(number))

        self.wait_job(number, 400, Restarts=("2",))  # the time limit
        self.assertIn("stopped by a signal at step", self.text(number))
        self.wait_job(number, 900, JobState=("COMPLETED",), Restarts=("2", "3"))  # a slow machine meets the limit once more
        self.assert_checked()
        digests = self.digests()
        self.assertEqual(max(digests), STEPS)

        alone = self.train(*job, "checkpoint.every_steps=0", run="alone")
        self.assert_done(alone)
        self.assertEqual(digests[STEPS], self.digests("alone")[STEPS])

    def stop_in_order(self, number):
        """As before the time limit, and then for good; the run is proven."""
        self.ask("scancel", "--batch", "--signal=TERM", number)
        end = time.monotonic() + 90
        while "stopped by a signal" not in self.text(number):
            self.assertLess(time.monotonic(), end, self.text(number))
            time.sleep(1)
        self.ask("scancel", number)
        self.assert_checked()

    def test_a_run_with_slots_to_spare_goes_on_without_a_lost_node(self):
        printed = self.command("slurm", "configs/test/rl_split.yaml", "cluster.min_slots=2", "checkpoint.every_steps=1000", "eval.before_train=false",
                               "eval.after_train=false", "train.steps=100000", "cluster.pace=configs/pace/small_cpu.yaml", "cluster.pace_scale=0.3", "-N", str(NODES),
                               "--run-dir", str(self.path()), "--time", "00:20:00")
        self.assert_done(printed)
        self.assertIn("#SBATCH --no-kill\n", printed.stdout)
        number = self.submit(printed.stdout)

        heal = self.net.disturb(self.net.between({NODES - 1}), cut=True)
        self.addCleanup(heal)
        end = time.monotonic() + 120
        while not re.search(r"down|unk|\*", self.ask("sinfo", "-h", "-N", "-n", f"node{NODES - 1}", "-o", "%t")):  # SlurmdTimeout is 15 s
            self.assertLess(time.monotonic(), end, self.ask("sinfo"))
            time.sleep(1)
        time.sleep(20)  # in which Slurm would have ended the job
        self.wait_steps(number, self.step() + 10, 120)
        job = self.job(number)
        self.assertEqual((job["JobState"], job["Restarts"]), ("RUNNING", "0"), job)
        self.assertFalse([r for r in self.journal() if r["kind"] == "RESTORE"])
        self.stop_in_order(number)

    def test_a_job_whose_batch_script_was_lost_with_its_node_is_queued_again_by_the_hosts_that_are_left(self):
        printed = self.command("slurm", "configs/test/rl_split.yaml", "cluster.min_slots=2", "checkpoint.every_steps=5", "eval.before_train=false",
                               "eval.after_train=false", "train.steps=100000", "cluster.pace=configs/pace/small_cpu.yaml", "cluster.pace_scale=0.3", "-N", str(NODES),
                               "--run-dir", str(self.path()), "--time", "00:30:00")
        self.assert_done(printed)
        patient = '--slots "$3"'
        self.assertIn(patient, printed.stdout)
        number = self.submit(printed.stdout.replace(patient, patient + " --patience 30"))  # 10 minutes are too long for a test

        lost = self.job(number)["BatchHost"]
        node = int(lost.removeprefix("node"))
        heal = self.net.disturb(self.net.between({node}), cut=True)
        self.net.kill(node)
        made = self.step()
        self.wait_job(number, 300, Restarts=("1",))
        heal()
        self.daemon(self.on(node, lost, ["slurmd", "-D", "-N", lost]))
        self.wait_steps(number, made + 5, 600)
        self.assertEqual(self.job(number)["Restarts"], "1")
        self.assertIn(f"node {lost} is lost, with the batch script; job {number} is queued again", self.text(number))
        self.stop_in_order(number)


if __name__ == "__main__":
    unittest.main(verbosity=2)
