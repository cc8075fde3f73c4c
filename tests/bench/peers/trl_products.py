"""The job of configs/smollm2_products.yaml by TRL's GRPOTrainer on a CPU, for smollm2_vs_peer.py.

Groups of 8, 64 completions a step, 16 new tokens, temperature 1, dr_grpo aggregation, advantages divided by the
group's deviation, constant learning rate, no reference model; with --lora-rank an adapter by PEFT. Everything else is what makes TRL fastest here:
no gradient checkpointing, SDPA attention, no logging service.

Writes one JSON object a line to --out: {"step", "seconds", "reward", "tokens"} for each step, then one with
"done", "load_seconds", "accuracy" (greedy, held out, if --evaluate) and "model_dir" (if --save).
"""

import argparse
import json
import os
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--out", required=True, help="JSON lines go here")
    parser.add_argument("--weights", choices=["float32", "bfloat16"], default="float32", help="float32 computes under bf16 autocast")
    parser.add_argument("--micro-batch", type=int, default=64, help="completions per forward pass; divides 64")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--lora-rank", type=int, default=0, help="train an adapter of this rank on all seven matrices of a block; 0: the whole model")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--held-out", type=int, default=9)
    parser.add_argument("--evaluate", action="store_true", help="greedy accuracy on the held-out questions at the end")
    parser.add_argument("--save", help="folder for the trained model")
    return parser.parse_args()


def main():
    args = parse_arguments()
    # Before torch is imported: it reads them once. Nothing is looked up on the network.
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    started = time.monotonic()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import products_task

    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.weights)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa")
    stops = model.generation_config.eos_token_id
    stops = set(stops if isinstance(stops, list) else [stops]) | {tokenizer.eos_token_id}

    train, held_out = products_task.split(args.seed, held_out=args.held_out)
    rows = [{"prompt": [{"role": "user", "content": products_task.prompt(a, b)}], "answer": str(a * b)} for a, b in train]

    def right(completions, completion_ids, answer, **_):
        return [
            products_task.reward(messages[0]["content"], bool(ids) and ids[-1] in stops, truth)
            for messages, ids, truth in zip(completions, completion_ids, answer)
        ]

    out = open(args.out, "w", buffering=1)

    class Record(TrainerCallback):
        """Wall-clock seconds from one optimizer step's end to the next: generation, reward and update together."""

        def on_train_begin(self, *_, **__):
            self.last = time.monotonic()
            self.seconds = {}

        def on_step_end(self, _args, state, _control, **__):
            now = time.monotonic()
            self.seconds[state.global_step] = now - self.last
            self.last = now

        def on_log(self, _args, state, _control, logs=None, **__):
            if logs and "reward" in logs:
                out.write(
                    json.dumps(
                        {
                            "step": state.global_step,
                            "seconds": self.seconds.get(state.global_step),
                            "reward": logs["reward"],
                            "tokens": logs.get("completions/mean_length"),
                            "grad_norm": logs.get("grad_norm"),
                        }
                    )
                    + "\n"
                )

    samples = args.groups * args.group_size
    if samples % args.micro_batch != 0:
        sys.exit(f"--micro-batch {args.micro_batch} does not divide the {samples} completions of a step")
    config = GRPOConfig(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(args.out)), "trl"),
        use_cpu=True,
        bf16=True,  # autocast; with bfloat16 weights there is nothing left to cast
        seed=args.seed,
        max_steps=args.steps,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=samples // args.micro_batch,
        num_generations=args.group_size,
        max_completion_length=args.new_tokens,
        temperature=1.0,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="group",
        max_grad_norm=1.0,
        weight_decay=0.0,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    adapter = None
    if args.lora_rank > 0:
        from peft import LoraConfig

        modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        adapter = LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules=modules, task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=model,
        peft_config=adapter,
        args=config,
        reward_funcs=right,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Record()],
    )
    load_seconds = time.monotonic() - started
    trainer.train()

    done = {"done": True, "load_seconds": load_seconds, "train_seconds": time.monotonic() - started - load_seconds}
    if args.evaluate:
        model = trainer.model
        model.eval()
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": products_task.prompt(a, b)}], add_generation_prompt=True, tokenize=False)
            for a, b in held_out
        ]
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            ids = model.generate(**batch, max_new_tokens=args.new_tokens, do_sample=False)[:, batch["input_ids"].shape[1] :]
        score = 0.0
        for row, (a, b) in zip(ids.tolist(), held_out):
            ended = any(token in stops for token in row)
            score += products_task.reward(tokenizer.decode(row, skip_special_tokens=True), ended, a * b)
        done["accuracy"] = score / len(held_out)
    if args.save:
        trainer.save_model(args.save)
        done["model_dir"] = args.save
    out.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
