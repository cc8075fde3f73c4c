// A grader or an environment of a real run that means ill: it has its role's token, and answers with other
// ids, twice, for others' samples, with numbers that are none, with a megabyte, with bytes that are no
// message, as another role, or never; and it comes again when it is thrown out. hostile_test.py starts it.
//
//   hostile_worker reward|environment RUN PLACE SEED
//
// What it did, a line each, on stdout. Ends when nobody answers at the run's address any more.

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/rng.h"
#include "core/storage/run_directory.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/certificates.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/rpc_status.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;

constexpr int kConnections = 300;  // of a flood: more than strangers may have (Listener::kStrangers)
constexpr int kAnswers = 12;       // of one life, in which it is only wrong about samples
constexpr auto kSilent = seconds(40);
constexpr double kAges = 1e9;  // seconds, of what nobody has asked for

class Hostile {
 public:
  Hostile(CallerRole role, const std::string& run, int64_t place, uint64_t seed)
      : role_(role), paths_(run), rng_(seed) {
    options_.control_file = paths_.control();
    options_.hello.place = place;
    options_.hello.kind =
        role == CallerRole::kReward ? scheduler::WorkerKind::kReward : scheduler::WorkerKind::kEnvironment;
    options_.hello.host = "hostile";
    options_.connect_timeout_s = 5;
  }

  int Run() {
    for (int64_t life = 0; Find(); ++life) {
      switch (life % 4) {
        case 0:
          Answers(life == 0 ? seconds(60) : seconds(2));
          break;
        case 1:
          Raw("bytes that are no message", {std::string(200, '\xa5')});
          break;
        case 2:
          Raw("a message that is cut short", {"\x03"});
          break;
        case 3:
          Raw("a message of 32 MiB", {std::string(size_t{32} << 20, '\0')});
          break;
      }
      Flood();
    }
    return 0;
  }

 private:
  static void Say(const std::string& what) {
    std::puts(what.c_str());
    std::fflush(stdout);
  }

  // False: nobody is there.
  bool Find() {
    const auto json = nlohmann::json::parse(std::ifstream(paths_.control()), nullptr, false);
    const auto credentials = ReadCredentials(paths_.security() + "/" + Name(role_) + ".token");
    if (!json.is_object() || !credentials.ok()) return false;
    options_.address = json["address"].get<std::string>();
    options_.hello.run_id = json["run_id"].get<std::string>();
    options_.credentials = *credentials;
    const int fd = Dial();
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  [[nodiscard]] int Dial() const {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<uint16_t>(std::stoi(options_.address.substr(options_.address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
    close(fd);
    return -1;
  }

  void Flood() {
    std::vector<int> open;
    for (int i = 0; i < kConnections; ++i) {
      const int fd = Dial();
      if (fd < 0) break;
      (void)!send(fd, "\x16\x03garbage", 9, MSG_NOSIGNAL);
      open.push_back(fd);
    }
    std::this_thread::sleep_for(milliseconds(200));
    for (const int fd : open) close(fd);
    Say("flood of " + std::to_string(open.size()) + " connections");
  }

  // A life with a session in order, and answers that are not. One that has gone silent lasts for longer than
  // an answer is waited for, so it is thrown out for that, unless nobody waits for the answer any more.
  void Answers(seconds at_most) {
    Mailbox<LinkEvent> inbox;
    const auto link =
        Link::Connect(options_, [&](std::vector<LinkEvent> events) { inbox.PutAll(std::move(events)); });
    if (!link.ok()) return Say("not let in: " + link.status().message());
    link_ = link->get();
    silent_ = false;
    until_ = system_clock::now() + at_most;
    for (bool over = false; !over && system_clock::now() < until_;) {
      link_->Send(up::Heartbeat{.op = "ill", .op_seq = ++beats_});
      for (LinkEvent& event : inbox.TakeAll(milliseconds(100))) {
        if (const auto* closed = std::get_if<LinkClosed>(&event)) {
          Say("thrown out: " + closed->why);
          over = true;
          break;
        }
        On(std::get<Command>(event));
      }
    }
    link_ = nullptr;
  }

  void On(Command& command) {
    if (silent_) return;
    if (std::holds_alternative<down::Attached>(command.body)) {
      link_->Begin(command.ctl_epoch);
      link_->Send(up::Offer{.last = true});
    } else if (const auto* grade = std::get_if<down::Grade>(&command.body)) {
      up::Graded verdict;
      verdict.tid = grade->tid;
      verdict.att = grade->att;
      verdict.reward = 1;
      seen_.push_back(grade->tid);
      Spoil(verdict);
    } else if (const auto* step = std::get_if<down::EnvStep>(&command.body)) {
      up::EnvStepped turn;
      turn.tid = step->tid;
      turn.att = step->att;
      turn.turn = step->turn;
      turn.observation = "SFH";
      seen_.push_back(step->tid);
      Spoil(turn);
    }
  }

  template <typename Answer>
  void Spoil(Answer answer) {
    const SampleId honest = answer.tid;
    switch (answers_++ % kAnswers) {
      case 0:
        answer.tid = {int64_t{1} << 40, 0, 0};
        answer.seconds = kAges;
        return Give("a sample that is not there", answer);
      case 1:
        answer.tid = {-1, -7, 1 << 30};
        answer.seconds = kAges;
        answer.outcome = GradeOutcome::kData;
        return Give("a sample of no number, as wrong data", answer);
      case 2:
        answer.tid = seen_[static_cast<size_t>(rng_.Below(static_cast<int64_t>(seen_.size())))];
        answer.tid.sample = static_cast<int32_t>(rng_.Below(8));
        return Give("another one's sample", answer);
      case 3:
        answer.att += 3;
        answer.seconds = kAges;
        return Give("an attempt that was never made", answer);
      case 4:
        Give("twice", answer);
        answer.seconds = kAges;
        return Give("twice", answer);
      case 5:
        answer.reward = std::numeric_limits<double>::quiet_NaN();
        return Give("a reward that is no number", answer);
      case 6:
        answer.outcome = GradeOutcome::kInfra;
        answer.why = std::string(1 << 20, '\n') + "level=error event=fault";
        return Give("a megabyte of lines as the reason", answer);
      case 7:
        answer.unread = true;
        return Give("what it could not read", answer);
      case 8:
        if constexpr (std::is_same_v<Answer, up::EnvStepped>) {
          answer.turn += 5;
          answer.history = 77;
          answer.logged = {int64_t{1} << 50, -5};
          answer.logged_tokens = -1;
        } else {
          answer.details["x"] = std::string(1 << 20, 'x');
        }
        return Give("more than was asked for", answer);
      case 9:
        // Nothing else in this life: what comes next would have it thrown out before the deadline that the
        // test waits for.
        silent_ = true;
        until_ = std::max(until_, system_clock::now() + kSilent);
        return Say("never: " + ToString(honest));
      case 10:
        answer.outcome = GradeOutcome::kInfra;
        answer.why = "it did not feel like it";
        return Give("a failure", answer);
      case 11:
        Say("as another role");
        return link_->Send(up::Released{});
      default:
        return;
    }
  }
  template <typename Answer>
  void Give(const std::string& what, const Answer& answer) {
    Say("answers with " + what);
    link_->Send(answer);
  }

  // A life that says Hello, and then what no session says.
  void Raw(const std::string& what, const std::vector<std::string>& messages) {
    grpc::ChannelArguments args;
    args.SetMaxSendMessageSize(-1);
    const auto channel =
        grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), args);
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + seconds(10));
    AddToken(&context, options_.credentials.token);
    const auto stream = v1::Control::NewStub(channel)->Attach(&context);
    v1::Frame frame;
    up::Hello hello = options_.hello;
    hello.process = rng_.Next();
    Pack(std::deque<FromWorker>{{0, 0, std::move(hello)}}, 0, kFrameBytes, &frame);
    stream->Write(frame);
    stream->Read(&frame);
    frame.clear_messages();
    frame.set_schema(WireSchema());
    for (const std::string& message : messages) frame.add_messages(message);
    stream->Write(frame);
    while (stream->Read(&frame)) {
    }
    Say("says " + what + ": " + stream->Finish().error_message());
  }

  const CallerRole role_;
  const storage::RunPaths paths_;
  Rng rng_;
  LinkOptions options_;
  Link* link_ = nullptr;
  bool silent_ = false;
  system_clock::time_point until_;  // the end of this life
  int64_t beats_ = 0, answers_ = 0;
  std::vector<SampleId> seen_;
};

}  // namespace
}  // namespace tidepool::workers

int main(int argc, char** argv) {
  using namespace tidepool;
  using namespace tidepool::workers;
  if (argc != 5) return 2;
  SetUpGrpc();
  const CallerRole role =
      std::string(argv[1]) == Name(CallerRole::kReward) ? CallerRole::kReward : CallerRole::kEnvironment;
  return Hostile(role, argv[2], std::atoll(argv[3]), static_cast<uint64_t>(std::atoll(argv[4]))).Run();
}
