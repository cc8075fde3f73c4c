// Many workers in one process, without tensors: each has its own Link to a real controller and runs the real
// DeviceMachine or SideMachine over the devices of the simulated network (tests/workers/net/model_device.h).
// What a controller has to do for them is what it does for real ones; scale_bench.py drives it.
//
//   load_workers --run-dir RUN --devices N --rewards R [--step-ms 100] [--tokens 256] [--warm 5] [--seconds
//   20]
//
// One JSON object a line on stdout: "attached" when every worker was welcomed, "begin" and "end" around a
// window of `seconds` that begins `warm` seconds after almost every device generates, "over" when the run is.
// One thread plays all devices, so that none of them disturbs another one's time.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/storage/run_directory.h"
#include "tests/workers/net/model_device.h"
#include "tests/workers/net/model_side.h"
#include "workers/data/stored_rows.h"
#include "workers/device/device_machine.h"
#include "workers/net/certificates.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/resolved_config.h"
#include "workers/side/side_machine.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string run_dir;
  int64_t devices = 10, rewards = 1, per_host = 8, dialers = 16, tokens = 256;
  double step_ms = 100, warm_s = 5, seconds = 20;
};

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A state has no tensors, but a model that is saved is a folder with something in it.
class LoadDevice : public ModelDevice {
 public:
  using ModelDevice::ModelDevice;
  Status SaveFinal(const down::SaveFinal& c) override { return Write(c.dir, "model.txt"); }
  void WriteCheckpoint(const down::WriteCheckpoint& c) override {
    up::CheckpointFiles done;
    done.ckpt = c.ckpt;
    if (const auto digest = WeightsDigest(); digest.ok()) done.weights_digest = *digest;
    if (const Status written = Write(c.dir, "state.txt"); !written.ok()) done.error = written.message();
    done.files = {"state.txt"};
    Say(std::move(done));
  }

 private:
  static Status Write(const std::string& dir, const std::string& name) {
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    std::ofstream(dir + "/" + name) << "no tensors\n";
    return error ? Unavailable(dir + ": " + error.message()) : OkStatus();
  }
};

// What has come for a worker, and when.
struct Rows {
  int64_t lease = 0;
  StatusOr<std::vector<BatchRow>> rows;
};
struct Incoming {
  size_t worker = 0;
  Clock::time_point at;
  std::variant<LinkEvent, Rows> what;
};

struct Worker {
  bool is_device = true;
  std::unique_ptr<LoadDevice> device;
  std::unique_ptr<ModelSide> side;
  std::unique_ptr<DeviceMachine> machine;
  std::unique_ptr<SideMachine> side_machine;
  std::unique_ptr<Link> link;
  // Behind a step whose rows are on their way commands wait, as they would behind the step itself.
  std::deque<Command> behind;
  std::jthread fetch;  // waits: FetchRows has a deadline
  bool fetching = false, over = false;
  int64_t op_seq = 0;
};

class Load {
 public:
  explicit Load(Options options) : options_(std::move(options)), workers_(Count()) {
    world_.remembers = false;
    world_.vocabulary = 16;
    world_.rows = [this](int64_t lease, StepNumber, Incarnation, int64_t) {
      StatusOr<std::vector<BatchRow>> rows = NotFound("no rows of this lease");
      if (const auto it = fetched_.find(lease); it != fetched_.end()) rows = std::move(it->second);
      fetched_.erase(lease);
      return rows;
    };
  }

  int Run() {
    if (const Status attached = Attach(); !attached.ok()) {
      std::fprintf(stderr, "load_workers: %s\n", attached.message().c_str());
      return 2;
    }
    while (over_ < workers_.size()) Turn();
    Print("over", {{"closed", closed_}, {"refused", Refused()}});
    // Links join their threads: together, for each may wait for its connection.
    std::vector<std::jthread> ends;
    for (Worker& w : workers_) {
      if (ends.size() == 64) ends.clear();
      ends.emplace_back([&w] { w.link.reset(); });
    }
    return 0;
  }

 private:
  [[nodiscard]] size_t Count() const { return static_cast<size_t>(options_.devices + options_.rewards); }

