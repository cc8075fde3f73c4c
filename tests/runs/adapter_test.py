#!/usr/bin/env python3
"""Adapters from the command line: folders of PEFT's layout in and out, merged, named by a run, refused."""
import json
import math
import pathlib
import random
import shutil
import struct
import threading
import unittest

from byte_model import write_byte_model
from gguf_model import write_gguf_model
from harness import RunTest, descendants, kill
from serve_test import Server

SIZES = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64), "gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}


def module(layer, name):
    return f"base_model.model.model.layers.{layer}.{'self_attn' if name in ('q_proj', 'k_proj', 'v_proj', 'o_proj') else 'mlp'}.{name}"


def write_adapter(folder, base, targets=("q_proj", "v_proj", "down_proj"), rank=4, seed=3, **config):
    """An adapter of random values for a model of byte_model.py, as PEFT would have saved it."""
    folder.mkdir(parents=True)
    folder.joinpath("adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": rank, "lora_alpha": 32, "target_modules": list(targets),
         "bias": "none", "lora_dropout": 0.05, "use_rslora": False, "rank_pattern": {}, "modules_to_save": None, "peft_version": "0.21.2", **config}))
    rng, header, data = random.Random(seed), {}, bytearray()
    for layer in range(2):
        for name in targets:
            n, k = SIZES[name]
            for half, shape in (("A", [rank, k]), ("B", [n, rank])):
                count = shape[0] * shape[1]
                header[module(layer, name) + f".lora_{half}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
                data += struct.pack(f"<{count}f", *(rng.gauss(0, 0.3) for _ in range(count)))
    text = json.dumps(header).encode()
    folder.joinpath("adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class AdapterTest(RunTest):
    def setUp(self):
        super().setUp()
        self.base, self.adapter = self.dir / "base", self.dir / "adapter"
        write_byte_model(self.base)
        write_adapter(self.adapter, self.base)

    def generate(self, *args, prompt="What is this?"):
        result = self.command("generate", "--prompt", prompt, "--max-new-tokens", "24", "--threads", "1", *map(str, args))
        self.assert_done(result)
        return result.stdout

    def refused(self, *args, words=()):
        result = self.command(*map(str, args))
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        for word in words:
            self.assertIn(str(word), result.stderr)
        return result.stderr

    def test_generates_as_the_merged_model_does(self):
        plain = self.generate("--model", self.base)
        adapted = self.generate("--model", self.base, "--adapter", self.adapter)
        self.assertNotEqual(plain, adapted)
        self.assertEqual(self.generate("--model", self.adapter), adapted)  # it names its model
        self.assert_done(self.command("export", str(self.adapter), "--merge", "--out", str(self.dir / "merged")))
        self.assertEqual(self.generate("--model", self.dir / "merged"), adapted)
        self.assertTrue((self.dir / "merged" / "tokenizer.json").exists())
        self.assert_done(self.command("export", str(self.adapter), "--out", str(self.dir / "copy")))
        self.assertEqual(self.generate("--model", self.dir / "copy"), adapted)
        self.assertEqual((self.dir / "copy" / "adapter_model.safetensors").read_bytes(), (self.adapter / "adapter_model.safetensors").read_bytes())

    def test_models_shows_an_adapter(self):
        result = self.command("models", str(self.adapter))
        self.assert_done(result)
        self.assertIn("rank 4, alpha 32, of q, v, down", result.stdout)
        shown = json.loads(self.command("models", str(self.adapter), "--json").stdout)
        self.assertEqual((shown["rank"], shown["targets"], shown["adapter_of"], shown["base_is_here"]), (4, ["q", "v", "down"], str(self.base), True))

    def test_serves_and_evaluates_with_an_adapter(self):
        server = Server(self.base, "--adapter", str(self.adapter), "--name", "adapted")
        self.started.append(server.process)
        server.name = "adapted"
        answer = server.ask("/v1/completions", prompt="What is this?", max_tokens=24, temperature=0)
        self.assertEqual(answer["choices"][0]["text"], self.generate("--model", self.adapter).rstrip("\n"))
        rows = self.dir / "rows.jsonl"
        rows.write_text(json.dumps({"prompt": "What is this?", "answer": answer["choices"][0]["text"].strip()}) + "\n")
        out = self.command("eval", "--model", str(self.base), "--adapter", str(self.adapter), "--data", str(rows), "--max-new-tokens", "24", "--json")
        self.assert_done(out)

    def test_serves_several_adapters_by_name(self):
        write_adapter(self.dir / "second", self.base, targets=["o_proj", "up_proj"], seed=5)
        server = Server(self.base, "--adapter", f"one={self.adapter}", "--adapter", str(self.dir / "second"))
        self.started.append(server.process)
        status, models, _ = server.call("/v1/models")
        self.assertEqual((status, [m["id"] for m in models["data"]]), (200, ["one", "second", "base"]))
        answers = {}
        for name, folder in (("one", self.adapter), ("second", self.dir / "second"), ("base", self.base)):  # the model is one of them
            server.name = name
            answers[name] = server.ask("/v1/completions", prompt="What is this?", max_tokens=24, temperature=0)["choices"][0]["text"]
            self.assertEqual(answers[name], self.generate("--model", folder).rstrip("\n"))
        self.assertEqual(len(set(answers.values())), 3)
        self.assertEqual(len(descendants(server.process.pid)), 1, "one worker has them all")
        # In one batch, whatever else is in it.
        together = [(name, threading.Thread(target=lambda name=name: asked.append((name, server.call("/v1/completions", {"model": name, "prompt": "What is this?", "max_tokens": 24, "temperature": 0})[1])))) for name in list(answers) * 4]
        asked = []
        for _, thread in together:
            thread.start()
        for _, thread in together:
            thread.join(60)
        self.assertEqual(len(asked), len(together))
        for name, answer in asked:
            self.assertEqual((answer["model"], answer["choices"][0]["text"]), (name, answers[name]))
        # The noise of a seed is the same under each name, and what it draws is each one's own.
        for name in answers:
            drawn = [server.call("/v1/completions", {"model": name, "prompt": "What is this?", "max_tokens": 24, "temperature": 1, "seed": 5})[1]["choices"][0]["text"] for _ in range(2)]
            self.assertEqual(drawn[0], drawn[1])
        status, answer, _ = server.call("/v1/completions", {"model": "third", "prompt": "x"})
        self.assertEqual((status, answer["error"]["param"]), (404, "model"))
        self.assertIn("one, second, base", answer["error"]["message"])
        first = server.call("/v1/completions", {"prompt": "What is this?", "max_tokens": 24, "temperature": 0})[1]
        self.assertEqual((first["model"], first["choices"][0]["text"]), ("one", answers["one"]))
        for name in (3, ["one"], {"one": 1}, True):
            status, answer, _ = server.call("/v1/completions", {"model": name, "prompt": "x"})
            self.assertEqual((status, answer["error"]["param"]), (400, "model"), name)
        self.refused("serve", "--model", self.base, "--adapter", f"one={self.adapter}", "--adapter", str(self.dir / "second"), "--kv-cache-tokens", "7",
                     words=["--kv-cache-tokens", "16 or more"])
        self.refused("serve", "--model", self.base, "--adapter", f"a={self.adapter}", "--adapter", f"a={self.dir / 'second'}", words=["--adapter", "the name a"])
        self.refused("serve", "--model", self.base, "--adapter", f"base={self.adapter}", words=["--adapter", "the name of the model, base"])

    def test_generates_and_evaluates_with_several_in_one_batch(self):
        second = self.dir / "second"
        write_adapter(second, self.base, targets=["o_proj", "up_proj"], rank=7, seed=5)
        both = ("--model", self.base, "--adapter", f"one={self.adapter}", "--adapter", second)
        alone = {name: self.generate("--model", self.base, "--adapter", folder) for name, folder in (("one", self.adapter), ("second", second))}
        self.assertEqual(self.generate(*both), f"== one\n{alone['one']}== second\n{alone['second']}")
        sampled = ("--temperature", "1", "--seed", "4")
        drawn = {name: self.generate("--model", self.base, "--adapter", folder, *sampled) for name, folder in (("one", self.adapter), ("second", second))}
        self.assertEqual(self.generate(*both, *sampled), f"== one\n{drawn['one']}== second\n{drawn['second']}")

        rows, out = self.dir / "rows.jsonl", self.dir / "out.jsonl"
        prompts = [f"What is {i}?" for i in range(5)]
        rows.write_text("".join(json.dumps({"prompt": p, "answer": "x"}) + "\n" for p in prompts))
        made = lambda *args: self.assert_done(self.command("generate", "--input", str(rows), "--output", str(out), "--max-new-tokens", "8", "--threads", "1", *map(str, args)))
        made(*both)
        lines = out.read_text().splitlines()
        self.assertEqual([(line["prompt"], line["adapter"]) for line in map(json.loads, lines)], [(p, name) for p in prompts for name in ("one", "second")])
        out.write_text("\n".join(lines[:3]) + "\n")  # broken off between the two of a row
        made(*both)
        self.assertEqual(out.read_text().splitlines(), lines)
        for name, folder in (("one", self.adapter), ("second", second)):
            out.unlink()
            made("--model", self.base, "--adapter", folder)
            self.assertEqual([json.loads(line)["text"] for line in out.read_text().splitlines()], [row["text"] for row in map(json.loads, lines) if row["adapter"] == name])

        ask = lambda *args: self.command("eval", "--data", str(rows), "--reward", "length_penalty", "--max-new-tokens", "8", "--output", str(out), *map(str, args))
        result = ask(*both, "--json")
        self.assert_done(result)
        shown = json.loads(result.stdout)["adapters"]
        self.assertEqual([(one["name"], one["adapter"]) for one in shown], [("one", str(self.adapter)), ("second", str(second))])
        self.assertEqual([json.loads(line)["adapter"] for line in out.read_text().splitlines()], ["one", "second"] * 5)
        for one in shown:
            result = ask("--model", self.base, "--adapter", one["adapter"], "--json")
            self.assertEqual(json.loads(result.stdout)["total"], one["total"])
        self.assertRegex(ask(*both).stdout, r"(?s)\none: \S*rows.*\nsecond: \S*rows")
        self.refused("generate", "--prompt", "x", "--model", self.base, "--adapter", self.adapter, "--adapter", self.adapter, words=["--adapter", "two have the name adapter"])

    def test_a_run_that_was_moved_has_its_model(self):
        self.assert_done(self.train("configs/test/sft.yaml", "model.lora.rank=2", "train.steps=2", "checkpoint.every_steps=1"))
        self.dir.joinpath("run").rename(self.dir / "moved")
        with_it = self.generate("--model", self.dir / "moved", prompt="rev abc=")
        self.assertEqual(self.generate("--model", self.dir / "moved" / "model", "--adapter", self.dir / "moved", prompt="rev abc="), with_it)
        self.assertEqual(self.generate("--model", f"{self.dir / 'moved'}:2", prompt="rev abc="), with_it)
        self.assert_done(self.command("export", str(self.dir / "moved"), "--merge", "--out", str(self.dir / "merged")))
        (self.dir / "moved" / "model").rename(self.dir / "elsewhere")
        self.refused("generate", "--prompt", "x", "--model", self.dir / "moved", words=["no model folder here", "--model"])

    def test_answers_of_another_adapter_are_not_taken_for_its_own(self):
        rows, out = self.dir / "rows.jsonl", self.dir / "out.jsonl"
        rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("What is this?", "And this?")))
        ask = ["generate", "--model", str(self.base), "--max-new-tokens", "4", "--input", str(rows), "--output", str(out)]
        for _ in range(2):
            self.assert_done(self.command(*ask, "--adapter", f"one={self.adapter}"))
            self.assertEqual([json.loads(line)["adapter"] for line in out.read_text().splitlines()], ["one", "one"])
        for further in ([], ["--adapter", f"two={self.adapter}"], ["--adapter", f"one={self.adapter}", "--adapter", f"two={self.adapter}"]):
            self.refused(*ask, *further, words=["--output", "is of adapter one", "give another --output"])

    def test_the_reference_is_what_the_run_starts_from(self):
        """The first adapter with it, so that the first step's pairs are as likely as the reference has them."""
        args = ("configs/test/dpo.yaml", f"model.path={self.base}", "model.init=null", "model.lora.rank=4", "model.lora.alpha=32", "model.lora.targets=[q, v, down]",
                f"model.lora.path={self.adapter}", "checkpoint.every_steps=1", "deterministic=true")
        self.assert_done(self.train(*args, "train.steps=2"))
        self.assertAlmostEqual(self.metrics()[1]["actor/loss"], math.log(2), places=9)
        self.assertNotAlmostEqual(self.metrics()[2]["actor/loss"], math.log(2), places=9)
        shutil.rmtree(self.adapter)  # it is read at each start
        result = self.train(*args, "train.steps=3", "--resume")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("model.lora.path", result.stderr)

    def test_an_adapter_of_another_model_is_refused_where_the_run_makes_its_model(self):
        args = ("configs/test/sft.yaml", "model.lora.rank=2", "train.steps=1")
        self.assert_done(self.train(*args, run="first"))
        first = f"model.lora.path={self.path('final', run='first')}"
        self.refused("train", *args, first, "seed=2", "--run-dir", self.dir / "second", words=["model.lora.path", "model.init", "model.path"])
        warm = ("configs/lora/tiny.yaml", "train.steps=1")
        self.assert_done(self.train(*warm, run="warm"))
        self.refused("train", *warm, f"model.lora.path={self.path('final', run='warm')}", "seed=2", "--run-dir", self.dir / "third", words=["model.lora.path", "its shapes are the same, its values are not"])

    def test_the_first_adapter_is_needed_until_there_is_a_checkpoint(self):
        args = ("configs/test/sft.yaml", f"model.path={self.base}", "model.init=null", "model.lora.rank=4", "model.lora.alpha=32", "model.lora.targets=[q, v, down]",
                f"model.lora.path={self.adapter}", "checkpoint.every_steps=1")
        self.assert_done(self.train(*args, "train.steps=2"))
        shutil.rmtree(self.adapter)
        self.assert_done(self.train(*args, "train.steps=3", "--resume"))
        result = self.train(*args, "train.steps=3", run="new")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("model.lora.path", result.stderr)
        # Another model lies where the run's was.
        shutil.rmtree(self.base)
        write_byte_model(self.base, seed=8)
        result = self.train(*args, "train.steps=4", "--resume")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, "model.path: .*holds another model than when the run began")
        self.path("base.json").unlink()  # the checkpoint knows it, too
        result = self.train(*args, "train.steps=4", "--resume")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, "model.path: .*its shapes are the same, its values are not")

    def test_a_worker_that_reads_another_model_in_mid_run_does_not_serve(self):
        """Though it differs in one value, which no sample of it has."""
        args = ("configs/test/rl_colocated.yaml", "model.init=null", f"model.path={self.base}", "model.lora.rank=4", "train.steps=100000", "checkpoint.every_steps=5")
        run = self.start(*args)
        self.wait_step(2, run)
        weights = self.base / "model.safetensors"
        bytes_before = weights.read_bytes()
        weights.write_bytes(bytes_before[:-1] + bytes([bytes_before[-1] ^ 1]))
        # What the host has in memory is good still.
        self.assertTrue(kill(self.worker_pid(0, run)))
        before = max(self.metrics())
        self.wait_step(before + 10, run)
        for block in pathlib.Path(json.loads(self.path("control.json").read_text())["shared_memory"]).rglob("base-[01]"):
            block.unlink()
        self.assertTrue(kill(self.worker_pid(0, run)))
        out, err = self.finish(run, 3)
        self.assertRegex(out + err, "holds another model than when the run began")
        self.assertRegex(self.train(*args, "--resume").stderr, "model.path: .*holds another model than when the run began")
        weights.write_bytes(bytes_before)
        self.assert_done(self.train(*args[:-2], f"train.steps={max(self.metrics()) + 2}", "--resume"))
        self.assert_checked()

    def test_trains_on_blocks_as_on_the_numbers_that_they_stand_for(self):
        """Rollout and training: the same samples, the same adapter, and no difference between log-probabilities."""
        file, blocks, numbers = (self.dir / name for name in ("m.gguf", "blocks", "numbers"))
        write_gguf_model(file)
        self.assert_done(self.command("import", str(file), "--keep-blocks", "--out", str(blocks)))
        self.assert_done(self.command("import", str(file), "--out", str(numbers)))
        self.assertFalse((blocks / "model.safetensors").exists())
        self.refused("import", str(file), "--out", str(blocks), words=["--out", "is not empty"])
        args = ("configs/test/rl_colocated.yaml", "model.init=null", "model.dtype=bfloat16", "model.lora.rank=4", "train.steps=3", "deterministic=true",
                "train.learning_rate=0.01")
        for name, folder in (("of_blocks", blocks), ("of_numbers", numbers)):
            self.assert_done(self.train(*args, f"model.path={folder}", run=name))
        self.assertEqual((self.dir / "of_blocks/final/adapter_model.safetensors").read_bytes(), (self.dir / "of_numbers/final/adapter_model.safetensors").read_bytes())
        adapter = self.dir / "of_blocks/final"
        for folder in (blocks, numbers):
            self.assertEqual(self.generate("--model", folder, "--adapter", adapter), self.generate("--model", blocks, "--adapter", self.dir / "of_numbers/final"))
        self.assertEqual(self.generate("--model", blocks), self.generate("--model", numbers))
        plans = [self.command("train", *args, f"model.path={folder}", "--dry-run").stdout for folder in (blocks, numbers)]
        self.assertIn("the model below the adapter", plans[0])
        self.assertNotEqual(*[next(line for line in plan.splitlines() if "the model below the adapter" in line) for plan in plans])
        self.refused("export", adapter, "--merge", "--model", blocks, "--out", self.dir / "merged", words=["in blocks", "tidepool import", "--model"])
        self.assert_done(self.command("export", str(adapter), "--merge", "--model", str(numbers), "--out", str(self.dir / "merged")))
        self.refused("train", *args, f"model.path={blocks}", "model.lora.rank=0", "--run-dir", self.dir / "full", words=["model.path", "blocks of 8 or 4 bits", "model.lora", "tidepool import"])
        self.refused("train", *args, f"model.path={file}", "--run-dir", self.dir / "full", words=["model.path", "GGUF", "--keep-blocks"])
        self.assertFalse((self.dir / "full").exists())

    def test_bad_input_is_refused_before_anything_starts(self):
        generate = ("generate", "--prompt", "x", "--model")
        wide = self.dir / "wide"
        write_byte_model(wide, intermediate=192)
        self.refused(*generate, wide, "--adapter", self.adapter, words=["--adapter", "mlp.down_proj.lora_A.weight", "[4, 128]", "[4, 192]", "another model"])
        tall = self.dir / "tall"
        write_byte_model(tall, layers=1)
        self.refused(*generate, tall, "--adapter", self.adapter, words=["changes layer 1", "1 layers"])
        self.refused(*generate, self.base, "--adapter", self.base, words=["--adapter", "whole model"])
        self.refused(*generate, self.adapter, "--adapter", self.adapter, words=["--model", "adapter itself"])
        self.refused(*generate, self.base, "--adapter", self.dir / "none", words=["--adapter", "none"])
        self.refused("export", self.base, "--merge", "--out", self.dir / "out", words=["--merge", "whole model"])
        self.refused("train", "configs/test/sft.yaml", "--run-dir", self.dir / "run", "model.lora.rank=2", f"model.lora.path={self.dir / 'none'}", words=["model.lora.path", "none"])
        for name, change, words in (("rank", {"r": 5}, ["adapter_model.safetensors", "[4, 64]", "r 5"]), ("dora", {"use_dora": True}, ["adapter_config.json", "use_dora"]),
                                    ("loha", {"peft_type": "LOHA"}, ["peft_type LOHA"]), ("nameless", {"base_model_name_or_path": "some/where"}, ["some/where", "--model"])):
            folder = self.dir / name
            write_adapter(folder, self.base)
            config = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
            self.refused(*generate, folder, words=words)
        large = self.dir / "large"
        write_adapter(large, self.base, targets=["k_proj"], rank=33)
        self.refused(*generate, large, words=["rank 33", "32", "target k"])
        shutil.copytree(self.adapter, self.dir / "half")
        (self.dir / "half" / "adapter_model.safetensors").unlink()
        self.refused(*generate, self.dir / "half", words=["adapter_model.safetensors"])


if __name__ == "__main__":
    unittest.main()
