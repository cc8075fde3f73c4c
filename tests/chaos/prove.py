"""Proves a run from its journal (`tidepool journal --json`), its payload files and its samples, with no code of the program.

    python3 tests/chaos/prove.py RUN [--like RUN]     # prints what is wrong; exit code 1 if anything is

What it proves, beside what `tidepool check` does:
  payload    every ENQ's bytes are there, have its digest, and hold its sample: ids, lengths, versions, log-probabilities;
             and the trainer was given them
  once       every trained row was enqueued, graded, leased for this step; trained once in a lineage and never dropped
  lag        each token of a trained row that has loss is from 0 to max_lag_versions old, counted through the last common ancestor
  samples    samples/step_N.jsonl shows the tokens, log-probabilities and versions of the payload, and the journal's reward
  doubled    no stretch of tokens is followed by itself with the same log-probabilities bit by bit
  like       with a second run whose weights never differ from this one's: equal samples have equal tokens and rewards

`like` is the strong one. A sample's noise belongs to the sample, so with weights that do not move (a learning rate that is
too small to change a token) its tokens are a function of the sample alone, whatever was killed, cut or sent again.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDEPOOL = str(pathlib.Path(os.environ.get("TIDEPOOL_BIN", ROOT / "build" / "bin")) / "tidepool")
MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hash64(data):
    """The digest of a payload (core/base/hash.h)."""
    h = mix64((len(data) * 0x9E3779B97F4A7C15) & MASK)
    for (word,) in struct.iter_unpack("<Q", data + bytes(-len(data) % 8)):
        h = mix64(h ^ word)
    return h


PROMPT, TOKENS, OBSERVATION, FRAGMENT = range(4)


class Payload:
    """One sample's bytes: a trajectory (core/sample/codec.h), as the columns of its whole response."""

    def __init__(self, data):
        self.data, self.at = data, 0
        (form,) = self.take("<B")
        if form != 1:
            raise ValueError(f"format {form}")
        self.tid = self.take("<qii")
        (self.att, self.finish) = self.take("<iB")
        self.prompt, self.response, self.logprob_bits, self.loss_mask = (), (), (), ()
        self.versions = []  # one (lineage, number) a token, or a step of a fragment
        self.routing, self.fragment = b"", b""
        for _ in range(self.varint()):
            self.segment()
        self.logprobs = struct.unpack(f"<{len(self.logprob_bits)}f", struct.pack(f"<{len(self.logprob_bits)}I", *self.logprob_bits))
        if self.at != len(data):
            raise ValueError(f"{self.at} of {len(data)} bytes read")

    def segment(self):
        (kind, columns) = self.take("<BB")
        n = self.varint()
        ids = self.take(f"<{n}i")
        bits = self.take(f"<{n}I") if columns & 1 else (0,) * n
        if columns & 2:
            self.take(f"<{n}f")  # kept masses
        runs = []
        if columns & 4:
            for _ in range(self.varint()):
                lineage, number = self.varint(), self.varint()
                runs += [(lineage, number)] * self.varint()
        if columns & 8:
            self.routing += self.skip()
        if columns & 16:
            self.fragment = self.skip()
            self.varint()  # its steps, which the versions count
        if columns & 32:
            self.take("<Qd")  # the turn's state, and the reward before it
        if kind == PROMPT:
            self.prompt = ids
            return
        self.response += ids
        self.logprob_bits += bits
        self.loss_mask += (1 if kind == TOKENS else 0,) * n
        # What was not sampled counts for the version that spoke before it.
        self.versions += runs or self.versions[-1:] * n

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def varint(self):
        value, shift = 0, 0
        while True:
            (byte,) = self.take("<B")
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def skip(self):
        n = self.varint()
        self.at += n
        if self.at > len(self.data):
            raise ValueError("it ends inside a column")
        return self.data[self.at - n:self.at]


def name(tid):
    return "{}.{}.{}".format(*tid)


def key(record):
    return (record["ordinal"], record["issue"], record["sample"])


def version(record):
    return (record["lineage"], record["number"])


