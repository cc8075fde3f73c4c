"""Any environment of Gymnasium as one of Tidepool: gymnasium:CartPole-v1. Needs the package gymnasium, and only here."""

from __future__ import annotations

from typing import Any, Callable, Tuple

from .vector import VectorEnvironment

_NO_LIMIT = 1000  # steps of an episode, where the environment names none


class _Instance:
    def __init__(self, made: Any, act: Callable[[Any], Any], see: Callable[[Any], Any]) -> None:
        self._made, self._act, self._see = made, act, see

    def reset(self, seed: int) -> Any:
        return self._see(self._made.reset(seed=seed)[0])

    def step(self, action: Any) -> Tuple[Any, Any, Any, Any]:
        observation, reward, terminated, truncated, _ = self._made.step(self._act(action))
        return self._see(observation), reward, terminated, truncated

    def close(self) -> None:
        self._made.close()


def gymnasium_environment(id: str, max_episode_steps: int = 0, loss: str = "replay", **options: Any) -> VectorEnvironment:
    """`options` go to gymnasium.make. max_episode_steps: 0: its own limit.

    Observations of any space become one row of float32; a Box keeps its order, Discrete is one-hot, a Dict or a Tuple is put in a
    row as gymnasium.spaces.flatten does. Actions are Discrete, or a Box, which is clipped to its bounds.
    """
    import gymnasium
    import numpy
    from gymnasium import spaces

    def make() -> Any:
        limit = {"max_episode_steps": max_episode_steps} if max_episode_steps > 0 else {}
        return gymnasium.make(id, disable_env_checker=True, **limit, **options)

    probe = make()
    seen, acted, spec = probe.observation_space, probe.action_space, probe.spec
    probe.close()
    flat = spaces.flatten_space(seen)
    if not isinstance(flat, spaces.Box):
        raise TypeError(f"{id}: observations are {seen}, which have no fixed number of numbers")
    see: Callable[[Any], Any] = (lambda o: o) if isinstance(seen, spaces.Box) else (lambda o: spaces.flatten(seen, o))
    act: Callable[[Any], Any]
    if isinstance(acted, spaces.Discrete):
        first = int(acted.start)
        act, actions, continuous, bounds = (lambda a: a + first), int(acted.n), False, (0.0, 0.0)
    elif isinstance(acted, spaces.Box):
        low, high, shape, dtype = acted.low, acted.high, acted.shape, acted.dtype

        def act(a: Any) -> Any:
            return numpy.clip(numpy.asarray(a, dtype=float).reshape(shape), low, high).astype(dtype)

        actions, continuous = int(numpy.prod(shape)), True
        one = bool((abs(low) <= 1e6).all() and (abs(high) <= 1e6).all() and (low == low.flat[0]).all() and (high == high.flat[0]).all())
        bounds = (float(low.flat[0]), float(high.flat[0])) if one else (0.0, 0.0)
    else:
        raise TypeError(f"{id}: actions are {acted}; a policy takes Discrete or Box")
    limit = max_episode_steps or (spec.max_episode_steps if spec is not None else None) or _NO_LIMIT
    threshold = spec.reward_threshold if spec is not None else None
    return VectorEnvironment(made_of=lambda: _Instance(make(), act, see), name=id, observation_size=int(numpy.prod(flat.shape)),
                             actions=actions, continuous=continuous, max_episode_steps=int(limit),
                             solved_return=0.0 if threshold is None else float(threshold), loss=loss,
                             action_low=bounds[0], action_high=bounds[1])
