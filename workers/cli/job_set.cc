#include "workers/cli/job_set.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>

#include "core/base/choices.h"
#include "workers/net/auth.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kData[] = "/data", kConfig[] = "/config", kCertificates[] = "/certificates";
constexpr int64_t kUser = 10001;  // of no one: not root, and none of an image's
constexpr char kBeat[] = "/tmp/beat";

// A word of YAML that nobody takes for a number, a date, a boolean or null.
bool IsPlain(const std::string& text) {
  static const std::regex word("[A-Za-z/][A-Za-z0-9_./-]*");
  static const std::regex other("(y|n|yes|no|on|off|true|false|null)", std::regex::icase);
  return std::regex_match(text, word) && !std::regex_match(text, other);
}

void Emit(YAML::Emitter& out, const Json& value) {
  if (value.is_object() && !value.empty()) {
    out << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      out << YAML::Key;
      Emit(out, Json(key));
      out << YAML::Value;
      Emit(out, item);
    }
    out << YAML::EndMap;
  } else if (value.is_array() && !value.empty()) {
    out << YAML::BeginSeq;
    for (const Json& item : value) Emit(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    const auto text = value.get<std::string>();
    if (text.find('\n') != std::string::npos && text.find_first_of("\r\t") == std::string::npos &&
        text.front() != ' ' && text.back() == '\n' && !text.ends_with("\n\n"))
      out << YAML::Literal << text;
    else if (IsPlain(text))
      out << text;
    else
      out << YAML::DoubleQuoted << text;
  } else if (value.is_object()) {
    out << YAML::Flow << YAML::BeginMap << YAML::EndMap;
  } else {
    out << value.dump();  // a number or a boolean
  }
}

std::vector<std::string> Roles() {
  std::vector<std::string> roles = {kControllerRole};
  for (const CallerRole role : AllOf<CallerRole>()) roles.emplace_back(Name(role));
  return roles;
}

class Manifest {
 public:
  explicit Manifest(const PodJob& job) : job_(job) {}

  std::string Text() {
    Add(ConfigFiles());
    if (job_.claim.empty()) Add(Claim());
    if (job_.certificates == PodCertificates::kCertManager) AddCertManager();
    if (job_.certificates == PodCertificates::kSecret) Add(Secret());
    Add(JobSet());
    return text_;
  }

 private:
  void Add(const Json& document) {
    YAML::Emitter out;
    Emit(out, document);
    text_ += (text_.empty() ? "" : "---\n") + std::string(out.c_str()) + "\n";
  }

  [[nodiscard]] Json Object(const std::string& api, const std::string& kind, const std::string& name) const {
    Json metadata = {{"name", name}};
    if (!job_.name_space.empty()) metadata["namespace"] = job_.name_space;
    metadata["labels"] = {{"app.kubernetes.io/name", "tidepool"}, {"app.kubernetes.io/instance", job_.name}};
    return {{"apiVersion", api}, {"kind", kind}, {"metadata", metadata}};
  }

  // A key of a ConfigMap has no slash.
  static std::string KeyOf(const std::string& path) {
    return std::regex_replace(path, std::regex("/"), "..");
  }

  // Blank lines at the end, which a block of YAML drops: they mean something after one that keeps them alone.
  static std::string WithoutBlankEnd(std::string text) {
    if (text.find("|+") != std::string::npos || text.find(">+") != std::string::npos) return text;
    while (text.ends_with("\n\n")) text.pop_back();
    return text;
  }

  [[nodiscard]] Json ConfigFiles() const {
    Json object = Object("v1", "ConfigMap", job_.name + "-config");
    for (const auto& [path, text] : job_.files) object["data"][KeyOf(path)] = WithoutBlankEnd(text);
    return object;
  }

  // All pods write into it: logs, samples and the trainer's state.
  [[nodiscard]] Json Claim() const {
    Json object = Object("v1", "PersistentVolumeClaim", job_.name);
    object["spec"] = {{"accessModes", {"ReadWriteMany"}},
                      {"resources", {{"requests", {{"storage", job_.storage}}}}}};
    if (!job_.storage_class.empty()) object["spec"]["storageClassName"] = job_.storage_class;
    return object;
  }

