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
from harness import PATIENCE, RunTest, kill

CONFIG = "configs/test/agents.yaml"


class Refused(Exception):
    def __init__(self, status, answer, headers):
        super().__init__(status, answer)
        self.status, self.headers = status, headers
        self.error = answer.get("error", {}) if isinstance(answer, dict) else {}


def post(url, key, body=None, timeout=PATIENCE):
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
        return self.wait_for(there, "endpoint.json", process)

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
                except Refused as refused:  # its sample was dropped with another one's session, or its worker
                    if refused.status not in (404, 410):
                        raise
                    continue
                except (OSError, http.client.HTTPException):
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
        evaluated = self.command("eval", "--model", str(self.path()))
        self.assertEqual(evaluated.returncode, 2)
        self.assertIn("tidepool serve --model", evaluated.stderr)
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

    # --- what a program may do wrong
    def refused(self, status, call, *words):
        with self.assertRaises(Refused) as caught:
            call()
        self.assertEqual(caught.exception.status, status, caught.exception)
        for word in words:
            self.assertIn(word, caught.exception.error["message"])
        return caught.exception

    def more(self, endpoint, process, count):
        return [self.take(endpoint, process) for _ in range(count)]

    def test_keys_paths_and_fields_are_refused_by_name(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        url = endpoint["url"]
        self.refused(401, lambda: post(url + "/sessions", "0" * 64), "endpoint.json")
        one, two = self.more(endpoint, process, 2)
        self.refused(401, lambda: post(one.base_url + "/chat/completions", two.key))
        self.refused(401, lambda: post(one.base_url + "/chat/completions", endpoint["key"]))
        self.refused(404, lambda: post(f"{url}/sessions/{'0' * 32}/v1/chat/completions", one.key), "no session", "started anew")
        self.refused(404, lambda: one.post("/v1/embeddings"), "/v1/chat/completions")
        self.refused(409, lambda: one.reward(1), "nothing to reward")
        said = [{"role": "user", "content": "2*2="}]
        for body, *words in [({"temperature": 0.5}, "rollout"), ({"top_p": 0.9}, "rollout"), ({"seed": 3}, "rollout"), ({"stop": ["x"]}, "rollout"),
                             ({"n": 2}, "one episode"), ({"max_tokens": 3}, "8 tokens", "environment.max_turn_tokens"), ({"colour": 1}, "no such field"),
                             ({"model": "other"}, "test-agents")]:
            error = self.refused(404 if "model" in body else 400, lambda: one.post("/v1/chat/completions", messages=said, **body), *words).error
            self.assertEqual(error["param"], next(iter(body)))
        self.refused(400, lambda: one.post("/v1/chat/completions", messages=[{"role": "user", "content": "x" * 400}]), "data.max_prompt_tokens")
        # What the run has anyway may be said, and more room than there is.
        one.post("/v1/chat/completions", messages=said, temperature=1, top_p=1.0, max_tokens=8)
        for reward in ("much", None, 1e12):
            self.refused(400, lambda: one.reward(reward), "reward" if reward != 1e12 else "")
        self.assertEqual(one.reward(0.5), {"id": one.id, "reward": 0.5, "turns": 1})
        self.refused(404, lambda: one.reward(0.5), "it has its reward")

    def test_another_history_is_refused_and_the_same_request_has_the_same_answer(self):
        process = self.begin()
        session = self.take(self.endpoint(process), process)
        first = session.ask("a")
        again = session.post("/v1/chat/completions", messages=session.messages[:1], return_token_ids=True)["choices"][0]
        self.assertEqual(again["token_ids"], first["token_ids"])
        user, said = session.messages
        ask = lambda *messages: session.post("/v1/chat/completions", messages=list(messages))  # noqa: E731
        more = {"role": "user", "content": "b"}
        self.refused(409, lambda: ask({"role": "user", "content": "c"}, said, more), "messages[0]", "another than it was")
        self.refused(409, lambda: ask(user, {"role": "assistant", "content": "never"}, more), "messages[1]")
        self.refused(409, lambda: ask({"role": "system", "content": "s"}, user, said, more), "messages[0]")
        self.refused(400, lambda: ask(user, said), "nothing is said")
        self.refused(409, lambda: session.post("/v1/completions", prompt="a"), "the form of requests")
        # The white space around an answer is the model's own, and no other history.
        spaced = {"role": "assistant", "content": "  " + said["content"] + "\n"}
        answer = session.post("/v1/chat/completions", messages=[user, spaced, more], return_token_ids=True)
        self.assertEqual(answer["prompt_token_ids"][:len(session.seen[0][0]) + len(first["token_ids"])], session.seen[0][0] + first["token_ids"])
        self.assertEqual(session.reward(1)["turns"], 2)

    def test_sessions_of_a_group_begin_alike(self):
        process = self.begin()
        one, two = self.more(self.endpoint(process), process, 2)
        self.assertEqual((one.group, one.row), (two.group, two.row))
        one.ask("it is 10:01")
        self.refused(409, lambda: two.ask("it is 10:02"), "answers to one prompt", "messages[0]")
        two.messages.clear()
        two.ask("it is 10:01")
        self.assertEqual(one.seen[0][0], two.seen[0][0])

    def test_a_session_has_room_and_says_when_it_has_none(self):
        process = self.begin("rollout.max_new_tokens=60")
        session = self.take(self.endpoint(process), process)
        session.ask("a")
        self.refused(400, lambda: session.ask("b" * 100), "no room", "rollout.max_new_tokens")
        session.messages.pop()
        session.ask("b")
        self.assertEqual(session.reward(1)["turns"], 2)

    def test_what_nobody_goes_on_with_is_lost_and_issued_again(self):
        process = self.begin("environment.step_timeout_s=1", "train.steps=2", "scheduler.infra_drop_stop=0.9")
        endpoint = self.endpoint(process)
        silent, left = self.more(endpoint, process, 2)
        left.ask(f"{left.row['prompt']} 0")  # as all sessions of its group begin
        self.wait_for(lambda: self.gone(silent) and self.gone(left), "the end of two sessions", process)
        self.refused(404, lambda: left.ask("y"), "nobody has touched it", "environment.step_timeout_s")
        self.play(endpoint, process, turns=1)
        self.finish(process)
        self.assert_checked()
        drops = [r["reason"] for r in self.journal() if r["kind"] == "DROP"]
        self.assertIn("env_infra", drops)
        self.assertGreaterEqual(sum(m.get("env/timeouts", 0) for m in self.metrics().values()), 1)

    def gone(self, session):
        try:
            session.post("/v1/models")
        except Refused as refused:
            return refused.status == 404
        return False

    def test_who_waits_for_a_sample_that_is_not_needed_is_told(self):
        # Of each group half is dropped, where it ends later than the others: mostly in its first and only turn.
        process = self.begin("rollout.redundancy=4", "environment.max_turn_tokens=60", "train.steps=4", "environment.episode_timeout_s=600")
        self.play(self.endpoint(process), process, turns=1, threads=12)
        self.finish(process)
        self.assert_checked()

    def resumed(self, text):
        """Of the one group of a run two samples begin with "a"; what is left after a resume, with `text`. How many were played then, and dropped."""
        process = self.begin("train={groups_per_step: 1, steps: 1, learning_rate: 0.001, micro_batch_tokens: 1024}", "scheduler.infra_drop_stop=0.9")
        for session in self.more(self.endpoint(process), process, 2):
            session.ask("a")
            session.reward(len(session.seen[0][1]))
        self.wait_for(lambda: sum(r["kind"] == "GRADED" for r in self.journal()) == 2, "two grades", process)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        process = self.start(str(self.path()), "--resume")
        endpoint, played = self.endpoint(process), 0
        while session := self.take(endpoint, process):
            try:
                session.ask(text)
                session.reward(len(session.seen[0][1]))
                played += 1
            except (Refused, OSError, http.client.HTTPException) as error:
                self.assertIn(getattr(error, "status", 410), (404, 410))
        self.finish(process)
        self.assert_checked()
        trained = [json.loads(line) for path in self.path("samples").iterdir() for line in path.read_text().splitlines()]
        self.assertEqual(len(trained), 4)
        self.assertEqual(len({row["prompt"] for row in trained}), 1)
        return played, [r["reason"] for r in self.journal() if r["kind"] == "DROP"]

    def test_after_a_resume_a_group_goes_on_with_its_prompt(self):
        self.assertEqual(self.resumed("a"), (2, []))

    def test_after_a_resume_a_group_of_another_prompt_is_dropped(self):
        self.assertEqual(self.resumed("b"), (4, ["env_infra"] * 4))

    def test_who_has_gone_gets_no_sample(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        sessions = self.more(endpoint, process, 8)
        for _ in range(8):
            gone = http.client.HTTPConnection(endpoint["url"].split("/")[2])
            gone.request("POST", "/sessions", "{}", {"Authorization": f"Bearer {endpoint['key']}"})
            gone.sock.close()
        for session in sessions:
            session.ask("go")
            session.reward(len(session.seen[0][1]))
        self.more(endpoint, process, 8)  # all of the next step

    def test_an_unasked_session_is_taken_by_another_program_without_loss(self):
        process = self.begin("environment.step_timeout_s=1", "train.steps=1")
        endpoint = self.endpoint(process)
        self.more(endpoint, process, 8)  # and nothing more of them
        self.play(endpoint, process, turns=1)
        self.finish(process)
        self.assertEqual([r for r in self.journal() if r["kind"] == "DROP"], [])

    def changed(self, refusals, *args):
        process = self.begin("train.steps=2", "scheduler.infra_drop_stop=0.9", *args)
        endpoint = self.endpoint(process)
        sessions = self.more(endpoint, process, 8)
        groups = {s.group: s for s in sessions}
        for first in groups.values():
            first.ask("old")
            first.reward(1)
        rest = [s for s in sessions if s not in groups.values()]
        for session in rest:
            for _ in range(refusals):
                session.messages.clear()
                self.refused(409, lambda s=session: s.ask("new"), "answers to one prompt")
        self.wait_for(lambda: all(self.gone(s) for s in rest), "the end of the sessions", process)
        self.play(endpoint, process, turns=1)
        self.finish(process)
        self.assert_checked()
        self.assertEqual([r["reason"] for r in self.journal() if r["kind"] == "DROP"].count("env_infra"), 8)  # of a group one alone is left

    def test_an_agent_that_was_changed_in_mid_run_does_not_hold_it_up(self):
        self.changed(6)

    def test_nor_does_one_that_is_refused_more_seldom(self):
        self.changed(1, "environment.step_timeout_s=3")

    def test_where_all_samples_are_taken_a_program_is_told_to_come_again(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        sessions = self.more(endpoint, process, 8)  # 2 groups of 4: all that lag 0 has open
        self.assertEqual(len({s.group for s in sessions}), 2)
        refused = self.refused(429, lambda: Session(endpoint), "no sample waits")
        self.assertEqual(refused.headers["Retry-After"], "1")
        with concurrent.futures.ThreadPoolExecutor(64) as pool:  # a flood
            statuses = list(pool.map(lambda _: self.status_of(endpoint), range(128)))
        self.assertEqual(set(statuses), {429})
        for session in sessions:
            session.ask("go")
            session.reward(len(session.seen[0][1]))
        self.assertIsNotNone(self.take(endpoint, process))
        with urllib.request.urlopen(urllib.request.Request(endpoint["url"] + "/metrics", headers={"Authorization": f"Bearer {endpoint['key']}"})) as page:
            text = page.read().decode()
        self.assertIn("tidepool_agents_rewarded_total 8", text)
        self.assertGreaterEqual(int(text.split("\ntidepool_agents_none_left_total ")[1].split()[0]), 129)

    def status_of(self, endpoint):
        try:
            Session(endpoint)
        except Refused as refused:
            return refused.status
        return 200

    def test_a_killed_environment_worker_costs_its_sessions_and_no_more(self):
        process = self.begin("train.steps=2", "scheduler.infra_drop_stop=0.9")
        before = self.endpoint(process)
        session = self.take(before, process)
        session.ask("a")
        kill(self.worker_pid(1, process))  # behind the one slot
        with self.assertRaises(OSError):
            session.ask("b")
        endpoint = self.wait_for(lambda: (now := self.endpoint(process)) != before and now, "another endpoint.json", process)
        self.play(endpoint, process, turns=1)
        self.finish(process)
        self.assert_checked()

    def test_a_program_that_waits_hears_of_the_end(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        sessions = self.more(endpoint, process, 2)
        sessions[0].ask("a")
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.assertFalse(self.path("endpoint.json").exists())
        with self.assertRaises(OSError):
            sessions[0].ask("b")

    def test_streams_tools_and_other_forms_are_turns_too(self):
        process = self.begin()
        endpoint = self.endpoint(process)
        one, two, three, four = self.more(endpoint, process, 4)
        text = "hello"
        def turn(session, path, body, words):
            request = urllib.request.Request(session.base_url + path, json.dumps(body).encode(), {"Authorization": f"Bearer {session.key}"})
            with urllib.request.urlopen(request) as answer:
                said = answer.read().decode()
            for word in words:
                self.assertIn(word, said)
            session.reward(1)
        turn(one, "/chat/completions", {"messages": [{"role": "user", "content": text}], "stream": True}, ["data: ", "chat.completion.chunk", "[DONE]"])
        turn(two, "/responses", {"input": text, "store": False}, ['"object":"response"'])
        turn(three, "/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 64}, ['"type":"message"'])
        turn(four, "/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}, ['"chat.completion"'])

    def test_what_a_config_may_not_say(self):
        for change, words in [("environment.workers=2", "one address"), ("environment.held_out=4", "evaluate themselves"),
                              ("environment.name=frozen_lake", "the programs that call are the environment"),
                              ("reward.functions=[{name: exact_answer}]", "an environment gives"), ("rollout.endpoint=false", "write rollout.endpoint: true"),
                              ("rollout.endpoint_port=70000", "65535")]:
            with self.subTest(change):
                extra = ["environment.name=endpoint"] if change == "rollout.endpoint=false" else []
                result = self.command("validate", CONFIG, change, *extra)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
