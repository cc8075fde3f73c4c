"""The tests that an environment of numbers has to pass, in this process and without a policy."""

from __future__ import annotations

import math
import random
import struct
from typing import Any, Dict, List, Sequence, Tuple

from .check import Fault, Tests
from .vector import VectorEnvironment

_SEED_AFTER = 1000003  # of the episode that follows; any

Said = Tuple[bytes, float, int, bytes]  # observation, reward, flag, last observation


def _checked(environment: VectorEnvironment, moved: Tuple[bytes, bytes, bytes, bytes], count: int, where: str) -> List[Said]:
    observations, rewards, flags, finals = moved
    width = 4 * environment.observation_size
    ended = sum(1 for flag in flags if flag)
    if len(observations) != count * width or len(flags) != count or len(rewards) != 8 * count or len(finals) != ended * width:
        raise Fault(f"{where}: {len(observations)} bytes of observations, {len(rewards)} of rewards, {len(flags)} flags and {len(finals)} bytes of last "
                    f"observations for {count} instances of which {ended} ended")
    out, at = [], 0
    for i in range(count):
        observation, reward, final = observations[i * width:(i + 1) * width], struct.unpack_from("<d", rewards, 8 * i)[0], b""
        if flags[i]:
            final, at = finals[at:at + width], at + width
        for what, row in (("an observation", observation), ("a last observation", final)):
            wrong = [x for x in struct.unpack(f"<{len(row) // 4}f", row) if not math.isfinite(x)]
            if wrong:
                raise Fault(f"{where}: {what} has {wrong[0]}; expected finite numbers")
        if not math.isfinite(reward) or abs(reward) > 3e38:
            raise Fault(f"{where}: a reward is {reward}; expected a finite number of 32 bits")
        out.append((observation, reward, flags[i], final))
    return out


def _actions(environment: VectorEnvironment, seed: int, steps: int, far: bool = False) -> List[Any]:
    rng = random.Random(seed)
    if not environment.continuous:
        return [rng.randrange(environment.actions) for _ in range(steps)]
    size = 1e6 if far else 1.0
    return [tuple(rng.uniform(-size, size) for _ in range(environment.actions)) for _ in range(steps)]


def play(environment: VectorEnvironment, seeds: Sequence[int], actions: Dict[int, List[Any]]) -> List[List[Said]]:
    """An episode of each seed, side by side, and two steps of the next."""
    made = environment.open(len(seeds))
    try:
        width = 4 * environment.observation_size
        first = made.reset(range(len(seeds)), seeds)
        if len(first) != width * len(seeds):
            raise Fault(f"a reset of {len(seeds)} instances gave {len(first)} bytes; expected {width} for each")
        said: List[List[Said]] = [[(first[i * width:(i + 1) * width], 0.0, 0, b"")] for i in range(len(seeds))]
        more = {i: 0 for i in range(len(seeds))}  # steps since its end, above 0
        for step in range(environment.max_episode_steps + 2):
            which = [i for i in more if more[i] < 3 and step < len(actions[seeds[i]])]
            if not which:
                break
            moved = made.step(which, [seeds[i] + _SEED_AFTER for i in which], [actions[seeds[i]][step] for i in which])
            where = f"step {step + 1} of seed {', '.join(str(seeds[i]) for i in which[:8])}"
            for i, one in zip(which, _checked(environment, moved, len(which), where)):
                said[i].append(one)
                more[i] += 1 if more[i] or one[2] else 0
        return said
    finally:
        made.close()


def check_vector(environment: VectorEnvironment, seeds: int = 8, limit_s: float = 60) -> List[Tuple[str, str]]:
    """What Tests says."""
    tests = Tests(limit_s)
    steps = environment.max_episode_steps + 2
    drawn = {seed: _actions(environment, seed, steps) for seed in range(seeds)}

    def episode(seed: int, actions: Dict[int, List[Any]]) -> List[Said]:
        return tests.guarded(f"an episode of seed {seed}", lambda: play(environment, [seed], actions))[0]

    def plays() -> None:
        for seed in range(seeds):
            episode(seed, drawn)

    def takes_far_numbers() -> None:
        for seed in range(seeds):
            episode(seed, {seed: _actions(environment, seed, steps, far=True)})

    def repeats() -> None:
        for seed in range(seeds):
            once, again = episode(seed, drawn), episode(seed, drawn)
            for step, (a, b) in enumerate(zip(once, again)):
                if a != b:
                    raise Fault(f"seed {seed}, step {step}: gave {_words(a)}, and then {_words(b)} to the same actions; declare loss='pinned' if that is "
                                "its nature")

    def stands_alone() -> None:
        alone = [episode(seed, drawn) for seed in range(seeds)]
        for seed, (one, beside) in enumerate(zip(alone, tests.guarded("episodes side by side", lambda: play(environment, range(seeds), drawn)))):
            if one != beside:
                raise Fault(f"seed {seed}: an instance plays otherwise while others are there; instances may share nothing")

    tests.test("plays whole episodes: sizes, finite numbers, ends", plays)
    if environment.continuous:
        tests.test("takes numbers that are far out of bounds", takes_far_numbers)
    if environment.loss == "replay":
        tests.test("follows from its seed and its actions (loss: replay)", repeats)
        tests.test("shares nothing between instances", stands_alone)
    return tests.out


def _words(said: Said) -> str:
    observation, reward, flag, _ = said
    numbers = struct.unpack(f"<{len(observation) // 4}f", observation)
    return f"observation {[round(x, 6) for x in numbers[:8]]}, reward {reward:.9g}, flag {flag}"
