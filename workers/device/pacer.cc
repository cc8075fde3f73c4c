#include "workers/device/pacer.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace tidepool::workers {
namespace {

constexpr double kBinFactor = 1.1, kSmallestRatio = 1e-3;
constexpr double kAllowedMisses = 0.005;
constexpr auto kCatchUp = std::chrono::milliseconds(5);
constexpr auto kAsk = std::chrono::milliseconds(5);

}  // namespace

StatusOr<std::unique_ptr<Pacer>> Pacer::Create(const ClusterConfig& cluster) {
  if (cluster.pace.empty()) return std::unique_ptr<Pacer>();
  TP_ASSIGN_OR_RETURN(config::Pace pace, config::LoadPace(cluster.pace));
  return std::unique_ptr<Pacer>(new Pacer(std::move(pace), cluster.pace_scale));
}

Pacer::Pacer(config::Pace pace, double scale)
    : pace_(std::move(pace)),
      cost_(pace_.hardware, pace_.model, pace_.devices_per_slot, pace_.engine_efficiency),
      scale_(scale) {}

double Pacer::EngineStep(int64_t rows, int64_t context, int64_t prefill) const {
  const auto factor = static_cast<double>(pace_.token_factor);
  double seconds =
      rows > 0 ? cost_.DecodeSteps(rows, factor * static_cast<double>(context), pace_.token_factor) : 0;
  if (prefill > 0) {
    const double each = rows > 0 ? factor * static_cast<double>(context) / static_cast<double>(rows) / 2 : 0;
    seconds += cost_.Prefill(factor * static_cast<double>(prefill), each);
  }
  return seconds;
}

double Pacer::TrainStep(double tokens, double squares, int64_t world) const {
  const auto factor = static_cast<double>(pace_.token_factor);
  return cost_.Train(factor * tokens, factor * factor * squares, 1, false, pace_.train_efficiency) +
         cost_.AllReduce(world);
}

double Pacer::Score(double tokens, double squares) const {
  const auto factor = static_cast<double>(pace_.token_factor);
  return cost_.Score(factor * tokens, factor * factor * squares, pace_.train_efficiency);
}

double Pacer::LoadWeights() const {
  return cost_.weight_bytes() /
         (pace_.hardware.net_bytes_per_s * static_cast<double>(pace_.devices_per_slot));
}

double Pacer::CopyState() const {
  return 14 * pace_.model.parameters /
         (pace_.hardware.net_bytes_per_s * static_cast<double>(pace_.devices_per_slot));
}

void Pacer::Keep(Clock::time_point begin, double modelled, const std::function<bool()>& stop) {
  const double wanted = modelled * scale_;
  if (wanted <= 0) return;
  const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wanted));
  // The step began where the last one was due, if hardly anything happened between them: what a sleep ran
  // over.
  if (begin > due_ && begin - due_ < std::min<Clock::duration>(length / 4, kCatchUp)) begin = due_;
  const auto due = begin + length;
  const auto done = Clock::now();
  due_ = std::max(due, done);
  const double ratio =
      std::chrono::duration<double>(done - begin).count() / modelled;  // the scale this step needs
  const int bin =
      std::clamp(static_cast<int>(std::ceil(std::log(std::max(ratio, kSmallestRatio) / kSmallestRatio) /
                                            std::log(kBinFactor))),
                 0, kBins - 1);
  {
    const MutexLock lock(mu_);
    ++steps_;
    missed_ += done > due ? 1 : 0;
    ++ratios_[static_cast<size_t>(bin)];
  }
  while (Clock::now() < due) {
    if (stop && stop()) {
      due_ = Clock::now();
      return;
    }
    std::this_thread::sleep_until(stop ? std::min(due, Clock::now() + kAsk) : due);
  }
}

PaceCount Pacer::Count() const {
  const MutexLock lock(mu_);
  PaceCount c{steps_, missed_, 0};
  int64_t above = 0;
  for (int i = kBins - 1; i >= 0; --i) {
    above += ratios_[static_cast<size_t>(i)];
    if (static_cast<double>(above) > kAllowedMisses * static_cast<double>(steps_)) {
      c.scale_needed = kSmallestRatio * std::pow(kBinFactor, i);
      break;
    }
  }
  return c;
}

}  // namespace tidepool::workers
