// Every method of every service in proto/ x everybody who may not call it: without a certificate, with one of
// another authority, of another role, of another place, of a life of the controller that is over, or expired.
// All are refused, and nothing comes of it. The methods are read from the files themselves: one without a row
// in the table below fails, and those of a service that is known are called without code for them.
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/base/thread_annotations.h"
#include "proto/control.pb.h"
#include "workers/controller/open_lease.h"
#include "workers/controller/open_meeting.h"
#include "workers/data/weights_service.h"
#include "workers/net/hub.h"
#include "workers/net/join_service.h"
#include "workers/net/link.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"
#include "workers/net/wire.h"
#include "workers/net/x509.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using std::chrono::system_clock;

constexpr int64_t kEpoch = 3;
constexpr Incarnation kReader{5};  // trains rank 0 of the open lease

// Who serves a method, and to whom.
enum class Door {
  kController,  // shows its certificate and asks for one, and for the token of its role
  kDevice,      // the same, of a device worker
  kNewcomers,   // shows a certificate and asks for none, and for a join token
  kLoopback,    // on loopback alone (across_keys.cc refuses all else), to who has the server's token
  kElsewhere,   // we are the caller, and who serves is somebody else's program
};
struct Row {
  Door door;
  std::set<CallerRole> roles;
};
const std::map<std::string, Row> kRows = {
    {"tidepool.v1.Control.Attach",
     {Door::kController, {CallerRole::kDevice, CallerRole::kReward, CallerRole::kEnvironment}}},
    {"tidepool.v1.Control.FetchRows", {Door::kController, {CallerRole::kDevice}}},
    {"tidepool.v1.Rows.Read", {Door::kController, {CallerRole::kDevice}}},
    {"tidepool.v1.Control.Meet", {Door::kController, {CallerRole::kDevice}}},
    {"tidepool.v1.Control.Renew",
     {Door::kController, {CallerRole::kDevice, CallerRole::kReward, CallerRole::kEnvironment}}},
    {"tidepool.v1.Weights.Fetch", {Door::kDevice, {CallerRole::kDevice}}},
    {"tidepool.v1.Newcomers.Join", {Door::kNewcomers, {}}},
    {"tidepool.v1.VectorEnvironments.Play", {Door::kLoopback, {}}},
    {"tidepool.v1.Environment.Describe", {Door::kElsewhere, {}}},
    {"tidepool.v1.Environment.Play", {Door::kElsewhere, {}}},
    {"tidepool.v1.Environment.PlayVector", {Door::kElsewhere, {}}},
    {"tidepool.v1.Reward.Score", {Door::kElsewhere, {}}},
    {"tidepool.v1.Reward.ScoreBatch", {Door::kElsewhere, {}}},
};

std::vector<std::string> AllMethods() {
  google::protobuf::FileDescriptorSet set;
  std::ifstream in(TIDEPOOL_ALL_PROTO, std::ios::binary);
  EXPECT_TRUE(set.ParseFromIstream(&in)) << TIDEPOOL_ALL_PROTO;
  std::vector<std::string> names;
  for (const auto& file : set.file()) {
    for (const auto& service : file.service()) {
      for (const auto& method : service.method())
        names.push_back(file.package() + "." + service.name() + "." + method.name());
    }
  }
  EXPECT_EQ(names.size(), kRows.size()) << "a method that is gone has a row";
  return names;
}

