#include "workers/net/wire.h"

#include <utility>

#include "core/sample/codec.h"
#include "proto/control.pb.h"
#include "proto/reward.pb.h"
#include "workers/net/wire_tokens.h"

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;

template <typename... F>
struct Overload : F... {
  using F::operator()...;
};
template <typename... F>
Overload(F...) -> Overload<F...>;

void PutNumbers(const std::vector<std::pair<std::string, double>>& in,
                google::protobuf::RepeatedPtrField<v1::NamedNumber>* out) {
  for (const auto& [name, value] : in) {
    auto* n = out->Add();
    n->set_name(name);
    n->set_value(value);
  }
}
std::vector<std::pair<std::string, double>> GetNumbers(
    const google::protobuf::RepeatedPtrField<v1::NamedNumber>& in) {
  std::vector<std::pair<std::string, double>> out;
  for (const auto& n : in) out.emplace_back(n.name(), n.value());
  return out;
}
template <typename T, typename Wire>
void PutSlot(const T& in, Wire* out) {
  out->set_slot(in.slot.value);
  out->set_epoch(in.epoch.value);
}

const char* KindName(scheduler::WorkerKind kind) {
  return kind == scheduler::WorkerKind::kDevice   ? "device"
         : kind == scheduler::WorkerKind::kReward ? "reward"
                                                  : "environment";
}

const char* RoleName(Role r) {
  return r == Role::kRollout ? "rollout" : r == Role::kActor ? "actor" : "none";
}
Role RoleOf(const std::string& s) {
  return s == "rollout" ? Role::kRollout : s == "actor" ? Role::kActor : Role::kNone;
}

// Incarnations start at 0; on the wire 0 means none.
int64_t PutInc(Incarnation inc) { return inc.value + 1; }
Incarnation GetInc(int64_t wire) { return {wire - 1}; }

}  // namespace

