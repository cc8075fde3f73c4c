#!/usr/bin/env python3
"""Random LoRA adapters on random small models, made by `peft`, through `conformance-hf` and `tidepool export`.

  tests/interop/adapter_differential.py --build build [--models 4] [--seed 1]

Of every adapter: logits of the model with it, as we compute them, against PEFT's; the folder written again by us, loaded by
PEFT, with the same tensors and logits; the model with the adapter merged by us, in transformers and here. Ranks, alphas,
targets (all, some, a regex, single layers; of mixtures experts too), rslora and stored types vary. Exit code 1 if a logit is further off than the
limit below, of the largest one.
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
import peft
import torch
import transformers
from safetensors.torch import load_file

LIMIT = 1e-5  # relative, in float32
BESIDE = ["embed_tokens", "lm_head"]  # outside of the layers; of a tied model each has an adapter of its own, as in PEFT
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe"}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["gate_up_proj", "down_proj"]  # of a mixture these are parameters, each of all experts
EAGER = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}


class Program:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps({"id": 1, **request}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def logits(self, ids, **request):
        answer = self.ask(op="model.logits", ids=ids, positions=list(range(len(ids))), dtype="float32", **request)
        if "logits" not in answer:
            raise RuntimeError(f"model.logits says {answer}")
        return np.frombuffer(base64.b64decode(answer["logits"]["b64"]), dtype="<f4").reshape(answer["logits"]["shape"])


def random_model(family, rng):
    kv = rng.choice([1, 2])
    heads = kv * rng.choice([1, 2, 3])
    head = rng.choice([8, 16, 24])
    args = dict(vocab_size=rng.choice([97, 300]), hidden_size=heads * head, intermediate_size=rng.choice([33, 64, 150]), num_hidden_layers=rng.choice([1, 2, 3]),
                num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=256, tie_word_embeddings=rng.random() < 0.5)
    if family.startswith("qwen3"):
        args["head_dim"] = head
    if family.endswith("moe"):
        experts = rng.randint(2, 6)
        args.update(num_experts=experts, num_experts_per_tok=rng.randint(1, min(3, experts)), moe_intermediate_size=rng.choice([8, 20, 33]), norm_topk_prob=rng.random() < 0.5,
                    mlp_only_layers=[1] if args["num_hidden_layers"] > 1 and rng.random() < 0.4 else [])
        if family == "qwen2_moe":
            args["shared_expert_intermediate_size"] = rng.choice([8, 24])
    if family == "llama":
        args.update(attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4)
    if family == "mistral":
        args["sliding_window"] = None
    model = getattr(transformers, FAMILIES[family] + "ForCausalLM")(getattr(transformers, FAMILIES[family] + "Config")(**args)).float().eval()
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.copy_((1.0 if "norm" in name else 0.0) + 0.3 * torch.randn_like(p))
        else:
            p.copy_(torch.randn_like(p) * (0.5 if "embed" in name else 1.2 / p.shape[-1] ** 0.5))
    return model


def random_adapter(base, rng):
    """A PEFT model with an adapter of random values, and what was chosen."""
    layers = base.config.num_hidden_layers
    sparse = [layer for layer in range(layers) if layer not in base.config.mlp_only_layers] if hasattr(base.config, "mlp_only_layers") else []
    kind = rng.choice(["all", "some", "regex", "layers"] + ([] if sparse else ["all-linear"]))
    modules = ATTENTION if sparse else MODULES
    config = dict(r=rng.choice([1, 2, 4, 7]), lora_alpha=rng.choice([1, 4, 16, 2.5]), use_rslora=rng.random() < 0.4, lora_dropout=rng.choice([0.0, 0.1]),
                  task_type=rng.choice(["CAUSAL_LM", None]))
    some = rng.sample(modules, rng.randint(1, len(modules) - 1))
    beside = rng.sample(BESIDE, rng.randint(0, 2))
    config["target_modules"] = {"all": modules + beside, "all-linear": "all-linear", "some": rng.choice([some + beside, beside or some]),
                                "regex": r"(.*\.)?(" + "|".join(some + beside) + ")", "layers": some}[kind]
    if kind == "layers":
        config["layers_to_transform"] = sorted(rng.sample(range(layers), rng.randint(1, layers)))
    if sparse:
        names = rng.sample(EXPERTS, rng.randint(1, 2))
        of_layers = rng.sample(sparse, rng.randint(1, len(sparse)))
        config["target_parameters"] = rng.choice([names, ["mlp.experts." + name for name in names],
                                                  [f"layers.{layer}.mlp.experts.{name}" for layer in of_layers for name in rng.sample(EXPERTS, rng.randint(1, 2))]])
        config["lora_dropout"] = 0.0  # PEFT has none for parameters
        if rng.random() < 0.3:
            config["target_modules"] = []
    model = peft.get_peft_model(base, peft.LoraConfig(**config)).eval()
    for name, p in model.named_parameters():
        if "lora_" in name:  # those of mixtures less: with 0.2 PEFT itself is 9.4e-6 off its own float64
            p.copy_(torch.randn_like(p) * (1 / p.shape[-1] ** 0.5 if "lora_A" in name else 0.1 if sparse else 0.2))
    beside = beside if config["target_modules"] else []
    if kind != "all-linear" and set(beside) & set(BESIDE):
        kind += f", {'tied' if base.config.tie_word_embeddings else 'untied'}"
    return model, f"{kind} {config}"


def check_reward_model(program, build, family, rng, folder):
    """An adapter with a value head (SEQ_CLS) of a language model. Returns the errors of what a reward model says, and what is wrong."""
    random_model(family, rng).save_pretrained(folder("base"))

    def load(name):
        return transformers.AutoModelForSequenceClassification.from_pretrained(folder(name), num_labels=1, **EAGER).eval()

    sparse = family.endswith("moe")
    targets = rng.sample((ATTENTION if sparse else MODULES) + ["embed_tokens"], rng.randint(1, 5))
    model = peft.get_peft_model(load("base"), peft.LoraConfig(r=rng.choice([1, 2, 4]), lora_alpha=rng.choice([4, 16]), task_type="SEQ_CLS", target_modules=targets,
                                                              target_parameters=EXPERTS if sparse else None)).eval()
    for name, p in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            p.copy_(torch.randn_like(p) * (1 / p.shape[-1] ** 0.5 if "lora_A" in name or "score" in name else 0.2))
    model.save_pretrained(folder("adapter"))
    ids = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(2, 60))]
    batch = torch.tensor([ids])
    model = peft.PeftModel.from_pretrained(load("base"), folder("adapter")).eval()
    # Relative to the length of the vectors whose product it is: the value itself may be near 0.
    score = next(p for name, p in model.named_parameters() if name.endswith("score.modules_to_save.default.weight"))
    size = float(score.double().norm()) * model.config.hidden_size ** 0.5
    want = float(model.double()(batch).logits[0, 0])
    wrong = []
    answer = program.ask(op="model.value", model=folder("base"), adapter=folder("adapter"), ids=ids)
    if "value" not in answer:
        return {}, [f"model.value says {answer}"]
    merge = subprocess.run([build + "/bin/tidepool", "export", folder("adapter"), "--merge", "--model", folder("base"), "--out", folder("merged")], capture_output=True, text=True)
    if merge.returncode != 0:
        return {}, [f"tidepool export says {merge.stderr}"]
    saved = program.ask(op="adapter.save", model=folder("base"), adapter=folder("adapter"), out=folder("again"))
    if not saved.get("ok"):
        return {}, [f"adapter.save says {saved}"]
    again = peft.PeftModel.from_pretrained(load("base"), folder("again")).eval()
    if abs(float(again.double()(batch).logits[0, 0]) - want) > 1e-12 * size:
        wrong.append("PEFT has another value with the folder that was written here")
    values = {"with the adapter": answer["value"], "merged": program.ask(op="model.value", model=folder("merged"), ids=ids)["value"],
              "merged, in transformers": float(load("merged")(batch).logits[0, 0])}
    return {name: abs(value - want) / size for name, value in values.items()}, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--models", type=int, default=6, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    program = Program(args.build + "/bin/conformance-hf")
    failures = []
    for family in FAMILIES:
        worst = {"with the adapter": 0.0, "merged": 0.0, "merged, in transformers": 0.0}
        for index in range(args.models):
            rng = random.Random(f"{args.seed} {family} {index}")
            torch.manual_seed(rng.randrange(1 << 30))
            with tempfile.TemporaryDirectory() as root:
                folder = lambda name: str(pathlib.Path(root, name))
                random_model(family, rng).save_pretrained(folder("base"))
                load = lambda name: transformers.AutoModelForCausalLM.from_pretrained(folder(name), **EAGER).eval()
                model, what = random_adapter(load("base"), rng)
                if rng.random() < 0.3:
                    for name, p in model.named_parameters():
                        if "lora_" in name:
                            p.copy_(p.to(torch.bfloat16))
                model.save_pretrained(folder("adapter"))
                where = f"{family} {index} ({what})"
                model = peft.PeftModel.from_pretrained(load("base"), folder("adapter")).eval()
                ids = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(2, 60))]
                batch = torch.tensor([ids])
                # The reference in float64, so that what is measured is our error.
                want = model.double()(batch).logits[0].numpy()
                plain = load("base").double()(batch).logits[0].numpy()
                if np.abs(want - plain).max() < 0.01 * np.abs(want).max():
                    failures.append(f"{where}: the adapter changes nothing, so nothing is compared")

                def compare(name, got):
                    error = float(np.abs(got - want).max() / np.abs(want).max())
                    worst[name] = max(worst[name], error)
                    if not error < LIMIT:
                        failures.append(f"{where}: logits {name} differ by {error:.1e}")

                try:
                    compare("with the adapter", program.logits(ids, model=folder("base"), adapter=folder("adapter")))
                    merge = subprocess.run([args.build + "/bin/tidepool", "export", folder("adapter"), "--merge", "--model", folder("base"), "--out", folder("merged")],
                                           capture_output=True, text=True)
                    if merge.returncode != 0:
                        raise RuntimeError(f"tidepool export says {merge.stderr}")
                    compare("merged", program.logits(ids, model=folder("merged")))
                    compare("merged, in transformers", load("merged")(batch).logits[0].numpy())
                    saved = program.ask(op="adapter.save", model=folder("base"), adapter=folder("adapter"), out=folder("again"))
                    if not saved.get("ok"):
                        raise RuntimeError(f"adapter.save says {saved}")
                    before, after = (load_file(folder(name) + "/adapter_model.safetensors") for name in ("adapter", "again"))
                    for name, tensor in after.items():  # layers that it leaves alone have zeros
                        if not torch.equal(tensor, before.get(name, torch.zeros_like(tensor)).float()):
                            failures.append(f"{where}: {name} is another when it is written again")
                    lost = [name for name in before if name not in after and not name.endswith(".base_layer.weight")]  # PEFT's copies of the base's
                    if lost:
                        failures.append(f"{where}: written again it has no {lost[0]}")
                    again = peft.PeftModel.from_pretrained(load("base"), folder("again")).eval()
                    if np.abs(again.double()(batch).logits[0].numpy() - want).max() > 1e-12 * np.abs(want).max():
                        failures.append(f"{where}: PEFT has other logits with the folder that was written here")
                except RuntimeError as error:
                    failures.append(f"{where}: {error}")
        worst_value = 0.0
        for index in range(args.models):
            rng = random.Random(f"{args.seed} {family} {index} reward model")
            torch.manual_seed(rng.randrange(1 << 30))
            with tempfile.TemporaryDirectory() as root:
                errors, wrong = check_reward_model(program, args.build, family, rng, lambda name: str(pathlib.Path(root, name)))
            failures += [f"{family} reward model {index}: {text}" for text in wrong]
            failures += [f"{family} reward model {index}: the value {name} differs by {error:.1e}" for name, error in errors.items() if not error < LIMIT]
            worst_value = max([worst_value, *errors.values()])
        print(f"{family}: {args.models} adapters of reward models, largest error of a value {worst_value:.1e}")
        print(f"{family}: {args.models} adapters, largest error of a logit, of the largest one: " + ", ".join(f"{name} {error:.1e}" for name, error in worst.items()))
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"peft {peft.__version__}: {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
