#!/usr/bin/env python3
"""The packages in a clean Debian root without network: after `pip install` of the wheel the quickstart runs within two
minutes, and the archive runs without pip and Python. Prints seconds and sizes.

    tests/package/clean_root_test.py [BUILD_FOLDER]

Needs root, mmdebstrap, Debian's mirror and the Python package index (some 3 GB, kept in .deps/clean-root): skips (77) with
the reason without them.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
KEPT = ROOT / ".deps/clean-root"
SUITE = "bookworm"
QUICKSTART_AT_MOST_S = 120


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def timed(what, command, limit, **kwargs):
    begun = time.monotonic()
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, **kwargs)
    seconds = time.monotonic() - begun
    print(f"{what}: {seconds:.0f} s", flush=True)
    if done.returncode != 0:
        sys.exit(f"FAIL {what}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return seconds, done.stdout


def make_root_archive(python3):
    """A Debian root with what `python3` says; the machine's own list of mirrors is used."""
    archive = KEPT / ("root-python.tar" if python3 else "root.tar")
    if archive.exists():
        return archive
    sources = [path for path in (pathlib.Path("/etc/apt/sources.list.d/debian.sources"), pathlib.Path("/etc/apt/sources.list")) if path.exists()]
    include = ["--include=python3,python3-pip,python3-venv"] if python3 else []
    making = archive.with_suffix(".making.tar")
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", *include, SUITE, making, *map(str, sources[:1])], timeout=1800)
    if done.returncode != 0:
        skip("mmdebstrap could not make a Debian root (its own words are above)")
    making.rename(archive)
    return archive


def fetch_wheels(requirement):
    """What pip would fetch, for the Python of the root."""
    wheels = KEPT / "wheels"
    if (wheels / "made_for").exists() and (wheels / "made_for").read_text() == requirement:
        return wheels
    shutil.rmtree(wheels, ignore_errors=True)
    platforms = [word for minor in range(36, 4, -1) for word in ("--platform", f"manylinux_2_{minor}_{os.uname().machine}")]
    platforms += ["--platform", f"manylinux2014_{os.uname().machine}"]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp",
                           *platforms, "--dest", wheels, requirement], timeout=3600)
    if done.returncode != 0:
        skip("pip could not fetch the wheels (its own words are above)")
    (wheels / "made_for").write_text(requirement)
    return wheels


class Root:
    """A root of its own, without a network but loopback."""

    def __init__(self, archive, shared):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="clean-root-", dir=KEPT))
        subprocess.run(["tar", "-xf", archive, "-C", self.dir, "--exclude=./dev/*"], check=True, timeout=300)
        (self.dir / "shared").mkdir()
        self.shared = shared

    def command(self, script):
        mounts = (f'ip link set lo up; mount --rbind /dev "{self.dir}/dev"; mount -t proc proc "{self.dir}/proc"; '
                  f'mount -t tmpfs tmpfs "{self.dir}/dev/shm"; mount --bind "{self.shared}" "{self.dir}/shared"; '
                  f'exec chroot "{self.dir}" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -c "$1"')
        return ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", mounts, "sh", script]

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def main():
    if os.geteuid() != 0:
        skip("a Debian root needs root to be made and entered")
    for tool in ("mmdebstrap", "unshare", "ip"):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed; scripts/setup --nightly installs it")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        skip("root of this container may not make namespaces")
    KEPT.mkdir(parents=True, exist_ok=True)

    out = pathlib.Path(tempfile.mkdtemp(prefix="out-", dir=KEPT))
    roots = []
    try:
        print(timed("scripts/package", [ROOT / "scripts/package", BUILD, out], 600)[1], end="")
        (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
        with zipfile.ZipFile(wheel) as files:
            metadata = files.read(next(name for name in files.namelist() if name.endswith("/METADATA"))).decode()
        wheels = fetch_wheels(re.search(r"^Requires-Dist: (torch==\S+)", metadata, re.M)[1])
        print(f"wheels that pip brings: {sum(file.stat().st_size for file in wheels.iterdir()) / 1e6:.0f} MB")
        shared = out / "shared"
        shared.mkdir()
        for file in (*wheels.glob("*.whl"), wheel, archive):
            os.link(file, shared / file.name)

        root = Root(make_root_archive(True), shared)
        roots.append(root)
        timed("pip install", root.command("python3 -m venv /venv && /venv/bin/pip install --quiet --no-index --find-links /shared /shared/tidepool-*.whl"), 1200)
        used = subprocess.run(["du", "-sm", root.dir / "venv"], text=True, capture_output=True, timeout=120).stdout.split()[0]
        print(f"installed: {used} MB")
        seconds, _ = timed("quickstart", root.command("cd /tmp && /venv/bin/tidepool train /venv/share/tidepool/configs/quickstart.yaml --run-dir run"), 600)
        accuracy = json.loads((root.dir / "tmp/run/summary.json").read_text())["accuracy"]
        print(f"accuracy {accuracy['before']:.2f} -> {accuracy['after']:.2f}")
        if accuracy["after"] < 0.9:
            sys.exit("FAIL the quickstart did not learn")
        if seconds > QUICKSTART_AT_MOST_S:
            sys.exit(f"FAIL the quickstart took {seconds:.0f} s, more than {QUICKSTART_AT_MOST_S}")

        without_cuda = " ".join("/shared/" + next(wheels.glob(f"{name}-*.whl")).name for name in ("torch", "nvidia_cuda_runtime", "nvidia_cuda_cupti"))
        timed("pip install --no-deps", root.command("rm -r /venv && python3 -m venv /venv && /venv/bin/pip install --quiet --no-index --no-deps "
                                                    f"/shared/tidepool-*.whl {without_cuda}"), 1200)
        used = subprocess.run(["du", "-sm", root.dir / "venv"], text=True, capture_output=True, timeout=120).stdout.split()[0]
        print(f"installed: {used} MB")
        timed("a run without CUDA's libraries", root.command("cd /tmp && /venv/bin/tidepool train /venv/share/tidepool/configs/test/rl_colocated.yaml "
                                                             "--run-dir small train.steps=2"), 300)

        bare = Root(make_root_archive(False), shared)
        roots.append(bare)
        timed("archive", bare.command("cd /opt && tar -xf /shared/tidepool-*.tar.gz && mv tidepool-* t && cd /tmp && ! command -v python3 && "
                                      "/opt/t/bin/tidepool train /opt/t/share/tidepool/configs/test/rl_colocated.yaml --run-dir run train.steps=2"), 600)
        if not json.loads((bare.dir / "tmp/run/summary.json").read_text())["finished"]:
            sys.exit("FAIL the archive's run is not finished")
        print("passed")
    finally:
        for root in roots:
            root.remove()
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
