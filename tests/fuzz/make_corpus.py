#!/usr/bin/env python3
"""Writes a seed corpus for each fuzz target: small valid files, and some that are nearly so.

  tests/fuzz/make_corpus.py FOLDER
"""
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def safetensors(tensors, metadata=None, pad=0):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def configs():
    base = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 99}
    yield {"model_type": "llama", **base, "rope_theta": 500000.0, "attention_bias": True,
           "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}
    yield {"model_type": "qwen3", **base, "head_dim": 24, "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}, "layer_types": ["full_attention"] * 2}
    yield {"model_type": "mistral", **base, "sliding_window": None, "eos_token_id": [1, 2]}
    yield {"model_type": "qwen2", **base, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}
    yield {"model_type": "qwen2_moe", **base, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "mlp_only_layers": [0]}
    yield {"model_type": "qwen3_moe", **base, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}


def tokenizers():
    letters = {c: i for i, c in enumerate("abcdehlorwĠĊ!12")}
    vocab = {**letters, "he": 15, "ll": 16, "hell": 17, "Ġw": 18}
    merges = ["h e", "l l", "he ll", "Ġ w"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": 19, "content": "<s>", "special": True, "lstrip": True, "rstrip": False, "single_word": False, "normalized": False},
             {"id": 20, "content": "word", "special": False, "lstrip": False, "rstrip": True, "single_word": True, "normalized": True}]
    yield {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": merges}, "pre_tokenizer": byte_level, "decoder": {"type": "ByteLevel"}, "added_tokens": added}
    yield {"model": {"type": "BPE", "vocab": vocab, "merges": [m.split() for m in merges], "ignore_merges": True}, "normalizer": {"type": "NFC"},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                   {"type": "Split", "pattern": {"Regex": GPT2}, "behavior": "Isolated", "invert": False}, {**byte_level, "use_regex": False}]},
           "decoder": {"type": "ByteLevel"},
           "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [19], "tokens": ["<s>"]}}}, "added_tokens": added}


def gguf(arch="llama"):
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    values = [("general.architecture", 8, text(arch)), ("general.alignment", 4, struct.pack("<I", 32)), (f"{arch}.block_count", 4, struct.pack("<I", 1)),
              (f"{arch}.embedding_length", 4, struct.pack("<I", 32)), (f"{arch}.feed_forward_length", 4, struct.pack("<I", 32)),
              (f"{arch}.attention.head_count", 4, struct.pack("<I", 2)), (f"{arch}.attention.head_count_kv", 4, struct.pack("<I", 1)),
              (f"{arch}.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)), (f"{arch}.context_length", 4, struct.pack("<I", 64)),
              (f"{arch}.rope.freq_base", 6, struct.pack("<f", 10000.0)), (f"{arch}.vocab_size", 4, struct.pack("<I", 4)),
              ("tokenizer.ggml.model", 8, text("gpt2")), ("tokenizer.ggml.pre", 8, text("smollm")),
              ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 4) + b"".join(text(t) for t in ["a", "b", "ab", "<s>"])),
              ("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, 1) + text("a b")),
              ("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, 4) + struct.pack("<4i", 1, 1, 1, 3)), ("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 3))]
    if arch == "qwen3moe":
        values += [(f"{arch}.expert_count", 4, struct.pack("<I", 3)), (f"{arch}.expert_used_count", 4, struct.pack("<I", 2))]
    d = 32
    shapes = {"token_embd.weight": [d, 4], "output_norm.weight": [d]}
    for name, shape in {"attn_norm": [d], "attn_q": [d, d], "attn_k": [d, 16], "attn_v": [d, 16], "attn_output": [d, d], "ffn_norm": [d], "ffn_gate": [d, d],
                        "ffn_up": [d, d], "ffn_down": [d, d]}.items():
        shapes[f"blk.0.{name}.weight"] = shape
    if arch == "qwen3moe":
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            del shapes[f"blk.0.{name}.weight"]
        shapes |= {"blk.0.ffn_gate_inp.weight": [d, 3], "blk.0.ffn_gate_exps.weight": [d, d, 3], "blk.0.ffn_up_exps.weight": [d, d, 3], "blk.0.ffn_down_exps.weight": [d, d, 3]}
    infos, data = b"", b""
    for name, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        kind, size = (8, count // 32 * 34) if len(shape) > 1 else (0, count * 4)
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, len(data))
        data += bytes(size) + bytes(-size % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(values)) + b"".join(text(k) + struct.pack("<I", t) + v for k, t, v in values) + infos
    return head + bytes(-len(head) % 32) + data


def sampled_segment() -> bytes:
    """Two tokens of one version, as core/sample/codec.h writes them."""
    return bytes([1, 1 | 4, 2]) + struct.pack("<2i2f", 5, 6, -0.5, -1.0) + bytes([1, 0, 3, 2])


def trajectory() -> bytes:
    prompt = bytes([0, 0, 3]) + struct.pack("<3i", 1, 2, 3)
    return struct.pack("<BqiiiB", 1, 7, 0, 2, 0, 0) + bytes([2]) + prompt + sampled_segment()


def main():
    root = pathlib.Path(sys.argv[1])

    def seed(target, name, content):
        path = root / target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    tensors = [("a", "F32", [2, 2], bytes(16)), ("b", "BF16", [3], bytes(6)), ("empty", "I64", [0], b""), ("scalar", "F64", [], bytes(8))]
    seed("safetensors", "plain", safetensors(tensors))
    seed("safetensors", "metadata", safetensors(tensors[:1], {"format": "pt"}, pad=7))
    seed("safetensors", "cut", safetensors(tensors)[:-3])
    for i, config in enumerate(configs()):
        seed("model_config", f"config{i}", "0" + json.dumps(config))
    seed("model_config", "generation", "1" + json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0, "pad_token_id": None}))
    a, b = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    seed("model_index", "good", json.dumps({"metadata": {"total_size": 32}, "weight_map": {"a": a, "b": b}}))
    seed("model_index", "escape", json.dumps({"weight_map": {"a": "../" + a, "b": "/dev/zero"}}))
    for i, tokenizer in enumerate(tokenizers()):
        seed("tokenizer", f"tokenizer{i}", json.dumps(tokenizer, ensure_ascii=False))
    for i, sample in enumerate(["Hello world's 123  \n\n x<s>", "e\u0301 \u65e5\u672c \U0001f600 word<w>word", "\r\n \t", "a" * 300]):
        seed("text", f"text{i}", sample)
    templates = sorted((HERE.parent / "core" / "text" / "templates").glob("*.jinja"))
    for path in templates:
        seed("chat_template", path.name, path.read_bytes())
    for i, source in enumerate(["{{ messages|map(attribute='role')|join(',') }}", "{% macro m(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ m(1) }}",
                                "{% for m in messages[::-1] %}{{ loop.index }}{% if loop.first %}{% continue %}{% endif %}{{ m.content.strip()[:-1] | upper }}{% endfor %}"]):
        seed("chat_template", f"small{i}", source)
    seed("tokenizer_config", "text", json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}))
    seed("tokenizer_config", "list", json.dumps({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "{{ tools|tojson }}"}]}))
    seed("gguf", "llama", gguf())
    seed("gguf", "qwen3moe", gguf("qwen3moe"))
    seed("jsonl", "rl", '{"prompt": "1+1", "answer": 2, "extra": {"a": [1]}}\n\n{"prompt": [{"role": "user", "content": "x"}], "answer": "y"}\nbad\n')
    seed("jsonl", "pairs", '{"chosen": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}]}\n{"chosen": "a b", "rejected": "a c"}\n')
    seed("jsonl", "completions", '{"prompt": "x", "completion": [{"role": "assistant", "content": "y"}]}\n{"text": "x"}\n')
    seed("jsonl", "sft", '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n')
    seed("trajectory", "tokens", trajectory())
    seed("trajectory", "segment", b"\x01" + sampled_segment())
    for word in (0, 1):  # two words apart, and a run of three
        seed("weight_changes", f"words{word}", bytes([word, 40, 4, 1, 2, 0xff, 0x03, 1, 2, 1, 2, 3]))
    for i, answer in enumerate(["<answer>(1+2)*3</answer>", "so 1,024.50 it is", "#### 42", "[1, '2', 3.0]", "-12e3", "S.#\n.G"]):
        seed("grading", f"answer{i}", answer)


if __name__ == "__main__":
    main()
