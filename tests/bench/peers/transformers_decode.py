"""Greedy decoding by transformers on a CPU, for language_vs_peer.py: SmolLM2-135M's shape, random bfloat16 weights, SDPA
attention. Writes {"decode": tokens a second after the prompt, "prefill": tokens a second of the prompt}.
"""

import argparse
import json
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                         num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
                         attn_implementation="sdpa")
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, config.vocab_size, (args.batch, args.prompt))
    fills, decodes = [], []
    with torch.inference_mode():
        for _ in range(3):
            begin = time.monotonic()
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            filled = time.monotonic()
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            for _ in range(args.new):
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
            decodes.append(time.monotonic() - filled)
            fills.append(filled - begin)
    json.dump({"decode": args.batch * args.new / min(decodes), "prefill": args.batch * args.prompt / min(fills)}, sys.stdout)


if __name__ == "__main__":
    main()
