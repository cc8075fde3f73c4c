// tidepool serve: the endpoint of a model, until Ctrl-C.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/loopback.h"
#include "core/base/names.h"
#include "core/base/real_file_system.h"
#include "core/model/hugging_face.h"
#include "core/text/tool_calls.h"
#include "workers/cli/command.h"
#include "workers/cli/model_lookup.h"
#include "workers/cli/model_session.h"
#include "workers/data/model_folder.h"
#include "workers/device/memory_plan.h"
#include "workers/net/auth.h"
#include "workers/net/http_server.h"
#include "workers/serve/endpoint.h"
#include "workers/serve/generator.h"
#include "workers/serve/request_reading.h"
#include "workers/serve/served_model.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// Who reads a stream sees no steps so short, and a message costs a tenth of a millisecond.
constexpr int64_t kTogetherMs = 20;

struct ServeOptions : SamplingOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string name, key_file, tls_certificate, tls_key;
  int64_t max_waiting = 256;
  double request_timeout_s = 1800, end_within_s = 30;
};

StatusOr<std::string> FileText(const std::string& path, const char* flag) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return NotFound(std::string(flag) + ": " + path + " cannot be read");
  return text.str();
}

// The key file that is to be removed by a signal that ends the process; null: none.
std::atomic<const char*> made_key{nullptr};

// A key file that goes with this object; an empty path: none.
class Removed {
 public:
  explicit Removed(std::string path) : path_(std::move(path)) {
    if (!path_.empty()) made_key = path_.c_str();
  }
  Removed(const Removed&) = delete;
  Removed& operator=(const Removed&) = delete;
  ~Removed() {
    made_key = nullptr;
    if (!path_.empty()) (void)RealFileSystem().RemoveFile(path_);  // what is left serves nobody
  }

 private:
  const std::string path_;
};

// What callers show. From the file that is named, which nobody else may read, or made at random.
struct Key {
  std::string text;
  std::string file;  // that has it
};
StatusOr<Key> TakeKey(const ServeOptions& o) {
  if (!o.key_file.empty()) {
    const StatusOr<std::string> text = ReadTokenFile(o.key_file);
    if (!text.ok()) return text.status().At("--key-file");
    return Key{*text, o.key_file};
  }
  TP_ASSIGN_OR_RETURN(std::string text, RandomHex());
  // Below the user's own folder for such things, or else the system's.
  const char* runtime = ::getenv("XDG_RUNTIME_DIR");
  const std::string folder =
      runtime != nullptr && *runtime != '\0' ? runtime : fs::temp_directory_path().string();
  const std::string file = folder + "/tidepool-serve-" + std::to_string(::getpid()) + ".key";
  TP_RETURN_IF_ERROR(WriteSecretFile(file, text));
  return Key{std::move(text), file};
}

StatusOr<std::optional<Identity>> TakeCertificate(const ServeOptions& o) {
  if (o.tls_certificate.empty() != o.tls_key.empty())
    return InvalidArgument("--tls-certificate and --tls-key belong together");
  if (o.tls_certificate.empty()) {
    if (IsLoopback(o.host)) return std::optional<Identity>();
    return InvalidArgument("--host: others can reach " + o.host +
                           ", so calls have to be encrypted; give --tls-certificate and --tls-key");
  }
  TP_RETURN_IF_ERROR(CheckPrivate(o.tls_key).At("--tls-key"));
  Identity identity;
  TP_ASSIGN_OR_RETURN(identity.certificate, FileText(o.tls_certificate, "--tls-certificate"));
  TP_ASSIGN_OR_RETURN(identity.key, FileText(o.tls_key, "--tls-key"));
  return std::optional<Identity>(std::move(identity));
}

// A second signal ends the process at once, and the key goes with it.
void EndAtNextSignal(const sigset_t& ends) {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    if (const char* path = made_key.load()) ::unlink(path);
    ::raise(signal);  // as it is without a handler
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
}

