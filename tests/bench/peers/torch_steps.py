"""Training steps on random tokens by PyTorch and transformers, for language_vs_peer.py and scripts/gpu-jobs: forward,
policy-gradient loss, backward, clipping, fused AdamW. Random weights, SDPA attention, no gradient checkpointing.

Rows are sorted by length and computed in padded micro-batches of at most --micro tokens. Writes {"seconds": [...]}, the first
step left out.
"""

import argparse
import json
import sys
import time

from model_shape import add_arguments, make_model, wait


def micro_batches(lengths, budget):
    """Of the lengths, longest first: lists whose padded size stays below the budget (one row at least)."""
    groups = []
    for length in sorted(lengths, reverse=True):
        if groups and (len(groups[-1]) + 1) * groups[-1][0] <= budget:
            groups[-1].append(length)
        else:
            groups.append([length])
    return groups


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", required=True, help="tokens of each row, with commas")
    parser.add_argument("--weights", choices=["float32", "bfloat16"], default="float32", help="float32 computes under bf16 autocast")
    parser.add_argument("--micro", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=2)
    add_arguments(parser)
    args = parser.parse_args()
    model = make_model(args, args.weights).train()
    import torch

    vocabulary = model.config.vocab_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    lengths = [int(n) for n in args.lengths.split(",")]
    total = sum(n - 1 for n in lengths)
    seconds = []
    for _ in range(args.steps + 1):
        batches = []
        for group in micro_batches(lengths, args.micro):
            ids = torch.randint(0, vocabulary, (len(group), group[0]))
            real = torch.arange(group[0])[None, :] < torch.tensor(group)[:, None]
            batches.append((ids, real, torch.randn(len(group))))
        wait(args)
        begin = time.monotonic()
        for ids, real, advantages in batches:
            with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.weights == "float32"):
                whole = bool(real.all())
                hidden = model.model(input_ids=ids, attention_mask=None if whole else real.long(), use_cache=False).last_hidden_state
                kept = real[:, 1:]
                logits = model.lm_head(hidden[:, :-1][kept])
            losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][kept], reduction="none")
            weights = advantages[:, None].expand_as(kept)[kept]
            ((losses * weights).sum() / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(args)
        seconds.append(time.monotonic() - begin)
    json.dump({"seconds": seconds[1:]}, sys.stdout)


if __name__ == "__main__":
    main()
