#include "core/train/gradient_shard.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "core/train/group_update.h"

namespace tidepool::train {
namespace {

using sharding::Interval;

constexpr int64_t kEach = sizeof(float);

// What passes the host at a time, where it has to. The same on all ranks.
constexpr int64_t kPiece = (int64_t{64} << 20) / kEach;

}  // namespace

GradientShard::GradientShard(const model::Weights& weights, std::shared_ptr<device::Device> device,
                             const Shard& shard)
    : device_(std::move(device)),
      begins_(model::GradientParts(weights.layout())),
      shard_(shard),
      of_rank_(sharding::OwnedByAll(weights.elements(), shard.world)) {}

GradientShard::~GradientShard() { Stop(); }

void GradientShard::Begin(comm::Collective& group, std::vector<uint64_t> micro_batches) {
  Stop();
  TP_CHECK(group.rank() == shard_.rank && group.size() == shard_.world &&
           micro_batches.size() == of_rank_.size())
      << "rank " << group.rank() << " of " << group.size() << " has the shard of rank " << shard_.rank;
  group_ = &group;
  micro_batches_ = std::move(micro_batches);
  passes_ = static_cast<int64_t>(*std::ranges::max_element(micro_batches_));
  pass_ = 0;
  closed_ = 0;
  const int64_t bytes = of_rank_[static_cast<size_t>(shard_.rank)].size() * kEach;
  if (sums_ == nullptr) {
    sums_ = device_->Need(bytes);
  } else if (passes_ == 0) {  // else the first pass writes it
    device_->Zero(sums_->data(), bytes);
  }
  peak_bytes_ = held_bytes();
  {
    const MutexLock lock(mu_);
    status_ = OkStatus();
  }
  if (device_->host_memory()) {
    thread_ = std::jthread([this] { Work(); });
  }
}

void GradientShard::Stop() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mu_);
      ends_ = true;
    }
    changed_.NotifyAll();
    thread_.join();  // waits: for one sum, which has the group's deadline
  }
  {
    const MutexLock lock(mu_);
    ends_ = false;
    job_.reset();
  }
  under_way_.reset();
  open_.clear();
  group_ = nullptr;
}

void GradientShard::Release() {
  Stop();
  sums_.reset();
  spare_.reset();
}

int64_t GradientShard::held_bytes() const {
  int64_t sum = 0;
  for (const auto& one : {sums_, under_way_, spare_}) sum += one == nullptr ? 0 : one->bytes();
  for (const auto& [part, values] : open_) sum += values->bytes();
  return sum;
}

FlatGradients GradientShard::sums() const {
  TP_CHECK(sums_ != nullptr && pass_ == passes_) << "pass " << pass_ << " of " << passes_;
  return {static_cast<const float*>(sums_->data()), of_rank_[static_cast<size_t>(shard_.rank)].from};
}

double GradientShard::TakeWaited() { return std::exchange(waited_s_, 0); }

std::vector<uint8_t> GradientShard::Has(int64_t pass) const {
  std::vector<uint8_t> has;
  for (const uint64_t n : micro_batches_) has.push_back(static_cast<int64_t>(n) > pass ? 1 : 0);
  return has;
}

Status GradientShard::status() {
  const MutexLock lock(mu_);
  return status_;
}

// Zeros. The memory of a part that is done serves the next one of its size; parts of other sizes are not kept
// for later, or there would be one of each.
std::shared_ptr<device::Buffer> GradientShard::Take(int64_t bytes) {
  if (spare_ != nullptr && spare_->bytes() == bytes) {
    device_->Zero(spare_->data(), bytes);
    return std::exchange(spare_, nullptr);
  }
  spare_.reset();
  return device_->Need(bytes);
}

float* GradientShard::At(int64_t offset) {
  const size_t part = static_cast<size_t>(std::ranges::upper_bound(begins_, offset) - begins_.begin()) - 1;
  auto& values = open_[part];
  if (values == nullptr) {
    // The embedding and the head are the largest parts: one that begins a pass does not stand beside the one
    // that ended the pass before.
    if (open_.size() == 1 && closed_ == 0) AwaitIdle();
    values = Take(Part(part).size() * kEach);
    peak_bytes_ = std::max(peak_bytes_, held_bytes());
  }
  return static_cast<float*>(values->data()) + (offset - begins_[part]);
}

void GradientShard::Final(int64_t from, int64_t to) {
  const size_t part = begins_.size() - 2 - closed_;
  TP_CHECK(part < begins_.size() && Part(part) == (Interval{from, to}))
      << "gradients of [" << from << ", " << to << ") are final, but not next";
  (void)At(from);  // a part that got nothing is zeros
  ++closed_;
  Give({.part = part, .pass = pass_, .values = open_.extract(part).mapped()});
}

void GradientShard::Give(Job job) {
  AwaitIdle();
  if (!status().ok()) return;  // EndPass says it
  if (!device_->host_memory()) {
    const Status done = Sum(job);
    const MutexLock lock(mu_);
    status_ = done;
    return;
  }
  under_way_ = job.values;
  {
    const MutexLock lock(mu_);
    job_ = std::move(job);
  }
  changed_.NotifyAll();
}

void GradientShard::AwaitIdle() {
  const auto start = std::chrono::steady_clock::now();
  {
    const MutexLock lock(mu_);
    // Ends with the sum that is under way, which has the group's deadline.
    while (job_.has_value()) changed_.WaitFor(mu_, std::chrono::seconds(1));
  }
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (under_way_ != nullptr) spare_ = std::exchange(under_way_, nullptr);
}