  static void Print(const char* phase, nlohmann::ordered_json fields) {
    fields["phase"] = phase;
    std::printf("%s\n", fields.dump().c_str());
    std::fflush(stdout);
  }

  Status Attach() {
    const storage::RunPaths paths(options_.run_dir);
    const auto json = nlohmann::json::parse(std::ifstream(paths.control()), nullptr, false);
    if (!json.is_object()) return NotFound(paths.control() + ": no controller has written it");
    LinkOptions link;
    link.address = json["address"].get<std::string>();
    link.control_file = paths.control();
    link.hello.run_id = json["run_id"].get<std::string>();
    link.hello.pid = getpid();
    TP_ASSIGN_OR_RETURN(const Credentials device, ReadCredentials(paths.security() + "/device.token"));
    TP_ASSIGN_OR_RETURN(const Credentials reward, ReadCredentials(paths.security() + "/reward.token"));
    for (size_t i = 0; i < workers_.size(); ++i) Make(i);
    const auto begin = Clock::now();
    std::vector<Status> failed(static_cast<size_t>(options_.dialers), OkStatus());
    {
      std::vector<std::jthread> dialers;  // waits: Connect has a time-out
      for (size_t d = 0; d < failed.size(); ++d) {
        dialers.emplace_back([&, d, link]() mutable {
          for (size_t i = d; i < workers_.size() && failed[d].ok(); i += failed.size()) {
            Worker& w = workers_[i];
            link.credentials = w.is_device ? device : reward;
            link.hello.place = static_cast<int64_t>(i);
            link.hello.kind = w.is_device ? scheduler::WorkerKind::kDevice : scheduler::WorkerKind::kReward;
            // Nobody dials it: copies take no time here. Its host is what the scheduler reads of it.
            const auto host = static_cast<int64_t>(i) / options_.per_host;
            link.hello.weights_address = w.is_device ? "10." + std::to_string(host / 250) + "." +
                                                           std::to_string(host % 250 + 1) +
                                                           ".1:" + std::to_string(7000 + i % 8)
                                                     : "";
            auto made = Link::Connect(link, [this, i](std::vector<LinkEvent> events) {
              const auto now = Clock::now();
              std::vector<Incoming> in;
              for (LinkEvent& e : events) in.push_back({i, now, std::move(e)});
              inbox_.PutAll(std::move(in));
            });
            failed[d] = made.status();
            if (made.ok()) {
              const MutexLock lock(links_mu_);
              made_.emplace_back(i, std::move(*made));
            }
          }
        });
      }
      // The first commands are answered while others still dial.
      for (size_t linked = 0; linked < workers_.size();) {
        {
          const MutexLock lock(links_mu_);
          for (auto& [i, l] : made_) workers_[i].link = std::move(l), ++linked, Ready(i);
          made_.clear();
        }
        for (const Status& s : failed) TP_RETURN_IF_ERROR(s);
        Turn();
      }
    }
    dialed_s_ = SecondsBetween(begin, Clock::now());
    return OkStatus();
  }

  void Make(size_t i) {
    Worker& w = workers_[i];
    w.is_device = static_cast<int64_t>(i) < options_.devices;
    const auto begin = [&w](int64_t epoch) { w.link->Begin(epoch); };
    const auto say = [this, &w](FromWorkerBody body) { Say(w, std::move(body)); };
    if (w.is_device) {
      w.device = std::make_unique<LoadDevice>(&world_, i + 1);
      w.device->outlives = false;
      w.device->mean_tokens = options_.tokens;
      w.device->on_begin = begin, w.device->on_say = say;
      w.machine = std::make_unique<DeviceMachine>(w.device.get());
    } else {
      w.side = std::make_unique<ModelSide>(&world_, i + 1);
      w.side->on_begin = begin, w.side->on_say = say;
      w.side_machine = std::make_unique<SideMachine>(w.side.get());
    }
  }

  // Its link is there: what came before is worked on, and it beats from now on.
  void Ready(size_t i) {
    const auto now = Clock::now();
    beats_.push({now, i});
    // Spread over the step, as devices that know nothing of each other are.
    if (workers_[i].is_device) {
      steps_.push({now + std::chrono::microseconds(static_cast<int64_t>(options_.step_ms * 1000 *
                                                                        static_cast<double>(i % 97) / 97)),
                   i});
    }
    for (Incoming& in : std::exchange(early_[i], {})) Take(in);
  }

