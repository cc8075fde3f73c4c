#!/usr/bin/env python3
"""What ptxas says that the kernels use: python3 resources.py FOLDER with its reports (*.resources).

No kernel may spill a register or keep an array in local memory, except those named below with a reason; registers and
shared memory have limits, so that a change which halves the blocks of a multiprocessor is seen where it is made.
The reports come from `nvcc -Xptxas -v` (cmake/cuda.cmake): they count spills, which cuobjdump -res-usage does not.
"""
import pathlib
import re
import subprocess
import sys

# Registers of a thread. 64: four blocks of 256 threads, or two of 512, on a multiprocessor of 65536.
REGISTERS = 64
# With tensor cores a block of 128 threads holds its sums in registers: up to 255 are two blocks.
REGISTERS_OF = {
    "DecodeTilesKernel": 255,
    "PrefillTilesKernel": 255,
    "QueryGradientKernel": 255,
    "KeyGradientKernel": 255,
    "GroupedTilesKernel": 128,  # four blocks of 128 threads
    "PrefillRowsKernel": 128,  # four blocks of 128 threads
    "FewRowsKernel": 128,  # what is under way; three blocks of 256 threads below 80, and these are for few rows
    "RotaryKernel": 80,  # a head and its angles: three blocks of 256 threads
    "HeadNormBackwardKernel": 128,  # five heads of up to 512 elements in a warp's registers
}
# Bytes of static shared memory; dynamic sizes are checked where they are defined.
SHARED = 8 * 1024
SHARED_OF = {
    "SampleKernel": 44 * 1024,  # counters of the radix walk: two blocks of 512 threads on sm_80
    "GroupedTilesKernel": 20 * 1024,  # two operands, two steps
    "TokenLogProbKernel": 12 * 1024,  # tile sums of two kinds
    "HeadNormBackwardKernel": 17 * 1024,  # a head's gradients of eight warps
}
LOCAL_OF = {}  # kernel: (bytes, reason)
SPILL_OF = {}
EXPECTED_ARCHITECTURES = {"sm_80", "sm_90a"}


def read(folder):
    """(architecture, kernel) -> dict of numbers."""
    text = "".join(p.read_text() for p in sorted(pathlib.Path(folder).glob("*.resources")))
    text = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout
    found = {}
    current = None
    for line in text.splitlines():
        if m := re.search(r"Compiling entry function '(.*)' for '(sm_\w+)'", line):
            name = re.sub(r"\(anonymous namespace\)::|tidepool::|cuda::|model::", "", m.group(1))
            current = found.setdefault((m.group(2), re.sub(r"^void |\((?:[^()]|\([^()]*\))*\)$", "", name)), {})
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            current["local"], current["stores"], current["loads"] = map(int, m.groups())
        elif m := re.search(r"Used (\d+) registers", line):
            current["registers"] = int(m.group(1))
            shared = re.search(r"(\d+) bytes smem", line)
            current["shared"] = int(shared.group(1)) if shared else 0
    return found


def check(found):
    errors = []
    for (arch, kernel), use in sorted(found.items()):
        base = kernel.split("<")[0]
        for what, limit in (
            ("registers", REGISTERS_OF.get(base, REGISTERS)),
            ("shared", SHARED_OF.get(base, SHARED)),
            ("local", LOCAL_OF.get(kernel, (0, ""))[0]),
            ("stores", SPILL_OF.get(kernel, (0, ""))[0]),
            ("loads", SPILL_OF.get(kernel, (0, ""))[0]),
        ):
            if what not in use:
                errors.append(f"{kernel} for {arch}: the report says nothing of {what}")
            elif use[what] > limit:
                errors.append(f"{kernel} for {arch}: {what} is {use[what]}, the limit is {limit} (tests/core/cuda/resources.py)")
    missing = EXPECTED_ARCHITECTURES - {arch for arch, _ in found}
    if missing:
        errors.append(f"no report for {', '.join(sorted(missing))}")
    return errors


def main():
    found = read(sys.argv[1])
    print(f"{'kernel':44} {'arch':7} registers shared local spilled")
    for (arch, kernel), use in sorted(found.items(), key=lambda i: (i[0][1], i[0][0])):
        print(f"{kernel:44} {arch:7} {use.get('registers', -1):9} {use.get('shared', -1):6} {use.get('local', -1):5} {use.get('stores', -1):7}")
    errors = check(found)
    for e in errors:
        print(e)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
