#include "tests/workers/net/sim_controller.h"

#include "core/base/check.h"
#include "proto/control.pb.h"
#include "workers/net/wire.h"

namespace tidepool::workers {

namespace cmd = scheduler::command;
namespace ev = scheduler::event;

SimController::SimController(const scheduler::ControllerOptions& options, SimNetwork* network,
                             ModelWorld* world, StoredFiles* files)
    : options_(options),
      network_(network),
      world_(world),
      files_(files),
      life_(network->life),
      intake_(samples_, {.expects = [this](const SlotRef& on, const SampleId& tid,
                                           int32_t att) { return controller_->Expects(on, tid, att); },
                         .have_row =
                             [this](const SampleId& tid) {
                               EnsureRow(tid);
                               return true;
                             },
                         .check = [](const sample::Segment& made) { return made.CheckSampled(1 << 30); },
                         .feed = [this](scheduler::Event event) { Feed(std::move(event)); },
                         .ask =
                             [this](const WorkerRef& w, down::Resend what) {
                               ++asked_again;
                               Send(w, std::move(what));
                             }}) {
  logged_ = std::make_unique<LoggedSamples>(
      samples_, world->words != nullptr,
      LoggedSamples::Ends{
          .expects = [this](const SlotRef& on, const SampleId& tid,
                            int32_t att) { return controller_->Expects(on, tid, att); },
          .read =
              [this](const LoggedAttempt& a, std::function<void(LoggedSamples::Chain)> then) {
                ++world_->read;
                Later(0.01, [this, a, then = std::move(then)] {
                  then(network_->rng.Chance(world_->lost_tokens)
                           ? LoggedSamples::Chain(DataLoss("a bad disk"))
                           : world_->Chain(a.tid, a.att, a.newest));
                });
              },
          .send = [this](const WorkerRef& w, down::StartChunk m) { SendChunk(w, std::move(m)); },
          .check = [](const sample::Trajectory&) { return OkStatus(); },
          .ask_to_store = [this](const WorkerRef& w, down::Store m) { Send(w, std::move(m)); },
          .store =
              [this](const LoggedAttempt& a) {
                ++stored_here;
                Later(0.01, [this, a] {
                  auto whole = Whole(a, world_->Chain(a.tid, a.att, a.newest));
                  if (!whole.ok() || network_->rng.Chance(world_->lost_tokens))
                    return Feed(ev::TokensLost{a.tid, a.att, "a bad disk"});
                  StoreHere(*whole);
                });
              },
          .grade = [this](const cmd::Grade& c) { SendGrade(c, true); },
          .grade_logged =
              [this](const cmd::Grade& c, const StoredSample& s) {
                down::Grade m{.tid = c.tid, .att = c.att, .attempt = c.attempt};
                m.input.response_tokens = s.tokens.size();
                m.logged = s.logged;
                Send(c.grader, std::move(m));
              },
          .grade_here =
              [this](const cmd::Grade& c, bool unread) {
                if (unread) logged_->Blind(c.grader);
                SendGrade(c, false);
              },
          .play = [this](const WorkerRef& w, down::EnvStep m) { Send(w, std::move(m)); },
          .feed = [this](scheduler::Event e) { FeedStored(std::move(e)); },
          .warn = [](const std::string&) {},
          .prune = [] {}});
  for (const JournalEntry& entry : files->journal) logged_->Remember(entry.record);
  if (!network->outlives) logged_->BeginAlone();
  auto created = scheduler::Controller::Create(options, files->journal);
  TP_CHECK(created.ok()) << created.status().ToString();
  controller_ = std::move(*created);
  AttachmentOptions attachments;
  attachments.ctl_epoch = life_;
  attachments.device_places = options.device_workers();
  attachments.side_places = options.side_workers();
  attachments.lost_after = FromSeconds(LostAfterSeconds(network->permit_s));
  attachments_ = std::make_unique<Attachments>(attachments, network->door.get());
  places_ = std::make_unique<WorkerPlaces>(
      *attachments_, WorkerPlaces::Ends{.feed = [this](scheduler::Event event) { Feed(std::move(event)); },
                                        .left = [](int64_t) {}});
  if (world->words != nullptr)
    turns_ = std::make_unique<Turns>(*world->words, samples_,
                                     [this](const char* metric) { Wrong(std::string("counted ") + metric); });
  effects_ = std::make_unique<Effects>(
      *attachments_, Effects::Ends{.append = [this](const auto& decided) { return Append(decided); },
                                   .carry_out = [this](const auto& decided) { CarryOut(decided); },
                                   .over = [this] { return exit_code.has_value(); }});
  step_rows_ = std::make_unique<StepRows>(
      *controller_,
      StepRows::Ends{.taught = [this](const SampleId& tid) { return Recorded(tid); },
                     .judge = [](const SampleId&, BatchRow&) {},
                     .opened = [](StepNumber, const auto&) {},
                     .send = [this](const WorkerRef& w, down::Train m) { Send(w, std::move(m)); },
                     .feed =
                         [this](scheduler::Event e) {
                           Wrong("a row cannot be had");
                           Feed(std::move(e));
                         }});
  world->rows = [this](int64_t lease, StepNumber step, Incarnation reader,
                       int64_t rank) -> StatusOr<std::vector<BatchRow>> {
    TP_ASSIGN_OR_RETURN(const OpenLease::Rows rows, step_rows_->Read(lease, step, reader, rank));
    // As FetchRows brings them.
    std::deque<v1::Frame> frames;
    WriteFrames(*rows, 512, [&](const v1::Frame& frame) {
      frames.push_back(frame);
      return true;
    });
    TP_ASSIGN_OR_RETURN(auto read, ReadRows([&](v1::Frame* frame) {
                          if (frames.empty()) return false;
                          *frame = std::move(frames.front());
                          frames.pop_front();
                          return true;
                        }));
    // As each rank reads its own, and the others say their outlines.
    for (BatchRow& row : read) {
      if (row.stored.payload_file < 0) continue;
      const auto it = files_->payload.find({row.stored.tid, row.stored.att});
      if (it == files_->payload.end()) return NotFound("a payload is nowhere");
      row.trajectory = row.rank == rank ? it->second : it->second.Outline();
    }
    return read;
  };
}

SimController::~SimController() { *lives_ = false; }

void SimController::Begin() {
  clock_.Start(LoopClock::Source::time_point(network_->now.since_start));
  Feed(ev::Started{});
  effects_->Execute();
}

void SimController::Die() {
  auto arrived = network_->faults.Below(4);
  for (auto& records : unwritten_) {
    if (arrived-- <= 0) break;
    // Of the last one, perhaps not all.
    const auto n =
        arrived > 0 ? records.size()
                    : static_cast<size_t>(network_->faults.Below(static_cast<int64_t>(records.size()) + 1));
    for (size_t i = 0; i < n; ++i) {
      records[i].lsn = {static_cast<int64_t>(files_->journal.size())};
      files_->journal.push_back(records[i]);
    }
    if (n < records.size()) break;
  }
  world_->rows = [](int64_t, StepNumber, Incarnation, int64_t) -> StatusOr<std::vector<BatchRow>> {
    return Unavailable("no controller");
  };
}

void SimController::Later(double s, std::function<void()> what) {
  network_->At(s, [this, lives = lives_, what = std::move(what)] {
    if (!*lives || exit_code) return;
    what();
    effects_->Execute();
  });
}

std::string SimController::Describe() const {
  const scheduler::ControllerView v = controller_->View();
  std::string out = v.phase + " step " + std::to_string(v.step.value) + " open " +
                    std::to_string(v.open_groups) + " running " + std::to_string(v.running) + " awaiting " +
                    std::to_string(v.awaiting) + " queued " + std::to_string(v.queued) + " leased " +
                    std::to_string(v.leased) + " in flight " + std::to_string(v.in_flight) + " joined";
  for (const auto& [place, p] : places_->places()) out += p.joined ? " " + std::to_string(place) : "";
  for (const auto& p : network_->processes) {
    out += "\n  process of place " + std::to_string(p->place) + " inc " +
           std::to_string(p->machine.inc().value) + (p->machine.CanStep() ? " can step" : " cannot step") +
           (p->session.MayServe(network_->now) ? "" : ", may not") + ", role " + Name(p->machine.role()) +
           ", unacknowledged " + std::to_string(p->session.unacknowledged());
    const auto at = places_->places().find(p->place);
    for (const auto& [key, made] : world_->made) {
      if (at != places_->places().end() &&
          controller_->Expects({{{p->place}, at->second.inc}, {p->place}}, key.first, key.second))
        out += "\n    " + ToString(key.first) + " is expected of it, attempt " + std::to_string(key.second);
    }
  }
  for (const std::string& line : said_) out += "\n  " + line;
  return out;
}

// --- decisions and their effects

void SimController::Feed(scheduler::Event event) {
  const TimePoint now = Now();
  begun_again += std::holds_alternative<ev::TokensLost>(event) ? 1 : 0;
  for (scheduler::Command& c : controller_->Handle(event, now)) {
    if (const auto* welcome = std::get_if<cmd::Welcome>(&c)) places_->Decided(*welcome);
    effects_->Add(std::move(c), now);
  }
}

std::optional<int64_t> SimController::Append(const std::vector<Effects::Decided>& decided) {
  std::vector<JournalEntry> records;
  for (const auto& [command, at] : decided) {
    if (const auto* append = std::get_if<cmd::Append>(&command)) {
      step_rows_->Remember(append->record);
      records.push_back({.lsn = {},
                         .ctl_epoch = static_cast<uint32_t>(life_),
                         .mono_ns = static_cast<uint64_t>(at.since_start.count()),
                         .record = append->record});
    }
  }
  if (records.empty()) return std::nullopt;
  unwritten_.push_back(std::move(records));
  Write();
  return ++appended_;
}

void SimController::Write() {
  if (unwritten_.empty() || std::exchange(writing_, true)) return;
  const double takes = network_->faults.Chance(0.02) ? network_->faults.Uniform() * 2 : 0.003;
  Later(takes, [this] {
    writing_ = false;
    for (JournalEntry& entry : unwritten_.front()) {
      entry.lsn = {static_cast<int64_t>(files_->journal.size())};
      files_->journal.push_back(std::move(entry));
    }
    unwritten_.pop_front();
    effects_->Stored(appended_ - static_cast<int64_t>(unwritten_.size()));
    Write();
  });
}

// --- workers

void SimController::On(HubEvent event) {
  for (Attachments::Event& e : attachments_->On(std::move(event), Now())) OnAttachment(e);
  effects_->Execute();
}

void SimController::Tick() {
  for (Attachments::Event& e : attachments_->Tick(Now())) OnAttachment(e);
  Feed(ev::Tick{});
  effects_->Execute();
  attachments_->Renew();
}

void SimController::OnAttachment(Attachments::Event& event) {
  if (auto* arrived = std::get_if<Attachments::Arrived>(&event)) {
    places_->Arrived(*arrived, "w" + std::to_string(arrived->place));
  } else if (auto* message = std::get_if<Attachments::Message>(&event)) {
    OnMessage(*message);
  } else if (auto* lost = std::get_if<Attachments::Lost>(&event)) {
    places_->Lost(*lost);
  } else {
    Wrong("a living controller was superseded");
  }
}

void SimController::Exited(int64_t place, uint64_t process) {
  places_->Ended(place, static_cast<int64_t>(process), "it ended");
  effects_->Execute();
}

void SimController::OnMessage(Attachments::Message& e) {
  const WorkerRef worker{{e.place}, e.inc};
  const auto feed = [&](auto event) {
    event.worker = worker;
    Feed(std::move(event));
  };
  std::visit(
      [&](auto& b) {
        using B = std::remove_cvref_t<decltype(b)>;
        if constexpr (std::is_same_v<B, up::StepTokens>) {
          for (const up::ChunkDelta& c : b.chunks) {
            const StoredSample* s = samples_.Find(c.tid);
            if (controller_->Expects({worker, b.slot}, c.tid, c.att) &&
                c.from > (s == nullptr ? 0 : s->tokens.size()))
              ++behind_gap;
          }
          logged_->Note(worker, b);
          intake_.Take(worker, b);
        } else if constexpr (std::is_same_v<B, up::SeesRun>) {
          logged_->Add(worker, e.place < options_.device_workers());
        } else if constexpr (std::is_same_v<B, up::LogsNoMore>) {
          logged_->Remove(worker);
        } else if constexpr (std::is_same_v<B, up::Stored>) {
          logged_->Take(worker, b);
        } else if constexpr (std::is_same_v<B, up::CannotRead>) {
          logged_->Take(worker, b);
        } else if constexpr (std::is_same_v<B, up::Heartbeat>) {
          feed(ev::Heartbeat{{}, {}, std::move(b.op), b.op_seq});
        } else if constexpr (std::is_same_v<B, up::Graded>) {
          if (logged_->Again(worker, b)) return;
          b.grader = worker;
          Feed(ev::Graded(b));
        } else if constexpr (std::is_same_v<B, up::EnvStepped>) {
          logged_->Note(worker, b.logged);
          if (!logged_->Again(worker, b, *turns_)) Feed(turns_->Take(worker, std::move(b)));
        } else if constexpr (std::is_same_v<B, up::Pulled>) {
          feed(ev::Pulled(b));
        } else if constexpr (std::is_same_v<B, up::Loaded>) {
          feed(ev::Loaded(b));
        } else if constexpr (std::is_same_v<B, up::TrainDone>) {
          feed(ev::TrainDone(b));
        } else if constexpr (std::is_same_v<B, up::CheckpointFiles>) {
          Later(0.05, [this, b] {
            if (!pending_.contains(b.ckpt)) return;
            files_->checkpoints[b.ckpt] = pending_[b.ckpt];
            const auto step = StepNumber{std::stoll(pending_[b.ckpt])};
            Feed(ev::CheckpointWritten{b.ckpt, step, Mix64(b.weights_digest), b.weights_digest});
          });
        } else if constexpr (std::is_same_v<B, up::FinalSaved>) {
          Feed(b);
        } else if constexpr (requires { b.worker; }) {
          feed(std::move(b));
        } else {
          Wrong("a message that nobody here sends");
        }
      },
      e.body);
}

// --- samples

void SimController::EnsureRow(const SampleId& tid) {
  if (samples_.FindRow(tid) != nullptr) return;
  EncodedRow row;
  if (world_->words != nullptr) {
    auto made = tid.is_eval() ? world_->words->HeldOut(tid.ordinal) : world_->words->Row(tid.ordinal);
    TP_CHECK(made.ok()) << made.status().ToString();
    samples_.PutRow(tid.ordinal, tid.is_eval(), std::move(*made));
    return;
  }
  row.prompt.assign(5, static_cast<int32_t>(tid.ordinal));
  samples_.PutRow(tid.ordinal, tid.is_eval(), std::move(row));
}

StatusOr<sample::Trajectory> SimController::Recorded(const SampleId& tid) {
  const record::Enq* enq = controller_->FindPayload(tid);
  if (enq == nullptr) return NotFound("no payload");
  const auto it = files_->payload.find({tid, enq->att});
  if (it == files_->payload.end()) return NotFound("ENQ without bytes on disk");
  if (sample::Digest(it->second) != enq->digest) return DataLoss("not the bytes that ENQ names");
  return it->second;
}

// What a worker wrote is in the run's folder before ENQ names it.
void SimController::FeedStored(scheduler::Event event) {
  if (const auto* stored = std::get_if<ev::PayloadStored>(&event)) {
    const auto written = world_->payload.find({stored->file, stored->offset});
    if (written == world_->payload.end()) {
      Wrong("a payload that nobody wrote");
    } else {
      CheckMade(written->second);
      if (written->second.size() != stored->response_len) Wrong("a payload of another length");
      files_->payload[{stored->tid, stored->att}] = written->second;
    }
  }
  Feed(std::move(event));
}

void SimController::StoreHere(const sample::Trajectory& t) {
  CheckMade(t);
  files_->payload[{t.tid, t.att}] = t;
  ev::PayloadStored stored{t.tid, t.att, t.prompt_size(), t.size(), sample::Digest(t), 0, 0, t.size(), {}};
  for (const auto& [version, tokens] : t.VersionsWithLoss()) stored.versions.push_back({version, tokens});
  Feed(std::move(stored));
  logged_->Stored(t.tid, t.att);
}

void SimController::CheckMade(const sample::Trajectory& t) {
  std::vector<int32_t> said = t.Ids();  // up to the last word of the policy
  if (!t.segments.empty() && t.segments.back().kind == sample::SegmentKind::kObservation)
    said.resize(said.size() - t.segments.back().ids.size());
  if (!world_->made[{t.tid, t.att}].contains(said))
    Wrong("what is stored of " + ToString(t.tid) + " is not what a worker generated");
}

void SimController::SendChunk(const WorkerRef& worker, down::StartChunk m) {
  const StoredSample* s = samples_.Find(m.tid);
  if (s != nullptr && s->tokens.att == m.att &&
      m.have + static_cast<int64_t>(m.generated.size()) + m.unread != s->tokens.size())
    Wrong(ToString(m.tid) + " is given out with another number of tokens than there are");
  left_out += m.have;
  Send(worker, std::move(m));
}

// reads: its grader reads the payload, if it sees where it is.
void SimController::SendGrade(const cmd::Grade& c, bool reads) {
  down::Grade m{.tid = c.tid, .att = c.att, .attempt = c.attempt};
  const record::Enq* payload = controller_->FindPayload(c.tid);
  if (payload != nullptr && reads && logged_->Reads(c)) m.payload = *payload;
  Send(c.grader, std::move(m));
}

// --- commands

struct SimController::Do {
  SimController& s;

