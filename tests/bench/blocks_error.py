#!/usr/bin/env python3
"""What a model loses in blocks of 8 or 4 bits: its loss on held-out text against that of the model they were made of.

  tests/bench/blocks_error.py [--model models/smollm2-135m-instruct] [--bin build/bin] [--rows 64] [--types Q8_0,Q4_1,Q4_0]

Makes a GGUF file of each type with the `gguf` package (pip install -r tests/interop/gguf_requirements.txt), takes it in
with `tidepool import --keep-blocks`, and judges the same paragraphs of docs/ before the first step of an sft job with an
adapter that changes nothing yet. One JSON object a type: the loss per token (nats), its ratio to the model's, and the
root mean square of the matrices' error over that of their values.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import gguf
import numpy as np
import torch
from safetensors import safe_open

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    parts = name.split(".")
    if parts[1] != "layers":
        return TOP[name.removesuffix(".weight")] + ".weight"
    return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}.weight"


def permute(values, heads):  # as llama.cpp stores q and k of a Llama
    rows = values.shape[0]
    return values.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


def write_gguf(folder, path, kind):
    """Returns the relative error of the matrices."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    words = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    special = {t["id"] for t in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(words, key=words.get))
    writer.add_token_types([3 if i in special else 1 for i in range(len(words))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])
    lost = total = 0.0
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            values = file.get_tensor(name).to(torch.float32).numpy()
            part = name.split(".")[-2]
            if part in heads:
                values = permute(values, heads[part])
            if values.ndim == 1:
                writer.add_tensor(gguf_name(name), values)
                continue
            blocks = gguf.quants.quantize(values, kind)
            lost += float(np.square(gguf.quants.dequantize(blocks, kind) - values, dtype=np.float64).sum())
            total += float(np.square(values, dtype=np.float64).sum())
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (lost / total) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--types", default="Q8_0,Q4_1,Q4_0")
    args = parser.parse_args()
    tidepool = str(args.bin / "tidepool")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        paragraphs = [p for page in sorted((ROOT / "docs").glob("*.md")) for p in re.split(r"\n\s*\n", page.read_text())
                      if len(p) > 500 and not p.lstrip().startswith(("|", "```", "-"))]
        chosen = paragraphs[1::max(1, len(paragraphs) // args.rows)][:args.rows]
        rows, other = scratch / "rows.jsonl", scratch / "other.jsonl"
        rows.write_text("".join(json.dumps({"text": p[:1500]}) + "\n" for p in chosen))
        other.write_text(json.dumps({"text": paragraphs[0][:1500]}) + "\n")

        def loss(folder, at):
            config = scratch / "job.yaml"
            config.write_text(json.dumps({
                "name": "blocks", "job": "sft", "seed": 1, "model": {"path": str(folder), "dtype": "bfloat16", "lora": {"rank": 1}},
                "data": {"path": str(other), "eval_path": str(rows), "max_prompt_tokens": 1024}, "rollout": {"max_new_tokens": 16},
                "train": {"groups_per_step": 1, "steps": 1, "learning_rate": 1e-9, "micro_batch_tokens": 2048},
                "eval": {"before_train": True, "after_train": False}, "cluster": {"device": "cpu", "slots": 1}}))
            run = scratch / at
            done = subprocess.run([tidepool, "train", str(config), "--run-dir", str(run)], cwd=scratch, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            for line in (run / "metrics.jsonl").read_text().splitlines():
                if "eval/loss/before" in (metrics := json.loads(line)["metrics"]):
                    return metrics["eval/loss/before"]
            raise SystemExit(f"{run} has no eval/loss/before: {done.stdout}{done.stderr}")

        base = loss(args.model.resolve(), "numbers")
        for name in args.types.split(","):
            file, folder = scratch / f"{name}.gguf", scratch / name
            error = write_gguf(args.model, file, gguf.GGMLQuantizationType[name])
            subprocess.run([tidepool, "import", str(file), "--keep-blocks", "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
            in_blocks = loss(folder, "run-" + name)
            print(json.dumps({"bench": "blocks_error", "model": args.model.name, "type": name, "rows": args.rows, "loss": round(in_blocks, 4),
                              "loss_of_numbers": round(base, 4), "ratio": round(in_blocks / base, 4), "matrix_error": round(error, 5)}), flush=True)


if __name__ == "__main__":
    main()
