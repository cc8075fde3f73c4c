#!/usr/bin/env python3
"""Damaged and odd model folders through `conformance-hf`: it answers every request, with a reason where it refuses, and
where both it and `transformers` give logits, they are the same.

  tests/interop/hostile_folders.py --binary build/bin/conformance-hf [--cases 300] [--seed 1]

A case is a small random model of some family with one thing changed: a value of config.json or tokenizer.json by something
of another type, size or meaning, a key gone, bytes flipped, a file cut off, empty, a folder, a FIFO, or a link; the links of
the Hugging Face cache are there too. Exit code 1 if the program ends, hangs, refuses without a reason, or computes other
numbers than the reference.
"""
import argparse
import base64
import copy
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
import transformers

import family_differential as family

VALUES = [None, True, False, 0, 1, 2, 3, 7, -1, 0.5, 1e-30, 1e308, -0.0, 2**31, 2**63, 2**64, -2**63, 10**30, "", "x", "gelu", "relu", "linear", "llama3", "yarn", "longrope",
          "dynamic", "sliding_attention", "bfloat16", [], [1], ["full_attention"], {}, {"a": 1}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "mrope"},
          "\ud800", "x" * 100000, [[]] * 50, 4096, 100, 64]
KEYS = ["hidden_act", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "rope_scaling", "rope_parameters", "rope_theta",
        "partial_rotary_factor", "head_dim", "num_key_value_heads", "num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps",
        "tie_word_embeddings", "max_position_embeddings", "model_type", "quantization_config", "num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob",
        "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "shared_expert_intermediate_size", "eos_token_id", "bos_token_id", "pretraining_tp", "attention_dropout",
        "original_max_position_embeddings", "qkv_bias", "architectures", "dtype", "torch_dtype"]


def change_json(path, rng, keys):
    value = json.loads(path.read_text())
    what = rng.random()
    if what < 0.7:
        key = rng.choice(keys + list(value))
        new = copy.deepcopy(rng.choice(VALUES))
        value[key] = new
        text = json.dumps(value)
        note = f"{path.name}: {key} = {str(new)[:60]!r}"
    elif what < 0.85 and value:
        key = rng.choice(list(value))
        del value[key]
        text = json.dumps(value)
        note = f"{path.name}: without {key}"
    else:  # inside
        nodes = [value]
        for node in nodes:
            if len(nodes) > 300:
                break
            nodes += [v for v in (node.values() if isinstance(node, dict) else node) if isinstance(v, (dict, list)) and v]
        node = rng.choice(nodes)
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        new = copy.deepcopy(rng.choice(VALUES))
        node[key] = new
        text = json.dumps(value)
        note = f"{path.name}: inside, {key} = {str(new)[:60]!r}"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return note


def change_file(path, rng):
    data = bytearray(path.read_bytes())
    what = rng.choice(["flip", "flip", "cut", "empty", "folder", "fifo", "loop", "gone", "grow", "insert"])
    if what == "flip" and data:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 3000))] ^= 1 << rng.randrange(8)
    elif what == "cut":
        data = data[:rng.randrange(len(data) + 1)]
    elif what == "empty":
        data = bytearray()
    elif what == "grow":
        data += bytes(rng.randint(1, 100))
    elif what == "insert":
        at = rng.randrange(len(data) + 1)
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path.name)
    elif what != "gone":
        path.write_bytes(data)
    return f"{path.name}: {what}"


def as_cache(folder, rng):
    """The folder as the Hugging Face cache keeps it: links into blobs/."""
    blobs = folder.parent / (folder.name + "-blobs")
    blobs.mkdir()
    for path in list(folder.iterdir()):
        target = blobs / f"{rng.randrange(1 << 60):x}"
        path.rename(target)
        path.symlink_to(os.path.relpath(target, folder))
    if rng.random() < 0.5:
        folder.chmod(0o555)


