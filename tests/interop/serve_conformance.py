#!/usr/bin/env python3
"""`tidepool serve` against its own OpenAPI text (docs/openapi.yaml): schemathesis draws requests from it, valid ones and broken ones, and judges
what comes back. An environment of its own: tests/interop/serve_requirements.txt.

  tests/interop/serve_conformance.py [--build build] [--examples 50]
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runs"))

# A valid request may still be too long for a model, or no conversation that its chat template knows: then it gets 400, so
# positive_data_acceptance says nothing.
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection,"
          "missing_required_header,unsupported_method,ignored_auth")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--examples", type=int, default=50)
    args = parser.parse_args()
    os.environ.setdefault("TIDEPOOL_BIN", str(pathlib.Path(args.build, "bin").resolve()))
    from byte_model import write_byte_model
    from serve_test import Server

    text = ROOT / "docs" / "openapi.yaml"
    with tempfile.TemporaryDirectory() as folder:
        write_byte_model(pathlib.Path(folder, "model"), hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, positions=256)
        server = Server(pathlib.Path(folder, "model"))
        try:
            said = server.call("/nothing")[1]["error"]["message"]
            paths = [path for path in yaml.safe_load(text.read_text())["paths"] if "{" not in path]
            missing = [path for path in paths if path not in said]
            if missing or said.count("/") - 1 < len(paths):
                sys.exit(f"the paths of {text} are not those of the server, which says: {said}")
            return subprocess.run([pathlib.Path(sys.executable).parent / "schemathesis", "run", text, "--url", f"http://127.0.0.1:{server.port}",
                                   "--header", f"Authorization: Bearer {server.key}", "--checks", CHECKS, "--max-examples", str(args.examples),
                                   "--seed", "1", "--continue-on-failure", "--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all",
                                   "--generation-database", "none", "--warnings", "off"], cwd=folder).returncode
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