void ToWire(const FromWorker& in, v1::FromWorker* out) {
  out->set_seq(in.seq);
  out->set_ack(in.ack);
  std::visit(Overload{
                 [&](const up::Hello& b) {
                   auto* o = out->mutable_hello();
                   o->set_schema(b.schema);
                   o->set_build(b.build);
                   o->set_run_id(b.run_id);
                   o->set_place(b.place);
                   o->set_kind(KindName(b.kind));
                   o->set_device_bytes(b.device_bytes);
                   o->set_pid(b.pid);
                   o->set_weights_address(b.weights_address);
                   o->set_inc(PutInc(b.inc));
                   o->set_process(b.process);
                   o->set_ctl_epoch(b.ctl_epoch);
                   o->set_received(b.received);
                   o->set_host(b.host);
                   o->set_environment_address(b.environment_address);
                   o->set_environment_token(b.environment_token);
                 },
                 [&](const up::Heartbeat& b) {
                   auto* o = out->mutable_heartbeat();
                   o->set_op(b.op);
                   o->set_op_seq(b.op_seq);
                   o->set_kv_usage(b.kv_usage);
                   o->set_running(b.running);
                   o->set_waiting(b.waiting);
                   o->set_step_s(b.step_s);
                   o->set_rss_bytes(b.rss_bytes);
                   o->set_has_engine(b.has_engine);
                   o->set_paced_steps(b.paced_steps);
                   o->set_paced_missed(b.paced_missed);
                   o->set_pace_scale_needed(b.pace_scale_needed);
                   o->set_decode_s(b.decode_s);
                 },
                 [&](const up::StepTokens& b) {
                   auto* o = out->mutable_tokens();
                   o->set_step_s(b.step_s);
                   o->set_kv_usage(b.kv_usage);
                   o->set_running(b.running);
                   o->set_waiting(b.waiting);
                   o->set_prefill_tokens(b.prefill_tokens);
                   o->set_prefix_hit_tokens(b.prefix_hit_tokens);
                   for (const auto& c : b.chunks) {
                     auto* p = o->add_chunks();
                     Put(c.tid, p->mutable_tid());
                     p->set_att(c.att);
                     if (!c.tokens.ids.empty() || !c.tokens.fragment.empty())
                       p->set_segment(sample::Encode(c.tokens));
                     p->set_end(c.ended ? 1 + static_cast<int>(c.end) : 0);
                     p->set_why(c.why);
                     p->set_from(c.from);
                   }
                 },
                 [&](const up::Graded& b) {
                   auto* o = out->mutable_graded();
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_outcome(static_cast<int>(b.outcome));
                   o->set_reward(b.reward);
                   PutNumbers(b.rewards, o->mutable_rewards());
                   o->set_why(b.why);
                   o->set_seconds(b.seconds);
                 },
                 [&](const up::EnvStepped& b) {
                   auto* o = out->mutable_env_stepped();
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_turn(b.turn);
                   o->set_outcome(static_cast<int>(b.outcome));
                   o->set_observation(b.observation);
                   o->set_reward(b.reward);
                   o->set_done(b.done);
                   PutNumbers(b.rewards, o->mutable_rewards());
                   o->set_history(b.history);
                   o->set_why(b.why);
                   o->set_seconds(b.seconds);
                   o->set_timed_out(b.timed_out);
                   o->set_replayed(b.replayed);
                   o->set_state(b.state);
                 },
                 [&](const up::Drained& b) { PutSlot(b, out->mutable_drained()); },
                 [&](const up::Released& b) {
                   PutSlot(b, out->mutable_released());
                   out->mutable_released()->set_free_bytes(b.free_bytes);
                 },
                 [&](const up::Granted& b) { PutSlot(b, out->mutable_granted()); },
                 [&](const up::Loaded& b) {
                   auto* o = out->mutable_loaded();
                   Put(b.version, o->mutable_version());
                   o->set_digest(b.digest);
                   o->set_error(b.error);
                   o->set_bytes(b.bytes);
                   o->set_seconds(b.seconds);
                 },
                 [&](const up::StateReady& b) {
                   auto* o = out->mutable_state_ready();
                   o->set_step(b.step.value);
                   o->set_weights_digest(b.weights_digest);
                   o->set_error(b.error);
                 },
                 [&](const up::TrainDone& b) {
                   auto* o = out->mutable_train_done();
                   o->set_step(b.step.value);
                   o->set_lease(b.lease);
                   o->set_finite(b.finite);
                   o->set_weights_digest(b.weights_digest);
                   o->set_seconds(b.seconds);
                   PutNumbers(b.metrics, o->mutable_metrics());
                   for (const auto& [tid, digest] : b.rows) {
                     auto* row = o->add_rows();
                     Put(tid, row->mutable_tid());
                     row->set_digest(digest);
                   }
                 },
                 [&](const up::TrainFailed& b) {
                   auto* o = out->mutable_train_failed();
                   o->set_step(b.step.value);
                   o->set_lease(b.lease);
                   o->set_why(b.why);
                   o->set_data(b.data);
                 },
                 [&](const up::Published& b) {
                   Put(b.version, out->mutable_published()->mutable_version());
                   out->mutable_published()->set_error(b.error);
                 },
                 [&](const up::RecoveryCopied& b) {
                   out->mutable_recovery_copied()->set_step(b.step.value);
                   out->mutable_recovery_copied()->set_error(b.error);
                 },
                 [&](const up::CheckpointFiles& b) {
                   auto* o = out->mutable_checkpoint_files();
                   o->set_ckpt(b.ckpt);
                   for (const auto& f : b.files) o->add_files(f);
                   o->set_error(b.error);
                   o->set_seconds(b.seconds);
                   o->set_weights_digest(b.weights_digest);
                   o->set_instruction_set(b.instruction_set);
                 },
                 [&](const up::GroupFormed& b) {
                   out->mutable_group_formed()->set_group_epoch(b.group_epoch);
                   out->mutable_group_formed()->set_error(b.error);
                 },
                 [&](const up::StepAborted& b) {
                   out->mutable_step_aborted()->set_lease(b.lease);
                   out->mutable_step_aborted()->set_state_step(b.step.value + 1);
                   out->mutable_step_aborted()->set_weights_digest(b.weights_digest);
                 },
                 [&](const up::FinalSaved& b) { out->mutable_final_saved()->set_error(b.error); },
                 [&](const up::Offer& b) {
                   auto* o = out->mutable_offer();
                   PutSlot(b, o);
                   o->set_role(RoleName(b.role));
                   Put(b.holds, o->mutable_holds());
                   o->set_holds_digest(b.holds_digest);
                   o->set_state_step(b.state_step.value + 1);
                   o->set_state_digest(b.state_digest);
                   for (const up::OfferedAttempt& a : b.attempts) {
                     auto* p = o->add_attempts();
                     Put(a.tid, p->mutable_tid());
                     p->set_att(a.att);
                     p->set_tokens(a.tokens);
                     Put(a.oldest, p->mutable_oldest());
                     Put(a.newest, p->mutable_newest());
                   }
                   o->set_last(b.last);
                 },
             },
             in.body);
}

