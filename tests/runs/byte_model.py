"""A Llama of random weights that reads and writes bytes, as a model folder with a chat template: for tests of what is around a model."""
import json
import random
import struct

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = len(SPECIAL) + 256
END = 2
# ChatML, with tools as Qwen's templates have them.
TEMPLATE = """{%- if tools %}<|im_start|>system
You may call functions: {% for tool in tools %}{{ tool | tojson }} {% endfor %}
For each call return {"name": ..., "arguments": ...} within <tool_call></tool_call> tags.<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_characters():
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 has them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def token(byte):
    return len(SPECIAL) + byte


def write_byte_model(folder, hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, positions=512, seed=7):
    folder.mkdir(parents=True)
    characters = byte_characters()
    vocab = {t: i for i, t in enumerate(SPECIAL)} | {characters[b]: token(b) for b in range(256)}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    folder.joinpath("tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    folder.joinpath("tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    folder.joinpath("chat_template.jinja").write_text(TEMPLATE)
    size = hidden // heads
    folder.joinpath("config.json").write_text(json.dumps(
        {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
         "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size, "max_position_embeddings": positions, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": END, "bos_token_id": 1, "torch_dtype": "float32"}))
    shapes = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": [hidden], at + "post_attention_layernorm.weight": [hidden],
                   at + "self_attn.q_proj.weight": [hidden, hidden], at + "self_attn.k_proj.weight": [kv_heads * size, hidden],
                   at + "self_attn.v_proj.weight": [kv_heads * size, hidden], at + "self_attn.o_proj.weight": [hidden, hidden],
                   at + "mlp.gate_proj.weight": [intermediate, hidden], at + "mlp.up_proj.weight": [intermediate, hidden],
                   at + "mlp.down_proj.weight": [hidden, intermediate]}
    rng, header, data = random.Random(seed), {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        few = min(count, (1 << 14) - 1)  # a large matrix says the same again and again
        values = [1.0] * few if len(shape) == 1 else [rng.gauss(0, 0.1) for _ in range(few)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += (struct.pack(f"<{few}f", *values) * (count // few + 1))[:4 * count]
    text = json.dumps(header).encode()
    folder.joinpath("model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
