// Short runs in which everything that can go wrong goes wrong once, at every place in turn.
//
//   journal writes   the controller dies with exactly n records written, for every n
//   RPC edges        of every command to a process and every event from one:
//                      the controller dies before it sends; the receiver dies before it gets the command; it
//                      dies after the command and before any reply; the reply is lost with its connection
//                    (a connection loses no single message: what is lost takes the connection, and thereby
//                    the process, along)
//   disk operations  of storage as the controller sees it: the write fails (no space, I/O error); it is done
//   and
//                    the controller dies before it knows. Every operation below: disk_test.cc, on the real
//                    journal and checkpoints.
//
// After each the run has to reach its end and its journal has to pass the checker. Crash at every event:
// ControllerSimTest.EveryPointOfARunCanBeKilled.

#include <gtest/gtest.h>

#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

// Groups of two in the step, slots that move, recovery copies, several turns, workers that outlive the
// controller.
const char* const kVariants[] = {"colocated", "split",    "multiplexed", "elastic",
                                 "recovery",  "episodes", "reattach"};

SimOptions Short(const std::string& variant) {
  const PlacementKind placement = FromWord<PlacementKind>(variant).value_or(
      variant == "recovery" ? PlacementKind::kSplit : PlacementKind::kMultiplexed);
  SimOptions o{.controller = variant == "episodes"
                                 ? SmallEpisodes(placement, 3)
                                 : SmallJob(placement, placement == PlacementKind::kColocated ? 2 : 3),
               .seed = 5,
               .faults = {}};
  ControllerOptions& c = o.controller;
  c.steps = 2;
  c.batch.groups_per_step = 2;
  c.batch.group_size = 2;
  c.batch.max_lag_versions = 1;
  c.fleet.actor_slots = variant == "split" ? 1 : 2;
  c.checkpoint.every_steps = variant == "recovery" ? 0 : 1;
  c.checkpoint.recovery_every_steps = variant == "recovery" ? 1 : 0;
  c.fleet.reattach_grace_s = variant == "reattach" ? 5 : 0;
  c.eval.before_train = c.eval.after_train = false;
  return o;
}

void ExpectDone(SimCluster& cluster, int64_t steps) {
  SimResult r = cluster.Run();
  if (r.ended && r.code != 0 && r.why.starts_with("fault=storage"))
    r = cluster.Run();  // somebody made room; resumed
  ASSERT_TRUE(r.ended) << "no end after " << r.seconds << " s";
  ASSERT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(cluster.controller()->View().step.value, steps);
  const CheckResult check = Check(cluster.journal());
  ASSERT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
}

// The process that a command is for; none: it is for the controller's own storage, or for people.
struct Receiver {
  WorkerRef operator()(const command::KillWorker&) const { return {}; }
  WorkerRef operator()(const command::Grade& c) const { return c.grader; }
  template <typename C>
  WorkerRef operator()(const C& c) const {
    if constexpr (requires { c.worker.inc; })
      return c.worker;
    else
      return {};
  }
};
WorkerRef ReceiverOf(const Command& c) { return std::visit(Receiver{}, c); }

// Heartbeats and ticks are no replies: losing one changes nothing that a later one does not repair.
struct Sender {
  WorkerRef operator()(const event::Heartbeat&) const { return {}; }
  WorkerRef operator()(const event::WorkerLost&) const { return {}; }
  WorkerRef operator()(const event::Graded& e) const { return e.grader; }
  template <typename E>
  WorkerRef operator()(const E& e) const {
    if constexpr (requires { e.worker.inc; })
      return e.worker;
    else
      return {};
  }
};
WorkerRef SenderOf(const Event& e) { return std::visit(Sender{}, e); }

TEST(ExhaustiveTest, EveryJournalWriteMayBeTheLast) {
  for (const char* placement : kVariants) {
    const SimOptions o = Short(placement);
    SimCluster whole(o);
    ExpectDone(whole, 2);
    const auto records = static_cast<int64_t>(whole.journal().size());
    ASSERT_GT(records, 50);
    for (int64_t n = 0; n < records; ++n) {
      SCOPED_TRACE(testing::Message() << placement << ", " << n << " records are written");
      SimCluster cluster(o);
      cluster.cut_at_record = n;
      ASSERT_NO_FATAL_FAILURE(ExpectDone(cluster, 2));
    }
  }
}

enum class Edge { kBeforeSend, kBeforeReceive, kBeforeReply };

