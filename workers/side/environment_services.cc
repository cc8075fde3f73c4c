#include "workers/side/environment_services.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/child_call.h"
#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/base/thread_annotations.h"
#include "core/observe/log.h"
#include "core/text/unicode.h"
#include "proto/environment.grpc.pb.h"
#include "workers/net/bounded_text.h"
#include "workers/net/rpc_status.h"
#include "workers/side/guarded_process.h"
#include "workers/side/served_vectors.h"
#include "workers/side/service_stream.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using environments::Begun;
using environments::PlayLimit;
using environments::Told;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kServiceFirstWait{20}, kServiceLongestWait{1000};
// Starts in a row of a service that did not answer, or died before it had played anything.
constexpr int kMostStarts = 3;
// A service that did not answer a game in time gets new ones last for so long.
constexpr seconds kShunned{30};
// So many answers make up for a game that was not answered.
constexpr int64_t kAnswersForgive = 100;
// A stream that has ended has given its instance back after so long.
constexpr seconds kGivesBack{5};
constexpr int64_t kMostKeys = 256;  // of one object in a list of tools

// What a policy reads of {"messages", "tools"}.
std::string CharactersOf(const std::string& conversation) {
  const Json said = Json::parse(conversation);
  std::string out = said["tools"].is_null() ? "" : said["tools"].dump();
  for (const Json& message : said["messages"]) out += message["content"].get<std::string>();
  return out;
}

}  // namespace

std::string SpacesOf(int64_t observation_size, int64_t actions, bool continuous) {
  return "observations of " + std::to_string(observation_size) + " numbers and actions of " +
         std::to_string(actions) + (continuous ? " numbers" : " choices");
}

struct EnvironmentServices::Impl {
  // One service. Everything but its process is guarded by mu.
  struct Site {
    std::string address;
    std::shared_ptr<v1::Environment::Stub> stub;
    bool up = false;                          // new games may begin there
    bool doubted = false;                     // not up until it has described itself again
    bool asked = false;                       // Describe was answered, or not
    bool unusable = false;                    // it answers, and is no service of this job: cause says why
    int64_t life = 0;                         // counts the times that it was found
    int64_t open = 0, most = 0;               // games; 0: any number
    int64_t hung = 0, answers = 0;            // games that did not answer in this life, and answers since
    Clock::time_point shunned{}, full{};      // until then; since when it begins no game (zero: it does)
    bool played = false;                      // something, in this life
    std::string cause;                        // why it is not up
    std::unique_ptr<GuardedProcess> process;  // its keeper's
    std::jthread keeper;                      // waits: its waits are short, and its calls have deadlines
  };

  EnvironmentConfig config;
  std::string label;
  std::string token;  // that every call carries; empty: none
  Options options;
  mutable Mutex mu;
  Condition changed;
  std::vector<std::shared_ptr<Site>> sites;  // the list itself stays as it is
  std::optional<ServiceDescription> described TP_GUARDED_BY(mu);
  std::string failed TP_GUARDED_BY(mu);

  [[nodiscard]] std::string Where(const Site& site) const {
    if (config.command.empty()) return label + " at " + site.address;
    std::string words;
    for (const std::string& word : config.command) words += (words.empty() ? "" : " ") + word;
    return label + " (" + words + ")";
  }

  // --- the keeper's part ---

  void Keep(const std::shared_ptr<Site>& site, const std::stop_token& stop) {
    int failures = 0;
    milliseconds wait = kServiceFirstWait;
    while (!stop.stop_requested()) {
      Status found = Find(*site, stop);
      if (stop.stop_requested()) break;
      if (!found.ok()) {
        const bool lies = found.code() == StatusCode::kInvalidArgument;
        const bool none_left = Down(*site, found.message(), lies);
        if (!config.command.empty()) site->process.reset();
        if (none_left || (!config.command.empty() && ++failures >= kMostStarts))
          return Fail(Where(*site) + ": " + found.message());
        Rest(std::exchange(wait, std::min(2 * wait, kServiceLongestWait)), stop);
        continue;
      }
      wait = kServiceFirstWait;
      const std::string cause = WaitUntilLost(*site, stop);
      if (stop.stop_requested()) break;
      if (config.command.empty()) {
        // What does not answer on this connection may do so on another one.
        auto anew = Connect(site->address);
        const MutexLock lock(mu);
        site->stub = std::move(anew);
      }
      const bool lives = site->process != nullptr && !site->process->Ended();
      bool played = false;
      {
        const MutexLock lock(mu);
        played = site->played;
      }
      observe::Log(observe::LogLevel::kWarn, "environment_service_lost",
                   {{"service", Where(*site)}, {"why", cause}});
      failures = played ? 0 : failures + (lives ? 0 : 1);
      if (!config.command.empty() && failures >= kMostStarts) return Fail(Where(*site) + ": " + cause);
    }
    site->process.reset();
  }