  void Say(Worker& w, FromWorkerBody body) {
    const auto now = Clock::now();
    ++messages_up_;
    if (const auto* step = std::get_if<up::StepTokens>(&body)) {
      for (const up::ChunkDelta& c : step->chunks) {
        tokens_ += c.tokens.size();
        if (!c.ended) continue;
        if (c.end == scheduler::event::ChunkEnd::kChunkLimit) chunk_ended_[{c.tid, c.att}] = now;
        if (c.end == scheduler::event::ChunkEnd::kEos || c.end == scheduler::event::ChunkEnd::kLength)
          sample_ended_[{c.tid, c.att}] = now;
      }
    } else if (std::holds_alternative<up::TrainDone>(body)) {
      ++steps_done_;
    }
    w.link->Send(std::move(body));
  }

  void Turn() {
    const auto now = Clock::now();
    auto due = now + std::chrono::milliseconds(20);
    if (!steps_.empty()) due = std::min(due, steps_.top().first);
    for (Incoming& in : inbox_.TakeAll(std::max(due - now, Clock::duration(0)))) {
      if (workers_[in.worker].link == nullptr) {
        early_[in.worker].push_back(std::move(in));
      } else {
        Take(in);
      }
    }
    Beat();
    Step();
    Window();
  }

  void Take(Incoming& in) {
    Worker& w = workers_[in.worker];
    if (auto* rows = std::get_if<Rows>(&in.what)) {
      w.fetching = false;
      if (rows->rows.ok()) rows_ += static_cast<int64_t>(rows->rows->size());
      fetched_.insert_or_assign(rows->lease, std::move(rows->rows));
      std::deque<Command> behind = std::exchange(w.behind, {});
      if (!behind.empty()) {  // the step itself, then what came behind it
        w.machine->Put(std::move(behind.front()));
        behind.pop_front();
        Work(w);
      }
      while (!behind.empty()) {
        Command next = std::move(behind.front());
        behind.pop_front();
        Give(in.worker, std::move(next));
      }
      return;
    }
    auto& event = std::get<LinkEvent>(in.what);
    if (std::holds_alternative<LinkClosed>(event)) {
      ++closed_;
      std::fprintf(stderr, "load_workers: worker %zu: %s\n", in.worker,
                   std::get<LinkClosed>(event).why.c_str());
      return End(w);
    }
    auto& command = std::get<Command>(event);
    ++messages_down_;
    Note(command, in.at);
    if (!w.is_device) {
      w.side_machine->On(command, w.link->ctl_epoch());
      if (w.side_machine->exit_code()) End(w);
      Welcomed(w, command);
      return;
    }
    Welcomed(w, command);
    Give(in.worker, std::move(command));
  }

  // Commands of a device, in order; a step waits for its rows, without holding up the other workers.
  void Give(size_t i, Command command) {
    Worker& w = workers_[i];
    if (w.fetching) {
      w.behind.push_back(std::move(command));
      return;
    }
    if (const auto* train = std::get_if<down::Train>(&command.body)) {
      w.fetching = true;
      w.fetch = std::jthread([this, i, &w, lease = train->lease, step = train->step, rank = train->rank] {
        Rows rows{lease, ReadRows(*w.link, lease, step, rank)};
        inbox_.Put({i, Clock::now(), std::move(rows)});
      });
      w.behind.push_back(std::move(command));
      return;
    }
    w.machine->Put(std::move(command));
    Work(w);
  }

