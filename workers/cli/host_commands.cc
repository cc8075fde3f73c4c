// `tidepool host`, `tidepool join-token`, `tidepool join`, `tidepool slurm` and `tidepool k8s`.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/base/host_name.h"
#include "core/base/places.h"
#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/config/training_slots.h"
#include "core/storage/run_directory.h"
#include "workers/cli/command.h"
#include "workers/cli/job_set.h"
#include "workers/cli/model_session.h"
#include "workers/cli/slurm_script.h"
#include "workers/controller/host.h"
#include "workers/controller/launcher.h"
#include "workers/controller/scheduler_options.h"
#include "workers/controller/worker_command.h"
#include "workers/net/certificates.h"
#include "workers/net/exit_code.h"
#include "workers/net/join_service.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

int64_t NumberIn(const char* name) {
  const char* value = std::getenv(name);
  int64_t number = -1;
  const char* end = value == nullptr ? nullptr : value + std::strlen(value);
  return value != nullptr && std::from_chars(value, end, number).ptr == end ? number : -1;
}

// What started several processes alike, where it says which of them one is, and how many there are. The
// innermost one first: all that mpirun starts within an allocation or a pod inherit one number of that.
struct Starter {
  const char *index, *count;
};
constexpr Starter kStarters[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                 {"PMIX_RANK", nullptr},
                                 {"SLURM_PROCID", "SLURM_NTASKS"},
                                 {"JOB_COMPLETION_INDEX", nullptr}};  // Kubernetes

// The variable that says how many there are; null: none does. PMIx has none; where srun gives it, Slurm says.
const char* CountBy(const Starter& starter) {
  if (starter.count != nullptr || std::string_view(starter.index) != "PMIX_RANK") return starter.count;
  return std::getenv("SLURM_PROCID") != nullptr && NumberIn("SLURM_PROCID") == NumberIn("PMIX_RANK")
             ? "SLURM_NTASKS"
             : nullptr;
}

// Nothing: it was started by hand.
const Starter* FindStarter() {
  for (const Starter& starter : kStarters) {
    if (std::getenv(starter.index) != nullptr) return &starter;
  }
  return nullptr;
}

void Host(CommandContext& context, HostOptions options, const std::string& join) {
  if (options.index < 0)
    return Fail(
        context,
        InvalidArgument(
            "the number that whoever started this gave it (SLURM_PROCID and the like) is none; say --index"));
  options.self_path = context.self_path;
  std::error_code error;  // a path that cannot be made absolute stays as it is
  if (const fs::path absolute = fs::absolute(options.run_dir, error); !error)
    options.run_dir = absolute.lexically_normal().string();
  const std::string who = "host " + std::to_string(options.index) + " (" + HostName() + "): ";
  // Of a host that has joined: two in one folder would be two workers with one identity at every place.
  std::unique_ptr<FileLock> lock;
  const auto joined = [&]() -> StatusOr<std::optional<JoinedHost>> {
    RealFileSystem disk;
    if (!join.empty()) TP_RETURN_IF_ERROR(disk.MakeDirectories(options.run_dir));
    if (!join.empty() || HasJoined(options.run_dir)) {
      TP_ASSIGN_OR_RETURN(
          lock, disk.Lock(options.run_dir + "/host.lock", storage::ThisProcess("a host that has joined,")));
    }
    if (!join.empty()) TP_RETURN_IF_ERROR(JoinHost(join, options.run_dir));
    return ReadJoinedHost(options.run_dir);
  }();
  if (!joined.ok()) return Fail(context, joined.status());
  options.joined = *joined;
  options.stop = StopOnSignal();
  options.say = [who](const std::string& line) { std::fprintf(stderr, "%s%s\n", who.c_str(), line.c_str()); };
  const Status status = RunHost(options);
  if (!status.ok()) Fail(context, Status(status.code(), who + status.message()), ExitCodeOf(status));
}

struct SlurmOptions {
  SlurmJob job;
  bool submit = false;
};

// Slurm reads these lines of a script by rules of its own.
Status CheckPlain(const std::string& what, const std::string& text) {
  if (text.find_first_of(" \t\n\"'\\%#") == std::string::npos) return OkStatus();
  return InvalidArgument(what + " is '" + text +
                         "'; a batch script takes none with spaces, quotes, \\, % or #");
}

// Until the next controller of the script, or of the pod, is there: its start and 5 to 20 s before it, or a
// pod.
constexpr char kReattach[] = "cluster.reattach_grace_s=120";

std::string KeyOf(const std::string& override) { return override.substr(0, override.find('=')); }

