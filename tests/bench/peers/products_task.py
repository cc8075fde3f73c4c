"""The task `products` as core/tasks/tasks/products.cc defines it: the same split for the same seed."""

import re

_MASK = (1 << 64) - 1


def _mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def permuted_index(index, n, seed):
    """core/base/rng.h: item `index` of the permutation of [0, n) that `seed` names."""
    if n == 1:
        return 0
    bits = 2
    while (1 << bits) < n:
        bits += 2
    half = bits // 2
    mask = (1 << half) - 1
    x = index
    while True:
        left, right = x >> half, x & mask
        for step in range(6):
            key = _mix64((seed + step * 0x9E3779B97F4A7C15) & _MASK)
            left, right = right, left ^ (_mix64(right ^ key) & mask)
        x = (left << half) | right
        if x < n:
            return x


def split(seed, low=2, high=9, held_out=9):
    """(training pairs, held-out pairs), each (a, b); both orders of a pair are on one side."""
    pairs = [(a, b) for b in range(low, high + 1) for a in range(low, b + 1)]
    seed = _mix64(seed ^ 0x70726F64)
    train, held = [], []
    for i in range(len(pairs)):
        a, b = pairs[permuted_index(i, len(pairs), seed)]
        side = held if i < held_out else train
        side.append((a, b))
        if a != b:
            side.append((b, a))
    return train, held


def prompt(a, b):
    return f"What is {a} * {b}? Reply with only the number."


_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def last_number(text):
    """core/tasks/grading.h LastNumber: a minus is a sign unless a letter, digit or closing bracket is before it."""
    matches = list(_NUMBER.finditer(text))
    if not matches:
        return None
    start = matches[-1].start()
    negative = start > 0 and text[start - 1] == "-" and not (start > 1 and (text[start - 2].isalnum() or text[start - 2] in ")]}"))
    return ("-" if negative else "") + matches[-1].group().replace(",", "")


def reward(text, ended, answer):
    """1 if the text ended by itself and its last number is the answer, else 0."""
    number = last_number(text)
    return 1.0 if ended and number is not None and float(number) == float(answer) else 0.0
