"""A Llama of random weights that reads and writes bytes, as a GGUF file in blocks of 8 and 4 bits: for tests of what keeps them."""
import random
import struct

from byte_model import END, SPECIAL, TEMPLATE, byte_characters

F32, Q4_0, Q4_1, Q8_0 = 0, 2, 3, 8


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf_model(path, hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, seed=7):
    characters = byte_characters()
    tokens = SPECIAL + [characters[b] for b in range(256)] + [f"<|pad{i}|>" for i in range(13)]  # 272: whole strips
    kinds = [3] * len(SPECIAL) + [1] * 256 + [3] * 13
    values = {"general.architecture": "llama", "llama.block_count": layers, "llama.context_length": 512, "llama.embedding_length": hidden,
              "llama.feed_forward_length": intermediate, "llama.attention.head_count": heads, "llama.attention.head_count_kv": kv_heads,
              "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
              "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": END, "tokenizer.chat_template": TEMPLATE}
    metadata = b""
    for key, value in values.items():
        if isinstance(value, str):
            metadata += text(key) + struct.pack("<I", 8) + text(value)
        elif isinstance(value, int):
            metadata += text(key) + struct.pack("<II", 4, value)
        elif isinstance(value, float):
            metadata += text(key) + struct.pack("<If", 6, value)
        elif value and isinstance(value[0], int):
            metadata += text(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        else:
            metadata += text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    rng = random.Random(seed)

    def half(size):
        return struct.pack("<e", rng.choice([-1, 1]) * size * rng.uniform(0.5, 1))

    def matrix(k, n, kind):
        data = bytearray()
        for _ in range(n * k // 32):
            data += half(0.4 / k**0.5 if kind != Q8_0 else 0.02 / k**0.5)
            if kind == Q4_1:
                data += half(0.1)
            data += rng.randbytes(32 if kind == Q8_0 else 16)
        return (k, n), kind, bytes(data)

    def norm():
        return (hidden,), F32, struct.pack(f"<{hidden}f", *[1.0] * hidden)
    head = hidden // heads
    tensors = {"token_embd.weight": matrix(hidden, len(tokens), Q8_0)}
    for layer in range(layers):
        at = f"blk.{layer}."
        for name, (k, n) in (("attn_q", (hidden, hidden)), ("attn_k", (hidden, head * kv_heads)), ("attn_v", (hidden, head * kv_heads)),
                             ("ffn_gate", (hidden, intermediate)), ("ffn_up", (hidden, intermediate)), ("ffn_down", (intermediate, hidden))):
            tensors[f"{at}{name}.weight"] = matrix(k, n, Q4_1)
        tensors[f"{at}attn_output.weight"] = matrix(hidden, hidden, Q4_0)
        tensors[f"{at}attn_norm.weight"], tensors[f"{at}ffn_norm.weight"] = norm(), norm()
    tensors["output_norm.weight"] = norm()
    infos, data = b"", b""
    for name, (extents, kind, values_of) in tensors.items():
        infos += text(name) + struct.pack("<I", len(extents)) + struct.pack(f"<{len(extents)}Q", *extents) + struct.pack("<IQ", kind, len(data))
        data += values_of + bytes(-len(values_of) % 32)
    head_bytes = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + metadata + infos
    path.write_bytes(head_bytes + bytes(-len(head_bytes) % 32) + data)