TEST(ExhaustiveTest, EveryCommandMayBeTheLastOfItsSenderOrReceiver) {
  for (const char* placement : kVariants) {
    const SimOptions o = Short(placement);
    int64_t commands = 0;
    {
      SimCluster whole(o);
      whole.on_command = [&](const Command& c) { commands += ReceiverOf(c).inc.valid() ? 1 : 0; };
      ExpectDone(whole, 2);
    }
    ASSERT_GT(commands, 30);
    for (const Edge edge : {Edge::kBeforeSend, Edge::kBeforeReceive, Edge::kBeforeReply}) {
      for (int64_t k = 1; k <= commands; ++k) {
        SCOPED_TRACE(testing::Message()
                     << placement << ", edge " << static_cast<int>(edge) << " of command " << k);
        SimCluster cluster(o);
        int64_t seen = 0;
        const auto here = [&](const Command& c) { return ReceiverOf(c).inc.valid() && ++seen == k; };
        if (edge == Edge::kBeforeReply) {
          cluster.on_executed = [&](const Command& c) {
            if (here(c)) cluster.KillWorker(ReceiverOf(c).worker);
          };
        } else {
          cluster.on_command = [&](const Command& c) {
            if (!here(c)) return;
            if (edge == Edge::kBeforeSend)
              cluster.CrashControllerNow();
            else
              cluster.KillWorker(ReceiverOf(c).worker);
          };
        }
        ASSERT_NO_FATAL_FAILURE(ExpectDone(cluster, 2));
      }
    }
  }
}

TEST(ExhaustiveTest, EveryReplyMayBeLostWithItsConnection) {
  for (const char* placement : kVariants) {
    const SimOptions o = Short(placement);
    int64_t replies = 0;
    {
      SimCluster whole(o);
      whole.on_event = [&](const Event& e) {
        replies += SenderOf(e).inc.valid() ? 1 : 0;
        return true;
      };
      ExpectDone(whole, 2);
    }
    ASSERT_GT(replies, 30);
    for (int64_t k = 1; k <= replies; ++k) {
      SCOPED_TRACE(testing::Message() << placement << ", reply " << k);
      WorkerRef lost;
      SimCluster cluster(o);
      int64_t seen = 0;
      cluster.on_event = [&](const Event& e) {
        const WorkerRef from = SenderOf(e);
        if (!from.inc.valid()) return true;
        if (from == lost) return false;  // the same connection
        if (++seen != k) return true;
        lost = from;
        cluster.KillWorker(from.worker);
        return false;
      };
      ASSERT_NO_FATAL_FAILURE(ExpectDone(cluster, 2));
    }
  }
}

// The reply of the controller's own storage, and what it is if the operation fails.
std::optional<Event> FailedStorage(const Event& e) {
  if (const auto* x = std::get_if<event::CheckpointWritten>(&e))
    return event::CheckpointFailed{x->ckpt, "no space left on device"};
  if (const auto* x = std::get_if<event::CheckpointVerified>(&e))
    return event::CheckpointVerified{x->ckpt, "input/output error"};
  if (std::holds_alternative<event::PayloadStored>(e))
    return event::StorageFailed{"payload: no space left on device"};
  if (std::holds_alternative<event::FinalSaved>(e)) return event::FinalSaved{"no space left on device"};
  return std::nullopt;
}

TEST(ExhaustiveTest, EveryStorageOperationMayFailOrBeTheLast) {
  for (const char* placement : kVariants) {
    SimOptions o = Short(placement);
    o.controller.checkpoint.save_final = true;
    int64_t operations = 0;
    {
      SimCluster whole(o);
      whole.on_event = [&](const Event& e) {
        operations += FailedStorage(e) ? 1 : 0;
        return true;
      };
      ExpectDone(whole, 2);
    }
    ASSERT_GT(operations, 8);
    for (int64_t k = 1; k <= operations; ++k) {
      for (const bool fails : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << placement << ", operation " << k << (fails ? " fails" : " is the last"));
        SimCluster cluster(o);
        int64_t seen = 0;
        if (!fails) {
          // Done, and the controller dies with the news: nothing of what it decides leaves it.
          cluster.on_event = [&](const Event& e) {
            if (FailedStorage(e) && ++seen == k) cluster.CrashControllerNow();
            return true;
          };
          ASSERT_NO_FATAL_FAILURE(ExpectDone(cluster, 2));
          continue;
        }
        cluster.on_event = [&](const Event& e) {
          const auto failed = FailedStorage(e);
          if (!failed || ++seen != k) return true;
          cluster.Inject(*failed);
          return false;
        };
        SimResult r = cluster.Run();
        ASSERT_TRUE(r.ended);
        if (r.code != 0) {  // it says so and ends; with room on the disk it goes on
          EXPECT_TRUE(r.why.starts_with("fault=")) << r.why;
          r = cluster.Run();
        }
        ASSERT_EQ(r.code, 0) << r.why;
        const CheckResult check = Check(cluster.journal());
        ASSERT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::scheduler
