#!/usr/bin/env python3
"""examples/reward_server.py: its answers over the wire, and a whole run that is rewarded by it.

    tests/docs/reward_server_test.py [BUILD_FOLDER]

Needs gRPC for Python: of the python3 that runs this, of make interop, or of the system (scripts/setup --tests
installs that). Without it this skips, exit code 77. The run needs the built programs; without those only the answers are tested.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIP = 77


def with_grpc():
    """Starts again with an interpreter that has grpcio, if this one has not."""
    try:
        import grpc  # noqa: F401
        import grpc_tools  # noqa: F401
        return
    except ImportError as problem:
        missing = problem.name
    tried = [os.environ.get("TIDEPOOL_INTEROP_PYTHON", ""), os.path.join(ROOT, ".deps/interop-venv/bin/python"), "/usr/bin/python3"]
    for python in tried:
        if python and os.path.exists(python) and os.path.realpath(os.path.dirname(python)) != os.path.realpath(os.path.dirname(sys.executable)):
            if subprocess.run([python, "-c", "import grpc, grpc_tools"], capture_output=True).returncode == 0:
                os.execv(python, [python, *sys.argv])
    print(f"SKIPPED: the Python package {missing} is not installed; `scripts/setup --tests` installs it (Debian's python3-grpcio and python3-grpc-tools)")
    sys.exit(SKIP)


def check(name, condition, found):
    print(f"{'ok  ' if condition else 'FAIL'} {name}" + ("" if condition else f": {found}"))
    if not condition:
        check.failed += 1


check.failed = 0


def test_answers(reward_server, grpc):
    def score(request):
        if request.prompt == "crash":
            raise RuntimeError("the grader broke")
        if request.prompt == "none":
            return None
        if request.prompt == "nan":
            return float("nan")
        return reward_server.closeness(request)

    server, port = reward_server.serve("127.0.0.1:0", score)
    messages, services = reward_server.load_proto()
    stub = services.RewardStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]))
    ok, data = messages.ScoreReply.OK, messages.ScoreReply.DATA
    ask = lambda **fields: stub.Score(messages.ScoreRequest(**fields), timeout=20)  # noqa: E731

    reply = ask(answer="cba", text="cba", ended=True)
    check("the right answer is worth 1", reply.outcome == ok and reply.score == 1.0, reply)
    reply = ask(answer="cba", text="cbx", ended=True)
    check("a near miss is worth something", reply.outcome == ok and 0 < reply.score < 1, reply)
    reply = ask(answer="cba", text="cba", ended=False)
    check("a response that was cut off is worth 0, as a judgement", reply.outcome == ok and reply.score == 0, reply)
    reply = ask(text="cba", ended=True)
    check("a row without an answer is bad data, not 0", reply.outcome == data and reply.detail != "", reply)
    for prompt, says, what in [("crash", "RuntimeError: the grader broke", "a grader that breaks"), ("none", "returned None", "None"),
                               ("nan", "returned nan", "a score that is not finite")]:
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            try:
                found = ask(prompt=prompt, answer="x")
            except grpc.RpcError as error:
                found = error
        check(f"{what} is a gRPC error, and no reward of 0",
              isinstance(found, grpc.RpcError) and found.code() == grpc.StatusCode.INTERNAL and says in found.details(), found)
        check(f"{what} shows its traceback", "Traceback (most recent call last)" in printed.getvalue() and says in printed.getvalue(),
              printed.getvalue())
    together = stub.ScoreBatch(messages.ScoreBatchRequest(samples=[messages.ScoreRequest(answer="cba", text=text, ended=True)
                                                                   for text in ("cba", "xyz")]), timeout=20)
    check("a batch has a reply for each sample, in order", [reply.score for reply in together.replies] == [1.0, 0.0], together)
    server.stop(None)


def test_run(reward_server, build):
    tidepool = os.path.join(build, "bin", "tidepool")
    if not (os.path.exists(tidepool) and os.path.exists(tidepool + "-worker")):
        print(f"note {tidepool} is not built; the run is left out")
        return
    seen = []

    def score(request):
        seen.append(request.sample)
        return reward_server.closeness(request)

    folder = tempfile.mkdtemp(prefix="tidepool-reward-test-")
    server, _ = reward_server.serve(f"unix:{folder}/socket", score)
    run = os.path.join(folder, "run")
    config = os.path.join(ROOT, "configs/test/rl_colocated.yaml")
    done = subprocess.run([tidepool, "train", config, "--run-dir", run, "train.steps=2",
                           f'reward.functions=[{{name: closeness, endpoint: "unix:{folder}/socket"}}]'],
                          cwd=ROOT, capture_output=True, text=True, timeout=300)
    check("a run with this reward ends well", done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:])
    if done.returncode == 0:
        check("it was asked for samples of the run", len(seen) >= 32, seen)
        rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
        check("its scores are in the metrics", any("reward/closeness/mean" in row["metrics"] for row in rows), rows[-1])
        done = subprocess.run([tidepool, "check", run], capture_output=True, text=True)
        check("the journal is proven", done.returncode == 0, done.stdout + done.stderr)
    server.stop(None)
    shutil.rmtree(folder, ignore_errors=True)


def main():
    with_grpc()
    import grpc

    sys.path.insert(0, os.path.join(ROOT, "examples"))
    import reward_server

    test_answers(reward_server, grpc)
    test_run(reward_server, sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TIDEPOOL_BUILD_DIR", os.path.join(ROOT, "build")))
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
