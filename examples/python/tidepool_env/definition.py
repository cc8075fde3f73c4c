"""What an environment is: a class or a generator function, and what is said of it.

An instance plays one episode, in one thread. Its rules are Gymnasium's: reset(seed) gives the first observation,
step(action) gives (observation, reward, terminated, truncated, info).
"""

from __future__ import annotations

import inspect
import math
import numbers
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union, overload

# Of one observation; what is longer ends the episode as bad data. Tidepool takes 4 MiB for a whole answer.
MOST_BYTES = 3 << 20


class BadEpisode(Exception):
    """This episode cannot be played, now or later: it is dropped as data_invalid and not tried again.

    Any other exception is a failure of the environment: the turn is tried again, and the episode then dropped as
    env_infra. Neither is a reward of 0.
    """


@dataclass
class Message:
    """Of a conversation; name: of the tool whose answer it is."""

    role: str  # system, user or tool
    content: str
    name: str = ""


@dataclass
class Call:
    """Of a tool, as a policy wrote it: there may be no such tool."""

    name: str
    arguments: Dict[str, Any]


class Said(str):
    """What a policy said, whatever it said; in a conversation with its calls, which Tidepool has read in the form of the model's
    chat template."""

    words: str  # without its calls
    calls: Tuple[Call, ...]
    broken: str  # the first thing that looks like a call and cannot be read as one

    def __new__(cls, text: str, words: Optional[str] = None, calls: Iterable[Call] = (), broken: str = "") -> "Said":
        said = super().__new__(cls, text)
        said.words, said.calls, said.broken = text if words is None else words, tuple(calls), broken
        return said


@dataclass
class Step:
    """What an environment says after an action; what a step may return in place of the tuple."""

    observation: str = ""
    reward: float = 0.0  # of this step; an episode's is the sum
    terminated: bool = False
    truncated: bool = False
    solved: Optional[bool] = None  # what an evaluation counts; None: it terminated with a reward above 0
    state: str = ""  # equal wherever what can still happen is the same (algorithm: {name: gigpo})
    messages: List[Message] = field(default_factory=list)  # in place of the observation, of an environment that says messages
    tools: str = ""  # with the first of them: the JSON list that a chat template takes

    def checked(self, first: bool = False) -> "Step":
        """Itself, of a reset if it is the first. TypeError: it is no step at all; BadEpisode: it breaks the rules."""
        if not isinstance(self.observation, str):
            raise TypeError(f"an observation is {self.observation!r}; expected a text")
        if not isinstance(self.reward, numbers.Real):
            raise TypeError(f"a reward is {self.reward!r}; expected a number")
        if not math.isfinite(self.reward):
            raise BadEpisode(f"a reward is {self.reward}; expected a finite number")
        for message in self.messages:
            if message.role not in ("system", "user", "tool") or not isinstance(message.content, str):
                raise TypeError(f"a message is {message!r}; expected a text of system, user or tool")
        try:
            said = "".join(message.content + message.name for message in self.messages)
            size = sum(len(text.encode()) for text in (self.observation, self.state, self.tools, said))
        except UnicodeEncodeError as problem:
            raise BadEpisode(f"an observation is no UTF-8: {problem}") from None
        if size > MOST_BYTES:
            raise BadEpisode(f"an observation has {size} bytes, more than {MOST_BYTES}")
        if first and self.over:
            raise BadEpisode("the episode is over before it has begun")
        if first and self.reward != 0:
            raise BadEpisode(f"a reset gives the reward {self.reward}, and nothing is done yet that could earn it")
        if not self.observation and not self.messages and not self.over:
            raise BadEpisode("an observation is empty, and the episode is not over")
        return self

    @property
    def over(self) -> bool:
        return bool(self.terminated or self.truncated)

    @property
    def is_solved(self) -> bool:
        return bool(self.terminated and self.reward > 0) if self.solved is None else bool(self.solved)


def _with_info(step: Step, info: Any) -> Step:
    if info:
        step.solved = info.get("solved", step.solved)
        step.state = str(info.get("state", step.state))
    return step


class Episode:
    """One instance: what a stream of the service plays."""

    def reset(self, seed: int, held_out: bool) -> Step:
        raise NotImplementedError

    def step(self, action: str) -> Step:
        raise NotImplementedError

    def close(self) -> None:
        """Whatever happened, exactly once."""

    def offered(self) -> List[Dict[str, Any]]:
        """Its tools, where a player is not told of them (Step.tools)."""
        return []


