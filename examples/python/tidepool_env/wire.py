"""The generated modules of environment.proto: of the installed package, or, where this folder lies in Tidepool's tree, made
in a temporary folder by grpcio-tools."""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile

import tidepool_env


def _make() -> str:
    """Puts a folder with the modules on the package's path."""
    try:
        from grpc_tools import protoc
    except ImportError:
        sys.exit(f"tidepool_env: {pathlib.Path(__file__).parent} is not an installed package, and grpcio-tools, which makes its modules then, is "
                 "missing; run pip install ./examples/python of Tidepool's tree, or pip install grpcio-tools")

    proto = pathlib.Path(__file__).resolve().parents[3] / "proto" / "environment.proto"
    if not proto.exists():
        sys.exit(f"tidepool_env: there is no {proto}; install the package (pip install ./examples/python)")
    out = pathlib.Path(tempfile.mkdtemp(prefix="tidepool-env-"))
    (out / "tidepool_env").mkdir()
    shutil.copyfile(proto, out / "tidepool_env" / "environment.proto")
    if protoc.main(["protoc", f"-I{out}", f"--python_out={out}", f"--grpc_python_out={out}", "tidepool_env/environment.proto"]) != 0:
        sys.exit(f"tidepool_env: {proto} could not be compiled")
    tidepool_env.__path__.append(str(out / "tidepool_env"))
    return str(out)


_made = ""
try:
    from tidepool_env import environment_pb2 as messages
except ImportError:
    _made = _make()
    from tidepool_env import environment_pb2 as messages
from tidepool_env import environment_pb2_grpc as services

if _made:  # they are in memory now
    tidepool_env.__path__.pop()
    shutil.rmtree(_made, ignore_errors=True)

__all__ = ["messages", "services"]
