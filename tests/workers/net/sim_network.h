#pragma once
// A network in memory with virtual time, the hub's end of it, and the worker processes. A stream is two
// queues of real frames, in order each, that carry so much and no more until somebody reads; nothing is
// promised between streams. What is decided about them is the real Door's at the hub's end, and the real
// WorkerSession's at the other. A process runs the real DeviceMachine on a modelled device, or the real
// SideMachine. Faults are drawn from the seed.

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "proto/control.pb.h"
#include "tests/workers/net/blocking_call.h"
#include "tests/workers/net/model_device.h"
#include "tests/workers/net/model_side.h"
#include "workers/net/door.h"
#include "workers/net/wire.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {

class SimNetwork : public Door::Streams {
 public:
  explicit SimNetwork(uint64_t seed) : rng(seed), faults(rng.Fork("faults")) {}

  // --- time
  void At(double s, std::function<void()> what) {
    events_.push({now + FromSeconds(s), ++order_, std::move(what)});
  }
  bool RunOne() {
    if (events_.empty()) return false;
    const Event e = events_.top();
    events_.pop();
    now = e.at;
    e.what();
    return true;
  }
  TimePoint now;
  Rng rng, faults;

  // --- the controller's end. life: 0 while there is none.
  int64_t life = 0;
  std::unique_ptr<Door> door;
  std::function<void(HubEvent)> sink;
  TimePoint controller_paused;
  int64_t address = 0;  // in the control file: the life that wrote it
  std::function<void(int64_t place, uint64_t process, int64_t life)> on_exit;  // of one that this life began
  void BeginLife(int64_t number) {
    life = number;
    at_hub_.clear();
    door = std::make_unique<Door>(kMostQueued, this);
    At(Delay(), [this, number] {
      if (life == number) address = number;  // the dead write no more
    });
  }
  static constexpr const char* kRun = "run";

  // --- worker processes
  struct Stream;
  struct Process {
    Process(ModelWorld* world, int64_t at, bool is_device, uint64_t number)
        : place(at),
          device(is_device),
          role(is_device                 ? CallerRole::kDevice
               : world->words != nullptr ? CallerRole::kEnvironment
                                         : CallerRole::kReward),
          nonce(number),
          address("device " + std::to_string(number)),
          session(number, FromSeconds(30)),
          work(world, number),
          machine(&work),
          side_work(world, number),
          side(&side_work),
          rng(number) {
      side_work.on_begin = [this](int64_t epoch) { session.Begin(epoch); };
      side_work.on_say = [this](FromWorkerBody body) { session.Send(std::move(body)); };
      work.on_begin = [this](int64_t epoch) { session.Begin(epoch); };
      work.on_say = [this](FromWorkerBody body) { session.Send(std::move(body)); };
      work.called_off = [this](int64_t lease) {
        for (Command& c : std::exchange(inbox, {})) machine.Put(std::move(c));
        return machine.CalledOff(lease);
      };
    }
    const int64_t place;
    const bool device;
    CallerRole role;  // of its token
    std::string run = kRun;
    bool stranger = false;  // that does not belong here, with this token or to this run
    const uint64_t nonce;
    const std::string address;  // of the weights that it serves
    int64_t parent = 0;         // the life of the controller that began it
    WorkerSession session;
    ModelDevice work;
    DeviceMachine machine;
    ModelSide side_work;
    SideMachine side;
    Rng rng;
    std::shared_ptr<Stream> stream;  // that it speaks over; null: none
    TimePoint paused_until, busy_until;
    std::vector<Command> inbox;
    std::unique_ptr<BlockingCall> call;  // of the device's thread, that waits for others
    TimePoint call_ends;                 // its wait
    std::function<bool()> awaited;
    void Work() {
      for (Command& c : std::exchange(inbox, {})) {
        ++operations;
        machine.Put(std::move(c));
      }
      machine.Work([this] { return session.ctl_epoch(); });
    }
    int64_t operations = 0;
    bool dead = false;
  };
  using ProcessPtr = std::shared_ptr<Process>;

