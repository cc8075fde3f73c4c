#!/usr/bin/env python3
"""The endpoint beside generation without it: tokens a second of so many sessions at once, over HTTP from as many connections, whole
and streamed, against `tidepool generate` of the same prompts in one batch.

  tests/bench/serve_bench.py [--model DIR] [--sessions 32] [--tokens 256] [--repeats 5] [--threads 2] [--build build]

Without --model a Llama of random weights is made that takes some milliseconds a step. Seconds are those of --tokens tokens less those of
one token, so that neither loading nor prompts count. The texts of both are compared. Prints JSON lines.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runs"))


class Endpoint:
    def __init__(self, program, model, threads):
        self.process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", "--threads", str(threads), "--name", "model"],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port, key_file = int(re.search(r":(\d+)/v1", line)[1]), re.search(r"key: (\S+)", line)[1]
        self.headers = {"Authorization": "Bearer " + pathlib.Path(key_file).read_text().strip()}
        if self.process.stdout.readline() != "serves\n":
            sys.exit("tidepool serve does not serve")

    def ask(self, prompt, tokens, stream):
        own = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        own.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream,
                                                          **({"stream_options": {"include_usage": True}} if stream else {})}), self.headers)
        text = own.getresponse().read().decode()
        own.close()
        if not stream:
            answer = json.loads(text)
            return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]
        pieces = [json.loads(p[6:]) for p in text.split("\n\n") if p and p != "data: [DONE]"]
        return "".join(c["text"] for p in pieces for c in p["choices"]), pieces[-1]["usage"]["completion_tokens"]

    def seconds(self, prompts, tokens, stream):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            start = time.perf_counter()
            said = list(pool.map(lambda p: self.ask(p, tokens, stream), prompts))
            return time.perf_counter() - start, said


def generate(program, model, prompts, tokens, threads, scratch):
    rows, out = scratch / "rows.jsonl", scratch / "out.jsonl"
    rows.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    out.unlink(missing_ok=True)
    start = time.perf_counter()
    subprocess.run([program, "generate", "--model", model, "--input", str(rows), "--output", str(out), "--max-new-tokens", str(tokens),
                    "--threads", str(threads)], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    said = [json.loads(line) for line in out.read_text().splitlines()]
    return seconds, [(row["text"], row["tokens"]) for row in said]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", default="build")
    args = parser.parse_args()
    program = str(pathlib.Path(args.build, "bin", "tidepool"))
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        model = args.model
        if model is None:
            from byte_model import write_byte_model
            model = str(scratch / "model")
            # No chat template: `generate` would put prompts into it.
            write_byte_model(pathlib.Path(model), hidden=512, layers=8, heads=8, kv_heads=4, intermediate=1536, positions=2048)
            pathlib.Path(model, "chat_template.jinja").unlink()
        prompts = [f"session {i}: " for i in range(args.sessions)]
        endpoint = Endpoint(program, model, args.threads)
        rates = {"whole": [], "stream": [], "generate": []}
        try:
            for turn in range(args.repeats + 1):  # the first one warms up
                base, texts = generate(program, model, prompts, args.tokens, args.threads, scratch)
                least, _ = generate(program, model, prompts, 1, args.threads, scratch)
                count = sum(tokens - 1 for _, tokens in texts)
                found = {"generate": count / (base - least)}
                for name in ("whole", "stream"):
                    one, _ = endpoint.seconds(prompts, 1, name == "stream")
                    all_of_them, said = endpoint.seconds(prompts, args.tokens, name == "stream")
                    if said != texts:
                        sys.exit(f"{name}: the endpoint says something else")
                    found[name] = count / (all_of_them - one)
                for name, rate in found.items():
                    if turn > 0:
                        rates[name].append(rate)
        finally:
            endpoint.process.send_signal(signal.SIGINT)
            endpoint.process.communicate(timeout=60)
    base = statistics.median(rates["generate"])
    for name in ("whole", "stream"):
        values = rates[name]
        median = statistics.median(values)
        print(json.dumps({"bench": "serve", "case": f"{name}, {args.sessions} sessions", "value": round(median, 1), "unit": "tokens/s", "better": "higher",
                          "baseline": "tidepool generate", "baseline_value": round(base, 1), "ratio": round(median / base, 3), "goal": 0.95,
                          "repeats": args.repeats, "spread": round((max(values) - min(values)) / median, 3)}), flush=True)


if __name__ == "__main__":
    main()
