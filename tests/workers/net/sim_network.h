#pragma once
// A network in memory with virtual time, and the worker processes on it: connections are two queues of real
// frames, in order each; nothing is promised between connections. A process runs the real WorkerSession, and
// the real DeviceMachine on a modelled device or the real SideMachine. Faults are drawn from the seed.

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
#include "workers/net/attachments.h"
#include "workers/net/wire.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {

class SimNetwork {
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
  std::function<void(HubEvent)> hub;
  TimePoint controller_paused;
  std::function<void(int64_t place, uint64_t process, int64_t life)> on_exit;  // of one that this life began

  class Wire : public Attachments::Wire {
   public:
    Wire(SimNetwork* network, int64_t life) : network_(network), life_(life) {}
    void Send(ConnectionId id, ToWorker message) override { network_->Down(life_, id, std::move(message)); }
    void Refuse(ConnectionId id, down::Refuse why) override {
      network_->Down(life_, id, ToWorker{0, 0, std::move(why)});
    }
    void Close(ConnectionId id, const std::string&) override { network_->Cut(id, true, false); }

   private:
    SimNetwork* network_;
    int64_t life_;
  };

  // --- worker processes
  struct Process {
    Process(ModelWorld* world, int64_t at, bool is_device, uint64_t number)
        : place(at),
          device(is_device),
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
    const uint64_t nonce;
    const std::string address;  // of the weights that it serves
    int64_t parent = 0;         // the life of the controller that began it
    WorkerSession session;
    ModelDevice work;
    DeviceMachine machine;
    ModelSide side_work;
    SideMachine side;
    Rng rng;
    ConnectionId connection = 0;
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
    auto p = std::make_shared<Process>(world, place, device, rng.Next());
    p->parent = life;
    p->work.outlives = outlives;
    p->work.wait = [this, at = p.get()](double s, const std::function<bool()>& happened) {
      at->call_ends = now + FromSeconds(s);
      at->awaited = happened;
      while (!at->dead && now < at->call_ends && !happened()) at->call->Wait();
      return happened();
    };
    if (device) world->devices[p->address] = &p->work;
    processes.push_back(p);
    Dial(p);
    Beat(p);
    Turn(p);
    return p;
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
    Cut(p->connection, /*worker_learns=*/false, /*controller_learns=*/faults.Chance(0.7));
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
  double lease_s = 1.5, patience_s = 15;
  bool outlives = true;  // processes, their controller
  scheduler::WorkerKind side_kind = scheduler::WorkerKind::kReward;
  int64_t cuts = 0, ended = 0, fenced = 0, refused_commands = 0;

  // --- faults
  void Cut(ConnectionId id, bool worker_learns, bool controller_learns) {
    const auto it = wires_.find(id);
    if (it == wires_.end()) return;
    ++cuts;
    const auto wire = it->second;
    wire->up_open = wire->down_open = false;
    if (worker_learns) At(Delay(), [this, p = wire->process, id] { Disconnected(p, id); });
    if (controller_learns) {
      At(Delay(), [this, id, of = wire->life] {
        if (of == life) hub(HubClosed{id, "cut"});
      });
    }
  }
  void CutOneWay(ConnectionId id) {
    if (const auto it = wires_.find(id); it != wires_.end())
      (faults.Chance(0.5) ? it->second->up_open : it->second->down_open) = false;
  }
  void CutAllOf(int64_t of_life) {
    for (const auto& [id, wire] : wires_) {
      if (wire->life == of_life && wire->down_open) Cut(id, faults.Chance(0.8), false);
    }
    std::erase_if(wires_, [&](const auto& w) { return w.second->life < of_life; });
  }
  // Dials while the first connection is still there.
  void DialAgain(const ProcessPtr& p) {
    if (p->dead || p->connection == 0) return;
    p->connection = 0;
    if (p->session.Disconnected(Unavailable("dials again"), now, p->rng)) {
      Dial(p);
    } else {
      End(p);
    }
  }

