#!/usr/bin/env python3
"""Every C++ file is as clang-format 14 would write it (.clang-format).

    tests/lint/format.py [FOLDER]

Other versions of clang-format write other spaces, so without version 14 this skips, exit code 77
(`scripts/setup --tests` installs it). Exit code 1 names the files; `make format` puts them right.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

SKIP = 77


def formatter():
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and re.search(r"version 14\.", subprocess.run([path, "--version"], capture_output=True, text=True).stdout):
            return path
    return None


def sources(folder):
    listed = subprocess.run(["git", "-C", folder, "ls-files", "*.h", "*.cc", "*.cu", "*.cuh"], capture_output=True, text=True)
    return [name for name in listed.stdout.split() if os.path.exists(os.path.join(folder, name))]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    tool, files = formatter(), sources(folder)
    if tool is None or not files:
        print("SKIPPED: " + ("clang-format 14 is not installed; scripts/setup --tests installs it" if tool is None else "this is no git checkout"))
        return SKIP

    def wrong(part):
        done = subprocess.run([tool, "--dry-run", "-Werror", "--ferror-limit=1", *part], cwd=folder, capture_output=True, text=True)
        return sorted(set(re.findall(r"^(\S+?):\d+:\d+: error:", done.stderr, re.M)) or ({done.stderr} if done.returncode else set()))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [name for names in pool.map(wrong, [files[i::32] for i in range(32)]) for name in names]
    for name in found:
        print(f"{name}: is not as clang-format 14 writes it; run `make format`")
    print(f"{len(files)} files, {len(found)} to format")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
