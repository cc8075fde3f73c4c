#pragma once
// A job as typed structs: what a YAML file says after `extends`, defaults and overrides. Filled and
// checked whole by core/config (which knows file and line), const from then on. Plain data.
// Units: `_s` seconds, `_bytes`, `_tokens`; counts are int64_t. Empty optional: not set.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/choices.h"

namespace tidepool {

// `model.init`: a model made from the config rather than read from a folder.
struct ModelInit {
  std::string architecture = "llama";  // llama | qwen2 | qwen3
  int64_t hidden_size = 128;
  int64_t intermediate_size = 384;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 32;
  int64_t max_position = 256;
  double rope_theta = 10000.0;
  double init_std = 0.02;
  bool tie_embeddings = true;
  std::string alphabet = "0123456789abcdefghijklmnopqrstuvwxyz +-*/=.,:?()<>";  // one token per character,
                                                                                // after <pad>, <bos>, <eos>
  std::string warm_start;  // path of an sft config that is run first, relative to this file; empty: none
};

// `model.lora`: an adapter (core/model/adapter.h) is trained, and the model that it changes is frozen.
struct LoraConfig {
  int64_t rank = 0;             // 0: no adapter, the whole model is trained
  std::optional<double> alpha;  // empty: twice the rank
  std::vector<std::string> targets = {"q", "k", "v", "o", "gate", "up", "down"};
  AdapterInit init = AdapterInit::kKaiming;
  bool rslora = false;
  double dropout = 0;  // none is implemented: the same forward generates and trains
  std::string path;    // folder of an adapter (core/model/adapter_files.h) to start from; empty: a new one
};

struct ModelConfig {
  std::string path;               // Hugging Face folder; or
  std::optional<ModelInit> init;  // made from the config
  DType dtype = DType::kFloat32;
  LoraConfig lora;
  // Or a small policy for a control task (core/policy/spec.h), made for `environment`.
  PolicyKind policy = PolicyKind::kNone;  // kNone: a language model
  std::vector<int64_t> hidden = {64, 64};
  bool shared = false;           // actor and critic share their hidden layers
  double initial_log_std = 0.0;  // of a Gaussian policy
  [[nodiscard]] bool is_policy() const { return policy != PolicyKind::kNone; }
  [[nodiscard]] bool trains_adapter() const { return lora.rank > 0; }
};

// `data`: a generated task (core/tasks) or a JSONL file.
struct DataConfig {
  std::string task;       // name in core/tasks; or
  std::string path;       // JSONL: rl {prompt, answer, ...}; sft {messages} or {prompt, answer}
  std::string eval_path;  // JSONL of held-out rows; used with `path`
  std::map<std::string, std::string>
      options;             // further keys of a task (factors: [2, 9]), each checked by the task; JSON text
  int64_t size = 4096;     // distinct training questions drawn by a generated task
  int64_t held_out = 256;  // held-out questions (their unit is the task's); never trained on
  bool shuffle = true;
  // What chat templates that print the date see as today. Fixed, so that a run's prompts are the same when it
  // is resumed; the default is the day that Llama 3.x templates fall back to.
  std::string template_date = "2024-07-26";
  int64_t max_prompt_tokens = 1024;
};

struct RewardFunction {
  std::string name;      // in core/tasks (exact_answer, format, ...), or free with an endpoint
  std::string endpoint;  // of a server (core/tasks/reward_endpoint.h)
  double weight = 1.0;
  double timeout_s = 15.0;  // of one call; and how long a server may be unreachable
  // Of functions that grade by a model of their own (workers/side/model_reward.h).
  std::string path;  // Hugging Face folder
  DType dtype = DType::kFloat32;
  int64_t max_tokens = 2048;  // of what the model is given, and of what a judge answers, together
  // Of a judge (core/tasks/judge.h).
  std::string prompt;                        // with {question}, {response}, {answer}; empty: the usual one
  std::string score_pattern;                 // of the number in its answer; empty: the first number
  double score_min = 0.0, score_max = 10.0;  // what is worth 0 and 1
  int64_t max_new_tokens = 32;
  [[nodiscard]] bool by_model() const { return !path.empty(); }
};
// What is done to a sample's reward before advantages (core/train/shaping.h). Evaluation and the
// zero-variance filter see the task's own reward.
struct RewardShapingConfig {
  Scope mean = Scope::kNone;       // of what is taken off
  Scope deviation = Scope::kNone;  // of what is divided by
  bool leave_one_out = false;      // the mean is that of the others
  bool running = false;            // by mean and deviation over all rewards of the run so far
  double bias = 0, scale = 1;      // clip((r + bias) * scale, +-20), first
  double repetition_penalty = 0;   // times the share of n-grams that are repeated
  int64_t repetition_ngram = 3;
  std::optional<double>
      truncated;  // stop-properly: factor (0 to 1) or value (below 0) for samples cut at the limit
  double length_penalty = 0;  // prime-rl: times mean(r) n/max(n) of the group, taken off
};
struct RewardConfig {
  std::vector<RewardFunction> functions;
  RewardShapingConfig shaping;
  int64_t workers = 1;
  int64_t concurrency = 4;  // calls that a worker has under way at once
  int64_t batch = 1;        // samples in one call of a server, at most
  int64_t max_retries = 2;  // of infrastructure failures, on any worker
  // Of workers that compute with models.
  int64_t threads = 1;
  double load_timeout_s = 300.0;  // until they have all of them
  [[nodiscard]] bool by_model() const {
    return std::any_of(functions.begin(), functions.end(),
                       [](const RewardFunction& f) { return f.by_model(); });
  }
};

// `environment`: episodes of several turns (core/environments/text_game.h) in place of data and rewards.
struct EnvironmentLatency {
  double median_s = 0.0;         // of one turn; 0: no waiting
  double tail = 1.0;             // deviation of its logarithm: 0 always the median, 1 to 1.5 a heavy tail
  double max_s = 30.0;           // draws are cut here
  double straggler_share = 0.0;  // of the samples: each of their turns takes straggler_s longer
  double straggler_s = 0.0;
};
struct EnvironmentConfig {
  std::string name;  // `tidepool environments`, or how a service is called; empty: none
  std::map<std::string, std::string>
      options;  // further keys of the environment, each checked by it; JSON text
  // A service (proto/environment.proto): each environment worker starts one, or all find these.
  std::vector<std::string> command, addresses;
  double start_timeout_s = 60.0;  // until it answers
  int64_t processes = 1;          // model.policy: that each environment worker starts of a command
  // model.policy: what a service says of its spaces; observation_size 0: it has not been asked yet.
  int64_t observation_size = 0;
  int64_t actions = 0;
  bool continuous = false;
  double action_low = 0, action_high = 0;  // of each number of an action; equal: no bounds that are known
  double solved_return = 0;
  int64_t size = 4096;    // distinct training episodes
  int64_t held_out = 64;  // episodes never trained on
  int64_t workers = 1;
  int64_t max_turns = 0;        // of an episode; 0: the environment's own limit
  int64_t max_turn_tokens = 0;  // of the policy in one turn; 0: what rollout.max_new_tokens leaves
  // model.policy: environments that a fragment steps together; of a service: episodes that a worker has open
  // at once.
  int64_t instances = 8;
  int64_t max_episode_steps =
      0;                    // model.policy: an episode is truncated here; 0: the environment's own limit
  int64_t max_retries = 2;  // of infrastructure failures, on another worker where there is one
  double reset_timeout_s = 600.0;
  double step_timeout_s = 60.0;
  double episode_timeout_s = 3000.0;
  EnvironmentLatency latency;

