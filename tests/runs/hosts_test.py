"""A run over two hosts that are network namespaces: nothing in common but the network between them and the run directory.

Needs root, for the namespaces; without it skipped.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from harness import PATIENCE, ROOT, TIDEPOOL, WORKER, RunTest
from moto import Moto, needs_s3

NAMES = (f"tpa{os.getpid()}", f"tpb{os.getpid()}")
ADDRESSES = ("10.91.0.1", "10.91.0.2")
SAME = ("deterministic=true", "scheduler.max_lag_versions=0")  # no timing decides which version a sample has


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=PATIENCE)


def in_host(host, command):
    """In a namespace of the network, with a /dev/shm of its own."""
    return ["nsenter", f"--net=/run/netns/{NAMES[host]}", "unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *command]


class Sniffer(threading.Thread):
    """All that goes over the wire of a host."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.host, self.bytes, self.ended, self.ready = host, bytearray(), threading.Event(), threading.Event()

    def run(self):
        with open(f"/run/netns/{NAMES[self.host]}") as namespace:
            os.setns(namespace.fileno()) if hasattr(os, "setns") else setns(namespace.fileno())  # of this thread
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.bind(("wire", 0))
        wire.settimeout(0.2)
        self.ready.set()
        with wire:
            while not self.ended.is_set():
                try:
                    self.bytes += wire.recv(1 << 16)
                except TimeoutError:
                    pass

    def stop(self):
        self.ended.set()
        self.join(5)
        return bytes(self.bytes)


def setns(fd):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def make_hosts():
    for name in NAMES:
        ip("netns", "add", name)
    ip("link", "add", "wire", "netns", NAMES[0], "type", "veth", "peer", "name", "wire", "netns", NAMES[1])
    for name, address in zip(NAMES, ADDRESSES):
        ip("-n", name, "addr", "add", address + "/24", "dev", "wire")
        ip("-n", name, "link", "set", "wire", "up")
        ip("-n", name, "link", "set", "lo", "up")


def can_make_hosts():
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "nsenter", "unshare", "pgrep")):
        return False
    try:
        make_hosts()
        subprocess.run(in_host(0, ["true"]), check=True, capture_output=True, timeout=PATIENCE)
        return True
    except (subprocess.SubprocessError, OSError):
        return False  # root of a container may not
    finally:
        remove_hosts()


def remove_hosts():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=PATIENCE)


