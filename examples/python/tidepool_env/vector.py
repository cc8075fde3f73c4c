"""Environments of numbers, for small policies (Tidepool's model.policy): many instances stepped together.

Their rules are Gymnasium's: reset(seed) gives the first observation, step(action) gives (observation, reward, terminated,
truncated, info). A choice is an int from 0 on, an action of numbers a list of floats, which the environment itself brings into
their bounds. An instance that ends begins its next episode at once, with a seed that it is given: reset is called for that.
"""

from __future__ import annotations

import inspect
import struct
import sys
from array import array
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple, Union, overload

from .definition import BadEpisode

TERMINATED, TRUNCATED = 1, 2

# What a stream's instances say to a step: observations, rewards, flags, last observations of episodes that ended.
Moved = Tuple[bytes, bytes, bytes, bytes]


def _row(observation: Any, size: int) -> bytes:
    """float32, little-endian."""
    if hasattr(observation, "astype"):  # of numpy, without asking for it
        row: bytes = observation.astype("<f4", copy=False).tobytes()
    else:
        numbers = array("f", observation)
        if sys.byteorder == "big":
            numbers.byteswap()
        row = numbers.tobytes()
    if len(row) != 4 * size:
        raise BadEpisode(f"an observation has {len(row) // 4} numbers; expected {size}")
    return row


class Instances:
    """Those of one stream. `which` are the ones that move, with a seed and an action each."""

    def reset(self, which: Sequence[int], seeds: Sequence[int]) -> bytes:
        raise NotImplementedError

    def step(self, which: Sequence[int], seeds: Sequence[int], actions: Sequence[Any]) -> Moved:
        raise NotImplementedError

    def close(self) -> None:
        """Whatever happened, exactly once."""


def _first(said: Any) -> Any:
    return said[0] if isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], dict) else said


class _Singles(Instances):
    """An object an instance."""

    def __init__(self, made_of: Callable[[], Any], count: int, size: int) -> None:
        self._made = [made_of() for _ in range(count)]
        self._size = size

    def reset(self, which: Sequence[int], seeds: Sequence[int]) -> bytes:
        return b"".join([_row(_first(self._made[i].reset(seed=seed)), self._size) for i, seed in zip(which, seeds)])

    def step(self, which: Sequence[int], seeds: Sequence[int], actions: Sequence[Any]) -> Moved:
        made, size = self._made, self._size
        observations, finals, rewards, flags = [], [], [], bytearray()
        for i, seed, action in zip(which, seeds, actions):
            said = made[i].step(action)
            if not isinstance(said, tuple) or not 3 <= len(said) <= 5:
                raise TypeError(f"step returned {said!r}; expected (observation, reward, terminated, truncated, info)")
            row = _row(said[0], size)
            rewards.append(float(said[1]))
            flag = TERMINATED if said[2] else TRUNCATED if len(said) > 3 and said[3] else 0
            flags.append(flag)
            if flag:
                finals.append(row)
                row = _row(_first(made[i].reset(seed=seed)), size)
            observations.append(row)
        return b"".join(observations), struct.pack(f"<{len(rewards)}d", *rewards), bytes(flags), b"".join(finals)

    def close(self) -> None:
        for one in self._made:
            close = getattr(one, "close", None)
            if close is not None:
                close()


class _Batch(Instances):
    """One object for all: reset(which, seeds) gives a row each, step(which, actions) gives rows, rewards, terminated and
    truncated, a list each."""

    def __init__(self, made_of: Callable[[int], Any], count: int, size: int) -> None:
        self._made = made_of(count)
        self._size = size

    def _rows(self, observations: Any, count: int) -> List[bytes]:
        if len(observations) != count:
            raise BadEpisode(f"{len(observations)} observations for {count} instances")
        return [_row(observation, self._size) for observation in observations]

    def reset(self, which: Sequence[int], seeds: Sequence[int]) -> bytes:
        return b"".join(self._rows(self._made.reset(which, seeds), len(which)))

    def step(self, which: Sequence[int], seeds: Sequence[int], actions: Sequence[Any]) -> Moved:
        observations, rewards, terminated, truncated = self._made.step(which, actions)
        rows = self._rows(observations, len(which))
        if not len(rewards) == len(terminated) == len(truncated) == len(rows):
            raise BadEpisode(f"{len(rewards)} rewards, {len(terminated)} and {len(truncated)} ends for {len(rows)} instances")
        flags = bytes([TERMINATED if t else TRUNCATED if u else 0 for t, u in zip(terminated, truncated)])
        ended = [k for k, flag in enumerate(flags) if flag]
        finals = [rows[k] for k in ended]
        if ended:
            fresh = self._rows(self._made.reset([which[k] for k in ended], [seeds[k] for k in ended]), len(ended))
            for k, row in zip(ended, fresh):
                rows[k] = row
        return b"".join(rows), struct.pack(f"<{len(rows)}d", *map(float, rewards)), flags, b"".join(finals)

    def close(self) -> None:
        close = getattr(self._made, "close", None)
        if close is not None:
            close()


