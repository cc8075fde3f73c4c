// Generation speed of the engine: by default a model of SmolLM2-135M's shape with random bf16 weights, 8
// groups of 8 samples, prompts of 40 tokens, 16 new tokens each. Prints one JSON object a line
// on stdout and a table on stderr. Checked before timing: chunked and unchunked runs give the same ids.
// "Products" is the time of the same matrix products alone (at::mm on the same weights, the rows of each
// step), as a share of the engine's time. "Read share" is the time in which as
// many threads read the weights once, as a share of a step that only decodes.
//
//   engine_bench [--groups 8] [--samples 8] [--prompt 40] [--new 16] [--busy 0] [--shape smollm2]
//     [--device cpu] [--parts 0]
//
// --parts N: in place of all that, what each kernel of one step that decodes takes, run N times in a row, and
// on a GPU what recorded graphs take of its memory.
// --busy N: measures quiet, then beside N processes that compute without end, in turns.
// --shape, --device: of bench_model.h. On a GPU the read share is in terms of a copy inside its memory: bytes
// of weights that a step reads, by its time, as a share of the bytes that the copy reads and writes in that
// time. Without a GPU: exit code 77, with the reason.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/device/cpu/kernels.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"
#include "tests/bench/bench_model.h"
#include "tests/bench/timed_device.h"

namespace tidepool::engine {
namespace {

int64_t groups = 8;  // the sizes of the flags
int32_t samples = 8, prompt_tokens = 40;
int64_t new_tokens = 16;
int busy = 0, parts = 0;
std::string shape = "smollm2", device_kind = "cpu";
constexpr int kRepeats = 5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Processes that compute until this ends.
class BusyProcesses {
 public:
  explicit BusyProcesses(int n) {
    for (int i = 0; i < n; ++i) {
      const pid_t child = fork();
      TP_CHECK(child >= 0) << "no process could be made";
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t x = 1;;) x = x * 6364136223846793005U + 1;
      }
      children_.push_back(child);
    }
  }
  ~BusyProcesses() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);  // waits: for a process that was killed
    }
  }
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

 private:
  std::vector<pid_t> children_;
};

// Sum of the words of `bytes`, read as `streams` neighbouring parts side by side, each asked for `ahead`
// bytes before.
using ReadLoop = uint64_t (*)(std::span<const std::byte> bytes, size_t ahead);
template <int kStreams>
uint64_t ReadWords(std::span<const std::byte> bytes, size_t ahead) {
  const size_t each = bytes.size() / kStreams / 256;
  uint64_t lanes[kStreams][32] = {};  // enough additions at once that only the memory is waited for
  for (size_t block = 0; block < each; ++block) {
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* from = bytes.data() + (s * each + block) * 256;
      for (size_t line = 0; line < 256 && ahead > 0; line += 64) __builtin_prefetch(from + ahead + line);
      for (size_t i = 0; i < 32; ++i) lanes[s][i] += reinterpret_cast<const uint64_t*>(from)[i];
    }
  }
  uint64_t sum = 0;
  for (const auto& stream : lanes) {
    for (const uint64_t lane : stream) sum += lane;
  }
  return sum;
}
#if defined(__x86_64__)
template <int kStreams>
__attribute__((target("avx512f"))) uint64_t ReadLines(std::span<const std::byte> bytes, size_t ahead) {
  const size_t each = bytes.size() / kStreams / 256;
  __m512i sum[kStreams][2] = {};
  for (size_t block = 0; block < each; ++block) {
#pragma GCC unroll 8
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* from = bytes.data() + (s * each + block) * 256;
#pragma GCC unroll 4
      for (size_t line = 0; line < 4; ++line) {
        if (ahead > 0) __builtin_prefetch(from + ahead + line * 64);
        sum[s][line % 2] = _mm512_add_epi64(sum[s][line % 2], _mm512_loadu_si512(from + line * 64));
      }
    }
  }
  for (int s = 1; s < kStreams; ++s)
    sum[0][0] = _mm512_add_epi64(sum[0][0], _mm512_add_epi64(sum[s][0], sum[s][1]));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(sum[0][0], sum[0][1])));
}
#endif

