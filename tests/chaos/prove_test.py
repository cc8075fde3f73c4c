"""The prover finds what is planted in a real run, and nothing else."""
import copy
import struct
import unittest

from chaos_run import COMMON
from harness import RunTest
from prove import Run, hash64, key


def varint(x):
    out = b""
    while x >= 128:
        out, x = out + bytes([x & 127 | 128]), x >> 7
    return out + bytes([x])


def encode(p):
    """The bytes of a trajectory of a prompt and one segment of sampled tokens (core/sample/codec.h)."""
    runs = []
    for v in p.versions:
        if runs and runs[-1][0] == v:
            runs[-1][1] += 1
        else:
            runs.append([v, 1])
    out = struct.pack("<BqiiiB", 1, *p.tid, p.att, p.finish) + varint(2)
    out += struct.pack("<BB", 0, 0) + varint(len(p.prompt)) + struct.pack(f"<{len(p.prompt)}i", *p.prompt)
    n = len(p.response)
    out += struct.pack("<BB", 1, 1 | 4) + varint(n) + struct.pack(f"<{n}i{n}I", *p.response, *p.logprob_bits)
    return out + varint(len(runs)) + b"".join(varint(v[0]) + varint(v[1]) + varint(k) for v, k in runs)


class ProveTest(RunTest):
    def setUp(self):
        super().setUp()
        args = ["configs/test/rl_split.yaml", *COMMON, "train.steps=6", "scheduler.max_lag_versions=2"]
        self.assert_done(self.train(*args))
        self.clean = Run(self.path()).prove()

    def found(self, change):
        """What is found in the run after `change(run)`."""
        run = Run(self.path())
        change(run)
        return run.prove().prove_like(self.clean).wrong

    def first(self, run, kind, **fields):
        return next(r for r in run.records if r["kind"] == kind and all(r[f] == v for f, v in fields.items()))

    def longest(self, run):
        return max((r for r in run.records if r["kind"] == "ENQ"), key=lambda r: r["response_len"])

    def with_payload(self, run, enq, change):
        """Writes a changed payload, and ENQ's digest after it."""
        p = copy.copy(self.clean.payloads[key(enq["tid"])])
        change(p)
        data = encode(p)
        enq["digest"] = f"{hash64(data):#x}"
        read = run.read
        run.read = lambda e: data if e is enq else read(e)

    def assert_finds(self, change, what, whom=""):
        wrong = self.found(change)
        self.assertTrue(any(w.startswith(what + ":") and whom in w for w in wrong), f"{what} {whom} is not in {wrong[:5]}")

    def test_it_finds_what_is_planted(self):
        self.assertEqual(self.found(lambda run: None), [])
        self.assertGreater(self.clean.counts["tokens"], 500)

        def other_bytes(run):
            enq = self.longest(run)
            read = run.read
            run.read = lambda e: read(e)[:-1] + b"\1" if e is enq else read(e)
        self.assert_finds(other_bytes, "payload", "digest")

        def shorter(p):
            p.response, p.logprob_bits, p.versions = p.response[:7], p.logprob_bits[:7], p.versions[:7]
        self.assert_finds(lambda run: self.with_payload(run, self.longest(run), shorter), "payload", "ENQ says")

        def doubled(p):
            p.response, p.logprob_bits = p.response[:3] + p.response, p.logprob_bits[:3] + p.logprob_bits
            p.versions = p.versions[:3] + p.versions

        def plant_doubled(run):
            enq = self.longest(run)
            self.with_payload(run, enq, doubled)
            enq["response_len"] += 3
        self.assert_finds(plant_doubled, "doubled")
        self.assert_finds(plant_doubled, "samples")
        self.assert_finds(plant_doubled, "like")

        def one_other_token(p):
            p.response = (p.response[0] ^ 1,) + p.response[1:]
        self.assert_finds(lambda run: self.with_payload(run, self.longest(run), one_other_token), "like")

        def old_version(run):
            enq = next(r for r in run.records if r["kind"] == "ENQ" and r["wv_min"]["number"] >= 3)
            self.with_payload(run, enq, lambda p: setattr(p, "versions", [(0, 0)] + p.versions[1:]))
            enq["wv_min"] = {"lineage": 0, "number": 0}
        self.assert_finds(old_version, "lag")

        def trained_again(run):
            row = self.first(run, "STEP_COMMIT", step=1)["rows"][0]
            self.first(run, "STEP_COMMIT", step=2)["rows"][0] = row
        self.assert_finds(trained_again, "once", "and again in step 2")

        def dropped(run):
            row = self.first(run, "STEP_COMMIT", step=1)["rows"][0]
            run.records.append({"kind": "DROP", "lsn": 10**9, "tid": row["tid"], "reason": "stale"})
        self.assert_finds(dropped, "once", "dropped")

        def ungraded(run):
            row = self.first(run, "STEP_COMMIT", step=1)["rows"][0]
            run.records = [r for r in run.records if not (r["kind"] == "GRADED" and r["tid"] == row["tid"])]
        self.assert_finds(ungraded, "once", "without a reward")

        def forgotten(run):
            commit = self.first(run, "STEP_COMMIT", step=6)
            commit["rows"].pop()
        self.assert_finds(forgotten, "once", "neither trained nor dropped")

        def other_reward(run):
            row = self.first(run, "STEP_COMMIT", step=1)["rows"][0]
            self.first(run, "GRADED", tid=row["tid"])["reward"] = 17
        self.assert_finds(other_reward, "samples", "reward")
        self.assert_finds(other_reward, "like", "reward")


if __name__ == "__main__":
    unittest.main(verbosity=2)