// What the command sets would win over the user's word without one.
Status CheckOverrides(const std::vector<std::string>& overrides, const std::vector<std::string>& of_hosts) {
  for (const std::string& override : overrides) {
    const std::string key = KeyOf(override);
    const auto set = std::ranges::find(of_hosts, key, KeyOf);
    if (key != "cluster.advertise" && (set == of_hosts.end() || *set == override)) continue;
    return InvalidArgument(override + ": this command sets " +
                           (key == "cluster.advertise" ? key + " to the controller's host"
                            : key == "cluster.slots"   ? key + " to the product of -N and --slots; give those"
                                                       : *set) +
                           " and takes no override of it; leave it out");
  }
  return OkStatus();
}

// All that the run will be started with, so that what it would refuse is refused here. of_hosts: what a run
// over hosts needs over the user's overrides.
StatusOr<config::LoadedConfig> LoadForHosts(const std::string& path,
                                            const std::vector<std::string>& overrides, int64_t slots,
                                            std::vector<std::string>& of_hosts) {
  of_hosts.insert(of_hosts.end(), {"cluster.slots=" + std::to_string(slots), "cluster.launch_workers=false",
                                   "cluster.bind=0.0.0.0", "cluster.weight_transport=stream"});
  TP_RETURN_IF_ERROR(CheckOverrides(overrides, of_hosts));
  std::vector<std::string> all = overrides;
  all.insert(all.end(), of_hosts.begin(), of_hosts.end());
  all.insert(all.end(), {"cluster.advertise=the-node", "cluster.trusted_fabric=true"});
  TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfig(path, all));
  if (loaded.OriginOf(KeyOf(kReattach)).kind == config::Origin::Kind::kDefault)
    of_hosts.emplace_back(kReattach);
  if (!config::OneSlotTrains(loaded.config)) {
    of_hosts.emplace_back("cluster.trusted_fabric=true");
    std::fprintf(stderr,
                 "note: several slots train, and what they sum is not encrypted: what is printed says "
                 "cluster.trusted_fabric=true, which is right where the nodes' network is the job's own\n");
  }
  return loaded;
}

// Hosts that the run goes on without.
int64_t SpareHosts(const JobConfig& config, int64_t hosts, int64_t slots_of_each) {
  const int64_t least = config.cluster.min_slots;
  return least == 0 ? 0 : hosts - (least + slots_of_each - 1) / slots_of_each;
}

Status Slurm(CommandContext& context, SlurmOptions o) {
  SlurmJob& job = o.job;
  job.program = context.self_path;
  job.config = fs::absolute(job.config).lexically_normal().string();
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded,
                      LoadForHosts(job.config, job.overrides, job.nodes * job.slots_per_node, job.of_hosts));
  const JobConfig& config = loaded.config;
  if (job.run_dir.empty()) job.run_dir = "runs/" + config.name;
  job.run_dir = fs::absolute(job.run_dir).lexically_normal().string();
  if (job.name.empty()) job.name = config.name;
  TP_RETURN_IF_ERROR(CheckPlain("--job-name", job.name));
  TP_RETURN_IF_ERROR(CheckPlain("--run-dir", job.run_dir));
  job.gpus = config.cluster.device == DeviceKind::kCuda;
  job.may_lack = SpareHosts(config, job.nodes, job.slots_per_node) > 0;
  job.threads_per_node = job.slots_per_node * config.cluster.threads_per_slot;
  const std::string script = SlurmScript(job);
  if (!o.submit) {
    std::fputs(script.c_str(), stdout);
    return OkStatus();
  }
  const std::string file = job.run_dir + ".sbatch";
  std::error_code error;  // what cannot be made is named by who writes there
  fs::create_directories(fs::path(file).parent_path(), error);
  if (std::ofstream out(file); !(out << script << std::flush))
    return Unavailable(file + ": cannot be written");
  ::execlp("sbatch", "sbatch", file.c_str(), nullptr);  // this process is it now
  return Unavailable(std::string("--submit: sbatch cannot be started (") + std::strerror(errno) +
                     "); the script is " + file);
}

struct K8sOptions {
  PodJob job;
  std::string config;
  std::vector<std::string> overrides;
  std::string certificates = "run";
};

