#!/usr/bin/env python3
"""Writes the N-th ```cpp block of a page to a file, for a test that compiles it: extract_blocks.py PAGE N OUT."""
import re
import sys

page, number, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
blocks = re.findall(r"^```cpp\n(.*?)^```$", open(page).read(), re.S | re.M)
if number >= len(blocks):
    sys.exit(f"{page}: has {len(blocks)} C++ blocks, number {number} is wanted by tests/docs/CMakeLists.txt")
text = "".join(blocks[number])
try:
    same = open(out).read() == text
except OSError:
    same = False
if not same:
    open(out, "w").write(text)
