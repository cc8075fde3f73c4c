// An adapter (model.lora) against full fine-tuning, in the same run: one optimizer step by each in turn on
// random weights of SmolLM2-135M's shape in bfloat16, what weights, gradients and optimizer hold, the peak of
// a process that does nothing else, and what is published. Prints one JSON object a case on standard output:
// ratio = the adapter's over that of full fine-tuning.
//
//   lora_bench [--rank 16] [--threads 2] [--steps 3] [--micro 1024] [--layers 30] [--shape smollm2]
//     [--sequences 64] [--tokens 56] [--blocks FOLDER]
//
// With --blocks: the same adapter on a folder of `tidepool import --keep-blocks`, against one on its numbers
// in bfloat16, in turns, instead of full fine-tuning.
#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/gguf_folder.h"
#include "core/model/memory_use.h"
#include "core/train/trainer.h"
#include "tests/bench/bench_model.h"

namespace tidepool::train {
namespace {

struct Options {
  int64_t rank = 16, threads = 2, steps = 3, micro = 1024, layers = 0, sequences = 64, tokens = 56;
  std::string shape = "smollm2", blocks;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Supervised rows: a prompt of 8 tokens, and an answer.
Batch RandomBatch(const Options& o, const model::ModelSpec& spec, int64_t step) {
  Rng rng(static_cast<uint64_t>(step));
  Batch b;
  b.step = StepNumber{step};
  b.version = Version{0, step - 1};
  for (int64_t i = 0; i < o.sequences; ++i) {
    Row r;
    r.tid = {i, 0, 0};
    r.gid = GroupId{i};
    for (int64_t t = 0; t < o.tokens; ++t)
      (t < 8 ? r.prompt : r.response).push_back(static_cast<int32_t>(rng.Below(spec.vocab_size)));
    r.reward = 1;
    b.rows.push_back(std::move(r));
  }
  return b;
}

// A trainer of the whole model, or of an adapter.
struct Trained {
  std::unique_ptr<model::Weights> weights;
  std::unique_ptr<Trainer> trainer;

