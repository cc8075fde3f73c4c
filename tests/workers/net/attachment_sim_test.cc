// The attachment protocol on a network in memory, with virtual time and seeded faults: connections are cut,
// one side of them does not learn of it, Hellos overtake each other, either side is paused, processes and
// controllers die. The classes under test are those of the real processes: Attachments, WorkerSession,
// HeldTokens. What plays the controller here issues chunks and loads; what plays the worker makes tokens that
// nobody else could make.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>

#include "core/base/rng.h"
#include "workers/device/held_tokens.h"
#include "workers/net/attachments.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;

constexpr double kHeartbeat = 0.5, kLease = 3 * kHeartbeat;
constexpr int64_t kPlaces = 3, kAttempts = 12, kMaxTokens = 40, kChunk = 16, kLoads = 10;

class Sim {
 public:
  explicit Sim(uint64_t seed) : rng_(seed), faults_(rng_.Fork("faults")) {}

  // Everything is done within the time, or the first thing that was wrong.
  std::string Run() {
    StartController();
    for (int64_t place = 0; place < kPlaces; ++place) StartProcess(place);
    Fault();
    while (!events_.empty() && wrong_.empty() && now_ < heal_at_ + FromSeconds(120)) {
      Event e = events_.top();
      events_.pop();
      now_ = e.at;
      e.what();
      if (now_ > heal_at_ + FromSeconds(20) && Done()) break;
    }
    if (!wrong_.empty()) return wrong_;
    if (!Done()) return "after the network healed it did not come to an end: " + Describe();
    for (const auto& [place, p] : processes_) {
      if (p->session.unacknowledged() > 0) return "a worker holds what was never acknowledged";
    }
    return "";
  }
  int64_t cuts = 0, resumed = 0, adopted = 0, resent = 0, fenced = 0, lives = 0;