// The files of a config and of what it names, by their paths from the folder that they have in common.
Status AddFiles(const config::LoadedConfig& loaded, PodJob& job) {
  std::vector<std::string> files = loaded.files;
  if (const auto& init = loaded.config.model.init; init && !init->warm_start.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, config::LoadWarmStart(loaded.config));
    files.insert(files.end(), warm.files.begin(), warm.files.end());
  }
  fs::path common;
  for (std::string& file : files) {
    std::error_code error;  // a path that cannot be resolved stays as it is, and is refused below
    if (const fs::path real = fs::weakly_canonical(file, error); !error) file = real.string();
    fs::path folder = fs::path(file).parent_path();
    if (common.empty()) common = folder;
    while (!common.empty() && fs::path(file).lexically_relative(common).string().starts_with(".."))
      common = common.parent_path();
  }
  size_t bytes = 0;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (!in && text.empty()) return Unavailable(file + ": cannot be read");
    const std::string path = fs::path(file).lexically_relative(common).string();
    if (path.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/") !=
        std::string::npos)
      return InvalidArgument(file +
                             ": a ConfigMap takes letters, digits, -, _ and . in names of files; rename it");
    if (job.config.empty()) job.config = path;
    bytes += text.size();
    job.files[path] = std::move(text);
  }
  if (bytes > (1U << 20))
    return InvalidArgument(loaded.path + ": with what it names it has " + std::to_string(bytes) +
                           " bytes, and a ConfigMap takes 1 MiB; put what is large into files of the volume");
  return OkStatus();
}

Status K8s(K8sOptions o) {
  PodJob& job = o.job;
  std::vector<std::string> of_hosts;
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded,
                      LoadForHosts(o.config, o.overrides, job.hosts * job.slots_per_host, of_hosts));
  const JobConfig& config = loaded.config;
  if (job.name.empty()) {
    job.name = config.name;
    std::ranges::transform(job.name, job.name.begin(),
                           [](unsigned char c) { return std::isalnum(c) != 0 ? std::tolower(c) : '-'; });
  }
  if (job.run.empty()) job.run = job.name;
  job.certificates = o.certificates == "run"            ? PodCertificates::kRun
                     : o.certificates == "cert-manager" ? PodCertificates::kCertManager
                                                        : PodCertificates::kSecret;
  TP_RETURN_IF_ERROR(CheckPodJob(job));
  TP_RETURN_IF_ERROR(AddFiles(loaded, job));
  job.overrides = o.overrides;
  job.overrides.insert(job.overrides.end(), of_hosts.begin(), of_hosts.end());
  job.overrides.push_back("cluster.advertise=" + ControllerHost(job.name));
  if (job.certificates == PodCertificates::kSecret) {
    TP_ASSIGN_OR_RETURN(
        job.secret,
        MakeCertificates(job.name, {static_cast<int64_t>(config.security.certificate_hours * 3600)}));
    std::fputs("note: the keys of the job are in what is printed; keep it as a secret\n", stderr);
  }
  job.gpus = config.cluster.device == DeviceKind::kCuda;
  job.hosts_spare = SpareHosts(config, job.hosts, job.slots_per_host);
  job.threads_per_host = job.slots_per_host * config.cluster.threads_per_slot;
  std::fputs(JobSetManifest(job).c_str(), stdout);
  return OkStatus();
}

struct JoinOptions {
  std::string run, file, dir;
  std::vector<int64_t> places;
  int64_t minutes = 60;
};

// Where the run directory is seen: an operator's.
Status MakeToken(const JoinOptions& o) {
  const storage::RunPaths paths(o.run);
  std::ifstream in(paths.control());
  const auto control = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) { return control.is_object() ? control.value(name, "") : ""; };
  if (text("run_id").empty())
    return NotFound(paths.control() + ": no controller runs; a join token is good with one that lives");
  if (text("join").empty())
    return FailedPrecondition(o.run +
                              ": its controller gives no certificates to newcomers; start it, or go on with "
                              "--resume, with security.newcomers=true");
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::ReadCheckedConfig(paths.config()));
  const scheduler::ControllerOptions plan = SchedulerOptions(loaded.config, 0);
  const int64_t devices = plan.device_workers(), places = devices + plan.side_workers();
  const std::string side = SideName(loaded.config);
  TP_ASSIGN_OR_RETURN(const auto mine, ReadIdentity(paths.security() + "/controller.token"));
  if (!mine) return NotFound(paths.security() + ": has no certificates");
  std::vector<JoinToken> tokens;
  std::string names;
  for (const int64_t place : std::set<int64_t>(o.places.begin(), o.places.end())) {
    if (place >= places)
      return InvalidArgument("--place is " + std::to_string(place) + ", and the run has the places 0 to " +
                             std::to_string(places - 1));
    JoinToken token{text("join"), text("address"), text("run_id"), mine->authority, "", "", {}};
    token.scope.role = place < devices                          ? CallerRole::kDevice
                       : side == Name(CallerRole::kEnvironment) ? CallerRole::kEnvironment
                                                                : CallerRole::kReward;
    token.scope.place = place;
    token.scope.ctl_epoch = control.value("ctl_epoch", int64_t{0});
    token.scope.expires = time(nullptr) + 60 * o.minutes;
    token.name = PlaceName(loaded.config, place);
    token.shared_memory = text("shared_memory");
    token.vector = place >= devices && loaded.config.model.is_policy();
    token.models = token.scope.role == CallerRole::kReward && loaded.config.reward.by_model();
    token.store = KeysOf(loaded.config, place) == Keys::kOfStore;
    TP_ASSIGN_OR_RETURN(token, MakeJoinToken(paths.security(), token));
    names += (names.empty() ? "" : ", ") + token.name;
    tokens.push_back(std::move(token));
  }
  TP_RETURN_IF_ERROR(WriteJoinTokens(o.file, tokens));
  std::printf("%s: good once within %s min, for %s\n", o.file.c_str(), std::to_string(o.minutes).c_str(),
              names.c_str());
  return OkStatus();
}