def make_base(name, rng, folder):
    config, left_out = family.random_config(name, rng)
    torch.manual_seed(rng.randrange(1 << 30))
    model = getattr(transformers, family.CLASSES[name] + "ForCausalLM")(config).float().eval()
    for n, p in model.named_parameters():
        p.copy_((1.0 if "norm" in n else 0.0) + 0.3 * torch.randn_like(p) if p.dim() == 1 else torch.randn_like(p) * (0.5 if "embed" in n else 1.2 / p.shape[-1] ** 0.5))
    family.write_model(model, folder, rng, left_out)
    symbols = {chr(c): i for i, c in enumerate(range(33, 60))}
    folder.joinpath("tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": [{"id": 30, "content": "<s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}],
         "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None,
         "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": symbols, "merges": []}}))
    folder.joinpath("tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}))


def reference_logits(folder, ids):
    """None where the reference refuses, or makes up weights that the folder has not."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                                experts_implementation="eager", output_loading_info=True)
        missing = info["missing_keys"] or info.get("mismatched_keys")
        return None if missing else model.eval()(torch.tensor([ids])).logits[0].double().numpy()
    except BaseException as error:  # noqa: BLE001: whatever it dies of
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(50)
    program = family.Program(args.binary)
    failures, slowest = [], (0, "")
    counts = {"both": 0, "refused by both": 0, "refused here": 0, "accepted here": 0}
    with tempfile.TemporaryDirectory() as scratch:
        bases = []
        for i, name in enumerate(family.FAMILIES * 2):
            base = pathlib.Path(scratch, f"base-{i}")
            base.mkdir()
            make_base(name, random.Random(f"{args.seed} base {i}"), base)
            bases.append(base)
        for case in range(args.cases):
            rng = random.Random(f"{args.seed} {case}")
            folder = pathlib.Path(scratch, f"case-{case}")
            shutil.copytree(rng.choice(bases), folder)
            what = rng.random()
            files = sorted(folder.iterdir())
            if what < 0.6:
                note = change_json(folder / "config.json", rng, KEYS)
            elif what < 0.7:
                note = change_json(folder / "tokenizer.json", rng, ["model", "pre_tokenizer", "normalizer", "added_tokens", "decoder", "post_processor"])
            elif what < 0.75:
                note = change_json(folder / "tokenizer_config.json", rng, ["chat_template", "bos_token", "eos_token"])
            elif what < 0.9:
                note = change_file(rng.choice(files), rng)
            else:
                note = "nothing"
            if rng.random() < 0.3 and not any(p.is_dir() or p.is_fifo() for p in folder.iterdir()):
                as_cache(folder, rng)
                note += ", as the cache keeps it"
            ids = [rng.randrange(97) for _ in range(20)]
            answers = {}
            for request in (dict(op="model.check", model=str(folder)), dict(op="model.logits", model=str(folder), ids=ids, positions=list(range(20)), dtype="float32"),
                            dict(op="tokenizer.encode", tokenizer=str(folder), text="\"#$ <s> x"), dict(op="tokenizer.decode", tokenizer=str(folder), ids=[0, 30, 5], skip_special=True),
                            dict(op="chat.render", tokenizer=str(folder), messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True)):
                started = time.monotonic()
                answer = answers[request["op"]] = program.ask(**request)
                slowest = max(slowest, (time.monotonic() - started, note))
                if "error" in answer and (not answer["error"] or answer["error"].startswith(("UNAVAILABLE", "INTERNAL"))):
                    failures.append(f"{case} {note}: {request['op']} answers {str(answer)[:300]}")
            got, want = answers["model.logits"], reference_logits(folder, ids)
            key = "both" if "logits" in got and want is not None else "accepted here" if "logits" in got else "refused by both" if want is None else "refused here"
            counts[key] += 1
            if key == "both":
                values = np.frombuffer(base64.b64decode(got["logits"]["b64"]), dtype="<f4").reshape(got["logits"]["shape"])
                finite = bool(np.isfinite(want).all())  # flipped bits of a weight can make any number
                error = float(np.abs(values - want).max() / want.std()) if finite and values.shape == want.shape else 0.0 if values.shape == want.shape else float("inf")
                if not error < family.FLOAT32_LIMIT and finite or values.shape != want.shape:
                    failures.append(f"{case} {note}: logits differ by {error:.2e} of their standard deviation")
            elif key == "refused here" and os.environ.get("VERBOSE"):
                print(f"refused here: {note}: {got.get('error', got)[:200]}")
            elif key == "accepted here" and os.environ.get("VERBOSE"):
                print(f"accepted here: {note}")
            if note.startswith("nothing") and key != "both":
                failures.append(f"{case} {note}: {key}: {str(got)[:300]}")
            if folder.exists():
                folder.chmod(0o755)
            shutil.rmtree(folder)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{args.cases} folders: {counts}; slowest answer {slowest[0]:.1f} s ({slowest[1][:80]}); {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
