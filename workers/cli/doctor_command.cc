// `tidepool doctor`: what this machine has, what is missing, and a text to paste into a bug report.
// Looks only; of our programs it starts `tidepool-worker --version`, because whether its libraries load is
// what most installations fail at, and `tidepool-worker gpus`.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "core/device/cpu/kernels.h"
#include "workers/build_info.h"
#include "workers/cli/command.h"
#include "workers/cli/host_cores.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"
#include "workers/controller/found_gpus.h"
#include "workers/controller/job.h"
#include "workers/controller/program_output.h"
#include "workers/device/file_plan.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"
#include "workers/net/hub.h"

namespace tidepool::workers {
namespace {

constexpr char kMoreSharedMemory[] =
    "give it more (--shm-size=4g of a container); with cluster.weight_transport: stream and without "
    "checkpoint.recovery_every_steps what has no room there lies in the memory of each worker";

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// --- small readers ---

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Value of "key: value" or "key=value" lines; the first one.
std::string Field(const std::string& path, const std::string& key, char separator) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string name = line.substr(0, at);
    name.erase(name.find_last_not_of(" \t") + 1);
    if (name != key) continue;
    const size_t begin = line.find_first_not_of(" \t\"", at + 1);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t\"") - begin + 1);
  }
  return "";
}

int64_t KiBField(const std::string& path, const std::string& key) {
  return std::strtoll(Field(path, key, ':').c_str(), nullptr, 10) * 1024;
}

// --- what there is ---

struct Finding {
  bool blocks = false;  // true: a run cannot start
  std::string what, advice;
};

class Doctor {
 public:
  explicit Doctor(const std::string& self_path) : self_path_(self_path) {}

  void Look() {
    facts_["tidepool"] = {{"version", BuildInfo()}, {"path", self_path_}};
    System();
    Cpu();
    Memory();
    Disk();
    Worker();
    Gpu();
    Network();
    Sandbox();
    Limits();
    Example();
  }
  // A line to start with, true in the current directory.
  [[nodiscard]] const std::string& line() const { return line_; }
  [[nodiscard]] const Json& facts() const { return facts_; }
  [[nodiscard]] const std::vector<Finding>& findings() const { return findings_; }

 private:
  void Missing(std::string what, std::string advice) {
    findings_.push_back({true, std::move(what), std::move(advice)});
  }
  void Note(std::string what, std::string advice) {
    findings_.push_back({false, std::move(what), std::move(advice)});
  }

  void System() {
    utsname name{};
    uname(&name);
    const std::string pretty = Field("/etc/os-release", "PRETTY_NAME", '=');
    facts_["system"] = {
        {"os", pretty.empty() ? name.sysname : pretty},
        {"kernel", name.release},
        {"machine", name.machine},
        {"container", access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0}};
    if (std::string(name.machine) != "x86_64")
      Missing(std::string("this processor is a ") + name.machine, "Tidepool is built and tested on x86_64");
  }

  void Cpu() {
    const std::string info = "/proc/cpuinfo";
    std::istringstream words(Field(info, "flags", ':'));
    std::vector<std::string> flags{std::istream_iterator<std::string>(words), {}};
    Json found = Json::array();
    for (const char* flag :
         {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "amx_tile"}) {
      if (std::find(flags.begin(), flags.end(), flag) != flags.end()) found.push_back(flag);
    }
    const HostCores cores = CoresHere();
    const double quota = cores.quota;
    facts_["cpu"] = {{"model", Field(info, "model name", ':')},
                     {"cores", cores.machine},
                     {"usable", cores.usable},
                     {"quota", quota > 0 ? Json(quota) : Json(nullptr)},
                     {"instructions", found},
                     {"kernels", Name(device::BestIsa())}};
    const auto has = [&](const char* flag) {
      return std::find(found.begin(), found.end(), flag) != found.end();
    };
    if (!has("avx2")) Note("no AVX2", "everything works, by plain code, several times slower");
    if (!has("avx512_bf16")) {
      Note(
          "no AVX-512 bfloat16 instructions",
          "model.dtype: bfloat16 halves the memory of the weights here, but computes no faster than float32");
    }
    if (quota > 0 && quota < 2)
      Note("a quota of " + Text(quota) + " cores", "the examples count on two; expect them to take longer");
  }

  void Memory() {
    const int64_t total = KiBField("/proc/meminfo", "MemTotal");
    const int64_t available = KiBField("/proc/meminfo", "MemAvailable");
    const int64_t allowed = MachineMemory() < total ? MachineMemory() : 0;  // of the control groups; 0: any
    facts_["memory"] = {{"total_bytes", total},
                        {"available_bytes", available},
                        {"limit_bytes", allowed > 0 ? Json(allowed) : Json(nullptr)},
                        {"swap_bytes", KiBField("/proc/meminfo", "SwapTotal")}};
    free_memory_ = allowed > 0 ? std::min(available, allowed) : available;
    if (*free_memory_ < (int64_t{4} << 30))
      Note(BytesText(*free_memory_) + " of memory are free",
           "SmolLM2 needs 3.5 GiB; see `tidepool train CONFIG --dry-run`");
    struct statvfs shm {};
    if (statvfs("/dev/shm", &shm) != 0) {
      Missing("/dev/shm is not there",
              "mount a tmpfs there; weights go from trainer to rollout through it (with "
              "cluster.weight_transport: stream each worker keeps them in its own memory instead)");
      return;
    }
    const auto shm_total = static_cast<int64_t>(shm.f_blocks * shm.f_frsize),
               shm_free = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
    free_shm_ = shm_free;
    facts_["dev_shm"] = {{"total_bytes", shm_total}, {"free_bytes", shm_free}};
    if (shm_free < (int64_t{512} << 20)) {
      Note("/dev/shm has " + BytesText(shm_free) + " free",
           std::string("published weights (2 or more slots) and recovery copies lie there; ") +
               kMoreSharedMemory);
    }
  }

  void Disk() {
    const std::string dir = access("runs", F_OK) == 0 ? "runs" : ".";
    struct statvfs disk {};
    if (statvfs(dir.c_str(), &disk) != 0) return;
    const auto free_bytes = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    free_disk_ = free_bytes;
    const Json sync_ms = SyncMilliseconds(dir);
    std::error_code error;
    facts_["disk"] = {{"path", fs::absolute(dir, error).lexically_normal().string()},
                      {"free_bytes", free_bytes},
                      {"writable", !sync_ms.is_null()},
                      {"sync_ms", sync_ms}};
    if (sync_ms.is_null())  // tried: rights alone do not tell of a read-only or a full disk
      Missing((dir == "." ? "this folder" : dir) + " cannot be written",
              "start in a folder of your own on a disk with room, or give --run-dir");
    if (free_bytes < (int64_t{2} << 30))
      Note(BytesText(free_bytes) + " of disk are free",
           "a SmolLM2 run keeps up to 5 GiB of checkpoints; see `tidepool train CONFIG --dry-run`, free some "
           "with "
           "`tidepool prune`, or use another disk");
  }

  // How long the disk takes to make 4 KiB durable, median of five: the journal waits for this at each step.
  static Json SyncMilliseconds(const std::string& dir) {
    std::string path = dir + "/.tidepool-doctor-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return nullptr;
    unlink(path.c_str());
    const std::string bytes(4096, 'x');
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (write(file, bytes.data(), bytes.size()) < 0 || fdatasync(file) != 0) break;
      times.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    close(file);
    if (times.size() < 5) return nullptr;
    std::sort(times.begin(), times.end());
    return std::round(times[2] * 1000) / 1000;
  }

  void Worker() {
    const std::string path = (fs::path(self_path_).parent_path() / "tidepool-worker").string();
    const bool there = access(path.c_str(), X_OK) == 0;
    Json& fact = facts_["worker"];
    fact["path"] = there ? Json(path) : Json(nullptr);
    const char* libtorch = std::getenv("TIDEPOOL_LIBTORCH");
    if (libtorch != nullptr) fact["TIDEPOOL_LIBTORCH"] = libtorch;
    if (!there) {
      Missing("tidepool-worker is not beside tidepool",
              "make build; it needs LibTorch (scripts/setup fetches it, or set TIDEPOOL_LIBTORCH)");
      return;
    }
    const ProgramOutput version = RunProgram({path, "--version"}, 30);
    fact["starts"] = version.status == 0;
    fact["says"] = version.text.substr(0, 400);
    if (version.status != 0) {
      Missing(
          "tidepool-worker does not start: " + version.text.substr(0, 200),
          "its libraries were moved or were built for another system; run scripts/setup, then make build");
    } else if (version.text != BuildInfo()) {
      Note("tidepool-worker is of another build (" + version.text + ")",
           "make build, so that both programs are of one commit");
    }
    if (const auto libraries = LibTorchOf(path)) fact["libtorch"] = *libraries;
  }

  // Folder that the worker's loader finds LibTorch in, as the loader says it.
  static std::optional<std::string> LibTorchOf(const std::string& worker) {
    const ProgramOutput list = RunProgram({"ldd", worker}, 10);
    std::istringstream lines(list.text);
    std::string line;
    while (std::getline(lines, line)) {
      const size_t name = line.find("libtorch_cpu.so");
      const size_t arrow = line.find("=> ");
      if (name == std::string::npos || arrow == std::string::npos) continue;
      const std::string found = line.substr(arrow + 3, line.find(" (", arrow) - arrow - 3);
      return found == "not found" ? found : fs::path(found).parent_path().lexically_normal().string();
    }
    return std::nullopt;
  }

  void Gpu() {
    Json& gpus = facts_["gpus"] = Json::array();
    const ProgramOutput smi = RunProgram(
        {"nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"},
        10);
    if (smi.status == 0) {
      std::istringstream lines(smi.text);
      std::string line;
      while (std::getline(lines, line)) gpus.push_back(line);
    }
    const bool devices = access("/dev/nvidiactl", F_OK) == 0;
    if (devices && smi.status != 0)
      Note("/dev/nvidiactl is there but nvidia-smi does not answer",
           "look after the driver; cluster.device: cpu works without it");
    const std::string worker = (fs::path(self_path_).parent_path() / "tidepool-worker").string();
    if (access(worker.c_str(), X_OK) != 0) return;  // Worker() has said so
    const FoundGpus found = FindGpus(worker);
    Json& cuda = facts_["cuda"] = Json::object();
    cuda["available"] = std::ranges::any_of(found.gpus, [](const FoundGpu& g) { return g.problem.empty(); });
    if (!found.problem.empty()) cuda["problem"] = found.problem;
    for (size_t i = 0; i < found.gpus.size(); ++i) {
      const FoundGpu& gpu = found.gpus[i];
      const std::string name = "GPU " + std::to_string(i);
      cuda[name] = gpu.name + ", " + BytesText(gpu.free_bytes) + " of " + BytesText(gpu.total_bytes) +
                   " free" + (gpu.problem.empty() ? "" : ", not usable");
      if (!gpu.problem.empty())
        Note(name + " (" + gpu.name + "): " + gpu.problem, "see docs/operating.md, GPUs");
    }
    if (!found.gpus.empty() && !found.sums)
      Note("libtidepool_cuda.so was built without NCCL", "gradients of several GPUs add up through the host");
    // Without a GPU there is nothing to mend.
    if (!found.problem.empty() && (devices || smi.status == 0))
      Note("cluster.device: cuda cannot be used: " + found.problem, "see docs/operating.md, GPUs");
  }

  void Network() {
    const bool loopback = LoopbackWorks();
    Json proxies = Json::object();
    // gRPC obeys these for loopback addresses as well.
    for (const char* name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
      if (const char* value = std::getenv(name); value != nullptr && *value != '\0') proxies[name] = "set";
    }
    std::string exempt;
    for (const char* name : {"no_grpc_proxy", "no_proxy"}) {
      if (const char* value = std::getenv(name); value != nullptr && exempt.empty()) exempt = value;
    }
    facts_["network"] = {{"loopback", loopback}, {"proxy", proxies}, {"no_proxy", exempt}};
    if (!loopback)
      Missing("a TCP connection to 127.0.0.1 does not work",
              "controller and workers speak over it; bring up the interface lo (ip link set lo up)");
    if (!proxies.empty() && exempt.find("127.0.0.1") == std::string::npos) {
      Note("a proxy is set in the environment and 127.0.0.1 is not exempt",
           "export no_proxy=127.0.0.1,localhost if workers cannot reach the controller");
    }
  }

