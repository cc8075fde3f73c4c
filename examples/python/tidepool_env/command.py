"""tidepool-env check FILE, tidepool-env serve FILE."""

from __future__ import annotations

import argparse
import runpy
import sys
from typing import List, Optional

from .check import check
from .definition import Environment
from .service import serve


def _environments(file: str) -> List[Environment]:
    found = [value for value in runpy.run_path(file, run_name="tidepool_env_file").values() if isinstance(value, Environment)]
    unique: List[Environment] = []
    for one in found:
        if not any(one is other for other in unique):
            unique.append(one)
    if not unique:
        sys.exit(f"{file}: has no environment; write @environment above a class or a generator function")
    return unique


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="tidepool-env", description="Environments for Tidepool in Python")
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help="the tests that an environment has to pass")
    checks.add_argument("file")
    checks.add_argument("--seeds", type=int, default=8)
    checks.add_argument("--timeout", type=float, default=60, help="seconds that an episode may take")
    serves = commands.add_parser("serve", help="serve the environment of a file")
    serves.add_argument("file")
    serves.add_argument("--listen", default="", help="host:port or unix:/path")
    given = parser.parse_args(arguments)
    environments = _environments(given.file)
    if given.command == "serve":
        if len(environments) > 1:
            sys.exit(f"{given.file}: has {len(environments)} environments; serve() one of them yourself")
        serve(environments[0], given.listen)
        return 0
    bad = 0
    for environment in environments:
        for name, fault in check(environment, given.seeds, given.timeout):
            print(f"{'FAIL' if fault else 'ok  '} {environment.name}: {name}" + (f": {fault}" if fault else ""))
            bad += 1 if fault else 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