struct Caller {
  std::optional<Identity> identity = std::nullopt;
  std::string token = {};
  std::string bytes = {};  // of its first message
};
struct Answer {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string bytes = {};  // of the first message
  bool said = false;       // there was one, perhaps empty
};

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// Any method, whatever its messages: one goes, and what comes first is taken.
Answer CallAny(const std::string& address, const std::string& method, const std::string& server_role,
               const Caller& caller) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  const auto credentials = ClientSide(caller.identity, server_role, &args);
  grpc::GenericStub stub(grpc::CreateCustomChannel(address, credentials, args));
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + seconds(60));
  if (!caller.token.empty()) AddToken(&context, caller.token);
  grpc::CompletionQueue queue;
  const size_t dot = method.rfind('.');
  const auto call =
      stub.PrepareCall(&context, "/" + method.substr(0, dot) + "/" + method.substr(dot + 1), &queue);
  const auto step = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.AsyncNext(&tag, &ok, system_clock::now() + seconds(90)) ==
               grpc::CompletionQueue::GOT_EVENT &&
           ok;
  };
  Answer answer;
  grpc::Slice slice(caller.bytes);
  grpc::ByteBuffer out(&slice, 1), in;
  call->StartCall(nullptr);
  bool good = step();
  if (good) {
    call->Write(out, nullptr);
    good = step();
  }
  if (good) {
    call->Read(&in, nullptr);
    if (step()) {
      answer.bytes = BytesOf(in);
      answer.said = true;
      context.TryCancel();  // of a stream that would go on
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  step();
  queue.Shutdown();
  answer.code = status.error_code();
  // A stream that had something to say is one that was let in.
  if (answer.said && answer.code == grpc::StatusCode::CANCELLED) answer.code = grpc::StatusCode::OK;
  return answer;
}

// An authority whose key the test has, with files as a job has them.
struct Job {
  explicit Job(const std::string& name) : dir(testing::TempDir() + "/matrix_" + name) {
    fs::remove_all(dir);
    fs::create_directories(dir);
    authority = *x509::IssueAuthority(name, 3600);
    Write("authority.crt", x509::Pem(authority.certificate.get()));
    for (const CallerRole role : AllOf<CallerRole>()) WriteLeaf(Name(role));
    WriteLeaf(kControllerRole);
  }
  ~Job() { fs::remove_all(dir); }
  void Write(const std::string& file, const std::string& text) const {
    ASSERT_TRUE(WriteSecretFile(dir + "/" + file, text).ok());
  }
  void WriteLeaf(const std::string& role) const {
    const Identity made = Of({CertifiedName(role), kPagesName}, 3600);
    Write(role + ".crt", made.certificate);
    Write(role + ".key", made.key);
  }
  [[nodiscard]] Identity Of(const std::vector<std::string>& names, int64_t lifetime) const {
    const auto leaf = *x509::Issue(authority, "run-a", lifetime, names);
    return {x509::Pem(authority.certificate.get()), x509::Pem(leaf.certificate.get()),
            x509::Pem(leaf.key.get())};
  }
  [[nodiscard]] Identity Of(const std::string& role) const {
    return **ReadIdentity(dir + "/" + role + ".token");
  }
  std::string dir;
  x509::Issued authority;
};

class SecurityMatrixTest : public testing::Test {
 protected:
  SecurityMatrixTest() : job_("run-a"), tokens_(*JobTokens::Random()) {
    auto rows = std::make_shared<const std::vector<BatchRow>>();
    lease_.Open(1, StepNumber{1}, {{kReader, rows}});
    meeting_.Admit("3-1", kReader);
    HubOptions options;
    options.run_id = "run-a";
    options.identity = job_.Of(kControllerRole);
    auto hub = Hub::Start(
        options, tokens_,
        [this](HubEvent e) {
          const MutexLock lock(mu_);
          for (const Attachments::Event& event : attachments_->On(std::move(e), Now())) {
            if (std::holds_alternative<Attachments::Superseded>(event)) ADD_FAILURE() << "superseded";
          }
        },
        [this](int64_t lease, StepNumber step, Incarnation reader, int64_t rank) {
          return lease_.Read(lease, step, reader, rank);
        },
        [this](const std::string& meeting, Incarnation asker) { return meeting_.At(meeting, asker); });
    EXPECT_TRUE(hub.ok()) << hub.status().ToString();
    hub_ = std::move(*hub);
    AttachmentOptions attachments;
    attachments.ctl_epoch = kEpoch;
    attachments.device_places = 2;
    attachments.side_places = 2;
    attachments.lost_after = seconds(60);
    {
      const MutexLock lock(mu_);
      attachments_ = std::make_unique<Attachments>(attachments, hub_.get());
    }
    weights_ = *WeightsServer::Start("127.0.0.1", {tokens_.Token(CallerRole::kDevice), job_.Of("device")},
                                     1 << 20, [this](const WantedBytes&) -> StatusOr<PublishedBytes> {
                                       ++fetched_;
                                       return NotFound("none");
                                     });
    renewal_ = std::make_unique<CertificateRenewal>(job_.dir, "run-a", CertificateTimes{3600});
    join_ = *JoinServer::Start(
        {.bind = "127.0.0.1", .advertise = "", .identity = job_.Of(kControllerRole)},
        [this](const std::string& id, const std::string& secret, const std::string& request) {
          auto admitted =
              Admit(job_.dir, tokens_, kEpoch, *renewal_, id, secret, request, system_clock::now());
          if (admitted.ok()) ++joined_;
          return admitted;
        });
    vector_ = *VectorServer::Start({.token = std::string(64, 'e')});
  }
  ~SecurityMatrixTest() override { hub_->Stop(); }  // its threads use what is below

  static TimePoint Now() { return {std::chrono::steady_clock::now().time_since_epoch()}; }

  [[nodiscard]] std::string AddressOf(Door door) const {
    return door == Door::kController  ? hub_->address()
           : door == Door::kDevice    ? weights_->address()
           : door == Door::kNewcomers ? join_->address()
                                      : vector_->address();
  }
  Answer Call(const std::string& method, const Caller& caller) {
    const Door door = kRows.at(method).door;
    return CallAny(AddressOf(door), method, door == Door::kDevice ? "device" : kControllerRole, caller);
  }
  // Refused before its message was looked at.
  void ExpectRefused(const std::string& method, const Caller& caller, grpc::StatusCode code,
                     const std::string& who) {
    EXPECT_EQ(Call(method, caller).code, code) << method << ", " << who;
  }
  static std::string HelloBytes(int64_t place, int64_t ctl_epoch = 0, uint64_t process = 7) {
    v1::Frame frame;
    Pack(std::deque<FromWorker>{{0, 0,
                                 up::Hello{.run_id = "run-a",
                                           .place = place,
                                           .process = process,
                                           .ctl_epoch = ctl_epoch,
                                           .inc = ctl_epoch > 0 ? Incarnation{1} : Incarnation{}}}},
         0, kFrameBytes, &frame);
    return frame.SerializeAsString();
  }
  static std::string RowsBytes(Incarnation reader) {
    v1::FetchRowsRequest request;
    request.set_lease(1);
    request.set_step(1);
    request.set_inc(reader.value + 1);
    return request.SerializeAsString();
  }
  static std::string RenewBytes(Incarnation asker) {
    v1::RenewRequest request;
    request.set_inc(asker.value + 1);
    request.set_signing_request(x509::MakeRequest()->pem);
    return request.SerializeAsString();
  }
  static std::string MeetBytes(Incarnation asker, const std::string& meeting = "3-1") {
    v1::MeetRequest request;
    request.set_meeting(meeting);
    request.set_inc(asker.value + 1);
    request.add_keys("key");
    request.set_set("value");
    return request.SerializeAsString();
  }
  // What a caller with the right would say.
  static std::string BytesFor(const std::string& method) {
    return method == "tidepool.v1.Control.Attach"      ? HelloBytes(0)
           : method == "tidepool.v1.Control.FetchRows" ? RowsBytes(kReader)
           : method == "tidepool.v1.Control.Meet"      ? MeetBytes(kReader)
                                                       : "";
  }
  [[nodiscard]] int64_t Attached() {
    const MutexLock lock(mu_);
    int64_t n = 0;
    for (int64_t place = 0; place < 4; ++place) n += attachments_->HelloAt(place) != nullptr ? 1 : 0;
    return n;
  }
  JoinToken TokenFor(int64_t epoch, int64_t valid_s) const {
    JoinToken token{join_->address(), hub_->address(), "run-a", job_.Of("device").authority, "", "", {}};
    token.scope = {CallerRole::kDevice, 1, epoch, time(nullptr) + valid_s};
    return *MakeJoinToken(job_.dir, token);
  }
  static std::string JoinBytes(const std::string& id) {
    v1::JoinRequest request;
    request.set_id(id);
    request.set_signing_request(x509::MakeRequest()->pem);
    return request.SerializeAsString();
  }

  const Job job_;
  const JobTokens tokens_;
  OpenLease lease_;
  OpenMeeting meeting_;
  Mutex mu_;
  std::unique_ptr<Attachments> attachments_ TP_GUARDED_BY(mu_);
  std::atomic<int> fetched_{0}, joined_{0};
  std::unique_ptr<CertificateRenewal> renewal_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<WeightsServer> weights_;
  std::unique_ptr<JoinServer> join_;
  std::unique_ptr<VectorServer> vector_;
};

TEST_F(SecurityMatrixTest, EveryMethodRefusesEverybodyWhoMayNotCallIt) {
  using grpc::StatusCode::PERMISSION_DENIED;
  using grpc::StatusCode::UNAUTHENTICATED;
  using grpc::StatusCode::UNAVAILABLE;
  const Job stranger("run-b");
  const JobTokens other = *JobTokens::Random();
  const std::string token = tokens_.Token(CallerRole::kDevice);
  const Identity device = job_.Of("device"), theirs = stranger.Of("device");
  const Identity knows_us{device.authority, theirs.certificate, theirs.key};
  const Identity expired = job_.Of({"device.tidepool"}, -5);
  const Identity elsewhere = job_.Of({"device.tidepool", CertifiedPlace(1)}, 3600);
  for (const std::string& method : AllMethods()) {
    SCOPED_TRACE(method);
    ASSERT_TRUE(kRows.contains(method)) << "a new method: say in kRows who serves it, and to whom";
    const Row& row = kRows.at(method);
    const std::string bytes = BytesFor(method);
    switch (row.door) {
      case Door::kElsewhere:
        continue;
      case Door::kLoopback:
        for (const std::string& wrong : {std::string(), token, std::string(64, 'f')})
          ExpectRefused(method, {.token = wrong}, UNAUTHENTICATED, "the wrong token");
        continue;
      case Door::kNewcomers: {
        const Identity nobody{device.authority, "", ""};
        const JoinToken good = TokenFor(kEpoch, 60);
        ExpectRefused(method, {std::nullopt, good.secret, JoinBytes(good.id)}, UNAVAILABLE, "not encrypted");
        ExpectRefused(method, {Identity{theirs.authority, "", ""}, good.secret, JoinBytes(good.id)},
                      UNAVAILABLE, "who does not believe us");
        ExpectRefused(method, {nobody, "", JoinBytes(good.id)}, UNAUTHENTICATED, "no token");
        for (const std::string& wrong : {std::string(64, 'a'), token, other.Token(CallerRole::kDevice)})
          ExpectRefused(method, {nobody, wrong, JoinBytes(good.id)}, PERMISSION_DENIED, "the wrong token");
        const JoinToken old = TokenFor(kEpoch - 1, 60), late = TokenFor(kEpoch, -1);
        ExpectRefused(method, {nobody, old.secret, JoinBytes(old.id)}, PERMISSION_DENIED, "an old epoch");
        ExpectRefused(method, {nobody, late.secret, JoinBytes(late.id)}, PERMISSION_DENIED, "expired");
        ExpectRefused(method, {nobody, good.secret, JoinBytes(late.id)}, PERMISSION_DENIED,
                      "another one's id");
        EXPECT_EQ(joined_, 0);
        EXPECT_EQ(Call(method, {nobody, good.secret, JoinBytes(good.id)}).code, grpc::StatusCode::OK);
        ExpectRefused(method, {nobody, good.secret, JoinBytes(good.id)}, PERMISSION_DENIED, "a second time");
        EXPECT_EQ(joined_, 1);
        continue;
      }
      case Door::kController:
      case Door::kDevice:
        break;
    }
    ExpectRefused(method, {std::nullopt, token, bytes}, UNAVAILABLE, "not encrypted");
    ExpectRefused(method, {Identity{device.authority, "", ""}, token, bytes}, UNAVAILABLE, "no certificate");
    ExpectRefused(method, {theirs, token, bytes}, UNAVAILABLE,
                  "another authority, which does not believe us");
    ExpectRefused(method, {knows_us, token, bytes}, UNAVAILABLE, "another authority");
    ExpectRefused(method, {expired, token, bytes}, UNAVAILABLE, "an expired certificate");
    ExpectRefused(method, {device, "", bytes}, UNAUTHENTICATED, "no token");
    ExpectRefused(method, {device, "short", bytes}, UNAUTHENTICATED, "a short token");
    ExpectRefused(method, {device, other.Token(CallerRole::kDevice), bytes}, UNAUTHENTICATED,
                  "another job's token");
    for (const CallerRole role : AllOf<CallerRole>()) {
      if (role == CallerRole::kDevice) continue;
      ExpectRefused(method, {job_.Of(Name(role)), token, bytes}, PERMISSION_DENIED,
                    std::string("the certificate of ") + Name(role));
      const auto code = Call(method, {job_.Of(Name(role)), tokens_.Token(role), bytes}).code;
      EXPECT_TRUE(code == PERMISSION_DENIED || code == UNAUTHENTICATED)
          << Name(role) << " as a device, by all that it has: " << code;
      if (!row.roles.contains(role)) {
        const auto bare = Call(method, {job_.Of(Name(role)), tokens_.Token(role), ""}).code;
        EXPECT_TRUE(bare == PERMISSION_DENIED || bare == UNAUTHENTICATED) << Name(role) << ": " << bare;
      }
    }
  }
  // Of another place: the certificate of a newcomer is for one. Weights are for any device.
  const std::string attach = "tidepool.v1.Control.Attach", rows = "tidepool.v1.Control.FetchRows",
                    meet = "tidepool.v1.Control.Meet";
  for (const int64_t place : {0, -1, 2})
    ExpectRefused(attach, {elsewhere, token, HelloBytes(place)}, PERMISSION_DENIED, "another place");
  ExpectRefused(rows, {elsewhere, token, RowsBytes(kReader)}, PERMISSION_DENIED, "another place");
  const std::string payloads = "tidepool.v1.Rows.Read";
  v1::ReadRowsRequest read;
  ASSERT_TRUE(read.mutable_of()->ParseFromString(RowsBytes(kReader)));
  ExpectRefused(payloads, {elsewhere, token, read.SerializeAsString()}, PERMISSION_DENIED, "another place");
  ExpectRefused(meet, {elsewhere, token, MeetBytes(kReader)}, PERMISSION_DENIED, "another place");
  EXPECT_EQ(Attached(), 0);
  EXPECT_EQ(fetched_, 0);
  // Of a life that is over: a process that was fenced, and one that its controller has given up.
  const auto says = [](const Answer& answer) {
    v1::Frame frame;
    std::vector<FromWorker> none;
    if (!frame.ParseFromString(answer.bytes)) return std::string("nothing");
    auto said = Unpack<ToWorker>(frame);
    const auto* refuse =
        said.ok() && !said->empty() ? std::get_if<down::Refuse>(&said->front().body) : nullptr;
    return refuse == nullptr ? std::string("it was let in") : refuse->why;
  };
  EXPECT_EQ(says(Call(attach, {device, token, HelloBytes(0, kEpoch)})),
            "this worker was taken for lost and is fenced");
  EXPECT_EQ(Attached(), 0);
  ExpectRefused(rows, {device, token, RowsBytes({kReader.value - 1})}, PERMISSION_DENIED,
                "an old incarnation");
  ExpectRefused(rows, {device, token, RowsBytes({})}, PERMISSION_DENIED, "none");
  ExpectRefused(meet, {device, token, MeetBytes({kReader.value - 1})}, PERMISSION_DENIED,
                "an old incarnation");
  ExpectRefused(meet, {device, token, MeetBytes(kReader, "2-1")}, grpc::StatusCode::NOT_FOUND,
                "a group of an earlier controller");
  EXPECT_FALSE((*meeting_.At("3-1", kReader))->Get({"key"}, std::chrono::milliseconds(0)).ok());
  // And who may.
  EXPECT_EQ(Call(rows, {device, token, RowsBytes(kReader)}).code, grpc::StatusCode::OK);
  EXPECT_EQ(Call(payloads, {device, token, read.SerializeAsString()}).code, grpc::StatusCode::NOT_FOUND)
      << "this controller has no payloads";
  EXPECT_EQ(Call(meet, {device, token, MeetBytes(kReader)}).code, grpc::StatusCode::OK);
  EXPECT_EQ((*meeting_.At("3-1", kReader))->Get({"key"}, std::chrono::milliseconds(0))->front(), "value");
  EXPECT_EQ(Call("tidepool.v1.Weights.Fetch", {device, token, ""}).code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(fetched_, 1);
  EXPECT_EQ(says(Call(attach, {elsewhere, token, HelloBytes(1, 0, 8)})), "it was let in");
  // A certificate is made anew for the place that the present one is for, for who has that place, and where
  // the controller makes any.
  const std::string renew = "tidepool.v1.Control.Renew", anew = RenewBytes(kReader);
  ExpectRefused(renew, {elsewhere, token, anew}, PERMISSION_DENIED, "who has not been welcomed");
  hub_->Send(1, ToWorker{0, 0, down::Welcome{.inc = kReader, .place = 1}});
  ExpectRefused(renew, {elsewhere, token, anew}, grpc::StatusCode::FAILED_PRECONDITION, "no newcomers");
  std::atomic<int> renewed{0};
  hub_->RenewBy([&](const std::string& request, CallerRole role, int64_t place) {
    ++renewed;
    return renewal_->Certify(request, NewcomerNames(role, place), system_clock::now());
  });
  ExpectRefused(renew, {device, token, anew}, PERMISSION_DENIED, "a certificate of RUN/security");
  ExpectRefused(renew, {job_.Of({"device.tidepool", CertifiedPlace(0)}, 3600), token, anew},
                PERMISSION_DENIED, "the place is another process's");
  ExpectRefused(renew, {elsewhere, token, RenewBytes({kReader.value - 1})}, PERMISSION_DENIED,
                "its place was given to another process");
  ExpectRefused(renew, {elsewhere, tokens_.Token(CallerRole::kReward), anew}, PERMISSION_DENIED,
                "another role");
  EXPECT_EQ(renewed, 0);
  const Answer answer = Call(renew, {elsewhere, token, anew});
  EXPECT_EQ(answer.code, grpc::StatusCode::OK);
  v1::JoinReply reply;
  ASSERT_TRUE(reply.ParseFromString(answer.bytes));
  const auto made = x509::ParseCertificate(reply.certificate());
  EXPECT_EQ(x509::DnsNamesOf(made.get()), NewcomerNames(CallerRole::kDevice, 1));
  EXPECT_EQ(reply.token(), "");
  EXPECT_EQ(Call(rows, {elsewhere, token, RowsBytes(kReader)}).code, grpc::StatusCode::OK);
}

// From connect to the first bytes of a handshake, and no further.
class Flood {
 public:
  Flood(const std::string& address, int connections) : connections_(connections) {
    to_.sin_family = AF_INET;
    to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to_.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  [[nodiscard]] int64_t begun() const { return begun_; }

 private:
  void Run(const std::stop_token& stop) {
    std::vector<int> open;
    while (!stop.stop_requested()) {
      while (static_cast<int>(open.size()) < connections_) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) break;
        (void)connect(fd, reinterpret_cast<const sockaddr*>(&to_), sizeof to_);  // under way
        open.push_back(fd);
        ++begun_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      constexpr char kBytes[] = {0x16, 0x03, 0x01, 0x02};  // the head of a TLS record, cut short
      std::erase_if(open, [&](int fd) {
        char byte = 0;
        (void)!send(fd, kBytes, sizeof kBytes, MSG_NOSIGNAL);
        const bool gone = recv(fd, &byte, 1, 0) == 0 || (errno != EAGAIN && errno != ENOTCONN);
        if (gone) close(fd);
        return gone;
      });
    }
    for (const int fd : open) close(fd);
  }
  const int connections_;
  sockaddr_in to_{};
  std::atomic<int64_t> begun_{0};
  std::jthread thread_;  // waits: the stop token ends its loop
};

TEST_F(SecurityMatrixTest, AFloodOfStrangersStopsNobodyWhoIsConnectedAndKeepsNobodyOut) {
  std::atomic<int64_t> heard{0};
  const auto dial = [&](int64_t place) {
    LinkOptions options;
    options.address = hub_->address();
    options.credentials = {tokens_.Token(CallerRole::kDevice), job_.Of("device")};
    options.hello.run_id = "run-a";
    options.hello.place = place;
    options.connect_timeout_s = 60;
    return Link::Connect(
        options, [&](std::vector<LinkEvent> events) { heard += static_cast<int64_t>(events.size()); });
  };
  const auto known = dial(0);
  ASSERT_TRUE(known.ok()) << known.status().ToString();
  const auto within = [](seconds patience, const std::function<bool()>& condition) {
    for (const auto until = system_clock::now() + patience; system_clock::now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  };
  ASSERT_TRUE(within(seconds(60), [&] { return Attached() == 1; }));
  const Flood flood(hub_->address(), 2 * static_cast<int>(Listener::kStrangers));
  ASSERT_TRUE(within(seconds(60), [&] { return flood.begun() > 2 * Listener::kStrangers; }))
      << "none was cut";
  // Rows go to who is connected, over the connection that stands.
  EXPECT_EQ((*known)->FetchRows(1, StepNumber{1}, 0).status().code(), StatusCode::kPermissionDenied);
  const auto late = dial(1);
  EXPECT_TRUE(late.ok()) << late.status().ToString();
  EXPECT_TRUE(within(seconds(60), [&] { return Attached() == 2; })) << "a newcomer";
  EXPECT_EQ((*known)->FetchRows(1, StepNumber{1}, 0).status().code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tidepool::workers
