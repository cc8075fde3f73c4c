"""Headless Chromium over the pages that the program makes, and run folders for them to show.

Chromium is not among what the project needs: tests skip (77) with the reason where it is not installed.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDEPOOL = os.path.join(os.environ.get("TIDEPOOL_BIN", str(ROOT / "build/bin")), "tidepool")
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)


def need_chromium():
    if CHROMIUM is None:
        print("skipped: there is no chromium here; apt-get install chromium")
        sys.exit(77)


class Shown:
    """A page as it stood after its scripts ran: `dom` as text, `console` lines, `size` of the picture."""

    def __init__(self, url, width, dark=False, height=1600, keep=None):
        with tempfile.TemporaryDirectory() as scratch:
            picture = os.path.join(scratch, "shot.png")
            common = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
                      f"--user-data-dir={scratch}/profile", f"--window-size={width},{height}", "--virtual-time-budget=4000",
                      "--enable-logging=stderr", *(["--blink-settings=preferredColorScheme=0"] if dark else [])]
            dom = subprocess.run([*common, "--dump-dom", url], capture_output=True, text=True, timeout=90)
            shot = subprocess.run([*common, f"--screenshot={picture}", url], capture_output=True, text=True, timeout=90)
            self.dom = dom.stdout
            self.console = [line for line in dom.stderr.splitlines() if "CONSOLE" in line]
            if not os.path.exists(picture):
                raise AssertionError(f"no picture of {url}: {shot.stderr[-2000:]}")
            with open(picture, "rb") as file:
                self.size = struct.unpack(">II", file.read(24)[16:])
            if keep:
                shutil.copy(picture, keep)

    def titles(self):
        """What the cards are called."""
        return [part.split("<")[0] for part in self.dom.split("<h3>")[1:]]


def write_run(folder, job, rows, config="", summary=None, status=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"name: {folder.name}   # x.yaml:1\njob: {job}   # x.yaml:2\nseed: 1   # default\n{config}")
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step, metrics in rows:
            file.write(json.dumps({"step": step, "version": step, "lineage": 0, "wall_s": 2.0 * step, "metrics": metrics}) + "\n")
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder
