#include "core/algorithms/distillation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// p (log p - log q), 0 where p is 0.
double Relative(double log_p, double log_q) { return log_p == kNone ? 0 : std::exp(log_p) * (log_p - log_q); }

// log(wa e^a + wb e^b)
double LogMix(double wa, double a, double wb, double b) {
  const double m = std::max(a, b);
  return m == kNone ? kNone : m + std::log(wa * std::exp(a - m) + wb * std::exp(b - m));
}

}  // namespace

std::vector<double> LogSoftmax(std::span<const double> logits, double temperature) {
  std::vector<double> z(logits.begin(), logits.end());
  double largest = kNone;
  for (double& v : z) {
    v /= temperature;
    if (v > largest) largest = v;
  }
  double sum = 0;
  for (const double v : z) sum += std::exp(v - largest);
  for (double& v : z) v = v - largest - std::log(sum);
  return z;
}

DistillResult DistillLoss(const DistillOptions& o, std::span<const double> student,
                          std::span<const double> teacher, int64_t vocab, const Cells& cells) {
  const auto width = static_cast<size_t>(vocab);
  TP_CHECK(student.size() == cells.mask.size() * width && teacher.size() == student.size());
  DistillResult out;
  out.grad_student.assign(student.size(), 0.0);
  const auto n = static_cast<double>(cells.Tokens());
  // GKD's ends are the two pure divergences.
  const bool mixed = o.divergence == Divergence::kMixed || o.weight == 0 || o.weight == 1;
  const double forward = o.divergence == Divergence::kMixed ? o.weight : 1 - o.weight;
  std::vector<double> g(width);  // d divergence / d s, up to a constant that the softmax takes out
  for (size_t c = 0; c < cells.mask.size(); ++c) {
    if (cells.mask[c] == 0) continue;
    const std::vector<double> s = LogSoftmax(student.subspan(c * width, width), o.temperature);
    const std::vector<double> t = LogSoftmax(teacher.subspan(c * width, width), o.temperature);
    double value = 0, centre = 0;
    for (size_t v = 0; v < width; ++v) {
      const double p = std::exp(s[v]);
      if (mixed) {
        if (forward != 0) value += forward * Relative(t[v], s[v]);
        if (forward != 1) value += (1 - forward) * Relative(s[v], t[v]);
        g[v] = p == 0 || forward == 1 ? 0 : (1 - forward) * (s[v] - t[v]);
      } else {
        const double m = LogMix(o.weight, t[v], 1 - o.weight, s[v]);
        value += o.weight * Relative(t[v], m) + (1 - o.weight) * Relative(s[v], m);
        g[v] = p == 0 ? 0 : (1 - o.weight) * (s[v] - m);
      }
      centre += p * g[v];
    }
    out.loss += value / n;
    for (size_t v = 0; v < width; ++v) {
      double slope = std::exp(s[v]) * (g[v] - centre);
      if (mixed && forward != 0) slope += forward * (std::exp(s[v]) - std::exp(t[v]));
      out.grad_student[c * width + v] = slope / (o.temperature * n);
    }
  }
  return out;
}

std::vector<double> OnPolicyDistillAdvantages(std::span<const double> logp,
                                              std::span<const double> teacher_logp, double coef,
                                              const Cells& cells) {
  std::vector<double> a(cells.mask.size(), 0.0);
  for (size_t t = 0; t < a.size(); ++t) {
    if (cells.mask[t] != 0) a[t] = coef * (teacher_logp[t] - logp[t]);
  }
  return a;
}

}  // namespace tidepool::algorithms
