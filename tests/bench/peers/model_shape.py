"""Models of real shapes with random weights, for the programs of this folder."""
import os

# vocabulary, hidden, intermediate, layers, heads, KV heads, tied embeddings: as tests/bench/bench_model.cc has them.
SHAPES = {
    "smollm2": (49152, 576, 1536, 30, 9, 3, True),
    "0.5b": (151936, 896, 4864, 24, 14, 2, True),
    "1b": (128256, 2048, 8192, 16, 32, 8, True),
    "8b": (128256, 4096, 14336, 32, 32, 8, False),
    "experts": (49152, 576, 1536, 8, 9, 3, True),
}
EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 192, "norm_topk_prob": True, "head_dim": 64}


def add_arguments(parser):
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")


def make_model(args, dtype):
    """dtype: "float32" or "bfloat16". Sets the threads; to be called before torch is imported anywhere."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    vocabulary, hidden, intermediate, layers, heads, kv_heads, tied = SHAPES[args.shape]
    make_config, make, more = (Qwen3MoeConfig, Qwen3MoeForCausalLM, EXPERTS) if args.shape == "experts" else (LlamaConfig, LlamaForCausalLM, {})
    config = make_config(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=8192, rope_theta=100000.0,
                         tie_word_embeddings=tied, attn_implementation="sdpa", **more)
    torch.set_default_device(args.device)
    return make(config).to(getattr(torch, dtype))


def wait(args):
    """For what the device still computes."""
    import torch

    if args.device == "cuda":
        torch.cuda.synchronize()
