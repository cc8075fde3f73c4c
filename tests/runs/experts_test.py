"""A mixture of experts is trained: its routing is recorded, stored with the samples and taken again."""
import json
import random
import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))
from harness import RunTest  # noqa: E402
from prove import Run  # noqa: E402

CONFIG = """
name: test-experts
job: rl
seed: 1
deterministic: true
model: {{path: {model}}}
data: {{task: reverse, length: [2, 3], letters: "abcd", size: 64, held_out: 8}}
reward: {{functions: [{{name: exact_answer, weight: 1.0}}, {{name: "format:[ab]", weight: 0.5}}]}}
algorithm: {{name: grpo}}
rollout: {{group_size: 4, max_new_tokens: 8, chunk_tokens: 3, temperature: 1.0, record_routing: true}}
train: {{groups_per_step: 4, steps: 4, learning_rate: 1.0e-3, micro_batch_tokens: 512, router_aux_coef: 0.01}}
scheduler: {{placement: split, actor_slots: 1, max_lag_versions: 0}}
cluster: {{device: cpu, slots: 2, threads_per_slot: 1}}
checkpoint: {{every_steps: 2, keep: 2}}
"""
LORA = """
name: test-experts-lora
job: {job}
seed: 1
model: {{path: {model}, lora: {{rank: 2, targets: [experts]}}}}
data: {{task: reverse, length: [2, 3], letters: "abcd", size: 64, held_out: 8}}
rollout: {{max_new_tokens: 8}}
train: {{groups_per_step: 8, steps: 3, learning_rate: 1.0e-2, micro_batch_tokens: 512, recompute: true}}
cluster: {{device: cpu, slots: 1, threads_per_slot: 1}}
"""
HIDDEN, HEADS, HEAD, LAYERS, EXPERTS, CHOSEN, INTERMEDIATE = 32, 2, 16, 3, 5, 2, 24