  void Rest(milliseconds d, const std::stop_token& stop) {
    Mutex mine;
    Condition never;
    const MutexLock lock(mine);
    never.WaitFor(mine, stop, d);
  }

  // True: no service is left that could be used.
  bool Down(Site& site, const std::string& cause, bool unusable = false) {
    const MutexLock lock(mu);
    if (unusable && !site.unusable)
      observe::Log(observe::LogLevel::kWarn, "environment_service_unusable",
                   {{"service", Where(site)}, {"why", cause}});
    site.up = site.doubted = false;
    site.asked = true;
    site.unusable = unusable;
    site.cause = cause;
    changed.NotifyAll();
    return std::ranges::all_of(sites, [](const auto& s) { return s->unusable; });
  }
  void Fail(const std::string& why) {
    const MutexLock lock(mu);
    if (failed.empty()) failed = why;
    changed.NotifyAll();
  }

  // Starts it where that is to be done, and asks until it answers. kInvalidArgument: it answers, and cannot
  // be used.
  Status Find(Site& site, const std::stop_token& stop) {
    if (!config.command.empty() && (site.process == nullptr || site.process->Ended()))
      TP_RETURN_IF_ERROR(StartIt(site));
    const auto begun = Clock::now();
    const auto until = begun + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(config.start_timeout_s));
    std::string cause = "it does not listen at the address that it was given";
    for (milliseconds wait = kServiceFirstWait; !stop.stop_requested();
         wait = std::min(2 * wait, milliseconds(200))) {
      if (site.process != nullptr) {
        if (const auto ended = site.process->Ended()) return Unavailable("it " + *ended);
      }
      // A connection that fails makes gRPC wait before the next one, so it is not tried too early.
      if (site.process == nullptr || ::access((site.process->folder() + "/socket").c_str(), F_OK) == 0) {
        const auto answer = AskDescription(site);
        if (answer.ok()) return Take(site, *answer);
        cause = answer.status().message();
        const StatusCode code = answer.status().code();
        if (code == StatusCode::kInvalidArgument) return answer.status();
        if (code != StatusCode::kUnavailable && code != StatusCode::kDeadlineExceeded)
          return Status(StatusCode::kUnavailable, "Describe was answered with " + cause);
      }
      if (site.process == nullptr) return Unavailable(cause);
      if (Clock::now() > until)
        return DeadlineExceeded("it did not answer within " + SecondsTaken(Clock::now() - begun) +
                                " of its start (environment.start_timeout_s): " + cause);
      Rest(wait, stop);
    }
    return Unavailable(cause);
  }

  Status StartIt(Site& site) {
    site.process.reset();
    TP_ASSIGN_OR_RETURN(
        site.process,
        GuardedProcess::Start({.command = config.command,
                               .variables = {{"TIDEPOOL_ENVIRONMENT_ADDRESS", "unix:{folder}/socket"}},
                               .output = options.output}));
    const MutexLock lock(mu);
    site.address = "unix:" + site.process->folder() + "/socket";
    site.stub = Connect(site.address);
    return OkStatus();
  }

  static std::shared_ptr<v1::Environment::Stub> Connect(const std::string& address) {
    SetUpGrpc();
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetMaxReceiveMessageSize(kMostAnswerBytes);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A service that is started again has another address or the same; no connection is shared between lives.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::Environment::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
  }

  StatusOr<v1::Description> AskDescription(Site& site) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDescribeTakes);
    if (!token.empty()) AddToken(&context, token);
    v1::Description reply;
    const grpc::Status status = site.stub->Describe(&context, v1::DescribeRequest(), &reply);
    if (!status.ok()) {
      const Status plain = FromService(status);
      if (plain.code() == StatusCode::kUnimplemented) return InvalidArgument(kNoEnvironment);
      return plain;
    }
    return reply;
  }

  // What it says of itself becomes what is known.
  Status Take(Site& site, const v1::Description& d) {
    const auto wrong = [](const std::string& what) { return InvalidArgument("describes itself " + what); };
    if (d.kind() != (options.vector ? v1::Description::VECTOR : v1::Description::TEXT))
      return wrong("as of kind " + v1::Description::Kind_Name(d.kind()) +
                   (options.vector
                        ? "; model.policy plays environments of kind VECTOR, a language model others"
                        : "; a language model plays environments of kind TEXT, model.policy others"));
    // As policy::CheckSpec has them.
    if (options.vector && (d.observation_size() < 1 || d.observation_size() > 65536))
      return wrong("with observation_size " + std::to_string(d.observation_size()) +
                   "; expected 1 to 65536 numbers");
    if (options.vector && (d.actions() < 1 || d.actions() > 4096))
      return wrong("with actions " + std::to_string(d.actions()) + "; expected 1 to 4096 choices or numbers");
    if (options.vector && !std::isfinite(d.solved_return()))
      return wrong("with a solved_return that is no finite number");
    if (!std::isfinite(d.action_low()) || !std::isfinite(d.action_high()) || d.action_low() > d.action_high())
      return wrong("with action_low " + std::to_string(d.action_low()) + " and action_high " +
                   std::to_string(d.action_high()) + "; expected finite numbers in this order");
    if (d.loss() != v1::Description::REPLAY && d.loss() != v1::Description::PINNED)
      return wrong("without a loss; expected REPLAY or PINNED");
    if (d.max_turns() <= 0)
      return wrong("with max_turns " + std::to_string(d.max_turns()) + "; expected 1 or more");
    if (d.instances() < 0)
      return wrong("with instances " + std::to_string(d.instances()) + "; expected 0 or more");
    if (options.vector && d.instances() > 0)
      return wrong("with instances " + std::to_string(d.instances()) +
                   "; of a control task there are as many as the job asks for: leave it out");
    ServiceDescription now{.name = Bounded(d.name(), 100),
                           .replays = d.loss() == v1::Description::REPLAY,
                           .max_turns = d.max_turns(),
                           .instances = d.instances(),
                           .characters = d.characters(),
                           .conversation = d.conversation(),
                           .observation_size = d.observation_size(),
                           .actions = d.actions(),
                           .continuous = d.continuous(),
                           .action_low = d.action_low(),
                           .action_high = d.action_high(),
                           .solved_return = d.solved_return()};
    // The policy and the record of its run are of one size.
    if (options.vector && config.observation_size > 0 &&
        (now.observation_size != config.observation_size || now.actions != config.actions ||
         now.continuous != config.continuous)) {
      return wrong("with " + SpacesOf(now.observation_size, now.actions, now.continuous) +
                   "; the job's policy is for " +
                   SpacesOf(config.observation_size, config.actions, config.continuous));
    }
    const MutexLock lock(mu);
    if (described && *described != now) {
      const auto words = [](const ServiceDescription& s) {
        return s.name + ", " + (s.replays ? "replay" : "pinned") + ", max_turns " +
               std::to_string(s.max_turns) + ", instances " + std::to_string(s.instances) + ", " +
               SpacesOf(s.observation_size, s.actions, s.continuous);
      };
      return wrong("otherwise than before: " + words(now) + "; it was " + words(*described));
    }
    described = std::move(now);
    site.most = d.instances();
    site.up = site.asked = true;
    site.unusable = false;
    site.cause.clear();
    changed.NotifyAll();
    if (std::exchange(site.doubted, false)) return OkStatus();
    site.played = false;
    site.hung = site.answers = 0;
    site.full = {};
    ++site.life;
    observe::Log(observe::LogLevel::kInfo, "environment_service",
                 {{"service", Where(site)}, {"name", described->name}, {"replays", described->replays}});
    return OkStatus();
  }

  // Too many of its instances are lost in games that did not answer.
  [[nodiscard]] bool Spent(const Site& site) const TP_REQUIRES(mu) {
    if (options.vector && site.hung > 0) return true;  // all its instances stood still with it
    const int64_t most = site.most > 0 ? std::min(config.instances, site.most) : config.instances;
    return (site.hung > 0 && 4 * site.hung >= most) ||
           (site.open == 0 && site.full != Clock::time_point() && Clock::now() - site.full > kGivesBack);
  }

  // Why it is not up any more. A game that was lost, or not answered, may be alone in that: what describes
  // itself again goes on.
  std::string WaitUntilLost(Site& site, const std::stop_token& stop) {
    // A stream that breaks is seen at once, and the end of the process that broke it a moment later.
    constexpr milliseconds kMoment{300};
    const auto over = [&](std::string cause) {
      (void)Down(site, cause);
      return cause;
    };
    while (!stop.stop_requested()) {
      bool doubted = false, spent = false;
      {
        const MutexLock lock(mu);
        changed.WaitFor(mu, milliseconds(50), [&]() TP_REQUIRES(mu) { return site.doubted; });
        doubted = site.doubted;
        spent = site.process != nullptr && Spent(site);
      }
      if (site.process != nullptr) {
        if (const auto ended = site.process->Ended()) return over("it " + *ended);
        if (spent) {
          site.process.reset();
          return over("it was ended, because too many of its episodes did not answer");
        }
      }
      if (!doubted) continue;
      const auto answer = AskDescription(site);
      Status now = answer.ok() ? Take(site, *answer) : answer.status();
      if (now.ok()) continue;
      for (const auto since = Clock::now(); site.process != nullptr && Clock::now() - since < kMoment;) {
        if (const auto ended = site.process->Ended()) return over("it " + *ended);
        Rest(milliseconds(10), stop);
      }
      if (site.process != nullptr && now.code() == StatusCode::kDeadlineExceeded) {
        site.process.reset();
        return over("it was ended, because it answered neither an episode nor Describe");
      }
      return over(now.message());
    }
    return {};
  }

  // --- the players' part ---

  class Game;
  class Rows;

  // The site that has the fewest games of those that are up, one that has just not answered last. Null: `why`
  // there is none now.
  std::shared_ptr<Site> Pick(int64_t instances, std::string* why) TP_REQUIRES(mu) {
    const auto now = Clock::now();
    std::shared_ptr<Site> best;
    for (const auto& site : sites) {
      if (!site->up) {
        if (!site->cause.empty()) *why = site->cause;
        continue;
      }
      if (site->most > 0 && site->open + instances > site->most) {
        *why = "all of its " + std::to_string(site->most) + " instances are in use";
        continue;
      }
      const auto order = [now](const Site& s) { return std::pair(now < s.shunned, s.open); };
      if (best == nullptr || order(*site) < order(*best)) best = site;
    }
    return best;
  }

  // Services are there, and no game may begin in any of them now.
  [[nodiscard]] bool Full() const TP_REQUIRES(mu) {
    return std::ranges::any_of(sites, [](const auto& site) { return site->up; });
  }

  struct Found {
    std::shared_ptr<Site> site;
    std::shared_ptr<v1::Environment::Stub> stub;
    int64_t life = 0;
  };
  // A site with room for so many instances, which are counted as open there. Waits for one.
  StatusOr<Found> Take(int64_t instances, const PlayLimit& limit) TP_EXCLUDES(mu) {
    const auto since = Clock::now();
    const MutexLock lock(mu);
    std::string why;
    std::shared_ptr<Site> site;
    while (failed.empty() && (site = Pick(instances, &why)) == nullptr) {
      const auto left = limit.deadline - Clock::now();
      if (!limit.waits_for_room && Full()) return ResourceExhausted(label + ": " + why);
      if (left <= Clock::duration(0) || limit.stop.stop_requested()) return NoneInTime(since, why);
      changed.WaitFor(mu, std::min<Clock::duration>(left, kLooksEvery));
    }
    if (site == nullptr) return Unavailable(failed);
    site->open += instances;
    return Found{site, site->stub, site->life};
  }

  Status NoneInTime(Clock::time_point since, const std::string& why) const TP_REQUIRES(mu) {
    if (!failed.empty()) return Unavailable(failed);
    return Unavailable(label + ": no service to play in for " + SecondsTaken(Clock::now() - since) + ": " +
                       (why.empty() ? "it has not answered yet" : why));
  }

  void Lost(Site& site, int64_t life, const Status& why) {
    const MutexLock lock(mu);
    if (site.life != life) return;
    if (why.code() == StatusCode::kDeadlineExceeded) {
      ++site.hung;
      site.shunned = Clock::now() + kShunned;
    } else if (why.code() == StatusCode::kResourceExhausted) {
      if (site.full == Clock::time_point()) site.full = Clock::now();
      return;
    } else if (why.code() != StatusCode::kUnavailable) {
      return;
    }
    if (!site.up) return;
    site.up = false;
    site.doubted = true;
    site.cause = why.message();
    changed.NotifyAll();
  }
  void Answered(Site& site, int64_t life, bool step) TP_EXCLUDES(mu) {
    const MutexLock lock(mu);
    if (site.life != life) return;
    site.played = site.played || step;
    site.full = {};
    if (site.hung == 0 || ++site.answers < kAnswersForgive) return;
    --site.hung;
    site.answers = 0;
  }
};

// An open stream, and its place among the games of a site.
class EnvironmentServices::Impl::Game final : public environments::Playing {
 public:
  Game(Impl& of, std::shared_ptr<Site> site, int64_t life, v1::Environment::Stub& stub, bool conversation)
      : of_(of),
        site_(std::move(site)),
        life_(life),
        conversation_(conversation),
        stream_(Stream::Open([&](auto* context, auto* reactor) { stub.async()->Play(context, reactor); },
                             of.token)) {}
  ~Game() override {
    stream_->Close();
    const MutexLock lock(of_.mu);
    --site_->open;
    of_.changed.NotifyAll();
  }
  Game(const Game&) = delete;
  Game& operator=(const Game&) = delete;

  StatusOr<Told> Reset(int64_t seed, bool held_out, const PlayLimit& limit) {
    v1::PlayStep request;
    request.set_seed(seed);
    request.set_held_out(held_out);
    return Ask(std::move(request), "reset", limit);
  }
  StatusOr<Told> Step(const std::string& action, const PlayLimit& limit) override {
    v1::PlayStep request;
    request.set_step(++steps_);
    request.set_action(action);
    if (conversation_) {
      text::ToolTurn turn = text::ReadToolTurn(of_.options.tools, action);
      request.set_words(std::move(turn.text));
      request.set_broken_call(std::move(turn.broken));
      for (text::ToolCall& call : turn.calls) {
        v1::ToolCall& said = *request.add_calls();
        said.set_name(std::move(call.name));
        said.set_arguments(std::move(call.arguments));
      }
    }
    return Ask(std::move(request), "step " + std::to_string(steps_), limit);
  }

 private:
  using Stream = ServiceStream<v1::PlayStep, v1::Played>;

  StatusOr<Told> Ask(v1::PlayStep request, const std::string& what, const PlayLimit& limit) {
    const auto begun = Clock::now();
    const Status sent = stream_->Ask(std::move(request), limit);
    const StatusOr<v1::Played> answer = sent.ok() ? stream_->Answer(limit) : StatusOr<v1::Played>(sent);
    const std::string where = of_.Where(*site_) + ", " + what + ": ";
    if (!answer.ok()) {
      const Status& why = answer.status();
      of_.Lost(*site_, life_, why);
      if (why.code() == StatusCode::kDeadlineExceeded)
        return DeadlineExceeded(where + "no answer within " + SecondsTaken(Clock::now() - begun));
      return Status(why.code(), where + why.message());
    }
    of_.Answered(*site_, life_, steps_ > 0);
    const auto& said = *answer;
    if (conversation_) return Messages(said, where);
    if (text::FindInvalidUtf8(said.observation()) != std::string::npos)
      return DataLoss(where + "its observation is no UTF-8 (byte " +
                      std::to_string(text::FindInvalidUtf8(said.observation())) + ")");
    Told told{.step = {.observation = said.observation(),
                       .reward = said.reward(),
                       .done = said.terminated() || said.truncated(),
                       .solved = said.solved()}};
    told.state = Hash64(said.state().empty() ? said.observation() : said.state());
    return told;
  }