 private:
  struct Event {
    TimePoint at;
    int64_t order;
    std::function<void()> what;
    bool operator<(const Event& o) const { return std::tie(o.at, o.order) < std::tie(at, order); }
  };
  void At(double s, std::function<void()> what) {
    events_.push({now_ + FromSeconds(s), ++order_, std::move(what)});
  }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = "at " + std::to_string(Seconds(now_.since_start)) + " s: " + what;
  }

  // --- processes of workers
  struct Running {
    SampleId tid;
    int32_t att = 0;
    std::vector<int32_t> context;  // of the attempt
    int64_t left = 0;              // of the chunk
  };
  struct Process {
    Process(int64_t p, uint64_t n) : place(p), nonce(n), session(n, FromSeconds(20)), rng(n) {
      session.SetLease(kLease, 20);
      held.SetKept(true);
    }
    int64_t place;
    uint64_t nonce;
    WorkerSession session;
    HeldTokens held;
    Rng rng;
    ConnectionId connection = 0;
    Incarnation inc;
    TimePoint paused_until;
    std::map<SampleId, Running> running;
    std::set<std::pair<int64_t, int64_t>> loads;  // (epoch, id) done
    bool dead = false;
  };
  using ProcessPtr = std::shared_ptr<Process>;

  void StartProcess(int64_t place) {
    auto p = std::make_shared<Process>(place, rng_.Next());
    processes_[place] = p;
    Dial(p);
    Beat(p);
    Step(p);
  }
  void End(const ProcessPtr& p) {
    if (p->dead) return;
    p->dead = true;
    Cut(p->connection, /*worker_learns=*/true, /*controller_learns=*/faults_.Chance(0.7));
    At(0.5 + rng_.Uniform() * 4, [this, place = p->place] { StartProcess(place); });
  }
  void Beat(const ProcessPtr& p) {
    if (p->dead) return;
    if (now_ >= p->paused_until) {
      p->session.Send(up::Heartbeat{});
      Flush(p);
      if (p->connection != 0 && p->session.Silent(now_)) Disconnected(p, p->connection);
    }
    At(kHeartbeat, [this, p] { Beat(p); });
  }
  void Step(const ProcessPtr& p) {
    if (p->dead) return;
    if (now_ >= p->paused_until && p->session.MayServe(now_) && !p->running.empty()) {
      up::StepTokens step;
      for (auto it = p->running.begin(); it != p->running.end();) {
        Running& r = it->second;
        up::ChunkDelta d;
        d.tid = r.tid;
        d.att = r.att;
        const int64_t n = std::min<int64_t>(1 + rng_.Below(3), r.left);
        for (int64_t i = 0; i < n; ++i) {
          r.context.push_back(static_cast<int32_t>(rng_.Below(1 << 30)));
          d.tokens.ids.push_back(r.context.back());
          d.tokens.logprobs.push_back(-1);
        }
        d.tokens.versions = {{{0, 1}, n}};
        r.left -= n;
        const bool full = static_cast<int64_t>(r.context.size()) >= kMaxTokens;
        d.ended = full || r.left == 0;
        d.end = full ? ChunkEnd::kLength : ChunkEnd::kChunkLimit;
        if (full) made_[{r.tid, r.att}].insert(r.context);
        p->held.Say(d);
        const bool ended = d.ended;
        step.chunks.push_back(std::move(d));
        it = ended ? p->running.erase(it) : std::next(it);
      }
      p->session.Send(std::move(step));
      Flush(p);
    }
    At(0.02 + rng_.Uniform() * 0.05, [this, p] { Step(p); });
  }
  void Take(const ProcessPtr& p, const Command& c) {
    if (c.ctl_epoch < p->session.ctl_epoch()) return;
    if (std::holds_alternative<down::Attached>(c.body)) {
      p->session.Begin(c.ctl_epoch);
      for (const auto& [tid, att] : p->held.TakePartial()) p->running.erase(tid);
      up::Offer frame;
      for (up::OfferedAttempt& a : p->held.Offered()) {
        if (frame.attempts.size() == 2) {  // so that there are several frames
          p->session.Send(frame);
          frame.attempts.clear();
        }
        frame.attempts.push_back(a);
      }
      frame.last = true;
      p->session.Send(std::move(frame));
    } else if (const auto* w = std::get_if<down::Welcome>(&c.body)) {
      if (p->inc == w->inc) return;
      p->inc = w->inc;
      p->held.Clear();
      p->running.clear();
    } else if (const auto* s = std::get_if<down::StartChunk>(&c.body)) {
      if (p->running.contains(s->tid)) Wrong("a chunk was begun twice");
      p->held.Begin(s->tid, s->att, s->gid, s->generated);
      p->running[s->tid] = Running{s->tid, s->att, s->generated, s->chunk_tokens};
    } else if (const auto* x = std::get_if<down::CancelChunk>(&c.body)) {
      p->running.erase(x->tid);
      p->held.Drop(x->tid, x->att);
    } else if (const auto* r = std::get_if<down::Resend>(&c.body)) {
      up::StepTokens again;
      again.chunks = p->held.From(r->tid, r->att, r->from);
      if (!again.chunks.empty()) p->session.Send(std::move(again));
    } else if (const auto* l = std::get_if<down::Load>(&c.body)) {
      if (!p->loads.emplace(c.ctl_epoch, l->v.number).second) Wrong("a load was done twice");
      up::Loaded loaded;
      loaded.v = l->v;
      p->session.Send(std::move(loaded));
    } else if (const auto* f = std::get_if<down::ForgetGroup>(&c.body)) {
      p->held.Forget(f->gid);
    }
    Flush(p);
  }

  // --- the network: two queues a connection, in order each; nothing is promised between connections
  struct Wire {
    ProcessPtr process;
    int64_t life = 0;  // of the controller that it was dialed to
    bool up_open = true, down_open = true;
    TimePoint last_up, last_down;
  };
  double Delay() { return faults_.Chance(0.05) ? faults_.Uniform() * 2 : 0.001 + faults_.Uniform() * 0.02; }
  // In order within its direction, and not while the receiver is paused.
  void Carry(TimePoint& last, const TimePoint* paused, std::function<void()> what) {
    last = std::max(last, now_ + FromSeconds(Delay()));
    if (paused != nullptr) last = std::max(last, *paused);
    events_.push({last, ++order_, std::move(what)});
  }
  void Dial(const ProcessPtr& p) {
    if (p->dead) return;
    const ConnectionId id = ++connections_;
    auto wire = std::make_shared<Wire>();
    wire->process = p;
    wire->life = life_;
    wire->last_up = wire->last_down = now_;
    wires_[id] = wire;
    p->connection = id;
    if (cut_off_.contains(p->place)) wire->up_open = wire->down_open = false;
    up::Hello hello;
    hello.place = p->place;
    hello = p->session.Greet(std::move(hello), now_);
    Up(wire, HubOpened{id, hello, ""});
    if (controller_ == nullptr) At(0.1, [this, p, id] { Disconnected(p, id); });
  }
  void Up(const std::shared_ptr<Wire>& wire, HubEvent event) {
    Carry(wire->last_up, &controller_paused_, [this, wire, event = std::move(event)]() mutable {
      if (wire->up_open && wire->life == life_ && controller_ != nullptr) OnHub(std::move(event));
    });
  }
  void Flush(const ProcessPtr& p) {
    const auto it = wires_.find(p->connection);
    if (it == wires_.end()) return;
    for (FromWorker& m : p->session.TakeUnsent()) Up(it->second, HubMessage{it->first, std::move(m)});
  }
  void Disconnected(const ProcessPtr& p, ConnectionId id) {
    if (p->dead || p->connection != id) return;
    if (const auto it = wires_.find(id); it != wires_.end()) {
      it->second->down_open = false;
      if (faults_.Chance(0.7)) Up(it->second, HubClosed{id, "closed"});
    }
    p->connection = 0;
    const auto pause = p->session.Disconnected(now_, p->rng);
    if (!pause) return End(p);
    At(Seconds(*pause), [this, p] { Dial(p); });
  }
  void Cut(ConnectionId id, bool worker_learns, bool controller_learns) {
    const auto it = wires_.find(id);
    if (it == wires_.end()) return;
    ++cuts;
    const auto wire = it->second;
    wire->up_open = wire->down_open = false;
    if (worker_learns) At(Delay(), [this, p = wire->process, id] { Disconnected(p, id); });
    if (controller_learns) {
      At(Delay(), [this, id, life = wire->life] {
        if (life == life_ && controller_ != nullptr) OnHub(HubClosed{id, "cut"});
      });
    }
  }
  class ControllerWire : public Attachments::Wire {
   public:
    ControllerWire(Sim* sim, int64_t life) : sim_(sim), life_(life) {}
    void Send(ConnectionId id, ToWorker message) override { sim_->Down(life_, id, std::move(message)); }
    void Refuse(ConnectionId id, down::Refuse why) override {
      sim_->Down(life_, id, ToWorker{0, 0, std::move(why)});
    }
    void Close(ConnectionId id, const std::string&) override { sim_->Cut(id, true, false); }

   private:
    Sim* sim_;
    int64_t life_;
  };
  void Down(int64_t life, ConnectionId id, ToWorker message) {
    const auto it = wires_.find(id);
    if (it == wires_.end() || it->second->life != life) return;
    const auto wire = it->second;
    Carry(wire->last_down, &wire->process->paused_until,
          [this, wire, id, message = std::move(message)]() mutable {
            const ProcessPtr& p = wire->process;
            if (!wire->down_open || p->dead || p->connection != id) return;
            auto command = p->session.Receive(std::move(message), now_);
            if (!command.ok()) {
              if (command.status().code() == StatusCode::kFailedPrecondition) {
                ++fenced;
                return End(p);
              }
              return Disconnected(p, id);
            }
            if (command->has_value()) Take(p, **command);
            Flush(p);
          });
  }

  // --- the controller
  struct Attempt {
    int32_t att = 0;
    std::vector<int32_t> have;
    bool finished = false;
    int64_t on = -1;  // place
    Incarnation inc;
  };
  SampleId Tid(int64_t i) { return {i, 0, 0}; }
  void StartController() {
    ++life_;
    ++lives;
    controller_wire_ = std::make_unique<ControllerWire>(this, life_);
    AttachmentOptions options;
    options.ctl_epoch = life_;
    options.device_places = kPlaces;
    options.lost_after = FromSeconds(LostAfterSeconds(kLease));
    controller_ = std::make_unique<Attachments>(options, controller_wire_.get());
    for (auto& [i, a] : attempts_) {
      if (a.finished) continue;
      a.have.clear();  // was in the memory of the last life
      a.on = -1;
    }
    asked_.clear();
    Tick(life_);
  }
  void KillController() {
    controller_.reset();
    for (auto& [id, wire] : wires_) {
      if (wire->life == life_ && wire->down_open) Cut(id, faults_.Chance(0.8), false);
    }
    At(0.2 + rng_.Uniform() * 3, [this] { StartController(); });
  }
  void Tick(int64_t life) {
    if (life != life_ || controller_ == nullptr) return;
    if (now_ >= controller_paused_) {
      for (auto& e : controller_->Tick(now_)) OnEvent(e);
      Dispatch();
      controller_->Acknowledge(controller_->Taken());
      controller_->Renew();
    }
    At(0.25, [this, life] { Tick(life); });
  }
  void OnHub(HubEvent event) {
    for (auto& e : controller_->On(std::move(event), now_)) OnEvent(e);
  }
  void OnEvent(Attachments::Event& event) {
    if (auto* arrived = std::get_if<Attachments::Arrived>(&event)) {
      OnArrived(*arrived);
    } else if (auto* message = std::get_if<Attachments::Message>(&event)) {
      OnMessage(*message);
    } else if (auto* lost = std::get_if<Attachments::Lost>(&event)) {
      std::erase_if(asked_, [&](const auto& key) { return key.first == lost->inc.value; });
      journal_[lost->place] = {};  // fenced
      for (auto& [i, a] : attempts_) {
        if (a.on == lost->place && !a.finished) a.on = -1;
      }
    } else {
      Wrong("a living controller was superseded");
    }
  }
  void OnArrived(Attachments::Arrived& e) {
    const bool back = journal_[e.place].valid() && journal_[e.place] == e.hello.inc;
    const Incarnation inc = back ? e.hello.inc : Incarnation{next_inc_++};
    journal_[e.place] = inc;
    down::Welcome w;
    w.inc = inc;
    w.place = e.place;
    controller_->Welcome(e.place, w);
    for (auto& [i, a] : attempts_) {
      if (a.on == e.place && !a.finished) a.on = -1;
    }
    if (!back) return;
    for (const up::OfferedAttempt& o : e.offer.attempts) {
      Attempt& a = attempts_[o.tid.ordinal];
      if (a.finished || a.on >= 0 || a.att != o.att || !a.have.empty()) {
        controller_->Send(e.place, down::CancelChunk{.tid = o.tid, .att = o.att});
        continue;
      }
      ++adopted;
      a.on = e.place;
      a.inc = inc;
      controller_->Send(e.place, down::Resend{o.tid, o.att, 0});
    }
  }
  void OnMessage(Attachments::Message& e) {
    if (const auto* loaded = std::get_if<up::Loaded>(&e.body)) {
      const auto key = std::pair(e.inc.value, loaded->v.number);
      if (!asked_.contains(key)) return Wrong("a result came that nobody asked for, or a second time");
      asked_.erase(key);
      ++loaded_;
    }
    auto* step = std::get_if<up::StepTokens>(&e.body);
    if (step == nullptr) return;
    for (up::ChunkDelta& d : step->chunks) {
      Attempt& a = attempts_[d.tid.ordinal];
      if (a.finished || a.on != e.place || a.inc != e.inc || a.att != d.att) continue;
      const auto have = static_cast<int64_t>(a.have.size());
      if (d.from > have) {
        ++resent;
        controller_->Send(e.place, down::Resend{d.tid, d.att, have});
      }
      if (d.from != have) continue;
      a.have.insert(a.have.end(), d.tokens.ids.begin(), d.tokens.ids.end());
      if (!d.ended) continue;
      a.on = -1;
      if (d.end != ChunkEnd::kLength) continue;
      a.finished = true;
      if (!made_[{d.tid, d.att}].contains(a.have))
        Wrong("what is stored of " + ToString(d.tid) + " is not what a worker generated");
      for (int64_t place = 0; place < kPlaces; ++place)
        controller_->Send(place, down::ForgetGroup{.gid = {d.tid.ordinal}});
    }
  }
  void Dispatch() {
    const std::vector<int64_t> places = controller_->Welcomed();
    if (places.empty()) return;
    for (int64_t i = 0; i < kAttempts; ++i) {
      Attempt& a = attempts_[i];
      if (a.finished || a.on >= 0 || rng_.Chance(0.5)) continue;
      a.on = places[static_cast<size_t>(rng_.Below(static_cast<int64_t>(places.size())))];
      a.inc = journal_[a.on];
      down::StartChunk s;
      s.tid = Tid(i);
      s.att = a.att;
      s.gid = {i};
      s.generated = a.have;
      s.chunk_tokens = kChunk;
      controller_->Send(a.on, s);
    }
    if (asked_.size() < 4 && next_load_ < kLoads) {
      const int64_t place = places[static_cast<size_t>(rng_.Below(static_cast<int64_t>(places.size())))];
      asked_.emplace(journal_[place].value, next_load_);
      controller_->Send(place, down::Load{{.v = {0, next_load_++}}, "", /*alias=*/false});
    }
  }

  // --- faults
  void Fault() {
    At(faults_.Uniform() * 1.5, [this] {
      if (now_ > heal_at_) {
        cut_off_.clear();
        return;
      }
      const int64_t place = faults_.Below(kPlaces);
      const ProcessPtr p = processes_[place];
      switch (faults_.Below(10)) {
        case 0:
        case 1:
        case 2:
          Cut(p->connection, faults_.Chance(0.6), faults_.Chance(0.6));
          break;
        case 3:
          p->paused_until = now_ + FromSeconds(faults_.Uniform() * 4);
          break;
        case 4:
          controller_paused_ = now_ + FromSeconds(faults_.Uniform() * 2);
          break;
        case 5:  // one direction alone
          if (const auto it = wires_.find(p->connection); it != wires_.end())
            (faults_.Chance(0.5) ? it->second->up_open : it->second->down_open) = false;
          break;
        case 6:  // dials while the first connection is still there
          if (!p->dead && p->connection != 0) {
            p->connection = 0;
            if (p->session.Disconnected(now_, p->rng)) {
              Dial(p);
            } else {
              End(p);
            }
          }
          break;
        case 7:
          if (!cut_off_.insert(place).second) cut_off_.clear();
          break;
        case 8:
          if (faults_.Chance(0.3)) End(p);
          break;
        case 9:
          if (controller_ != nullptr && faults_.Chance(0.4)) KillController();
          break;
      }
      Fault();
    });
  }

  bool Done() {
    return controller_ != nullptr && controller_->Welcomed().size() == kPlaces &&
           std::ranges::all_of(attempts_, [](const auto& a) { return a.second.finished; }) &&
           next_load_ == kLoads && std::ranges::all_of(processes_, [](const auto& p) {
             return p.second->session.unacknowledged() == 0;
           });
  }
  std::string Describe() {
    std::string out =
        std::to_string(controller_ == nullptr ? -1 : static_cast<int64_t>(controller_->Welcomed().size())) +
        " welcomed;";
    for (const auto& [i, a] : attempts_) {
      if (!a.finished)
        out += " " + std::to_string(i) + ":" + std::to_string(a.have.size()) + " on " + std::to_string(a.on);
    }
    for (const auto& [place, p] : processes_)
      out += " w" + std::to_string(place) + " unacknowledged " + std::to_string(p->session.unacknowledged());
    return out;
  }

  Rng rng_, faults_;
  TimePoint now_;
  const TimePoint heal_at_ = TimePoint{} + FromSeconds(25);
  int64_t order_ = 0, life_ = 0, connections_ = 0, next_inc_ = 0, next_load_ = 0, loaded_ = 0;
  std::priority_queue<Event> events_;
  std::map<int64_t, ProcessPtr> processes_;
  std::map<ConnectionId, std::shared_ptr<Wire>> wires_;
  std::set<int64_t> cut_off_;
  std::unique_ptr<ControllerWire> controller_wire_;
  std::unique_ptr<Attachments> controller_;
  TimePoint controller_paused_;
  std::map<int64_t, Attempt> attempts_;
  std::map<int64_t, Incarnation> journal_;
  std::set<std::pair<int64_t, int64_t>> asked_;  // (inc, load) without a result
  std::map<std::pair<SampleId, int32_t>, std::set<std::vector<int32_t>>> made_;
  std::string wrong_;
};

TEST(AttachmentSimTest, NothingIsLostDoubledOrStuckWhateverTheNetworkDoes) {
  int64_t cuts = 0, adopted = 0, resent = 0, fenced = 0, lives = 0;
  constexpr uint64_t kSeeds = 700;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Sim sim(seed);
    ASSERT_EQ(sim.Run(), "") << "seed " << seed;
    cuts += sim.cuts, adopted += sim.adopted, resent += sim.resent, fenced += sim.fenced, lives += sim.lives;
  }
  // A simulation in which nothing happens proves nothing.
  const auto seeds = static_cast<int64_t>(kSeeds);
  EXPECT_GT(cuts, 5 * seeds);
  EXPECT_GT(lives, seeds + seeds / 5);
  EXPECT_GT(adopted, seeds / 10);
  EXPECT_GT(resent, 0);
  EXPECT_GT(fenced, seeds / 50);
}

}  // namespace
}  // namespace tidepool::workers
