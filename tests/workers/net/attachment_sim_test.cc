// Whole runs on a network in memory, with virtual time and seeded faults: connections are cut, one side of
// them does not learn of it, Hellos overtake each other, either side is paused, processes and controllers
// die, ranks of a group wait for each other. Under test are the classes of the real processes:
// scheduler::Controller, Attachments, WorkerPlaces, Effects, SampleStore, Turns and TokenIntake at one end,
// WorkerSession, DeviceMachine, SideMachine and environments at the other. Modelled are threads, files and
// tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "scheduler/checker.h"
#include "tests/workers/net/sim_controller.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

using scheduler::GroupKey;
using scheduler::KeyOf;

scheduler::ControllerOptions Job() {
  scheduler::ControllerOptions o;
  o.run_id = "run";
  o.config_digest = "digest";
  o.data_rows = 40;
  o.eval.rows = 4;
  o.fleet.placement = PlacementKind::kSplit;
  o.fleet.actor_slots = 1;
  o.batch.max_lag_versions = 2;
  o.fleet.slots = 3;
  o.fleet.heartbeat_s = 0.5;
  o.fleet.reattach_grace_s = 15;
  o.fleet.start_timeout_s = 60;
  o.fleet.stall_timeout_s = 120;
  o.batch.groups_per_step = 3;
  o.steps = 8;
  o.batch.group_size = 3;
  o.batch.early_columns = true;
  o.rollout.max_new_tokens = 24;
  o.rollout.chunk_tokens = 8;
  o.rollout.max_concurrent = 16;
  o.checkpoint.every_steps = 3;
  o.reward.workers = 1;
  o.reward.timeout_s = 5;
  return o;
}

// A job whose samples are games: what they are, and the words of their model.
struct Episodes {
  JobConfig config;
  std::string dir = testing::TempDir() + "episodes-XXXXXX";
  std::unique_ptr<RowSource> words;

  Episodes() {
    TP_CHECK(mkdtemp(dir.data()) != nullptr);
    config.model.init = ModelInit{};
    config.model.init->alphabet = "SFHGP#?ldru:asnt ";
    EnvironmentConfig lake{.name = "frozen_lake"};
    lake.options = {{"style", "\"terse\""}, {"view", "\"near\""}, {"frozen", "100"}, {"side", "3"}};
    config.job = RlJob{.algorithm = {}, .environment = lake};
    TP_CHECK(WriteInitFolder(*config.model.init, DType::kFloat32, dir).ok());
    auto rows = RowSource::Create(config, dir);
    TP_CHECK(rows.ok()) << rows.status().ToString();
    words = std::move(*rows);
  }
  ~Episodes() {
    std::error_code error;
    std::filesystem::remove_all(dir, error);
  }
};

class Sim {
 public:
  Sim(uint64_t seed, scheduler::ControllerOptions job, const Episodes* episodes, double bad_row)
      : job_(std::move(job)), network_(seed) {
    world_.bad_row = bad_row;
    if (episodes != nullptr) {
      world_.job = &episodes->config;
      world_.words = episodes->words.get();
      world_.bad_turn = 0.02;
    }
    network_.permit_s = 3 * job_.fleet.heartbeat_s;
    network_.patience_s = std::max(LostAfterSeconds(network_.permit_s), job_.fleet.reattach_grace_s);
    network_.outlives = job_.fleet.reattach_grace_s > 0;
    network_.sink = [this](HubEvent event) {
      if (controller_ != nullptr) controller_->On(std::move(event));
    };
    network_.on_exit = [this](int64_t place, uint64_t process, int64_t life) {
      if (controller_ != nullptr && life == network_.life) controller_->Exited(place, process);
    };
    world_.bad_load = world_.bad_step = 0.02;
    world_.logs_share = 0.7;
    world_.bad_payload = 0.02;
    world_.bad_log = 0.0005;
    world_.lost_tokens = 0.05;
  }
  ~Sim() { network_.EndAll(); }

