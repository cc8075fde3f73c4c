#!/usr/bin/env python3
"""Programs that exist as the environment of a run (rollout.endpoint): whole runs with agents of nothing but Python's own HTTP client, and what is
said of those that do wrong."""
import concurrent.futures
import http.client
import json
import os
import signal
import threading
import time
import unittest
import urllib.error
import urllib.request

from byte_model import END, write_byte_model
from harness import RunTest, kill

CONFIG = "configs/test/agents.yaml"


class Refused(Exception):
    def __init__(self, status, answer, headers):
        super().__init__(status, answer)
        self.status, self.headers = status, headers
        self.error = answer.get("error", {}) if isinstance(answer, dict) else {}


def post(url, key, body=None, timeout=60):
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Refused(error.code, json.loads(error.read() or b"null"), error.headers) from None


class Session:
    def __init__(self, endpoint):
        for name, value in post(endpoint["url"] + "/sessions", endpoint["key"]).items():
            setattr(self, name, value)
        self.messages, self.seen = [], []

    def ask(self, text, **more):
        """The answer's choice; the conversation goes on with it."""
        self.messages.append({"role": "user", "content": text})
        answer = self.post("/v1/chat/completions", messages=self.messages, return_token_ids=True, logprobs=True, **more)
        choice = answer["choices"][0]
        self.messages.append(choice["message"])
        self.seen.append((answer["prompt_token_ids"], choice["token_ids"], [t["logprob"] for t in choice["logprobs"]["content"]]))
        return choice

    def post(self, path, **body):
        return post(self.base_url[:-len("/v1")] + path, self.key, body)

    def reward(self, x):
        return self.post("/reward", reward=x)


class EndpointTest(RunTest):
    def setUp(self):
        super().setUp()
        write_byte_model(self.dir / "bytes")

    def begin(self, *args):
        """A run whose model speaks in ChatML; its answers are eight bytes of noise, or fewer."""
        return self.start(CONFIG, f"model={{path: {self.dir / 'bytes'}, dtype: float32}}", "data={task: products, factors: [2, 9], held_out: 8, max_prompt_tokens: 192}",
                          "environment.max_turn_tokens=8", "rollout.max_new_tokens=160", "train={groups_per_step: 2, steps: 3, learning_rate: 0.001, micro_batch_tokens: 1024}",
                          *args)

    def endpoint(self, process):
        def there():
            try:
                return json.loads(self.path("endpoint.json").read_text())
            except (OSError, ValueError):
                return None
        return self.wait_for(there, 60, "endpoint.json", process)

    def take(self, endpoint, process):
        """A session; waits while none is to be had. None: the run has ended."""
        while process.poll() is None:
            try:
                return Session(endpoint)
            except Refused as refused:
                if refused.status != 429:
                    raise
                self.assertEqual(refused.headers["Retry-After"], "1")
            except (OSError, http.client.HTTPException):  # it is ending
                time.sleep(0.1)
        return None

    def play(self, endpoint, process, turns=2, threads=4, seen=None):
        """Agents until the run ends: in each session so many turns, and a reward that likes long words."""
        def agent():
            while session := self.take(endpoint, process):
                try:
                    said = [session.ask(f"{session.row['prompt']} {turn}")["message"]["content"] for turn in range(turns)]
                    session.reward(sum(map(len, said)) / 10)
                except (OSError, http.client.HTTPException):
                    if process.poll() is None:
                        time.sleep(0.2)
                    continue
                if seen is not None:
                    seen.append(session)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(agent) for _ in range(threads)]:
                done.result()

    def test_an_agent_is_trained_on_the_tokens_that_it_saw(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        self.assertEqual(os.stat(self.path("endpoint.json")).st_mode & 0o777, 0o600)
        seen = []
        self.play(endpoint, process, seen=seen)
        self.finish(process)
        self.assert_checked()
        self.assertFalse(self.path("endpoint.json").exists())
        # What was trained is what was seen, to the token and the log-probability.
        sessions = {}
        for session in seen:
            prompt, ids, logprobs = session.seen[0][0], [], []
            for at, (before, said, lps) in enumerate(session.seen):
                self.assertEqual(before[:len(prompt) + len(ids)], prompt + ids)
                logprobs += [None] * (len(before) - len(prompt) - len(ids)) + lps
                ids = before[len(prompt):] + said
            sessions[tuple(ids)] = (logprobs, session)
        trained = [json.loads(line) for path in sorted(self.path("samples").iterdir()) for line in path.read_text().splitlines()]
        self.assertEqual(len(trained), 3 * 2 * 4)
        for row in trained:
            logprobs, session = sessions[tuple(row["ids"])]
            self.assertAlmostEqual(row["reward"], sum(len(m["content"]) for m in session.messages if m["role"] == "assistant") / 10)
            self.assertEqual([a if a is None else round(a, 4) for a in row["logprobs"]], [b if b is None else round(b, 4) for b in logprobs])


if __name__ == "__main__":
    unittest.main()
