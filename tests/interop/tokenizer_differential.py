#!/usr/bin/env python3
"""Compares ids and texts with the Hugging Face `tokenizers` library, string by string.

  pip install -r tests/interop/tokenizer_requirements.txt     (in an environment of its own)
  tests/interop/tokenizer_differential.py --binary build/tests/text_conformance --tokenizer DIR [--strings N]

DIR has a byte-level BPE tokenizer.json. Variants of it are made (pre-tokenisers of GPT-2, Llama 3, Qwen2,
digit splitters, other regular expressions, NFC, added tokens with every flag, both forms of merges), and
each encodes: every code point in three surroundings, random strings, and the texts given by --corpus;
random id sequences are decoded. Exit code 1 if anything differs. --bench also measures speed.
"""
import argparse
import copy
import glob
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(prefix=False, use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def added(id_, content, **flags):
    token = {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    token.update(flags)
    return token


def variants(base):
    size = max(list(base["model"]["vocab"].values()) + [t["id"] for t in base["added_tokens"]]) + 1

    def make(pre=None, nfc=False, **model):
        result = copy.deepcopy(base)
        if pre is not None:
            result["pre_tokenizer"] = pre
        if nfc:
            result["normalizer"] = {"type": "NFC"}
        result["model"].update(model)
        return result

    pairs = [m.split(" ") if isinstance(m, str) else m for m in base["model"]["merges"]]
    yield "as it is", make()
    yield "merges as pairs", make(merges=pairs)
    yield "gpt-2", make(byte_level(use_regex=True))
    yield "gpt-2 with prefix space", make(byte_level(prefix=True, use_regex=True))
    yield "gpt-2 as Split", make(sequence(split(GPT2), byte_level()))
    yield "llama 3", make(sequence(split(LLAMA3), byte_level()), ignore_merges=True)
    yield "qwen 2 with NFC", make(sequence(split(QWEN2), byte_level()), nfc=True)
    yield "llama 3 as Removed, inverted", make(sequence(split(LLAMA3, "Removed", True), byte_level()))
    yield "digits in runs", make(sequence({"type": "Digits", "individual_digits": False}, byte_level(use_regex=True)))
    yield "o200k by PCRE2", make(sequence(split(O200K), byte_level()))
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "Split by regex, " + behavior, make(sequence(split(r"[aeiou]|\s", behavior), byte_level()))
        yield "Split by string, " + behavior, make(sequence(split("e", behavior, kind="String"), byte_level()))
    tokens = make(nfc=True)
    tokens["added_tokens"] = tokens["added_tokens"] + [
        added(size + 0, "<plain>"), added(size + 1, "<left>", lstrip=True), added(size + 2, "<right>", rstrip=True),
        added(size + 3, "<both>", lstrip=True, rstrip=True, special=True), added(size + 4, "word", single_word=True),
        added(size + 5, "caf\u00e9", normalized=True), added(size + 6, "<plain>>", normalized=True),
        added(size + 7, "two words", single_word=True, lstrip=True), added(size + 8, "\u00e9clair", rstrip=True),
    ]
    yield "added tokens", tokens
    for nfc in (False, True):
        every = make(nfc=nfc)
        names = ["single_word", "lstrip", "rstrip", "normalized", "special"]
        for bits in range(32):
            flags = {name: bool(bits >> i & 1) for i, name in enumerate(names)}
            # One that touches words, and one that is a word (its last letter is one in some, a mark in others).
            every["added_tokens"].append(added(size + 2 * bits, f"<{bits}>", **flags))
            every["added_tokens"].append(added(size + 2 * bits + 1, f"flag{bits}" + "x\u00e9 _"[bits % 4], **flags))
        yield "added tokens with every combination of flags" + (", NFC" if nfc else ""), every


def crossing(base, pattern):
    """`base` with merges learned on whole lines, so that many of them would cross a pre-tokeniser's splits."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    lines = [line for text in corpus(sorted(glob.glob(pattern))[:20], 20000) for line in text.split("\n")]
    lines += [" ".join(str(n * 37 % 1000) for n in range(i, i + 12)) + " it's we'll I'm\t\n" for i in range(200)]
    trained.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    result = copy.deepcopy(base)
    result["model"]["vocab"], result["model"]["merges"] = model["vocab"], model["merges"]
    size = len(model["vocab"])
    result["added_tokens"] = [added(size, "<|endoftext|>", special=True), added(size + 1, "<|im_start|>", special=True)]
    result["post_processor"] = None
    return result


class Ours:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        encoding="utf-8", bufsize=1 << 20)

    def ask(self, requests):
        # A thread writes: both pipes may fill up otherwise.
        def write():
            for request in requests:
                self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

        writer = threading.Thread(target=write)
        writer.start()
        answers = [json.loads(self.process.stdout.readline()) for _ in requests]
        writer.join()
        return answers


def random_strings(rng, count, contents):
    pools = [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", "0123456789", " ", "  \t\n\r", ".,;:!?'\"-()[]{}<>/\\|@#$%^&*_+=~`",
        "\u00e9\u00e8\u00fc\u00df\u00f1\u0130\u017f\u212a", "e\u0301a\u0308o\u0302\u0327\u0323", "\u3000\u00a0\u2003\u2028\u0085\u200b",
        "\u4f60\u597d\u4e16\u754c\u65e5\u672c\u8a9e", "\u0430\u0431\u0432\u0413\u0414", "\u0660\u0661\u00b2\u00bd\u2167\u0967", "\u1100\u1161\u11a8\uac00\uac01",
        "\U0001f600\U0001f468\u200d\U0001f469\ufe0f\U0001f1e9", "\u05d0\u05d1\u0627\u0644\u064e\u0651", "\u0e01\u0e33\u0915\u094d\u0937",
    ]
    words = ["'s", "'T", "'re", "'LL", "'\u017f", "don't", " the", " and", "\r\n", "\n\n", "   ", "word", "sword", "words",
             "cafe\u0301", "caf\u00e9", "two words", "12", "  12", "1234567", "\u00e9clair"] + contents
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.35:
                parts.append(rng.choice(words))
            elif kind < 0.95:
                pool = rng.choice(pools)
                parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 6))))
            else:
                c = rng.randrange(0x110000)
                parts.append("?" if 0xD800 <= c <= 0xDFFF else chr(c))
        yield "".join(parts)


def corpus(paths, limit):
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(limit)
        for i in range(0, len(text), 3000):
            yield text[i:i + 3000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--strings", type=int, default=5000, help="random strings a variant")
    parser.add_argument("--corpus", default=os.path.join(sysconfig.get_path("stdlib"), "*.py"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without every code point, and with little of the corpus")
    args = parser.parse_args()
    with open(os.path.join(args.tokenizer, "tokenizer.json"), encoding="utf-8") as file:
        base = json.load(file)
    ours = Ours(args.binary)
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    strings = mismatches = 0

    with tempfile.TemporaryDirectory() as scratch:
        both = [*variants(base), *(("merges that cross splits, " + n, v) for n, v in variants(crossing(base, args.corpus)))]
        for number, (name, variant) in enumerate(both):
            rng = random.Random(args.seed * 1000 + number)
            folder = os.path.join(scratch, str(number))
            os.mkdir(folder)
            text = json.dumps(variant, ensure_ascii=False)
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
                file.write(text)
            theirs = tokenizers.Tokenizer.from_str(text)
            contents = [t["content"] for t in variant["added_tokens"]]
            texts = list(random_strings(rng, args.strings, contents))
            texts += corpus(sorted(glob.glob(args.corpus))[:6 if args.quick else 60], 30000)
            # Every code point, many to a string: after a letter, between digits, after an apostrophe, before a
            # mark. Variants after the ninth have no splitter of their own.
            for i in range(0, len(points) if (number < 9 or name == "added tokens") and not args.quick else 0, 400):
                part = points[i:i + 400]
                texts += ["".join("a" + c + " " for c in part), "".join("1" + c + "2 " + c + "b" for c in part),
                          "".join("'" + c + "word" + c for c in part), "".join("e\u0327" + c + "\u0301" for c in part)]
            bad = 0
            answers = ours.ask([{"op": "tokenizer.encode", "tokenizer": folder, "text": t} for t in texts])
            for t, got in zip(texts, answers):
                want = theirs.encode(t, add_special_tokens=False)
                if got.get("ids") != want.ids:
                    bad += 1
                    if bad <= 3:
                        print(f"  encode {t[:200]!r}\n    theirs {want.ids[:40]} {want.tokens[:40]}\n    ours   {str(got)[:300]}")
            ids = [[rng.randrange(theirs.get_vocab_size()) for _ in range(rng.randint(1, 30))] for _ in range(500)]
            for skip in (False, True):
                answers = ours.ask([{"op": "tokenizer.decode", "tokenizer": folder, "ids": i, "skip_special": skip}
                                    for i in ids])
                for i, got in zip(ids, answers):
                    want = theirs.decode(i, skip_special_tokens=skip)
                    if got.get("text") != want:
                        bad += 1
                        if bad <= 3:
                            print(f"  decode {i}\n    theirs {want!r}\n    ours   {got!r}")
            strings += len(texts) + 2 * len(ids)
            mismatches += bad
            print(f"{name}: {len(texts)} texts, {2 * len(ids)} id sequences, {bad} differ", flush=True)
        if args.bench:
            bench(ours, args, scratch)
    print(f"{strings} compared, {mismatches} differ")
    return 1 if mismatches else 0


def bench(ours, args, scratch):
    text = "".join(open(p, encoding="utf-8", errors="replace").read() for p in sorted(glob.glob(args.corpus)))[:4_000_000]
    path = os.path.join(scratch, "text")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    size = os.path.getsize(path)
    started = time.perf_counter()
    theirs = tokenizers.Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json"))
    load = time.perf_counter() - started
    peer, own = [], []
    for _ in range(5):  # one text, so one thread on either side; interleaved
        started = time.perf_counter()
        count = len(theirs.encode(text, add_special_tokens=False).ids)
        peer.append(time.perf_counter() - started)
        answer = ours.ask([{"op": "tokenizer.bench", "tokenizer": args.tokenizer, "file": path, "rounds": 2}])[0]
        own.append(answer["seconds"][-1])
        assert answer["tokens"] == count, (answer, count)
    peer.sort(), own.sort()
    print(json.dumps({"bench": "tokenizer_encode", "case": "python sources, one text", "value": size / own[2] / 1e6,
                      "unit": "MB/s", "better": "higher", "baseline": "tokenizers " + tokenizers.__version__,
                      "baseline_value": size / peer[2] / 1e6, "ratio": peer[2] / own[2], "repeats": 5,
                      "spread": (own[-1] - own[0]) / own[2], "load_s": answer["load_s"], "baseline_load_s": load}))


if __name__ == "__main__":
    sys.exit(main())
