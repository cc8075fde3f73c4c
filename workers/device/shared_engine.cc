#include "workers/device/shared_engine.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <stdexcept>

namespace tidepool::workers {
namespace {

// One delta for each request, whatever steps it had.
void Join(std::vector<engine::Delta>& made, engine::Delta d) {
  const auto before = std::ranges::find_if(made, [&](const engine::Delta& m) {
    return m.tid == d.tid && m.attempt == d.attempt && m.adapter == d.adapter && m.version == d.version &&
           m.finish == engine::FinishReason::kNone;
  });
  if (before == made.end()) {
    made.push_back(std::move(d));
    return;
  }
  before->ids.insert(before->ids.end(), d.ids.begin(), d.ids.end());
  before->logprobs.insert(before->logprobs.end(), d.logprobs.begin(), d.logprobs.end());
  before->log_kept.insert(before->log_kept.end(), d.log_kept.begin(), d.log_kept.end());
  before->routing += d.routing;
  before->finish = d.finish;
  before->error = std::move(d.error);
}

}  // namespace

EngineSeat::EngineSeat(std::unique_ptr<engine::Engine> engine)
    : EngineSeat(std::make_shared<SharedEngine>(nullptr, std::move(engine)), kOwnWeights) {}

EngineSeat::EngineSeat(std::shared_ptr<SharedEngine> engine, const model::Weights& adapter, Version version,
                       uint64_t seed)
    : EngineSeat(engine, engine->engine_->AddAdapter(adapter, version, seed)) {
  mine_->holds_memory = false;
}

EngineSeat::EngineSeat(std::shared_ptr<SharedEngine> engine, int32_t adapter)
    : shared_(std::move(engine)), mine_(std::make_shared<SharedEngine::Seated>()), adapters_{adapter} {
  shared_->seats_[adapter] = mine_;
}

EngineSeat::~EngineSeat() {
  for (const int32_t adapter : adapters_) {
    shared_->seats_.erase(adapter);
    if (adapter != kOwnWeights && shared_->engine_ != nullptr) shared_->engine_->RemoveAdapter(adapter);
  }
}

void EngineSeat::AddAdapter(std::unique_ptr<model::Weights> adapter, const Version& version, uint64_t seed) {
  adapters_.push_back(shared_->engine_->AddAdapter(*adapter, version, seed));
  shared_->seats_[adapters_.back()] = mine_;
  further_.push_back(std::move(adapter));
}

Status EngineSeat::Add(engine::ChunkRequest request) {
  const auto number = static_cast<size_t>(request.adapter - kOwnWeights);
  if (request.adapter < kOwnWeights || number >= adapters_.size())
    return InvalidArgument("no adapter " + std::to_string(request.adapter) + " is here");
  request.adapter = adapters_[number];
  if (shared_->engine_ == nullptr) return Failed();
  const std::tuple name(request.adapter, request.tid, request.attempt);
  TP_RETURN_IF_ERROR(shared_->engine_->Add(std::move(request)));
  mine_->running.insert(name);
  return OkStatus();
}

bool EngineSeat::Cancel(const SampleId& tid, int32_t attempt) {
  bool was = std::erase_if(mine_->made,
                           [&](const engine::Delta& d) { return d.tid == tid && d.attempt == attempt; }) > 0;
  for (const int32_t adapter : adapters_) {
    was = mine_->running.erase({adapter, tid, attempt}) > 0 || was;
    if (shared_->engine_ != nullptr) was = shared_->engine_->Cancel(tid, attempt, adapter) || was;
  }
  return was;
}

void EngineSeat::ForgetGroup(GroupId gid) {
  if (shared_->engine_ == nullptr) return;
  for (const int32_t adapter : adapters_) shared_->engine_->ForgetGroup(gid, adapter);
}

void EngineSeat::SetVersion(Version version, KvOnUpdate kv) {
  if (shared_->engine_ == nullptr) return;
  for (const int32_t adapter : adapters_) shared_->engine_->SetVersion(adapter, version, kv);
}

void EngineSeat::SetTokenBytes(engine::TokenBytes bytes) {
  if (shared_->engine_ != nullptr) shared_->engine_->SetTokenBytes(std::move(bytes));
}

model::MemoryUse EngineSeat::held() const {
  return shared_->engine_ == nullptr ? model::MemoryUse() : shared_->engine_->held();
}

Status EngineSeat::Failed() const {
  return Unavailable("the engine that several runs share has failed: " + shared_->failed_);
}

std::vector<engine::Delta> EngineSeat::Drain() {
  std::vector<engine::Delta> ended;
  for (const int32_t adapter : adapters_) {
    if (shared_->engine_ != nullptr)
      std::ranges::move(shared_->engine_->Drain(adapter), std::back_inserter(ended));
  }
  // What others' steps made of a chunk, to its end, and was not asked for: it is made again.
  for (const engine::Delta& d : std::exchange(mine_->made, {})) {
    if (d.finish == engine::FinishReason::kNone) continue;
    engine::Delta& gone = ended.emplace_back();
    gone.tid = d.tid;
    gone.attempt = d.attempt;
    gone.adapter = d.adapter;
    gone.finish = engine::FinishReason::kCancelled;
  }
  mine_->running.clear();
  return ended;
}

bool EngineSeat::HasWork() const {
  return (mine_->holds_memory && !mine_->running.empty()) || !mine_->made.empty();
}

engine::StepOutput EngineSeat::Step() {
  if (shared_->engine_ == nullptr) throw std::runtime_error(Failed().message());
  if (mine_->made.empty()) {
    engine::StepOutput out;
    try {
      out = shared_->engine_->Step();
    } catch (const std::exception& e) {
      shared_->failed_ = e.what();
      shared_->engine_.reset();
      throw;
    }
    for (const auto& [adapter, counts] : out.stats.by_adapter) shared_->seats_.at(adapter)->counts += counts;
    shared_->stats_ = std::move(out.stats);
    for (engine::Delta& d : out.deltas) {
      SharedEngine::Seated& seat = *shared_->seats_.at(d.adapter);
      if (d.finish != engine::FinishReason::kNone) seat.running.erase({d.adapter, d.tid, d.attempt});
      Join(seat.made, std::move(d));
    }
  }
  engine::StepOutput mine_of_it{.deltas = std::exchange(mine_->made, {}), .stats = shared_->stats_};
  static_cast<engine::RowCounts&>(mine_of_it.stats) = std::exchange(mine_->counts, {});
  return mine_of_it;
}

Status EngineSeat::AcquireMemory() {
  if (shared_->engine_ == nullptr) return Failed();
  TP_RETURN_IF_ERROR(shared_->engine_->AcquireMemory());
  mine_->holds_memory = true;
  return OkStatus();
}

void EngineSeat::ReleaseMemory() {
  mine_->holds_memory = false;
  const bool held =
      std::ranges::any_of(shared_->seats_, [](const auto& s) { return s.second->holds_memory; });
  if (!held && shared_->engine_ != nullptr) (void)shared_->engine_->ReleaseMemory();
}

}  // namespace tidepool::workers