// Seconds in which all threads read `bytes` once, in the best of some ways: no single one is the best on
// every processor.
double ReadSeconds(std::span<const std::byte> bytes) {
  std::vector<ReadLoop> loops = {ReadWords<1>, ReadWords<4>};
#if defined(__x86_64__)
  if (device::BestIsa() >= device::Isa::kAvx512)
    loops = {ReadLines<1>, ReadLines<2>, ReadLines<4>, ReadLines<8>};
#endif
  const auto threads = static_cast<size_t>(at::get_num_threads());
  const size_t share = bytes.size() / threads / 64 * 64;
  std::vector<uint64_t> sums(threads * 8);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    for (const ReadLoop loop : loops) {
      for (const size_t ahead : {0, 1024, 4096, 16384}) {
        const double start = Now();
        std::vector<std::thread> readers;  // waits: joined below, each reads its share
        for (size_t t = 0; t < threads; ++t)
          readers.emplace_back([&, t] { sums[t * 8] += loop(bytes.subspan(t * share, share), ahead); });
        for (std::thread& reader : readers) reader.join();
        best = std::min(best, Now() - start);
      }
    }
  }
  TP_CHECK(sums[0] != 1) << "a sum of random bits";  // the sums are used, so they are made
  return best;
}

// Of the matrices that a decode step reads: all but the rows of an embedding that is no head.
double ReadBytes(const model::Weights& weights) {
  const model::ModelSpec& s = weights.spec();
  const int64_t embedding = s.tie_embeddings ? 0 : s.vocab_size * s.hidden_size * 2;
  return static_cast<double>(weights.size() - embedding);
}

struct Run {
  double seconds = 0;
  double decode_s = 0, prefill_s = 0;  // of steps that only decode, that only fill
  int64_t decode_steps = 0, decode_tokens = 0, prefill_tokens = 0;
  EngineStats sum;
  std::vector<std::pair<int64_t, int64_t>> rows;  // of each step: in the decoder, through the head
  std::vector<double> host_s;                     // of each step: outside decoder, head and draws
  std::map<SampleId, std::vector<int32_t>> ids;
};

Run Generate(Engine& engine, int64_t vocab, int64_t chunk) {
  Run run;
  const auto add = [&](const SampleId& tid) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens));
    for (int32_t i = 0; i < prompt_tokens; ++i)
      prompt[static_cast<size_t>(i)] = static_cast<int32_t>((tid.ordinal * 977 + i * 131) % vocab);
    const Status status = engine.Add({.tid = tid,
                                      .gid = GroupId{tid.ordinal},
                                      .prompt = prompt,
                                      .generated = run.ids[tid],
                                      .max_new_tokens = chunk,
                                      .max_total_new = new_tokens});
    TP_CHECK(status.ok()) << status.ToString();
  };
  for (int64_t g = 0; g < groups; ++g) {
    for (int32_t k = 0; k < samples; ++k) add({g, 0, k});
  }
  const double start = Now();
  while (engine.HasWork()) {
    const StepOutput out = engine.Step();
    for (const Delta& d : out.deltas) {
      run.ids[d.tid].insert(run.ids[d.tid].end(), d.ids.begin(), d.ids.end());
      TP_CHECK(d.finish != FinishReason::kError) << d.error;
      if (d.finish == FinishReason::kChunk) add(d.tid);
    }
    run.sum.forward_s += out.stats.forward_s;
    run.sum.head_s += out.stats.head_s;
    run.sum.sample_s += out.stats.sample_s;
    run.host_s.push_back(out.stats.step_s - out.stats.forward_s - out.stats.head_s - out.stats.sample_s);
    run.sum.sampled_tokens += out.stats.sampled_tokens;
    if (out.stats.prefill_tokens == 0) {
      run.decode_s += out.stats.step_s;
      run.decode_tokens += out.stats.decode_tokens;
      ++run.decode_steps;
    } else if (out.stats.decode_tokens == 0) {
      run.prefill_s += out.stats.step_s;
      run.prefill_tokens += out.stats.prefill_tokens;
    }
    run.rows.emplace_back(out.stats.prefill_tokens + out.stats.decode_tokens,
                          out.stats.prefill_tokens > 0 ? groups : out.stats.sampled_tokens);
  }
  run.seconds = Now() - start;
  for (int64_t g = 0; g < groups; ++g) {
    engine.ForgetGroup(GroupId{g});
  }
  return run;
}