// The names that requests say: of each adapter, and of the model where adapters were put beside it.
StatusOr<std::vector<std::string>> NamesOf(const ServeOptions& o, const FoundModel& found, bool beside) {
  std::vector<std::string> names = o.adapter_names;
  if (names.size() == 1 && !o.name.empty()) names[0] = o.name;
  if (!names.empty() && !beside) return names;
  std::string name = names.empty() ? o.name : "";
  if (name.empty()) name = LastName(names.empty() && !found.run.empty() ? found.run : found.dir);
  if (name.empty()) name = found.architecture;
  if (std::ranges::find(names, name) != names.end())
    return InvalidArgument("--adapter: one has the name of the model, " + name +
                           "; name it: --adapter NAME=DIR");
  names.push_back(name);
  return names;
}

// Until a signal, or until the worker is gone.
Status AwaitEnd(const sigset_t& ends, const Generator& generator) {
  bool said = false;
  while (true) {
    TP_ASSIGN_OR_RETURN(const bool serves, generator.Serves());
    if (serves && !said) {
      std::printf("serves\n");
      std::fflush(stdout);
      said = true;
    }
    const timespec a_moment{.tv_sec = 0, .tv_nsec = 100'000'000};
    if (::sigtimedwait(&ends, nullptr, &a_moment) > 0) return OkStatus();
  }
}

Status Serve(const CommandContext& context, ServeOptions& o) {
  if (o.port < 0 || o.port > 65535)
    return InvalidArgument("--port: " + std::to_string(o.port) +
                           "; a port is a number from 1 to 65535, 0: a free one");
  if (!o.name.empty() && o.adapter_names.size() > 1)
    return InvalidArgument("--name: is for one model; name adapters by --adapter NAME=DIR");
  const bool beside = !o.adapter_names.empty();
  if (!o.name.empty() && o.adapter_names.size() == 1 && o.adapter_names[0].find('=') != std::string::npos)
    return InvalidArgument("--name: the adapter has a name already, by --adapter " + o.adapter_names[0] +
                           "; give one of the two");
  TP_ASSIGN_OR_RETURN(const FoundModel found, TakeModel(o));
  if (found.is_policy())
    return InvalidArgument("--model: " + found.dir + " is a policy of a control task, which writes no text");
  TP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(o, found, beside));
  const std::string& dir = found.dir;
  TP_RETURN_IF_ERROR(CheckModelFolder(dir, "--model"));
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(dir));
  RolloutConfig& r = o.job.rollout;
  // Where it is not given, the KV cache is planned for as many conversations of full length.
  o.job.train.groups_per_step = r.max_concurrent;
  o.job.data.max_prompt_tokens = r.max_new_tokens = spec.max_position;
  r.kv_cache_tokens = KvCacheTokens(o.job, spec);
  if (r.kv_cache_tokens < r.block_tokens)
    return InvalidArgument("--kv-cache-tokens: " + std::to_string(r.block_tokens) + " or more are expected");
  r.max_new_tokens = 1;  // requests say it; the job's own, which has to fit the cache, is nobody's
  o.job.data.max_prompt_tokens = 1;
  TP_ASSIGN_OR_RETURN(const auto model, ServedModel::Load(dir, names.back(), r.kv_cache_tokens));
  std::vector<ServedModel> served(names.size(), *model);
  for (size_t i = 0; i < names.size(); ++i) {
    served[i].name = names[i];
    served[i].adapter = i < o.adapters.size() ? static_cast<int32_t>(i) : kOwnWeights;
  }
  if (model->template_text == nullptr) {
    std::fprintf(stderr, "note: the model has no chat template: prompts alone are taken, and no messages\n");
  } else if (model->tools == text::ToolFormat::kNone) {
    std::fprintf(stderr,
                 "note: requests with tools are refused: the model's chat template shows no form of calls "
                 "that is read here\n");
  }
  TP_ASSIGN_OR_RETURN(const std::optional<Identity> identity, TakeCertificate(o));
  TP_ASSIGN_OR_RETURN(const Key key, TakeKey(o));
  const Removed made(o.key_file.empty() ? key.file : "");
  // Taken before threads begin, so that they take none of these.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads what is printed may go
  auto stopped = std::make_shared<std::atomic<bool>>(false);
  o.together_ms = kTogetherMs;
  o.stop = [stopped] { return stopped->load(); };
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  Generator generator(
      std::move(session),
      {.max_running = r.max_concurrent,
       .max_waiting = o.max_waiting,
       .kv_tokens = r.kv_cache_tokens,
       .turn_timeout = std::chrono::milliseconds(static_cast<int64_t>(1e3 * o.request_timeout_s))});
  Endpoint endpoint(std::move(served), generator);
  HttpServerOptions options{.host = o.host,
                            .port = static_cast<uint16_t>(o.port),
                            .key_digest = Sha256Hex(key.text),
                            .open_paths = {"/healthz"},
                            .identity = identity,
                            .connections_max = kConnectionsMost,
                            .body_bytes_max = kBodyBytesMost,
                            .bodies_bytes_max = kBodiesBytesMost};
  options.refusal = [](int status, const std::string& why) { return ToResponse({status, why}); };
  options.where_key = "It is in " + key.file + " on the server's machine.";
  TP_ASSIGN_OR_RETURN(const auto server,
                      HttpServer::StartLater(options, [&endpoint](const HttpRequest& request,
                                                                  const std::shared_ptr<HttpReply>& reply) {
                        endpoint.Answer(request, reply);
                      }));
  const auto listed = tidepool::Listed(names, [](const std::string& name) { return name; });
  std::printf("%s of %s at %s/v1, until Ctrl-C; key: %s\n", listed.c_str(), dir.c_str(),
              server->Url().c_str(), key.file.c_str());
  std::fflush(stdout);
  const Status ended = AwaitEnd(ends, generator);
  EndAtNextSignal(ends);
  generator.Close("this server is ending");
  const auto patience = std::chrono::milliseconds(static_cast<int64_t>(1e3 * o.end_within_s));
  if (ended.ok() && !server->AwaitAnswers(patience)) generator.EndAll(Unavailable("this server is ending"));
  (void)server->AwaitAnswers(std::chrono::seconds(2));  // who does not take its answer by then gets none
  *stopped = true;
  generator.Stop();  // it answers through the server, which goes first
  if (ended.ok()) std::printf("ended\n");
  return ended;
}

}  // namespace

