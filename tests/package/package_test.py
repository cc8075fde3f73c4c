#!/usr/bin/env python3
"""The wheel that scripts/package makes, in a virtual environment without network, beside the LibTorch of this build.

    tests/package/package_test.py [BUILD_FOLDER]
"""
import base64
import csv
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve()


def python_with_venv():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 10))"], capture_output=True).returncode == 0:
            return python
    return None


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.run_([ROOT / "scripts/package", BUILD, cls.dir / "out", "--wheel"])
        (cls.wheel,) = (cls.dir / "out").iterdir()

    @staticmethod
    def run_(command, **kwargs):
        done = subprocess.run(command, text=True, capture_output=True, timeout=kwargs.pop("timeout", 240), **kwargs)
        if done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_what_is_in_it_is_what_it_says(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            self.assertEqual(len(names), len(set(names)))
            (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
            rows = {row[0]: row for row in csv.reader(wheel.read(record).decode().splitlines())}
            self.assertEqual(set(rows), set(names))
            for name in set(names) - {record}:
                data = wheel.read(name)
                self.assertEqual(rows[name][1], "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), name)
            metadata = wheel.read(record.replace("RECORD", "METADATA")).decode()
            licences = wheel.read(record.replace("RECORD", "licenses/THIRD_PARTY")).decode()
            listed = [line.split(":")[0] for line in licences.splitlines()[2:]]
            for name in listed:
                self.assertIn(record.replace("RECORD", "licenses/" + name), names)
        pinned = re.search(r"^torch_version=(\S+)", (ROOT / "scripts/setup").read_text(), re.M)[1]
        if "TIDEPOOL_LIBTORCH" not in os.environ:
            self.assertIn(f"Requires-Dist: torch=={pinned}\n", metadata)
        # The line of the documentation for machines without a GPU.
        setup = (ROOT / "scripts/setup").read_text()
        pins = [re.search(rf"^{name}_version=(\S+)", setup, re.M)[1] for name in ("torch", "cuda_runtime", "cuda_cupti")]
        self.assertIn("torch=={} nvidia-cuda-runtime=={} nvidia-cuda-cupti=={}`".format(*pins), (ROOT / "docs/operating.md").read_text())
        if any(name.endswith("/libtidepool_s3.so") for name in names):
            arrow = re.search(r"^pyarrow_version=(\S+)", setup, re.M)[1]
            self.assertIn(f'Requires-Dist: pyarrow=={arrow}; extra == "s3"\n', metadata)
        # Libraries beside the programs, and some of those within them.
        for library in ("libyaml-cpp.so.0.7", "libpcre2-8.so.0", "libgrpc.a", "libprotobuf.a", "headers"):
            self.assertIn(library, licences)

    def test_it_runs_beside_libtorch_from_another_folder(self):
        python = python_with_venv()
        if python is None:
            self.skipTest("no Python 3.10 or newer with venv; apt-get install python3-venv")
        venv = self.dir / "venv"
        self.run_([python, "-m", "venv", venv])
        self.run_([venv / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", self.wheel])
        (site,) = venv.glob("lib/python3*/site-packages")
        for program in (site / "tidepool/bin").iterdir():
            path = re.search(r"R(?:UN)?PATH.*\[(.*)\]", self.run_(["readelf", "-d", program]))[1]
            self.assertTrue(all(folder.startswith("$ORIGIN/") for folder in path.split(":")), f"{program}: {path}")
        torch = pathlib.Path(os.environ.get("TIDEPOOL_LIBTORCH") or ROOT / ".deps/libtorch/torch").resolve()
        for name in ("torch", "torch.libs", "nvidia"):
            if (torch.parent / name).exists():
                (site / name).symlink_to(torch.parent / name)
        # From a folder that has nothing; what would lead to the libraries of the build is not handed over.
        home = self.dir / "home"
        home.mkdir()
        environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(home)}
        configs = venv / "share/tidepool/configs"
        self.run_(["tidepool", "train", configs / "test/rl_colocated.yaml", "--run-dir", "run", "train.steps=2"], cwd=home, env=environment)
        self.assertTrue(json.loads((home / "run/summary.json").read_text())["finished"])
        self.run_(["tidepool", "validate", configs / "quickstart.yaml"], cwd=home, env=environment)
        self.assertIn("tidepool", self.run_(["tidepool-worker", "--version"], cwd=home, env=environment))

        # LibTorch elsewhere, as with pip's --user, is found, too.
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        for name in ("torch", "torch.libs", "nvidia"):
            if (site / name).exists():
                (site / name).rename(elsewhere / name)
        self.run_(["tidepool-worker", "--version"], cwd=home, env={**environment, "PYTHONPATH": str(elsewhere)})

    def test_python_has_the_messages(self):
        for python in (sys.executable, "/usr/bin/python3"):
            if subprocess.run([python, "-c", "import grpc, google.protobuf"], capture_output=True).returncode == 0:
                break
        else:
            self.skipTest("no Python with grpcio and protobuf (scripts/setup --tests)")
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(self.dir / "unpacked")
        for types in ("control", "environment", "reward", "vector"):
            self.assertTrue((self.dir / f"unpacked/tidepool/{types}_pb2.pyi").exists())
        self.run_([python, "-c", "from tidepool import reward_pb2, reward_pb2_grpc, vector_pb2_grpc, control_pb2_grpc\n"
                                 "assert reward_pb2.ScoreRequest(prompt='x').prompt == 'x' and reward_pb2_grpc.RewardServicer"],
                  cwd=self.dir, env={"PYTHONPATH": str(self.dir / "unpacked"), "PATH": "/usr/bin:/bin"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
