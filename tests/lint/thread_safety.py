#!/usr/bin/env python3
"""Compiles every source with annotated mutexes (core/base/thread_annotations.h) by clang's thread-safety analysis.

    thread_safety.py CLANG BUILD_FOLDER [LIBTORCH_INCLUDE]     exit 1 with clang's words where a guarded member is touched without its mutex
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

HEADER = "core/base/thread_annotations.h"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def main(clang, build, torch=""):
    sources = sorted(p for folder in ("core", "workers") for p in pathlib.Path(folder).rglob("*.cc"))
    annotated = {str(p) for folder in ("core", "workers") for p in pathlib.Path(folder).rglob("*.h")
                 if HEADER in INCLUDE.findall(p.read_text())} | {HEADER}
    chosen = [p for p in sources if annotated & set(INCLUDE.findall(p.read_text()))]
    assert chosen, "no source has annotated mutexes"

    def check(source):
        return subprocess.run([clang, "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-I.",
                               f"-I{build}/proto/gen", *([f"-idirafter{torch}"] if torch else []), str(source)], capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for done in pool.map(check, chosen):
            if not torch and "'ATen/" in done.stderr:
                continue  # it is not built here either
            if done.returncode != 0:
                pool.shutdown(wait=False, cancel_futures=True)
                print(done.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
