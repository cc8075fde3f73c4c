"""Tidepool from a wheel: starts its programs. The messages of its wire are in reward_pb2, vector_pb2 and control_pb2
(types in .pyi, services in *_pb2_grpc); they need protobuf and grpcio, which `pip install FILE.whl[python]` brings."""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start(program):
    # The programs look for LibTorch beside this package; with pip's --user and the like it may be elsewhere.
    if not os.path.isdir(os.path.join(os.path.dirname(_HERE), "torch", "lib")):
        torch = importlib.util.find_spec("torch")
        if torch is not None:
            libraries = [os.path.join(folder, "lib") for folder in torch.submodule_search_locations]
            before = os.environ.get("LD_LIBRARY_PATH")
            os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(libraries + ([before] if before else []))
    path = os.path.join(_HERE, "bin", program)
    os.execv(path, [path, *sys.argv[1:]])


def _tidepool():
    _start("tidepool")


def _worker():
    _start("tidepool-worker")