  Trained(const Options& o, bool adapter) : Trained(o, bench::NoiseModel(o.shape, o.layers), adapter) {}
  Trained(const Options& o, std::unique_ptr<model::Weights> model, bool adapter) : weights(std::move(model)) {
    TrainerOptions t;
    t.objective = JobKind::kSft;
    t.schedule.peak = 2e-5;
    t.micro_batch_tokens = o.micro;
    t.device = std::make_shared<device::CpuDevice>();
    if (adapter) {
      weights->LayOutFor(*t.device);  // as a host has it
      const model::AdapterSpec spec = *model::AdapterOf({.rank = o.rank});
      auto adapted = model::Weights::Adapt(std::move(weights), spec);
      TP_CHECK(adapted.ok()) << adapted.status().ToString();
      weights = std::move(*adapted);
      weights->Initialize(1, 0);
    }
    auto created = Trainer::Create(*weights, t);
    TP_CHECK(created.ok()) << created.status().ToString();
    trainer = std::move(*created);
  }
  double Step(const Options& o, int64_t step) {
    const Batch b = RandomBatch(o, weights->spec(), step);
    const double from = Now();
    const auto result = trainer->Step(b);
    TP_CHECK(result.ok() && result->finite) << result.status().ToString();
    return Now() - from;
  }
};

// The peak of a process that makes two steps and nothing else.
double PeakBytes(const Options& o, bool adapter) {
  int ends[2];
  TP_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(static_cast<int>(o.threads));
    Trained trained(o, adapter);
    for (int64_t step = 1; step <= 2; ++step) (void)trained.Step(o, step);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double bytes = static_cast<double>(usage.ru_maxrss) * 1024;
    const bool told = write(ends[1], &bytes, sizeof bytes) == sizeof bytes;
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  double bytes = 0;
  TP_CHECK(read(ends[0], &bytes, sizeof bytes) == sizeof bytes) << "the child has ended";
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return bytes;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int InBlocks(const Options& o) {
  at::set_num_threads(static_cast<int>(o.threads));
  auto folder = model::GgufFolder::Open(o.blocks);
  TP_CHECK(folder.ok()) << folder.status().ToString();
  constexpr model::DType kType = model::DType::kBFloat16;
  const model::BlockLayout layout = model::LayoutInBlocks(folder->spec(), kType, folder->BlockTypes());
  auto numbers = model::LoadHuggingFace(o.blocks, kType);
  TP_CHECK(numbers.ok()) << numbers.status().ToString();
  const auto number_bytes = static_cast<double>((*numbers)->size());
  auto blocks = model::Weights::CreateInBlocks(
      folder->spec(), kType, layout, {},
      [&](std::span<std::byte> arena) { return folder->Read(kType, layout, arena); });
  TP_CHECK(blocks.ok()) << blocks.status().ToString();
  Trained of_numbers(o, *std::move(numbers), true), of_blocks(o, *std::move(blocks), true);
  std::vector<double> times, number_times;
  for (int64_t step = 0; step <= o.steps; ++step) {  // the first warms up
    const double without = of_numbers.Step(o, step + 1), with = of_blocks.Step(o, step + 1);
    if (step == 0) continue;
    number_times.push_back(without);
    times.push_back(with);
  }
  const std::string machine = bench::DescribeDevice(device::CpuDevice());
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  const auto print = [&](const char* name, double value, double baseline, const char* unit) {
    std::printf(
        "{\"bench\":\"lora\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"better\":\"lower\","
        "\"baseline\":\"the same adapter on bfloat16\",\"baseline_value\":%.6g,\"ratio\":%.4g,"
        "\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"rank %lld, %lld rows of %lld tokens, threads "
        "%lld, micro "
        "%lld\"}\n",
        name, value, unit, baseline, value / baseline, machine.c_str(), commit == nullptr ? "" : commit,
        static_cast<long long>(o.rank), static_cast<long long>(o.sequences), static_cast<long long>(o.tokens),
        static_cast<long long>(o.threads), static_cast<long long>(o.micro));
    std::fprintf(stderr, "%-28s %10.4g of %10.4g %s: %.3f x\n", name, value, baseline, unit,
                 value / baseline);
  };
  print("step_in_blocks", Median(times), Median(number_times), "s");
  print("model_in_blocks", static_cast<double>(layout.bytes), number_bytes, "bytes");
  const bool same = of_numbers.weights->Digest() == of_blocks.weights->Digest();
  std::fprintf(stderr, "weights after the steps: %s\n", same ? "the same bits" : "DIFFERENT");
  return same ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    bool known = name == "--shape" || name == "--blocks";
    if (known) (name == "--shape" ? o.shape : o.blocks) = argv[i + 1];
    for (const auto& [key, to] : {std::pair("--rank", &o.rank),
                                  {"--threads", &o.threads},
                                  {"--steps", &o.steps},
                                  {"--micro", &o.micro},
                                  {"--layers", &o.layers},
                                  {"--sequences", &o.sequences},
                                  {"--tokens", &o.tokens}}) {
      if (name != key) continue;
      *to = std::atol(argv[i + 1]);
      known = true;
    }
    if (!known)
      return std::fprintf(stderr, "%s is no option; see the head of lora_bench.cc\n", name.c_str()), 2;
  }
  if (!o.blocks.empty()) return InBlocks(o);
  const double full_peak = PeakBytes(o, false), peak = PeakBytes(o, true);  // before this process has threads
  at::set_num_threads(static_cast<int>(o.threads));
  Trained full(o, false), lora(o, true);
  const std::string machine = bench::DescribeDevice(device::CpuDevice());
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  const std::string config =
      o.shape + ", bf16, rank " + std::to_string(o.rank) + " of all targets, " + std::to_string(o.sequences) +
      " rows of " + std::to_string(o.tokens) + " tokens, threads " + std::to_string(o.threads) + ", micro " +
      std::to_string(o.micro) + ", layers " + std::to_string(full.weights->spec().layers);
  const auto print = [&](const char* name, double value, double baseline, const char* unit, double goal) {
    std::printf(
        "{\"bench\":\"lora\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"better\":\"lower\","
        "\"baseline\":\"full "
        "fine-tuning\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"machine\":\"%s\",\"commit\":\"%s\","
        "\"config\":\"%s\"}\n",
        name, value, unit, baseline, value / baseline, machine.c_str(), commit == nullptr ? "" : commit,
        config.c_str());
    std::fprintf(stderr, "%-28s %10.4g of %10.4g %s: %.3f x (goal %.2f)\n", name, value, baseline, unit,
                 value / baseline, goal);
  };
  std::vector<double> times, full_times;
  for (int64_t step = 0; step <= o.steps; ++step) {  // the first warms up
    const double whole = full.Step(o, step + 1), part = lora.Step(o, step + 1);
    if (step == 0) continue;
    full_times.push_back(whole);
    times.push_back(part);
  }
  print("step", Median(times), Median(full_times), "s", 0.8);

  const model::ModelSpec& spec = full.weights->spec();
  const model::DType dtype = full.weights->dtype();
  const auto sum = [](const model::MemoryUse& use) {
    return static_cast<double>(use.weights + use.gradients + use.optimizer);
  };
  const auto adapter = model::AdapterOf({.rank = o.rank});
  const auto base = static_cast<double>(model::WeightBytes(spec, dtype));
  const double whole = sum(model::TrainingMemory(spec, dtype, {.tokens = o.micro}));
  const double part = sum(model::TrainingMemory(spec, dtype, {.tokens = o.micro, .adapter = adapter}));
  print("weights_gradients_optimizer", part + base, whole, "bytes", 0.2);
  print("the_same_of_another_worker", part, whole, "bytes", 0.2);
  print("peak_resident", peak, full_peak, "bytes", 0.5);

  // What a publication reads: the digest of the weights, and their bytes once.
  const auto publish = [&](model::Weights& weights) {
    std::vector<double> seconds;
    std::vector<std::byte> copy(static_cast<size_t>(weights.size()));
    for (int i = 0; i < 9; ++i) {
      const double from = Now();
      (void)weights.Digest();
      std::ranges::copy(std::as_const(weights).bytes(), copy.begin());
      seconds.push_back(Now() - from);
    }
    return 1e3 * Median(seconds);
  };
  print("publication_bytes", static_cast<double>(lora.weights->size()),
        static_cast<double>(full.weights->size()), "bytes", 0.2);
  print("digest_and_copy", publish(*lora.weights), publish(*full.weights), "ms", 0.2);
  return 0;
}

}  // namespace
}  // namespace tidepool::train

int main(int argc, char** argv) { return tidepool::train::Main(argc, argv); }
