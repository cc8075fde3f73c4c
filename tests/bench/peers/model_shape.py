"""A model of SmolLM2-135M's shape with random weights, for the programs of this folder."""
import os


def make_model(threads, dtype):
    """dtype: "float32" or "bfloat16". Sets the threads; to be called before torch is imported anywhere."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                         num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
                         attn_implementation="sdpa")
    return LlamaForCausalLM(config).to(getattr(torch, dtype))
