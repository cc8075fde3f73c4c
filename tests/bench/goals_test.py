#!/usr/bin/env python3
"""A goal that is missed is told if the processor is of a kind that has goals and this one was reached before."""

import pathlib
import tempfile
import unittest

from goals import NEVER_REACHED, Goals, kind


class GoalsTest(unittest.TestCase):
    def told(self, sets, case, reached):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "missed"
            word = Goals(sets, file).judge(case, f"{case}: 1.9 (goal 2)", reached).strip()
            return word, file.read_text() if file.exists() else ""

    def test_kinds(self):
        self.assertEqual(kind(["amx_bf16", "avx512_bf16", "avx512f", "avx2"]), "AMX")
        self.assertEqual(kind(["avx512_bf16", "avx512f", "avx2"]), "AVX-512 without AMX")
        self.assertIsNone(kind(["avx512f", "avx2"]))
        self.assertEqual([Goals(sets, None).pick(3, 1.3) for sets in (["amx_bf16"], ["avx512_bf16"], ["avx2"])], [3, 1.3, None])

    def test_what_is_told(self):
        amx = ["amx_bf16", "avx512_bf16"]
        self.assertEqual(self.told(amx, "prefill, 1024", False), ("MISSED", "prefill, 1024: 1.9 (goal 2)\n"))
        self.assertEqual(self.told(amx, "prefill, 1024", True), ("reached", ""))
        self.assertEqual(self.told(amx, min(NEVER_REACHED), False), ("MISSED", ""))
        self.assertEqual(self.told(["avx2"], "prefill, 1024", False), ("MISSED", ""))

    def test_those_never_reached_are_cases(self):
        text = (pathlib.Path(__file__).parent / "language_vs_peer.py").read_text()
        for case in NEVER_REACHED:
            self.assertIn(f'"{case}"', text)


if __name__ == "__main__":
    unittest.main()