StatusOr<FromWorker> FromWire(const v1::FromWorker& in) {
  FromWorker out;
  out.seq = in.seq();
  out.ack = in.ack();
  switch (in.body_case()) {
    case v1::FromWorker::kHello: {
      const auto& b = in.hello();
      up::Hello o;
      o.schema = b.schema();
      o.build = b.build();
      o.run_id = b.run_id();
      o.place = b.place();
      bool known = false;
      for (const auto kind : {scheduler::WorkerKind::kDevice, scheduler::WorkerKind::kReward,
                              scheduler::WorkerKind::kEnvironment}) {
        if (b.kind() != KindName(kind)) continue;
        o.kind = kind;
        known = true;
      }
      if (!known)
        return InvalidArgument("hello: kind is \"" + b.kind() +
                               "\"; it should be device, reward or environment");
      o.device_bytes = b.device_bytes();
      o.pid = b.pid();
      o.weights_address = b.weights_address();
      o.inc = GetInc(b.inc());
      o.process = b.process();
      o.ctl_epoch = b.ctl_epoch();
      o.received = b.received();
      o.host = b.host();
      o.environment_address = b.environment_address();
      o.environment_token = b.environment_token();
      out.body = std::move(o);
      return out;
    }
    case v1::FromWorker::kHeartbeat: {
      const auto& b = in.heartbeat();
      out.body = up::Heartbeat{b.op(),          b.op_seq(),       b.kv_usage(),          b.running(),
                               b.waiting(),     b.step_s(),       b.rss_bytes(),         b.has_engine(),
                               b.paced_steps(), b.paced_missed(), b.pace_scale_needed(), b.decode_s()};
      return out;
    }
    case v1::FromWorker::kTokens: {
      const auto& b = in.tokens();
      up::StepTokens o;
      o.step_s = b.step_s();
      o.kv_usage = b.kv_usage();
      o.running = b.running();
      o.waiting = b.waiting();
      o.prefill_tokens = b.prefill_tokens();
      o.prefix_hit_tokens = b.prefix_hit_tokens();
      for (const auto& c : b.chunks()) {
        if (c.end() < 0 || c.end() > 1 + static_cast<int>(ChunkEnd::kError))
          return InvalidArgument("tokens: unknown end");
        up::ChunkDelta d;
        d.tid = Get(c.tid());
        d.att = c.att();
        if (!c.segment().empty()) {
          TP_ASSIGN_OR_RETURN(d.tokens, sample::DecodeSegment(c.segment()));
        }
        d.ended = c.end() > 0;
        if (d.ended) d.end = static_cast<ChunkEnd>(c.end() - 1);
        d.why = c.why();
        d.from = c.from();
        if (d.from < 0) return InvalidArgument("tokens: a negative offset");
        o.chunks.push_back(std::move(d));
      }
      out.body = std::move(o);
      return out;
    }
    case v1::FromWorker::kOffer: {
      const auto& b = in.offer();
      up::Offer o;
      o.slot = {b.slot()};
      o.epoch = {b.epoch()};
      o.role = RoleOf(b.role());
      o.holds = Get(b.holds());
      o.holds_digest = b.holds_digest();
      o.state_step = {b.state_step() - 1};
      o.state_digest = b.state_digest();
      if (b.attempts_size() > static_cast<int>(up::kOfferedAttempts))
        return InvalidArgument("offer: more attempts than a frame may have");
      for (const auto& a : b.attempts())
        o.attempts.push_back({Get(a.tid()), a.att(), a.tokens(), Get(a.oldest()), Get(a.newest())});
      o.last = b.last();
      out.body = std::move(o);
      return out;
    }
    case v1::FromWorker::kGraded: {
      const auto& b = in.graded();
      if (b.outcome() < 0 || b.outcome() > 2) return InvalidArgument("graded: unknown outcome");
      out.body = up::Graded{Get(b.tid()),
                            b.att(),
                            static_cast<GradeOutcome>(b.outcome()),
                            b.reward(),
                            GetNumbers(b.rewards()),
                            b.why(),
                            b.seconds()};
      return out;
    }
    case v1::FromWorker::kEnvStepped: {
      const auto& b = in.env_stepped();
      if (b.outcome() < 0 || b.outcome() > 2) return InvalidArgument("env_stepped: unknown outcome");
      out.body =
          up::EnvStepped{Get(b.tid()),    b.att(),     b.turn(), static_cast<GradeOutcome>(b.outcome()),
                         b.observation(), b.reward(),  b.done(), GetNumbers(b.rewards()),
                         b.history(),     b.state(),   b.why(),  b.seconds(),
                         b.timed_out(),   b.replayed()};
      return out;
    }
    case v1::FromWorker::kDrained:
      out.body = up::Drained{{in.drained().slot()}, {in.drained().epoch()}};
      return out;
    case v1::FromWorker::kReleased:
      out.body = up::Released{{in.released().slot()}, {in.released().epoch()}, in.released().free_bytes()};
      return out;
    case v1::FromWorker::kGranted:
      out.body = up::Granted{{in.granted().slot()}, {in.granted().epoch()}};
      return out;
    case v1::FromWorker::kLoaded: {
      const auto& b = in.loaded();
      out.body = up::Loaded{Get(b.version()), b.digest(), b.error(), b.bytes(), b.seconds()};
      return out;
    }
    case v1::FromWorker::kStateReady: {
      const auto& b = in.state_ready();
      out.body = up::StateReady{{b.step()}, b.weights_digest(), b.error()};
      return out;
    }
    case v1::FromWorker::kTrainDone: {
      const auto& b = in.train_done();
      up::TrainDone done{
          {b.step()}, b.lease(), b.finite(), b.weights_digest(), b.seconds(), GetNumbers(b.metrics()), {}};
      for (const auto& row : b.rows()) done.rows.emplace_back(Get(row.tid()), row.digest());
      out.body = std::move(done);
      return out;
    }
    case v1::FromWorker::kTrainFailed: {
      const auto& b = in.train_failed();
      out.body = up::TrainFailed{{b.step()}, b.lease(), b.why(), b.data()};
      return out;
    }
    case v1::FromWorker::kPublished:
      out.body = up::Published{Get(in.published().version()), in.published().error()};
      return out;
    case v1::FromWorker::kRecoveryCopied:
      out.body = up::RecoveryCopied{{in.recovery_copied().step()}, in.recovery_copied().error()};
      return out;
    case v1::FromWorker::kCheckpointFiles: {
      const auto& b = in.checkpoint_files();
      out.body = up::CheckpointFiles{b.ckpt(),           {b.files().begin(), b.files().end()},
                                     b.error(),          b.seconds(),
                                     b.weights_digest(), b.instruction_set()};
      return out;
    }
    case v1::FromWorker::kFinalSaved:
      out.body = up::FinalSaved{in.final_saved().error()};
      return out;
    case v1::FromWorker::kGroupFormed:
      out.body = up::GroupFormed{in.group_formed().group_epoch(), in.group_formed().error()};
      return out;
    case v1::FromWorker::kStepAborted:
      out.body = up::StepAborted{in.step_aborted().lease(),
                                 {in.step_aborted().state_step() - 1},
                                 in.step_aborted().weights_digest()};
      return out;
    case v1::FromWorker::BODY_NOT_SET:
      break;
  }
  return InvalidArgument("a message without a body, or of a kind this build does not know");
}