  template <typename C>
  requires kToWorker<C>
  void operator()(const C& c) { s.Send(c.worker, c); }

  void operator()(const cmd::Grant& c) { s.Send(c.worker, down::Grant{c.slot, c.epoch, c.role}); }
  void operator()(const cmd::Append& c) { s.logged_->Remember(c.record); }
  void operator()(const cmd::StartWorker& c) {
    const int64_t place = c.worker.value;
    s.Later(Seconds(c.delay) + 0.1 + s.network_->rng.Uniform(), [&s = s, place] {
      s.children_[place] = s.network_->StartProcess(s.world_, place, place < s.options_.device_workers());
    });
  }
  void operator()(const cmd::KillWorker& c) {
    const auto child = s.children_.find(c.worker.worker.value);
    if (child != s.children_.end()) s.network_->End(child->second);
    s.places_->Kill(c);
  }
  void operator()(const cmd::Welcome& c) {
    down::Welcome w;
    w.permit_s = s.network_->permit_s;
    const auto offered = s.places_->Welcome(c, std::move(w));
    if (!offered) return;
    const auto before = s.asked_again;
    s.intake_.Adopt({c.worker, c.inc}, *offered);
    s.adopted += std::exchange(s.asked_again, before) - before;
  }
  void operator()(const cmd::RefuseWorker& c) { s.places_->Refuse(c); }
  void operator()(const cmd::PrepareRow& c) {
    s.EnsureRow({c.ordinal, c.issue, 0});
    s.Feed(ev::RowReady{c.ordinal, c.issue, 5});
  }
  void operator()(const cmd::StartChunk& c) {
    s.EnsureRow(c.tid);
    if (s.turns_ != nullptr && !s.turns_->CheckPrefix(s.samples_.Get(c.tid, c.att)).ok())
      s.Wrong("the record of " + ToString(c.tid) + " is not what was said");
    if (s.samples_.Get(c.tid, c.att).tokens.size() != c.generated)
      s.Wrong(ToString(c.tid) + " has another number of tokens than the scheduler thinks");
    s.logged_->Start(c, c.tid.is_eval());
  }
  void operator()(const cmd::CancelChunk& c) {
    s.logged_->Cancel(c);
    s.samples_.Forgotten(c.tid);
    s.Send(c.worker, c);
  }
  void operator()(const cmd::ForgetGroup& c) {
    s.samples_.Forgotten(c.gid, c.worker);
    s.Send(c.worker, c);
  }
  void operator()(const cmd::StorePayload& c) {
    s.EnsureRow(c.tid);
    if (s.logged_->Store(c, s.Now())) return;
    s.Later(0.005, [&s = s, t = s.samples_.Finished(c.tid)] { s.StoreHere(t); });
  }
  void operator()(const cmd::DiscardTokens& c) {
    s.samples_.Discard(c.tid);
    s.logged_->Forget(c.tid);
    if (s.turns_ != nullptr) s.turns_->Forget(c.tid);
  }
  void operator()(const cmd::EndEpisode& c) { s.Send(c.worker, c); }
  void operator()(const cmd::EnvStep& c) {
    StoredSample stored;
    StoredSample* record = nullptr;
    if (c.turn != 0) {
      s.EnsureRow(c.tid);
      if (s.controller_->FindPayload(c.tid) == nullptr && s.logged_->Play(c, *s.turns_)) return;
      record = s.controller_->FindPayload(c.tid) == nullptr ? s.samples_.Change(c.tid) : nullptr;
      if (record == nullptr) {
        auto t = s.Recorded(c.tid);
        if (!t.ok()) return s.Wrong("a turn of " + ToString(c.tid) + ": " + t.status().message());
        stored.tokens = *std::move(t);
        record = &stored;
      }
    }
    s.Send(c.worker, s.turns_->Step(c, record));
  }
  void operator()(const cmd::AppendObservation& c) { s.turns_->Append(c); }
  void operator()(const cmd::Grade& c) {
    if (!s.logged_->Grade(c)) s.SendGrade(c, s.controller_->FindPayload(c.tid) != nullptr);
  }
  void operator()(const cmd::RestoreState& c) {
    s.Send(c.worker, down::RestoreState{c, c.ckpt >= 0 ? s.files_->checkpoints[c.ckpt] : ""});
  }
  void operator()(const cmd::FetchState& c) {
    s.Send(c.worker, down::FetchState{c.slot, c.epoch, c.step, c.weights_digest, c.request,
                                      s.places_->HelloOf(c.from.worker.worker).weights_address});
  }
  void operator()(const cmd::FormGroup& c) {
    s.Send(c.worker, down::FormGroup{c, std::to_string(s.life_) + "-" + std::to_string(c.group_epoch), 20});
  }
  void operator()(const cmd::Pull& c) {
    s.Send(c.worker,
           down::Pull{c.slot, c.v, c.digest, s.places_->HelloOf(c.from.worker.worker).weights_address});
  }
  void operator()(const cmd::Load& c) { s.Send(c.worker, down::Load{c.slot, c.v, c.digest, "", c.alias}); }
  void operator()(const cmd::Train& c) { s.step_rows_->Add(c); }
  void operator()(const cmd::Preview& c) {
    down::Preview m{c.slot, c.epoch, c.v, {}};
    for (const SampleId& tid : c.rows) {
      if (const record::Enq* enq = s.controller_->FindPayload(tid); enq != nullptr) m.rows.push_back(*enq);
    }
    if (!m.rows.empty()) s.Send(c.worker, std::move(m));
  }
  void operator()(const cmd::WriteCheckpoint& c) {
    // As temporary names do, the folder's carries the epoch.
    s.pending_[c.ckpt] = std::to_string(c.step.value) + "-" + std::to_string(s.life_);
    s.Send(c.worker, down::WriteCheckpoint{c.slot, c.ckpt, s.pending_[c.ckpt]});
  }
  void operator()(const cmd::VerifyCheckpoint& c) {
    s.Later(0.02, [&s = s, c] {
      s.Feed(ev::CheckpointVerified{c.ckpt, s.files_->checkpoints.contains(c.ckpt) ? "" : "missing"});
    });
  }
  void operator()(const cmd::DeleteCheckpoint& c) { s.files_->checkpoints.erase(c.ckpt); }
  void operator()(const cmd::KeepBest&) {}
  void operator()(const cmd::SaveFinal& c) { s.Send(c.worker, down::SaveFinal{c.slot, "final"}); }
  void operator()(const cmd::StepReport&) {}
  void operator()(const cmd::EvalReport&) {}
  void operator()(const cmd::Log& c) {
    s.said_.push_back(std::to_string(Seconds(s.network_->now.since_start)) + " s " + c.event + ": " +
                      (c.about.worker.valid() ? ToString(c.about) + " " : "") + c.text);
    if (s.said_.size() > 12) s.said_.pop_front();
  }
  void operator()(const cmd::Finish& c) {
    s.exit_code = c.code;
    s.why = c.why;
  }
};

void SimController::CarryOut(const std::vector<Effects::Decided>& decided) {
  network_->door->Hold();
  for (const auto& [command, at] : decided) {
    std::visit(Do{*this}, command);
    if (exit_code) break;
  }
  network_->door->Release();
}

}  // namespace tidepool::workers
