#!/usr/bin/env python3
"""An unmodified `openai` client trains a run over its endpoint (rollout.endpoint): chats of several turns, tools, streams, responses, sessions beside
each other. What was trained is what the client saw.

  .deps/agent-venv/bin/python tests/interop/agent_client.py --build build"""
import argparse
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runs"))
from byte_model import write_byte_model  # noqa: E402
from openai import AsyncOpenAI, BadRequestError, ConflictError, OpenAI  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]


def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Session:
    def __init__(self, given):
        self.__dict__.update(given)
        self.ids = []  # behind the prompt

    def heard(self, answer):
        choice = answer.choices[0]
        before = answer.prompt_token_ids
        self.prompt = getattr(self, "prompt", before)
        assert before[:len(self.prompt) + len(self.ids)] == self.prompt + self.ids, "the prompt does not begin with what was said"
        self.ids = before[len(self.prompt):] + choice.token_ids
        return choice.message

    def reward(self, x):
        post(self.base_url[:-3] + "/reward", self.key, {"reward": x})


async def chat(session):
    """Two turns with a tool that the model may call; the history is what the client's own types make of it."""
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.key)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": session.row["prompt"]}]
    for turn in range(2):
        answer = await client.chat.completions.create(model=session.model, messages=messages, tools=TOOLS, extra_body={"return_token_ids": True})
        messages.append(session.heard(answer).model_dump(exclude_none=True))
        messages.append({"role": "user", "content": f"again {turn}"})
    session.reward(len(messages[-2].get("content") or ""))
    await client.close()


def forms(sessions):
    """One session each: a stream, /v1/responses, what is refused."""
    one, two, three = sessions
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": one.row["prompt"]}]
    client = OpenAI(base_url=one.base_url, api_key=one.key)
    said = "".join(piece.choices[0].delta.content or "" for piece in client.chat.completions.create(model=one.model, messages=messages, tools=TOOLS, stream=True))
    more = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
    client.chat.completions.create(model=one.model, messages=more, tools=TOOLS)
    try:
        client.chat.completions.create(model=one.model, messages=more[1:], tools=TOOLS)
        raise AssertionError("another history was taken")
    except ConflictError as error:
        assert "messages[0]" in str(error), error
    one.reward(1)
    client = OpenAI(base_url=two.base_url, api_key=two.key)
    assert [m.id for m in client.models.list()] == [two.model]
    flat = [{"type": "function", "name": "add", "description": "Adds.", "parameters": TOOLS[0]["function"]["parameters"]}]
    answer = client.responses.create(model=two.model, instructions="Add.", input=two.row["prompt"], tools=flat, store=False)
    assert answer.status in ("completed", "incomplete"), answer
    two.reward(0)
    client = OpenAI(base_url=three.base_url, api_key=three.key)
    try:
        client.chat.completions.create(model=three.model, messages=messages, tools=TOOLS, temperature=0.1)
        raise AssertionError("another temperature was taken")
    except BadRequestError as error:
        assert error.param == "temperature", error
    client.chat.completions.create(model=three.model, messages=messages, tools=TOOLS)
    three.reward(0.5)


def take(run, endpoint, many):
    """So many sessions, or fewer where no more are to be had; none: the run has ended."""
    sessions = []
    while len(sessions) < many and run.poll() is None:
        try:
            sessions.append(Session(post(endpoint["url"] + "/sessions", endpoint["key"], {})))
        except urllib.error.HTTPError as error:
            assert error.code == 429, error
            if sessions:
                break
        except OSError:
            time.sleep(0.1)
    return sessions


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.environ.get("TIDEPOOL_BUILD_DIR", "build"))
    binary = str(pathlib.Path(parser.parse_args().build, "bin", "tidepool").resolve())
    with tempfile.TemporaryDirectory(prefix="tidepool-agents-") as folder:
        model, out = pathlib.Path(folder, "bytes"), pathlib.Path(folder, "run")
        write_byte_model(model, positions=1024)
        run = subprocess.Popen([binary, "train", "configs/test/agents.yaml", "--run-dir", str(out), f"model={{path: {model}, dtype: float32}}",
                                "data={task: products, factors: [2, 9], held_out: 8, max_prompt_tokens: 480}", "environment.max_turn_tokens=8",
                                "rollout.max_new_tokens=160", "rollout.group_size=8", "train={groups_per_step: 4, steps: 3, micro_batch_tokens: 1024}",
                                "observe.samples_per_step=32"], cwd=ROOT)
        try:
            while not (out / "endpoint.json").exists() and run.poll() is None:
                time.sleep(0.05)
            endpoint = json.loads((out / "endpoint.json").read_text())
            forms(take(run, endpoint, 3))
            seen = {}
            while sessions := take(run, endpoint, 32):
                async def all_of(them):
                    await asyncio.gather(*(chat(s) for s in them))
                asyncio.run(all_of(sessions))
                seen.update({tuple(s.ids): s for s in sessions})
            assert run.wait(120) == 0
        finally:
            if run.poll() is None:
                run.kill()
        rows = [json.loads(line) for path in sorted((out / "samples").iterdir()) for line in path.read_text().splitlines()]
        found = sum(tuple(row["ids"]) in seen for row in rows)
        assert len(rows) == 96 and found == 93, (len(rows), found)  # all but those of `forms`
        subprocess.run([binary, "check", str(out)], check=True)
    print("agent_client: 96 episodes were trained; the tokens of 93 chats are those that the openai client saw")


if __name__ == "__main__":
    main()
