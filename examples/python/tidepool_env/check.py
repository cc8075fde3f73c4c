"""The tests that an environment has to pass, in this process and without a model."""

from __future__ import annotations

import json
import random
import threading
from typing import Any, Callable, Dict, List, Tuple, TypeVar

from . import schema
from .definition import BadEpisode, Call, Environment, Said, Step
from .sandbox import SandboxRefused, require

ODD = ("", "\n", "?", "0", "-1", "yes", "\N{SUPERSCRIPT TWO}", "\N{SNOWMAN}", "9" * 5000, "\x00")

ODD_CALLS = (Said("<tool_call>{", "<tool_call>{", (), "<tool_call>{"), Said("calls", "", [Call("no_such_tool", {}), Call("", {"a": None})]))

# Of a list of tools, as Tidepool takes it.
MOST_KEYS, MOST_DEPTH = 256, 127

Played = List[Step]
Came = TypeVar("Came")


class Fault(Exception):
    pass


class Hangs(Fault):
    pass


def _actions(environment: Environment, rng: random.Random, odd: bool) -> Callable[[], str]:
    known = tuple(environment.actions)
    strange = (*ODD, *ODD_CALLS) if environment.conversation else ODD
    return lambda: rng.choice(strange if odd or not known else known)


def play(environment: Environment, seed: int, held_out: bool, actions: List[str]) -> Played:
    """What an instance says to these actions, up to its end."""
    episode = environment.open()
    try:
        said = [episode.reset(seed, held_out).checked(first=True)]
        for action in actions:
            if said[-1].over:
                break
            said.append(episode.step(action).checked())
        return said
    finally:
        episode.close()


def _words(step: Step) -> str:
    return step.observation + step.tools + "".join(message.content for message in step.messages)


def _drawn(environment: Environment, seed: int, odd: bool) -> List[str]:
    draw = _actions(environment, random.Random(seed), odd)
    return [draw() for _ in range(environment.max_turns)]


def _within_bounds(value: Any, depth: int = 0) -> None:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if len(inside) > MOST_KEYS and isinstance(value, dict):
        raise Fault(f"the tools have an object of {len(inside)} keys; Tidepool takes {MOST_KEYS}")
    if isinstance(value, (dict, list)) and depth >= MOST_DEPTH:
        raise Fault(f"the tools are nested deeper than {MOST_DEPTH}, which is what Tidepool takes")
    for one in inside:
        _within_bounds(one, depth + 1)


def offered(environment: Environment) -> List[Dict[str, Any]]:
    """Functions that an episode offers as tools. Fault: Tidepool would not take them."""
    episode = environment.open()
    try:
        first = episode.reset(0, False).checked(first=True)
        tools = json.loads(first.tools) if first.tools else episode.offered()
    finally:
        episode.close()
    if not isinstance(tools, list):
        raise Fault(f"the tools are {str(tools)[:80]}; expected a JSON list")
    _within_bounds(tools)
    for one in tools:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Fault(f"{str(one)[:80]} is no tool; expected {{'type': 'function', 'function': {{'name': ...}}}}")
    return [one["function"] for one in tools]


def _odd_arguments(parameters: Any) -> List[Dict[str, Any]]:
    right = schema.example(parameters)
    wrong = {name: [{"odd": None}] for name in (right if isinstance(right, dict) else {"x": 0})}
    return [right if isinstance(right, dict) else {}, {}, wrong, {name: None for name in wrong}]


def play_beside_another(environment: Environment, seed: int, actions: List[str]) -> Played:
    """The same, while another instance plays."""
    ours = environment.open()
    try:
        other = environment.open()
        try:
            said = [ours.reset(seed, False).checked(first=True)]
            theirs = other.reset(seed + 1, False)
            for action in actions:
                if said[-1].over:
                    break
                if not theirs.over:
                    theirs = other.step(action)
                said.append(ours.step(action).checked())
            return said
        finally:
            other.close()
    finally:
        ours.close()


def within(limit_s: float, what: str, go: Callable[[], Came]) -> Came:
    """What go returns; it is left behind in its thread where it does not."""
    came: List[Any] = []
    failed: List[BaseException] = []

    def run() -> None:
        try:
            came.append(go())
        except BaseException as problem:  # an exit, too, would end the check
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if came:
        returned: Came = came[0]
        return returned
    if not failed:
        raise Hangs(f"{what}: is not over after {limit_s:g} s (--timeout)")
    if isinstance(failed[0], (BadEpisode, Fault)):
        raise Fault(f"{what}: {failed[0]}")
    raise Fault(f"{what}: {type(failed[0]).__name__}: {failed[0]}") from failed[0]


