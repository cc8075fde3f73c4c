// The table itself: one entry a key, in the order in which they are shown.

#include <utility>

#include "core/config/schema_parts.h"
#include "core/model/adapter_files.h"
#include "core/model/spec.h"

namespace tidepool::config {
namespace {

std::vector<Key> RootKeys() {
  return {
      TP_KEY(name, "names the run directory: runs/<name>-<utc time>", kFree),
      TP_KEY(seed, "of data order, sampling noise and initial weights"),
      TP_KEY(job,
             "kind of job: reinforcement learning, supervised fine-tuning, preferences (DPO, IPO), a reward "
             "model, a student of a teacher"),
      TP_KEY(
          deterministic,
          "the same bits on every run: elastic placement is refused, slots that train add up gradients after "
          "each micro-batch, and a GPU takes slower kernels, whose rows do not depend on the batch, and is "
          "refused where its rows do; on one instruction set: --resume refuses one that rounds otherwise"),
      TP_KEY(model.path, "Hugging Face folder to start from; or model.init", kPath),
      TP_KEY(model.dtype, "weights that compute; master weights are float32"),
      TP_KEY(
          model.lora.rank,
          "of an adapter, which is trained while the model is frozen (LoRA, arXiv:2106.09685); 0: the whole "
          "model is trained",
          Between(0, model::kAdapterRankMost)),
      TP_KEY(model.lora.alpha, "what the adapter adds is multiplied by alpha / rank; default twice the rank",
             Positive()),
      TP_KEY(model.lora.targets,
             "matrices that it changes: of each block q, k, v, o, gate, up, down, or experts (gate, up and "
             "down of each expert); of the model embedding, head"),
      TP_KEY(model.lora.init,
             "what A starts as: kaiming (uniform within 1 / sqrt(width)) or gaussian (deviation 1 / rank); B "
             "starts as zeros"),
      TP_KEY(model.lora.rslora, "multiplied by alpha / sqrt(rank) instead (arXiv:2312.03732)"),
      TP_KEY(model.lora.dropout, "the forward that generates is the one that trains, so there is none",
             Between(0, 0)),
      TP_KEY(model.lora.path,
             "folder of an adapter in PEFT's layout to start from, of this rank, alpha and targets; empty: a "
             "new one",
             kPath),
      TP_KEY(model.policy,
             "a small policy for a control task of environment.name, in place of a language model"),
      TP_KEY(model.hidden, "widths of the policy's hidden layers (tanh), for actor and critic each",
             Between(1, 4096)),
      TP_KEY(model.shared, "actor and critic of the policy share their hidden layers"),
      TP_KEY(model.initial_log_std, "logarithm of the deviation that a Gaussian policy starts with",
             Between(-10, 4)),
      TP_INIT_KEY(architecture, "kind of decoder", Choices{"llama", "qwen2", "qwen3"}),
      TP_INIT_KEY(hidden_size, "width of the residual stream", Between(8, 65536)),
      TP_INIT_KEY(intermediate_size, "width of the feed-forward part", Between(8, 262144)),
      TP_INIT_KEY(layers, "blocks", Between(1, 512)),
      TP_INIT_KEY(heads, "query heads", Between(1, 1024)),
      TP_INIT_KEY(kv_heads, "key and value heads; divides heads", Between(1, 1024)),
      TP_INIT_KEY(head_size, "width of a head; even", Between(2, model::kHeadSizeMost)),
      TP_INIT_KEY(max_position, "longest sequence", Between(2, 1 << 20), Unit{"tokens"}),
      TP_INIT_KEY(rope_theta, "base of the rotary positions", Positive()),
      TP_INIT_KEY(init_std, "deviation of the initial weights", Positive()),
      TP_INIT_KEY(tie_embeddings, "output layer and embeddings are one matrix"),
      TP_INIT_KEY(alphabet, "one token a character, after <pad>, <bos>, <eos>"),
      TP_INIT_KEY(warm_start, "sft config that is run first, by the same launcher", kPath),
  };
}

std::vector<Key> DataKeys() {
  return {
      TP_KEY(data.task,
             "generated task (`tidepool tasks`); its options are further keys of data; or data.path"),
      TP_KEY(data.path, "JSONL file of rows; their shapes are in docs/adding_a_task.md", kPath),
      TP_KEY(data.eval_path, "JSONL file of held-out rows, with data.path", kPath),
      TP_KEY(data.size, "distinct training questions of a generated task, as far as it has them",
             Between(1, 1e8), Unit{"questions"}),
      TP_KEY(data.held_out,
             "questions never trained on, in the task's unit; default at most a quarter of a task's "
             "questions, and none of a file",
             Between(0, 1e8)),
      TP_KEY(data.shuffle, "a new order each epoch, named by the seed"),
      TP_KEY(data.template_date, "today, YYYY-MM-DD, for chat templates that print the date (Llama 3.x)"),
      TP_KEY(data.max_prompt_tokens,
             "longer prompts are refused; default also bounded by what model and micro-batch hold",
             Between(1, kMany), Unit{"tokens"}, kFree),
      TP_ITEM_KEY(
          name,
          "registered reward (`tidepool rewards`), perhaps with an argument: format:REGEX; or free with "
          "an endpoint",
          JobKind::kRl),
      TP_ITEM_KEY(
          endpoint,
          "reward server: unix:PATH or HOST:PORT, speaks proto/reward.proto; or http://HOST:PORT/PATH, "
          "speaks JSON",
          JobKind::kRl, kFree),
      TP_ITEM_KEY(weight, "factor in the sum", JobKind::kRl),
      TP_ITEM_KEY(timeout_s,
                  "for one call; a server that cannot be reached is tried again for as long, from when it "
                  "was last reached; a function in C++ that takes longer ends its reward worker",
                  Within(0, 86400), Unit{"s"}, JobKind::kRl, kFree),
      TP_ITEM_KEY(path,
                  "of reward_model and judge: the folder of the model that grades, which each reward worker "
                  "loads and computes with on the CPU; reward_model: one with a value head, as job: "
                  "reward_model leaves it in final/",
                  JobKind::kRl, kPath),
      TP_ITEM_KEY(dtype, "of the model of path", JobKind::kRl),
      TP_ITEM_KEY(max_tokens,
                  "of question and response together, and of a judge's answer, in the tokens of the model of "
                  "path; a longer sample cannot be graded (outcome data). As many are computed together",
                  Between(2, kMany), Unit{"tokens"}, JobKind::kRl),
      TP_ITEM_KEY(prompt,
                  "of judge: what it is asked, with {question}, {response} and {answer} in their places; "
                  "empty: for a number from 0 to 10 (docs/adding_a_reward.md)",
                  JobKind::kRl),
      TP_ITEM_KEY(score_pattern,
                  "of judge: regular expression whose group 1, or all of it, is the number in its answer; "
                  "empty: the first number",
                  JobKind::kRl),
      TP_ITEM_KEY(score_min, "of judge: the number that is worth 0", JobKind::kRl),
      TP_ITEM_KEY(score_max, "of judge: the number that is worth 1", JobKind::kRl),
      TP_ITEM_KEY(max_new_tokens, "of judge: of its answer", Between(1, kMany), Unit{"tokens"}, JobKind::kRl),
      TP_KEY(reward.workers, "reward processes", Between(1, 4096), JobKind::kRl, kFree),
      TP_KEY(reward.concurrency,
             "calls that each reward worker has under way at once; what a judge of some seconds is to be "
             "asked at a time is concurrency x workers x batch",
             Between(1, 256), JobKind::kRl, kFree),
      TP_KEY(reward.batch,
             "samples that a reward worker grades at once: a server gets those that wait, up to so many, in "
             "one call; at 1 always one, by itself",
             Between(1, 1024), Unit{"samples"}, JobKind::kRl, kFree),
      TP_KEY(reward.max_retries, "of infrastructure failures, on any worker", Between(0, 100), JobKind::kRl,
             kFree),
      TP_KEY(reward.threads,
             "of each reward worker that computes with models (path in reward.functions), beside those of "
             "the slots",
             Between(1, 1024), JobKind::kRl, kFree),
      TP_KEY(reward.load_timeout_s,
             "that a reward worker may take to load the models of reward.functions; one that takes longer "
             "ends",
             Within(0, 86400), Unit{"s"}, JobKind::kRl, kFree),
  };
}

std::vector<Key> EnvironmentKeys() {
  return {
      TP_JOB_KEY(
          RlJob, environment.name,
          "game of several turns, or control task of model.policy (`tidepool environments`), in place of "
          "data and reward; its options are further keys of environment. Of a service: what it is called in "
          "metrics and messages"),
      TP_JOB_KEY(
          RlJob, environment.command,
          "program and arguments of an environment that is a service of its own "
          "(docs/adding_an_environment.md); each environment worker starts one, of model.policy as many as "
          "environment.processes",
          kFree),
      TP_JOB_KEY(
          RlJob, environment.processes,
          "of environment.command that each environment worker starts; the instances of a fragment are "
          "spread over them",
          Between(1, 256), kFree),
      TP_JOB_KEY(RlJob, environment.observation_size,
                 "of a service that model.policy plays: numbers of an observation; 0: it is asked",
                 Between(0, 65536), Unit{"numbers"}),
      TP_JOB_KEY(RlJob, environment.actions,
                 "of a service that model.policy plays: choices, or numbers of an action; it is asked",
                 Between(0, 4096)),
      TP_JOB_KEY(RlJob, environment.continuous,
                 "of a service that model.policy plays: an action is numbers, else a choice; it is asked"),
      TP_JOB_KEY(RlJob, environment.action_low,
                 "of a service that model.policy plays: the least that a number of an action can be; it is "
                 "asked",
                 Between(-1e6, 1e6)),
      TP_JOB_KEY(RlJob, environment.action_high,
                 "the largest; the same as action_low: it does not say, and algorithm sac cannot play it",
                 Between(-1e6, 1e6)),
      TP_JOB_KEY(RlJob, environment.solved_return,
                 "of a service that model.policy plays: return of a solved episode, in place of what it says",
                 kFree),
      TP_JOB_KEY(RlJob, environment.addresses,
                 "of running services, all of the same environment, host:port or unix:/path; episodes are "
                 "spread over them",
                 kFree),
      TP_JOB_KEY(RlJob, environment.start_timeout_s, "until a service that was started answers",
                 Within(0, 86400), Unit{"s"}, kFree),
      TP_JOB_KEY(RlJob, environment.size, "training episodes that are drawn", Between(1, 1e8),
                 Unit{"episodes"}),
      TP_JOB_KEY(RlJob, environment.held_out, "episodes for evaluation; their games are never trained on",
                 Between(0, 1e6), Unit{"episodes"}),
      TP_JOB_KEY(RlJob, environment.instances,
                 "environments that a fragment of model.policy steps together; of a service: episodes that a "
                 "worker has open at once, 256 where it is not written",
                 Between(1, 65536)),
      TP_JOB_KEY(RlJob, environment.max_episode_steps,
                 "an episode of model.policy is truncated here; 0: the environment's own limit",
                 Between(0, 1e9), Unit{"steps"}),
      TP_JOB_KEY(RlJob, environment.workers, "environment processes", Between(1, 4096), kFree),
      TP_JOB_KEY(RlJob, environment.max_turns, "an episode ends here; 0: the environment's own limit",
                 Between(0, 1e6), Unit{"turns"}),
      TP_JOB_KEY(
          RlJob, environment.max_turn_tokens,
          "of the policy in one turn; 0: what rollout.max_new_tokens leaves, which is the limit of the "
          "whole episode, observations included",
          Between(0, kMany), Unit{"tokens"}),
      TP_JOB_KEY(RlJob, environment.max_retries,
                 "of infrastructure failures, on another worker where there is one", Between(0, 100), kFree),
      TP_JOB_KEY(RlJob, environment.reset_timeout_s, "to begin an episode", Within(0, 86400), Unit{"s"},
                 kFree),
      TP_JOB_KEY(RlJob, environment.step_timeout_s, "of one turn; what takes longer is tried again elsewhere",
                 Within(0, 86400), Unit{"s"}, kFree),
      TP_JOB_KEY(RlJob, environment.episode_timeout_s,
                 "of a whole episode from its first turn on; then the sample is dropped (env_infra)",
                 Within(0, 604800), Unit{"s"}, kFree),
      TP_JOB_KEY(RlJob, environment.latency.median_s,
                 "time that a turn takes in the worker, drawn from (seed, sample, turn); 0: none",
                 Between(0, 3600), Unit{"s"}),
      TP_JOB_KEY(RlJob, environment.latency.tail,
                 "deviation of its logarithm: 0 always the median, 1 and more a heavy tail", Between(0, 5)),
      TP_JOB_KEY(RlJob, environment.latency.max_s, "draws are cut here", Within(0, 86400), Unit{"s"}),
      TP_JOB_KEY(RlJob, environment.latency.straggler_share,
                 "of the samples, drawn from (seed, sample): each of their turns takes straggler_s longer",
                 Between(0, 1)),
      TP_JOB_KEY(RlJob, environment.latency.straggler_s, "extra seconds that each turn of a straggler takes",
                 Between(0, 86400), Unit{"s"}),
  };
}

std::vector<Key> RolloutKeys() {
  return {
      TP_KEY(rollout.steps_per_fragment,
             "steps of every instance in one fragment of model.policy; a group is one fragment",
             Between(1, 1e6), Unit{"steps"}),
      TP_KEY(rollout.group_size, "samples of one prompt (G)", Between(1, 65536), Unit{"samples"},
             JobKind::kRl),
      TP_KEY(
          rollout.redundancy,
          "samples of a group that are begun beside group_size; when so many are graded as group_size says, "
          "the "
          "others are dropped (overflow_policy). Hides slow environments and stragglers, and prefers short "
          "episodes; of no deterministic run",
          Between(0, 65536), Unit{"samples"}, JobKind::kRl),
      TP_KEY(rollout.max_new_tokens, "a response is cut there", Between(1, 1 << 20), Unit{"tokens"}),
      TP_KEY(rollout.chunk_tokens,
             "new tokens of one request; 0: a twentieth of max_new_tokens, at least 256, at most 2048",
             Between(0, 1 << 20), Unit{"tokens"}, kFree),
      TP_KEY(rollout.temperature, "of sampling; evaluation is greedy", Between(0, 100)),
      TP_KEY(rollout.top_k, "most likely tokens kept; 0: all", Between(0, kMany)),
      TP_KEY(rollout.top_p, "probability mass kept", Within(0, 1)),
      TP_KEY(rollout.min_p, "tokens below this share of the most likely one are left out", UpTo(0, 1)),
      TP_KEY(rollout.stop, "texts that end a response"),
      TP_KEY(rollout.stop_token_ids, "tokens that end a response, beside the model's own", Between(0, kMany)),
      TP_KEY(rollout.max_concurrent, "in flight", Between(1, 1 << 20), Unit{"samples"}, kFree),
      TP_KEY(rollout.block_tokens, "block of the KV cache", Between(1, 1024), Unit{"tokens"}, kFree),
      TP_KEY(rollout.admission,
             "reserve: a chunk starts only where its KV fits; adaptive: the number in flight follows KV use "
             "and queues of the engines",
             JobKind::kRl, kFree),
      TP_KEY(rollout.pin_version,
             "a sample ends on the weights that it began with; its worker takes new ones when it is empty",
             JobKind::kRl),
      TP_KEY(rollout.repack_s,
             "pin_version: between looks at long samples that could be moved together, so that workers "
             "become empty; 0: never",
             Between(0, 86400), Unit{"s"}, JobKind::kRl, kFree),
      TP_KEY(rollout.kv_cache_tokens,
             "capacity of the KV cache; 0: what max_concurrent needs, at most 256 MiB on a CPU and 4 GiB on "
             "a GPU, however much memory there is",
             Between(0, 2e9), Unit{"tokens"}, kFree),
      TP_KEY(rollout.max_batched_tokens, "in one forward of the engine", Between(1, 1 << 24), Unit{"tokens"},
             kFree),
      TP_KEY(rollout.kv_on_update, "what happens to cached keys when weights arrive in mid-sample"),
      TP_KEY(rollout.record_routing,
             "record the experts that each token was computed with, and train through the same ones; no "
             "effect on models without experts"),
      TP_KEY(rollout.cuda_graphs,
             "cluster.device: cuda: a step of the engine that only decodes is recorded, and launched as one",
             kFree),
      TP_KEY(rollout.endpoint,
             "episodes are played by programs that exist, over the run's own OpenAI-style endpoint "
             "(docs/agents.md); endpoint.json in the run's folder says where it is",
             JobKind::kRl),
      TP_KEY(rollout.endpoint_port, "of rollout.endpoint, on loopback; 0: a free one", Between(0, 65535),
             JobKind::kRl, kFree),
      TP_KEY(
          rollout.mesh.tp,
          "ranks that are one engine, each with a part of every matrix and the keys and values of its heads "
          "(tensor parallelism): as many of the slots that generate, beside each other. The first of them is "
          "what an engine is elsewhere, the others compute what it tells them",
          Between(1, 64), kFree),
  };
}

std::vector<Key> TrainKeys() {
  return {
      TP_KEY(train.groups_per_step, "groups consumed by an optimizer step (B); in sft: rows",
             Between(1, 1 << 20), Unit{"prompts"}),
      TP_KEY(train.steps, "optimizer steps of the whole run", Between(0, kMany), kFree),
      TP_KEY(train.epochs, "passes over each batch", Between(1, 100)),
      TP_KEY(train.minibatches, "optimizer updates in a pass; at most groups_per_step", Between(1, 1 << 20)),
      TP_KEY(train.learning_rate, "peak learning rate of AdamW", Between(0, 10), kFree),
      TP_KEY(train.schedule, "of the learning rate after the warm-up", kFree),
      TP_KEY(train.warmup_steps, "linear rise from 0", Between(0, kMany), kFree),
      TP_KEY(train.min_learning_rate_ratio, "where the schedule ends, as a share of the peak", Between(0, 1),
             kFree),
      TP_KEY(train.beta1, "AdamW: decay of the mean", UpTo(0, 1)),
      TP_KEY(train.beta2, "AdamW: decay of the mean square", UpTo(0, 1)),
      TP_KEY(train.adam_eps, "AdamW: added to the root", Positive()),
      TP_KEY(train.weight_decay, "AdamW: decoupled decay", Between(0, 10)),
      TP_KEY(train.max_grad_norm, "global-norm clipping; 0: none", AtLeast(0)),
      TP_KEY(train.micro_batch_tokens,
             "most tokens of rows that are packed into one forward and backward; a longer row is refused",
             Between(1, 1 << 26), Unit{"tokens"}, kFree),
      TP_KEY(train.recompute, "recompute activations of each block: less memory, a third more time", kFree),
      TP_KEY(
          train.early_columns,
          "slots that train and wait for the rest of a batch compute what reference, teacher and critic say "
          "of the groups that are there, and log-probs where the algorithm needs them first; the results "
          "are the same",
          JobKind::kRl, kFree),
      TP_KEY(
          train.offload_optimizer,
          "where what the trainer holds beside the weights (optimizer, critic, reference, teacher) goes when "
          "its device leaves the actor role and the memory is needed; disk: to files of the run, and it "
          "comes back when the device trains again",
          kFree),
      TP_KEY(
          train.zero,
          "what the slots that train share: 0: nothing, each has the whole optimizer; 1: the optimizer's "
          "state (moments, and of bfloat16 weights what rounding cut off), each has a part; 2: gradients, "
          "too, which are added up over the slots after each micro-batch; 3: weights, too, for slots of one "
          "host that only train: it has them once, in shared memory, and each slot lays them out for "
          "products a block at a time. The result of 0 and 1 is the "
          "same to the bit; so is that of 2 and 3 where a slot has one micro-batch an update and sums pass "
          "the host, or with "
          "deterministic: true. No effect where one slot trains",
          Between(0, 3), kFree),
      TP_KEY(train.router_aux_coef,
             "weight of the load-balance loss of experts, which is their number per token when all are used "
             "alike; no effect on models without experts",
             Between(0, 100)),
      TP_KEY(train.max_nonfinite_steps, "in a row, then the run stops at the last good weights",
             Between(1, 1e6), kFree),
      TP_KEY(
          train.mesh.tp,
          "ranks that each have a part of every matrix of the trained model (tensor parallelism): heads, "
          "inner "
          "width and vocabulary are divided among so many of the slots that train, beside each other, which "
          "are given the same rows; they add up what they computed after each half of a block. The result is "
          "that of one rank, to the bit with 2 to 4 ranks. Reference and teacher have whole models, and "
          "engines that "
          "rollout.mesh.tp does "
          "not cut",
          Between(1, 64), kFree),
      TP_KEY(
          train.mesh.ep,
          "ranks that divide the experts of each mixture-of-experts layer between them (expert "
          "parallelism): so many of the slots that train, beside each other, of which each has rows of its "
          "own; rows go to the slot that has their expert, and come back. Divides the slots that train and "
          "the experts. The result is that without it up to rounding; with deterministic: true and as many "
          "slots to the bit, where products do not depend on the batch",
          Between(1, 64), kFree),
  };
}

std::vector<Key> SystemKeys() {
  std::vector<Key> keys = {
      TP_KEY(scheduler.placement,
             "what a slot may hold, and who generates and who trains when: `tidepool policies`", kFree),
      TP_KEY(scheduler.policy,
             "decides within the placement: a name of `tidepool policies`; empty: the placement's own",
             kFree),
      TP_KEY(scheduler.max_lag_versions, "oldest weights a trained token may come from; 0 is synchronous",
             Between(0, 1000), Unit{"versions"}, JobKind::kRl),
      TP_KEY(scheduler.actor_slots,
             "split, multiplexed: slots that train; elastic: the most that may, 1: as many as it finds best",
             Between(1, 65536), Unit{"slots"}, kFree),
      TP_KEY(scheduler.rollout_floor, "multiplexed, elastic: slots that go on generating while others train",
             Between(0, 65536), Unit{"slots"}, kFree),
      TP_KEY(scheduler.uneven_dp, "groups of a step need not divide evenly by the slots that train", kFree),
      TP_KEY(scheduler.on_stale, "what happens to a group older than the bound", JobKind::kRl),
      TP_KEY(scheduler.max_reissues, "of one prompt, then it is dropped", Between(0, 1000), JobKind::kRl),
      TP_KEY(scheduler.oversample, "groups started for each one that is trained on", Between(1, 16),
             JobKind::kRl),
      TP_KEY(scheduler.oversample_mode,
             "which surplus groups are trained: none but replacements, the first done, or long ones in "
             "rounds of their own",
             JobKind::kRl),
      TP_KEY(scheduler.straggler_wait,
             "of a step's time, waited for a group that would expire at the next version", Between(0, 10),
             JobKind::kRl, kFree),
      TP_KEY(scheduler.min_step_batch_fraction, "share of a batch that is enough when groups were lost",
             Within(0, 1), JobKind::kRl),
      TP_KEY(scheduler.infra_drop_alarm, "share of samples lost to infrastructure that is reported",
             Between(0, 1), JobKind::kRl, kFree),
      TP_KEY(scheduler.infra_drop_stop,
             "the run stops when more than this share of 20 steps' samples is lost", Between(0, 1),
             JobKind::kRl, kFree),
      TP_KEY(cluster.device,
             "what a slot is: a share of the CPU cores, or a GPU: the first slot of a host the first that "
             "the driver shows, "
             "and so on"),
      TP_KEY(cluster.slots, "devices; one worker process each", Between(1, 65536)),
      TP_KEY(cluster.min_slots,
             "the run begins when so many slots have a worker, takes the others when they come, and goes on "
             "without those that are gone for good; 0: every slot has to come, and none waits for the others",
             Between(0, 65536), Unit{"slots"}),
      TP_KEY(cluster.threads_per_slot, "CPU threads of a worker", Between(1, 1024)),
      TP_KEY(cluster.bind,
             "address the controller listens on; where others can reach it, calls are encrypted"),
      TP_KEY(cluster.port, "0: any free port", Between(0, 65535)),
      TP_KEY(cluster.advertise, "host name or address that workers dial; empty: that of cluster.bind"),
      TP_KEY(cluster.trusted_fabric,
             "several slots may train across hosts: what they sum is not encrypted, so the network must be "
             "the job's own"),
      TP_KEY(cluster.worker_dir, "folder of tidepool-worker; empty: beside tidepool", kPath),
      TP_KEY(cluster.launch_workers, "false: workers are started by hand and join"),
      TP_KEY(cluster.reattach_grace_s,
             "workers outlive a dead controller that long and re-attach to --resume", Between(0, 86400),
             Unit{"s"}),
      TP_KEY(cluster.heartbeat_s, "between signs of life", Between(0.01, 3600), Unit{"s"}),
      TP_KEY(cluster.start_timeout_s, "for a worker to start", Between(0.1, 86400), Unit{"s"}),
      TP_KEY(cluster.stall_timeout_s, "without progress anywhere while work remains", Between(0.1, 86400),
             Unit{"s"}),
      TP_KEY(
          cluster.plugin_timeout_s,
          "for a call of a plug-in that has no time-out of its own: a factory, a question of a task, a "
          "policy's plan, a loss, an advantage; what takes longer ends its process. At most stall_timeout_s, "
          "which is also its default where that is shorter",
          Between(0.1, 86400), Unit{"s"}),
      TP_KEY(cluster.weight_transport,
             "how weights reach other slots; one slot alone hands them over in place"),
      TP_KEY(cluster.pace,
             "file of configs/pace: engine and training steps of a CPU slot take the time of the model and "
             "hardware named there; empty: their own",
             JobKind::kRl, kPath),
      TP_KEY(cluster.pace_scale, "modelled seconds are stretched by it, so that many slots fit on few cores",
             Between(0.001, 1000), JobKind::kRl),
      TP_KEY(checkpoint.every_steps, "0: at the start and the end alone", Between(0, kMany), Unit{"steps"}),
      TP_KEY(checkpoint.keep, "newest checkpoints kept; one alone could be the bad one", Between(2, 1e6)),
      TP_KEY(checkpoint.recovery_every_steps,
             "copy of the trainer's state in shared memory, for a lost actor; 0: none", Between(0, kMany),
             Unit{"steps"}),
      TP_KEY(checkpoint.save_final, "write final/, a Hugging Face folder"),
      TP_KEY(checkpoint.keep_best,
             "metric of an evaluation (eval/reward/mean, eval/accuracy, eval/return/mean, "
             "eval/reward/NAME/mean; of "
             "rows that the trainer judges eval/loss, eval/sft/token_accuracy, eval/dpo/accuracy, "
             "eval/dpo/margin, "
             "those of reward_model): best/ holds the model of the checkpoint that had most of it, or least "
             "of a "
             "loss; empty: none"),
      TP_KEY(checkpoint.store,
             "where the files of checkpoints are: a directory that all hosts share, or s3://BUCKET/PREFIX; "
             "empty: the run's folder"),
      TP_KEY(checkpoint.s3_endpoint, "of a store that is not Amazon's: http://HOST:PORT or https://HOST"),
      TP_KEY(checkpoint.s3_region, "of the bucket; empty: as AWS_REGION or ~/.aws/config say"),
      TP_KEY(checkpoint.store_timeout_s,
             "how long a request to S3 is tried again before the store is out of reach", Between(1, 3600),
             Unit{"s"}),
      TP_KEY(checkpoint.staging_dir,
             "folder on a disk of each host that the files of a checkpoint pass on their way to and from the "
             "store; empty: the run's folder",
             kPath),
      TP_KEY(eval.every_steps,
             "evaluate on held-out rows: greedy answers that are graded (rl, sft), loss (sft, pairs); 0: "
             "before and after alone",
             Between(0, kMany), Unit{"steps"}),
      TP_KEY(eval.before_train, "evaluate before the first step"),
      TP_KEY(eval.after_train, "evaluate after the last step"),
      TP_KEY(eval.samples, "held-out questions of an evaluation; 0: all", Between(0, kMany),
             Unit{"questions"}),
      TP_KEY(eval.stop_at_accuracy,
             "the job is done once an evaluation reaches this share of right answers; 0: never",
             Between(0, 1)),
      TP_KEY(observe.tensorboard, "write tb/"),
      TP_KEY(observe.trace, "write trace/, for Perfetto"),
      TP_KEY(observe.samples_per_step, "in samples/step_N.jsonl, from several groups; 0: none, -1: all",
             Between(-1, kMany), Unit{"rows"}),
      TP_KEY(observe.log_level, "of the files in logs/"),
      TP_KEY(observe.metrics_bind,
             "address that the controller shows /metrics, /healthz, /readyz and /status on; workers show "
             "theirs on any free port, of loopback where this is loopback, else of the address that others "
             "reach them at; empty: no pages"),
      TP_KEY(observe.metrics_port, "of the controller's pages; 0: any free port", Between(0, 65535)),
      TP_KEY(security.tls, "encrypt calls on loopback too; elsewhere they always are"),
      TP_KEY(security.certificate_hours,
             "certificates of the job hold so long; the controller makes new ones when a twelfth of it is "
             "left, and nothing stops for it",
             Between(0.01, 8760), Unit{"hours"}),
      TP_KEY(security.newcomers,
             "the controller gives certificates to hosts that do not see the run directory, for join tokens "
             "(`tidepool join-token`)"),
      TP_KEY(
          security.max_control_bytes,
          "largest frame that the controller sends or takes (a worker takes any of up to 64 MiB); messages "
          "that are larger are cut",
          Between(512 << 10, 64 << 20), Unit{"bytes"}),
      TP_KEY(security.max_frame_bytes, "largest frame of a batch's rows", Between(4096, 16 << 20),
             Unit{"bytes"}),
  };
  for (Key& key : keys) {
    const std::string section = key.path.substr(0, key.path.find('.'));
    if (section != "scheduler")
      key.on_resume = OnResume::kFree;  // cluster, checkpoint, eval, observe, security
  }
  return keys;
}

}  // namespace

const std::vector<Key>& Keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (auto part : {RootKeys, DataKeys, EnvironmentKeys, ShapingKeys, AlgorithmKeys, RolloutKeys,
                      ObjectiveKeys, TrainKeys, SystemKeys}) {
      for (Key& key : part()) all.push_back(std::move(key));
    }
    JobConfig scratch;
    scratch.reward.functions.emplace_back();
    for (Key& key : all) {
      const Field field = key.field(scratch, 0);
      if (const auto* word = std::get_if<WordField>(&field))
        key.choices.assign(word->words().begin(), word->words().end());
    }
    return all;
  }();
  return keys;
}

}  // namespace tidepool::config
