#!/usr/bin/env python3
"""The lint of formats finds a file that is not formatted, and passes one that is."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import format as lint  # noqa: E402


class FormatTest(unittest.TestCase):
    def test_only_the_file_that_is_not_formatted_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / ".clang-format").write_text("BasedOnStyle: Google\n")
            (pathlib.Path(folder) / "good.cc").write_text("int x = 1;\n")
            (pathlib.Path(folder) / "bad.cc").write_text("int  x=1 ;\n")
            for command in (["init", "-q"], ["add", "-A"]):
                subprocess.run(["git", "-C", folder, *command], check=True)
            done = subprocess.run([sys.executable, lint.__file__, folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("bad.cc: is not", done.stdout)
            self.assertNotIn("good.cc", done.stdout)


if __name__ == "__main__":
    if lint.formatter() is None:
        print("SKIPPED: clang-format 14 is not installed; scripts/setup --tests installs it")
        sys.exit(lint.SKIP)
    unittest.main()
