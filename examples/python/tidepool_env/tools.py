"""Environments in which a model calls tools.

    @tool
    def multiply(a: int, b: int) -> int:
        "The product of two numbers."
        return a * b

    @tool_environment(tools=[multiply], max_turns=4)
    def products(seed):
        rng = random.Random(seed)
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        answer = yield f"What is {a} times {b}?"
        return 1.0 if answer.strip() == str(a * b) else 0.0

Between a yield and what comes back lie as many turns as the model calls tools in: each call is answered, and what is no call is
the answer. docs/tools.md has the rules.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Sequence

from . import schema
from .definition import BadEpisode, Call, Environment, Episode, Message, Said, Step, _with_info
from .sandbox import Sandbox, SandboxBroken

MOST_CALLS = 16  # of one turn; further ones get one error together


# <|im_end|> and the like, of most models; <s>, <eos> and those of Gemma.
_SPECIAL = re.compile(r"<(?=[|\uff5c]|/?s>|(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>)")


def without_special_tokens(text: str) -> str:
    """With a space in what a tokenizer would take for a special token: text is tokenised with those recognised."""
    return _SPECIAL.sub("< ", text)


class ToolBroken(Exception):
    """A tool is out of order through no fault of the policy: the turn is tried again, and the episode then dropped as env_infra."""


@dataclass
class Tool:
    """call takes the arguments by their names and returns a text, or what is written as JSON. Whatever else it raises than
    BadEpisode, ToolBroken and SandboxBroken, the model reads as an error."""

    name: str
    description: str
    parameters: Dict[str, Any]  # JSON schema of an object
    call: Callable[..., Any]
    untrusted: bool = False  # it returns others' words: without_special_tokens

    def described(self) -> Dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": self.parameters}}

    def answer(self, arguments: Dict[str, Any]) -> str:
        try:
            wrong = schema.problem(arguments, self.parameters)
            made = f"error: {self.name}: {wrong}" if wrong else self.call(**arguments)
            text = made if isinstance(made, str) else json.dumps(made)
        except (BadEpisode, ToolBroken, SandboxBroken):
            raise
        except Exception as problem:
            text = f"error: {self.name}: {type(problem).__name__}: {problem}"
        return without_special_tokens(text) if self.untrusted else text


def tool(function: Callable[..., Any]) -> Tool:
    """A function whose arguments have types. Its name, its docstring and its types are what the model is told."""
    name = function.__name__
    return Tool(name, inspect.cleandoc(function.__doc__ or ""), schema.of_function(function, name), function)


def shell(box: Sandbox, name: str = "shell", special_tokens: bool = False) -> Tool:
    """A line for /bin/sh in a sandbox. special_tokens: what it prints may have them."""

    def run(command: str) -> str:
        made = box.run(command)
        said = made.output + ("\n(there is more, which is left out)" if made.cut else "")
        if made.killed:
            return f"{said}\nerror: it was ended: {made.killed}".lstrip()
        return f"{said}\nexit status {made.status}".lstrip() if made.status != 0 else said or "(no output)"

    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}
    return Tool(name, "Runs a line in /bin/sh and returns what it prints.", parameters, run, untrusted=not special_tokens)


@dataclass
class Task:
    """What an episode begins with, where it is more than a text."""

    text: str
    tools: Sequence[Tool] = ()  # of this episode, beside those of the environment
    system: str = ""


@dataclass
class _Rules:
    tools: Sequence[Tool]
    max_turns: int
    result_chars: int
    turn_seconds: float
    announce: bool


def call(name: str, **arguments: Any) -> Said:
    """What a player may say, for `actions` and tests: a call."""
    written = f'<tool_call>{json.dumps({"name": name, "arguments": arguments})}</tool_call>'
    return Said(written, "", [Call(name, arguments)])


class _WithTools(Episode):
    def __init__(self, function: Callable[..., Any], rules: _Rules) -> None:
        self._function, self._rules = function, rules
        self._takes_held_out = "held_out" in inspect.signature(function).parameters
        self._running: Any = None
        self._tools: Dict[str, Tool] = {}
        self._turns = 0

    def reset(self, seed: int, held_out: bool) -> Step:
        self._running = self._function(seed, held_out=held_out) if self._takes_held_out else self._function(seed)
        task = next(self._running)
        task = task if isinstance(task, Task) else Task(task)
        if not isinstance(task.text, str) or not task.text:
            raise TypeError(f"the task is {task.text!r}; expected a text")
        for one in (*self._rules.tools, *task.tools):
            if one.name in self._tools:
                raise ValueError(f"two tools have the name {one.name}")
            self._tools[one.name] = one
        said = [Message("system", task.system)] if task.system else []
        tools = self.offered() if self._rules.announce else []
        return Step(messages=[*said, Message("user", task.text)], tools=json.dumps(tools) if tools else "")

    def offered(self) -> List[Dict[str, Any]]:
        return [one.described() for one in self._tools.values()]

    def step(self, action: str) -> Step:
        said = action if isinstance(action, Said) else Said(action)
        self._turns += 1
        if not said.calls and not said.broken:
            return self._answered(said.words)
        until, results = time.monotonic() + self._rules.turn_seconds, []
        for one in said.calls[:MOST_CALLS]:
            in_time = time.monotonic() < until
            results.append(self._result(one) if in_time else Message("tool", "error: this turn's time is over", self._known(one)))
        if len(said.calls) > MOST_CALLS:
            results.append(Message("tool", f"error: a turn may have {MOST_CALLS} calls; the last {len(said.calls) - MOST_CALLS} are not answered"))
        if said.broken:
            results.append(Message("tool", self._cut(f"error: this is no call: {said.broken}")))
        if self._turns < self._rules.max_turns:
            return Step(messages=results)
        step = self._answered("")  # it has had its turns
        step.truncated, step.terminated = not step.terminated, step.terminated
        return step

    def _cut(self, text: str) -> str:
        most = self._rules.result_chars
        text = text.encode(errors="replace").decode()  # a lone surrogate cannot be sent
        return text if len(text) <= most else text[:most] + f"... ({len(text) - most} characters more)"

    def _known(self, one: Call) -> str:
        return one.name if one.name in self._tools else ""

    def _result(self, one: Call) -> Message:
        found = self._tools.get(one.name)
        if found is None:
            return Message("tool", self._cut(f"error: there is no tool {one.name!r}; there is {', '.join(self._tools) or 'none'}"))
        return Message("tool", self._cut(found.answer(one.arguments)) or "(no output)", one.name)

    def _answered(self, answer: str) -> Step:
        try:
            said = self._running.send(answer)
        except StopIteration as end:
            reward, info = end.value if isinstance(end.value, tuple) else (end.value, None)
            return _with_info(Step("", 0.0 if reward is None else reward, terminated=True), info)
        if not isinstance(said, str) or not said:
            raise TypeError(f"what is said to an answer is {said!r}; expected a text, or return REWARD")
        return Step(messages=[Message("user", said)])

    def close(self) -> None:
        if self._running is not None:
            self._running.close()


class _ToolEnvironment(Environment):
    rules: _Rules

    def open(self) -> Episode:
        return _WithTools(self.made_of, self.rules)


def tool_environment(*, tools: Iterable[Tool] = (), max_turns: int = 8, result_chars: int = 4000, turn_seconds: float = 25, announce: bool = True,
                     sandboxed: bool = False, loss: str = "replay", name: str = "", instances: int = 0, characters: str = "",
                     actions: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Environment]:
    """Makes an environment of a generator function of a seed: it yields a task (a text, or Task), is sent the answer, and returns
    the reward. At the last turn an answer that is not there is "".

    tools         of every episode; Task(..., tools=...) adds those of one, as a shell in a sandbox of its own
    result_chars  of one result; the rest is left out, and the model is told so
    turn_seconds  of all calls of a turn: when they are over, what is left of them gets an error. The call that is running then is not
                  ended, so this and the longest call together stay below environment.step_timeout_s (60)
    announce      the model is told of its tools, in the form of its chat template; False: it was taught them
    sandboxed     its tools need a sandbox: where there is none, it is refused before it serves
    others        of tidepool_env.environment; loss="pinned" where what a tool says follows from more than seed and calls
    """
    rules = _Rules(tuple(tools), max_turns, result_chars, turn_seconds, announce)

    def made(of: Callable[..., Any]) -> Environment:
        environment = _ToolEnvironment(of, name or of.__name__, max_turns, loss, instances, characters, tuple(actions), conversation=True, sandboxed=sandboxed)
        environment.rules = rules
        return environment

    return made
