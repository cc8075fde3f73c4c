#!/usr/bin/env python3
"""What ptxas says that the kernels use: python3 resources.py FOLDER with its reports (*.resources) and objects (*.o).

Every object has machine code for the two kinds of GPU that the kernels are tuned for and PTX for all others. No kernel may spill a register or keep an array in local memory, except those named below with a reason; none may use more
registers and shared memory than it was measured to, so that a change which costs blocks of a multiprocessor is seen where it
is made.
The reports come from `nvcc -Xptxas -v` (cmake/cuda.cmake): they count spills, which cuobjdump -res-usage does not.
"""
import pathlib
import re
import struct
import subprocess
import sys

# Registers of a thread on sm_80 and sm_90a and bytes of static shared memory, as nvcc 13.0 made them: by kernel, or by its
# types where these differ. Dynamic sizes are checked where they are defined.
USED = {
    "AdamWKernel<device::BF16, false>": (29, 31, 0),
    "AdamWKernel<device::BF16, true>": (54, 54, 0),
    "AdamWKernel<float, false>": (29, 30, 0),
    "AdamWKernel<float, true>": (54, 53, 0),
    "AddBiasKernel": (29, 29, 0),
    "AddPartialsKernel": (30, 32, 0),
    "AddProbsKernel": (32, 32, 8192),
    "ColumnSumKernel": (32, 32, 4096),
    "CombineExpertsBackwardKernel": (46, 40, 32),
    "CombineExpertsKernel": (36, 32, 0),
    "DecodeRowsKernel": (48, 32, 4112),
    "DecodeTilesKernel<128, false, false>": (128, 126, 1024),
    "DecodeTilesKernel<128, false, true>": (174, 173, 1024),
    "DecodeTilesKernel<128, true, false>": (128, 128, 1024),
    "DecodeTilesKernel<64, false, false>": (74, 80, 1024),
    "DecodeTilesKernel<64, true, false>": (80, 79, 1024),
    "DeltaKernel": (31, 32, 0),
    "FewRowsKernel<16, 8, 1, false>": (80, 86, 0),
    "FewRowsKernel<16, 8, 2, false>": (84, 90, 0),
    "FewRowsKernel<32, 8, 1, false>": (110, 114, 0),
    "FewRowsKernel<32, 8, 2, false>": (112, 120, 0),
    "FewRowsKernel<8, 16, 1, false>": (50, 54, 0),
    "FewRowsKernel<8, 16, 1, true>": (56, 56, 0),
    "FewRowsKernel<8, 16, 2, false>": (54, 54, 0),
    "FewRowsKernel<8, 16, 2, true>": (60, 61, 0),
    "FewRowsKernel<8, 4, 1, false>": (92, 92, 0),
    "FewRowsKernel<8, 4, 1, true>": (92, 92, 0),
    "FewRowsKernel<8, 4, 2, false>": (90, 91, 0),
    "FewRowsKernel<8, 4, 2, true>": (90, 92, 0),
    "FewRowsKernel<8, 8, 1, false>": (72, 72, 0),
    "FewRowsKernel<8, 8, 1, true>": (72, 72, 0),
    "FewRowsKernel<8, 8, 2, false>": (74, 76, 0),
    "FewRowsKernel<8, 8, 2, true>": (78, 80, 0),
    "GateBackwardKernel": (32, 38, 0),
    "GatherRowsKernel": (21, 21, 0),
    "GroupRowsKernel": (32, 30, 96),
    "GroupedPlainKernel": (32, 32, 2176),
    "GroupedTilesKernel<device::GroupedMultiplyArgs<device::BF16> >": (80, 80, 20480),
    "GroupedTilesKernel<device::GroupedMultiplyBackArgs<device::BF16> >": (80, 80, 20480),
    "GroupedTilesKernel<device::GroupedMultiplyBackWeightArgs<device::BF16> >": (74, 68, 20480),
    "HeadNormBackwardKernel": (117, 115, 16384),
    "KeyGradientKernel<BackwardTiles<128, 1, 16, 16, 1, false> >": (220, 222, 0),
    "KeyGradientKernel<BackwardTiles<128, 1, 64, 16, 1, true> >": (255, 254, 0),
    "KeyGradientKernel<BackwardTiles<64, 2, 64, 32, 2, false> >": (252, 254, 0),
    "KeyGradientRowsKernel": (64, 64, 3072),
    "MergePartialsKernel": (28, 26, 0),
    "MoveKernel": (20, 20, 0),
    "PrefillRowsKernel": (96, 95, 4112),
    "PrefillTilesKernel<PrefillTiles<128, 2, 32, 32, 1, true> >": (242, 241, 768),
    "PrefillTilesKernel<PrefillTiles<128, 2, 64, 32, 2, true> >": (243, 239, 1024),
    "PrefillTilesKernel<PrefillTiles<64, 2, 64, 64, 2, false> >": (210, 208, 1024),
    "ProbeKernel": (4, 4, 0),
    "ProductChainKernel": (88, 88, 80),
    "QueryGradientKernel<BackwardTiles<128, 2, 16, 16, 1, false> >": (238, 238, 1024),
    "QueryGradientKernel<BackwardTiles<128, 2, 32, 32, 2, false> >": (255, 251, 1024),
    "QueryGradientKernel<BackwardTiles<64, 1, 64, 16, 2, true> >": (127, 128, 1024),
    "QueryGradientRowsKernel": (48, 40, 3072),
    "RmsNormBackwardKernel<device::BF16>": (47, 48, 32),
    "RmsNormBackwardKernel<float>": (50, 58, 32),
    "RmsNormBackwardWeightKernel": (32, 32, 4096),
    "RmsNormKernel": (40, 40, 32),
    "RotaryKernel<device::BF16, 1>": (29, 29, 0),
    "RotaryKernel<device::BF16, 2>": (33, 33, 0),
    "RotaryKernel<device::BF16, 8>": (72, 72, 0),
    "RotaryKernel<float, 1>": (29, 29, 0),
    "RotaryKernel<float, 2>": (33, 33, 0),
    "RotaryKernel<float, 8>": (72, 73, 0),
    "RouteBackwardKernel": (56, 57, 0),
    "RouteKernel": (32, 32, 0),
    "RouterKernel": (32, 32, 0),
    "SaltedBucketKernel": (30, 30, 64),
    "SaltedPieceKernel": (40, 40, 64),
    "SampleKernel": (64, 64, 33296),
    "ScatterAddRowsKernel": (32, 32, 1056),
    "SigmoidKernel": (15, 15, 0),
    "SquareKernel": (32, 32, 64),
    "SumExpertsKernel": (39, 32, 0),
    "SumKernel": (28, 30, 64),
    "SwiGluBackwardKernel": (40, 40, 0),
    "SwiGluKernel": (32, 32, 0),
    "TokenLogProbBackwardKernel": (32, 32, 0),
    "TokenLogProbKernel": (32, 32, 10560),
    "VocabMaxKernel": (32, 32, 32),
    "VocabTilesKernel<false, device::BF16>": (32, 32, 0),
    "VocabTilesKernel<false, float>": (32, 32, 0),
    "VocabTilesKernel<true, device::BF16>": (44, 46, 0),
    "VocabTilesKernel<true, float>": (44, 44, 0),
}
# Registers are allotted eight at a time, so as many more may be another compiler's choice.
MARGIN = 8
# Where launch bounds allow fewer than that, a build that wants more spills, which is an error, too.
LOCAL_OF = {}  # kernel: (bytes, reason)
SPILL_OF = {}
EXPECTED_ARCHITECTURES = {"sm_80", "sm_90a"}
# What an object holds, as `cuobjdump --list-elf --list-ptx` would say; the toolkit's packages have no cuobjdump.
PTX, MACHINE_CODE = 1, 2
EXPECTED_CODE = {(MACHINE_CODE, 80), (MACHINE_CODE, 90), (PTX, 80)}