 private:
  struct Event {
    TimePoint at;
    int64_t order;
    std::function<void()> what;
    bool operator<(const Event& o) const { return std::tie(o.at, o.order) < std::tie(at, order); }
  };
  struct Connection {
    ProcessPtr process;
    int64_t life = 0;  // of the controller that it was dialed to
    bool up_open = true, down_open = true;
    TimePoint last_up, last_down;
  };
  double Delay() { return faults.Chance(0.05) ? faults.Uniform() * 2 : 0.001 + faults.Uniform() * 0.02; }
  // In order within its direction, and not while the receiver is paused.
  void Carry(TimePoint& last, const TimePoint& paused, std::function<void()> what) {
    last = std::max({last, now + FromSeconds(Delay()), paused});
    events_.push({last, ++order_, std::move(what)});
  }
  void Dial(const ProcessPtr& p) {
    if (p->dead) return;
    const ConnectionId id = ++connections_;
    auto wire = std::make_shared<Connection>();
    wire->process = p;
    wire->life = life;
    wire->last_up = wire->last_down = now;
    wires_[id] = wire;
    p->connection = id;
    if (cut_off.contains(p->place)) wire->up_open = wire->down_open = false;
    up::Hello hello;
    hello.place = p->place;
    hello.kind = p->device ? scheduler::WorkerKind::kDevice : side_kind;
    hello.pid = static_cast<int64_t>(p->nonce);
    hello.device_bytes = int64_t{1} << 30;
    hello.weights_address = p->address;
    Up(wire, id, {{FromWorker{0, 0, p->session.Greet(std::move(hello), now)}}});
    if (life == 0) At(0.1, [this, p, id] { Disconnected(p, id); });
  }
  void Up(const std::shared_ptr<Connection>& wire, ConnectionId id, const std::deque<FromWorker>& batch) {
    for (size_t at = 0; at < batch.size();) {
      v1::Frame frame;
      at = Pack(batch, at, kTogetherBytes, &frame);
      Carry(wire->last_up, controller_paused, [this, wire, id, frame = std::move(frame)] {
        if (!wire->up_open || life == 0 || wire->life != life) return;
        auto messages = Unpack<FromWorker>(frame);
        TP_CHECK(messages.ok()) << messages.status().message();
        for (FromWorker& m : *messages) {
          if (auto* hello = std::get_if<up::Hello>(&m.body)) {
            hub(HubOpened{id, std::move(*hello), ""});
          } else {
            hub(HubMessage{id, std::move(m)});
          }
        }
      });
    }
  }
  void Closed(const std::shared_ptr<Connection>& wire, ConnectionId id) {
    Carry(wire->last_up, controller_paused, [this, wire, id] {
      if (wire->up_open && life != 0 && wire->life == life) hub(HubClosed{id, "closed"});
    });
  }
  void Down(int64_t of_life, ConnectionId id, ToWorker message) {
    const auto it = wires_.find(id);
    if (it == wires_.end() || it->second->life != of_life) return;
    const auto wire = it->second;
    v1::Frame frame;
    Pack(std::deque<ToWorker>{std::move(message)}, 0, kTogetherBytes, &frame);
    Carry(wire->last_down, wire->process->paused_until, [this, wire, id, frame = std::move(frame)] {
      auto messages = Unpack<ToWorker>(frame);
      TP_CHECK(messages.ok()) << messages.status().message();
      for (ToWorker& m : *messages) Heard(wire, id, std::move(m));
    });
  }
  void Heard(const std::shared_ptr<Connection>& wire, ConnectionId id, ToWorker message) {
    const ProcessPtr& p = wire->process;
    if (!wire->down_open || p->dead || p->connection != id) return;
    if (const auto* w = std::get_if<down::Welcome>(&message.body))
      p->session.SetLease(w->lease_s, patience_s);
    auto command = p->session.Receive(std::move(message), now);
    if (!command.ok()) {
      if (command.status().code() == StatusCode::kFailedPrecondition) ++fenced;
      return Disconnected(p, id, command.status());
    }
    if (command->has_value()) p->inbox.push_back(std::move(**command));
    Flush(p);
  }
  void Flush(const ProcessPtr& p) {
    const auto it = wires_.find(p->connection);
    if (it == wires_.end()) return;
    std::deque<FromWorker> batch;
    for (FromWorker& m : p->session.TakeUnsent()) batch.push_back(std::move(m));
    Up(it->second, it->first, batch);
  }
  void Disconnected(const ProcessPtr& p, ConnectionId id, const Status& end = Unavailable("cut")) {
    if (p->dead || p->connection != id) return;
    if (const auto it = wires_.find(id); it != wires_.end()) {
      it->second->down_open = false;
      if (faults.Chance(0.7)) Closed(it->second, id);
    }
    p->connection = 0;
    const auto pause = p->session.Disconnected(end, now, p->rng);
    if (!pause) return End(p);
    At(Seconds(*pause), [this, p] { Dial(p); });
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
      if (p->connection != 0 && p->session.Silent(now)) Disconnected(p, p->connection);
    }
    At(lease_s / 3, [this, p] { Beat(p); });
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
        p->machine.Step();
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
  int64_t order_ = 0, connections_ = 0;
  std::map<ConnectionId, std::shared_ptr<Connection>> wires_;
};

}  // namespace tidepool::workers