  // protobuf has seen to it that all of it is UTF-8.
  StatusOr<Told> Messages(const v1::Played& said, const std::string& where) {
    if (!said.observation().empty())
      return DataLoss(where + "it has an observation, and its description says that it says messages");
    if (!said.tools().empty()) {
      if (!JsonTextProblem(said.tools()).empty() || !JsonKeysWithin(said.tools(), kMostKeys))
        return DataLoss(where + "its tools are no JSON list, or an object in it has more than " +
                        std::to_string(kMostKeys) + " keys");
      tools_ = Json::parse(said.tools(), nullptr, /*allow_exceptions=*/false);
      if (!tools_.is_array()) return DataLoss(where + "its tools are no JSON list");
    }
    Json messages = Json::array();
    for (const v1::ChatMessage& m : said.messages()) {
      if (m.role() != "system" && m.role() != "user" && m.role() != "tool")
        return DataLoss(where + "a message has the role " + observe::LogValue(m.role(), 40) +
                        "; expected system, user or tool");
      Json message = {{"role", m.role()}, {"content", m.content()}};
      if (!m.name().empty()) message["name"] = m.name();
      messages.push_back(std::move(message));
    }
    Told told{.step = {.reward = said.reward(),
                       .done = said.terminated() || said.truncated(),
                       .solved = said.solved(),
                       .conversation = true}};
    if (!messages.empty())
      told.step.observation = Json{{"messages", std::move(messages)}, {"tools", tools_}}.dump();
    told.state = Hash64(said.state().empty() ? told.step.observation : said.state());
    return told;
  }