def code(blob):
    """The (kind, compute capability) of each piece of device code in an object: the headers that nvcc's fatbinary writes."""
    found, at = set(), 0
    while (at := blob.find(struct.pack("<I", 0xBA55ED50), at)) >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", blob, at)
        piece, end = at + header, at + header + size
        while piece < end:
            kind, _, length, payload = struct.unpack_from("<HHIQ", blob, piece)
            found.add((kind, struct.unpack_from("<I", blob, piece + 28)[0]))
            piece += length + payload
        at = end
    return found


def check_code(folder):
    objects = sorted(pathlib.Path(folder).glob("*.o"))
    errors = [] if objects else [f"no objects in {folder}"]
    for path in objects:
        if found := EXPECTED_CODE ^ code(path.read_bytes()):
            kinds = {PTX: "PTX", MACHINE_CODE: "machine code"}
            errors += [f"{path.name}: {kinds.get(kind, kind)} for compute capability {arch / 10} is {'missing' if (kind, arch) in EXPECTED_CODE else 'not meant'}" for kind, arch in sorted(found)]
    return errors


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
    listed = set(USED)
    for (arch, kernel), use in sorted(found.items()):
        name = kernel if kernel in USED else kernel.split("<")[0]
        if name not in USED:
            errors.append(f"{kernel}: has no line in USED (tests/core/cuda/resources.py); add what the table above says of it")
            continue
        older, newer, shared = USED[name]
        listed.discard(name)
        for what, limit in (
            ("registers", (older if arch == "sm_80" else newer) + MARGIN),
            ("shared", shared),
            ("local", LOCAL_OF.get(kernel, (0, ""))[0]),
            ("stores", SPILL_OF.get(kernel, (0, ""))[0]),
            ("loads", SPILL_OF.get(kernel, (0, ""))[0]),
        ):
            if what not in use:
                errors.append(f"{kernel} for {arch}: the report says nothing of {what}")
            elif use[what] > limit:
                errors.append(f"{kernel} for {arch}: {what} is {use[what]}, the limit is {limit} (tests/core/cuda/resources.py)")
    errors += [f"{name}: has a line in USED and is not there any more" for name in sorted(listed)]
    missing = EXPECTED_ARCHITECTURES - {arch for arch, _ in found}
    if missing:
        errors.append(f"no report for {', '.join(sorted(missing))}")
    return errors


def main():
    found = read(sys.argv[1])
    print(f"{'kernel':44} {'arch':7} registers shared local spilled")
    for (arch, kernel), use in sorted(found.items(), key=lambda i: (i[0][1], i[0][0])):
        print(f"{kernel:44} {arch:7} {use.get('registers', -1):9} {use.get('shared', -1):6} {use.get('local', -1):5} {use.get('stores', -1):7}")
    errors = check(found) + check_code(sys.argv[1])
    # Each limit is one that a build can miss: two margins more are always an error more.
    unlimited = []
    for (arch, kernel), use in found.items():
        for what in ("registers", "shared"):
            if len(check({**found, (arch, kernel): {**use, what: use.get(what, 0) + 2 * MARGIN + 1}})) <= len(errors):
                unlimited.append(f"{kernel} for {arch}: no limit of {what}")
    errors += [] if errors else unlimited
    for e in errors:
        print(e)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
