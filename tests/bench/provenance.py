"""Where a figure comes from: the processor that it was measured on, and the commit."""

import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMED = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # the instruction sets that speed depends on here


def processor():
    """Its model, and the set of instruction sets that it has."""
    lines = open("/proc/cpuinfo").read().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return model, set(next((line for line in lines if line.startswith("flags")), "").split())


def instruction_sets():
    """Those of NAMED that it has."""
    flags = processor()[1]
    return [name for name in NAMED if name in flags]


def commit():
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