  ProcessPtr StartProcess(ModelWorld* world, int64_t place, bool device) {
    return Begin(std::make_shared<Process>(world, place, device, rng.Next()));
  }
  // It is turned away, and ends.
  void StartStranger(ModelWorld* world, int64_t place, bool device) {
    auto p = std::make_shared<Process>(world, place, device, rng.Next());
    p->stranger = true;
    if (faults.Chance(0.5)) {
      p->run = "another run";
    } else {
      p->role = device ? CallerRole::kReward : CallerRole::kDevice;
    }
    Begin(p)->parent = 0;
    ++strangers;
  }
  void End(const ProcessPtr& p) {
    if (p->dead) return;
    p->dead = true;
    ++ended;
    refused_commands += p->machine.refused();
    if (p->call != nullptr) TP_CHECK(p->call->Resume()) << "a dead process waits";
    p->call.reset();
    p->work.LeaveGroup();
    p->work.world()->devices.erase(p->address);
    Cut(p->stream, /*worker_learns=*/false, /*controller_learns=*/faults.Chance(0.7));
    p->stream.reset();
    At(0.05 + 0.1 * rng.Uniform(), [this, p] {
      if (on_exit) on_exit(p->place, p->nonce, p->parent);
    });
    std::erase(processes, p);
  }
  void EndChildrenOf(int64_t of_life) {
    for (const ProcessPtr& p : std::vector(processes)) {
      if (p->parent == of_life) End(p);
    }
  }
  void EndAll() {
    while (!processes.empty()) End(ProcessPtr(processes.back()));
  }
  std::vector<ProcessPtr> processes;  // that live
  std::set<int64_t> cut_off;          // places whose connections carry nothing
  double permit_s = 1.5, patience_s = 15;
  bool outlives = true;  // processes, their controller
  int64_t cuts = 0, ended = 0, fenced = 0, refused_commands = 0, strangers = 0;
  std::map<std::string, int64_t> closed;  // connections, by why

  // --- faults
  using StreamPtr = std::shared_ptr<Stream>;
  void Cut(const StreamPtr& s, bool worker_learns, bool controller_learns) {
    if (s == nullptr || !s->up_open) return;
    ++cuts;
    s->up_open = s->down_open = false;
    if (worker_learns) At(Delay(), [this, s] { Disconnected(s, Unavailable("cut")); });
    if (controller_learns) At(Delay(), [this, s] { Over(s, Unavailable("cut")); });
  }
  void CutOneWay(const StreamPtr& s) {
    if (s != nullptr) (faults.Chance(0.5) ? s->up_open : s->down_open) = false;
  }
  // The controller is gone.
  void EndLife() {
    for (const auto& [id, s] : at_hub_) Cut(s, faults.Chance(0.8), false);
    life = 0;
    door.reset();
  }
  // Dials while the first connection is still there.
  void DialAgain(const ProcessPtr& p) {
    if (p->dead || p->stream == nullptr) return;
    p->stream.reset();
    if (p->session.Disconnected(Unavailable("it dials again"), now, p->rng)) {
      Dial(p);
    } else {
      End(p);
    }
  }
  // What such a worker has nothing to say about.
  void SayWhatItMayNot(const ProcessPtr& p) {
    p->session.Send(p->device ? FromWorkerBody(up::EnvStepped{}) : FromWorkerBody(up::Published{}));
  }

  // From one dial to its end at both ends.
  struct Stream {
    ProcessPtr process;
    int64_t life = 0;      // of the controller that was dialed
    ConnectionId id = 0;   // as the hub counts; 0: before Hello
    bool refused = false;  // for what it said
    bool over = false;     // at the hub's end
    bool reset = false;    // nothing that is on its way down arrives
    bool up_open = true, down_open = true;
    TimePoint last_up, last_down;
    std::deque<v1::Frame> writing;  // that the hub's writer has taken
    FrameReader at_hub, at_worker;
    int64_t on_way_down = 0;  // frames that nobody has read yet
  };

 private:
  // A worker that is paused for two seconds leaves more than this lie, sometimes.
  static constexpr int64_t kMostQueued = 24, kFramesOnWay = 4;
  static constexpr size_t kFrameBytes = 1024;  // some messages are larger, and cut

