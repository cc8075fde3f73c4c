#!/usr/bin/env python3
"""A reward as a server of its own, in Python: speaks proto/reward.proto.

    python3 -m venv .deps/reward-venv
    .deps/reward-venv/bin/pip install grpcio grpcio-tools
    .deps/reward-venv/bin/python examples/reward_server.py --listen 127.0.0.1:7001 &
    build/bin/tidepool train configs/quickstart.yaml \
        'reward.functions=[{name: closeness, endpoint: "127.0.0.1:7001"}]'

It needs proto/reward.proto: leave it in this folder, or copy reward.proto beside it. Where Tidepool's wheel is
installed it needs neither that nor grpcio-tools.

Replace closeness() by a function of your own. The number that it returns is a judgement, 0 included. Raise
BadRow for a row that cannot be graded at all: it is dropped and counted as `data_invalid`, never trained.
Any other exception, an answer that is no finite number (None, NaN), or no answer within timeout_s is an
infrastructure failure: its traceback is printed here, the sample is graded again (reward.max_retries), and
only then dropped as `reward_infra`. examples/reward_http_server.py does the same without gRPC.
"""

import argparse
import difflib
import math
import numbers
import os
import sys
import tempfile
import traceback
from concurrent import futures

import grpc


class BadRow(Exception):
    """This row cannot be graded, now or later."""


def closeness(request) -> float:
    """1 for the right answer, less for what only resembles it, 0 if the response was cut off.

    request has prompt, messages (the conversation, with role and content), rendered_prompt (what the model
    read), text (the response), answer, fields (of the data row), ended, response_tokens, max_new_tokens, row,
    line, file, held_out and sample (its name, for logs): see proto/reward.proto.
    """
    if not request.answer:
        raise BadRow("the data row has no answer")
    if not request.ended:
        return 0.0
    return difflib.SequenceMatcher(None, request.text.strip(), request.answer.strip()).ratio()


def load_proto():
    """The generated modules of proto/reward.proto: of Tidepool's wheel, or made in a temporary folder."""
    try:
        from tidepool import reward_pb2, reward_pb2_grpc

        return reward_pb2, reward_pb2_grpc
    except ImportError:
        from grpc_tools import protoc

    here = os.path.dirname(os.path.abspath(__file__))
    places = [here, os.path.join(here, "..", "proto")]
    folder = next((place for place in places if os.path.exists(os.path.join(place, "reward.proto"))), None)
    if folder is None:
        sys.exit(f"reward_server: there is no reward.proto in {' or '.join(places)}; copy Tidepool's proto/reward.proto beside this file")
    out = tempfile.mkdtemp(prefix="tidepool-reward-")
    if protoc.main(["protoc", f"-I{folder}", f"--python_out={out}", f"--grpc_python_out={out}", "reward.proto"]) != 0:
        sys.exit(f"reward_server: {folder}/reward.proto could not be compiled")
    sys.path.insert(0, out)
    import reward_pb2
    import reward_pb2_grpc

    return reward_pb2, reward_pb2_grpc


def serve(listen: str, score, threads: int = 4):
    """Starts a server; returns it and the port it listens on (0 for a unix socket)."""
    messages, services = load_proto()

    def reply_to(request):
        try:
            value = score(request)
            # protobuf takes None for "left out", which is 0.
            if not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise TypeError(f"{score.__name__} returned {value!r} for {request.sample}; expected a finite number")
            return messages.ScoreReply(outcome=messages.ScoreReply.OK, score=value)
        except BadRow as problem:
            return messages.ScoreReply(outcome=messages.ScoreReply.DATA, detail=str(problem))

    def answer(context, make_reply):
        try:
            return make_reply()
        except Exception as problem:  # which tells Tidepool to try again
            traceback.print_exc()
            context.abort(grpc.StatusCode.INTERNAL, f"{type(problem).__name__}: {problem}")

    class Servicer(services.RewardServicer):
        def Score(self, request, context):
            return answer(context, lambda: reply_to(request))

        def ScoreBatch(self, request, context):  # reward.batch above 1: replace it where a model grades many at once
            return answer(context, lambda: messages.ScoreBatchReply(replies=[reply_to(s) for s in request.samples]))

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=threads))
    services.add_RewardServicer_to_server(Servicer(), server)
    port = server.add_insecure_port(listen)
    server.start()
    return server, port


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    # There is no authentication on this port: keep it on loopback or a unix socket.
    parser.add_argument("--listen", default="127.0.0.1:7001", help="host:port, or unix:/path")
    parser.add_argument("--threads", type=int, default=4, help="gradings at a time")
    arguments = parser.parse_args()
    server, port = serve(arguments.listen, closeness, arguments.threads)
    print(f"reward_server: {closeness.__name__} at {arguments.listen}" + (f" (port {port})" if port else ""), flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