  // The job is done within the time, or the first thing that was wrong.
  std::string Run() {
    StartController();
    if (!job_.fleet.launch_workers) StartByHand();
    Fault();
    while (network_.now < heal_at_ + FromSeconds(300) && network_.RunOne()) {
      if (network_.now > heal_at_) {
        world_.bad_load = world_.bad_step = world_.bad_turn = 0;
        world_.bad_payload = world_.lost_tokens = world_.bad_log = 0;
      }
      if (controller_ == nullptr) continue;
      if (!controller_->wrong.empty())
        return "at " + std::to_string(Seconds(network_.now.since_start)) + " s: " + controller_->wrong;
      if (controller_->exit_code) return Judge();
    }
    return "after the network healed the job did not come to an end: " +
           (controller_ == nullptr ? "no controller" : controller_->Describe());
  }
  int64_t lives = 0, adopted = 0, asked_again = 0, behind_gap = 0, bad_rows = 0, left_out = 0,
          begun_again = 0, stored_here = 0;
  bool done = false;
  [[nodiscard]] const ModelWorld& world() const { return world_; }
  [[nodiscard]] int64_t turns() const { return world_.turns; }
  [[nodiscard]] int64_t previewed() const { return world_.previewed; }
  [[nodiscard]] const SimNetwork& network() const { return network_; }

 private:
  std::string Judge() {
    Count();
    const auto check = scheduler::Check(files_.journal);
    if (!check.ok)
      return check.predicate + " at record " + std::to_string(check.lsn.value) + ": " + check.why;
    std::set<scheduler::GroupKey> named;
    for (const JournalEntry& entry : files_.journal) {
      if (const auto* fault = std::get_if<record::Fault>(&entry.record);
          fault != nullptr && fault->kind == "row") {
        if (!world_.IsBad(fault->tid)) return ToString(fault->tid) + " is called bad";
        named.insert(scheduler::KeyOf(fault->tid));
        ++bad_rows;
      }
      if (const auto* commit = std::get_if<record::StepCommit>(&entry.record); commit != nullptr) {
        for (const record::TrainedRow& row : commit->rows)
          if (world_.IsBad(row.tid)) return ToString(row.tid) + " cannot be used, and was trained";
      }
    }
    if (world_.bad_row > 0) {
      for (const JournalEntry& entry : files_.journal) {
        const auto* drop = std::get_if<record::Drop>(&entry.record);
        // The record that names it follows, and a controller may die between the two.
        bool bad = false;
        for (int32_t k = 0; drop != nullptr && k < job_.batch.group_size; ++k)
          bad = bad || world_.IsBad({drop->tid.ordinal, drop->tid.issue, k});
        if (drop != nullptr && drop->reason == DropReason::kDataInvalid && !bad &&
            !named.contains(scheduler::KeyOf(drop->tid)))
          return ToString(drop->tid) + " is dropped for the sake of others of its batch";
      }
    }
    for (const JournalEntry& entry : files_.journal) {
      const auto* enq = std::get_if<record::Enq>(&entry.record);
      if (enq == nullptr) continue;
      const auto it = files_.payload.find({enq->tid, enq->att});
      if (it == files_.payload.end() || sample::Digest(it->second) != enq->digest)
        return "the payload of " + ToString(enq->tid) + " is not what ENQ says";
    }
    done = *controller_->exit_code == 0;
    // A place whose processes die again and again is given up, and the run may end for it. Nothing else may.
    if (!done && controller_->why.find("retired") == std::string::npos)
      return "it ended with " + std::to_string(*controller_->exit_code) + ": " + controller_->why;
    return "";
  }
  void Count() {
    adopted += controller_->adopted;
    asked_again += controller_->asked_again;
    behind_gap += controller_->behind_gap;
    left_out += controller_->left_out;
    begun_again += controller_->begun_again;
    stored_here += controller_->stored_here;
  }
  void StartController() {
    network_.BeginLife(++lives);
    controller_ = std::make_unique<SimController>(job_, &network_, &world_, &files_);
    controller_->Begin();
    Tick(lives);
  }
  void KillController() {
    Count();
    controller_->Die();
    controller_.reset();
    network_.EndLife();
    // Who gets no turn meanwhile still has its commands when the next one answers.
    if (!network_.processes.empty() && network_.faults.Chance(0.5)) {
      const auto n = static_cast<int64_t>(network_.processes.size());
      network_.processes[static_cast<size_t>(network_.faults.Below(n))]->paused_until =
          network_.now + FromSeconds(network_.faults.Uniform() * 5);
    }
    if (!network_.outlives) network_.EndChildrenOf(lives);
    network_.At(0.2 + network_.rng.Uniform() * 3, [this] { StartController(); });
  }
  // A supervisor that knows of nothing but processes.
  void StartByHand() {
    for (int64_t place = 0; place < job_.device_workers() + job_.side_workers(); ++place) {
      if (std::ranges::none_of(network_.processes, [&](const auto& p) { return p->place == place; }))
        network_.StartProcess(&world_, place, place < job_.device_workers())->parent = 0;
    }
    network_.At(1, [this] { StartByHand(); });
  }
  void Tick(int64_t life) {
    if (life != network_.life || controller_->exit_code) return;
    if (network_.now >= network_.controller_paused) controller_->Tick();
    network_.At(0.25, [this, life] { Tick(life); });
  }

