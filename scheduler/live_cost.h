#pragma once
// What operations of this run cost, fitted online to what its workers report. Forecasts and repacking ask it.
//
//   engine step    t(b) = t0 + c b                     b: samples in the batch; from heartbeats
//   environments   w = t waiting / decoding            seconds that a sample waits for each sampled token
//                                                      (Little's law); from heartbeats
//   training       T(m) = tokens (fixed + work / m)    m: slots; from steps. Per token, because batches
//                                                      differ in length by several times
//
// Each is a least-squares line whose samples fade by a factor of 0.95, so a change of hardware, lengths or
// load is followed within some tens of samples. Where x has hardly varied, t0 (in training: work) takes
// everything. Pure.

#include <cstdint>

namespace tidepool::scheduler {

class FadingLine {
 public:
  // `flat`: with one x only the line is flat (else it goes through the origin).
  explicit FadingLine(bool flat) : flat_(flat) {}
  void Add(double x, double y);
  [[nodiscard]] bool known() const { return n_ > 0; }
  [[nodiscard]] double intercept() const;  // never negative
  [[nodiscard]] double slope() const;      // never negative
  [[nodiscard]] double At(double x) const { return intercept() + slope() * x; }

 private:
  [[nodiscard]] bool Varied() const;
  bool flat_;
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // fading sums
};

class LiveCost {
 public:
  void EngineStep(int64_t running, double seconds);
  // All samples at a moment when a sampled token takes so long: how many wait for their environment, how many
  // are in engines; and the run's tokens so far, sampled and said by environments.
  struct Turns {
    int64_t waiting = 0, decoding = 0, decoded = 0, observed = 0;
    double step_s = 0;
  };
  void Environments(const Turns& turns);
  void TrainStep(int64_t slots, double tokens, double seconds);
  void StateCopy(double seconds);
  // Seconds; 0: nothing was measured yet.
  [[nodiscard]] double StepSeconds(double running) const { return engine_.known() ? engine_.At(running) : 0; }
  [[nodiscard]] double TrainSeconds(double slots, double tokens) const {
    return train_.known() ? tokens * train_.At(1 / slots) : 0;
  }
  // Of a step: what does not depend on its batch; of each sample of the batch; and a sample's wait for each
  // sampled token.
  [[nodiscard]] double step_fixed() const { return engine_.known() ? engine_.intercept() : 0; }
  [[nodiscard]] double step_sample() const { return engine_.known() ? engine_.slope() : 0; }
  [[nodiscard]] double wait() const { return decoding_ > 0 ? waiting_ / decoding_ : 0; }
  // Of a response's tokens, the share that engines sample.
  [[nodiscard]] double decoded_share() const {
    return decoded_ + observed_ > 0 ? decoded_ / (decoded_ + observed_) : 1;
  }
  // Of a batch of so many tokens: what does not spread over slots; slot-seconds that do.
  [[nodiscard]] double train_fixed(double tokens) const {
    return train_.known() ? tokens * train_.intercept() : 0;
  }
  [[nodiscard]] double train_work(double tokens) const {
    return train_.known() ? tokens * train_.slope() : 0;
  }
  [[nodiscard]] double state_copy() const { return state_copy_; }

 private:
  FadingLine engine_{true}, train_{false};
  double state_copy_ = 0;
  double waiting_ = 0, decoding_ = 0, decoded_ = 0, observed_ = 0;  // fading sums
  Turns last_;
};

}  // namespace tidepool::scheduler