Status GradientShard::EndPass() {
  const bool mine = static_cast<int64_t>(micro_batches_[static_cast<size_t>(shard_.rank)]) > pass_;
  const size_t parts = begins_.size() - 1;
  TP_CHECK(pass_ < passes_ && closed_ == (mine ? parts : 0))
      << "pass " << pass_ << " of " << passes_ << ", " << closed_ << " of " << parts << " parts are final";
  if (!mine) {
    // What the last micro-batch left does not stand beside the place where sums of the others' come.
    AwaitIdle();
    spare_.reset();
    for (size_t part = parts; part > 0; --part) {
      const int64_t own = sharding::Common(of_rank_[static_cast<size_t>(shard_.rank)], Part(part - 1)).size();
      peak_bytes_ = std::max(peak_bytes_, held_bytes() + (pass_ > 0 ? own * kEach : 0));
      Give({.part = part - 1, .pass = pass_, .values = nullptr});
    }
  }
  ++pass_;
  closed_ = 0;
  if (pass_ == passes_) AwaitIdle();
  waited_s_ = 0;  // by no backward
  return status();
}

void GradientShard::Work() {
  for (;;) {
    std::optional<Job> job;
    {
      const MutexLock lock(mu_);
      while (!job_ && !ends_) changed_.WaitFor(mu_, std::chrono::seconds(1));
      if (ends_) return;
      job = job_;
    }
    Status done;
    try {
      done = Sum(*job);
    } catch (const std::bad_alloc&) {  // this is the thread's door
      done = ResourceExhausted("train.zero: no memory for the sums of gradients; let more slots train");
    } catch (const std::exception& e) {
      done = Internal(std::string("train.zero: ") + e.what());
    }
    {
      const MutexLock lock(mu_);
      status_ = done;
      job->values.reset();  // whoever hears of the end may give it back
      job_.reset();
    }
    changed_.NotifyAll();
  }
}

Status GradientShard::Sum(const Job& job) {
  const bool head = job.part + 2 == begins_.size();
  const std::string tag = "gradients of " + (job.part == 0 ? "the embedding"
                                             : head        ? "the last norm and the head"
                                                           : "block " + std::to_string(job.part - 1));
  return device_->host_memory() ? SumOnHost(job, tag) : SumOfDevice(job, tag);
}

float* GradientShard::SumsAt(int64_t element) {
  return static_cast<float*>(sums_->data()) + (element - of_rank_[static_cast<size_t>(shard_.rank)].from);
}

// By the thread; touches no device.
Status GradientShard::SumOnHost(const Job& job, const std::string& tag) {
  const Interval part = Part(job.part);
  const std::vector<Interval> of_rank = sharding::Within(of_rank_, part);
  const Interval& own = of_rank[static_cast<size_t>(shard_.rank)];
  const auto n = static_cast<size_t>(own.size());
  const std::span<float> values(job.values == nullptr ? nullptr : static_cast<float*>(job.values->data()),
                                job.values == nullptr ? 0 : static_cast<size_t>(part.size()));
  const std::span<float> sums = n == 0 ? std::span<float>() : std::span(SumsAt(part.from + own.from), n);
  std::vector<float> apart;
  std::span<float> into = sums;
  if (job.pass > 0 && n > 0) {  // values of this rank have served when their sums are there
    if (values.empty()) apart.resize(n);
    into = values.empty() ? std::span(apart) : values.subspan(static_cast<size_t>(own.from), n);
  }
  TP_RETURN_IF_ERROR(group_->ReduceScatterSum(
      {.values = values, .has = Has(job.pass), .of_rank = of_rank, .into = into}, tag));
  for (size_t i = 0; job.pass > 0 && i < n; ++i) sums[i] += into[i];
  return OkStatus();
}

Status GradientShard::SumOfDevice(const Job& job, const std::string& tag) {
  const Interval part = Part(job.part), mine = of_rank_[static_cast<size_t>(shard_.rank)];
  const auto add = [&](const float* sums, const Interval& of) {
    if (of.size() == 0) return;
    if (job.pass == 0) return device_->Copy(SumsAt(of.from), sums, of.size() * kEach);
    AddTo(*device_, SumsAt(of.from), sums, of.size());
  };
  if (comm::DeviceSum* sum = group_->device_sum(); sum != nullptr) {
    const auto values = job.values == nullptr ? device_->Need(part.size() * kEach) : job.values;
    auto* all = static_cast<float*>(values->data());
    TP_RETURN_IF_ERROR(sum->AllReduceSum(all, part.size(), tag));
    const Interval own = sharding::Common(mine, part);
    if (own.size() > 0) add(all + (own.from - part.from), own);
    return OkStatus();
  }
  const std::vector<uint8_t> has = Has(job.pass);
  for (int64_t at = part.from; at < part.to; at += kPiece) {
    const Interval piece{at, std::min(part.to, at + kPiece)}, own = sharding::Common(mine, piece);
    std::vector<float> values, sums(static_cast<size_t>(own.size()));
    if (job.values != nullptr)
      values = device_->Read(static_cast<const float*>(job.values->data()) + (at - part.from), piece.size());
    TP_RETURN_IF_ERROR(group_->ReduceScatterSum(
        {.values = values, .has = has, .of_rank = sharding::Within(of_rank_, piece), .into = sums}, tag));
    if (own.size() > 0)
      add(static_cast<const float*>(device_->Put(std::span<const float>(sums))->data()), own);
  }
  return OkStatus();
}

}  // namespace tidepool::train