  void Fault() {
    Rng& faults = network_.faults;
    network_.At(faults.Uniform(), [this, &faults] {
      if (network_.now > heal_at_) {
        network_.cut_off.clear();
        return;
      }
      if (!network_.processes.empty()) {
        const auto n = static_cast<int64_t>(network_.processes.size());
        const auto p = network_.processes[static_cast<size_t>(faults.Below(n))];
        switch (faults.Below(13)) {
          case 0:
          case 1:
          case 2:
            network_.Cut(p->stream, faults.Chance(0.6), faults.Chance(0.6));
            break;
          case 3:
            p->paused_until = network_.now + FromSeconds(faults.Uniform() * (faults.Chance(0.2) ? 10 : 4));
            break;
          case 4:
            network_.controller_paused =
                network_.now + FromSeconds(faults.Uniform() * (faults.Chance(0.2) ? 12 : 2));
            break;
          case 5:
            network_.CutOneWay(p->stream);
            break;
          case 6:
            network_.DialAgain(p);
            break;
          case 7:
            if (!network_.cut_off.insert(p->place).second) network_.cut_off.clear();
            break;
          case 8:
            if (faults.Chance(0.2)) network_.End(p);
            break;
          case 9:  // two processes for one place
            if (faults.Chance(0.3)) network_.StartProcess(&world_, p->place, p->device)->parent = 0;
            break;
          case 10:
            network_.StartStranger(&world_, p->place, p->device);
            break;
          case 11:
            if (faults.Chance(0.2)) network_.SayWhatItMayNot(p);
            break;
          case 12:
            if (controller_ != nullptr && !controller_->exit_code && faults.Chance(0.4)) KillController();
            break;
        }
      }
      Fault();
    });
  }

  const scheduler::ControllerOptions job_;
  SimNetwork network_;
  ModelWorld world_;
  StoredFiles files_;
  std::unique_ptr<SimController> controller_;
  const TimePoint heal_at_ = TimePoint{} + FromSeconds(25);
};

struct Seen {
  int64_t cuts = 0, ended = 0, fenced = 0, refused = 0, lives = 0, adopted = 0, asked_again = 0,
          behind_gap = 0, turns = 0, done = 0, strangers = 0, bad_rows = 0, left_out = 0, logged = 0,
          read = 0, read_by_devices = 0, read_by_graders = 0, logged_turns = 0, joined = 0, stored_here = 0,
          logs_failed = 0, begun_again = 0, previewed = 0;
  std::map<std::string, int64_t> closed;
};

// Every seed of the job comes to its end with nothing wrong; what happened in all of them together.
Seen RunSeeds(uint64_t seeds, const scheduler::ControllerOptions& job, const Episodes* episodes = nullptr,
              double bad_row = 0) {
  Seen seen;
  if (const char* times = std::getenv("TIDEPOOL_SIM_SEEDS")) seeds *= std::strtoull(times, nullptr, 10);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Sim sim(seed, job, episodes, bad_row);
    const std::string wrong = sim.Run();
    EXPECT_EQ(wrong, "") << "seed " << seed;
    if (!wrong.empty()) break;
    seen.cuts += sim.network().cuts, seen.ended += sim.network().ended, seen.fenced += sim.network().fenced;
    seen.refused += sim.network().refused_commands;
    for (const auto& p : sim.network().processes) seen.refused += p->machine.refused();
    seen.lives += sim.lives, seen.adopted += sim.adopted, seen.asked_again += sim.asked_again;
    seen.behind_gap += sim.behind_gap;
    seen.left_out += sim.left_out;
    seen.previewed += sim.previewed();
    seen.turns += sim.turns(), seen.strangers += sim.network().strangers;
    for (const auto& [why, times] : sim.network().closed) seen.closed[why] += times;
    seen.done += sim.done ? 1 : 0;
    seen.bad_rows += sim.bad_rows;
    seen.logged += sim.world().logged, seen.read += sim.world().read;
    seen.read_by_devices += sim.world().read_by_devices;
    seen.read_by_graders += sim.world().read_by_graders;
    seen.logged_turns += sim.world().logged_turns;
    seen.joined += sim.world().joined;
    seen.stored_here += sim.stored_here;
    seen.logs_failed += sim.world().logs_failed;
    seen.begun_again += sim.begun_again;
  }
  // A simulation in which nothing happens proves nothing.
  const auto n = static_cast<int64_t>(seeds);
  EXPECT_GT(seen.cuts, 10 * n);
  EXPECT_GT(seen.ended, n / 2);
  EXPECT_GT(seen.lives, n + n / 2);
  EXPECT_GT(seen.done, n - n / 20);
  return seen;
}

