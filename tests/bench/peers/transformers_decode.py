"""Greedy decoding by transformers, for language_vs_peer.py and scripts/gpu-jobs: random bfloat16 weights, SDPA attention. Writes {"decode": tokens a second after the prompt, "prefill": tokens a second of the prompt}.
"""

import argparse
import json
import sys
import time

from model_shape import add_arguments, make_model, wait


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--new", type=int, default=32)
    add_arguments(parser)
    args = parser.parse_args()
    model = make_model(args, "bfloat16").eval()
    import torch

    vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary, (args.batch, args.prompt))
    fills, decodes = [], []
    with torch.inference_mode():
        for _ in range(3):
            wait(args)
            begin = time.monotonic()
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            wait(args)
            filled = time.monotonic()
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            for _ in range(args.new):
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
            wait(args)
            decodes.append(time.monotonic() - filled)
            fills.append(filled - begin)
    json.dump({"decode": args.batch * args.new / min(decodes), "prefill": args.batch * args.prompt / min(fills)}, sys.stdout)


if __name__ == "__main__":
    main()
