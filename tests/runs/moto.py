"""An S3 for a test: moto, with the bucket `tests` (scripts/setup --tests)."""
import os
import re
import socket
import subprocess
import sys
import unittest

from harness import BIN, ROOT

SERVER = ROOT / ".deps/moto-venv/bin/moto_server"
KEYS = {"AWS_ACCESS_KEY_ID": "testing-key", "AWS_SECRET_ACCESS_KEY": "testing-secret-that-nobody-prints",
        "AWS_EC2_METADATA_DISABLED": "true"}
needs_s3 = unittest.skipUnless(SERVER.exists() and (BIN / "libtidepool_s3.so").exists(),
                               "no moto, or no libtidepool_s3.so; scripts/setup --tests, then cmake and build again")
REQUEST = """import sys, urllib.request
method, url = sys.argv[1:]
data = sys.stdin.buffer.read() or None
sys.stdout.buffer.write(urllib.request.urlopen(urllib.request.Request(url, data=data, method=method), timeout=10).read())"""


class Moto:
    """Ends with the test. `within`: the command that runs another one where the server is to be, in a network of its own say."""

    def __init__(self, test, address="127.0.0.1", within=lambda command: command):
        os.environ.update(KEYS)
        test.addCleanup(lambda: [os.environ.pop(key) for key in KEYS])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"http://{address}:{free.getsockname()[1]}"
        self.within, self.log = within, test.dir / "moto.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(within([str(SERVER), "-H", address, "-p", self.endpoint.rsplit(":", 1)[1]]), stdout=log, stderr=log)
        test.started.append(self.process)
        test.wait_for(lambda: self.process.poll() is not None or self.request("PUT", "").returncode == 0, "moto", self.process)
        self.keys = ("checkpoint.store=s3://tests/some/prefix", f"checkpoint.s3_endpoint={self.endpoint}",
                     "checkpoint.s3_region=us-east-1", "checkpoint.store_timeout_s=2")

    def request(self, method, key, data=b""):
        """A child makes it: this process is in one network alone."""
        return subprocess.run(self.within([sys.executable, "-c", REQUEST, method, f"{self.endpoint}/tests{key}"]), input=data, capture_output=True,
                              timeout=300)

    def objects(self):
        listed = self.request("GET", "?list-type=2&max-keys=1000").stdout.decode()
        return [key for key in re.findall(r"<Key>(.*?)</Key>", listed) if not key.endswith("/")]