  // Its episodes are played by programs outside, over rollout.endpoint.
  static constexpr const char* kEndpoint = "endpoint";
  [[nodiscard]] bool is_endpoint() const { return name == kEndpoint && command.empty() && addresses.empty(); }
  // Its episodes are begun by environment workers alone.
  [[nodiscard]] bool is_service() const { return !command.empty() || !addresses.empty() || is_endpoint(); }
};

// A frozen model that the policy is held to.
struct KlConfig {
  double coef = 0;  // beta; 0: no reference model is loaded
  KlPlace place = KlPlace::kLoss;
  KlKind estimator = KlKind::kK3;
  std::string reference;         // model folder; empty: what the run starts from
  std::optional<double> target;  // adaptive coefficient (arXiv:1909.08593); empty: fixed
  double horizon = 10000;        // of the adaptive coefficient, in samples
  std::optional<double> clamp_log, clamp_out;
  bool score_term = false;
  bool straight_through_k2 = false;
  bool is_weighted = false;  // times exp(lp - old)
};
// The value model of an advantage estimator that needs one.
struct CriticConfig {
  std::string path;  // model folder; empty: what the run starts from, with a fresh value head
  std::optional<double> learning_rate;  // empty: train.learning_rate
  int64_t warmup_steps = 0;             // steps that train the critic alone
  CriticLoss loss = CriticLoss::kMse;
  double huber_delta = 10;
  double clip = 0.5;  // values move at most this far from the old ones in a step; 0: no bound
};

// What an off-policy algorithm (sac) trains from: the newest transitions, drawn again and again.
struct ReplayConfig {
  int64_t capacity = 1'000'000;    // transitions that are kept
  int64_t batch_size = 256;        // of a gradient step
  int64_t learning_starts = 1000;  // transitions of uniform random actions before the first gradient step
  int64_t gradient_steps = 0;      // in a step of the job; 0: one for each transition of the step
};
// algorithm.name: sac (core/algorithms/sac.h).
struct SacConfig {
  double gamma = 0.99;
  double tau = 0.005;  // share of the critics that their targets take at each gradient step
  std::optional<double> critic_learning_rate, alpha_learning_rate;  // empty: train.learning_rate
  double initial_alpha = 1.0;
  std::optional<double> target_entropy;  // nats; empty: minus the numbers of an action
};

struct AlgorithmConfig {
  std::string name = "grpo";  // in core/algorithms/registry.h: a preset of the parts below
  std::string advantage;      // estimator; empty: the algorithm's
  std::string loss;           // policy loss; empty: the algorithm's
  std::map<std::string, std::string>
      options;  // further keys of the parts (tau_pos: 1.0), each checked by its part; JSON text
  std::string advantage_scale;          // group_std | batch_std | none; empty: the algorithm's
  std::optional<double> advantage_eps;  // empty: the estimator's
  std::string aggregation;              // of core/algorithms/aggregation.h; empty: the algorithm's
  std::optional<double> clip_low;       // empty: the loss's (ppo 0.2)
  std::optional<double> clip_high;      // empty: the algorithm's (ppo 0.2; dapo 0.28)
  std::optional<double> dual_clip;
  KlConfig kl;
  CriticConfig critic;
  std::string teacher;           // model folder of on-policy distillation; empty: none
  double teacher_coef = 0;       // of teacher_lp - lp, added to the advantage
  std::optional<double> opsm;    // off-policy sequence mask: delta (arXiv:2512.02556)
  std::optional<double> m2po;    // second-moment mask: threshold (arXiv:2510.01161)
  std::string reject;            // comma list of criteria (core/algorithms/importance.h); empty: none
  std::string reject_threshold;  // of the divergences: a number, a_b, or a comma list
  std::optional<double> reject_low, reject_high;  // of the ratios
  double entropy_coef = 0.0;
  double value_coef = 0.5;  // model.policy: weight of the value loss beside the policy's
  ReplayConfig replay;
  SacConfig sac;
  std::string correction;  // none | tis | icepop | seq-mask-tis | raw: weight from exp(old - behaviour);
                           // empty: the algorithm's
  double tis_max = 2.0;
  std::string filter;                    // none | zero_variance; empty: the algorithm's (dapo: zero_variance)
  std::vector<std::string> keep_groups;  // conditions (core/base/group_condition.h)
  int64_t filter_rounds = 10;
  bool mask_truncated = false;        // loss mask 0 on samples cut at max_new_tokens
  double overlong_buffer_tokens = 0;  // soft overlong penalty (DAPO eq. 13); 0: off
  double overlong_factor = 1.0;
};

// job: dpo.
struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0;   // of sigmoid: share of pairs that are the wrong way round
  bool length_average = false;  // log-probs of a response are averaged, not added up
  std::string reference;        // model folder; empty: what the run starts from
};
// job: reward_model.
struct RewardModelConfig {
  double margin = 0;  // scores of a pair should differ by more than this
  double centre = 0;  // weight of (s_w + s_l)^2
};
// job: distill.
struct DistillConfig {
  std::string teacher;  // model folder
  DistillDivergence divergence = DistillDivergence::kForward;
  double weight = 0.5;     // mixed: of forward; gkd: beta
  double temperature = 1;  // of both distributions
};