class Tests:
    """Each test with what is wrong; empty: it is passed. Ends with the first episode that takes longer than limit_s."""

    def __init__(self, limit_s: float) -> None:
        self.out: List[Tuple[str, str]] = []
        self._limit_s = limit_s
        self._hangs = False

    def guarded(self, what: str, go: Callable[[], Came]) -> Came:
        return within(self._limit_s, what, go)

    def test(self, name: str, go: Callable[[], None]) -> None:
        if self._hangs:
            return
        try:
            go()
            self.out.append((name, ""))
        except Fault as fault:
            self._hangs = isinstance(fault, Hangs)
            self.out.append((name, str(fault)))


def check(environment: Environment, seeds: int = 8, limit_s: float = 60) -> List[Tuple[str, str]]:
    """What Tests says."""
    tests = Tests(limit_s)
    test, _guarded, out = tests.test, tests.guarded, tests.out

    def begins() -> None:
        for seed in range(seeds):
            for held_out in (False, True):
                first = [_guarded(f"reset({seed})", lambda: play(environment, seed, held_out, []))[0] for _ in range(2)]
                if first[0] != first[1]:
                    raise Fault(f"reset({seed}) says {_words(first[0])[:80]!r}, and then {_words(first[1])[:80]!r}; what is said "
                                "first has to follow from the seed alone")

    def plays(odd: bool) -> None:
        for seed in range(seeds):
            _guarded(f"an episode of seed {seed}", lambda: play(environment, seed, False, _drawn(environment, seed, odd)))

    def repeats() -> None:
        for seed in range(seeds):
            actions = _drawn(environment, seed, odd=seed % 2 == 1)
            once, again = (_guarded(f"an episode of seed {seed}", lambda: play(environment, seed, False, actions)) for _ in range(2))
            for turn, (a, b) in enumerate(zip(once, again)):
                if a != b:
                    raise Fault(f"seed {seed}, turn {turn}: said {a!r}, and then {b!r} to the same actions; declare loss='pinned' if that "
                                "is its nature")
            if len(once) != len(again):
                raise Fault(f"seed {seed}: {len(once) - 1} turns, and then {len(again) - 1}")

    def stands_alone() -> None:
        for seed in range(seeds):
            actions = _drawn(environment, seed, odd=False)
            alone = _guarded(f"an episode of seed {seed}", lambda: play(environment, seed, False, actions))
            said = _guarded(f"seed {seed}, two instances at once", lambda: play_beside_another(environment, seed, actions))
            if said != alone:
                raise Fault(f"seed {seed}: an instance plays otherwise while another one is open; instances may share nothing")

    def says_what_it_declares() -> None:
        for seed in range(seeds):
            said = _guarded(f"an episode of seed {seed}", lambda: play(environment, seed, False, _drawn(environment, seed, odd=False)))
            for step in said:
                lacks = sorted(set(_words(step)) - set(environment.characters))
                if lacks:
                    raise Fault(f"seed {seed}: it says {''.join(lacks)!r}, which its characters do not have")

    def answers_calls() -> None:
        for function in _guarded("reset(0)", lambda: offered(environment)):
            for arguments in _guarded(f"the schema of {function['name']}", lambda: _odd_arguments(function.get("parameters"))):
                called = Call(function["name"], arguments)
                _guarded(f"a call of {function['name']} with {json.dumps(arguments)[:80]}", lambda: play(environment, 0, False, [Said("", "", [called])]))

    def has_a_sandbox() -> None:
        try:
            require()
        except SandboxRefused as why:
            raise Fault(str(why)) from None

    if environment.sandboxed:
        test("has the sandbox that its tools run in", has_a_sandbox)
        if out[-1][1]:
            return out
    test("begins with the same words for the same seed", begins)
    test("plays whole episodes: UTF-8, finite rewards, a text to read unless it is over", lambda: plays(odd=False))
    test("takes whatever a policy says", lambda: plays(odd=True))
    if environment.conversation:
        what = "answers calls of its tools: right, empty and of wrong types"
        try:
            any_tools = bool(_guarded("reset(0)", lambda: offered(environment)))
        except Fault:  # which the test says
            any_tools = True
        if any_tools:
            test(what, answers_calls)
        else:
            out.append((f"{what} (not tried: it offers none)", ""))
    if environment.loss == "replay":
        test("follows from its seed and its actions (loss: replay)", repeats)
        if environment.instances == 1:
            out.append(("shares nothing between instances (not tried: instances=1)", ""))
        else:
            test("shares nothing between instances", stands_alone)
    if environment.characters:
        test("says the characters that it declares", says_what_it_declares)
    return out