double ProductSeconds(const model::Weights& weights, const Run& run) {
  const c10::InferenceMode inference;
  const auto time = [&](const std::string& name, int64_t rows) {
    const at::Tensor w = weights.Get(name).t();
    const at::Tensor x = at::empty({rows, w.size(0)}, w.options()).fill_(0.01);
    at::Tensor y = at::mm(x, w);
    const double start = Now();
    at::mm_out(y, x, w);
    return Now() - start;
  };
  double sum = 0;
  for (const auto& [rows, head_rows] : run.rows) {
    if (rows > 0) {
      for (int64_t layer = 0; layer < weights.spec().layers; ++layer) {
        for (const char* part : {"qkv", "o", "gate_up", "down"})
          sum += time("layers." + std::to_string(layer) + "." + part, rows);
      }
    }
    if (head_rows > 0) sum += time("embedding", head_rows);
  }
  return sum;
}

std::string machine;  // what it runs on

void Print(const std::string& which, double value, const std::string& unit, const std::string& better,
           double spread, bool deterministic) {
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  std::printf(
      R"({"bench":"engine","case":"%s","value":%.4f,"unit":"%s","better":"%s","baseline":null,"baseline_value":null,"ratio":null,)"
      R"("repeats":%d,"spread":%.4f,"machine":"%s","commit":"%s","config":{"model":"%s shape, bf16, random","groups":%ld,)"
      R"("samples":%d,"prompt_tokens":%d,"new_tokens":%ld,"deterministic":%s,"build":"%s"}})"
      "\n",
      which.c_str(), value, unit.c_str(), better.c_str(), kRepeats, spread, machine.c_str(),
      commit == nullptr ? "unknown" : commit, shape == "smollm2" ? "smollm2-135m" : shape.c_str(),
      static_cast<long>(groups), samples, prompt_tokens, static_cast<long>(new_tokens),
      deterministic ? "true" : "false",
#ifdef __OPTIMIZE__
      "optimized");
#else
      "NOT OPTIMIZED");
#endif
  std::fflush(stdout);
}