  [[nodiscard]] Json Secret() const {
    Json object = Object("v1", "Secret", job_.name + "-certificates");
    object["type"] = "Opaque";
    for (const auto& [file, pem] : job_.secret) object["stringData"][file] = pem;
    return object;
  }

  // An authority of the job's own, and a certificate a role: they name the role and no host.
  void AddCertManager() {
    const std::string api = "cert-manager.io/v1", authority = job_.name + "-authority";
    Json object = Object(api, "Issuer", job_.name + "-self-signed");
    object["spec"]["selfSigned"] = Json::object();
    Add(object);
    const auto certificate = [&](const std::string& name, const std::string& issuer, Json spec) {
      Json made = Object(api, "Certificate", name);
      spec["secretName"] = name;
      spec["privateKey"] = {{"algorithm", "ECDSA"}, {"size", 256}};
      spec["issuerRef"] = {{"name", issuer}, {"kind", "Issuer"}};
      made["spec"] = spec;
      Add(made);
    };
    certificate(authority, job_.name + "-self-signed",
                {{"isCA", true}, {"commonName", "authority.tidepool"}, {"duration", "8760h"}});
    object = Object(api, "Issuer", authority);
    object["spec"]["ca"]["secretName"] = authority;
    Add(object);
    for (const std::string& role : Roles()) {
      Json names = {CertifiedName(role)};
      if (ServesPages(role)) names.push_back(kPagesName);
      certificate(job_.name + "-" + role, authority,
                  {{"commonName", CertifiedName(role)},
                   {"dnsNames", names},
                   {"usages", {"digital signature", "server auth", "client auth"}},
                   {"duration", "2160h"}});
    }
  }

  [[nodiscard]] Json JobSet() const {
    Json object = Object("jobset.x-k8s.io/v1alpha2", "JobSet", job_.name);
    if (!job_.queue.empty()) object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = job_.queue;
    object["spec"] = {
        {"network",
         {{"enableDNSHostnames", true}, {"subdomain", job_.name}, {"publishNotReadyAddresses", true}}},
        {"successPolicy", {{"operator", "All"}, {"targetReplicatedJobs", {"controller"}}}},
        // A pod that is lost is made anew by its Job; the set is never begun again.
        {"failurePolicy", {{"maxRestarts", 0}}},
        {"replicatedJobs", {Controller(), Hosts()}}};
    return object;
  }

  [[nodiscard]] Json Controller() const {
    const std::string run = std::string(kData) + "/runs/" + job_.run;
    Json arguments = {run, std::string(kConfig) + "/" + job_.config};
    for (const std::string& override : job_.overrides) arguments.push_back(override);
    if (job_.certificates != PodCertificates::kRun)
      arguments.push_back(std::string("--certificates=") + kCertificates);
    Json container = Container(
        "run=$1 config=$2; shift 2\n"
        "if [ -e \"$run/config.yaml\" ]; then set -- train \"$run\" --resume --take-over \"$@\"\n"
        "else set -- train \"$config\" --run-dir \"$run\" \"$@\"; fi\n",
        arguments);
    const Json ask = {{"exec", {{"command", {"tidepool", "status", run, "--healthy"}}}},
                      {"timeoutSeconds", 10}};
    Probe(container, "startupProbe", ask, 10, 90);
    Probe(container, "readinessProbe", ask, 10, 3);
    Probe(container, "livenessProbe", ask, 10, 6);
    container["resources"] = Resources("1", job_.controller_memory, 0);
    Json volumes = Volumes();
    container["volumeMounts"].push_back({{"name", "config"}, {"mountPath", kConfig}, {"readOnly", true}});
    Json items = Json::array();
    for (const auto& [path, text] : job_.files) items.push_back({{"key", KeyOf(path)}, {"path", path}});
    volumes.push_back(
        {{"name", "config"}, {"configMap", {{"name", job_.name + "-config"}, {"items", items}}}});
    if (job_.certificates != PodCertificates::kRun) {
      container["volumeMounts"].push_back(
          {{"name", "certificates"}, {"mountPath", kCertificates}, {"readOnly", true}});
      volumes.push_back(CertificateVolume());
    }
    Json spec = {{"completions", 1}, {"parallelism", 1}, {"completionMode", "Indexed"}, {"backoffLimit", 4}};
    return Replicated("controller", spec, container, volumes);
  }

