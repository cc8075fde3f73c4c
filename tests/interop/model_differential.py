#!/usr/bin/env python3
"""Loads a model folder with `transformers` and compares greedy answers with `tidepool generate`, in float32.

  pip install -r tests/interop/requirements.txt     (in an environment of its own)
  tests/interop/model_differential.py --binary build/bin/tidepool --model models/smollm2-135m-instruct

DIR may be an imported folder or the `final/` of a run. Every tensor has to be found and used, with none left
over. Exit code 1 if anything differs.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers

QUESTIONS = [
    "What is the capital of France?",
    "What is 7 * 8? Reply with only the number.",
    "Name three colours.",
    "Write  12 + 30 =  and the sum; nothing else.",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--new-tokens", type=int, default=24)
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, output_loading_info=True)
    failures = [f"{kind}: {sorted(keys)}" for kind, keys in loading.items() if keys]

    with tempfile.TemporaryDirectory() as folder:
        rows, answers = pathlib.Path(folder, "rows.jsonl"), pathlib.Path(folder, "answers.jsonl")
        rows.write_text("".join(json.dumps({"prompt": [{"role": "user", "content": q}]}) + "\n" for q in QUESTIONS))
        subprocess.run([args.binary, "generate", "--model", args.model, "--dtype", "float32", "--max-new-tokens", str(args.new_tokens),
                        "--input", rows, "--output", answers], check=True, stdout=subprocess.DEVNULL)
        ours = [json.loads(line)["text"] for line in answers.read_text().splitlines()]

    for question, our_text in zip(QUESTIONS, ours, strict=True):
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
        batch = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            ids = model.generate(**batch, max_new_tokens=args.new_tokens, do_sample=False)[0, batch["input_ids"].shape[1]:]
        theirs = tokenizer.decode(ids, skip_special_tokens=True)
        if theirs != our_text:
            failures.append(f"{question!r}: transformers {theirs!r}, tidepool {our_text!r}")
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{args.model}: {len(QUESTIONS)} greedy answers and the tensors compared with transformers {transformers.__version__}, "
          f"{len(failures)} differences")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