def write_model(folder, vocab_rows=None, experts=EXPERTS, intermediate=INTERMEDIATE, seed=5):
    """A Qwen3-MoE of random weights whose second layer is dense, with one token a character; or more rows than tokens, of zeros."""
    folder.mkdir()
    vocab = {c: i for i, c in enumerate(["<pad>", "<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz", "\u0120", "="])}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(["<pad>", "<bos>", "<eos>"])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    folder.joinpath("tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    folder.joinpath("tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}))
    folder.joinpath("config.json").write_text(json.dumps(
        {"model_type": "qwen3_moe", "vocab_size": vocab_rows or len(vocab), "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD, "max_position_embeddings": 48, "num_experts": experts,
         "num_experts_per_tok": CHOSEN, "moe_intermediate_size": intermediate, "norm_topk_prob": True, "mlp_only_layers": [1],
         "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1}))
    shapes = {"model.embed_tokens.weight": [vocab_rows or len(vocab), HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": [HIDDEN], at + "post_attention_layernorm.weight": [HIDDEN],
                   at + "self_attn.q_proj.weight": [HEADS * HEAD, HIDDEN], at + "self_attn.k_proj.weight": [HEAD, HIDDEN],
                   at + "self_attn.v_proj.weight": [HEAD, HIDDEN], at + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD],
                   at + "self_attn.q_norm.weight": [HEAD], at + "self_attn.k_norm.weight": [HEAD]}
        mlps = [(at + "mlp.", 48)] if layer == 1 else [(f"{at}mlp.experts.{e}.", intermediate) for e in range(experts)]
        if layer != 1:
            shapes[at + "mlp.gate.weight"] = [experts, HIDDEN]
        for name, width in mlps:
            shapes |= {name + "gate_proj.weight": [width, HIDDEN], name + "up_proj.weight": [width, HIDDEN], name + "down_proj.weight": [HIDDEN, width]}
    rng, header, data = random.Random(seed), {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        few = min(count, 1 << 11)  # a large matrix says the same again and again
        values = [0.0] * few if shape[0] == vocab_rows else [1.0] * few if len(shape) == 1 else [rng.gauss(0, 0.1) for _ in range(few)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += (struct.pack(f"<{few}f", *values) * (count // few + 1))[:4 * count]
    text = json.dumps(header).encode()
    folder.joinpath("model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def stored_shapes(path):
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


class ExpertsTest(RunTest):
    def write_config(self):
        write_model(self.dir / "model")
        config = self.dir / "experts.yaml"
        config.write_text(CONFIG.format(model=self.dir / "model"))
        return str(config)

    def test_routing_goes_with_the_samples(self):
        self.assert_done(self.train(self.write_config()))
        self.assert_checked()
        stored = [(len(p.response), p.routing) for p in Run(self.path()).prove().payloads.values()]
        self.assertGreaterEqual(len(stored), 4 * 16)
        for tokens, routing in stored:
            self.assertEqual(len(routing), tokens * 2 * CHOSEN)  # two sparse layers, however the sample was cut in chunks
            for i in range(0, len(routing), CHOSEN):
                self.assertEqual(len({e for e in routing[i:i + CHOSEN] if e < EXPERTS}), CHOSEN)
        self.assertGreater(len({routing for _, routing in stored}), 8)
        for step, row in self.metrics().items():
            if step >= 1:
                # The weights of the step sampled all of it, so the log-probabilities are the very same again.
                self.assertEqual(row.get("training/rollout_logp_diff/max", 0), 0, step)
                self.assertGreater(row["actor/router_balance"], 0.9 * CHOSEN)

    def test_an_adapter_of_experts_is_trained_by_the_forward_that_samples(self):
        config, steps = self.write_config(), "train.steps=8"
        lora = ["model.lora.rank=2", "model.lora.targets=[q, experts]", "train.learning_rate=1.0e-2"]
        self.assert_done(self.train(config, *lora, steps, "algorithm.kl.coef=0.01", run="whole"))
        self.assert_checked("whole")
        rows = self.metrics("whole")
        for step in range(1, 9):
            self.assertEqual(rows[step]["training/rollout_logp_diff/max"], 0, step)
        self.assertAlmostEqual(rows[1]["actor/kl_loss"], 0, places=6)
        self.assertGreater(rows[8]["actor/kl_loss"], 1e-4)
        cut = self.start(config, *lora, steps, "algorithm.kl.coef=0.01", run="cut")
        self.wait_step(3, cut, run="cut")
        self.kill_controller(cut, run="cut")
        self.assert_done(self.train(config, *lora, steps, "algorithm.kl.coef=0.01", "--resume", run="cut"))
        self.assertEqual(self.digests("cut"), self.digests("whole"))

        final = self.path("final", run="whole")
        tensors = {name: shape for name, shape in stored_shapes(final / "adapter_model.safetensors").items() if "experts" in name}
        self.assertEqual(len(tensors), 8)  # A and B of two matrices of two layers; the second layer is dense
        self.assertEqual(tensors["base_model.model.model.layers.2.mlp.experts.base_layer.lora_A.weight"], [2 * EXPERTS, HIDDEN])
        self.assertEqual(tensors["base_model.model.model.layers.2.mlp.experts.lora_B.weight"], [HIDDEN, 2 * EXPERTS])
        words = ("--prompt", "ab=", "--max-new-tokens", "8", "--threads", "1")
        merged = self.dir / "merged"
        self.assert_done(self.command("export", str(self.path(run="whole")), "--merge", "--out", str(merged)))
        shown = [self.command("generate", "--model", *of, *words) for of in
                 ([str(self.path(run="whole"))], [str(self.dir / "model"), "--adapter", str(final)], [str(merged)], [str(self.dir / "model")])]
        for result in shown:
            self.assert_done(result)
        self.assertEqual([r.stdout for r in shown[:3]], [shown[0].stdout] * 3)
        self.assertNotEqual(shown[3].stdout, shown[0].stdout)
        both = self.command("generate", "--model", str(self.dir / "model"), "--adapter", f"a={final}", "--adapter", f"b={self.path('final', run='cut')}", *words)
        self.assert_done(both)
        self.assertEqual(both.stdout.count(shown[0].stdout.strip()), 2)

    def test_every_job_trains_an_adapter_of_experts(self):
        write_model(self.dir / "model")
        write_model(self.dir / "teacher", seed=6)
        config = self.dir / "job.yaml"
        for job, more in {"sft": [], "dpo": [], "reward_model": [], "distill": [f"distill.teacher={self.dir / 'teacher'}"]}.items():
            with self.subTest(job=job):
                config.write_text(LORA.format(model=self.dir / "model", job=job))
                self.assert_done(self.train(str(config), *more, run=job))
                self.assert_checked(job)
                self.assertEqual(len(set(self.digests(job).values())), 3)

    def test_what_experts_cannot_have_adapters_of_is_said_before_anything_starts(self):
        config = self.write_config()
        for args, said in {
            ("model.lora.rank=2",): "target gate is experts in layer 0, in which each has gate, up and down of its own; take experts",
            ("model.lora.rank=25", "model.lora.targets=[experts]"): "rank 25 is above 24, the smaller side of target experts_down",
            ("model.lora.rank=2", "model.lora.targets=[experts]", "train.mesh.ep=2", "scheduler.actor_slots=2", "cluster.slots=3"): "is not cut yet; write 1",
        }.items():
            with self.subTest(args=args):
                result = self.train(config, *args)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(said, result.stderr)
                self.assertFalse(self.path().exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
