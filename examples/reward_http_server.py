#!/usr/bin/env python3
"""A reward as a server of its own, with Python's standard library alone: JSON over HTTP.

    python3 examples/reward_http_server.py 7001 &
    build/bin/tidepool train configs/quickstart.yaml \
        'reward.functions=[{name: closeness, endpoint: "http://127.0.0.1:7001/"}]'
"""

import difflib, http.server, json, sys, traceback


def grade(sample):  # replace it by yours: docs/adding_a_reward.md lists what a sample has
    if not sample["answer"]:
        return {"data_error": "the data row has no answer"}  # dropped, never trained
    if not sample["ended"]:
        return {"score": 0.0}
    return {"score": difflib.SequenceMatcher(None, sample["text"].strip(), sample["answer"].strip()).ratio()}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # a connection serves many samples; it takes a Content-Length
    disable_nagle_algorithm = True  # head and body are written apart, and the body is not to wait for anything

    def do_POST(self):
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = [grade(sample) for sample in asked] if isinstance(asked, list) else grade(asked)
            status, body = 200, json.dumps(answer, allow_nan=False)
        except Exception:  # Tidepool tries again, and says why if it gives up
            traceback.print_exc()
            status, body = 500, traceback.format_exc().splitlines()[-1]
        try:
            body = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # the run has ended, or waits no longer than timeout_s

    def log_message(self, *_):
        pass  # a line a sample is too many


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1] if sys.argv[1:] else 7001)), Handler).serve_forever()