void AddServeCommand(CLI::App& app, CommandContext& context) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand(
      "serve", "An endpoint for programs that speak to OpenAI's: completions, chat, streams, tools");
  AddModelOptions(command, o.get());
  AddAdapterOption(command, o.get());
  command->add_option("--host", o->host, "Address to listen on; another than loopback needs a certificate");
  command->add_option("--port", o->port, "Default: 8000; 0: a free one");
  command->add_option("--name", o->name,
                      "Of the model, as requests say it; default: its run's or its folder's");
  command->add_option(
      "--key-file", o->key_file,
      "File of mode 0600 with the key that callers show, 64 hexadecimal digits; default: one is "
      "made");
  command->add_option("--tls-certificate", o->tls_certificate, "PEM, with its chain");
  command->add_option("--tls-key", o->tls_key, "PEM, a file of mode 0600");
  command->add_option("--max-running", o->job.rollout.max_concurrent, "Answers that are made at once")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--max-waiting", o->max_waiting, "Answers that may wait beside them; more: 429")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--kv-cache-tokens", o->job.rollout.kv_cache_tokens,
                      "Tokens that the KV cache holds; default: by --max-running, bounded by memory");
  command->add_option("--request-timeout", o->request_timeout_s, "Seconds from a request to its whole answer")
      ->check(CLI::Range(0.1, 1e6));
  command->add_option("--end-within", o->end_within_s, "Seconds that running requests have at Ctrl-C")
      ->check(CLI::Range(0.0, 1e6));
  AddDeviceOptions(command, o.get());
  command->footer("Example: tidepool serve --model models/smollm2-135m-instruct --port 8000");
  command->callback([o, &context] {
    if (const Status done = Serve(context, *o); !done.ok()) Fail(context, done, ModelExitCode(done));
  });
}

}  // namespace tidepool::workers
