"""tidepool-env check FILE, tidepool-env serve FILE; gymnasium:ID in place of a file."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from typing import Any, List, Optional, Union

from .check import check
from .definition import Environment
from .service import serve
from .vector import VectorEnvironment
from .vector_check import check_vector

Found = List[Union[Environment, VectorEnvironment]]


def _option(text: str) -> "tuple[str, Any]":
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not name=value")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def _environments(file: str, given: argparse.Namespace) -> Found:
    if file.startswith("gymnasium:"):
        from .gymnasium import gymnasium_environment

        try:
            return [gymnasium_environment(file.partition(":")[2], given.max_episode_steps, given.loss, **dict(given.option))]
        except ImportError as problem:
            sys.exit(f"{file}: {problem}; pip install gymnasium, with the extra that the environment needs")
        except Exception as problem:  # of gymnasium, which has no class of its own for all that it raises
            sys.exit(f"{file}: {type(problem).__name__}: {problem}")
    if given.max_episode_steps or given.option or given.loss != "replay":
        sys.exit(f"{file}: --max-episode-steps, --loss and --option are for gymnasium:ID; a file says them itself")
    found = [value for value in runpy.run_path(file, run_name="tidepool_env_file").values() if isinstance(value, (Environment, VectorEnvironment))]
    unique: Found = []
    for one in found:
        if not any(one is other for other in unique):
            unique.append(one)
    if not unique:
        sys.exit(f"{file}: has no environment; write @environment above a class or a generator function, or @vector above a class")
    return unique


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="tidepool-env", description="Environments for Tidepool in Python")
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help="the tests that an environment has to pass")
    checks.add_argument("file", help="or gymnasium:ID")
    checks.add_argument("--seeds", type=int, default=8)
    checks.add_argument("--timeout", type=float, default=60, help="seconds that an episode may take")
    serves = commands.add_parser("serve", help="serve the environment of a file")
    serves.add_argument("file", help="or gymnasium:ID")
    serves.add_argument("--listen", default="", help="host:port or unix:/path")
    for command in (checks, serves):
        command.add_argument("--max-episode-steps", type=int, default=0, help="of gymnasium:ID; 0: its own limit")
        command.add_argument("--loss", choices=("replay", "pinned"), default="replay", help="of gymnasium:ID")
        command.add_argument("--option", type=_option, action="append", default=[], help="name=value, for gymnasium.make")
    given = parser.parse_args(arguments)
    environments = _environments(given.file, given)
    if given.command == "serve":
        if len(environments) > 1:
            sys.exit(f"{given.file}: has {len(environments)} environments; serve() one of them yourself")
        serve(environments[0], given.listen)
        return 0
    bad = 0
    for environment in environments:
        if isinstance(environment, VectorEnvironment):
            tests = check_vector(environment, given.seeds, given.timeout)
        else:
            tests = check(environment, given.seeds, given.timeout)
        for name, fault in tests:
            print(f"{'FAIL' if fault else 'ok  '} {environment.name}: {name}" + (f": {fault}" if fault else ""))
            bad += 1 if fault else 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
