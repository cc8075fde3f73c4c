"""A run is watched: its pages by Prometheus, promtool, and the commands that ask from elsewhere."""
import http.client
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from harness import PATIENCE, ROOT, TIDEPOOL, RunTest

RL = "configs/test/rl_colocated.yaml"
# Goes on until it is told to stop, and evaluates now and then.
ENDLESS = ["train.steps=1000000", "checkpoint.every_steps=100", "eval.every_steps=10", "observe.samples_per_step=0",
           "observe.metrics_bind=127.0.0.1"]
needs_prometheus = unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"),
                                       "no prometheus here; scripts/setup --tests installs it")


class WatchTest(RunTest):
    def token(self, run):
        return str(self.path("security", "operator.token", run=run))

    def control(self, run, process):
        def pages():
            try:
                return json.loads(self.path("control.json", run=run).read_text())
            except (OSError, ValueError):
                return None
        return self.wait_for(pages, "control.json", process)

    def targets(self, run, process, count):
        """Addresses of the pages by worker, once so many are there."""
        def all_there():
            try:
                found = json.loads(self.path("prometheus_targets.json", run=run).read_text())
            except (OSError, ValueError):
                return None
            return {t["labels"]["worker"]: t["targets"][0] for t in found} if len(found) >= count else None
        return self.wait_for(all_there, f"{count} pages", process)

    def tls(self, run, role="operator"):
        security = self.path("security", run=run)
        context = ssl.create_default_context(cafile=str(security / "authority.crt"))
        context.check_hostname = False  # certificates name roles
        if role:
            context.load_cert_chain(str(security / f"{role}.crt"), str(security / f"{role}.key"))
        return context

    def get(self, address, path, token=None, context=None, host=None):
        """Status and text of a page."""
        request = urllib.request.Request(f"{'https' if context else 'http'}://{address}{path}")
        if token:
            request.add_header("Authorization", "Bearer " + pathlib.Path(token).read_text().strip())
        if host:
            request.add_header("Host", host)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def stop(self, run):
        run.send_signal(signal.SIGTERM)
        self.finish(run)

    def prometheus(self, config):
        """Starts one with this config; returns a function that asks it."""
        (self.dir / "prometheus.yml").write_text(config)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]
        log = open(self.dir / "prometheus.log", "w")
        self.started.append(subprocess.Popen(
            ["prometheus", f"--config.file={self.dir}/prometheus.yml", f"--storage.tsdb.path={self.dir}/tsdb",
             f"--web.listen-address={address}"], stdout=log, stderr=log))
        log.close()

        def ask(expression):
            url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                    return json.load(answer)["data"]["result"]
            except urllib.error.HTTPError as refused:
                self.fail(f"{expression}: {refused.read().decode()}")
            except OSError:  # it has just begun
                return []
        return ask

    @needs_prometheus
    def test_prometheus_reads_a_plain_and_an_encrypted_run_and_the_dashboard_has_data(self):
        run = self.start(RL, *ENDLESS, "name=one")
        secret = self.start(RL, *ENDLESS, "name=one", "security.tls=true", run="secret")
        pages = self.targets("run", run, 3)
        self.assertEqual(sorted(pages), ["controller", "device-0", "reward-0"])
        hidden = self.targets("secret", secret, 3)
        security = self.path("security", run="secret")
        ask = self.prometheus(f"""
global: {{scrape_interval: 500ms, evaluation_interval: 1s}}
rule_files: [{ROOT}/configs/observe/alerts.yml]
scrape_configs:
  - job_name: tidepool
    file_sd_configs: [{{files: [{self.path("prometheus_targets.json")}]}}]
  - job_name: tidepool-secret
    scheme: https
    tls_config:
      ca_file: {security}/authority.crt
      cert_file: {security}/operator.crt
      key_file: {security}/operator.key
      server_name: pages.tidepool
    authorization: {{credentials_file: {security}/operator.token}}
    file_sd_configs: [{{files: [{self.path("prometheus_targets.json", run="secret")}]}}]
""")
        # Beside it what the page itself says.
        for worker, address in pages.items():
            with self.subTest(worker):
                status, text = self.get(address, "/metrics")
                self.assertEqual(status, 200)
                checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
                self.assertEqual(self.get(address, "/healthz"), (200, "ok\n"))
                self.assertEqual(self.get(address, "/healthz", host="evil.example")[0], 403)
        self.wait_for(lambda: self.get(pages["controller"], "/readyz") == (200, "ok\n"), "/readyz", run)
        # The encrypted one asks for the operator's certificate, and for the token on every page.
        for worker, address in hidden.items():
            with self.subTest("secret " + worker):
                self.assertEqual(self.get(address, "/healthz", context=self.tls("secret"))[0], 401)
                self.assertEqual(self.get(address, "/healthz", self.token("secret"), self.tls("secret")), (200, "ok\n"))
                self.assertEqual(self.get(address, "/metrics", self.token("run"), self.tls("secret"))[0], 401)
                for role in (None, "device"):
                    with self.assertRaises((OSError, urllib.error.URLError), msg=role):
                        self.get(address, "/metrics", self.token("secret"), self.tls("secret", role))
        for name, count in (("run", 3), ("secret", 3)):
            self.wait_for(lambda: len(ask(f'up{{run="{name}"}} == 1')) == count, f"all pages of {name} scraped", run)
        self.wait_for(lambda: ask('increase(tidepool_steps_total{run="run"}[10s]) > 3'), "steps in Prometheus", run)
        dashboard = json.loads((ROOT / "configs/observe/grafana.json").read_text())
        expressions = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
        self.assertGreater(len(expressions), 30)
        lacking = []
        for expression in expressions:
            asked = expression.replace("$__rate_interval", "10s").replace("$run", "run")
            self.assertNotIn("$", asked)
            if not ask(asked):
                lacking.append(asked)
        # A figure comes with the step or the evaluation that has it.
        for asked in lacking:
            self.wait_for(lambda: ask(asked), f"data of {asked}", run)
        self.assertEqual(ask('ALERTS{alertstate="firing"}'), [])
        for process in (run, secret):
            self.stop(process)
        self.assertFalse(self.path("prometheus_targets.json").exists())

    @needs_prometheus
    def test_rules_are_right_and_fire_on_their_faults_alone(self):
        for command in (["check", "rules", "configs/observe/alerts.yml"], ["check", "config", "configs/observe/prometheus.yml"],
                        ["test", "rules", "tests/runs/data/alerts_test.yml"]):
            done = subprocess.run(["promtool", *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_counters_do_not_fall_and_status_and_top_ask_by_address(self):
        run = self.start(RL, *ENDLESS, "security.tls=true")
        control = self.control("run", run)
        token = self.token("run")
        self.wait_step(2, run)

        def counters():
            text = self.get(control["pages"], "/metrics", token, self.tls("run"))[1]
            counted = set(re.findall(r"(?m)^# TYPE (\S+) (?:counter|histogram)$", text))
            values = {}
            for name, labels, value in re.findall(r"(?m)^([a-z_]+)(\{.*\})? (\S+)$", text):
                if re.sub("_(bucket|count|sum)$", "", name) in counted or name in counted:
                    values[name + labels] = float(value)
            return values
        before = counters()
        self.assertGreater(len(before), 60)
        self.wait_step(12, run)
        self.wait_for(lambda: counters()["tidepool_steps_total"] > before["tidepool_steps_total"], "a count that rises", run)
        after = counters()
        self.assertEqual([name for name, value in before.items() if after[name] < value], [])

        # The file and the page are pictures of a moment ago.
        self.wait_for(lambda: self.status().get("tokens_per_s") and self.status()["workers"][0]["roles"], "a picture of a step", run)
        self.wait_for(lambda: 'tidepool_staleness_mean' in self.get(control["pages"], "/metrics", token, self.tls("run"))[1], "a figure", run)

        # What is no call of the run is cut at once, and not after the time that a connection may be idle.
        for context in (None, self.tls("run", role=None)):
            begun = time.monotonic()
            with self.assertRaises((OSError, http.client.HTTPException)):
                self.get(control["pages"], "/metrics", token, context)
            self.assertLess(time.monotonic() - begun, 25)  # of 30

        elsewhere = self.dir / "operator"  # what an operator has on another machine
        elsewhere.mkdir()
        for name in ("operator.token", "operator.crt", "operator.key", "authority.crt"):
            shutil.copy(self.path("security", name), elsewhere / name)
        asked = [control["pages"], "--token-file", str(elsewhere / "operator.token")]
        status = json.loads(self.command("status", *asked, "--json").stdout)
        here = json.loads(self.command("status", str(self.path()), "--json").stdout)
        self.assertEqual((status["state"], status["name"], status["run"]), ("running", "test-rl-colocated", str(self.path())))
        self.assertEqual(set(here) - set(status), set())
        self.assertEqual([w["name"] for w in status["workers"]], ["device-0", "reward-0"])
        self.assertEqual({w["host"] for w in status["workers"]}, {socket.gethostname()})
        for shown in (self.command("top", *asked), self.command("top", str(self.path()), "--once")):
            self.assert_done(shown)
            self.assertRegex(shown.stdout, r"test-rl-colocated +\w+ +step \d+/1000000")
            self.assertRegex(shown.stdout, r"tok/s generated +lag ")
            self.assertRegex(shown.stdout, r"(?m)^HOST +WORKER +ROLES +DOES ")
            self.assertRegex(shown.stdout, rf"(?m)^{re.escape(socket.gethostname())} +device-0 +(rollout|actor|-) ")
            self.assertNotIn("\x1b", shown.stdout)
        # On a terminal it is drawn again and again until q.
        terminal, its = pty.openpty()
        live = subprocess.Popen([TIDEPOOL, "top", str(self.path()), "--interval", "0.1"], cwd=ROOT, stdin=its, stdout=its,
                                env={**os.environ, "TERM": "xterm"})
        self.started.append(live)
        os.close(its)
        drawn = ""
        while drawn.count("q: ends") < 3:
            drawn += os.read(terminal, 1 << 16).decode(errors="replace")
        os.write(terminal, b"q")
        while "\x1b[?1049l" not in drawn:  # the screen of before is back
            drawn += os.read(terminal, 1 << 16).decode(errors="replace")
        self.assertEqual(live.wait(PATIENCE), 0)
        os.close(terminal)
        self.assertRegex(drawn, r"HOST +WORKER +ROLES")
        # A controller that does not answer holds up no key.
        terminal, its = pty.openpty()
        live = subprocess.Popen([TIDEPOOL, "top", *asked, "--interval", "0.1"], cwd=ROOT, stdin=its, stdout=its, env={**os.environ, "TERM": "xterm"})
        self.started.append(live)
        os.close(its)
        drawn = ""
        while "HOST" not in drawn:
            drawn += os.read(terminal, 1 << 16).decode(errors="replace")
        run.send_signal(signal.SIGSTOP)
        try:
            while "the look at the run has not ended for" not in drawn:
                drawn += os.read(terminal, 1 << 16).decode(errors="replace")
            since = time.monotonic()
            os.write(terminal, b"q")
            while "\x1b[?1049l" not in drawn:
                drawn += os.read(terminal, 1 << 16).decode(errors="replace")
            self.assertEqual(live.wait(PATIENCE), 0)
            self.assertLess(time.monotonic() - since, 4)
        finally:
            run.send_signal(signal.SIGCONT)
        os.close(terminal)
        (elsewhere / "operator.token").write_text("0" * 64)
        refused = self.command("status", *asked)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("does not know this token", refused.stderr)
        plain = self.dir / "plain.token"  # without certificates
        shutil.copy(token, plain)
        bare = self.command("status", control["pages"], "--token-file", str(plain))
        self.assertEqual(bare.returncode, 2)
        self.assertIn("operator.crt", bare.stderr)
        lines = self.path("logs", "device-0.log").read_text().splitlines()
        self.assertRegex(lines[-1], rf"level=\w+ run=\S+ host={re.escape(socket.gethostname())} epoch=1 role=device worker=device-0/inc\d+ event=")
        self.stop(run)

    def test_pages_that_others_could_read_plain_are_refused_and_what_is_missing_is_told(self):
        refused = self.train(RL, "observe.metrics_bind=0.0.0.0", "cluster.advertise=10.0.0.1")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("observe.metrics_bind", refused.stderr)
        self.assertIn("security.tls: true", refused.stderr)
        run = self.start(RL, *ENDLESS, "reward={functions: [{name: judge, endpoint: 'http://127.0.0.1:9/x', timeout_s: 60}]}")
        pages = self.targets("run", run, 3)
        # A server that nobody answers at: alive, and not ready.
        waits = self.wait_for(lambda: "judge" in self.get(pages["controller"], "/readyz")[1] and self.get(pages["controller"], "/readyz"), "what it waits for", run)
        self.assertEqual(waits[0], 503)
        self.assertEqual(self.get(pages["reward-0"], "/readyz")[0], 503)
        self.assertEqual(self.get(pages["controller"], "/healthz")[0], 200)
        self.assertEqual(self.get(pages["controller"], "/status")[0], 401)  # on loopback, too
        self.assertEqual(self.get(pages["controller"], "/status", self.token("run"))[0], 200)
        worker = self.worker_pid(1, run)
        os.kill(worker, signal.SIGKILL)
        self.wait_for(lambda: re.search(r'(?m)^tidepool_faults_total\{class="worker_lost"\} 1$', self.get(pages["controller"], "/metrics")[1]), "the fault on the page", run)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