// How slots divide a model among them: those that train, and those that generate.
struct MeshConfig {
  int64_t tp = 1;  // ranks that each have a part of every matrix
};
struct TrainMeshConfig : MeshConfig {
  int64_t ep = 1;  // ranks that each have a part of the experts, and rows of their own
  [[nodiscard]] int64_t parts() const { return tp * ep; }
};

struct RolloutConfig {
  int64_t steps_per_fragment = 128;  // model.policy: steps of every instance in one fragment
  int64_t group_size = 8;
  int64_t redundancy = 0;  // samples of a group that are begun beside those that are trained
  int64_t max_new_tokens = 64;
  int64_t chunk_tokens = 0;  // 0: clamp(max_new/20 to a block, 256, 2048)
  double temperature = 1.0;
  int64_t top_k = 0;  // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  std::vector<std::string> stop;        // stop strings
  std::vector<int64_t> stop_token_ids;  // beside the model's end tokens
  int64_t max_concurrent = 256;         // samples in flight
  int64_t block_tokens = 16;            // of the KV cache
  Admission admission = Admission::kReserve;
  bool pin_version = false;     // a sample ends on the weights that it began with
  double repack_s = 5;          // between looks at tails that could be moved together (pin_version); 0: never
  int64_t kv_cache_tokens = 0;  // capacity; 0: max_concurrent x (prompt + max_new), bounded by memory
  int64_t max_batched_tokens = 2048;
  KvOnUpdate kv_on_update = KvOnUpdate::kRecompute;
  bool record_routing = false;  // experts of every row, replayed by the trainer
  bool cuda_graphs = true;      // on a GPU, a step that only decodes is one launch
  MeshConfig mesh;              // of an engine
  bool endpoint = false;        // episodes are played by programs outside, over HTTP (docs/agents.md)
  int64_t endpoint_port = 0;    // on loopback; 0: a free one
};