class Run:
    """A run's journal, folded without the program's help, and its payload."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        out = subprocess.run([TIDEPOOL, "journal", str(path), "--json"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        self.records = [json.loads(line) for line in out.splitlines()]
        self.payloads = {}  # tid -> Payload of its ENQ that counts
        self.rewards = {}   # tid -> reward
        self.wrong = []
        self.files = {}
        self.counts = {"rows": 0, "tokens": 0, "compared": 0}

    def say(self, what, why, record=None):
        self.wrong.append(f"{what}: {why}" + (f" (lsn {record['lsn']})" if record else ""))

    def read(self, enq):
        file = enq["payload_file"]
        if file not in self.files:
            self.files[file] = (self.path / "payload" / f"{file:04}.tpp").read_bytes()
        at = enq["payload_offset"]
        return self.files[file][at:at + enq["payload_bytes"]]

    def take_payload(self, enq):
        tid = key(enq["tid"])
        try:
            data = self.read(enq)
            if hash64(data) != int(enq["digest"], 16):
                return self.say("payload", f"{name(tid)}: its bytes have digest {hash64(data):#x}, ENQ says {enq['digest']}", enq)
            p = Payload(data)
        except (OSError, ValueError, struct.error) as e:
            return self.say("payload", f"{name(tid)}: {e}", enq)
        steps = len(p.versions) if p.fragment else len(p.response)
        if p.tid != tid or p.att != enq["att"]:
            self.say("payload", f"{name(tid)} attempt {enq['att']}: holds {name(p.tid)} attempt {p.att}", enq)
        if len(p.prompt) != enq["prompt_len"] or steps != enq["response_len"]:
            self.say("payload", f"{name(tid)}: holds {len(p.prompt)} + {steps} tokens, ENQ says {enq['prompt_len']} + {enq['response_len']}", enq)
        if len(p.versions) != steps or len(p.logprobs) not in (0, len(p.response)) or len(p.loss_mask) not in (0, len(p.response)):
            self.say("payload", f"{name(tid)}: {steps} tokens, {len(p.versions)} versions, {len(p.logprobs)} log-probabilities", enq)
        # A sample may go on at an engine that is behind the one that it began at.
        if p.versions and (min(p.versions), max(p.versions)) != (version(enq["wv_min"]), version(enq["wv_max"])):
            self.say("payload", f"{name(tid)}: versions {min(p.versions)} to {max(p.versions)}, ENQ says {enq['wv_min']} to {enq['wv_max']}", enq)
        self.payloads[tid] = p
        self.not_doubled(name(tid), p, enq)

    def not_doubled(self, who, p, enq):
        """Words of an environment and tokens that a policy is sure of have 0, and may well come twice."""
        items = list(zip(p.response, p.logprob_bits))
        for length in range(2, len(items) // 2 + 1):
            for at in range(len(items) - 2 * length + 1):
                first = items[at:at + length]
                drawn = {bits for _, bits in first if bits & 0x7FFFFFFF}
                if first == items[at + length:at + 2 * length] and len(drawn) > 1:
                    return self.say("doubled", f"{who}: tokens {at}..{at + length - 1} come twice, with the same log-probabilities", enq)

    def prove(self):
        config = next(r for r in self.records if r["kind"] == "CONFIG")
        issued, trained, dropped, paths = set(), {}, {}, {0: {}}
        leases, begun, committed, samples_of = {}, {}, {}, {}
        for r in self.records:
            kind = r["kind"]
            tid = key(r["tid"]) if "tid" in r else None
            if kind == "ISSUE":
                issued.add(tid)
            elif kind == "ENQ" and r["payload_file"] >= 0:
                self.take_payload(r)
            elif kind == "GRADED" and r["outcome"] == "ok":
                self.rewards[tid] = r["reward"]
            elif kind == "DROP":
                if tid in trained:
                    self.say("once", f"{name(tid)} was trained in step {trained[tid]} and dropped ({r['reason']})", r)
                dropped[tid] = r["reason"]
            elif kind == "LEASE":
                leases[r["step"]] = [key(t) for t in r["tids"]]
            elif kind == "STEP_BEGIN":
                begun[r["step"]] = version(r["v"])
            elif kind == "PUBLISH":
                paths[r["v"]["lineage"]].setdefault(r["v"]["number"], r["digest"])
            elif kind == "STEP_COMMIT":
                v = version(r["v"])
                paths[v[0]][v[1]] = r["digest"]
                rows = [key(row["tid"]) for row in r["rows"]]
                for row in rows:
                    self.take_row(row, r, trained, dropped, leases, begun, paths, config)
                    trained[row] = r["step"]
                if sorted(rows) != sorted(leases.get(r["step"], [])):
                    self.say("once", f"step {r['step']} trained {len(rows)} rows, leased were {len(leases.get(r['step'], []))} others", r)
                committed[r["step"]] = rows
            elif kind == "RESTORE":
                old = paths[r["old_lineage"]]
                paths[r["new_lineage"]] = {n: d for n, d in old.items() if n <= r["step"]}
                trained = {t: s for t, s in trained.items() if s <= r["step"]}
                committed = {s: rows for s, rows in committed.items() if s <= r["step"]}
        end = self.records[-1]
        if end["kind"] == "END_RUN" and end["finished"] and end["code"] == 0 and committed and max(committed) >= config["steps"]:
            for tid in sorted(issued - set(trained) - set(dropped)):
                self.say("once", f"{name(tid)} was issued, and neither trained nor dropped when the run had finished")
        self.committed = committed
        if config["job"] == "rl":
            self.take_samples(committed)
        return self

    def lag(self, made, base, paths):
        n = min(made[1], base[1])
        if made[0] != base[0]:
            while n > 0 and paths[made[0]].get(n, made) != paths[base[0]].get(n, base):
                n -= 1
        return made[1] - n + base[1] - n

    def take_row(self, tid, r, trained, dropped, leases, begun, paths, config):
        self.counts["rows"] += 1
        if tid in trained:
            self.say("once", f"{name(tid)} was trained in step {trained[tid]} and again in step {r['step']}", r)
        if tid in dropped:
            self.say("once", f"{name(tid)} was dropped ({dropped[tid]}) and trained in step {r['step']}", r)
        p = self.payloads.get(tid)
        if p is None:
            if config["job"] == "rl":
                self.say("payload", f"{name(tid)} was trained in step {r['step']} without an ENQ whose payload can be read", r)
            return
        if tid not in self.rewards:
            self.say("once", f"{name(tid)} was trained in step {r['step']} without a reward", r)
        self.counts["tokens"] += len(p.response)
        base = begun[r["step"]]
        row = next(row for row in r["rows"] if key(row["tid"]) == tid)
        if row["digest"] != f"{hash64(p.data):#018x}":
            self.say("payload", f"{name(tid)}: the trainer was given bytes of digest {row['digest']}, its payload has {hash64(p.data):#018x}", r)
        lags = {v: self.lag(v, base, paths) for v in set(p.versions)}
        most = config["max_lag_versions"]
        if config["on_stale"] == "mask":
            old = sum(1 for v, loss in zip(p.versions, p.loss_mask or [1] * len(p.versions)) if loss and lags[v] > most)
            if row["masked"] != old:
                self.say("lag", f"{name(tid)}: {row['masked']} tokens were left without loss, {old} are more than {most} versions old at {base}", r)
        elif lags and max(lags.values()) > most:
            self.say("lag", f"{name(tid)} was trained on {base} with tokens {max(lags.values())} versions old, at most {most} may be", r)

    def take_samples(self, committed):
        for step, rows in committed.items():
            file = self.path / "samples" / f"step_{step}.jsonl"
            if not file.exists():
                continue
            for line in file.read_text().splitlines():
                shown = json.loads(line)
                tid = tuple(int(x) for x in shown["tid"].split("."))
                p = self.payloads.get(tid)
                if tid not in rows or p is None:
                    self.say("samples", f"{file.name} shows {shown['tid']}, which step {step} did not train")
                    continue
                if list(p.response) != shown["ids"] or [n for _, n in p.versions] != shown["versions"]:
                    self.say("samples", f"{file.name}: {shown['tid']} was trained with {len(shown['ids'])} tokens {shown['ids']}, its payload holds {len(p.response)} {list(p.response)}")
                elif all(p.loss_mask) and p.logprobs and list(p.logprobs) != shown["logprobs"]:
                    self.say("samples", f"{file.name}: {shown['tid']}: its log-probabilities are not those of its payload")
                if shown["reward"] != self.rewards.get(tid):
                    self.say("samples", f"{file.name}: {shown['tid']} has reward {shown['reward']}, the journal says {self.rewards.get(tid)}")

    def prove_like(self, other):
        """`other`: proven, of the same model, seed and rollout settings; weights of both do not move."""
        for tid, p in self.payloads.items():
            q = other.payloads.get(tid)
            if q is None:
                continue
            self.counts["compared"] += 1
            if p.prompt != q.prompt or p.response != q.response:
                self.say("like", f"{name(tid)}: tokens {list(p.response)}, undisturbed it has {list(q.response)}")
            elif any(abs(a - b) > 1e-4 for a, b in zip(p.logprobs, q.logprobs)):
                self.say("like", f"{name(tid)}: its log-probabilities differ from those of the undisturbed run")
            elif tid in self.rewards and tid in other.rewards and self.rewards[tid] != other.rewards[tid]:
                self.say("like", f"{name(tid)}: reward {self.rewards[tid]}, undisturbed {other.rewards[tid]}")
        return self


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--like")
    options = parser.parse_args()
    run = Run(options.run).prove()
    if options.like:
        run.prove_like(Run(options.like).prove())
    for line in run.wrong:
        print(line)
    print(f"{run.path}: {run.counts['rows']} rows of {run.counts['tokens']} tokens trained, {run.counts['compared']} samples compared: "
          + (f"{len(run.wrong)} things are wrong" if run.wrong else "proven"), file=sys.stderr)
    sys.exit(1 if run.wrong else 0)


if __name__ == "__main__":
    main()