@unittest.skipUnless(can_make_hosts(), "network namespaces need root that may make them, and iproute2")
class HostsTest(RunTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(remove_hosts)
        make_hosts()

    def launch(self, host, command):
        process = subprocess.Popen(in_host(host, command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run_over_hosts(self, run, *overrides, config="configs/test/rl_split.yaml", trains_on=0, before=(), before_first=()):
        """The controller and slot 0 (which trains) on one host, slot 1 (which generates) and the reward on the other. `before`: the command of slot 1, `before_first`: of slot 0."""
        # Nobody starts them again: they are not to be given up where the machine has no turn for them for a while.
        controller = self.launch(0, [TIDEPOOL, "train", config, "--run-dir", str(self.path(run=run)), *SAME, "cluster.heartbeat_s=5",
                                     "cluster.launch_workers=false", "cluster.bind=" + ADDRESSES[0], "cluster.weight_transport=stream", *overrides])
        control = self.wait_for(lambda: self.path("control.json", run=run).exists() and json.loads(self.path("control.json", run=run).read_text()),
                                what="control.json", process=controller)
        self.assertEqual(control["address"].split(":")[0], ADDRESSES[0])

        return controller, [self.worker(trains_on, [*before_first, WORKER, "run"], "device", 0, run),
                            self.worker(1 - trains_on, [*before, WORKER, "run"], "device", 1, run),
                            self.worker(1, [TIDEPOOL, "reward-worker"], "reward", 2, run)]

    def worker_command(self, program, place, run, token):
        control = json.loads(self.path("control.json", run=run).read_text())
        return [*program, "--connect", control["address"], "--run-id", control["run_id"], "--place", str(place), "--token-file", str(token),
                "--control-file", str(self.path("control.json", run=run))]

    def worker(self, host, program, role, place, run):
        return self.launch(host, self.worker_command(program, place, run, self.path("security", role + ".token", run=run)))

    def test_learns_the_same_as_on_one_host_and_nothing_is_legible(self):
        sniffer = Sniffer(0)
        sniffer.start()
        sniffer.ready.wait(PATIENCE)
        controller, workers = self.run_over_hosts("two", "train.steps=3")
        self.finish(controller)
        for worker in workers:
            worker.communicate(timeout=PATIENCE)
            self.assertEqual(worker.returncode, 0)
        wire = sniffer.stop()
        self.assertGreater(len(wire), 200_000, "weights went over the wire")
        self.assertNotIn(b"authorization", wire)
        for role in ("device", "reward"):
            self.assertNotIn(self.path("security", role + ".token", run="two").read_text().strip().encode(), wire)
        self.assert_checked("two")

        alone = self.train("configs/test/rl_split.yaml", *SAME, "cluster.weight_transport=stream", "train.steps=3", run="one")
        self.assert_done(alone)
        self.assertEqual(self.digests("two"), self.digests("one"))

    def test_only_what_changed_goes_to_a_host_that_has_the_version_before(self):
        bfloat16 = ("model.dtype=bfloat16", "train.learning_rate=1e-6", "train.steps=4")
        controller, workers = self.run_over_hosts("two", *bfloat16)
        self.finish(controller)
        pulls = [(step["weights/pulled_bytes"], step["weights/pulled_whole_bytes"]) for step in self.metrics("two").values() if "weights/pulled_bytes" in step]
        self.assertGreaterEqual(len(pulls), 3)
        self.assertEqual(*pulls[0], "there was none before the first")
        for came, whole in pulls[1:]:
            self.assertGreater(came, 0)
            self.assertLess(came, whole / 10)
        self.assert_checked("two")
        alone = self.train("configs/test/rl_split.yaml", *SAME, *bfloat16, run="one")
        self.assert_done(alone)
        self.assertEqual(self.digests("two"), self.digests("one"))

    def test_pages_of_all_hosts_are_read_from_another_one_and_nothing_is_legible(self):
        sniffer = Sniffer(0)
        sniffer.start()
        sniffer.ready.wait(PATIENCE)
        controller, workers = self.run_over_hosts("watched", "train.steps=100000", "checkpoint.every_steps=1000",
                                                  "observe.metrics_bind=" + ADDRESSES[0])
        security = self.path("security", run="watched")

        def four():
            try:
                found = json.loads(self.path("prometheus_targets.json", run="watched").read_text())
            except (OSError, ValueError):
                return None
            return {t["labels"]["worker"]: t["targets"][0] for t in found} if len(found) == 4 else None
        pages = self.wait_for(four, "four pages", controller)
        self.assertEqual({worker: address.split(":")[0] for worker, address in pages.items()},
                         {"controller": ADDRESSES[0], "device-0": ADDRESSES[0], "device-1": ADDRESSES[1], "reward-0": ADDRESSES[1]})
        self.wait_step(1, controller, run="watched")
        ask = ("import ssl, sys, urllib.request\n"
               "security, address = sys.argv[1:]\n"
               "c = ssl.create_default_context(cafile=security + '/authority.crt')\n"
               "c.check_hostname = False\n"
               "c.load_cert_chain(security + '/operator.crt', security + '/operator.key')\n"
               "r = urllib.request.Request(f'https://{address}/metrics')\n"
               "r.add_header('Authorization', 'Bearer ' + open(security + '/operator.token').read().strip())\n"
               "print(urllib.request.urlopen(r, timeout=10, context=c).read().decode())\n")
        for worker, address in pages.items():
            host = 1 if address.startswith(ADDRESSES[0]) else 0  # the other one
            read = subprocess.run(in_host(host, [sys.executable, "-c", ask, str(security), address]), capture_output=True, text=True, timeout=PATIENCE)
            self.assertIn("tidepool_run_info{" if worker == "controller" else f'name="{worker}"', read.stdout, worker + read.stderr)
        status = subprocess.run(in_host(1, [TIDEPOOL, "status", pages["controller"], "--token-file", str(security / "operator.token"), "--json"]),
                                capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual([w["name"] for w in json.loads(status.stdout)["workers"]], ["device-0", "device-1", "reward-0"], status.stderr)
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        wire = sniffer.stop()
        self.assertNotIn(b"tidepool_", wire)
        self.assertNotIn((security / "operator.token").read_text().strip().encode(), wire)

    def test_two_hosts_train_together_over_a_network_of_their_own(self):
        config = "configs/test/rl_colocated.yaml"
        controller, workers = self.run_over_hosts("two", "cluster.slots=2", "cluster.trusted_fabric=true", "train.steps=2", config=config)
        self.finish(controller)
        self.assertFalse(self.path("comm", run="two").exists(), "ranks meet at the controller, not by files")
        alone = self.train(config, *SAME, "cluster.slots=2", "train.steps=2", run="one")
        self.assert_done(alone)
        self.assertEqual(self.digests("two"), self.digests("one"))
        # Each rank read the payloads of its own rows, and the controller sent none of them.
        for run in ("two", "one"):
            self.read_once(run)

    def read_once(self, run):
        steps = [step for step in self.metrics(run).values() if step.get("data_plane/batch_bytes", 0) > 0]
        self.assertEqual(len(steps), 2)
        for step in steps:
            self.assertEqual(step["data_plane/read_bytes"], step["data_plane/batch_bytes"])
        return steps

    def test_a_trainer_whose_host_does_not_see_the_payloads_has_its_own_sent_once(self):
        hidden = self.path("payload", run="two")
        controller, workers = self.run_over_hosts(
            "two", "cluster.slots=2", "cluster.trusted_fabric=true", "train.steps=2", config="configs/test/rl_colocated.yaml",
            before=["sh", "-c", f'mount -t tmpfs tmpfs {hidden} && exec "$@"', "sh"])
        self.finish(controller)
        alone = self.train("configs/test/rl_colocated.yaml", *SAME, "cluster.slots=2", "train.steps=2", run="one")
        self.assert_done(alone)
        self.assertEqual(self.digests("two"), self.digests("one"))
        two, one = (sum(step["data_plane/bytes"] for step in self.read_once(run)) for run in ("two", "one"))
        batches = sum(step["data_plane/batch_bytes"] for step in self.read_once("two"))
        sent = two - one  # beyond the lists of rows: the rows of one rank of two, cut into frames
        self.assertGreater(sent, batches / 4)
        self.assertLess(sent, batches)

    def test_ranks_with_parts_of_a_model_have_their_rows_sent_to_one_of_them(self):
        hidden = self.path("payload", run="two")
        config = "configs/test/rl_colocated.yaml"
        cut = ("model.init.kv_heads=2", "cluster.slots=2", "train.mesh.tp=2", "train.steps=2")
        controller, workers = self.run_over_hosts("two", *cut, "cluster.trusted_fabric=true", config=config,
                                                  before_first=["sh", "-c", f'mount -t tmpfs tmpfs {hidden} && exec "$@"', "sh"])
        self.finish(controller)
        alone = self.train(config, *SAME, *cut, run="one")
        self.assert_done(alone)
        self.assertEqual(self.digests("two"), self.digests("one"))
        two, one = (sum(step["data_plane/bytes"] for step in self.read_once(run)) for run in ("two", "one"))
        batches = sum(step["data_plane/batch_bytes"] for step in self.read_once("two"))
        sent = two - one  # beyond the list of rows: the batch, cut into frames
        self.assertGreaterEqual(sent, batches)
        self.assertLess(sent, 1.2 * batches)

    @needs_s3
    def test_the_bytes_of_checkpoints_go_from_who_trains_to_the_store(self):
        s3 = Moto(self, ADDRESSES[0], lambda command: in_host(0, command))
        # /dev/shm is each host's own.
        controller, workers = self.run_over_hosts("run", "train.steps=3", "checkpoint.every_steps=1", "checkpoint.staging_dir=/dev/shm", *s3.keys,
                                                  trains_on=1)
        self.finish(controller)
        self.assert_checked()
        self.assertTrue(s3.objects())
        requests = [line for line in s3.log.read_text().splitlines() if re.search(r"/(model|trainer)/", line)]
        hosts = {line.split()[0] for line in requests if '"PUT ' in line or '"POST ' in line or '"GET ' in line}
        self.assertEqual(hosts, {ADDRESSES[1]}, requests)
        # The next life begins with what is in the store.
        controller = self.launch(0, [TIDEPOOL, "train", str(self.path()), "--resume", "train.steps=5"])
        self.wait_for(self.path("control.json").exists, what="control.json", process=controller)
        workers = [self.worker(1, [WORKER, "run"], "device", 0, "run"), self.worker(0, [WORKER, "run"], "device", 1, "run"),
                   self.worker(1, [TIDEPOOL, "reward-worker"], "reward", 2, "run")]
        self.finish(controller)
        self.assert_checked()

    def test_a_cut_of_seconds_costs_nothing_and_a_lost_worker_may_be_started_again(self):
        controller, workers = self.run_over_hosts("cut", "train.steps=8")
        self.wait_step(1, controller, run="cut")
        ip("-n", NAMES[1], "link", "set", "wire", "down")
        time.sleep(2)  # less than a worker may be silent
        ip("-n", NAMES[1], "link", "set", "wire", "up")
        self.wait_step(3, controller, run="cut")
        self.assertFalse([r for r in self.journal("cut") if r["kind"] == "FAULT"])
        workers[1].kill()
        again = self.worker(1, [WORKER, "run"], "device", 1, "cut")
        self.finish(controller)
        again.communicate(timeout=PATIENCE)
        self.assertEqual(again.returncode, 0)
        self.assert_checked("cut")

    def test_an_engine_behind_a_link_slower_than_the_steps_serves_and_gets_newer_weights(self):
        # 80 kB of weights take most of a second beside all else that is said; a step takes a thirtieth.
        subprocess.run(["tc", "-n", NAMES[0], "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "100ms"], check=True, timeout=PATIENCE)
        controller = self.launch(0, [TIDEPOOL, "train", "configs/test/rl_split.yaml", "--run-dir", str(self.path()), "cluster.launch_workers=false",
                                     "cluster.bind=" + ADDRESSES[0], "cluster.weight_transport=stream", "cluster.slots=3", "scheduler.max_lag_versions=500",
                                     "train.steps=100000", "checkpoint.every_steps=100000"])
        self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()), what="control.json", process=controller)
        for host, place in ((0, 0), (0, 1), (1, 2)):
            self.worker(host, [WORKER, "run"], "device", place, "run")
        self.worker(0, [TIDEPOOL, "reward-worker"], "reward", 3, "run")

        def admitted():
            return [r for r in self.journal() if r["kind"] == "ADMIT" and r["slot"] == 2]

        def outrun():
            versions = [r["v"]["number"] for r in admitted()]
            return len(versions) >= 4 and max(b - a for a, b in zip(versions, versions[1:])) > 2
        self.wait_for(outrun, "steps that are faster than the link", controller)
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        self.assert_checked()  # no sample is older than the lag allows
        versions = [r["v"]["number"] for r in admitted()]
        self.assertGreaterEqual(len(versions), 4)
        self.assertEqual(versions, sorted(set(versions)))
        self.assertGreater(max(b - a for a, b in zip(versions, versions[1:])), 2, "the steps were faster than the link")
        served = {r["wv"]["number"] for r in self.journal() if r["kind"] == "START" and r["slot"] == 2}
        # Where the machine is busy the next one may be there before a chunk has begun with one.
        self.assertGreater(len(served & set(versions)), len(versions) // 2)

    def test_hosts_start_their_workers_again_and_serve_the_next_controller(self):
        config = ["configs/test/rl_split.yaml", "--run-dir", str(self.path()), "cluster.launch_workers=false", "cluster.bind=" + ADDRESSES[0],
                  "cluster.weight_transport=stream", "train.steps=2000", "checkpoint.every_steps=1"]
        hosts = [self.launch(i, [TIDEPOOL, "host", str(self.path()), "--index", str(i)]) for i in (0, 1)]
        controller = self.launch(0, [TIDEPOOL, "train", *config])
        self.wait_step(1, controller)
        worker = subprocess.run(["pgrep", "-f", f"tidepool-worker run .*{self.path()}.*--place=1 "], capture_output=True, text=True, timeout=PATIENCE)
        os.kill(int(worker.stdout.split()[0]), signal.SIGKILL)
        self.wait_for(lambda: any(r["kind"] == "FAULT" for r in self.journal()), "a FAULT", controller)
        before = len(self.metrics())
        self.wait_step(before + 2, controller)
        controller.kill()
        controller.communicate()
        controller = self.launch(0, [TIDEPOOL, "train", str(self.path()), "--resume", f"train.steps={max(self.digests()) + 5}", "cluster.bind=" + ADDRESSES[0]])
        self.finish(controller)
        self.assert_checked()
        for i, host in enumerate(hosts):
            out, err = host.communicate(timeout=PATIENCE)
            self.assertEqual(host.returncode, 0, err)
            self.assertEqual(err.count("controller at"), 2, err)
            if i == 1:
                self.assertIn("device-1: process", err)
                self.assertIn("started again", err)

    def take_over(self, run, stop, *flags, certificates=(), more=None, meanwhile=lambda first: None):
        """The controller is on a host of its own, and is lost in the middle. Another one goes on, on the other host: for so many
        more steps, or else until it is stopped."""
        host = self.launch(1, [TIDEPOOL, "host", str(self.path(run=run)), "--slots", "2"])
        first = self.launch(0, [TIDEPOOL, "train", "configs/test/rl_split.yaml", "--run-dir", str(self.path(run=run)), "cluster.launch_workers=false",
                                "cluster.bind=" + ADDRESSES[0], "cluster.weight_transport=stream", "train.steps=1000000", "checkpoint.every_steps=1000",
                                "cluster.reattach_grace_s=20", *certificates])
        self.wait_step(7, first, run=run)
        meanwhile(first)
        since = time.monotonic()
        stop(first)
        ip("-n", NAMES[0], "link", "set", "wire", "down")
        known = len(self.journal(run))
        second = self.launch(1, [TIDEPOOL, "train", str(self.path(run=run)), "--resume", *flags, "cluster.bind=" + ADDRESSES[1], *certificates,
                                 *([] if more is None else [f"train.steps={max(self.digests(run)) + more}"])])
        # tests/bench/hosts_bench.py has how soon.
        self.wait_for(lambda: any(r["kind"] in ("START", "STEP_BEGIN") for r in self.journal(run)[known:]), "a decision", second)
        self.away_s = time.monotonic() - since
        return host, first, second

    def taken_over(self, run, host, second, ends=False):
        if not ends:
            self.wait_step(max(self.metrics(run)) + 20, second, run=run)
            second.send_signal(signal.SIGTERM)
        self.finish(second)
        self.assert_checked(run)
        records = self.journal(run)
        if self.away_s < 20:  # cluster.reattach_grace_s: later the workers may have been given up, and come anew
            self.assertEqual(sum(r["kind"] == "JOIN" for r in records), 3, "the workers went on with what they had")
            self.assertFalse([r for r in records if r["kind"] == "FAULT"])
        # Where the workers may have lost what they do (certificates that end meanwhile, a frozen controller), what a step under way comes to depends on
        # the moment; tests/scheduler/attach_test.cc has each of them.
        restored = [r for r in records if r["kind"] == "RESTORE"]
        if ends and self.away_s < 20:
            self.assertFalse(restored)
        if not restored:
            steps = [r["step"] for r in records if r["kind"] == "STEP_COMMIT"]
            self.assertEqual(steps, list(range(1, len(steps) + 1)), "no step was made twice")
        if not ends:
            host.send_signal(signal.SIGTERM)
        host.communicate(timeout=PATIENCE)
        self.assertEqual(host.returncode, 0)

    def test_another_host_takes_over_when_that_of_the_controller_is_lost(self):
        host, first, second = self.take_over("lost", lambda process: process.kill(), more=20)
        first.communicate(timeout=PATIENCE)
        self.taken_over("lost", host, second, ends=True)

    def test_certificates_of_somebody_else_change_in_mid_run_and_the_next_controller_goes_on_with_them(self):
        for name in ("made", "next"):
            self.assert_done(self.train("configs/test/rl_split.yaml", "security.tls=true", "security.certificate_hours=0.05", "train.steps=1", run=name))
        given = self.dir / "theirs"
        shutil.copytree(self.path("security", run="made"), given)
        security = self.path("security", run="given")

        def change(first):
            self.assertEqual((security / "device.crt").read_text(), (given / "device.crt").read_text())
            for file in self.path("security", run="next").iterdir():
                shutil.copy(file, given)
            self.wait_for(lambda: "the authority before is believed no more" in self.path("logs", "controller.log", run="given").read_text(), "the exchange", first)

        host, first, second = self.take_over("given", lambda process: process.kill(), "--take-over", certificates=("--certificates", str(given)), meanwhile=change)
        first.communicate(timeout=PATIENCE)
        for file in ("authority.crt", "controller.crt", "device.crt", "operator.key"):
            self.assertEqual((security / file).read_text(), self.path("security", file, run="next").read_text())
        self.taken_over("given", host, second)

    def test_certificates_are_exchanged_in_mid_run(self):
        begun = time.monotonic()
        controller, workers = self.run_over_hosts("renewed", "train.steps=100000", "checkpoint.every_steps=1000", "security.certificate_hours=0.01",
                                                  "observe.metrics_bind=" + ADDRESSES[0])
        security, log = self.path("security", run="renewed"), self.path("logs", "controller.log", run="renewed")
        copied = self.dir / "copied"
        shutil.copytree(security, copied)
        self.wait_step(1, controller, run="renewed")
        self.wait_for(lambda: "all roles have new certificates" in log.read_text(), "new certificates", controller)
        time.sleep(max(0, begun + 45 - time.monotonic()))  # the first ones hold for 36 s
        self.assertFalse([r for r in self.journal("renewed") if r["kind"] == "FAULT"], "what was connected is so still")
        # Who comes now takes the new ones: a worker on the other host, and an operator.
        workers[1].kill()
        self.worker(1, [WORKER, "run"], "device", 1, "renewed")
        self.wait_for(lambda: sum(r["kind"] == "JOIN" for r in self.journal("renewed")) == 4, "the worker", controller)
        self.wait_step(max(self.metrics("renewed")) + 2, controller, run="renewed")
        pages = json.loads(self.path("control.json", run="renewed").read_text())["pages"]
        status = subprocess.run(in_host(1, [TIDEPOOL, "status", pages, "--token-file", str(security / "operator.token"), "--json"]),
                                capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(status.returncode, 0, status.stderr)
        # The copy of before is of no use any more, and it says so.
        control = json.loads(self.path("control.json", run="renewed").read_text())
        late = subprocess.run(in_host(1, [WORKER, "run", "--connect", control["address"], "--run-id", control["run_id"], "--token-file",
                                          str(copied / "device.token")]), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(late.returncode, 0)
        self.assertRegex(late.stdout + late.stderr, r"device.crt: the certificate has expired at 20.*and this host's clock says 20")
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        self.assertEqual([r["actor"] for r in self.journal("renewed") if r["kind"] == "FAULT"], ["device-1"])

    def test_a_host_that_does_not_see_the_run_directory_joins_by_a_token(self):
        run = self.path(run="joined")
        controller, workers = self.run_over_hosts("joined", "train.steps=100000", "checkpoint.every_steps=1000", "security.newcomers=true",
                                                  "security.certificate_hours=0.1")  # who joins first waits until all have looked at the files: less long, then
        self.wait_step(1, controller, run="joined")
        away = self.dir.parent / (self.dir.name + "-away")
        away.mkdir()
        self.addCleanup(shutil.rmtree, away)
        token = away / "join.json"
        self.assert_done(self.command("join-token", str(run), str(token), "--place", "1"))
        self.assertEqual(token.stat().st_mode & 0o777, 0o600)
        spent = away / "spent.json"
        shutil.copy(token, spent)

        shutil.copytree(run / "model", away / "model")

        def hidden(*command):  # from a host that has the model at its path, and nothing else of the run
            return in_host(1, ["sh", "-c", f'mount -t tmpfs tmpfs {self.dir} && mkdir {run} && cp -r {away}/model {run} && cd {away} && exec "$@"', "sh",
                               *map(str, command)])
        joined = subprocess.run(hidden(TIDEPOOL, "join", token, away / "security"), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(joined.returncode, 0, joined.stderr)
        self.assertFalse(token.exists())
        command = joined.stdout.split()
        self.assertEqual(command[:2], ["tidepool-worker", "run"])
        self.assertNotIn((away / "security" / "device.token").read_text().strip(), joined.stdout)
        again = subprocess.run(hidden(TIDEPOOL, "join", spent, away / "again"), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(again.returncode, 2)
        self.assertIn("it was used, has expired, or is one of an earlier controller", again.stderr)
        # Another place is not for it; its own it takes when the one that had it is gone.
        other = subprocess.run(hidden(WORKER, *(word.replace("--place=1", "--place=0") for word in command[1:])), capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(other.returncode, 0)
        self.assertIn("the certificate is for place 1, and the worker is to take place 0", other.stdout + other.stderr)
        workers[1].kill()
        late = subprocess.Popen(hidden(WORKER, *command[1:]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(late)
        self.wait_for(lambda: sum(r["kind"] == "JOIN" for r in self.journal("joined")) == 4, "the worker", late)
        self.wait_step(max(self.metrics("joined")) + 3, controller, run="joined")
        self.assertIn("certificate_issued", self.path("logs", "controller.log", run="joined").read_text())
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        late.communicate(timeout=PATIENCE)
        self.assertEqual(late.returncode, 0)

    def test_a_controller_that_is_frozen_in_an_exchange_of_certificates_changes_none_when_it_wakes(self):
        log, shown = self.path("logs", "controller.log", run="halfway"), []

        def freeze(process):
            process.send_signal(signal.SIGSTOP)
            shown.append(self.path("security", "reward.crt", run="halfway").read_text())

        host, first, second = self.take_over(
            "halfway", freeze, "--take-over", certificates=("security.certificate_hours=0.01",),
            meanwhile=lambda first: self.wait_for(lambda: "next authority is believed" in log.read_text(), "the first step", first))
        files = sorted(file for file in self.path("security", run="halfway").iterdir() if file.suffix in (".crt", ".key"))
        # The other one exchanges them, too.
        self.wait_for(lambda: self.path("security", "reward.crt", run="halfway").read_text() != shown[0], "its certificates", second)
        time.sleep(0.5)
        def exchanges():
            return len(re.findall("next authority is believed|all roles have new certificates|is believed no more", log.read_text()))
        known = exchanges()
        before = [file.read_text() for file in files]
        first.send_signal(signal.SIGCONT)
        out, err = first.communicate(timeout=PATIENCE)
        self.assertEqual(first.returncode, 4, err)
        if exchanges() == known:  # else the second one has begun its next exchange
            self.assertEqual([file.read_text() for file in files], before)
        self.taken_over("halfway", host, second)

    def test_a_frozen_controller_is_taken_over_and_writes_nothing_when_it_wakes(self):
        refused = []

        def freeze(process):
            process.send_signal(signal.SIGSTOP)
            refused.append(subprocess.run([TIDEPOOL, "train", str(self.path(run="frozen")), "--resume"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE))

        host, first, second = self.take_over("frozen", freeze, "--take-over")
        self.assertEqual(refused[0].returncode, 2)
        self.assertIn("--take-over", refused[0].stderr)
        first.send_signal(signal.SIGCONT)
        out, err = first.communicate(timeout=PATIENCE)
        self.assertEqual(first.returncode, 4, err)
        self.assertRegex(out + err, "has taken over this run|another controller has claimed it")
        self.assertIsNone(second.poll())
        self.assertTrue(self.path("control.json", run="frozen").exists())
        self.taken_over("frozen", host, second)

    def test_a_run_begins_with_two_of_three_slots_takes_the_third_and_goes_on_without_it(self):
        config = ["configs/test/rl_split.yaml", "--run-dir", str(self.path()), "cluster.launch_workers=false", "cluster.bind=" + ADDRESSES[0],
                  "cluster.weight_transport=stream", "cluster.slots=3", "cluster.min_slots=2", "train.steps=2000", "checkpoint.every_steps=10"]
        host = self.launch(0, [TIDEPOOL, "host", str(self.path()), "--slots", "2"])
        controller = self.launch(0, [TIDEPOOL, "train", *config])
        self.wait_step(1, controller)
        # Its own host, which is gone for good afterwards.
        other = self.launch(1, [TIDEPOOL, "host", str(self.path()), "--slots", "2", "--index", "1"])
        self.wait_for(lambda: any(r["kind"] == "START" and r.get("slot") == 2 for r in self.journal()), "a chunk of slot 2", controller)
        other.kill()
        other.communicate()
        self.wait_for(lambda: any(r["kind"] == "FAULT" and r["actor"] == "device-2" for r in self.journal()), "a FAULT", controller)
        self.wait_step(max(self.metrics()) + 2, controller)
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        self.finish(self.launch(0, [TIDEPOOL, "train", str(self.path()), "--resume", f"train.steps={max(self.digests()) + 3}"]))
        self.finish(host)
        self.assert_checked()
        log = self.path("logs", "controller.log").read_text()
        self.assertEqual(log.count("begins with 2 of 3 slots (cluster.min_slots: 2)"), 2, log)

    def test_a_run_that_is_stopped_in_order_and_resumed_at_once_has_its_workers_again(self):
        config = ["configs/test/rl_split.yaml", "--run-dir", str(self.path()), "cluster.launch_workers=false", "train.steps=2000"]
        host = self.launch(0, [TIDEPOOL, "host", str(self.path()), "--slots", "2"])
        controller = self.launch(0, [TIDEPOOL, "train", *config])
        self.wait_step(2, controller)
        # One that ends in order although its run goes on, as a plug-in that calls _exit(0) lets it.
        reward = subprocess.run(["pgrep", "-f", f"reward-worker .*{self.path()}"], capture_output=True, text=True, timeout=PATIENCE).stdout.split()[0]
        os.kill(int(reward), signal.SIGTERM)
        self.wait_step(len(self.metrics()) + 20, controller)
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)
        self.finish(self.launch(0, [TIDEPOOL, "train", str(self.path()), "--resume", f"train.steps={max(self.digests()) + 5}"]))
        self.assert_checked()
        out, err = host.communicate(timeout=PATIENCE)
        self.assertEqual(host.returncode, 0, err)
        self.assertIn("the run is finished", err)

    def test_the_slurm_script_runs_a_job_and_goes_on_after_the_time_limit(self):
        tools = self.dir / "tools"
        tools.mkdir()
        # One process a node, as srun starts them; and who asks for the queue.
        (tools / "srun").write_text("#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\ntrap 'kill $(jobs -p); wait' TERM\n" + "".join(
            f"SLURM_PROCID={i} nsenter --net=/run/netns/{name} \"$@\" &\n" for i, name in enumerate(NAMES)) + "wait\n")
        (tools / "scontrol").write_text(f"#!/bin/sh\necho \"$@\" >> {self.dir}/asked\n")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        job = ("configs/test/rl_split.yaml", "train.steps=100", "checkpoint.every_steps=1000", "-N", "2", "--run-dir", str(self.path()), "--time", "00:30:00",
               "--sbatch=--partition=long")
        printed = self.command("slurm", *job)
        self.assert_done(printed)
        for line in ("#SBATCH --nodes=2", "#SBATCH --time=00:30:00", "#SBATCH --requeue", "#SBATCH --signal=B:TERM@120", "#SBATCH --partition=long"):
            self.assertIn(line, printed.stdout)
        # --submit gives sbatch the same.
        (tools / "sbatch").write_text("#!/bin/sh\necho Submitted $1\n")
        (tools / "sbatch").chmod(0o755)
        submitted = self.command("slurm", *job, "--submit", env={"PATH": f"{tools}:{os.environ['PATH']}"})
        self.assert_done(submitted)
        self.assertEqual(submitted.stdout, f"Submitted {self.path()}.sbatch\n")
        script = pathlib.Path(f"{self.path()}.sbatch")
        self.assertEqual(script.read_text(), printed.stdout)

        def batch():
            process = subprocess.Popen(["nsenter", f"--net=/run/netns/{NAMES[0]}", "bash", str(script)], cwd=self.dir, text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_NNODES": "2",
                                                                    "SLURM_JOB_ID": "77", "SLURMD_NODENAME": ADDRESSES[0]})
            self.started.append(process)
            return process
        first = batch()
        self.wait_step(2, first)
        # A controller that is killed: the next one comes 5 s later, and the workers have waited for it with what they hold.
        controller = subprocess.run(["pgrep", "-f", f"tidepool train .*{self.path()}"], capture_output=True, text=True, timeout=PATIENCE).stdout.split()
        self.assertEqual(len(controller), 1)
        os.kill(int(controller[0]), signal.SIGKILL)
        self.wait_step(max(self.metrics()) + 5, first)
        records = self.journal()
        self.assertEqual(sum(r["kind"] == "JOIN" for r in records), 3, "the workers went on")
        self.assertFalse([r for r in records if r["kind"] == "RESTORE"])
        first.send_signal(signal.SIGTERM)
        self.finish(first)
        self.assertEqual((self.dir / "asked").read_text(), "requeue 77\n")
        done = max(self.digests())
        self.assertLess(done, 100)
        self.finish(batch())
        self.assertEqual((self.dir / "asked").read_text(), "requeue 77\n")
        self.assertEqual(max(self.digests()), 100)
        self.assert_checked()

    def test_hosts_whose_clocks_are_ten_minutes_apart_train_together_and_one_of_days_is_named(self):
        clock = os.environ.get("TIDEPOOL_OTHER_CLOCK")
        if not clock:
            self.skipTest("TIDEPOOL_OTHER_CLOCK names no library: a build with a sanitizer has none")

        def ahead(seconds, *program):
            return ["env", "LD_PRELOAD=" + clock, f"TIDEPOOL_TEST_CLOCK_S={seconds}", *program]
        controller = self.launch(0, [TIDEPOOL, "train", "configs/test/rl_colocated.yaml", "--run-dir", str(self.path()), *SAME, "train.steps=2",
                                     "cluster.launch_workers=false", "cluster.bind=" + ADDRESSES[0], "cluster.weight_transport=stream", "cluster.slots=2",
                                     "cluster.trusted_fabric=true"])
        self.wait_for(self.path("control.json").exists, what="control.json", process=controller)
        for days, what in ((-3, r"device.crt: the certificate holds from 20\S+ on, and this host's clock says 20\S+; set the clock of this host"),
                           (1000, r"device.crt: the certificate has expired at 20\S+, and this host's clock says 20\S+; .*or set the clock")):
            refused = subprocess.run(in_host(1, self.worker_command(ahead(days * 86400, WORKER, "run"), 1, "run", self.path("security", "device.token"))),
                                     cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stdout + refused.stderr, what)
        self.worker(0, [WORKER, "run"], "device", 0, "run")
        self.worker(1, ahead(-600, WORKER, "run"), "device", 1, "run")  # they sum what they learn, too
        self.worker(1, ahead(600, TIDEPOOL, "reward-worker"), "reward", 2, "run")
        self.finish(controller)
        self.assert_checked()

    def test_a_certificate_of_another_run_is_named(self):
        other = self.train("configs/test/rl_split.yaml", "security.tls=true", "train.steps=1", run="other")
        self.assert_done(other)
        controller, workers = self.run_over_hosts("mine", "train.steps=100000", "checkpoint.every_steps=1000")
        mixed = self.dir / "mixed"
        shutil.copytree(self.path("security", run="other"), mixed)
        mine = json.loads(self.path("control.json", run="mine").read_text())["run_id"]

        def refused():
            told = subprocess.run(in_host(1, self.worker_command([WORKER, "run"], 1, "mine", mixed / "device.token")), cwd=ROOT, capture_output=True, text=True,
                                  timeout=PATIENCE)
            self.assertNotEqual(told.returncode, 0)
            return told.stdout + told.stderr
        # All of it; and one file.
        self.assertRegex(refused(), rf"{ADDRESSES[0]}:\d+.*it shows a certificate of run '{mine}', and those beside the token are of run '")
        shutil.copy(self.path("security", "authority.crt", run="mine"), mixed)
        self.assertRegex(refused(), rf"{mixed}/device.crt: is a certificate of run '.*', and the authority.crt beside it, of run '{mine}', has not made it; take the whole")
        controller.send_signal(signal.SIGTERM)
        self.finish(controller)

    def test_without_the_certificates_nobody_joins(self):
        controller, workers = self.run_over_hosts("bare", "train.steps=2")
        bare = self.dir / "bare-security"
        bare.mkdir()
        shutil.copy(self.path("security", "device.token", run="bare"), bare)
        control = json.loads(self.path("control.json", run="bare").read_text())
        refused = subprocess.run(in_host(1, [WORKER, "run", "--connect", control["address"], "--run-id", control["run_id"], "--token-file",
                                             str(bare / "device.token")]), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("no certificates lie beside the token", refused.stdout + refused.stderr)
        self.finish(controller)


class HostTest(RunTest):
    def test_a_host_says_what_is_wrong(self):
        nobody = self.command("host", str(self.path()), "--patience", "1")
        self.assert_done(nobody, 3)
        self.assertIn("no controller gave a sign of life for 1 s", nobody.stderr)
        run = self.start("configs/test/rl_split.yaml", "cluster.launch_workers=false")
        self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
        many = self.command("host", str(self.path()), "--slots", "2", "--index", "1")
        self.assert_done(many, 2)
        self.assertIn("is work for 1 hosts", many.stderr)
        # The number comes from whoever started it, the innermost first: an mpirun in an allocation leaves SLURM_PROCID=0 to all that it starts.
        names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
        for i in range(len(names)):
            numbered = self.command("host", str(self.path()), env={name: str(7 + k) for k, name in enumerate(names) if k >= i})
            self.assert_done(numbered, 2)
            self.assertIn(f"--index is {7 + i}", numbered.stderr)
        # Of several that were started alike each knows how many they are.
        few = self.command("host", str(self.path()), env={"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
        self.assert_done(few, 2)
        self.assertIn(f"host 0 ({socket.gethostname()}): {self.path('config.yaml')}: cluster.slots is 2, and the allocation has 1 hosts (SLURM_NTASKS) with 1 each "
                      "(--slots); ask for more hosts, or resume the run with a lower cluster.min_slots", few.stderr)
        # Where srun gives PMIx's number, too, Slurm's count is of the same tasks.
        few = self.command("host", str(self.path()), env={"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "PMIX_RANK": "0"})
        self.assertIn("the allocation has 1 hosts (SLURM_NTASKS)", few.stderr)
        few = self.command("host", str(self.path()), env={"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
        self.assert_done(few, 2)
        self.assertIn("the allocation has 1 hosts (OMPI_COMM_WORLD_SIZE)", few.stderr)
        # A controller that was killed leaves its file.
        run.kill()
        run.communicate()
        left = self.command("host", str(self.path()), "--slots", "2", "--patience", "2")
        self.assert_done(left, 3)
        self.assertIn("no controller gave a sign of life for 2 s", left.stderr)

    def test_workers_of_another_build_are_told_both_builds_and_hosts_and_what_to_do(self):
        def version(program):
            return re.fullmatch(r"(tidepool \S+) \((\S+)\)\n", subprocess.run([program, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)
        other = self.dir / "other"
        other.mkdir()
        for program in (TIDEPOOL, WORKER):  # of another commit, in which a field of a message has another name
            data, commit = pathlib.Path(program).read_bytes(), version(program)[2].encode()
            self.assertIn(b"have_hash\0", data)
            (other / pathlib.Path(program).name).write_bytes(data.replace(b"have_hash\0", b"have_hush\0").replace(commit, b"f" * len(commit)))
            (other / pathlib.Path(program).name).chmod(0o755)
        run = self.start("configs/test/rl_split.yaml", "cluster.launch_workers=false", "train.steps=3")
        control = self.wait_for(lambda: self.path("control.json").exists() and json.loads(self.path("control.json").read_text()), what="control.json", process=run)
        for program, place, role in (([str(other / "tidepool-worker"), "run"], 0, "device"), ([str(other / "tidepool"), "reward-worker"], 2, "reward")):
            worker = subprocess.run([*program, "--connect", control["address"], "--run-id", control["run_id"], "--place", str(place), "--token-file",
                                     str(self.path("security", role + ".token"))], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(worker.returncode, 2, worker.stderr)
            theirs, ours = version(program[0]), version(TIDEPOOL)
            self.assertEqual(set(theirs[2]), {"f"})
            said = (f"this worker is {theirs[1]} ({theirs[2]}) on host {socket.gethostname()}, the controller is {ours[1]} ({ours[2]}) on host {socket.gethostname()}, and "
                    "they do not understand each other: use one build for both (the same package on all hosts)")
            self.assertIn(said, worker.stderr)
        self.assertIn('event=other_build text="this worker is ', self.path("logs", "controller.log").read_text())
        # Nor does a host try them again and again.
        unfit = subprocess.run([str(other / "tidepool"), "host", str(self.path()), "--slots", "2"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(unfit.returncode, 2, unfit.stderr)
        self.assertIn("no worker of this host can do its work, and none is started again: ", unfit.stderr)
        self.assertIn("use one build for both", unfit.stderr.splitlines()[-1])
        self.assertEqual(unfit.stderr.count("device-0 is started"), 1, unfit.stderr)
        host = subprocess.Popen([TIDEPOOL, "host", str(self.path()), "--slots", "2"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(host)
        self.finish(run)
        self.finish(host)
        self.assert_checked()

    def test_certificates_of_somebody_else_are_refused_where_they_are_not_whole(self):
        made = self.train("configs/test/rl_split.yaml", "security.tls=true", "train.steps=1", run="made")
        self.assert_done(made)
        given = self.dir / "given"
        shutil.copytree(self.path("security", run="made"), given)
        os.chmod(given / "device.key", 0o444)  # a volume's files belong to others
        taken = self.train("configs/test/rl_split.yaml", "security.tls=true", "train.steps=1", "--certificates", str(given), run="taken")
        self.assert_done(taken)
        self.assertEqual((given / "device.key").read_text(), self.path("security", "device.key", run="taken").read_text())
        for end in ("crt", "key"):  # a certificate and its key, and those of another role
            shutil.copy(self.path("security", f"reward.{end}", run="made"), self.dir / f"reward.{end}")
            os.replace(self.dir / f"reward.{end}", given / f"device.{end}")
        wrong = self.train("configs/test/rl_split.yaml", "security.tls=true", "train.steps=1", "--certificates", str(given), run="wrong")
        self.assert_done(wrong, 2)
        self.assertIn("device.crt and device.key have to be there, to belong together", wrong.stderr)

class FewerSlotsTest(RunTest):
    def test_a_host_of_an_allocation_below_the_least_slots_says_so(self):
        run = self.start("configs/test/rl_split.yaml", "cluster.launch_workers=false", "cluster.slots=4", "cluster.min_slots=3")
        self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
        few = self.command("host", str(self.path()), env={"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
        self.assert_done(few, 2)
        self.assertIn(f"host 0 ({socket.gethostname()}): {self.path('config.yaml')}: cluster.min_slots is 3, and the allocation has 2 hosts (SLURM_NTASKS) with 1 "
                      "each (--slots); ask for more hosts, or resume the run with a lower cluster.min_slots", few.stderr)

    def test_a_run_that_never_gets_its_least_slots_ends_and_says_who_is_missing(self):
        run = self.start("configs/test/rl_split.yaml", "cluster.launch_workers=false", "cluster.slots=3", "cluster.min_slots=3", "cluster.start_timeout_s=8")
        self.wait_for(lambda: self.path("control.json").exists(), what="control.json", process=run)
        host = subprocess.Popen([TIDEPOOL, "host", str(self.path()), "--slots", "2"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(host)
        _, err = self.finish(run, 3)
        self.assertIn("2 of 3 slots are left, and cluster.min_slots is 3; gone: device-2 (did not join within cluster.start_timeout_s)", err)
        self.assertIn("--resume when there are more hosts, or with a lower cluster.min_slots", err)
        self.assertFalse([r for r in self.journal() if r["kind"] == "GRANT"])
        self.finish(self.start(str(self.path()), "--resume", "cluster.min_slots=2", "train.steps=3", "cluster.start_timeout_s=600"))
        self.finish(host)
        self.assert_checked()


class LostScriptTest(RunTest):
    def tearDown(self):
        for i in range(3):
            self.end_task(i, signal.SIGKILL)
        super().tearDown()

    def end_task(self, i, number):
        try:
            os.killpg(int((self.dir / f"task{i}").read_text()), number)
        except (OSError, ValueError):  # not begun, or gone
            pass

    def test_hosts_that_outlive_the_node_of_the_batch_script_queue_the_job_again_once(self):
        nodes = ["127.0.0.1", "node1", "node2"]
        tools, of_job, log = self.dir / "tools", self.dir / "nodes", self.dir / "asked"
        tools.mkdir()
        of_job.write_text("\n".join(nodes) + "\n")
        (tools / "srun").write_text("#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n" + "".join(
            f"SLURM_PROCID={i} SLURM_NTASKS=3 SLURMD_NODENAME={node} setsid \"$@\" & echo $! > {self.dir}/task{i}\n" for i, node in enumerate(nodes))
            + f"trap 'for i in 0 1 2; do kill -TERM -- -$(cat {self.dir}/task$i); done' TERM\nwait; wait\n")
        # A job is queued once, and says what Slurm says of it.
        (tools / "scontrol").write_text(f"""#!/bin/bash
echo "$SLURM_PROCID $*" >> {log}
queued() {{ [ -e {self.dir}/queued ]; }}
case "$*" in
  "--oneliner show job 77") echo "JobId=77 JobName=x JobState=$(queued && echo PENDING || echo RUNNING) Reason=None Requeue=1 Restarts=$(queued && echo 1 || echo 0) BatchFlag=1" \
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=some[0-2] BatchHost={nodes[0]} NumNodes=3" ;;
  "show hostnames some[0-2]") cat {of_job} ;;
  "requeue 77") mkdir {self.dir}/queued ;;
  *) exit 1 ;;
esac
""")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        printed = self.command("slurm", "configs/test/rl_split.yaml", "cluster.min_slots=2", "checkpoint.every_steps=2", "train.steps=100000", "-N", "3",
                               "--run-dir", str(self.path()))
        self.assert_done(printed)
        script = self.dir / "script"
        script.write_text(printed.stdout.replace('--slots "$3"', '--slots "$3" --patience 3').replace("sleep 30", "sleep 0.1"))

        def batch(restarts):
            # Its errors are of no use to anybody who outlives it.
            process = subprocess.Popen(["bash", str(script)], cwd=self.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                       env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_NNODES": "3", "SLURM_JOB_ID": "77",
                                            "SLURM_RESTART_COUNT": str(restarts), "SLURMD_NODENAME": nodes[0]})
            self.started.append(process)
            return process

        def asked(words):
            return [line for line in log.read_text().splitlines() if line.endswith(words)] if log.exists() else []
        first = batch(0)
        self.wait_step(4, first)
        before = len(asked("show job 77"))
        os.killpg(first.pid, signal.SIGKILL)  # the script, srun and the controller
        self.end_task(0, signal.SIGKILL)
        made = max(self.metrics())
        # As long as Slurm has not noticed, they look again and again.
        self.wait_for(lambda: len(asked("show job 77")) >= before + 2, "two questions")
        self.assertFalse(asked("requeue 77"))
        of_job.write_text("\n".join(nodes[1:]) + "\n")
        self.wait_for((self.dir / "queued").exists, "requeue")
        # Who is left asks, and does nothing more, whatever it is told.
        before = len(asked("show job 77"))
        self.wait_for(lambda: len(asked("show job 77")) > before, "the other one's question")
        for i in (1, 2):
            self.end_task(i, signal.SIGTERM)  # as Slurm does
        self.assertLessEqual(len(asked("requeue 77")), 2)
        self.assertIn("node 127.0.0.1 is lost, with the batch script; job 77 is queued again", pathlib.Path(f"{self.path()}.slurm-77.log").read_text())

        of_job.write_text("\n".join(nodes) + "\n")
        second = batch(1)
        self.wait_step(made + 2, second)
        second.send_signal(signal.SIGTERM)
        second.wait(timeout=PATIENCE)
        self.assert_checked()


class AddressTest(RunTest):
    def test_an_address_of_another_host_is_named(self):
        result = self.train("configs/test/rl_split.yaml", "cluster.bind=192.0.2.1", "cluster.weight_transport=stream")
        self.assert_done(result, 2)
        self.assertIn("cluster.bind", result.stderr)
        self.assertIn("must be one of this host's", result.stderr)
        self.assertFalse(self.path().exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