void Bench(const model::Weights& weights, const std::shared_ptr<device::Device>& device) {
  const bool on_cpu = device->host_memory(), deterministic = device->batch_invariant(weights.dtype());
  auto engine = Engine::Create(
      weights,
      {.seed = 1,
       .device = device,
       .kv_cache_tokens = std::max<int64_t>(8192, 2 * groups * (prompt_tokens + samples * (new_tokens + 16))),
       .version = {0, 0}});
  TP_CHECK(engine.ok()) << engine.status().ToString();
  const int64_t vocab = weights.spec().vocab_size;
  const Run warm = Generate(**engine, vocab, new_tokens);
  if (deterministic)
    TP_CHECK(Generate(**engine, vocab, 5).ids == warm.ids) << "chunked and unchunked generation differ";
  std::vector<Run> runs;
  for (int i = 0; i < kRepeats; ++i) runs.push_back(Generate(**engine, vocab, new_tokens));
  std::ranges::sort(runs, {}, &Run::seconds);
  const Run& median = runs[kRepeats / 2];
  const double spread = (runs.back().seconds - runs.front().seconds) / median.seconds;
  const double outside = median.seconds - median.sum.forward_s - median.sum.head_s - median.sum.sample_s;
  std::vector<double> host = median.host_s;
  std::ranges::nth_element(host, host.begin() + static_cast<int64_t>(host.size() / 2));
  const double host_us = 1e6 * host[host.size() / 2];
  Print("tokens_per_s", static_cast<double>(median.sum.sampled_tokens) / median.seconds, "tokens/s", "higher",
        spread, deterministic);
  if (median.decode_steps > 0) {
    const double decode = static_cast<double>(median.decode_tokens) / median.decode_s;
    Print("decode_tokens_per_s", decode, "tokens/s", "higher", spread, deterministic);
    std::fprintf(stderr, "decode alone: %.0f tokens/s\n", decode);
    if (weights.spec().moe.experts == 0) {  // else a step reads those that were chosen
      const double once =
          on_cpu ? ReadSeconds(weights.bytes()) : ReadBytes(weights) / bench::CopyBandwidth(*device);
      const double read = once * static_cast<double>(median.decode_steps);
      Print("read_share", read / median.decode_s, "ratio", "higher", spread, deterministic);
      std::fprintf(stderr, "reading the weights is %.0f %% of its time\n", 100 * read / median.decode_s);
    }
  }
  if (median.prefill_tokens > 0) {
    const double prefill = static_cast<double>(median.prefill_tokens) / median.prefill_s;
    Print("prefill_tokens_per_s", prefill, "tokens/s", "higher", spread, deterministic);
    std::fprintf(stderr, "prefill alone: %.0f tokens/s\n", prefill);
  }
  if (busy > 0) {
    std::vector<double> quiet, beside;
    for (int i = 0; i < kRepeats; ++i) {
      quiet.push_back(Generate(**engine, vocab, new_tokens).seconds);
      const BusyProcesses others(busy);
      beside.push_back(Generate(**engine, vocab, new_tokens).seconds);
    }
    std::ranges::sort(quiet);
    std::ranges::sort(beside);
    const double share = quiet[kRepeats / 2] / beside[kRepeats / 2];
    Print("speed_beside_busy_processes", share, "of quiet", "higher",
          (beside.back() - beside.front()) / beside[kRepeats / 2], deterministic);
    std::fprintf(stderr, "beside %d busy processes: %.0f %% of quiet (%.0f to %.0f %%)\n", busy, 100 * share,
                 100 * quiet[kRepeats / 2] / beside.back(), 100 * quiet[kRepeats / 2] / beside.front());
  }
  std::string alone;
  if (on_cpu && weights.spec().moe.experts == 0) {
    const double products = ProductSeconds(weights, median);
    Print("products_share", products / median.seconds, "ratio", "higher", spread, deterministic);
    alone = "; products alone " + std::to_string(products) + " s";
  }
  Print("host_us_per_step", host_us, "us", "lower", spread, deterministic);
  std::fprintf(stderr,
               "%s: %.0f tokens/s (median of %d, spread %.1f %%); %.3f s = forward %.3f + head %.3f + draws "
               "%.3f + rest %.3f%s; host %.0f us in the median step\n",
               deterministic ? "deterministic" : "fast",
               static_cast<double>(median.sum.sampled_tokens) / median.seconds, kRepeats, 100 * spread,
               median.seconds, median.sum.forward_s, median.sum.head_s, median.sum.sample_s, outside,
               alone.c_str(), host_us);
}

// All samples are in flight and decode.
void Begin(Engine& engine, int64_t vocab) {
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < prompt_tokens; ++i)
      prompt.push_back(static_cast<int32_t>((g * 977 + i * 131) % vocab));
    for (int32_t k = 0; k < samples; ++k) {
      const Status added = engine.Add({.tid = {g, 0, k},
                                       .gid = GroupId{g},
                                       .prompt = prompt,
                                       .max_new_tokens = new_tokens,
                                       .max_total_new = new_tokens});
      TP_CHECK(added.ok()) << added.ToString();
    }
  }
  while (engine.Step().stats.prefill_tokens > 0) {
  }
}

