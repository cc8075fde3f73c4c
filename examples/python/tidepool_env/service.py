"""An environment as a service: proto/environment.proto, one thread an open episode, or a set of instances."""

from __future__ import annotations

import array
import contextlib
import hmac
import json
import os
import sys
import threading
import traceback
from concurrent import futures
from typing import Any, Iterator, Optional, Sequence, Union

import grpc

from .definition import BadEpisode, Call, Environment, Episode, Said, Step
from .sandbox import SandboxRefused, require
from .vector import Instances, VectorEnvironment

Served = Union[Environment, VectorEnvironment]

# Threads that answer Describe while all others are in an episode.
_SPARE = 4
_MOST = 1024  # episodes at once, of an environment that names no number


def _played(number: int, step: Step) -> Any:
    from .wire import messages

    step.checked(first=number == 0)
    return messages.Played(step=number, observation=step.observation.encode(), reward=float(step.reward),
                           terminated=bool(step.terminated), truncated=bool(step.truncated),
                           solved=step.over and step.is_solved, state=step.state.encode(), tools=step.tools,
                           messages=[messages.ChatMessage(role=m.role, content=m.content, name=m.name) for m in step.messages])


def _said(request: Any) -> str:
    if not (request.words or request.calls or request.broken_call):
        return Said(request.action)
    return Said(request.action, request.words, [Call(call.name, json.loads(call.arguments)) for call in request.calls], request.broken_call)


def _numbers(code: str, wire: bytes) -> Sequence[int]:
    numbers = array.array(code, wire)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class _Servicer:
    def __init__(self, environment: Served, token: str) -> None:
        self._environment = environment
        self._token = token
        self._most = environment.instances or (_MOST if isinstance(environment, Environment) else sys.maxsize)
        self._open = 0
        self._lock = threading.Lock()

    def _admit(self, context: Any) -> None:
        if not self._token:
            return
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(given, f"Bearer {self._token}"):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token of this environment (authorization: Bearer TOKEN)")

    def Describe(self, request: Any, context: Any) -> Any:
        from .wire import messages

        self._admit(context)
        e, d = self._environment, messages.Description
        loss = d.PINNED if e.loss == "pinned" else d.REPLAY
        if isinstance(e, VectorEnvironment):
            return d(name=e.name, kind=d.VECTOR, loss=loss, max_turns=e.max_episode_steps, instances=e.instances,
                     observation_size=e.observation_size, actions=e.actions, continuous=e.continuous, action_low=e.action_low,
                     action_high=e.action_high, solved_return=e.solved_return)
        return d(name=e.name, kind=d.TEXT, loss=loss, max_turns=e.max_turns,
                 instances=e.instances, characters=e.characters, conversation=e.conversation)

    def _take(self, count: int, context: Any) -> None:
        with self._lock:
            full = self._open + count > self._most
            self._open += 0 if full else count
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"all {self._most} instances are in use")

    def _give_back(self, count: int, made: Any) -> None:
        with self._lock:
            self._open -= count
        if made is not None:
            try:
                made.close()
            except Exception:  # it is over all the same
                traceback.print_exc()

    def PlayVector(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        from .wire import messages

        self._admit(context)
        e = self._environment
        if not isinstance(e, VectorEnvironment):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{e.name} is played in words")
            return
        count = 0
        made: Optional[Instances] = None
        try:
            for request in requests:
                if made is None:
                    self._take(request.instances, context)
                    count = request.instances
                with _told(context):
                    if made is None:
                        made = e.open(count)
                    which = _numbers("I", request.which) if request.which else range(count)
                    seeds = _numbers("i", request.seeds)
                    if request.reset:
                        reply = messages.VectorPlayed(step=request.step, observations=made.reset(which, seeds))
                    else:
                        observations, rewards, flags, finals = made.step(which, seeds, e.read_actions(request.actions))
                        reply = messages.VectorPlayed(step=request.step, observations=observations, rewards=rewards, flags=flags,
                                                      final_observations=finals)
                yield reply
        finally:
            self._give_back(count, made)

    def Play(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self._admit(context)
        e = self._environment
        if not isinstance(e, Environment):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{e.name} is played in numbers")
            return
        self._take(1, context)
        episode: Optional[Episode] = None
        try:
            for request in requests:  # ends, or raises, when the caller is gone
                with _told(context):
                    if episode is None:
                        episode = e.open()
                    if request.step == 0:
                        step = episode.reset(request.seed, request.held_out)
                    else:
                        step = episode.step(_said(request))
                    reply = _played(request.step, step)
                yield reply
        finally:
            self._give_back(1, episode)


@contextlib.contextmanager
def _told(context: Any) -> Iterator[None]:
    """What the environment raises ends the stream with a code that says whose fault it is."""
    try:
        yield
    except BadEpisode as problem:
        context.abort(grpc.StatusCode.DATA_LOSS, str(problem))
    except Exception as problem:  # which tells Tidepool to try again
        traceback.print_exc()
        context.abort(grpc.StatusCode.INTERNAL, f"{type(problem).__name__}: {problem}")


def start(environment: Served, address: str, token: str = "") -> "tuple[grpc.Server, int]":
    """Serves in threads of its own; returns the server and its port (0 for a unix socket)."""
    from .wire import services

    workers = (environment.instances or _MOST) + _SPARE
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=workers), options=[("grpc.so_reuseport", 0)])
    services.add_EnvironmentServicer_to_server(_Servicer(environment, token), server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0 and not address.startswith("unix:"):
        raise OSError(f"{address}: no server can listen there; is it in use?")
    server.start()
    return server, port


def serve(environment: Served, address: str = "", token: str = "") -> None:
    """Serves until the process is ended.

    address  host:port or unix:/path; left out: where Tidepool says that started this (TIDEPOOL_ENVIRONMENT_ADDRESS), else
             127.0.0.1:7100. There is no encryption: keep it on loopback or a unix socket.
    token    that callers have to show; left out: TIDEPOOL_ENVIRONMENT_TOKEN, else none is asked for
    """
    if environment.sandboxed:
        try:
            require()
        except SandboxRefused as why:
            sys.exit(f"{environment.name}: {why}")
    given = os.environ.get("TIDEPOOL_ENVIRONMENT_ADDRESS", "")
    address = address or given or "127.0.0.1:7100"
    server, _ = start(environment, address, token or os.environ.get("TIDEPOOL_ENVIRONMENT_TOKEN", ""))
    if address != given:  # for who has started it by hand
        print(f"tidepool_env: {environment.name} at {address}", file=sys.stderr, flush=True)
    server.wait_for_termination()