  // The list of a batch, and the rows of this rank out of the run's folder, as RolesWork::ReadRows has it.
  [[nodiscard]] StatusOr<std::vector<BatchRow>> ReadRows(Link& link, int64_t lease, StepNumber step,
                                                         int64_t rank) const {
    TP_ASSIGN_OR_RETURN(std::vector<BatchRow> rows, link.FetchRows(lease, step, rank));
    Enqs mine;
    for (const BatchRow& row : rows)
      if (row.stored.payload_file >= 0 && row.rank == rank) mine.push_back(&row.stored);
    const auto go_on = [] { return true; };
    StoredRows stored(std::make_shared<RealFileSystem>(), storage::RunPaths(options_.run_dir).payload());
    TP_ASSIGN_OR_RETURN(
        StoredRows::Found found,
        stored.Read(
            mine, [&](const Enqs& which) { return link.FetchPayloads(lease, step, rank, which, go_on); },
            go_on));
    size_t next = 0;
    for (BatchRow& row : rows) {
      if (row.stored.payload_file < 0 || row.rank != rank) continue;
      TP_ASSIGN_OR_RETURN(row.trajectory, std::move(found.rows[next++]));
    }
    return rows;
  }

  void Work(Worker& w) {
    w.machine->Work([&w] { return w.link->ctl_epoch(); });
    if (w.machine->exit_code()) End(w);
  }

  void End(Worker& w) {
    if (!std::exchange(w.over, true)) ++over_;
  }

  void Welcomed(Worker& w, const Command& command) {
    const auto* welcome = std::get_if<down::Welcome>(&command.body);
    if (welcome == nullptr) return;
    if (const auto config = ParseResolved(welcome->config_yaml); welcomed_ == 0 && config.ok())
      heartbeat_s_ = config->cluster.heartbeat_s;
    w.link->SetPermit(welcome->permit_s, LostAfterSeconds(welcome->permit_s));
    if (++welcomed_ == workers_.size())
      Print("attached", {{"workers", workers_.size()}, {"dialed_s", dialed_s_}});
  }

  // How long the controller took: from the moment that the end of a chunk is said to the moment that the next
  // chunk of the attempt is here, wherever it goes on; and from the end of a sample to its grading, which
  // waits for the payload file.
  void Note(const Command& command, Clock::time_point at) {
    const auto note = [&](auto& ended, const auto& key, std::vector<double>& into) {
      const auto it = ended.find(key);
      if (it == ended.end()) return;
      if (in_window_) into.push_back(1e3 * SecondsBetween(it->second, at));
      ended.erase(it);
    };
    if (const auto* c = std::get_if<down::StartChunk>(&command.body))
      note(chunk_ended_, std::pair(c->tid, c->att), chunk_ms_);
    if (const auto* c = std::get_if<down::Grade>(&command.body))
      note(sample_ended_, std::pair(c->tid, c->att), grade_ms_);
  }

  void Beat() {
    const auto now = Clock::now();
    while (!beats_.empty() && beats_.top().first <= now) {
      const size_t i = beats_.top().second;
      beats_.pop();
      Worker& w = workers_[i];
      if (w.over) continue;
      up::Heartbeat beat;
      beat.op = "no tensors";
      beat.op_seq = ++w.op_seq;
      ++messages_up_;
      w.link->Send(std::move(beat));
      beats_.push({now + std::chrono::milliseconds(static_cast<int64_t>(1000 * heartbeat_s_)), i});
    }
  }

  void Step() {
    const auto now = Clock::now();
    const auto pause = std::chrono::microseconds(static_cast<int64_t>(1000 * options_.step_ms));
    while (!steps_.empty() && steps_.top().first <= now) {
      const auto [due, i] = steps_.top();
      steps_.pop();
      Worker& w = workers_[i];
      if (w.over) continue;
      if (w.machine->CanStep() && w.link->MayServe()) {
        w.machine->Step([] { return TimePoint{}; });
        w.machine->SayTokens();  // each step has the length of what is said together
        ++w.op_seq;
        ++engine_steps_;
        if (in_window_) late_ms_.push_back(1e3 * SecondsBetween(due, now));
      }
      // One that is late has missed steps, and keeps its place among the others: devices do not step
      // together.
      const auto missed = pause > Clock::duration(0) ? std::max(now - due, Clock::duration(0)) / pause : 0;
      steps_.push({due + pause * (1 + missed), i});
    }
  }

