#!/usr/bin/env python3
"""conformance-hf as a program: answers in order whatever comes in, and goes on after its worker was lost.

  tests/conformance_hf/protocol_test.py build/bin/conformance-hf
"""
import base64
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile

CONFIG = {"model_type": "llama", "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 20,
          "num_hidden_layers": 1, "vocab_size": 13, "tie_word_embeddings": True, "eos_token_id": 2}
SHAPES = {"model.embed_tokens.weight": [13, 24], "model.norm.weight": [24], "model.layers.0.input_layernorm.weight": [24],
          "model.layers.0.post_attention_layernorm.weight": [24], "model.layers.0.self_attn.q_proj.weight": [24, 24],
          "model.layers.0.self_attn.k_proj.weight": [8, 24], "model.layers.0.self_attn.v_proj.weight": [8, 24],
          "model.layers.0.self_attn.o_proj.weight": [24, 24], "model.layers.0.mlp.gate_proj.weight": [20, 24],
          "model.layers.0.mlp.up_proj.weight": [20, 24], "model.layers.0.mlp.down_proj.weight": [24, 20]}


def write_model(folder, config=CONFIG, cut=0, skip=()):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rng, header, data = random.Random(1), {}, b""
    for name, shape in SHAPES.items():
        if name in skip:
            continue
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        content = struct.pack(f"<{count}f", *(rng.gauss(0, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes((struct.pack("<Q", len(text)) + text + data)[: None if cut == 0 else -cut])
    return str(folder)


class Program:
    def __init__(self, *words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, id_, **request):
        answer = self.line(json.dumps({"id": id_, **request}))
        assert answer["id"] == id_, answer
        return answer

    def child(self):
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        good = write_model(scratch / "good")
        program = Program(binary)
        assert program.ask("a", op="model.check", model=good) == {"id": "a", "ok": True}
        answer = program.ask(1, op="model.logits", model=good, ids=[1, 5, 12], positions=[2, 0], dtype="float32")
        assert answer["logits"]["shape"] == [2, 13] and len(base64.b64decode(answer["logits"]["b64"])) == 2 * 13 * 4, answer
        logits = struct.unpack("<26f", base64.b64decode(answer["logits"]["b64"]))
        assert len(program.ask(2, op="model.logprobs", model=good, ids=[1, 5, 12, 3], start=2, temperature=0.7)["logprobs"]) == 2
        ids = program.ask({"any": [1]}, op="model.greedy", model=good, ids=[1, 5, 12], max_new_tokens=40)["ids"]
        assert len(ids) == 40 and ids[0] == max(range(13), key=lambda i: logits[i]), ids  # no stop at the end token
        assert program.ask(None, op="unheard.of") == {"id": None, "unsupported": True}

        def fails(*words, **request):
            answer = program.ask(7, **request)
            assert answer.get("error") and all(w in answer["error"] for w in words), (words, answer)

        fails("token id", op="model.logits", model=good, ids=[13], positions=[0])
        fails("position", op="model.logits", model=good, ids=[1], positions=[1])
        fails("ids", op="model.greedy", model=good, ids=[], max_new_tokens=3)
        fails("max_new_tokens", op="model.greedy", model=good, ids=[1], max_new_tokens=10**15)
        fails("start", op="model.logprobs", model=good, ids=[1, 2], start=0)
        fails("model", op="model.check")
        fails("config.json", op="model.check", model=str(scratch / "nowhere"))
        fails("cut short", op="model.check", model=write_model(scratch / "cut", cut=5))
        fails("v_proj", op="model.check", model=write_model(scratch / "missing", skip=["model.layers.0.self_attn.v_proj.weight"]))
        fails("relu", op="model.check", model=write_model(scratch / "relu", {**CONFIG, "hidden_act": "relu"}))
        fails("4096", op="model.logits", model=write_model(scratch / "huge", {**CONFIG, "num_hidden_layers": 2**40}), ids=[1], positions=[0])
        folder = pathlib.Path(write_model(scratch / "escape"))
        (folder / "model.safetensors").rename(scratch / "outside.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "../outside.safetensors" for name in SHAPES}}))
        fails("plain file", op="model.check", model=str(folder))
        folder = pathlib.Path(write_model(scratch / "deep"))
        (folder / "config.json").write_text('{"model_type":"llama","x":' + "[" * 200000 + "]" * 200000 + "}")
        fails("nested", op="model.check", model=str(folder))
        folder = pathlib.Path(write_model(scratch / "tokenizer"))
        (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}')
        fails("tokenizer.json", op="model.check", model=str(folder))
        for text in ("", "{", "[1]", '"x"', '{"id":3}', '{"id":3,"op":5}', "[" * 100000):
            if text:
                answer = program.line(text)
                assert answer["error"], answer

        # The worker dies, or stops: one answer is an error, the next is right.
        os.kill(program.child(), signal.SIGKILL)
        fails("killed", op="model.check", model=good)
        assert program.ask(8, op="model.check", model=good) == {"id": 8, "ok": True}
        program.close()
        program = Program(binary, "--deadline-s", "3")
        assert program.ask(1, op="model.check", model=good)["ok"]
        os.kill(program.child(), signal.SIGSTOP)
        assert "no answer" in program.ask(2, op="model.check", model=good)["error"]
        program.close()
    print("conformance-hf: all answers as expected")


if __name__ == "__main__":
    main()