void Parts(const model::Weights& weights, const std::shared_ptr<device::Device>& device) {
  const auto make = [&](const std::shared_ptr<device::Device>& on, bool graphs) {
    auto engine =
        Engine::Create(weights, {.seed = 1,
                                 .device = on,
                                 .kv_cache_tokens = std::max<int64_t>(
                                     8192, 2 * groups * (prompt_tokens + samples * (new_tokens + 16))),
                                 .graphs = graphs,
                                 .version = {0, 0}});
    TP_CHECK(engine.ok()) << engine.status().ToString();
    return std::move(engine).value();
  };
  const int64_t vocab = weights.spec().vocab_size;
  const auto timed = std::make_shared<bench::TimedDevice>(device, parts);
  {
    const auto engine = make(timed, false);
    Begin(*engine, vocab);
    timed->Start();
    (void)engine->Step();
    timed->Print("a step that decodes " + std::to_string(groups * samples) + " rows");
  }
  if (!device->has_graphs()) return;
  const auto engine = make(device, true);
  Begin(*engine, vocab);
  (void)engine->Step();  // with what the first one takes
  engine->ReleaseMemory();
  TP_CHECK(engine->AcquireMemory().ok());
  const auto taken = [&] { return -device->free_bytes().value_or(0) - engine->held().total(); };
  int64_t before = 0;
  StepOutput out;
  do {  // what was in flight is filled in again first
    before = taken();
    out = engine->Step();
  } while (out.stats.recorded_graphs == 0 && engine->HasWork());
  std::printf("== %ld graph recorded: %.1f MB of the GPU's memory beside what the engine counts\n",
              static_cast<long>(out.stats.recorded_graphs), 1e-6 * static_cast<double>(taken() - before));
  std::vector<double> steps;
  for (int i = 0; i < 20 && engine->HasWork(); ++i) {
    const double from = Now();
    (void)engine->Step();
    steps.push_back(1e6 * (Now() - from));
  }
  std::ranges::sort(steps);
  std::printf("== a step by its graph: %.0f us, median of %zu\n",
              steps.empty() ? 0.0 : steps[steps.size() / 2], steps.size());
}

}  // namespace
}  // namespace tidepool::engine

int main(int argc, char** argv) {
  using namespace tidepool;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const long value = i + 1 < argc ? std::atol(argv[++i]) : 0;
    if (flag == "--groups" && value > 0)
      engine::groups = value;
    else if (flag == "--samples" && value > 0)
      engine::samples = static_cast<int32_t>(value);
    else if (flag == "--prompt" && value > 0)
      engine::prompt_tokens = static_cast<int32_t>(value);
    else if (flag == "--new" && value > 0)
      engine::new_tokens = value;
    else if (flag == "--busy" && value > 0)
      engine::busy = static_cast<int>(value);
    else if (flag == "--parts" && value > 0)
      engine::parts = static_cast<int>(value);
    else if (flag == "--shape" && i < argc)
      engine::shape = argv[i];
    else if (flag == "--device" && i < argc)
      engine::device_kind = argv[i];
    else
      return std::fprintf(stderr,
                          "usage: engine_bench [--groups N] [--samples N] [--prompt N] [--new N] [--busy N] "
                          "[--shape NAME] [--device cpu|cuda] [--parts N]\n"),
             2;
  }
  const std::unique_ptr<model::Weights> weights = bench::NoiseModel(engine::shape);
  const std::shared_ptr<device::Device> device = bench::BenchDevice(engine::device_kind);
  engine::machine = bench::DescribeDevice(*device);
  engine::parts > 0 ? engine::Parts(*weights, device) : engine::Bench(*weights, device);
}
