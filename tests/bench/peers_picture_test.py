#!/usr/bin/env python3
"""The picture of the comparisons with peers draws what compares speed, by its ratio, and refuses what no picture can be made of."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


def line(case, ratio, **more):
    return {"bench": "language_vs_peer", "case": case, "baseline": "llama.cpp", "ratio": ratio, "goal": None, "machine": "A processor",
            "instruction_sets": ["avx2"], "commit": "abc", "config": {"threads": 2}, **more}


def draw(*files):
    """(exit code, the picture's tree or None, standard error) for files of these lines."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, lines in enumerate(files):
            paths.append(pathlib.Path(folder) / f"{number}.jsonl")
            paths[-1].write_text("".join(text if isinstance(text, str) else json.dumps(text) + "\n" for text in lines))
        done = subprocess.run([sys.executable, HERE / "peers_picture.py", *paths], capture_output=True, text=True, timeout=30)
        return done.returncode, xml.etree.ElementTree.fromstring(done.stdout) if done.returncode == 0 else None, done.stderr


def texts(tree):
    return [text.text for text in tree.iter(SVG + "text")]


def bars(tree):
    """Class and width of each bar, those of the legend left out."""
    return [(bar.get("class"), float(bar.get("width"))) for bar in tree.iter(SVG + "rect") if bar.get("class") != "paper"][2:]


class PeersPicture(unittest.TestCase):
    def test_a_bar_is_as_long_as_the_logarithm_of_its_ratio(self):
        code, tree, error = draw([line("a", 3, goal=4), line("b", 9, goal=4), line("c", 1 / 3)])
        self.assertEqual(code, 0, error)
        (a, a_width), (b, b_width), (c, c_width) = bars(tree)
        self.assertEqual((a, b, c), ("missed", "fast", "fast"))
        self.assertAlmostEqual(b_width, 2 * a_width, delta=0.3)
        self.assertAlmostEqual(c_width, a_width, delta=0.3)
        self.assertTrue({"a", "3 × llama.cpp, goal 4", "9 × llama.cpp, goal 4", "0.333 × llama.cpp"} <= set(texts(tree)))

    def test_only_speed_beside_a_peer_is_drawn_and_the_last_line_of_a_case_counts(self):
        code, tree, error = draw([line("a", 2), line("share", 0.7, baseline=None, goal=0.7), line("a", 5)],
                                 [line("seconds per step", 8, bench="smollm2_vs_peer", baseline="trl bfloat16, micro-batch 8", machine="A processor, 2 cores"),
                                  line("resident bytes of all processes", 0.9, bench="smollm2_vs_peer", baseline="trl"),
                                  line("cartpole", 4, bench="control_seconds", baseline="stable-baselines3", commit="abd", config="configs/control/cartpole.yaml")])
        self.assertEqual(code, 0, error)
        self.assertEqual(len(bars(tree)), 3)
        for text in ("5 × llama.cpp", "8 × TRL", "4 × stable-baselines3", "A processor, 2 threads; instruction sets avx2"):
            self.assertIn(text, texts(tree))
        self.assertTrue(any(text.startswith("commit abc, abd;") for text in texts(tree)))

    def test_what_cannot_be_drawn_is_named_with_its_line(self):
        for lines, message in [(["Traceback\n"], "0.jsonl:1: expected a JSON object"), ([line("a", 2), line("b", 2, machine="Another")], "0.jsonl:2: measured on Another"),
                               ([line("a", 2, baseline=None)], "no line compares speed with a peer"), (['{"bench": "language_vs_peer"}\n'], "no line"), (["[]\n"], "0.jsonl:1")]:
            with self.subTest(message):
                code, _, error = draw(lines)
                self.assertEqual(code, 1)
                self.assertIn(message, error)


if __name__ == "__main__":
    unittest.main()
