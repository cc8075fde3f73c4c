#!/usr/bin/env python3
"""Trains byte-level BPE tokenizers with the `tokenizers` library, in the styles of the published families, and
compares ids and texts with it.

  tests/interop/tokenizer_trained_differential.py --binary build/tests/text_conformance [--tokenizers 40] [--strings 400]

Each has a style (GPT-2, Llama 3, Qwen2, SmolLM2, a bare ByteLevel), a vocabulary size, a training text, an alphabet
that may lack bytes, merges as strings or pairs, `ignore_merges`, an unknown token or none, and added tokens with random
flags, which may be words of the vocabulary, overlap each other or hold spaces and marks. Exit code 1 if anything differs.
"""
import argparse
import glob
import json
import os
import random
import sys
import sysconfig
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from tokenizer_differential import GPT2, LLAMA3, QWEN2, Ours, corpus, random_strings

POOL = ["<s>", "</s>", "<|end|>", "<|end|>x", "tool", "the ", " the", "o\u0302x", "\u00e9", "\n\n", "  ", "a", "<|im_start|>user", "\u4f60\u597d", "12",
        "'s", "word", "two words", "\u0130", "<|", "|>", "def", "self.", "\U0001f600", "<think>", "\u00a0", "\u200b", "_", "-"]


def style(rng):
    """(name, normalizer, pre-tokenizer)"""
    split = lambda pattern: pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated", False)
    plain = lambda: pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.2, use_regex=False)
    name = rng.choice(["gpt2", "gpt2 as Split", "llama3", "qwen2", "smollm2", "bare"])
    if name == "gpt2":
        return name, None, pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.3)
    if name == "smollm2":
        return name, None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=rng.random() < 0.8), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name == "bare":
        return name, rng.choice([None, normalizers.NFC()]), plain()
    pattern = {"gpt2 as Split": GPT2, "llama3": LLAMA3, "qwen2": QWEN2}[name]
    return name, normalizers.NFC() if name == "qwen2" else None, pre_tokenizers.Sequence([split(pattern), plain()])


def train(rng, texts):
    name, normalizer, pre = style(rng)
    unknown = rng.choice([None, None, "<unk>"])
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=unknown, fuse_unk=rng.random() < 0.5, ignore_merges=rng.random() < 0.3))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    whole = rng.random() < 0.7
    special = [] if unknown is None else [unknown]
    size = rng.choice([260, 300, 517, 1000, 3000])
    limits = {} if whole else {"limit_alphabet": rng.choice([30, 120])}
    if rng.random() < 0.4:
        limits["max_token_length"] = rng.choice([4, 16])
    tokenizer.train_from_iterator(rng.sample(texts, 40), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if whole else [], **limits))
    contents = rng.sample(POOL, rng.randint(0, 12))
    vocabulary = [t for t in tokenizer.get_vocab() if t.isascii()]
    contents += rng.sample(vocabulary, min(2, len(vocabulary)))
    for content in contents:
        flags = {flag: rng.random() < 0.4 for flag in ("single_word", "lstrip", "rstrip", "normalized")}
        # Where NFC makes one token of two, or a special one another, the reference does not keep apart what it is told.
        plain = unicodedata.normalize("NFC", content) == content
        add = tokenizer.add_special_tokens if rng.random() < 0.4 and plain else tokenizer.add_tokens
        add([AddedToken(content, **flags)])
    json_form = json.loads(tokenizer.to_str())
    merges = json_form["model"]["merges"]
    pairs = rng.random() < 0.5
    if pairs:
        json_form["model"]["merges"] = [m.split(" ") if isinstance(m, str) else m for m in merges]
    elif all(" " not in part for m in merges for part in ([m] if isinstance(m, str) else m)):
        json_form["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    return f"{name}, {size} tokens, {'whole' if whole else 'partial'} alphabet, unknown {unknown}, {len(contents)} added", json_form, contents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--tokenizers", type=int, default=40)
    parser.add_argument("--strings", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", default=os.path.join(sysconfig.get_path("stdlib"), "*.py"))
    args = parser.parse_args()
    ours = Ours(args.binary)
    rng = random.Random(args.seed)
    texts = list(corpus(sorted(glob.glob(args.corpus))[:30], 9000))
    texts += ["".join(random_strings(rng, 60, [])) for _ in range(60)]
    compared = mismatches = panics = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.tokenizers):
            rng = random.Random(f"{args.seed} {number}")
            name, form, contents = train(rng, texts)
            folder = os.path.join(scratch, str(number))
            os.mkdir(folder)
            text = json.dumps(form, ensure_ascii=rng.random() < 0.5)
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
                file.write(text)
            theirs = tokenizers.Tokenizer.from_str(text)
            strings = list(random_strings(rng, args.strings, contents + POOL)) + rng.sample(texts, 4) + ["", " ", "\n"]
            strings += ["".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(40)) if not 0xD800 <= c <= 0xDFFF) for _ in range(30)]
            bad = 0
            answers = ours.ask([{"op": "tokenizer.encode", "tokenizer": folder, "text": t} for t in strings])
            for t, got in zip(strings, answers):
                try:
                    want = theirs.encode(t, add_special_tokens=False).ids
                except BaseException as error:  # noqa: BLE001: the reference panics on some overlaps of added tokens
                    if type(error).__name__ != "PanicException":
                        raise
                    panics += 1
                    continue
                if got.get("ids") != want:
                    bad += 1
                    if bad <= 2:
                        print(f"  encode {t[:120]!r}\n    theirs {want[:40]}\n    ours   {str(got)[:300]}")
            ids = [[rng.randrange(theirs.get_vocab_size()) for _ in range(rng.randint(1, 30))] for _ in range(100)]
            for skip in (False, True):
                answers = ours.ask([{"op": "tokenizer.decode", "tokenizer": folder, "ids": i, "skip_special": skip} for i in ids])
                for i, got in zip(ids, answers):
                    want = theirs.decode(i, skip_special_tokens=skip)
                    if got.get("text") != want:
                        bad += 1
                        if bad <= 2:
                            print(f"  decode {i}\n    theirs {want!r}\n    ours   {got!r}")
            compared += len(strings) + 2 * len(ids)
            mismatches += bad
            if bad:
                print(f"{number} ({name}): {bad} differ", flush=True)
    print(f"{args.tokenizers} trained tokenizers, {compared} strings and id sequences compared, {mismatches} differ; the reference panicked at {panics} strings")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
