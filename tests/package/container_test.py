#!/usr/bin/env python3
"""The image of packaging/Containerfile, on a base that mmdebstrap makes (no registry of images is reached), with the
archive of this build in place of the stage that compiles: a run as the image's user.

    tests/package/container_test.py [BUILD_FOLDER]

Needs root, buildah and mmdebstrap: skips (77) with the reason without them. The stage that compiles is `scripts/setup` and
`make package`, which other tests run.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import clean_root_test
from clean_root_test import BUILD, KEPT, ROOT, skip, timed

STORE = ("--storage-driver", "vfs")


def main():
    if os.geteuid() != 0:
        skip("an image needs root to be made here")
    for tool in ("buildah", "mmdebstrap"):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed; scripts/setup --nightly installs it")
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="image-", dir=KEPT))
    buildah = ["buildah", *STORE, "--root", str(folder / "store"), "--runroot", str(folder / "state")]

    def do(*words, limit=600):
        done = subprocess.run([*buildah, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit)
        if done.returncode != 0:
            sys.exit(f"FAIL buildah {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout.strip().split("\n")[-1]

    try:
        probe = subprocess.run([*buildah, "from", "scratch"], text=True, capture_output=True, timeout=60)
        if probe.returncode != 0:
            skip(f"buildah does not work here: {probe.stderr.strip()[-300:]}")
        base = probe.stdout.strip()
        do("add", base, clean_root_test.make_root_archive(False), "/")
        do("commit", "--quiet", base, "localhost/base")
        timed("scripts/package", [ROOT / "scripts/package", BUILD, folder / "out"], 900)
        (archive,) = (folder / "out").glob("*.tar.gz")
        (folder / "tree/opt").mkdir(parents=True)
        subprocess.run(["tar", "-xf", archive, "-C", folder / "tree/opt"], check=True, timeout=300)
        (tree,) = (folder / "tree/opt").iterdir()
        tree.rename(folder / "tree/opt/tidepool")
        do("bud", "--quiet", "--isolation", "chroot", "--build-arg", "BASE=localhost/base", "--build-context", f"build={folder / 'tree'}",
           "-f", ROOT / "packaging/Containerfile", "-t", "localhost/tidepool", folder / "tree", limit=900)
        container = do("from", "localhost/tidepool")
        data = folder / "data"
        data.mkdir()
        os.chown(data, 10001, 10001)

        def run(*command):
            return do("run", "--isolation", "chroot", "--volume", f"{data}:/data", container, "--", *command)
        if run("sh", "-c", "id -u; touch /opt/tidepool/x 2>/dev/null && echo wrote || id -u") != "10001":
            sys.exit("FAIL the image's user is not 10001, or may write into the programs")
        run("tidepool", "train", "/opt/tidepool/share/tidepool/configs/test/rl_colocated.yaml", "--run-dir", "runs/x", "train.steps=2")
        if not json.loads((data / "runs/x/summary.json").read_text())["finished"]:
            sys.exit("FAIL the run in the image is not finished")
        print("passed")
    finally:
        subprocess.run([*buildah, "rm", "--all"], capture_output=True, timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
