#pragma once
// What one of several ranks has of a model that is divided between them, in one of two ways.
//
// Matrices are cut (tensor parallelism, arXiv:1909.08053): the heads of attention, the inner width of the
// feed-forward and the vocabulary are divided, in the order of the ranks; norms, and biases of what goes to
// the residual stream, are with every rank.
//
//   qkv, gate_up, their biases     rows                     of a rank's heads, of its inner width
//   o, down                        columns                  of the same; products of the ranks are summed
//   embedding, head                rows                     of a rank's part of the vocabulary
//
// Or experts are (expert parallelism, arXiv:2006.16668): rank r of n has the r-th n-th of the experts of each
// mixture-of-experts layer, whole, and every rank has everything else, routers and shared experts too.
//
// A part is a model by itself, with fewer heads, a smaller inner width and a smaller vocabulary, or with
// fewer experts at hand than its router knows: its layout is Layout(PartSpec()), and Runs says where its
// elements stand in the layout of the whole. Pure; no LibTorch.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::model {

enum class Cut : uint8_t { kMatrices, kExperts };
struct Part {
  int64_t rank = 0, of = 1;  // {0, 1}: the whole model, whatever would be cut
  Cut what = Cut::kMatrices;
  [[nodiscard]] bool whole() const { return of == 1; }
  // As far as matrices are cut: the whole where only experts are divided.
  [[nodiscard]] Part of_matrices() const { return what == Cut::kMatrices ? *this : Part(); }
  friend bool operator==(const Part& a, const Part& b) {
    return a.rank == b.rank && a.of == b.of && (a.what == b.what || a.whole());
  }
};

// kInvalidArgument: a size is no multiple of the number of ranks; says which, with numbers. kUnimplemented: a
// value head; matrices of a model with experts; experts of a model without any.
Status CheckCut(const ModelSpec& whole, int64_t ranks, Cut what = Cut::kMatrices);

// requires CheckCut
ModelSpec PartSpec(const ModelSpec& whole, const Part& part);
// [first, end) of the vocabulary, and of the experts of a layer.
std::pair<int64_t, int64_t> VocabularyOf(const ModelSpec& whole, const Part& part);
std::pair<int64_t, int64_t> ExpertsOf(const ModelSpec& whole, const Part& part);

// `rows` times `n` elements, that stand behind each other in the part from `in_part` on, and in the whole n
// from each `in_whole` + i * `stride`.
struct Run {
  int64_t in_whole = 0, in_part = 0, n = 0, rows = 1, stride = 0;
  friend bool operator==(const Run&, const Run&) = default;
};
struct ParameterRuns {
  bool everywhere = false;  // every rank has all of it
  std::vector<Run> runs;
};
// [parameter of the layout]
std::vector<ParameterRuns> Runs(const ModelSpec& whole, const Part& part);

}  // namespace tidepool::model