@dataclass
class VectorEnvironment:
    """A description and how instances are made; what @vector turns a class into."""

    made_of: Callable[..., Any]
    name: str
    observation_size: int
    actions: int
    continuous: bool
    max_episode_steps: int
    solved_return: float = 0.0
    loss: str = "replay"
    batch: bool = False
    action_low: float = 0.0  # of each number of an action; equal: no bounds that are known
    action_high: float = 0.0
    instances: ClassVar[int] = 0  # as many as the job asks for
    sandboxed: ClassVar[bool] = False  # it calls no tools

    def __post_init__(self) -> None:
        if self.loss not in ("replay", "pinned"):
            raise ValueError(f"loss is {self.loss!r}; expected 'replay' or 'pinned'")
        if not 1 <= self.observation_size <= 65536 or not 1 <= self.actions <= 4096:
            raise ValueError(f"{self.name}: {self.observation_size} numbers are seen, and actions are {self.actions}; expected 1 to 65536, and 1 "
                             "to 4096")
        if not -1e6 <= self.action_low <= self.action_high <= 1e6:
            raise ValueError(f"{self.name}: actions are from {self.action_low} to {self.action_high}; expected two numbers of at most a million, in this order")
        if self.max_episode_steps < 1:
            raise ValueError("max_episode_steps is 1 or more")

    def open(self, count: int) -> Instances:
        made = _Batch if self.batch else _Singles
        return made(self.made_of, count, self.observation_size)

    @property
    def action_size(self) -> int:
        return self.actions if self.continuous else 1

    def read_actions(self, wire: bytes) -> Sequence[Any]:
        """One for each that moves: an int, or a tuple of floats."""
        if not self.continuous:
            return struct.unpack(f"<{len(wire) // 4}i", wire)
        return list(struct.iter_unpack(f"<{self.actions}f", wire))


@overload
def vector(made_of: Callable[..., Any]) -> VectorEnvironment: ...
@overload
def vector(*, observations: int, choices: int = ..., numbers: int = ..., max_episode_steps: int = ..., solved_return: float = ...,
           loss: str = ..., name: str = ..., batch: bool = ...,
           bounds: Tuple[float, float] = ...) -> Callable[[Callable[..., Any]], VectorEnvironment]: ...


def vector(made_of: Optional[Callable[..., Any]] = None, *, observations: int = 0, choices: int = 0, numbers: int = 0,
           max_episode_steps: int = 1000, solved_return: float = 0.0, loss: str = "replay", name: str = "",
           batch: bool = False, bounds: Tuple[float, float] = (0.0, 0.0)) -> Union[VectorEnvironment, Callable[[Callable[..., Any]], VectorEnvironment]]:
    """Makes an environment of numbers of a class with reset(seed) and step(action).

    observations       numbers of an observation
    choices, numbers   of an action: one of so many choices, or so many numbers
    max_episode_steps  an episode is truncated here
    solved_return      episodes of this return or more count as solved in an evaluation
    loss               "replay": an episode follows from its seed and its actions, so one whose instance is lost is played
                       again in a fresh one; "pinned": it cannot be had again
    batch              the class is made once, with the number of its instances, and has reset(which, seeds) and
                       step(which, actions) for those of them that `which` names
    bounds             of `numbers`: the least and the largest that each of them can be; off-policy algorithms ask for them
    """
    if made_of is not None or (choices > 0) == (numbers > 0):
        raise TypeError("@vector takes observations=, and choices= or numbers=")

    def made(of: Callable[..., Any]) -> VectorEnvironment:
        if not inspect.isclass(of):
            raise TypeError(f"{of!r} is no class with reset and step")
        return VectorEnvironment(of, name or of.__name__, observations, choices or numbers, numbers > 0, max_episode_steps, solved_return,
                                 loss, batch, *bounds)

    return made