  struct Event {
    TimePoint at;
    int64_t order;
    std::function<void()> what;
    bool operator<(const Event& o) const { return std::tie(o.at, o.order) < std::tie(at, order); }
  };
  double Delay() { return faults.Chance(0.05) ? faults.Uniform() * 2 : 0.001 + faults.Uniform() * 0.02; }
  // In order within its direction, and not while the receiver is paused.
  void Carry(TimePoint& last, const TimePoint& paused, std::function<void()> what) {
    last = std::max({last, now + FromSeconds(Delay()), paused});
    events_.push({last, ++order_, std::move(what)});
  }
  template <typename Messages>
  static std::deque<v1::Frame> Frames(const Messages& batch) {
    std::deque<v1::Frame> frames;
    WriteFrames(batch, kFrameBytes, [&](const v1::Frame& frame) {
      frames.push_back(frame);
      return true;
    });
    return frames;
  }

  // --- the hub's end, as Hub's threads do it
  void Wake(ConnectionId id) override {
    At(0, [this, s = at_hub_.at(id)] { Write(s); });
  }
  void End(ConnectionId id, Duration after) override {
    At(Seconds(after), [this, s = at_hub_.at(id)] { Over(s, Unavailable("cancelled")); });
  }
  [[nodiscard]] bool Lives(const StreamPtr& s) const { return life != 0 && s->life == life && !s->over; }
  void Arrived(const StreamPtr& s, v1::Frame frame) {
    if (!s->up_open || !Lives(s)) return;
    if (s->id == 0) {
      auto hello = Door::Greeting(kRun, s->process->role, frame);
      if (!hello.ok()) return Over(s, hello.status());
      TP_CHECK(!s->process->stranger) << "a stranger was let in";
      s->id = door->Open();
      at_hub_[s->id] = s;
      return sink(HubOpened{s->id, *std::move(hello), ""});
    }
    if (s->refused) return;
    auto messages = s->at_hub.Take<FromWorker>(frame);
    const Status heard = Door::Heard(s->process->role, messages);
    s->refused = !heard.ok();
    if (s->refused) return door->Refuse(s->id, {heard.message()});
    if (messages->empty()) sink(HubPart{s->id});
    for (FromWorker& m : *messages) sink(HubMessage{s->id, std::move(m)});
  }
  void Write(const StreamPtr& s) {
    while (Lives(s) && s->on_way_down < kFramesOnWay) {
      if (s->writing.empty()) s->writing = Frames(door->TakeUnsent(s->id));
      if (s->writing.empty()) return;
      ++s->on_way_down;
      Carry(s->last_down, s->process->paused_until, [this, s, frame = std::move(s->writing.front())] {
        if (!s->down_open || s->reset) return;  // what is not read fills the way
        --s->on_way_down;
        Heard(s, frame);
        Write(s);
      });
      s->writing.pop_front();
    }
  }
  // `end` is what the worker reads at the end of the stream.
  void Over(const StreamPtr& s, const Status& end) {
    if (!Lives(s)) return;
    s->over = true;
    s->reset = faults.Chance(0.5);
    Carry(s->last_down, s->process->paused_until, [this, s, end] {
      if (s->down_open) Disconnected(s, end);
    });
    if (s->id == 0) return;
    const std::string why = door->Closed(s->id, end.message());
    at_hub_.erase(s->id);
    ++closed[why];
    sink(HubClosed{s->id, why});
  }

