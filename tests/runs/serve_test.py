#!/usr/bin/env python3
"""The endpoint of a model, as programs meet it: over HTTP, by nothing but Python's own client."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest

from byte_model import END, TEMPLATE, VOCAB, token, write_byte_model
from harness import PATIENCE, ROOT, TIDEPOOL, RunTest, alive


class Server:
    """`tidepool serve` on a free port, until it is stopped."""

    def __init__(self, model, *args, wait=True):
        self.process = subprocess.Popen([TIDEPOOL, "serve", "--model", str(model), "--port", "0", "--threads", "1", *args], cwd=ROOT,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.name = pathlib.Path(model).name
        self.line = self.process.stdout.readline()
        found = re.search(r"at (https?)://\S+:(\d+)/v1, .*; key: (\S+)", self.line)
        if not found:
            self.process.kill()
            raise AssertionError(self.line + self.process.stderr.read())
        self.tls, self.port, self.key_file = found[1] == "https", int(found[2]), pathlib.Path(found[3])
        self.key = self.key_file.read_text().strip()
        if wait and self.process.stdout.readline() != "serves\n":
            self.process.kill()
            raise AssertionError(self.process.stderr.read())

    def connect(self, timeout=PATIENCE):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(self, path, body=None, key=None, method=None, raw=None, connection=None):
        """(status, parsed answer, headers)"""
        own = connection or self.connect()
        headers = {"Authorization": f"Bearer {key or self.key}"}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        own.request(method or ("GET" if data is None else "POST"), path, data, headers)
        response = own.getresponse()
        text = response.read()
        if not connection:
            own.close()
        kind = response.headers.get("Content-Type", "")
        return response.status, json.loads(text) if kind.startswith("application/json") else text.decode(), response.headers

    def ask(self, path, **body):
        status, answer, _ = self.call(path, {"model": self.name, **body})
        if status != 200:
            raise AssertionError((status, answer))
        return answer

    def events(self, path, **body):
        """The pieces of a stream, parsed; the last is "[DONE]"."""
        own = self.connect()
        own.request("POST", path, json.dumps({"model": self.name, "stream": True, **body}).encode(), {"Authorization": f"Bearer {self.key}"})
        response = own.getresponse()
        if response.status != 200:
            raise AssertionError(response.read())
        out = [part[len("data: "):] for part in response.read().decode().split("\n\n") if part]
        own.close()
        return [json.loads(part) for part in out[:-1]] + [out[-1]]

    def metric(self, name):
        text = self.call("/metrics")[1]
        return float(re.search(rf"^tidepool_serve_{name} (\S+)$", text, re.M)[1])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


class ServeTest(RunTest):
    """One server for the tests that only ask."""

    @classmethod
    def setUpClass(cls):
        import tempfile
        cls.folder = tempfile.TemporaryDirectory(prefix="tidepool-serve-")
        cls.model = pathlib.Path(cls.folder.name, "bytes")
        write_byte_model(cls.model)
        cls.server = Server(cls.model)

    @classmethod
    def tearDownClass(cls):
        out, err = cls.server.stop()
        cls.folder.cleanup()
        assert cls.server.process.returncode == 0, (out, err)
        assert not cls.server.key_file.exists()

    def refused(self, status, body, *words, path="/v1/chat/completions", param=None):
        got, answer, _ = self.server.call(path, body)
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(error["code"], status)
        for word in words:
            self.assertIn(word, error["message"])
        if param is not None:
            self.assertEqual(error["param"], param)

    def test_models_and_health(self):
        listed = self.server.call("/v1/models")[1]
        self.assertEqual([m["id"] for m in listed["data"]], ["bytes"])
        self.assertEqual(self.server.call("/v1/models/bytes")[1]["max_model_len"], 512)
        own = self.server.connect()
        own.request("GET", "/healthz")  # without the key
        self.assertEqual(own.getresponse().read(), b"ok\n")
        own.close()
        for path, body, status in [("/v1/nothing", None, 404), ("/v1/models", {}, 405), ("/v1/completions", None, 405)]:
            self.assertEqual(self.server.call(path, body)[0], status, path)

    def test_a_chat_is_what_the_template_makes_of_it(self):
        said = self.server.ask("/v1/chat/completions", messages=[{"role": "user", "content": "Grüße"}], max_tokens=8, temperature=0, logprobs=True,
                               return_token_ids=True)
        choice = said["choices"][0]
        prompt = "<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n"
        expected, text = [], prompt
        while text:
            special = next((i for i, t in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) if text.startswith(t)), None)
            if special is None:
                expected += [token(b) for b in text[0].encode()]
                text = text[1:]
            else:
                expected.append(special)
                text = text[len(["<|endoftext|>", "<|im_start|>", "<|im_end|>"][special]):]
        self.assertEqual(said["prompt_token_ids"], expected)
        self.assertEqual(said["usage"], {"prompt_tokens": len(expected), "completion_tokens": 8, "total_tokens": len(expected) + 8})
        self.assertEqual((choice["finish_reason"], len(choice["token_ids"]), len(choice["logprobs"]["content"])), ("length", 8, 8))
        self.assertEqual(choice["weight_versions"], [{"version": 0, "start": 0, "end": 8}])
        self.assertTrue(all(entry["logprob"] <= 0 for entry in choice["logprobs"]["content"]))
        # The same tokens in, the same out: as ids, and as a completion of the text.
        tokens = self.server.ask("/inference/v1/generate", token_ids=expected, sampling_params={"max_tokens": 8, "temperature": 0, "logprobs": 0})
        self.assertEqual(tokens["choices"][0]["token_ids"], choice["token_ids"])
        completed = self.server.ask("/v1/completions", prompt=[expected, prompt], max_tokens=8, temperature=0, return_token_ids=True, logprobs=0)
        for one in completed["choices"]:
            self.assertEqual((one["token_ids"], one["prompt_token_ids"]), (choice["token_ids"], expected))
            self.assertEqual(one["logprobs"]["token_logprobs"], [entry["logprob"] for entry in choice["logprobs"]["content"]])
            self.assertEqual(one["text"], choice["message"]["content"])

    def test_many_at_once_say_what_each_says_alone(self):
        def ask(i):
            return self.server.ask("/v1/completions", prompt=f"{i % 5} and {i}", max_tokens=40 + i, temperature=0.7 + i / 100, top_p=0.95, top_k=50, seed=i - 4,
                                   n=1 + i % 2, return_token_ids=True, logprobs=0)["choices"]
        alone = [ask(i) for i in range(32)]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, range(32)))
        self.assertEqual(alone, together)
        self.assertGreater(len({json.dumps(a) for a in alone}), 30)
        twice = [self.server.ask("/v1/completions", prompt="x", max_tokens=20)["choices"][0]["text"] for _ in range(2)]
        self.assertNotEqual(*twice)  # without a seed

    def test_a_stream_says_what_a_whole_answer_says(self):
        cut = 0
        for seed in range(12):
            body = dict(messages=[{"role": "user", "content": "ä"}], max_tokens=60, seed=seed, n=2, logprobs=True, return_token_ids=True)
            if seed % 2:
                body["stop"] = ["e", "a b", "\n", "q", "r", "s", "t"]
            whole = self.server.ask("/v1/chat/completions", **body)
            pieces = self.server.events("/v1/chat/completions", stream_options={"include_usage": True}, **body)
            self.assertEqual(pieces[-1], "[DONE]")
            self.assertEqual(pieces[-2]["usage"], whole["usage"])
            self.assertEqual(pieces[0]["prompt_token_ids"], whole["prompt_token_ids"])
            for index in (0, 1):
                mine = [c for p in pieces[:-2] for c in p["choices"] if c["index"] == index]
                choice = whole["choices"][index]
                self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
                self.assertEqual("".join(c["delta"].get("content", "") for c in mine), choice["message"]["content"])
                self.assertEqual([i for c in mine for i in c.get("token_ids", [])], choice["token_ids"])
                self.assertEqual([e for c in mine[1:] for e in c["logprobs"]["content"]], choice["logprobs"]["content"])
                self.assertEqual([c["finish_reason"] for c in mine if c["finish_reason"]], [choice["finish_reason"]])
                self.assertEqual(mine[-1]["stop_reason"], choice["stop_reason"])
                if choice["stop_reason"]:
                    cut += 1
                    self.assertEqual(choice["finish_reason"], "stop")
                    self.assertIn(choice["stop_reason"], body["stop"])
                for stop in body.get("stop", []):
                    self.assertNotIn(stop, choice["message"]["content"])
                # What is shown is what the tokens are, as far as the stop string.
                spoken = bytes(i - token(0) for i in choice["token_ids"] if i >= token(0)).decode(errors="replace")
                self.assertTrue(spoken.startswith(choice["message"]["content"]))
        self.assertGreater(cut, 2)

    def named_events(self, path, **body):
        own = self.server.connect()
        own.request("POST", path, json.dumps({"stream": True, **body}).encode(), {"Authorization": f"Bearer {self.server.key}"})
        text = own.getresponse().read().decode()
        own.close()
        found = re.findall(r"event: (\S+)\ndata: (.*)\n\n", text)
        self.assertEqual([name for name, _ in found], [json.loads(data)["type"] for _, data in found])
        return [json.loads(data) for _, data in found]

    def test_responses_and_messages_are_the_same_turn(self):
        talk = [{"role": "user", "content": "grün"}]
        drawn = dict(temperature=0, top_p=1)
        chat = self.server.ask("/v1/chat/completions", messages=[{"role": "system", "content": "be"}, *talk], max_tokens=24, **drawn)
        text = chat["choices"][0]["message"]["content"]
        response = self.server.ask("/v1/responses", instructions="be", input=talk, max_output_tokens=24, **drawn)
        self.assertEqual((response["output"][0]["content"][0]["text"], response["status"]), (text, "incomplete"))
        self.assertEqual(response["incomplete_details"], {"reason": "max_output_tokens"})
        self.assertEqual(response["usage"]["total_tokens"], chat["usage"]["total_tokens"])
        events = self.named_events("/v1/responses", instructions="be", input=talk, max_output_tokens=24, **drawn)
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), text)
        self.assertEqual(events[-1]["response"]["output"][0]["content"], response["output"][0]["content"])
        message = self.server.ask("/v1/messages", system="be", messages=talk, max_tokens=24, **drawn)
        self.assertEqual((message["content"], message["stop_reason"]), ([{"type": "text", "text": text}], "max_tokens"))
        self.assertEqual(message["usage"], {"input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": 24})
        events = self.named_events("/v1/messages", system="be", messages=talk, max_tokens=24, **drawn)
        self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), text)
        self.assertEqual((events[0]["type"], events[-2]["delta"]["stop_reason"], events[-1]["type"]), ("message_start", "max_tokens", "message_stop"))
        for path, body, param in [("/v1/responses", {"input": talk, "store": True}, "store"), ("/v1/messages", {"messages": talk}, "max_tokens"),
                                  ("/v1/messages", {"messages": talk, "max_tokens": 1, "thinking": {"type": "enabled"}}, "thinking")]:
            self.refused(400, body, path=path, param=param)

    def test_ends_and_stop_tokens(self):
        greedy = self.server.ask("/v1/completions", prompt="abc", max_tokens=12, temperature=0, return_token_ids=True)["choices"][0]
        stop = greedy["token_ids"][5]
        first = greedy["token_ids"].index(stop)
        cut = self.server.ask("/v1/completions", prompt="abc", max_tokens=12, temperature=0, return_token_ids=True, stop_token_ids=[stop])["choices"][0]
        self.assertEqual((cut["token_ids"], cut["finish_reason"], cut["stop_reason"]), (greedy["token_ids"][:first + 1], "stop", stop))
        # An end of the model's own has no reason beside it. Some of these ends so.
        ends = [c for c in self.server.ask("/v1/completions", prompt="abc", max_tokens=400, n=24, seed=1, temperature=2, return_token_ids=True)["choices"]
                if c["token_ids"][-1] == END]
        self.assertTrue(ends)
        self.assertTrue(all((c["finish_reason"], c["stop_reason"]) == ("stop", None) for c in ends))
        self.assertTrue(all("<|im_end|>" not in c["text"] for c in ends))
        echo = self.server.ask("/v1/completions", prompt="abc", max_tokens=12, temperature=0, echo=True)["choices"][0]
        self.assertEqual(echo["text"], "abc" + greedy["text"])

    def test_what_cannot_be_had_is_refused_by_its_name(self):
        hello = [{"role": "user", "content": "hello"}]
        for field, value, *words in [
                ("temperature", -1, "from 0 to 100"), ("temperature", "hot", "found \"hot\""), ("top_p", 0, "above 0"), ("top_p", 1.5), ("n", 0), ("n", 1000),
                ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", 513, "ask for"), ("stop", [""]), ("stop", 7), ("seed", "x"), ("seed", 2 ** 63),
                ("top_logprobs", 5, "no other"), ("presence_penalty", 0.5), ("logit_bias", {"5": 1}), ("response_format", {"type": "json_object"}),
                ("stream_options", {}, "stream: true"), ("tool_choice", "required"), ("stop_token_ids", [VOCAB]), ("min_tokens", 3), ("ignore_eos", True),
                ("messages", []), ("messages", "hi"), ("messages", None, "missing"), ("temprature", 1, "did you mean temperature"), ("functions", [])]:
            self.refused(400, {"messages": hello, field: value}, *words, param=field)
        for message, param, *words in [
                ({"role": "robot", "content": "x"}, "role"), ({"role": "user"}, "content"), ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].type"),
                ({"role": "user", "content": "x", "mood": 1}, "mood"), ("x", None), ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls")]:
            self.refused(400, {"messages": hello + [message]}, *words, param="messages[1]" + (f".{param}" if param else ""))
        self.refused(404, {"messages": hello, "model": "gpt-4"}, "bytes alone", param="model")
        self.refused(400, {"prompt": [token(0), -1]}, path="/v1/completions", param="prompt")
        self.refused(400, {"prompt": ["a", ""]}, "no tokens", path="/v1/completions")
        self.refused(400, {"prompt": "a", "logprobs": 3}, path="/v1/completions", param="logprobs")
        self.refused(400, {"token_ids": [1], "sampling_params": {"min_p": 1}}, path="/inference/v1/generate", param="sampling_params.min_p")
        self.refused(400, {"token_ids": [1], "sampling_params": {"beams": 1}}, path="/inference/v1/generate", param="sampling_params.beams")
        # What changes nothing is no error.
        self.server.ask("/v1/chat/completions", messages=hello, max_tokens=1, presence_penalty=0, frequency_penalty=0.0, user="me", logit_bias={}, n=1, store=False,
                        response_format={"type": "text"}, tools=[], top_logprobs=None)

    def test_tools_are_in_the_prompt(self):
        tool = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}
        talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"}]
        said = self.server.ask("/v1/chat/completions", messages=talk, tools=[tool], max_tokens=1, return_token_ids=True)
        prompt = bytes(i - token(0) if i >= token(0) else 0 for i in said["prompt_token_ids"]).decode()
        for part in [json.dumps(tool), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "tool\n2"]:
            self.assertIn(part, prompt)
        none = self.server.ask("/v1/chat/completions", messages=talk, tools=[tool], tool_choice="none", max_tokens=1)
        self.assertLess(none["usage"]["prompt_tokens"], said["usage"]["prompt_tokens"])
        self.refused(400, {"messages": talk, "tools": [{"type": "web_search"}]}, param="tools[0].type")
        strict = {"type": "function", "function": {"name": "f", "strict": True}}  # as agents' libraries have it
        self.server.ask("/v1/chat/completions", messages=talk, tools=[strict], max_tokens=1)
        back = [{"role": "user", "content": "1+1"}, {"type": "message", "role": "assistant", "phase": None, "status": "completed",
                                                     "content": [{"type": "output_text", "text": "2", "annotations": [], "logprobs": []}]}]
        self.server.ask("/v1/responses", input=back, tools=[{"type": "function", "name": "f", "strict": True, "parameters": {}}], max_output_tokens=1)

    def test_strangers_and_nonsense(self):
        for key in ["x", self.server.key[:-1], self.server.key + "0"]:
            status, answer, headers = self.server.call("/v1/models", key=key)
            self.assertEqual((status, answer["error"]["type"], headers["WWW-Authenticate"]), (401, "authentication_error", "Bearer"))
        self.assertEqual(self.server.call("/v1/completions", {"prompt": "a"}, key="x")[0], 401)
        for raw in [b"", b"{", b"[]", b"\xff", b'{"prompt": "a\x00"}', b"[" * 100000, b'{"prompt":"\xff"}', b'{"a":' * 1000 + b"1" + b"}" * 1000]:
            status, answer, _ = self.server.call("/v1/completions", raw=raw)
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), raw[:20])
        many = json.dumps({"messages": [{"role": "user", "content": ""}] * 200000}).encode()
        self.assertLess(len(many), 8 << 20)
        keys = json.dumps({"prompt": "a", "metadata": {f"key{i}": "" for i in range(80000)}}).encode()
        began = time.monotonic()
        status, answer, _ = self.server.call("/v1/completions", raw=keys)
        self.assertEqual(status, 400)
        self.assertIn("256 keys", answer["error"]["message"])
        self.assertLess(time.monotonic() - began, 20)
        status, answer, _ = self.server.call("/v1/chat/completions", raw=many)
        self.assertEqual((status, answer["error"]["param"]), (400, "messages"))
        # A million of them, and 100 MB, are more than a body may have: said, before it is read.
        for size in [36 << 20, 100 << 20]:
            status, answer, _ = self.server.call("/v1/chat/completions", raw=b" " * size)
            self.assertEqual((status, answer["error"]["type"]), (413, "invalid_request_error"))
        self.assertEqual(self.server.ask("/v1/completions", prompt="a", max_tokens=2, temperature=0)["usage"]["completion_tokens"], 2)

    def test_who_hangs_up_is_forgotten(self):
        before = self.server.metric("requests_cancelled_total")
        for body in [{"stream": True}, {}]:
            for _ in range(4):
                own = socket.create_connection(("127.0.0.1", self.server.port))
                text = json.dumps({"prompt": "a", "max_tokens": 480, "temperature": 0.5, "n": 4, **body}).encode()
                own.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + self.server.key.encode() +
                            b"\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
                if body:
                    own.recv(10)  # it has begun
                own.close()
        self.wait_for(lambda: self.server.metric("running") + self.server.metric("waiting") == 0, "nothing to do")
        self.assertGreaterEqual(self.server.metric("requests_cancelled_total"), before + 4)
        self.assertEqual(self.server.metric("kv_usage"), 0)

    def test_one_connection_serves_many_requests(self):
        own = self.server.connect()
        for _ in range(5):
            status, answer, _ = self.server.call("/v1/completions", {"prompt": "a", "max_tokens": 3, "temperature": 0}, connection=own)
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 3))
            own.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}), {"Authorization": f"Bearer {self.server.key}"})
            self.assertTrue(own.getresponse().read().endswith(b"data: [DONE]\n\n"))
        own.close()


class ServerLifeTest(RunTest):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "bytes"
        write_byte_model(self.model, hidden=384, layers=8, intermediate=1024)  # an answer takes a second or so

    def serve(self, *args):
        server = Server(self.model, *args)
        self.started.append(server.process)
        return server

    def test_sessions_decode_in_one_batch(self):
        server = self.serve()
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            asked = [pool.submit(server.ask, "/v1/completions", prompt="a", max_tokens=400, seed=i) for i in range(32)]
            self.wait_for(lambda: server.metric("running") > 24, "most of them to run")
            for one in asked:
                one.result()
        server.stop()

    def test_a_full_server_says_so_and_the_others_are_served(self):
        server = self.serve("--max-running", "2", "--max-waiting", "2")

        def ask(i):
            return server.call("/v1/completions", {"prompt": "a", "max_tokens": 400, "seed": i})
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            said = list(pool.map(ask, range(16)))
        full = [s for s in said if s[0] == 429]
        self.assertTrue(full)
        self.assertTrue(any(s[0] == 200 for s in said))
        self.assertEqual({s[0] for s in said}, {200, 429})
        self.assertEqual((full[0][1]["error"]["type"], full[0][2]["Retry-After"]), ("rate_limit_error", "1"))
        # Slow callers and strangers hold up nobody.
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for i, own in enumerate(slow):
            own.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" if i % 2 else b"x")
        start = time.monotonic()
        self.assertEqual(server.call("/v1/completions", {"prompt": "a", "max_tokens": 4})[0], 200)
        self.assertLess(time.monotonic() - start, 20)
        for own in slow:
            own.close()
        server.stop()

    def test_what_runs_is_ended_in_order(self):
        server = self.serve("--end-within", "20")
        worker = int(pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(server.call, "/v1/completions", {"prompt": "a", "max_tokens": 480, "seed": i}) for i in range(4)]
            self.wait_for(lambda: server.metric("requests_total") == 4, "four that were taken")  # one may be short
            server.process.send_signal(signal.SIGINT)
            self.wait_for(lambda: server.call("/v1/completions", {"prompt": "a"})[0] == 503, "no more")
            self.assertEqual({a.result()[0] for a in asked}, {200})
        self.assertEqual(server.process.communicate(timeout=PATIENCE)[0], "ended\n")
        self.assertEqual(server.process.returncode, 0)
        self.assertFalse(alive(worker))
        self.assertFalse(server.key_file.exists())

    def test_what_takes_too_long_at_the_end_gets_503(self):
        server = self.serve("--end-within", "0.01")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(server.call, "/v1/completions", {"prompt": "a", "max_tokens": 480, "n": 16, "seed": i}) for i in range(4)]
            self.wait_for(lambda: server.metric("running") > 0, "some that run")
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(503, {a.result()[0] for a in asked})
        server.process.communicate(timeout=PATIENCE)
        self.assertEqual(server.process.returncode, 0)

    def test_a_second_signal_ends_it_at_once_and_the_key_goes(self):
        server = self.serve("--end-within", "60")
        server.process.stdout.close()  # nobody reads what it prints
        own = server.connect()
        own.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 480, "n": 64}), {"Authorization": f"Bearer {server.key}"})
        self.wait_for(lambda: server.metric("running") > 0, "some that run")
        server.process.send_signal(signal.SIGINT)
        self.wait_for(lambda: server.call("/v1/completions", {"prompt": "a"})[0] == 503, "no more")
        self.assertTrue(server.key_file.exists())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(PATIENCE), -signal.SIGTERM)
        self.assertFalse(server.key_file.exists())

    def test_who_reads_what_it_prints_may_go(self):
        reads, writes = os.pipe()
        process = subprocess.Popen([TIDEPOOL, "serve", "--model", str(self.model), "--port", "0", "--threads", "1"], cwd=ROOT, stdout=writes,
                                   stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        os.close(writes)
        line = os.read(reads, 4096).decode()  # the first one
        os.close(reads)
        found = re.search(r":(\d+)/v1, .*; key: (\S+)", line)
        connect = lambda: http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)

        def healthy():
            own = connect()
            own.request("GET", "/healthz")
            return own.getresponse().status == 200

        self.wait_for(healthy, "that it serves")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0)
        self.assertFalse(pathlib.Path(found[2]).exists())

    def test_a_worker_that_dies_ends_it(self):
        server = self.serve()
        taken = self.command("serve", "--model", str(self.model), "--port", str(server.port))
        self.assertEqual(taken.returncode, 2, taken.stderr)
        self.assertIn("another program listens there", taken.stderr)
        worker = int(pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.call, "/v1/completions", {"prompt": "a", "max_tokens": 480, "n": 4})
            self.wait_for(lambda: server.metric("running") > 0, "one that runs")
            os.kill(worker, signal.SIGKILL)
            status, answer, _ = asked.result()
            self.assertEqual((status, answer["error"]["message"]), (503, "the model is not served any more"))  # and no log, no path
        _, err = server.process.communicate(timeout=PATIENCE)
        self.assertEqual(server.process.returncode, 3)
        self.assertIn("worker process", err)

    def test_who_waits_while_the_model_loads_hears_of_the_end_and_of_deadlines(self):
        for args, last, words in [(["--end-within", "0.2"], signal.SIGINT, (503, "this server is ending")), (["--request-timeout", "0.5"], None, (504, "not answered in time"))]:
            server = Server(self.model, *args, wait=False)
            self.started.append(server.process)
            worker = int(pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0])
            os.kill(worker, signal.SIGSTOP)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(server.call, "/v1/completions", {"prompt": "a"})
                time.sleep(0.3)
                if last:
                    server.process.send_signal(last)
                status, answer, _ = asked.result(timeout=PATIENCE)
            self.assertEqual(status, words[0])
            self.assertIn(words[1], answer["error"]["message"])
            os.kill(worker, signal.SIGCONT)
            server.stop()

    def test_what_a_model_cannot_do_is_said_at_the_start(self):
        run = self.dir / "a_run"
        (run / "journal").mkdir(parents=True)
        (run / "config.yaml").write_text("")
        write_byte_model(run / "final")
        (run / "final" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        server = Server(run)
        self.started.append(server.process)
        self.assertEqual(server.call("/v1/models")[1]["data"][0]["id"], "a_run")
        _, err = server.stop()
        self.assertIn("requests with tools are refused", err)

    def test_others_reach_it_over_tls_alone(self):
        bare = self.command("serve", "--model", str(self.model), "--host", "0.0.0.0", "--port", "0")
        self.assertEqual(bare.returncode, 2)
        self.assertIn("--tls-certificate", bare.stderr)
        key, certificate = self.dir / "key.pem", self.dir / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-out",
                        str(certificate), "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                       check=True, capture_output=True)
        key.chmod(0o644)
        open_key = self.command("serve", "--model", str(self.model), "--host", "0.0.0.0", "--tls-certificate", str(certificate), "--tls-key", str(key))
        self.assertEqual(open_key.returncode, 2)
        self.assertIn("--tls-key", open_key.stderr)
        key.chmod(0o600)
        mine = self.dir / "mine.key"
        mine.write_text("0123456789abcdef" * 4)
        mine.chmod(0o600)
        server = self.serve("--host", "0.0.0.0", "--tls-certificate", str(certificate), "--tls-key", str(key), "--key-file", str(mine))
        self.assertTrue(server.tls)
        trust = ssl.create_default_context(cafile=str(certificate))
        server.connect = lambda timeout=PATIENCE: http.client.HTTPSConnection("localhost", server.port, timeout=timeout, context=trust)
        whole = server.ask("/v1/completions", prompt="a", max_tokens=20, seed=1)
        pieces = server.events("/v1/completions", prompt="a", max_tokens=20, seed=1)
        self.assertEqual("".join(c["text"] for p in pieces[:-1] for c in p["choices"]), whole["choices"][0]["text"])
        with self.assertRaises(ssl.SSLError):
            own = http.client.HTTPSConnection("localhost", server.port, timeout=PATIENCE)  # that does not believe it
            own.request("GET", "/v1/models")
        server.stop()
        self.assertTrue(mine.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
