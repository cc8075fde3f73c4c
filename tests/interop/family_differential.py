#!/usr/bin/env python3
"""Random small models of every family, written by `transformers`, through `conformance-hf`: logits, log-probabilities
and greedy tokens against the reference's.

  tests/interop/family_differential.py --binary build/bin/conformance-hf [--models 8] [--seed 1]

Sizes are unusual and legal (head size 24, one layer, 3 key/value heads for 9 query heads, vocabulary 300); weights are
stored as float32, bfloat16, float16 or mixed, in one file or several; config.json in the dialect of transformers 4 or 5,
sometimes without the keys whose values are the defaults. Exit code 1 if an error is larger than the limits below or a
greedy token differs where the reference's margin is clear.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

FLOAT32_LIMIT = 3e-4   # of the logits' standard deviation
REPEAT_LIMIT = 1e-5    # equal weights elsewhere in memory: the reference's products of float32 are not bit-stable
BFLOAT16_LIMIT = 0.06  # bfloat16 has 8 bits; the reference computed in bfloat16 is as far from its own float32

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"]
LEAVE_OUT = ["head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "max_position_embeddings", "attention_bias", "mlp_bias", "tie_word_embeddings",
             "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "qkv_bias", "hidden_act", "use_sliding_window", "sliding_window", "bos_token_id",
             "eos_token_id", "num_experts_per_tok"]
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe"}


class Program:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.id = 0

    def ask(self, **request):
        self.id += 1
        self.process.stdin.write(json.dumps({"id": self.id, **request}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self.id, answer
        return answer


def random_config(family, rng):
    kv = rng.choice([1, 2, 3])
    heads = kv * rng.choice([1, 2, 3])
    head = rng.choice([8, 16, 24, 32, 40, 64])
    free_head = family in ("llama", "mistral", "qwen3", "qwen3_moe") and rng.random() < 0.5
    hidden = heads * rng.choice([12, 20, 28]) if free_head else heads * head
    args = dict(vocab_size=rng.choice([97, 300, 517, 1000]), hidden_size=hidden, intermediate_size=rng.choice([33, 64, 150]),
                num_hidden_layers=rng.choice([1, 2, 3]), num_attention_heads=heads, num_key_value_heads=kv, hidden_act="silu",
                max_position_embeddings=rng.choice([128, 512, 4096]), rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-4]),
                tie_word_embeddings=rng.random() < 0.5, bos_token_id=1, eos_token_id=2)
    if free_head or family in ("qwen3",):
        args["head_dim"] = head
    theta = rng.choice([10000.0, 500000.0, 1000000.0])
    rope = {"rope_type": "default", "rope_theta": theta}
    kind = rng.choice(["default", "default", "llama3", "linear", "yarn", "dynamic"])
    if kind == "llama3":
        rope.update(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    elif kind == "linear":
        rope.update(rope_type="linear", factor=2.5)
    elif kind == "yarn":
        rope.update(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
        if rng.random() < 0.5:
            rope.update(beta_fast=16.0, beta_slow=2.0, attention_factor=1.3)
    elif kind == "dynamic":
        rope.update(rope_type="dynamic", factor=2.0)
    args["rope_parameters"] = rope
    if family == "llama":
        args.update(attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4)
    if family == "mistral":
        args["sliding_window"] = rng.choice([None, args["max_position_embeddings"]])
    if family.startswith("qwen3"):
        args["attention_bias"] = rng.random() < 0.4
    if family.startswith("qwen"):
        args.update(use_sliding_window=False, sliding_window=rng.choice([4, 4096]))
    if family.endswith("moe"):
        experts = rng.choice([3, 5, 8])
        args.update(num_hidden_layers=rng.choice([1, 2, 4]), num_experts=experts, num_experts_per_tok=rng.randint(1, experts), moe_intermediate_size=rng.choice([20, 33, 48]),
                    norm_topk_prob=rng.random() < 0.5, decoder_sparse_step=rng.choice([1, 1, 2]), mlp_only_layers=rng.choice([[], [0]]))
        if family == "qwen2_moe":
            args.update(shared_expert_intermediate_size=rng.choice([24, 50]), qkv_bias=rng.random() < 0.7)
    # Keys left out have the defaults of that model type; null is the default as well, where the reference takes it.
    out = [key for key in LEAVE_OUT if rng.random() < 0.15] if rng.random() < 0.6 else []
    if "num_key_value_heads" in out and family != "llama":  # a number there, which must divide the heads
        out.remove("num_key_value_heads")
    if "head_dim" in out and args["hidden_size"] % heads != 0:
        out.remove("head_dim")
    if "max_position_embeddings" in out and args.get("sliding_window") is not None and family == "mistral":  # a window that would count
        out.remove("max_position_embeddings")
    if "num_experts_per_tok" in out and args.get("num_experts", 0) < 8:
        out.remove("num_experts_per_tok")
    args = {key: value for key, value in args.items() if key not in out}
    config = getattr(transformers, CLASSES[family] + "Config")(**args)
    config._attn_implementation = "eager"
    return config, out


def write_model(model, folder, rng, left_out):
    """The folder, with stored types, shards and config dialect of its own. Returns what was chosen."""
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16, "mixed"])
    if dtype != "mixed":
        model.to(dtype)
    model.save_pretrained(folder, max_shard_size=rng.choice(["40KB", "5GB"]))
    if dtype == "mixed":
        for path in pathlib.Path(folder).glob("*.safetensors"):
            tensors = {name: t.to(rng.choice([torch.float32, torch.bfloat16, torch.float16])).contiguous() for name, t in load_file(path).items()}
            save_file(tensors, path, metadata={"format": "pt"})
    path = pathlib.Path(folder, "config.json")
    config = json.loads(path.read_text())
    dialect = rng.choice([4, 5])
    if dialect == 4:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        if config["rope_scaling"] and rng.random() < 0.5 and "llama3" not in rope["rope_type"]:
            config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
        config["torch_dtype"] = config.pop("dtype", "float32")
        if "num_local_experts" in config:
            config["num_experts"] = config.pop("num_local_experts")
    else:
        if "num_experts" in config and rng.random() < 0.5 and config["model_type"] == "qwen3_moe":
            config["num_local_experts"] = config.pop("num_experts")
    for key in left_out:
        config.pop(key, None)
        if key == "rope_parameters":
            config.pop("rope_scaling", None), config.pop("rope_theta", None)
        if key in ("head_dim", "num_key_value_heads") and config["model_type"] == "llama" and rng.random() < 0.4:
            config[key] = None
    config["some_key_of_the_future"] = {"deep": [1, {"x": None}]}
    path.write_text(json.dumps(config))
    return str(dtype), dialect


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", type=int, default=8, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=FAMILIES)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    program = Program(args.binary)
    failures = []
    for family in [args.family] if args.family else FAMILIES:
        worst = {"float32": 0.0, "bfloat16": 0.0}
        compared = 0
        for index in range(args.models):
            rng = random.Random(f"{args.seed} {family} {index}")
            torch.manual_seed(rng.randrange(1 << 30))
            config, left_out = random_config(family, rng)
            model = getattr(transformers, CLASSES[family] + "ForCausalLM")(config).float().eval()
            for name, p in model.named_parameters():
                if p.dim() == 1:
                    p.copy_((1.0 if "norm" in name else 0.0) + 0.3 * torch.randn_like(p))
                else:
                    p.copy_(torch.randn_like(p) * (0.5 if "embed" in name else 1.2 / p.shape[-1] ** 0.5))
            with tempfile.TemporaryDirectory() as folder:
                stored, dialect = write_model(model, folder, rng, left_out)
                where = f"{family} {index} (stored {stored}, dialect {dialect}, rope {config.rope_parameters['rope_type']}, without {left_out})"
                reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
                ids = [rng.randrange(config.vocab_size) for _ in range(rng.randint(2, 90))]
                logits = reference(torch.tensor([ids])).logits[0].double()
                check = program.ask(op="model.check", model=folder)
                if not check.get("ok"):
                    failures.append(f"{where}: model.check says {check}")
                    continue
                for dtype in ("float32", "bfloat16"):
                    positions = sorted(rng.sample(range(len(ids)), min(len(ids), 20)))
                    answer = program.ask(op="model.logits", model=folder, ids=ids, positions=positions, dtype=dtype)
                    if "logits" not in answer:
                        failures.append(f"{where} {dtype}: {answer}")
                        continue
                    got = np.frombuffer(base64.b64decode(answer["logits"]["b64"]), dtype="<f4").reshape(answer["logits"]["shape"])
                    want = logits[positions].numpy()
                    error = float(np.abs(got - want).max() / want.std())
                    if dtype == "bfloat16":
                        error = float(np.sqrt(((got - want) ** 2).mean()) / want.std())
                        if family.endswith("moe"):  # a rounded router may choose other experts: the share of rows that did not
                            row = np.sqrt(((got - want) ** 2).mean(axis=1)) / want.std()
                            error = float(np.median(row))
                    worst[dtype] = max(worst[dtype], error)
                    if not error < (FLOAT32_LIMIT if dtype == "float32" else BFLOAT16_LIMIT):
                        failures.append(f"{where} {dtype}: logits differ by {error:.2e} of their standard deviation")
                # Written again, after it was read in either type: the same names, shapes and bytes, and it loads
                out = folder + "/again"
                shard = rng.choice([20_000, 1 << 40])
                saved = program.ask(op="model.save", model=folder, out=out, dtype=rng.choice(["float32", "bfloat16"]), max_shard_bytes=shard)
                if not saved.get("ok"):
                    failures.append(f"{where}: model.save says {saved}")
                else:
                    before = {k: v for path in pathlib.Path(folder).glob("*.safetensors") for k, v in load_file(path).items()}
                    after = {k: v for path in pathlib.Path(out).glob("*.safetensors") for k, v in load_file(path).items()}
                    if before.keys() != after.keys() or any(before[k].dtype != after[k].dtype or not torch.equal(before[k], after[k]) for k in before):
                        failures.append(f"{where}: the saved tensors are others: {sorted(before.keys() ^ after.keys())[:5]}")
                    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
                    difference = float((again(torch.tensor([ids])).logits[0].double() - logits).abs().max() / logits.std())
                    if not difference < REPEAT_LIMIT:
                        failures.append(f"{where}: logits of the saved folder differ by {difference:.1e} of their standard deviation in the reference library")
                start, temperature = rng.randint(1, len(ids) - 1), rng.choice([0.7, 1.0, 1.5])
                logprobs = torch.log_softmax(logits / temperature, dim=-1)
                want = [logprobs[i - 1, ids[i]].item() for i in range(start, len(ids))]
                got = program.ask(op="model.logprobs", model=folder, ids=ids, start=start, temperature=temperature)
                if "logprobs" not in got or len(got["logprobs"]) != len(want) or max(abs(a - b) for a, b in zip(got["logprobs"], want)) > 1e-3:
                    failures.append(f"{where}: logprobs {got}")
                prompt, n = ids[: rng.randint(1, 20)], 12
                got = program.ask(op="model.greedy", model=folder, ids=prompt, max_new_tokens=n).get("ids")
                row = list(prompt)
                for step in range(n):
                    next_logits = reference(torch.tensor([row])).logits[0, -1]
                    top = torch.topk(next_logits, 2).values
                    token = int(next_logits.argmax())
                    if got is None or got[step] != token:
                        if got is None or float(top[0] - top[1]) > 1e-3 * float(next_logits.std()):
                            failures.append(f"{where}: greedy token {step} is {got}, reference {token}")
                        break
                    row.append(token)
                compared += 1
        print(f"{family}: {compared} models compared, largest logit error float32 {worst['float32']:.2e}, bfloat16 (rms) {worst['bfloat16']:.2e} of the standard deviation")
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"transformers {transformers.__version__}: {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