struct TrainConfig {
  int64_t groups_per_step = 8;  // B
  int64_t steps = 20;
  int64_t epochs = 1;       // ppo_epochs over a batch
  int64_t minibatches = 1;  // optimizer updates per epoch
  double learning_rate = 1e-5;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_steps = 0;
  double min_learning_rate_ratio = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.0;
  double max_grad_norm = 1.0;  // 0: no clipping
  int64_t micro_batch_tokens = 2048;
  bool recompute = false;  // activation recompute per block
  Offload offload_optimizer = Offload::kNone;
  int64_t zero = 0;  // the slots that train share: 1: the optimizer's state, 2: gradients, too
  TrainMeshConfig mesh;
  bool early_columns =
      true;  // what a step needs of its rows beside the loss is computed before it, where possible
  double router_aux_coef = 0.0;     // of the experts' load-balance loss
  int64_t max_nonfinite_steps = 3;  // in a row, then stop at the last good weights
};

struct SchedulerConfig {
  PlacementKind placement = PlacementKind::kColocated;
  std::string policy = {};       // of `tidepool policies`, within the placement; empty: its own
  int64_t max_lag_versions = 0;  // eta
  int64_t actor_slots = 1;  // split, multiplexed: slots 0 .. actor_slots-1 train; elastic: the most it takes
  int64_t rollout_floor = 1;  // slots that always generate (multiplexed, elastic)
  bool uneven_dp = true;      // groups need not divide evenly by the training slots
  OnStale on_stale = OnStale::kReissue;
  int64_t max_reissues = 2;
  double oversample = 1.0;
  OversampleMode oversample_mode = OversampleMode::kStartOrder;
  double straggler_wait = 0.1;  // of a step's time, for a group that would expire
  double min_step_batch_fraction = 1.0;
  double infra_drop_alarm = 0.05;
  double infra_drop_stop = 0.20;  // over 20 steps
};

struct ClusterConfig {
  DeviceKind device = DeviceKind::kCpu;
  int64_t slots = 1;
  int64_t min_slots = 0;  // a run begins and goes on with so many; 0: all have to come, none waits for others
  int64_t threads_per_slot = 2;
  std::string bind = "127.0.0.1";  // another than loopback: calls are encrypted
  int64_t port = 0;                // 0: any free port
  std::string advertise;           // host that workers dial; empty: bind
  bool trusted_fabric = false;     // collectives, which are not encrypted, may leave the host
  std::string worker_dir;          // where tidepool-worker is; empty: beside tidepool
  bool launch_workers = true;      // false: workers are started by hand and join
  double reattach_grace_s = 0.0;
  double heartbeat_s = 0.5;
  double start_timeout_s = 600.0;
  double stall_timeout_s = 120.0;  // no progress anywhere while work remains
  double plugin_timeout_s = 30.0;  // a call of a plug-in that has no limit of its own
  WeightTransport weight_transport = WeightTransport::kSharedMemory;
  std::string pace;         // file: slots take the time of the model and hardware it names; empty: their own
  double pace_scale = 1.0;  // modelled seconds are stretched by it
};