  // --- a worker's end, as Link's threads do it
  ProcessPtr Begin(const ProcessPtr& p) {
    p->parent = life;
    p->work.outlives = outlives;
    p->work.wait = [this, at = p.get()](double s, const std::function<bool()>& happened) {
      at->call_ends = now + FromSeconds(s);
      at->awaited = happened;
      while (!at->dead && now < at->call_ends && !happened()) at->call->Wait();
      return happened();
    };
    if (p->device) p->work.world()->devices[p->address] = &p->work;
    processes.push_back(p);
    Dial(p);
    Beat(p);
    Turn(p);
    return p;
  }
  void Dial(const ProcessPtr& p) {
    if (p->dead) return;
    p->stream = std::make_shared<Stream>();
    p->stream->process = p;
    p->stream->life = address;
    p->stream->last_up = p->stream->last_down = now;
    if (cut_off.contains(p->place)) p->stream->up_open = p->stream->down_open = false;
    up::Hello hello;
    hello.run_id = p->run;
    hello.place = p->place;
    hello.kind = p->device                           ? scheduler::WorkerKind::kDevice
                 : p->work.world()->words != nullptr ? scheduler::WorkerKind::kEnvironment
                                                     : scheduler::WorkerKind::kReward;
    hello.pid = static_cast<int64_t>(p->nonce);
    hello.weights_address = p->address;
    Up(p->stream, std::vector{FromWorker{0, 0, p->session.Greet(std::move(hello), now)}});
    if (address == 0 || address != life)
      At(0.1, [this, s = p->stream] { Disconnected(s, Unavailable("nobody answers")); });
  }
  void Up(const StreamPtr& s, const std::vector<FromWorker>& batch) {
    for (v1::Frame& frame : Frames(std::deque(batch.begin(), batch.end()))) {
      Carry(s->last_up, controller_paused, [this, s, frame = std::move(frame)] { Arrived(s, frame); });
    }
  }
  void Heard(const StreamPtr& s, v1::Frame frame) {
    const ProcessPtr& p = s->process;
    if (p->dead || p->stream != s) return;
    std::vector<Command> commands;
    const Status end = p->session.Heard(s->at_worker.Take<ToWorker>(frame), now, commands);
    for (Command& c : commands) {
      if (const auto* w = std::get_if<down::Welcome>(&c.body)) p->session.SetPermit(w->permit_s, patience_s);
      p->inbox.push_back(std::move(c));
    }
    if (!end.ok()) return Disconnected(s, end);
    Flush(p);
  }
  void Flush(const ProcessPtr& p) {
    if (p->stream != nullptr) Up(p->stream, p->session.TakeUnsent());
  }
  void Disconnected(StreamPtr s, const Status& end) {
    const ProcessPtr& p = s->process;
    if (p->dead || p->stream != s) return;
    s->down_open = false;
    if (faults.Chance(0.7)) {
      Carry(s->last_up, controller_paused, [this, s] {
        if (s->up_open) Over(s, Unavailable("the connection was closed"));
      });
    }
    p->stream.reset();
    const auto pause = p->session.Disconnected(end, now, p->rng);
    if (pause) return At(Seconds(*pause), [this, p] { Dial(p); });
    if (end.code() == StatusCode::kFailedPrecondition && !p->stranger) ++fenced;
    End(p);
  }
  // As Link and the heartbeat's thread do it.
  void Beat(const ProcessPtr& p) {
    if (p->dead) return;
    if (now >= p->paused_until) {
      up::Heartbeat beat;
      beat.op = "work";
      beat.op_seq = p->operations;
      p->session.Send(std::move(beat));
      Flush(p);
      if (p->stream != nullptr && p->session.Silent(now)) Disconnected(p->stream, Unavailable("silent"));
    }
    At(permit_s / 3, [this, p] { Beat(p); });
  }
  // As the device thread's loop: takes what has come, makes one step.
  void Turn(const ProcessPtr& p) {
    if (p->dead) return;
    double next = 0.02;
    if (now >= p->paused_until && now >= p->busy_until) {
      p->work.busy_s = 0;
      if (p->call != nullptr) {
        if ((now >= p->call_ends || p->awaited()) && p->call->Resume()) p->call.reset();
      } else if (!p->device) {
        for (Command& c : std::exchange(p->inbox, {})) {
          ++p->operations;
          p->side.On(c, p->session.ctl_epoch());
        }
      } else if (std::ranges::any_of(p->inbox, Waits)) {
        p->call = std::make_unique<BlockingCall>([p = p.get()] { p->Work(); });
        if (p->call->Resume()) p->call.reset();
      } else {
        p->Work();
      }
      if (p->dead) return;
      if (p->machine.exit_code() || p->side.exit_code()) return End(p);
      if (p->device && p->call == nullptr && p->machine.CanStep() && p->session.MayServe(now)) {
        ++p->operations;
        p->machine.Step([this, p] { return now + FromSeconds(p->work.busy_s); });
      } else if (p->device && p->call == nullptr && p->machine.CanPreview()) {
        ++p->operations;
        p->machine.PreviewPiece();
      }
      p->busy_until = now + FromSeconds(p->work.busy_s);
      next += p->work.busy_s;
      Flush(p);
    }
    At(next, [this, p] { Turn(p); });
  }
  // What a device does together with others.
  static bool Waits(const Command& c) {
    return std::holds_alternative<down::Train>(c.body) || std::holds_alternative<down::FormGroup>(c.body) ||
           std::holds_alternative<down::FetchState>(c.body);
  }
  std::priority_queue<Event> events_;
  int64_t order_ = 0;
  std::map<ConnectionId, StreamPtr> at_hub_;
};

}  // namespace tidepool::workers