// On the new host.
Status JoinRun(const JoinOptions& o) {
  TP_ASSIGN_OR_RETURN(const std::vector<JoinToken> tokens, ReadJoinTokens(o.file));
  if (tokens.size() > 1)
    return InvalidArgument(o.file + ": is for " + std::to_string(tokens.size()) +
                           " places; `tidepool host DIR --join FILE` starts their workers");
  const JoinToken& token = tokens.front();
  TP_RETURN_IF_ERROR(Join(token, o.dir));
  std::error_code error;  // it is of no use to anybody any more
  fs::remove(o.file, error);
  const JoinedHost joined{token.run_id, token.controller, "", {}};
  std::string line;
  for (const std::string& word : WorkerCommand(
           joined,
           {token.scope.place, Name(token.scope.role), token.name, token.vector, token.store, token.models},
           "tidepool", "tidepool-worker", fs::absolute(o.dir).lexically_normal().string()))
    line += (line.empty() ? "" : " ") + word;
  std::puts(line.c_str());
  return OkStatus();
}

}  // namespace

void AddHostCommands(CLI::App& app, CommandContext& context) {
  auto host = std::make_shared<HostOptions>();
  const Starter* starter = FindStarter();
  host->index = starter == nullptr ? 0 : NumberIn(starter->index);
  CLI::App* command = app.add_subcommand(
      "host",
      "Start the workers of a run that belong on this machine, and start them again when they are lost");
  command
      ->add_option("run", host->run_dir,
                   "The run's folder, as this host sees it; where it does not see it, a folder of its own")
      ->required();
  auto join_file = std::make_shared<std::string>();
  command->add_option("--join", *join_file,
                      "What tidepool join-token has written, for a host that does not see the run's folder; "
                      "removed when it is used");
  command->add_option("--slots", host->slots, "Device workers of each host")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  const CLI::Option* index =
      command
          ->add_option("--index", host->index,
                       "Which host this is, from 0; default: as MPI, Slurm or Kubernetes say")
          ->check(CLI::Range(0, 1 << 20));
  command->add_option("--patience", host->patience_s, "Seconds without a controller after which it ends")
      ->check(CLI::Range(1.0, 1e7))
      ->capture_default_str();
  command->add_option("--beat", host->beat,
                      "A file that it touches each second, for whoever restarts what hangs");
  command->footer("Example: tidepool host runs/x --slots 2 --index 1");
  command->callback([host, join_file, starter, index, &context] {
    if (const char* count = starter == nullptr ? nullptr : CountBy(*starter);
        count != nullptr && index->empty()) {
      host->hosts = std::max<int64_t>(NumberIn(count), 0);
      host->hosts_said_by = count;
    }
    Host(context, *host, *join_file);
  });

  auto join = std::make_shared<JoinOptions>();
  command = app.add_subcommand(
      "join-token", "Make the file with which a host that does not see the run directory gets a certificate");
  command->add_option("run", join->run, "The run's folder; its controller runs, with security.newcomers")
      ->required();
  command->add_option("file", join->file, "File to write; copy it to the host, and nowhere else")->required();
  command
      ->add_option(
          "--place", join->places,
          "The place that it is for: devices first, from 0; again for each of a host (tidepool host --join)")
      ->required()
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--minutes", join->minutes, "That it is good for")
      ->check(CLI::Range(1, 7 * 24 * 60))
      ->capture_default_str();
  command->footer("Example: tidepool join-token runs/x join.json --place 1");
  command->callback([join, &context] {
    if (const Status status = MakeToken(*join); !status.ok()) Fail(context, status);
  });
  command =
      app.add_subcommand("join", "Get a certificate for a join token, and print how to start the worker");
  command->add_option("file", join->file, "What tidepool join-token has written; removed when it is used")
      ->required();
  command->add_option("dir", join->dir, "Folder for the certificate, its key and the worker's token")
      ->required();
  command->footer("Example: tidepool join join.json security");
  command->callback([join, &context] {
    if (const Status status = JoinRun(*join); !status.ok()) Fail(context, status);
  });

  auto slurm = std::make_shared<SlurmOptions>();
  command = app.add_subcommand("slurm", "Print the batch script that runs a job on nodes of a Slurm cluster");
  command->add_option("config", slurm->job.config, "Job config (YAML)")->required();
  command->add_option("overrides", slurm->job.overrides, "Config overrides, a.b=c");
  command->add_option("-N,--nodes", slurm->job.nodes, "Nodes")->required()->check(CLI::Range(1, 65536));
  command->add_option("--slots", slurm->job.slots_per_node, "Slots on each node")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--run-dir", slurm->job.run_dir,
                      "Folder of the run, on a disk that all nodes share; default: runs/NAME");
  command->add_option("--job-name", slurm->job.name, "In Slurm's queue; default: the config's name");
  command->add_option("--time", slurm->job.time_limit,
                      "Time limit, HH:MM:SS; the run goes on after it: the job is queued again");
  command
      ->add_option("--sbatch", slurm->job.sbatch,
                   "Further option for sbatch, such as --sbatch=--partition=gpu")
      ->allow_extra_args(false);
  command->add_flag("--submit", slurm->submit, "Give it to sbatch");
  command->footer(
      "Example: tidepool slurm configs/quickstart.yaml scheduler.placement=split -N 4 --time 02:00:00 > "
      "job.sh; sbatch job.sh");
  command->callback([slurm, &context] {
    if (const Status status = Slurm(context, *slurm); !status.ok()) Fail(context, status);
  });

  auto k8s = std::make_shared<K8sOptions>();
  PodJob& pods = k8s->job;
  command = app.add_subcommand("k8s", "Print the JobSet that runs a job on a Kubernetes cluster");
  command->add_option("config", k8s->config, "Job config (YAML)")->required();
  command->add_option("overrides", k8s->overrides, "Config overrides, a.b=c");
  command->add_option("--image", pods.image, "Image with the programs (packaging/Containerfile)")->required();
  command->add_option("-N,--hosts", pods.hosts, "Pods that have workers")
      ->required()
      ->check(CLI::Range(int64_t{1}, kPodsOfHostsMost));
  command->add_option("--slots", pods.slots_per_host, "Slots of each of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--name", pods.name, "Of the JobSet; default: the config's name");
  command->add_option("--run", pods.run, "Folder of the run in the volume's runs/; default: the name")
      ->check([](const std::string& text) { return text.empty() ? std::string("it is empty") : ""; });
  command->add_option("--namespace", pods.name_space, "Namespace; default: that of kubectl");
  command->add_option("--queue", pods.queue, "Local queue of Kueue");
  command->add_option(
      "--memory", pods.memory,
      "Of each pod with workers, such as 64Gi; `tidepool train CONFIG --dry-run` predicts it");
  command->add_option("--controller-memory", pods.controller_memory, "Of the controller's pod")
      ->capture_default_str();
  command->add_option("--claim", pods.claim,
                      "Volume claim that is there, ReadWriteMany; default: one of the JobSet's name is made");
  command->add_option("--storage", pods.storage, "Size of the claim that is made")->capture_default_str();
  command->add_option("--storage-class", pods.storage_class, "Its class; default: the cluster's");
  command
      ->add_option("--certificates", k8s->certificates,
                   "Who makes them: the run itself, cert-manager, or this command, which prints a secret")
      ->check(CLI::IsMember({"run", "cert-manager", "secret"}))
      ->capture_default_str();
  command->footer(
      "Example: tidepool k8s configs/quickstart.yaml scheduler.placement=split -N 4 --image "
      "registry/tidepool:1 "
      "| kubectl apply -f -");
  command->callback([k8s, &context] {
    if (const Status status = K8s(*k8s); !status.ok()) Fail(context, status);
  });
}

}  // namespace tidepool::workers