struct CheckpointConfig {
  int64_t every_steps = 20;          // 0: only at start and end
  int64_t keep = 2;                  // >= 2
  int64_t recovery_every_steps = 0;  // 1: double-buffered copy of the trainer's state in shared memory
  bool save_final = true;
  std::string keep_best;    // metric of an evaluation; best/ holds the model that had the best value
  std::string store;        // directory or s3://BUCKET/PREFIX that holds their files; empty: the run's folder
  std::string s3_endpoint;  // of another S3 than Amazon's
  std::string s3_region;    // empty: as the environment says
  double store_timeout_s = 60;  // for the store to answer
  std::string
      staging_dir;  // of each host, for files on their way to and from a store; empty: the run's folder
};

struct EvalConfig {
  int64_t every_steps = 0;  // 0: only before and after
  bool before_train = true;
  bool after_train = true;
  int64_t samples = 0;          // held-out questions; 0: all
  double stop_at_accuracy = 0;  // the job is done once an evaluation reaches it; 0: never
};

struct ObserveConfig {
  bool tensorboard = true;
  bool trace = true;
  int64_t samples_per_step = 8;  // rows written to samples/step_N.jsonl; 0: none, -1: all
  LogLevel log_level = LogLevel::kInfo;
  std::string metrics_bind;  // address that processes show their pages on; empty: none
  int64_t metrics_port = 0;  // the controller's; 0: any free port
};

struct SecurityConfig {
  bool tls = false;                   // on loopback too
  double certificate_hours = 8760.0;  // that certificates of the job hold
  bool newcomers = false;             // hosts that do not see the run directory may ask for one
  int64_t max_control_bytes = 4 << 20;
  int64_t max_frame_bytes = 1 << 20;
};

// Kinds of job: what each is told beyond what every job is.
struct RlJob {
  AlgorithmConfig algorithm;
  EnvironmentConfig environment;
};
struct SftJob {};
struct DpoJob {
  PreferenceConfig preference;
};
struct RewardModelJob {
  RewardModelConfig reward_model;
};
struct DistillJob {
  DistillConfig distill;
};
// In the order of JobKind.
using JobOfKind = std::variant<RlJob, SftJob, DpoJob, RewardModelJob, DistillJob>;

struct JobConfig {
  std::string name = "job";
  uint64_t seed = 1;
  JobOfKind job;
  bool deterministic = false;
  ModelConfig model;
  DataConfig data;
  RewardConfig reward;
  RolloutConfig rollout;
  TrainConfig train;
  SchedulerConfig scheduler;
  ClusterConfig cluster;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  ObserveConfig observe;
  SecurityConfig security;

  [[nodiscard]] JobKind kind() const { return static_cast<JobKind>(job.index()); }
  [[nodiscard]] const RlJob* rl() const { return std::get_if<RlJob>(&job); }
  // Where samples come from episodes of an environment rather than from rows of data; else null.
  [[nodiscard]] const EnvironmentConfig* environment() const {
    return rl() != nullptr && !rl()->environment.name.empty() ? &rl()->environment : nullptr;
  }
};

// Rows of data that are pairs: prompt, chosen, rejected.
inline bool TrainsOnPairs(JobKind job) { return job == JobKind::kDpo || job == JobKind::kRewardModel; }
inline bool TrainsOnPairs(const JobConfig& c) { return TrainsOnPairs(c.kind()); }
// Samples of one row of data that are trained: a group of rl, both answers of a pair.
inline int64_t TrainedPerRow(const JobConfig& c) {
  return c.rl() != nullptr ? c.rollout.group_size : TrainsOnPairs(c) ? 2 : 1;
}
// That are begun.
inline int64_t SamplesPerRow(const JobConfig& c) {
  return TrainedPerRow(c) + (c.rl() != nullptr ? c.rollout.redundancy : 0);
}
// Held-out questions are answered by generation and graded. Pairs are judged by the trainer instead.
inline bool AnswersHeldOut(const JobConfig& c) {
  return c.rl() != nullptr || (!TrainsOnPairs(c) && c.eval.every_steps > 0);
}

}  // namespace tidepool