  // What tools that nobody trusts run in (docs/tools.md).
  void Sandbox() {
    const ProgramOutput version = RunProgram({"bwrap", "--version"}, 10);
    const ProgramOutput made = version.status == 0
                                   ? RunProgram({"bwrap", "--unshare-user", "--unshare-pid", "--unshare-net",
                                                 "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"},
                                                10)
                                   : version;
    facts_["sandbox"] = {
        {"bubblewrap", version.status == 0 ? Json(version.text.substr(0, 100)) : Json(nullptr)},
        {"works", made.status == 0}};
    if (version.status != 0) {
      Note("there is no bubblewrap (bwrap)",
           "scripts/setup --tools, or apt-get install bubblewrap; only environments with a sandbox need it");
    } else if (made.status != 0) {
      Note("bubblewrap gets no user namespace: " + made.text.substr(0, 200),
           "environments with a sandbox are refused here; as root: sysctl -w "
           "user.max_user_namespaces=15000, and where they exist kernel.unprivileged_userns_clone=1 and "
           "kernel.apparmor_restrict_unprivileged_userns=0; of a container: let it unshare and mount");
    }
  }

  // Binds a free port, connects to it and sends a byte.
  static bool LoopbackWorks() {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
              client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    bool works = server >= 0 && client >= 0 &&
                 bind(server, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(server, 1) == 0 &&
                 getsockname(server, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
                 connect(client, reinterpret_cast<sockaddr*>(&address), length) == 0;
    if (works) {
      // waits: for neither; the connection stands in the queue, and then the byte is there
      const int accepted = accept(server, nullptr, nullptr);
      char byte = 'x';
      works = accepted >= 0 && write(client, &byte, 1) == 1;
      // waits: it was written
      works = works && read(accepted, &byte, 1) == 1;
      if (accepted >= 0) close(accepted);
    }
    if (server >= 0) close(server);
    if (client >= 0) close(client);
    return works;
  }

  void Limits() {
    Json& limits = facts_["limits"];
    const auto read = [&](const char* name, int resource) -> int64_t {
      rlimit limit{};
      getrlimit(static_cast<__rlimit_resource>(resource), &limit);
      const bool none = limit.rlim_cur == RLIM_INFINITY;
      limits[name] = none ? Json("unlimited") : Json(static_cast<int64_t>(limit.rlim_cur));
      return none ? INT64_MAX : static_cast<int64_t>(limit.rlim_cur);
    };
    read("open_files", RLIMIT_NOFILE);  // Example() knows how many are needed
    if (read("processes", RLIMIT_NPROC) < 128)
      Note("only few processes and threads are allowed", "ulimit -u 1024; a worker has 10 to 30 threads");
    if (read("address_space_bytes", RLIMIT_AS) < (int64_t{8} << 30))
      Note("the address space is limited", "ulimit -v unlimited; LibTorch maps more than it uses");
    read("locked_bytes", RLIMIT_MEMLOCK);
    limits["overcommit_memory"] = FirstLine("/proc/sys/vm/overcommit_memory");
    limits["transparent_hugepages"] = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  }

  // configs/quickstart.yaml of the current directory, else of the checkout that the program was built in.
  [[nodiscard]] std::string ExampleConfig() const {
    const std::string name = "configs/quickstart.yaml";
    std::error_code error;
    if (fs::exists(name, error)) return name;
    const fs::path built = fs::path(self_path_).parent_path().parent_path().parent_path() / name;
    return fs::exists(built, error) ? built.lexically_normal().string() : "";
  }

  void CheckFiles(const JobConfig& config) {
    if (const Status files = CheckFileLimit(config); !files.ok())
      Missing(files.message(), "the hard limit is enough: processes raise the soft one to it");
  }

  // "Ready" is said of a line whose conditions were looked at, as `tidepool train` will.
  void Example() {
    const std::string file = ExampleConfig();
    Json& fact = facts_["example"];
    if (file.empty()) {
      CheckFiles({});
      line_ = ProgramAsTyped() + " train CONFIG";
      fact = nullptr;
      Note("there is no configs/quickstart.yaml here, nor where the program was built",
           "start in a checkout, or with a config of your own; `tidepool validate CONFIG` checks it");
      return;
    }
    line_ = ProgramAsTyped() + " train " + ShellWord(file);
    fact = {{"config", file}};
    auto loaded = config::LoadConfig(file);
    Status status = loaded.status();
    if (status.ok()) status = CheckInputs(*loaded);
    if (!status.ok()) return Missing(status.message(), "mend it, or start with another config");
    const JobConfig& config = loaded->config;
    if (const Status port = Hub::CanListen(config.cluster.bind, config.cluster.port); !port.ok())
      Missing(port.message(), "the controller listens there; set cluster.bind and cluster.port");
    CheckFiles(config);
    if (const std::string threads = ThreadsWarning(*loaded, CoresHere().whole()); !threads.empty())
      Note(threads.substr(0, threads.rfind("; ")), threads.substr(threads.rfind("; ") + 2));
    const auto plan = PlanMemory(config);
    if (!plan.ok()) return Missing(plan.status().message(), "mend it, or start with another config");
    // In a store they only pass this disk, one at a time.
    const int64_t here = config.checkpoint.store.empty() ? config.checkpoint.keep + 1 : 1;
    const int64_t disk_bytes = plan->checkpoint_bytes * here;
    fact["memory_bytes"] = plan->total();
    fact["dev_shm_bytes"] = plan->dev_shm_bytes();
    fact["disk_bytes"] = disk_bytes;
    const auto enough = [&](const char* of, int64_t need, const std::optional<int64_t>& free,
                            const char* advice) {
      if (free && *free < need)
        Missing(std::string(of) + ": " + BytesText(*free) + " are free, " + file + " needs about " +
                    BytesText(need),
                advice);
    };
    enough("memory", plan->total(), free_memory_, "end other programs, or allow more");
    enough("/dev/shm", plan->dev_shm_bytes(), free_shm_, kMoreSharedMemory);
    enough("disk", disk_bytes, free_disk_, "make room, or name another folder with --run-dir");
  }

  static std::string Text(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.3g", value);
    return text;
  }

  std::string self_path_, line_;
  std::optional<int64_t> free_memory_, free_shm_, free_disk_;
  Json facts_ = Json::object();
  std::vector<Finding> findings_;
};

// One fact: bytes as people write them, nested objects in one line.
std::string FactText(const std::string& key, const Json& value) {
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>().empty() ? "-" : value.get<std::string>();
  if (value.is_number_integer() && key.ends_with("_bytes")) return BytesText(value.get<int64_t>());
  if (value.is_array()) {
    std::string out;
    for (const Json& item : value) out += (out.empty() ? "" : ", ") + FactText("", item);
    return out.empty() ? "none" : out;
  }
  if (value.is_object()) {
    std::string out;
    for (const auto& [name, item] : value.items())
      out += (out.empty() ? "" : "; ") + (name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name) +
             " " + FactText(name, item);
    return out.empty() ? "none" : out;
  }
  return value.dump();
}

void Run(CommandContext& context, bool json) {
  Doctor doctor(context.self_path);
  doctor.Look();
  bool blocked = false;
  Json findings = Json::array();
  for (const Finding& f : doctor.findings()) {
    blocked = blocked || f.blocks;
    findings.push_back({{"blocks", f.blocks}, {"what", f.what}, {"advice", f.advice}});
  }
  if (json) {
    Json all = doctor.facts();
    all["ok"] = !blocked;
    all["line"] = doctor.line();
    all["findings"] = findings;
    std::printf("%s\n", all.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::printf("--- paste from here into a bug report ---\n");
    for (const auto& [name, fact] : doctor.facts().items())
      std::printf("%-10s %s\n", name.c_str(), FactText(name, fact).c_str());
    std::printf("--- to here, with the config and the last lines of RUN/logs/ ---\n\n");
    for (const Finding& f : doctor.findings())
      std::printf("%s %s\n        -> %s\n", f.blocks ? "MISSING" : "note   ", f.what.c_str(),
                  f.advice.c_str());
    std::printf("%s\n", blocked ? "A run cannot start here before what is MISSING is there."
                                : ("Ready: " + doctor.line()).c_str());
  }
  if (blocked) context.exit_code = 2;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, CommandContext& context) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("doctor", "What this machine has, what is missing, what to paste into a bug report");
  command->add_flag("--json", *json, "For machines");
  command->footer("Exit code 2 if a run cannot start here.\nExample: tidepool doctor");
  command->callback([json, &context] { Run(context, *json); });
}

}  // namespace tidepool::workers