  void Window() {
    const auto now = Clock::now();
    if (!flowing_) {
      if (now < next_look_) return;
      next_look_ = now + std::chrono::milliseconds(200);
      int64_t busy = 0, rollout = 0;
      for (const Worker& w : workers_) {
        if (!w.is_device || w.machine->role() == Role::kActor) continue;
        ++rollout;
        busy += w.machine->CanStep() ? 1 : 0;
      }
      if (rollout == 0 || busy * 10 < rollout * 9) return;
      flowing_ = now;
      Print("flowing", {{"devices", busy}});
      return;
    }
    const double since = SecondsBetween(*flowing_, now) - options_.warm_s;
    if (!in_window_ && !window_over_ && since >= 0) {
      Print("begin", Counts());
      in_window_ = true;
    } else if (in_window_ && since >= options_.seconds) {
      in_window_ = false, window_over_ = true;
      nlohmann::ordered_json counts = Counts();
      counts["chunk_ms"] = Spread(chunk_ms_);
      counts["grade_ms"] = Spread(grade_ms_);
      counts["late_ms"] = Spread(late_ms_);
      Print("end", std::move(counts));
    }
  }

  nlohmann::ordered_json Counts() const {
    return {{"t_s", std::chrono::duration<double>(Clock::now().time_since_epoch()).count()},
            {"messages_up", messages_up_},
            {"messages_down", messages_down_},
            {"tokens", tokens_},
            {"engine_steps", engine_steps_},
            {"steps", steps_done_},
            {"rows", rows_}};
  }

  static nlohmann::ordered_json Spread(std::vector<double>& values) {
    if (values.empty()) return nullptr;
    std::sort(values.begin(), values.end());
    return {{"n", values.size()},
            {"p50", values[values.size() / 2]},
            {"p99", values[values.size() * 99 / 100]},
            {"max", values.back()}};
  }

  [[nodiscard]] int64_t Refused() const {
    int64_t refused = 0;
    for (const Worker& w : workers_) refused += w.is_device ? w.machine->refused() : 0;
    return refused;
  }

  using Due = std::pair<Clock::time_point, size_t>;
  using Dues = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

  const Options options_;
  ModelWorld world_;
  Mailbox<Incoming> inbox_;
  std::vector<Worker> workers_;
  Mutex links_mu_;
  std::vector<std::pair<size_t, std::unique_ptr<Link>>> made_ TP_GUARDED_BY(links_mu_);
  std::map<size_t, std::vector<Incoming>> early_;
  std::map<int64_t, StatusOr<std::vector<BatchRow>>> fetched_;  // by lease
  Dues steps_, beats_;
  size_t welcomed_ = 0, over_ = 0;
  double heartbeat_s_ = 0.5, dialed_s_ = 0;
  int64_t messages_up_ = 0, messages_down_ = 0, tokens_ = 0, engine_steps_ = 0, steps_done_ = 0, rows_ = 0;
  int64_t closed_ = 0;
  std::map<std::pair<SampleId, int32_t>, Clock::time_point> chunk_ended_, sample_ended_;
  std::vector<double> chunk_ms_, grade_ms_, late_ms_;
  std::optional<Clock::time_point> flowing_;
  Clock::time_point next_look_;
  bool in_window_ = false, window_over_ = false;
};

}  // namespace
}  // namespace tidepool::workers

int main(int argc, char** argv) {
  tidepool::workers::Options options;
  const std::map<std::string, int64_t*> counts = {{"--devices", &options.devices},
                                                  {"--rewards", &options.rewards},
                                                  {"--per-host", &options.per_host},
                                                  {"--dialers", &options.dialers},
                                                  {"--tokens", &options.tokens}};
  const std::map<std::string, double*> times = {
      {"--step-ms", &options.step_ms}, {"--warm", &options.warm_s}, {"--seconds", &options.seconds}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--run-dir") options.run_dir = argv[i + 1];
    if (const auto it = counts.find(key); it != counts.end())
      *it->second = std::max(1L, std::atol(argv[i + 1]));
    if (const auto it = times.find(key); it != times.end()) *it->second = std::atof(argv[i + 1]);
  }
  if (options.run_dir.empty()) {
    std::fprintf(stderr, "load_workers --run-dir RUN --devices N --rewards R ...\n");
    return 2;
  }
  return tidepool::workers::Load(std::move(options)).Run();
}