void ToWire(const ToWorker& in, v1::ToWorker* out) {
  out->set_seq(in.seq);
  out->set_ack(in.ack);
  const auto slot_command = [](const auto& b, v1::SlotCommand* o) {
    o->set_slot(b.slot.value);
    o->set_epoch(b.epoch.value);
  };
  std::visit(Overload{
                 [&](const down::Welcome& b) {
                   auto* o = out->mutable_welcome();
                   o->set_place(b.place);
                   o->set_slot(b.slot.value);
                   o->set_inc(PutInc(b.inc));
                   o->set_lease_s(b.lease_s);
                   o->set_config_yaml(b.config_yaml);
                   o->set_run_dir(b.run_dir);
                   o->set_run_id(b.run_id);
                   o->set_model_dir(b.model_dir);
                   o->set_run_clock_ns(b.run_clock_ns);
                 },
                 [&](const down::Attached& b) {
                   out->mutable_attached()->set_ctl_epoch(b.ctl_epoch);
                   out->mutable_attached()->set_received(b.received);
                 },
                 [&](const down::Resend& b) {
                   auto* o = out->mutable_resend();
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_from(b.from);
                 },
                 [&](const down::Refuse& b) { out->mutable_refuse()->set_why(b.why); },
                 [&](const down::LeaseRenewal&) { out->mutable_lease(); },
                 [&](const down::StartChunk& b) {
                   auto* o = out->mutable_start_chunk();
                   o->set_slot(b.slot.value);
                   o->set_epoch(b.epoch.value);
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_gid(b.gid.value);
                   Put(b.version, o->mutable_version());
                   o->mutable_prompt()->Add(b.prompt.begin(), b.prompt.end());
                   o->mutable_generated()->Add(b.generated.begin(), b.generated.end());
                   o->set_chunk_tokens(b.chunk_tokens);
                   o->set_max_new_tokens(b.max_new_tokens);
                   o->set_greedy(b.greedy);
                   o->set_starts(b.starts);
                   o->set_environment(b.environment);
                   o->set_environment_token(b.environment_token);
                   o->set_routing_bytes(b.routing_bytes);
                 },
                 [&](const down::CancelChunk& b) {
                   Put(b.tid, out->mutable_cancel_chunk()->mutable_tid());
                   out->mutable_cancel_chunk()->set_att(b.att);
                 },
                 [&](const down::ForgetGroup& b) { out->mutable_forget_group()->set_gid(b.gid.value); },
                 [&](const down::Grade& b) {
                   auto* o = out->mutable_grade();
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_prompt(b.prompt);
                   o->set_answer(b.answer);
                   for (const auto& [name, value] : b.fields) {
                     auto* f = o->add_fields();
                     f->set_name(name);
                     f->set_value(value);
                   }
                   o->set_text(b.text);
                   o->set_response_tokens(b.response_tokens);
                   o->set_max_new_tokens(b.max_new_tokens);
                   o->set_ended(b.ended);
                   o->set_timeout_s(b.timeout_s);
                 },
                 [&](const down::EnvStep& b) {
                   auto* o = out->mutable_env_step();
                   Put(b.tid, o->mutable_tid());
                   o->set_att(b.att);
                   o->set_turn(b.turn);
                   for (const std::string& action : b.actions) o->add_actions(action);
                   o->set_timeout_s(b.timeout_s);
                 },
                 [&](const down::Drain& b) { slot_command(b, out->mutable_drain()); },
                 [&](const down::Release& b) {
                   slot_command(b, out->mutable_release());
                   out->mutable_release()->set_need_bytes(b.need_bytes);
                 },
                 [&](const down::Grant& b) {
                   slot_command(b, out->mutable_grant());
                   out->mutable_grant()->set_role(RoleName(b.role));
                 },
                 [&](const down::InitState&) { out->mutable_init_state(); },
                 [&](const down::RestoreState& b) {
                   auto* o = out->mutable_restore_state();
                   o->set_ckpt(b.ckpt);
                   o->set_step(b.step.value);
                   o->set_weights_digest(b.weights_digest);
                   o->set_dir(b.dir);
                 },
                 [&](const down::Train& b) {
                   auto* o = out->mutable_train();
                   o->set_slot(b.slot.value);
                   o->set_epoch(b.epoch.value);
                   o->set_lease(b.lease);
                   o->set_step(b.step.value);
                   Put(b.version, o->mutable_version());
                   o->set_rows(b.rows);
                   o->set_group_epoch(b.group_epoch);
                   o->set_rank(b.rank);
                   o->set_world(b.world);
                   o->mutable_groups()->Add(b.groups.begin(), b.groups.end());
                 },
                 [&](const down::AbortStep& b) {
                   auto* o = out->mutable_abort_step();
                   o->set_slot(b.slot.value);
                   o->set_epoch(b.epoch.value);
                   o->set_lease(b.lease);
                   o->set_step(b.step.value);
                   o->set_group_epoch(b.group_epoch);
                 },
                 [&](const down::FetchState& b) {
                   auto* o = out->mutable_fetch_state();
                   o->set_slot(b.slot.value);
                   o->set_epoch(b.epoch.value);
                   o->set_step(b.step.value);
                   o->set_weights_digest(b.weights_digest);
                   o->set_address(b.address);
                 },
                 [&](const down::FormGroup& b) {
                   auto* o = out->mutable_form_group();
                   o->set_group_epoch(b.group_epoch);
                   o->set_rank(b.rank);
                   o->set_size(b.size);
                   o->set_store(b.store);
                   o->set_timeout_s(b.timeout_s);
                 },
                 [&](const down::CopyRecovery& b) { out->mutable_copy_recovery()->set_step(b.step.value); },
                 [&](const down::Publish& b) {
                   Put(b.version, out->mutable_publish()->mutable_version());
                   out->mutable_publish()->set_digest(b.digest);
                 },
                 [&](const down::Load& b) {
                   auto* o = out->mutable_load();
                   Put(b.version, o->mutable_version());
                   o->set_digest(b.digest);
                   o->set_address(b.address);
                   o->set_alias(b.alias);
                 },
                 [&](const down::Admit& b) { Put(b.version, out->mutable_admit()->mutable_version()); },
                 [&](const down::WriteCheckpoint& b) {
                   auto* o = out->mutable_write_checkpoint();
                   o->set_ckpt(b.ckpt);
                   o->set_step(b.step.value);
                   o->set_dir(b.dir);
                 },
                 [&](const down::SaveFinal& b) { out->mutable_save_final()->set_dir(b.dir); },
                 [&](const down::Shutdown& b) { out->mutable_shutdown()->set_why(b.why); },
             },
             in.body);
}