  [[nodiscard]] Json Hosts() const {
    // The index is that of the pod: JOB_COMPLETION_INDEX.
    Json container =
        Container("set -- host \"$@\"\n", {std::string(kData) + "/runs/" + job_.run, "--slots",
                                           std::to_string(job_.slots_per_host), "--beat", kBeat});
    // `tidepool host` touches that file each second, but for two minutes at most while it looks for GPUs.
    const Json ask = {
        {"exec", {{"command", {"sh", "-c", std::string("test -n \"$(find ") + kBeat + " -mmin -3)\""}}}},
        {"timeoutSeconds", 10}};
    Probe(container, "startupProbe", ask, 5, 12);
    Probe(container, "livenessProbe", ask, 10, 6);
    container["resources"] =
        Resources(std::to_string(job_.threads_per_host), job_.memory, job_.gpus ? job_.slots_per_host : 0);
    Json spec = {{"completions", job_.hosts},
                 {"parallelism", job_.hosts},
                 {"completionMode", "Indexed"},
                 {"backoffLimitPerIndex", 20},
                 // One more that is given up fails the Job: else it is waited for until all others end.
                 {"maxFailedIndexes", job_.hosts_spare}};
    return Replicated("host", spec, container, Volumes());
  }

  static void Probe(Json& container, const char* name, Json ask, int period_s, int failures) {
    ask["periodSeconds"] = period_s;
    ask["failureThreshold"] = failures;
    container[name] = ask;
  }

  static Json Resources(const std::string& cpu, const std::string& memory, int64_t gpus) {
    Json resources = {{"requests", {{"cpu", cpu}}}};
    if (!memory.empty()) resources["requests"]["memory"] = resources["limits"]["memory"] = memory;
    if (gpus > 0) resources["limits"]["nvidia.com/gpu"] = std::to_string(gpus);
    return resources;
  }

  // begin: makes the arguments of tidepool of those of the container.
  [[nodiscard]] Json Container(const std::string& begin, Json arguments) const {
    // TERM is for the pod and not the end of the job: an exit code other than 0 has its Job make another one.
    const std::string script = begin +
                               "told=0 child=\n"
                               "trap 'told=1; [ -z \"$child\" ] || kill -TERM \"$child\"' TERM\n"
                               "tidepool \"$@\" &\n"
                               "child=$!\n"
                               "[ \"$told\" = 0 ] || kill -TERM \"$child\"\n"
                               "wait \"$child\"; code=$?\n"
                               "while kill -0 \"$child\" 2>/dev/null; do wait \"$child\"; code=$?; done\n"
                               "if [ \"$told\" = 1 ] && [ \"$code\" = 0 ]; then code=75; fi\n"
                               "exit \"$code\"\n";
    arguments.insert(arguments.begin(), "tidepool");  // $0 of the script
    return {{"name", "tidepool"},
            {"image", job_.image},
            {"command", {"/bin/sh", "-c", script}},
            {"args", arguments},
            {"workingDir", kData},
            {"env", {{{"name", "HOME"}, {"value", "/tmp"}}}},
            {"securityContext",
             {{"allowPrivilegeEscalation", false},
              {"readOnlyRootFilesystem", true},
              {"capabilities", {{"drop", {"ALL"}}}}}},
            {"volumeMounts",
             {{{"name", "data"}, {"mountPath", kData}},
              {{"name", "tmp"}, {"mountPath", "/tmp"}},
              {{"name", "memory"}, {"mountPath", "/dev/shm"}}}}};
  }

  [[nodiscard]] Json Volumes() const {
    return {{{"name", "data"},
             {"persistentVolumeClaim", {{"claimName", job_.claim.empty() ? job_.name : job_.claim}}}},
            {{"name", "tmp"}, {"emptyDir", Json::object()}},
            {{"name", "memory"}, {"emptyDir", {{"medium", "Memory"}}}}};
  }

