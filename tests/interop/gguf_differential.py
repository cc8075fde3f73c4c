#!/usr/bin/env python3
"""Compares GGUF values and an imported folder with the `gguf` package, bit for bit.

  pip install -r tests/interop/gguf_requirements.txt     (in an environment of its own)
  tests/interop/gguf_differential.py --binary build/tests/text_conformance [--gguf MODEL.gguf]

First small files with random blocks of every type that is read (extreme scales, NaN and infinity among
them); then, with --gguf, every tensor of that file under its own and its Hugging Face name, as float32
and bfloat16, and the folder that the importer writes. Exit code 1 if anything differs.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import safetensors.numpy

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


class Ours:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def to_bf16(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def values_of(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)


def unpermute(values, heads):
    # The inverse of llama.cpp's LlamaModel.permute.
    shape = values.shape
    return values.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hugging_face_name(name):
    parts = name.split(".")
    if parts[0] != "blk":
        return TOP[parts[0]] + "." + parts[1]
    return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"


class Count:
    done = bad = 0

    def check(self, what, same):
        self.done += 1
        if not same:
            self.bad += 1
            print("differs:", what)


def random_files(ours, count, scratch):
    rng = np.random.default_rng(7)
    for type_name in TYPES:
        kind = gguf.GGMLQuantizationType[type_name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = 64, 256
        raw = rng.integers(0, 256, size=(rows, columns // block * size), dtype=np.uint8)
        path = os.path.join(scratch, type_name + ".gguf")
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("x", raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with np.errstate(all="ignore"):
            want = values_of(gguf.GGUFReader(path).tensors[0])
        got = ours.ask(op="gguf.tensor", file=path, name="x", dtype="bf16")
        count.check(type_name + " bf16", got.get("sha256") == digest(to_bf16(want)))
        # Which NaN comes out of arithmetic on NaN and infinity is the processor's choice, so float32 bits
        # are compared on blocks with finite scales.
        raw = np.ascontiguousarray(raw).reshape(-1, size)
        for at in {"F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2]}.get(type_name, []):
            raw[:, at + 1] = np.where((raw[:, at + 1] & 0x7C) == 0x7C, raw[:, at + 1] & 0xBF, raw[:, at + 1])
        path += ".finite"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("x", raw.reshape(rows, -1), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        want = values_of(gguf.GGUFReader(path).tensors[0])
        for dtype, array in (("f32", want), ("bf16", to_bf16(want))):
            got = ours.ask(op="gguf.tensor", file=path, name="x", dtype=dtype)
            count.check(f"{type_name} {dtype} {got}", got.get("sha256") == digest(array))


def model_file(ours, count, path, scratch):
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    heads = {"attn_q": reader.fields[architecture + ".attention.head_count"].contents(),
             "attn_k": reader.fields[architecture + ".attention.head_count_kv"].contents()}
    folder = os.path.join(scratch, "imported")
    answer = ours.ask(op="gguf.import", file=path, out=folder)
    count.check(f"import: {answer}", answer.get("ok"))
    checked = ours.ask(op="safetensors.check", file=os.path.join(folder, "model.safetensors"))
    count.check(f"safetensors.check: {checked}", checked.get("ok"))
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data_begin = file.tell()
        for tensor in reader.tensors:
            want = values_of(tensor)
            name = hugging_face_name(tensor.name)
            part = tensor.name.split(".")[-2]
            unpermuted = unpermute(want, heads[part]) if architecture == "llama" and part in heads else want
            for dtype, convert in (("f32", lambda x: x), ("bf16", to_bf16)):
                got = ours.ask(op="gguf.tensor", file=path, name=tensor.name, dtype=dtype)
                count.check(f"{tensor.name} {dtype} {got}", got.get("sha256") == digest(convert(want)))
                got = ours.ask(op="gguf.hf_tensor", file=path, name=name, dtype=dtype)
                count.check(f"{name} {dtype} {got}", got.get("sha256") == digest(convert(unpermuted)))
            info = header.pop(name)
            file.seek(data_begin + info["data_offsets"][0])
            stored = file.read(info["data_offsets"][1] - info["data_offsets"][0])
            count.check(name + " in the folder", info["dtype"] == "BF16" and info["shape"] == list(want.shape)
                        and stored == to_bf16(unpermuted).tobytes())
    count.check(f"other tensors in the folder: {list(header)}", list(header) == ["__metadata__"])
    try:
        loaded = safetensors.safe_open(os.path.join(folder, "model.safetensors"), framework="numpy")
        count.check("names read by the safetensors package", len(loaded.keys()) == len(reader.tensors))
    except Exception as error:  # noqa: BLE001: any refusal is a finding
        count.check(f"the safetensors package refuses the file: {error}", False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--gguf")
    args = parser.parse_args()
    ours = Ours(args.binary)
    count = Count()
    with tempfile.TemporaryDirectory() as scratch:
        random_files(ours, count, scratch)
        if args.gguf:
            model_file(ours, count, args.gguf, scratch)
    print(f"{count.done} compared, {count.bad} differ")
    return 1 if count.bad else 0


if __name__ == "__main__":
    sys.exit(main())