class _OfClass(Episode):
    def __init__(self, made: Any) -> None:
        self._made = made
        self._takes_held_out = "held_out" in inspect.signature(made.reset).parameters

    def reset(self, seed: int, held_out: bool) -> Step:
        said = self._made.reset(seed=seed, held_out=held_out) if self._takes_held_out else self._made.reset(seed=seed)
        observation, info = said if isinstance(said, tuple) else (said, None)
        return _with_info(Step(observation), info)

    def step(self, action: str) -> Step:
        said = self._made.step(action)
        if isinstance(said, Step):
            return said
        if not isinstance(said, tuple) or not 3 <= len(said) <= 5:
            raise TypeError(f"step returned {said!r}; expected (observation, reward, terminated, truncated, info) or a Step")
        observation, reward, terminated, truncated, info = (*said, False, None)[:5] if len(said) < 5 else said
        return _with_info(Step(observation, reward, bool(terminated), bool(truncated)), info)

    def close(self) -> None:
        close = getattr(self._made, "close", None)
        if close is not None:
            close()


class _OfGenerator(Episode):
    def __init__(self, function: Callable[..., Any], takes_held_out: bool) -> None:
        self._function = function
        self._takes_held_out = takes_held_out
        self._running: Any = None

    def reset(self, seed: int, held_out: bool) -> Step:
        self._running = self._function(seed, held_out=held_out) if self._takes_held_out else self._function(seed)
        return self._next(lambda: next(self._running))

    def step(self, action: str) -> Step:
        return self._next(lambda: self._running.send(action))

    @staticmethod
    def _next(go: Callable[[], Any]) -> Step:
        try:
            said, over = go(), False
        except StopIteration as end:
            said, over = end.value, True
        if isinstance(said, Step):
            said.terminated = said.terminated or (over and not said.truncated)
            return said
        if over:  # return reward, or return reward, info
            reward, info = said if isinstance(said, tuple) else (said, None)
            return _with_info(Step("", 0.0 if reward is None else reward, terminated=True), info)
        observation, *more = said if isinstance(said, tuple) else (said,)
        return _with_info(Step(observation, *more[:1]), more[1] if len(more) > 1 else None)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()


@dataclass
class Environment:
    """A description and how an instance is made; what @environment turns a class or a function into."""

    made_of: Callable[..., Any]
    name: str
    max_turns: int
    loss: str = "replay"
    instances: int = 0
    characters: str = ""
    actions: Iterable[str] = ()
    conversation: bool = False  # it says messages
    sandboxed: bool = False  # it has tools that run in a sandbox alone

    def __post_init__(self) -> None:
        if self.loss not in ("replay", "pinned"):
            raise ValueError(f"loss is {self.loss!r}; expected 'replay' or 'pinned'")
        if self.max_turns < 1 or self.instances < 0:
            raise ValueError("max_turns is 1 or more, instances 0 (any number) or more")
        self._is_class = inspect.isclass(self.made_of)
        if not self._is_class and not inspect.isgeneratorfunction(self.made_of):
            raise TypeError(f"{self.name} is neither a class with reset and step nor a generator function")

    def open(self) -> Episode:
        if self._is_class:
            return _OfClass(self.made_of())
        return _OfGenerator(self.made_of, "held_out" in inspect.signature(self.made_of).parameters)


@overload
def environment(made_of: Callable[..., Any]) -> Environment: ...
@overload
def environment(*, max_turns: int = ..., loss: str = ..., name: str = ..., instances: int = ..., characters: str = ...,
                actions: Iterable[str] = ...) -> Callable[[Callable[..., Any]], Environment]: ...


def environment(made_of: Optional[Callable[..., Any]] = None, *, max_turns: int = 32, loss: str = "replay", name: str = "",
                instances: int = 0, characters: str = "",
                actions: Iterable[str] = ()) -> Union[Environment, Callable[[Callable[..., Any]], Environment]]:
    """Makes an environment of a class with reset(seed) and step(action), or of a generator function of a seed.

    max_turns   an episode is cut here
    loss        "replay": an episode follows from its seed and its actions, so one whose instance is lost is played again
                in a fresh one; "pinned": it cannot be had again, and is dropped as env_infra
    instances   that may be open at once; 0: as many as are asked for
    characters  all that it says and that a good player says: a model that is made for it needs them
    actions     a few that a player may take, for `tidepool-env check`
    """

    def made(of: Callable[..., Any]) -> Environment:
        return Environment(of, name or getattr(of, "__name__", "environment"), max_turns, loss, instances, characters, tuple(actions))

    return made if made_of is None else made(made_of)