  [[nodiscard]] Json CertificateVolume() const {
    if (job_.certificates == PodCertificates::kSecret)
      return {{"name", "certificates"}, {"secret", {{"secretName", job_.name + "-certificates"}}}};
    Json sources = Json::array();
    for (const std::string& role : Roles()) {
      Json items = {{{"key", "tls.crt"}, {"path", role + ".crt"}},
                    {{"key", "tls.key"}, {"path", role + ".key"}}};
      if (role == kControllerRole) items.push_back({{"key", "ca.crt"}, {"path", "authority.crt"}});
      sources.push_back({{"secret", {{"name", job_.name + "-" + role}, {"items", items}}}});
    }
    return {{"name", "certificates"}, {"projected", {{"sources", sources}}}};
  }

  [[nodiscard]] Json Replicated(const std::string& name, Json spec, const Json& container,
                                const Json& volumes) const {
    spec["podFailurePolicy"]["rules"] = {
        // 2: the input is refused, now and later. 4: another controller has taken over. 75: it was told to
        // end.
        {{"action", "FailJob"}, {"onExitCodes", {{"operator", "In"}, {"values", {2}}}}},
        {{"action", "Ignore"}, {"onExitCodes", {{"operator", "In"}, {"values", {4, 75}}}}},
        {{"action", "Ignore"}, {"onPodConditions", {{{"type", "DisruptionTarget"}, {"status", "True"}}}}}};
    spec["template"]["spec"] = {
        {"restartPolicy", "Never"},  // which a podFailurePolicy asks for: the Job makes another pod
        {"terminationGracePeriodSeconds", 60},
        {"automountServiceAccountToken", false},
        {"enableServiceLinks", false},
        // OnRootMismatch: else tokens and keys become readable for the group each time a pod begins.
        {"securityContext",
         {{"runAsNonRoot", true},
          {"runAsUser", kUser},
          {"runAsGroup", kUser},
          {"fsGroup", kUser},
          {"fsGroupChangePolicy", "OnRootMismatch"},
          {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
        {"containers", {container}},
        {"volumes", volumes}};
    return {{"name", name}, {"replicas", 1}, {"template", {{"spec", spec}}}};
  }

  const PodJob& job_;
  std::string text_ =
      "# Written by `tidepool k8s`; for `kubectl apply -f`. Relative paths of the config are looked for in "
      "the "
      "volume.\n";
};

}  // namespace

std::string ControllerHost(const std::string& name) { return name + "-controller-0-0." + name; }

Status CheckPodJob(const PodJob& job) {
  static const std::regex label("[a-z]([a-z0-9-]*[a-z0-9])?"),
      quantity("[1-9][0-9]*(\\.[0-9]+)?(k|M|G|T|P|E|[KMGTPE]i)?"),
      subdomain("[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"),
      folder("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"), image("[A-Za-z0-9][A-Za-z0-9._/:@-]*");
  struct Option {
    const char* name;
    const std::string& value;
    const std::regex& form;
    size_t longest;
    const char* remedy;
    bool may_be_empty = true;
  };
  const char* of_label = "small letters, digits and -, beginning with a letter";
  const char* of_quantity = "write it as 64Gi";
  for (const Option& o : {
           // 63 is the limit of a pod's name as a host, "NAME-controller-0-0-" and five letters are its
           // longest.
           Option{"--name", job.name, label, 38,
                  "at most 38 small letters, digits and -, beginning with a letter", false},
           Option{"--run", job.run, folder, 63,
                  "at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
                  false},
           Option{"--namespace", job.name_space, label, 63, of_label},
           Option{"--queue", job.queue, subdomain, 63, "small letters, digits, - and ."},
           Option{"--image", job.image, image, 1000, "name it as in registry/tidepool:1", false},
           Option{"--memory", job.memory, quantity, 20, of_quantity},
           Option{"--controller-memory", job.controller_memory, quantity, 20, of_quantity, false},
           Option{"--storage", job.storage, quantity, 20, of_quantity, false},
           Option{"--storage-class", job.storage_class, subdomain, 253, "small letters, digits, - and ."},
           Option{"--claim", job.claim, subdomain, 253, "small letters, digits, - and ."},
       }) {
    if (o.value.empty() && o.may_be_empty) continue;
    if (o.value.size() > o.longest || !std::regex_match(o.value, o.form))
      return InvalidArgument(std::string(o.name) + " is '" + o.value + "', which Kubernetes does not take; " +
                             o.remedy);
  }
  return OkStatus();
}

std::string JobSetManifest(const PodJob& job) { return Manifest(job).Text(); }

}  // namespace tidepool::workers