StatusOr<ToWorker> FromWire(const v1::ToWorker& in) {
  ToWorker out;
  out.seq = in.seq();
  out.ack = in.ack();
  switch (in.body_case()) {
    case v1::ToWorker::kWelcome: {
      const auto& b = in.welcome();
      out.body = down::Welcome{GetInc(b.inc()), b.place(),  {b.slot()},    b.lease_s(),     b.config_yaml(),
                               b.run_dir(),     b.run_id(), b.model_dir(), b.run_clock_ns()};
      return out;
    }
    case v1::ToWorker::kAttached:
      out.body = down::Attached{in.attached().ctl_epoch(), in.attached().received()};
      return out;
    case v1::ToWorker::kResend:
      out.body = down::Resend{Get(in.resend().tid()), in.resend().att(), in.resend().from()};
      return out;
    case v1::ToWorker::kRefuse:
      out.body = down::Refuse{in.refuse().why()};
      return out;
    case v1::ToWorker::kLease:
      out.body = down::LeaseRenewal{};
      return out;
    case v1::ToWorker::kStartChunk: {
      const auto& b = in.start_chunk();
      down::StartChunk o;
      o.slot = {b.slot()};
      o.epoch = {b.epoch()};
      o.tid = Get(b.tid());
      o.att = b.att();
      o.gid = {b.gid()};
      o.version = Get(b.version());
      o.prompt.assign(b.prompt().begin(), b.prompt().end());
      o.generated.assign(b.generated().begin(), b.generated().end());
      o.chunk_tokens = b.chunk_tokens();
      o.max_new_tokens = b.max_new_tokens();
      o.greedy = b.greedy();
      o.starts = b.starts();
      o.environment = b.environment();
      o.environment_token = b.environment_token();
      o.routing_bytes = b.routing_bytes();
      out.body = std::move(o);
      return out;
    }
    case v1::ToWorker::kCancelChunk:
      out.body = down::CancelChunk{Get(in.cancel_chunk().tid()), in.cancel_chunk().att()};
      return out;
    case v1::ToWorker::kForgetGroup:
      out.body = down::ForgetGroup{{in.forget_group().gid()}};
      return out;
    case v1::ToWorker::kGrade: {
      const auto& b = in.grade();
      down::Grade o;
      o.tid = Get(b.tid());
      o.att = b.att();
      o.prompt = b.prompt();
      o.answer = b.answer();
      for (const auto& f : b.fields()) o.fields.emplace_back(f.name(), f.value());
      o.text = b.text();
      o.response_tokens = b.response_tokens();
      o.max_new_tokens = b.max_new_tokens();
      o.ended = b.ended();
      o.timeout_s = b.timeout_s();
      out.body = std::move(o);
      return out;
    }
    case v1::ToWorker::kEnvStep: {
      const auto& b = in.env_step();
      out.body = down::EnvStep{
          Get(b.tid()), b.att(), b.turn(), {b.actions().begin(), b.actions().end()}, b.timeout_s()};
      return out;
    }
    case v1::ToWorker::kDrain:
      out.body = down::Drain{{in.drain().slot()}, {in.drain().epoch()}};
      return out;
    case v1::ToWorker::kRelease:
      out.body = down::Release{{in.release().slot()}, {in.release().epoch()}, in.release().need_bytes()};
      return out;
    case v1::ToWorker::kGrant:
      out.body = down::Grant{{in.grant().slot()}, {in.grant().epoch()}, RoleOf(in.grant().role())};
      return out;
    case v1::ToWorker::kInitState:
      out.body = down::InitState{};
      return out;
    case v1::ToWorker::kRestoreState: {
      const auto& b = in.restore_state();
      out.body = down::RestoreState{b.ckpt(), {b.step()}, b.weights_digest(), b.dir()};
      return out;
    }
    case v1::ToWorker::kTrain: {
      const auto& b = in.train();
      out.body = down::Train{
          {b.slot()}, {b.epoch()},     b.lease(), {b.step()}, Get(b.version()),
          b.rows(),   b.group_epoch(), b.rank(),  b.world(),  {b.groups().begin(), b.groups().end()}};
      return out;
    }
    case v1::ToWorker::kAbortStep: {
      const auto& b = in.abort_step();
      out.body = down::AbortStep{{b.slot()}, {b.epoch()}, b.lease(), {b.step()}, b.group_epoch()};
      return out;
    }
    case v1::ToWorker::kFetchState: {
      const auto& b = in.fetch_state();
      out.body = down::FetchState{{b.slot()}, {b.epoch()}, {b.step()}, b.weights_digest(), b.address()};
      return out;
    }
    case v1::ToWorker::kFormGroup: {
      const auto& b = in.form_group();
      out.body = down::FormGroup{b.group_epoch(), b.rank(), b.size(), b.store(), b.timeout_s()};
      return out;
    }
    case v1::ToWorker::kCopyRecovery:
      out.body = down::CopyRecovery{{in.copy_recovery().step()}};
      return out;
    case v1::ToWorker::kPublish:
      out.body = down::Publish{Get(in.publish().version()), in.publish().digest()};
      return out;
    case v1::ToWorker::kLoad:
      out.body =
          down::Load{Get(in.load().version()), in.load().digest(), in.load().address(), in.load().alias()};
      return out;
    case v1::ToWorker::kAdmit:
      out.body = down::Admit{Get(in.admit().version())};
      return out;
    case v1::ToWorker::kWriteCheckpoint: {
      const auto& b = in.write_checkpoint();
      out.body = down::WriteCheckpoint{b.ckpt(), {b.step()}, b.dir()};
      return out;
    }
    case v1::ToWorker::kSaveFinal:
      out.body = down::SaveFinal{in.save_final().dir()};
      return out;
    case v1::ToWorker::kShutdown:
      out.body = down::Shutdown{in.shutdown().why()};
      return out;
    case v1::ToWorker::BODY_NOT_SET:
      break;
  }
  return InvalidArgument("a command without a body, or of a kind this build does not know");
}

