#!/usr/bin/env python3
"""examples/reward_http_server.py: its answers, and whole runs that are rewarded by it.

    tests/docs/reward_http_server_test.py [BUILD_FOLDER]

Needs Python's standard library alone. The runs need the built programs.
"""

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TIDEPOOL_BUILD_DIR", os.path.join(ROOT, "build"))
if sys.argv[1:] and os.path.isdir(sys.argv[1]):
    BUILD = sys.argv.pop(1)
CONFIG = "configs/test/rl_colocated.yaml"
sys.path.insert(0, os.path.join(ROOT, "examples"))

import reward_http_server  # noqa: E402


def sample(**fields):
    return {"answer": "cba", "text": "cba", "ended": True, **fields}


class Served(unittest.TestCase):
    """A server on a port of its own; `asked` are the samples that it has seen."""

    def start(self, grade, port=0):
        self.asked = []

        def watched(one):
            self.asked.append(one)
            return grade(one)

        true_grade, reward_http_server.grade = reward_http_server.grade, watched
        self.addCleanup(setattr, reward_http_server, "grade", true_grade)
        server = reward_http_server.http.server.ThreadingHTTPServer(("127.0.0.1", port), reward_http_server.Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server.server_address[1]


class Answers(Served):
    def ask(self, grade, body):
        self.addCleanup(setattr, sys, "stderr", sys.stderr)
        sys.stderr = self.printed = tempfile.TemporaryFile("w+")
        self.addCleanup(self.printed.close)
        connection = http.client.HTTPConnection("127.0.0.1", self.start(grade), timeout=20)
        connection.request("POST", "/", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.printed.seek(0)
        return answer.status, text

    def test_a_sample_gets_a_score(self):
        self.assertEqual(self.ask(reward_http_server.grade, sample()), (200, '{"score": 1.0}'))

    def test_a_list_of_samples_gets_a_list(self):
        status, text = self.ask(reward_http_server.grade, [sample(), sample(ended=False), sample(answer="")])
        self.assertEqual(status, 200)
        self.assertEqual([list(one) for one in json.loads(text)], [["score"], ["score"], ["data_error"]])

    def test_an_exception_is_no_score_and_its_traceback_is_printed(self):
        status, text = self.ask(lambda one: 1 / 0, sample())
        self.assertEqual((status, text), (500, "ZeroDivisionError: division by zero"))
        self.assertIn("Traceback (most recent call last)", self.printed.read())

    def test_a_client_that_does_not_wait_is_no_error(self):
        self.addCleanup(setattr, sys, "stderr", sys.stderr)
        gone = threading.Event()
        with tempfile.TemporaryFile("w+") as sys.stderr:
            port = self.start(lambda one: gone.wait(20) and {"score": 1, "detail": "x" * (4 << 20)})
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("POST", "/", json.dumps(sample()))
            while not self.asked:
                time.sleep(0.01)
            connection.close()
            gone.set()
            while threading.active_count() > 2:  # the server's own, and the one of this call
                time.sleep(0.01)
            sys.stderr.seek(0)
            self.assertEqual(sys.stderr.read(), "")

    def test_what_is_not_finite_is_no_score(self):
        self.assertEqual(self.ask(lambda one: {"score": float("nan")}, sample())[0], 500)


@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "bin", "tidepool-worker")), "the programs are not built")
class Runs(Served):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tidepool-http-reward-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def metrics(self):
        with open(self.dir + "/run/metrics.jsonl", encoding="utf-8") as lines:
            return [json.loads(line)["metrics"] for line in lines]

    def test_the_lines_of_the_guide_work_as_they_are_printed(self):
        with open(os.path.join(ROOT, "docs/adding_a_reward.md"), encoding="utf-8") as page:
            block = re.search(r"```bash\n(python3 examples/reward_http_server.py.*?)```", page.read(), re.DOTALL).group(1)
        serve, train = block.splitlines()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        server = subprocess.Popen(shlex.split(serve.replace("7001", port).removesuffix("&")), cwd=ROOT)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        command = shlex.split(train.replace("7001", port).replace("configs/quickstart.yaml", CONFIG))
        command[0] = os.path.join(BUILD, "bin", "tidepool")
        done = subprocess.run([*command, "--run-dir", self.dir + "/run", "train.steps=1"], cwd=ROOT, capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(any("reward/closeness/mean" in m for m in self.metrics()))

    def test_a_server_that_starts_late_loses_nothing_and_sees_everything(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        rows = self.dir + "/rows.jsonl"
        with open(rows, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"prompt": f"rev {a}{b}=", "answer": b + a, "level": 3}) + "\n" for a in "abcdef" for b in "abcdef")
        with open(os.path.join(ROOT, CONFIG), encoding="utf-8") as config:
            text = re.sub(r"(?m)^data: .*$", f"data: {{path: {rows}, held_out: 4}}", config.read())
        with open(self.dir + "/job.yaml", "w", encoding="utf-8") as config:
            config.write(text)
        overrides = ["train.steps=2", "reward.batch=4",
                     f'reward.functions=[{{name: mine, endpoint: "http://127.0.0.1:{port}/", timeout_s: 120}}]']
        run = subprocess.Popen([os.path.join(BUILD, "bin", "tidepool"), "train", self.dir + "/job.yaml", "--run-dir", self.dir + "/run",
                                *overrides], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        said = ""
        for line in run.stdout:
            said += line
            if "rewards wait for" in line:
                break
        self.assertIn(f"rewards wait for mine at http://127.0.0.1:{port}/: Connection refused", said)
        grade = reward_http_server.grade
        self.start(lambda one: {**grade(one), "detail": "read " + one["text"]}, port)
        rest, _ = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0, said + rest)
        self.assertIn("rewards wait no longer", rest)
        self.assertGreater(sum(m.get("reward/retries", 0) for m in self.metrics()), 0)
        self.assertEqual(sum(m.get("reward/infra_errors", 0) for m in self.metrics()), 0)
        one = self.asked[-1]
        self.assertEqual(one["messages"], [{"role": "user", "content": one["prompt"]}])
        self.assertIn(one["prompt"], one["rendered_prompt"])
        self.assertEqual((one["file"], one["fields"]), (rows, {"level": "3"}))
        with open(rows, encoding="utf-8") as file:
            self.assertEqual(json.loads(file.readlines()[one["line"] - 1])["prompt"], one["prompt"])
        self.assertEqual({bool(one["held_out"]) for one in self.asked}, {False, True})
        shown = subprocess.run([os.path.join(BUILD, "bin", "tidepool"), "samples", self.dir + "/run", "--json"], cwd=ROOT,
                               capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        self.assertGreater(len({line["tid"].rsplit(".", 1)[0] for line in lines}), 1, "samples of several groups are on record")
        self.assertEqual({line["file"] for line in lines}, {rows})
        self.assertEqual([line["details"] for line in lines], [{"mine": "read " + line["text"]} for line in lines])


if __name__ == "__main__":
    unittest.main()
