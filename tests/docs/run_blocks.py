#!/usr/bin/env python3
"""Runs the code blocks of the documentation, so that they cannot rot.

    tests/docs/run_blocks.py ci|nightly [--build FOLDER] [--list] [FILE...]

A block that begins with ```bash ci or ```bash nightly is run by bash -euo pipefail from the root of the
repository, blocks of a file in their order, in one environment: files and runs that one makes are there
for the next. `nightly` runs both kinds. A block that begins with plain ```bash is only shown. After
```bash ci exit=4 that exit code is what is expected. Runs that blocks make are named runs/docs-* and
removed before and after.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OPEN = re.compile(r"^```bash(?: +(ci|nightly))?(?: +exit=(\d+))? *$")


def blocks(path):
    """(line, kind or None, expected exit code, text) of each bash block."""
    found, begin = [], None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if begin is None:
                match = OPEN.match(line.rstrip("\n"))
                if match:
                    begin, text = (number, match.group(1), int(match.group(2) or 0)), []
                elif line.startswith("```bash"):
                    sys.exit(f"{path}:{number}: {line.strip()}: expected ```bash, ```bash ci or ```bash nightly, with exit=N behind if it is not 0")
            elif line.startswith("```"):
                found.append((*begin, "".join(text)))
                begin = None
            else:
                text.append(line)
    if begin is not None:
        sys.exit(f"{path}:{begin[0]}: this block has no end")
    return found


def remove_runs():
    for run in glob.glob(os.path.join(ROOT, "runs", "docs-*")):
        shutil.rmtree(run, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=["ci", "nightly"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--build", default=os.environ.get("TIDEPOOL_BUILD_DIR", "build"))
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    arguments = parser.parse_intermixed_args()
    files = arguments.files or [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "CONTRIBUTING.md"),
                                *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]
    wanted = {"ci"} if arguments.kind == "ci" else {"ci", "nightly"}
    remove_runs()
    ran = failed = 0
    for path in files:
        name = os.path.relpath(path, ROOT)
        for line, kind, expected, text in blocks(path):
            if kind not in wanted:
                continue
            ran += 1
            if arguments.list:
                print(f"{name}:{line} ({kind})\n{text}")
                continue
            start = time.monotonic()
            script = text.replace("build/bin/", os.path.relpath(arguments.build, ROOT) + "/bin/")
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            good = done.returncode == expected
            print(f"{'ok  ' if good else 'FAIL'} {name}:{line} {time.monotonic() - start:.1f} s", flush=True)
            if not good:
                failed += 1
                print(f"{text}exit code {done.returncode}, expected {expected}; the end of its output:\n{done.stdout[-4000:]}", flush=True)
                break  # later blocks of this file build on it
    if not arguments.list:
        remove_runs()
    print(f"{ran} blocks, {failed} failed")
    sys.exit(1 if failed or ran == 0 else 0)


if __name__ == "__main__":
    main()