void ToScoreRequest(const down::Grade& in, v1::ScoreRequest* out) {
  out->set_prompt(in.prompt);
  out->set_answer(in.answer);
  for (const auto& [name, value] : in.fields) (*out->mutable_fields())[name] = value;
  out->set_text(in.text);
  out->set_response_tokens(in.response_tokens);
  out->set_max_new_tokens(in.max_new_tokens);
  out->set_ended(in.ended);
  out->set_sample(ToString(in.tid));
}

namespace {

template <typename Message, typename Wire>
size_t Together(const std::deque<Message>& batch, size_t at, Wire* out) {
  ToWire(batch[at++], out);
  for (size_t bytes = out->ByteSizeLong(); at < batch.size(); ++at) {
    Wire* next = out->add_behind();
    ToWire(batch[at], next);
    bytes += next->ByteSizeLong();
    if (bytes <= kTogetherBytes) continue;
    out->mutable_behind()->RemoveLast();
    break;
  }
  return at;
}

template <typename Message, typename Wire>
StatusOr<std::vector<Message>> Apart(const Wire& in) {
  std::vector<Message> out;
  out.reserve(1 + static_cast<size_t>(in.behind_size()));
  TP_ASSIGN_OR_RETURN(Message first, FromWire(in));
  out.push_back(std::move(first));
  for (const Wire& next : in.behind()) {
    if (next.behind_size() > 0) return InvalidArgument("a message behind another has messages behind it");
    TP_ASSIGN_OR_RETURN(Message message, FromWire(next));
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace

size_t ToWireTogether(const std::deque<ToWorker>& batch, size_t at, v1::ToWorker* out) {
  return Together(batch, at, out);
}
size_t ToWireTogether(const std::deque<FromWorker>& batch, size_t at, v1::FromWorker* out) {
  return Together(batch, at, out);
}
StatusOr<std::vector<ToWorker>> FromWireTogether(const v1::ToWorker& in) { return Apart<ToWorker>(in); }
StatusOr<std::vector<FromWorker>> FromWireTogether(const v1::FromWorker& in) { return Apart<FromWorker>(in); }

}  // namespace tidepool::workers