  Impl& of_;
  const std::shared_ptr<Site> site_;
  const int64_t life_;
  const bool conversation_;
  Json tools_;  // null: of none
  const std::shared_ptr<Stream> stream_;
  int64_t steps_ = 0;
};

// The instances of a stream, and their place at a site.
class EnvironmentServices::Impl::Rows final : public VectorStream {
 public:
  Rows(Impl& of, std::shared_ptr<Site> site, int64_t life, v1::Environment::Stub& stub, int64_t instances)
      : of_(of),
        site_(std::move(site)),
        life_(life),
        instances_(instances),
        stream_(Stream::Open(
            [&](auto* context, auto* reactor) { stub.async()->PlayVector(context, reactor); }, of.token)) {}
  ~Rows() override {
    stream_->Close();
    const MutexLock lock(of_.mu);
    site_->open -= instances_;
    of_.changed.NotifyAll();
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  Status Ask(VectorMove move, const PlayLimit& limit) override {
    v1::VectorStep request;
    request.set_step(steps_++);
    if (request.step() == 0) request.set_instances(instances_);
    request.set_reset(move.reset);
    request.set_which(std::move(move.which));
    request.set_seeds(std::move(move.seeds));
    request.set_actions(std::move(move.actions));
    asked_ = Clock::now();
    return Told(stream_->Ask(std::move(request), limit));
  }
  StatusOr<VectorMoved> Answer(const PlayLimit& limit) override {
    StatusOr<v1::VectorPlayed> answer = stream_->Answer(limit);
    if (!answer.ok()) return Told(answer.status());
    of_.Answered(*site_, life_, steps_ > 1);
    return VectorMoved{.observations = std::move(*answer->mutable_observations()),
                       .rewards = std::move(*answer->mutable_rewards()),
                       .flags = std::move(*answer->mutable_flags()),
                       .final_observations = std::move(*answer->mutable_final_observations())};
  }
  [[nodiscard]] std::string where() const override { return of_.Where(*site_); }

 private:
  using Stream = ServiceStream<v1::VectorStep, v1::VectorPlayed>;

  Status Told(const Status& came) {
    if (came.ok()) return came;
    of_.Lost(*site_, life_, came);
    if (came.code() == StatusCode::kDeadlineExceeded)
      return DeadlineExceeded(where() + ": no answer within " + SecondsTaken(Clock::now() - asked_));
    return Status(came.code(), where() + ": " + came.message());
  }

  Impl& of_;
  const std::shared_ptr<Site> site_;
  const int64_t life_, instances_;
  const std::shared_ptr<Stream> stream_;
  int64_t steps_ = 0;
  Clock::time_point asked_{};
};

EnvironmentServices::EnvironmentServices(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<EnvironmentServices> EnvironmentServices::Start(const EnvironmentConfig& config,
                                                                const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->label = "environment " + config.name;
  impl->options = options;
  // Not a key, because a config is written into the run's folder. What is started inherits it.
  if (const char* token = std::getenv("TIDEPOOL_ENVIRONMENT_TOKEN")) impl->token = token;
  const size_t started = options.vector ? static_cast<size_t>(config.processes) : 1;
  const size_t n = config.command.empty() ? config.addresses.size() : started;
  for (size_t i = 0; i < n; ++i) {
    auto site = std::make_shared<Impl::Site>();
    if (config.command.empty()) {
      site->address = config.addresses[i];
      site->stub = Impl::Connect(site->address);
    }
    impl->sites.push_back(std::move(site));
  }
  Impl* of = impl.get();
  std::shared_ptr<EnvironmentServices> services(new EnvironmentServices(std::move(impl)));
  for (const auto& site : of->sites) {
    site->keeper = std::jthread([of, site](const std::stop_token& stop) { of->Keep(site, stop); });
  }
  return services;
}

EnvironmentServices::~EnvironmentServices() {
  for (const auto& site : impl_->sites) site->keeper.request_stop();
  for (const auto& site : impl_->sites) site->keeper = {};
}

StatusOr<ServiceDescription> EnvironmentServices::Describe(const PlayLimit& limit) {
  const auto since = Clock::now();
  const MutexLock lock(impl_->mu);
  for (;;) {
    if (!impl_->failed.empty()) return Unavailable(impl_->failed);
    if (impl_->described) return *impl_->described;
    const auto left = limit.deadline - Clock::now();
    if (left <= Clock::duration(0) || limit.stop.stop_requested()) {
      std::string why;
      (void)impl_->Pick(1, &why);
      return impl_->NoneInTime(since, why);
    }
    impl_->changed.WaitFor(impl_->mu, std::min<Clock::duration>(left, kLooksEvery));
  }
}

StatusOr<Begun> EnvironmentServices::Begin(int64_t seed, bool held_out, int64_t replay,
                                           const PlayLimit& limit) {
  TP_ASSIGN_OR_RETURN(const ServiceDescription described, Describe(limit));
  if (replay > 0 && !described.replays)
    return Aborted(
        impl_->label + ": the instance that played the " + std::to_string(replay) +
        " turns so far is lost, and the environment says that they cannot be played again (pinned)");
  milliseconds busy = kServiceFirstWait;
  for (;;) {
    TP_ASSIGN_OR_RETURN(auto found, impl_->Take(1, limit));
    auto& [site, stub, life] = found;
    auto game = std::make_unique<Impl::Game>(*impl_, site, life, *stub, described.conversation);
    StatusOr<Told> first = game->Reset(seed, held_out, limit);
    if (first.ok()) return Begun{std::move(game), *std::move(first)};
    const bool again = first.status().code() == StatusCode::kUnavailable ||
                       (first.status().code() == StatusCode::kResourceExhausted && limit.waits_for_room);
    if (!again || Clock::now() >= limit.deadline || limit.stop.stop_requested()) return first.status();
    game.reset();
    impl_->Rest(std::exchange(busy, std::min(2 * busy, kServiceLongestWait)), limit.stop);
  }
}

StatusOr<std::unique_ptr<VectorStream>> EnvironmentServices::BeginVector(int64_t instances,
                                                                         const PlayLimit& limit) {
  TP_ASSIGN_OR_RETURN(auto found, impl_->Take(instances, limit));
  return std::unique_ptr<VectorStream>(
      std::make_unique<Impl::Rows>(*impl_, found.site, found.life, *found.stub, instances));
}

int64_t EnvironmentServices::sites() const { return static_cast<int64_t>(impl_->sites.size()); }

bool EnvironmentServices::replays() const {
  const MutexLock lock(impl_->mu);
  return impl_->described && impl_->described->replays;
}

int64_t EnvironmentServices::max_turns() const {
  const MutexLock lock(impl_->mu);
  return impl_->described ? impl_->described->max_turns : INT64_MAX;
}

std::string EnvironmentServices::unusable(const PlayLimit& limit) const {
  const MutexLock lock(impl_->mu);
  for (;;) {
    for (const auto& site : impl_->sites) {
      if (site->unusable) return impl_->Where(*site) + ": " + site->cause;
    }
    const auto left = limit.deadline - Clock::now();
    const bool all = std::ranges::all_of(impl_->sites, [](const auto& site) { return site->asked; });
    if (all || left <= Clock::duration(0) || limit.stop.stop_requested()) return {};
    impl_->changed.WaitFor(impl_->mu, std::min<Clock::duration>(left, kLooksEvery));
  }
}

std::string EnvironmentServices::failed() const {
  const MutexLock lock(impl_->mu);
  return impl_->failed;
}

namespace {

using Seconds = std::chrono::duration<double>;
// The limits inside are kept there.
constexpr Seconds kMore(30);

PlayLimit WithinSeconds(double s) {
  return PlayLimit{.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(s))};
}

// The first words of a game of each kind.
StatusOr<std::string> TryWords(const JobConfig& config, const std::shared_ptr<EnvironmentServices>& services,
                               const ChildNote& note) {
  const EnvironmentConfig& e = *config.environment();
  const std::string label = "environment " + e.name;
  TP_ASSIGN_OR_RETURN(const auto source, environments::EpisodeSource::Create(config, services));
  std::string said;
  for (const int32_t kind : {SampleId::kRowSample, SampleId::kEvalSample}) {
    if (kind == SampleId::kEvalSample && e.held_out == 0) continue;
    const SampleId tid{0, 0, kind};
    std::array<std::string, 2> first;
    bool begins_with_messages = false;
    for (std::string& words : first) {
      note(label + ", the reset of " + source.NameOf(tid), Seconds(e.reset_timeout_s) + kMore);
      TP_ASSIGN_OR_RETURN(const auto begun, source.Begin(tid, 0, WithinSeconds(e.reset_timeout_s)));
      words = begun.first.step.observation;
      begins_with_messages = begun.first.step.conversation;
      if (words.empty()) return InvalidArgument(label + ": Reset gave no text for the policy to read");
    }
    if (first[0] != first[1])
      return InvalidArgument(label + ": two resets with the same seed say different things first (" +
                             observe::LogValue(first[0], 100) + " and " + observe::LogValue(first[1], 100) +
                             "); the first observation has to follow from the seed alone, for all samples "
                             "of a group answer it");
    said += begins_with_messages ? CharactersOf(first[0]) : first[0];
  }
  return said;
}

// Two instances of one seed begin alike, and a few steps are taken. That they are played again is up to the
// host that plays them.
Status TryRows(JobConfig config, const std::shared_ptr<EnvironmentServices>& services,
               const ServiceDescription& described, const ChildNote& note) {
  constexpr int64_t kSteps = 3;
  EnvironmentConfig& e = std::get<RlJob>(config.job).environment;
  const std::string label = "environment " + e.name;
  e.observation_size = described.observation_size;
  e.actions = described.actions;
  e.continuous = described.continuous;
  e.max_episode_steps = described.max_turns;
  e.max_retries = 0;
  ServedHost host(config, services, std::make_shared<KeptInstances>(0));
  note(label + ", a reset of two instances", Seconds(e.start_timeout_s + e.reset_timeout_s) + kMore);
  TP_ASSIGN_OR_RETURN(const std::vector<float> first, host.Open(1, {{.index = 0}, {.index = 0}}));
  const auto half = static_cast<std::ptrdiff_t>(first.size() / 2);
  if (!std::equal(first.begin(), first.begin() + half, first.begin() + half))
    return InvalidArgument(label +
                           ": two instances with the same seed begin with different observations; the "
                           "first one has to follow from the seed alone");
  const auto numbers = static_cast<size_t>(2 * (e.continuous ? e.actions : 1));
  for (int64_t t = 0; t < kSteps; ++t) {
    note(label + ", step " + std::to_string(t + 1) + " of two instances",
         Seconds(e.start_timeout_s + e.reset_timeout_s + e.step_timeout_s) + kMore);
    TP_ASSIGN_OR_RETURN(const auto moved,
                        host.Step({{.session = 1, .actions = std::vector<float>(numbers)}}));
    TP_RETURN_IF_ERROR(moved.front().status);
  }
  return OkStatus();
}

// What comes back of a child begins with one of these.
constexpr char kWrong = '!', kTried = '=';

}  // namespace

StatusOr<config::ServiceSays> TryEnvironmentService(const JobConfig& config) {
  const EnvironmentConfig& e = *config.environment();
  const bool vector = config.model.is_policy();
  const auto played = InChild([&](const ChildNote& note) -> std::string {
    const std::string label = "environment " + e.name;
    note(label + ", its start", kMostStarts * (Seconds(e.start_timeout_s) + kMore));
    const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    const auto services = EnvironmentServices::Start(e, {.output = nothing, .vector = vector});
    // Addresses are there already.
    const auto described = services->Describe(WithinSeconds(
        e.command.empty() ? std::min(e.start_timeout_s, 10.0) : kMostStarts * (e.start_timeout_s + 10)));
    if (!described.ok()) return kWrong + described.status().message();
    if (const std::string why = services->unusable(WithinSeconds(std::min(e.start_timeout_s, 10.0)));
        !why.empty())
      return kWrong + why;
    const nlohmann::json spaces = {{"observation_size", described->observation_size},
                                   {"actions", described->actions},
                                   {"continuous", described->continuous},
                                   {"action_low", described->action_low},
                                   {"action_high", described->action_high},
                                   {"max_episode_steps", described->max_turns},
                                   {"solved_return", described->solved_return}};
    if (vector) {
      const Status tried = TryRows(config, services, *described, note);
      return tried.ok() ? kTried + spaces.dump() : kWrong + tried.message();
    }
    const auto said = TryWords(config, services, note);
    return said.ok() ? kTried + described->characters + *said : kWrong + said.status().message();
  });
  if (!played.ok()) return played.status();
  if (played->front() == kWrong) return InvalidArgument(played->substr(1));
  if (!vector) return config::ServiceSays{.characters = played->substr(1)};
  const auto spaces = nlohmann::json::parse(played->substr(1));
  return config::ServiceSays{.characters = {},
                             .observation_size = spaces.at("observation_size"),
                             .actions = spaces.at("actions"),
                             .max_episode_steps = spaces.at("max_episode_steps"),
                             .continuous = spaces.at("continuous"),
                             .action_low = spaces.at("action_low"),
                             .action_high = spaces.at("action_high"),
                             .solved_return = spaces.at("solved_return")};
}

}  // namespace tidepool::workers