TEST(AttachmentSimTest, NothingIsLostDoubledOrStuckWhateverTheNetworkDoes) {
  constexpr int64_t kSeeds = 1000;
  Seen seen = RunSeeds(kSeeds, Job());
  EXPECT_GT(seen.adopted, kSeeds);
  EXPECT_GT(seen.behind_gap, kSeeds / 50);
  EXPECT_GT(seen.left_out, kSeeds);
  EXPECT_GT(seen.previewed, kSeeds);
  EXPECT_EQ(seen.asked_again, 0) << "gaps come of adoptions, and those have asked";
  EXPECT_GT(seen.logged, 100 * kSeeds);
  EXPECT_GT(seen.read, kSeeds / 4);
  EXPECT_GT(seen.read_by_devices, kSeeds);
  EXPECT_GT(seen.read_by_graders, kSeeds);
  EXPECT_GT(seen.logs_failed, kSeeds / 100);
  EXPECT_GT(seen.begun_again, kSeeds / 20);
  EXPECT_GT(seen.fenced, kSeeds / 20);
  EXPECT_GT(seen.refused, 0);
  EXPECT_GT(seen.strangers, kSeeds);
  for (const char* why :
       {"the worker does not read its commands", "a device worker may not send this message",
        "that place has a worker already", "nothing was heard over it"})
    EXPECT_GT(seen.closed[why], kSeeds / 50) << why;
}

TEST(AttachmentSimTest, WorkersThatEndWithTheirController) {
  scheduler::ControllerOptions job = Job();
  job.fleet.reattach_grace_s = 0;
  EXPECT_EQ(RunSeeds(200, job).adopted, 0);
}

TEST(AttachmentSimTest, WorkersThatAreStartedByHandAndHaveNoGrace) {
  scheduler::ControllerOptions job = Job();
  job.fleet.reattach_grace_s = 0;
  job.fleet.launch_workers = false;
  EXPECT_EQ(RunSeeds(200, job).adopted, 0);
}

TEST(AttachmentSimTest, SlotsThatChangeTheirRoles) {
  for (const PlacementKind placement :
       {PlacementKind::kColocated, PlacementKind::kMultiplexed, PlacementKind::kElastic}) {
    for (const double grace_s : {15, 0}) {
      SCOPED_TRACE(std::string(Name(placement)) + (grace_s > 0 ? "" : ", no grace"));
      scheduler::ControllerOptions job = Job();
      job.fleet.placement = placement;
      job.fleet.reattach_grace_s = grace_s;
      RunSeeds(150, job);
    }
  }
}

TEST(AttachmentSimTest, SamplesThatAreEpisodes) {
  const Episodes episodes;
  scheduler::ControllerOptions job = Job();
  job.environment.used = true;
  job.environment.workers = 2;
  job.environment.max_turn_tokens = 6;
  job.environment.reset_timeout_s = job.environment.step_timeout_s = 20;
  for (const double grace_s : {15, 0}) {
    job.fleet.reattach_grace_s = grace_s;
    const Seen seen = RunSeeds(200, job, &episodes);
    EXPECT_GT(seen.turns, 100 * 200);
    EXPECT_GT(seen.logged_turns, 20 * 200);
    EXPECT_GT(seen.read_by_devices, 20 * 200);
    EXPECT_GT(seen.read, 200) << "what a worker cannot read is read by the controller";
    EXPECT_GT(seen.joined, 10 * seen.stored_here) << "a device joins the turns of an episode";
    EXPECT_GT(seen.begun_again, 200 / 20);
  }
}

TEST(AttachmentSimTest, SeveralRanksTrain) {
  scheduler::ControllerOptions job = Job();
  job.fleet.slots = 4;
  job.fleet.actor_slots = 2;
  RunSeeds(300, job);
}

// Whatever dies meanwhile: the samples that a rank names, and no others of their batch, are set aside.
TEST(AttachmentSimTest, ARankNamesRowsThatItCannotUse) {
  for (const int64_t actors : {1, 2}) {
    SCOPED_TRACE(actors);
    scheduler::ControllerOptions job = Job();
    job.fleet.slots = 2 + actors;
    job.fleet.actor_slots = actors;
    EXPECT_GT(RunSeeds(100, job, nullptr, 0.03).bad_rows, 100);
  }
}

}  // namespace
}  // namespace tidepool::workers
