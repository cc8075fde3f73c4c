#include "core/device/torch_device.h"

// So that a + b costs no header of every operation.
#define AT_PER_OPERATOR_HEADERS
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>
#include <vector>

namespace tidepool::device {
namespace {

using at::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TorchBuffer : public Buffer {
 public:
  TorchBuffer(Tensor memory, int64_t bytes) : Buffer(memory.data_ptr(), bytes), memory_(std::move(memory)) {}

 private:
  Tensor memory_;
};

// The rows of one list of runs.
struct Sequence {
  Tensor rows;     // [n] of the batch
  Tensor lengths;  // [n, 1]
  Tensor slots;    // [longest] that its positions stand in
};
struct TorchAttention : AttentionWork {
  std::vector<Sequence> sequences;
};

template <typename T>
struct TypeOf;
template <>
struct TypeOf<std::byte> : std::integral_constant<at::ScalarType, at::kByte> {};
template <>
struct TypeOf<int16_t> : std::integral_constant<at::ScalarType, at::kShort> {};
template <>
struct TypeOf<int32_t> : std::integral_constant<at::ScalarType, at::kInt> {};
template <>
struct TypeOf<uint64_t> : std::integral_constant<at::ScalarType, at::kLong> {};  // the same bits, as signed
template <>
struct TypeOf<float> : std::integral_constant<at::ScalarType, at::kFloat> {};
template <>
struct TypeOf<double> : std::integral_constant<at::ScalarType, at::kDouble> {};
template <>
struct TypeOf<BF16> : std::integral_constant<at::ScalarType, at::kBFloat16> {};
template <typename T>
constexpr at::ScalarType kTypeOf = TypeOf<T>::value;

// Row by row, over the last dimension.
Tensor Mean(const Tensor& x) { return x.mean(-1, /*keepdim=*/true); }
Tensor SumOf(const Tensor& x) { return x.sum(-1, /*keepdim=*/true); }
Tensor Rstd(const Tensor& x, float eps) { return at::rsqrt(Mean(x * x) + eps); }

// d norm / d x . dout, of RmsNorm.
Tensor NormBackward(const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& dout) {
  const Tensor dy = weight * dout;
  return rstd * (dy - x * rstd * rstd * Mean(x * dy));
}

// Turns heads [rows, heads, size]; cos and sin [rows, 1, size / 2].
Tensor Rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const std::vector<Tensor> half = x.chunk(2, -1);
  return at::cat({half[0] * cos - half[1] * sin, half[1] * cos + half[0] * sin}, -1);
}

// e * z where a masked logit (-inf) weighs nothing; NaN goes through.
Tensor Unmasked(const Tensor& z) { return at::where(z < -1e30F, 0.0F, z); }

}  // namespace

struct TorchDevice::Impl {
  const c10::Device device;
  const ProductOperands operands;

  // Device memory as it is.
  template <typename T>
  Tensor Raw(const T* p, at::IntArrayRef sizes) const {
    const at::TensorOptions options = at::TensorOptions().dtype(kTypeOf<T>).device(device);
    if (p == nullptr) return at::zeros(sizes, options);  // only of no elements
    return at::for_blob(const_cast<T*>(p), sizes).options(options).target_device(device).make_tensor();
  }
  // Its values in float32.
  template <typename T>
  Tensor Wide(const T* p, at::IntArrayRef sizes) const {
    return Raw(p, sizes).to(at::kFloat);
  }
  Tensor Ids(const int32_t* p, at::IntArrayRef sizes) const { return Raw(p, sizes).to(at::kLong); }
  // Rounds values to T.
  template <typename T>
  void Store(T* p, const Tensor& values) const {
    Raw(p, values.sizes()).copy_(values);
  }
  template <typename T>
  void Add(T* p, const Tensor& values) const {
    Raw(p, values.sizes()).add_(values);
  }
  Tensor Count(int64_t n) const { return at::arange(n, at::TensorOptions().dtype(at::kLong).device(device)); }
  template <typename V>
  Tensor Up(const std::vector<V>& values, at::ScalarType type) const {
    return at::from_blob(const_cast<V*>(values.data()), {static_cast<int64_t>(values.size())}, type)
        .to(device, type, /*non_blocking=*/false, /*copy=*/true);
  }

  template <typename T>
  void RmsNorm(const RmsNormArgs<T>& a) const {
    Tensor x = Wide(a.x, {a.rows, a.d});
    if (a.add != nullptr) {
      Store(a.x_out, x + Wide(a.add, {a.rows, a.d}));
      x = Wide(a.x_out, {a.rows, a.d});  // the rounded sum is what the norm sees
    }
    const Tensor rstd = Rstd(x, a.eps);
    Store(a.out, x * rstd * Wide(a.weight, {a.d}));
    if (a.rstd != nullptr) Store(a.rstd, rstd);
  }
  template <typename T>
  void RmsNormBackward(const RmsNormBackwardArgs<T>& a) const {
    const Tensor x = Wide(a.x, {a.rows, a.d}), rstd = Wide(a.rstd, {a.rows, 1}),
                 dout = Wide(a.dout, {a.rows, a.d});
    if (a.dweight != nullptr) Add(a.dweight, (dout * x * rstd).sum(0));
    Add(a.dx, NormBackward(x, Wide(a.weight, {a.d}), rstd, dout));
    if (a.dx_copy != nullptr) Store(a.dx_copy, Raw(a.dx, {a.rows, a.d}));
  }

  // Heads of a fused product with its bias: [rows, heads + 2 kv_heads, head_size].
  template <typename Args>
  Tensor HeadsOf(const Args& a) const {
    const int64_t all = a.heads + 2 * a.kv_heads;
    const Tensor x = Wide(a.qkv, {a.rows, all, a.head_size});
    return a.bias == nullptr ? x : x + Wide(a.bias, {all, a.head_size});
  }
  // Of the positions of rows: [rows, 1, head_size / 2].
  template <typename Args>
  Tensor Turn(const Args& a, const float* table, int64_t rows) const {
    return Raw(table, {a.table_rows, a.head_size / 2}).index_select(0, Ids(a.positions, {rows})).unsqueeze(1);
  }
  template <typename T>
  void Rotary(const RotaryArgs<T>& a) const {
    const Tensor x = HeadsOf(a), cos = Turn(a, a.cos, a.rows), sin = Turn(a, a.sin, a.rows),
                 slots = Ids(a.slots, {a.rows});
    const auto normed = [&](const Tensor& heads, const T* weight) {
      return weight == nullptr ? heads : heads * Rstd(heads, a.eps) * Wide(weight, {a.head_size});
    };
    const Tensor q = Rotate(normed(x.narrow(1, 0, a.heads), a.q_norm), cos, sin),
                 k = Rotate(normed(x.narrow(1, a.heads, a.kv_heads), a.k_norm), cos, sin),
                 v = x.narrow(1, a.heads + a.kv_heads, a.kv_heads);
    const at::DimVector memory = {a.slot_count, a.kv_heads, a.head_size};
    Store(a.q, q);
    Raw(a.k, memory).index_copy_(0, slots, k.to(kTypeOf<T>));
    Raw(a.v, memory).index_copy_(0, slots, v.to(kTypeOf<T>));
  }
  template <typename T>
  void HeadNormBackward(const HeadNormBackwardArgs<T>& a) const {
    const Tensor x = HeadsOf(a), all = Raw(a.dqkv, x.sizes());
    const auto undo = [&](int64_t first, int64_t n, const T* weight, float* dweight) {
      const Tensor heads = x.narrow(1, first, n), rstd = Rstd(heads, a.eps),
                   dout = all.narrow(1, first, n).to(at::kFloat);
      Add(dweight, (dout * heads * rstd).sum(at::IntArrayRef{0, 1}));
      all.narrow(1, first, n).copy_(NormBackward(heads, Wide(weight, {a.head_size}), rstd, dout));
    };
    undo(0, a.heads, a.q_norm, a.dq_norm);
    undo(a.heads, a.kv_heads, a.k_norm, a.dk_norm);
  }

  std::unique_ptr<AttentionWork> Plan(const RowRunsOfHost& keys) const {
    std::map<int32_t, std::vector<int64_t>> rows_of;  // by their first run
    for (size_t r = 0; r < keys.first_run.size(); ++r)
      rows_of[keys.first_run[r]].push_back(static_cast<int64_t>(r));
    auto work = std::make_unique<TorchAttention>();
    for (const auto& [first, rows] : rows_of) {
      std::vector<int64_t> lengths, slots;
      for (const int64_t r : rows) lengths.push_back(keys.lengths[static_cast<size_t>(r)]);
      const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
      for (auto run = static_cast<size_t>(first); slots.size() < longest; ++run) {
        for (int64_t i = 0; i < keys.runs[run].count; ++i) slots.push_back(keys.runs[run].start + i);
      }
      slots.resize(longest);
      work->sequences.push_back(
          {Up(rows, at::kLong), Up(lengths, at::kLong).unsqueeze(1), Up(slots, at::kLong)});
    }
    return work;
  }

  // Rows [n, heads, size] with those of a KV head together: [kv_heads, n * heads / kv_heads, size]; and back.
  static Tensor Fold(const Tensor& x, int64_t kv_heads) {
    return x.reshape({x.size(0), kv_heads, x.size(1) / kv_heads, x.size(2)})
        .transpose(0, 1)
        .reshape({kv_heads, x.size(0) * (x.size(1) / kv_heads), x.size(2)});
  }
  static Tensor Unfold(const Tensor& x, int64_t n) {
    return x.reshape({x.size(0), n, x.size(1) / n, x.size(2)})
        .transpose(0, 1)
        .reshape({n, x.size(0) * (x.size(1) / n), x.size(2)});
  }
  // Scores of folded rows by the keys of a sequence, -inf beyond a row's length: [kv_heads, rows, longest].
  Tensor Scores(const Sequence& s, const Tensor& q, const Tensor& k, int64_t group) const {
    const Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<float>(q.size(2)));
    const Tensor seen = Count(s.slots.size(0)).unsqueeze(0) < s.lengths;  // [n, longest]
    return at::where(seen.repeat_interleave(group, 0).unsqueeze(0), scores, -kInfinity);
  }
  template <typename T>
  void Attention(const AttentionArgs<T>& a) const {
    const int64_t rows = a.keys.rows, group = a.heads / a.kv_heads;
    const Tensor q = Wide(a.q, {rows, a.heads, a.head_size}),
                 k = Raw(a.k, {a.keys.slot_count, a.kv_heads, a.head_size}),
                 v = Raw(a.v, {a.keys.slot_count, a.kv_heads, a.head_size}),
                 out = Raw(a.out, {rows, a.heads, a.head_size});
    for (const Sequence& s : static_cast<const TorchAttention&>(*a.work).sequences) {
      const auto keys = [&](const Tensor& memory) {
        return memory.index_select(0, s.slots).to(at::kFloat).transpose(0, 1);  // [kv_heads, longest, size]
      };
      const int64_t n = s.rows.size(0);
      const Tensor scores = Scores(s, Fold(q.index_select(0, s.rows), a.kv_heads), keys(k), group);
      out.index_copy_(0, s.rows, Unfold(at::matmul(at::softmax(scores, -1), keys(v)), n).to(kTypeOf<T>));
      if (a.lse == nullptr) continue;
      const Tensor lse = at::logsumexp(scores, -1, /*keepdim=*/true);
      Raw(a.lse, {rows, a.heads}).index_copy_(0, s.rows, Unfold(lse, n).squeeze(2));
    }
  }
  template <typename T>
  void AttentionBackward(const AttentionBackwardArgs<T>& a) const {
    const int64_t rows = a.keys.rows, group = a.heads / a.kv_heads, size = a.head_size;
    const Tensor q = Wide(a.q, {rows, a.heads, size}), dout = Wide(a.dout, {rows, a.heads, size}),
                 delta = SumOf(Wide(a.out, {rows, a.heads, size}) * dout),
                 lse = Wide(a.lse, {rows, a.heads, 1}), k = Wide(a.k, {rows, a.kv_heads, size}),
                 v = Wide(a.v, {rows, a.kv_heads, size});
    const Tensor dq = at::zeros(q.sizes(), q.options()), dk = at::zeros(k.sizes(), k.options()),
                 dv = at::zeros(v.sizes(), v.options());
    for (const Sequence& s : static_cast<const TorchAttention&>(*a.work).sequences) {
      const auto of_rows = [&](const Tensor& x) { return Fold(x.index_select(0, s.rows), a.kv_heads); };
      const Tensor keys = k.index_select(0, s.slots).transpose(0, 1),
                   values = v.index_select(0, s.slots).transpose(0, 1), queries = of_rows(q),
                   douts = of_rows(dout);
      const Tensor p = at::exp(Scores(s, queries, keys, group) - of_rows(lse)),
                   dp = at::matmul(douts, values.transpose(1, 2)),
                   ds = p * (dp - of_rows(delta)) / std::sqrt(static_cast<float>(size));
      dq.index_copy_(0, s.rows, Unfold(at::matmul(ds, keys), s.rows.size(0)));
      dk.index_add_(0, s.slots, at::matmul(ds.transpose(1, 2), queries).transpose(0, 1));
      dv.index_add_(0, s.slots, at::matmul(p.transpose(1, 2), douts).transpose(0, 1));
    }
    const Tensor cos = Turn(a, a.cos, rows), back = -Turn(a, a.sin, rows);
    Store(a.dqkv, at::cat({Rotate(dq, cos, back), Rotate(dk, cos, back), dv}, 1));
  }

  template <typename T>
  void AddBias(const AddBiasArgs<T>& a) const {
    Store(a.x, Wide(a.x, {a.rows, a.n}) + Wide(a.bias, {a.n}));
  }
  template <typename T>
  void SwiGlu(const SwiGluArgs<T>& a) const {
    const std::vector<Tensor> x = Wide(a.gate_up, {a.rows, 2 * a.ff}).chunk(2, 1);
    Store(a.act, x[0] * at::sigmoid(x[0]) * x[1]);
  }
  template <typename T>
  void SwiGluBackward(const SwiGluBackwardArgs<T>& a) const {
    const std::vector<Tensor> x = Wide(a.gate_up, {a.rows, 2 * a.ff}).chunk(2, 1);
    const Tensor dact = Wide(a.dact, {a.rows, a.ff}), s = at::sigmoid(x[0]);
    Store(a.dgate_up, at::cat({dact * x[1] * s * (1.0F + x[0] * (1.0F - s)), dact * x[0] * s}, 1));
  }

  template <typename T>
  void TokenLogProb(const TokenLogProbArgs<T>& a) const {
    TP_CHECK(a.row_stride() == a.vocab) << "this device takes all columns";
    const Tensor z = Wide(a.logits, {a.rows, a.vocab}), top = z.amax(1, /*keepdim=*/true),
                 x = (z - top) * a.inv_temperature, e = at::exp(x), total = SumOf(e), log_total = total.log();
    const Tensor ids = Ids(a.ids, {a.rows, 1});
    Store(a.logprob, at::where(ids < 0, NAN, x.gather(1, ids.clamp_min(0)) - log_total));
    if (a.entropy != nullptr) Store(a.entropy, log_total - SumOf(e * Unmasked(x)) / total);
    if (a.lse != nullptr) Store(a.lse, a.top != nullptr ? log_total : top * a.inv_temperature + log_total);
    if (a.top != nullptr) Store(a.top, top);
  }
  template <typename T>
  void TokenLogProbBackward(const TokenLogProbBackwardArgs<T>& a) const {
    const Tensor logp = Wide(a.logits, {a.rows, a.vocab}) * a.inv_temperature - Wide(a.lse, {a.rows, 1});
    const Tensor p = at::exp(logp), g = Wide(a.dlogprob, {a.rows, 1}) * a.inv_temperature,
                 is_id = Count(a.vocab).unsqueeze(0) == Ids(a.ids, {a.rows, 1});
    Tensor d = g * at::where(is_id, 1.0F - p, -p), counts = g != 0.0F;
    if (a.dentropy != nullptr) {
      const Tensor h = Wide(a.dentropy, {a.rows, 1}) * a.inv_temperature;
      d = d - at::where(h != 0.0F, p * (Unmasked(logp) + Wide(a.entropy, {a.rows, 1})) * h, 0.0F);
      counts = counts.logical_or(h != 0.0F);
    }
    Store(a.logits, at::where(counts, d, 0.0F));  // a masked token adds nothing, whatever its logits hold
  }

  template <typename T>
  void Sample(const SampleArgs<T>& a) const {
    static_assert(sizeof(SampleRow) == 6 * sizeof(float) && offsetof(SampleRow, top_k) == 1 * sizeof(float) &&
                  offsetof(SampleRow, top_p) == 2 * sizeof(float) &&
                  offsetof(SampleRow, min_p) == 3 * sizeof(float) &&
                  offsetof(SampleRow, log_min_p) == 4 * sizeof(float) &&
                  offsetof(SampleRow, uniform) == 5 * sizeof(float));
    const Tensor how = Raw(reinterpret_cast<const float*>(a.how), {a.rows, 6});
    const auto field = [&](int64_t i) { return how.narrow(1, i, 1); };  // [rows, 1]
    const Tensor temperature = field(0), top_p = field(2), min_p = field(3), log_min_p = field(4),
                 uniform = field(5),
                 top_k = Ids(reinterpret_cast<const int32_t*>(a.how), {a.rows, 6}).narrow(1, 1, 1);
    const int64_t last = a.vocab - 1;
    const Tensor ids = Count(a.vocab).unsqueeze(0),
                 z = Wide(a.logits, {a.logit_rows, a.vocab}).index_select(0, Ids(a.source, {a.rows})),
                 max = z.amax(1, /*keepdim=*/true), greedy = temperature == 0.0F;
    // A tiny temperature may overflow the scale: then only the largest logits have mass.
    const Tensor inverse = at::where(greedy, 1.0F, temperature).reciprocal().clamp_max(3.0e38F),
                 x = (z - max) * inverse;
    const Tensor mass = at::where(x < -87.0F, 0.0F, at::exp(x)).to(at::kDouble), total = SumOf(mass);

    const Tensor by_k = (top_k > 0).logical_and(top_k < a.vocab), by_p = top_p < 1.0F;
    const Tensor by_min = min_p > 0.0F;
    const auto [sorted, order] = at::sort(z, /*stable=*/true, 1, /*descending=*/true);
    Tensor threshold = at::where(by_k, sorted.gather(1, (top_k - 1).clamp(0, last)), -kInfinity);
    const auto above = [&](const Tensor& of) { return at::where(z >= threshold, of, 0.0); };
    // The first of the sorted with which the mass suffices, of what top_k keeps.
    const Tensor wanted = SumOf(above(mass)) * top_p.to(at::kDouble),
                 before = (mass.gather(1, order).cumsum(1) < wanted).sum(1, /*keepdim=*/true);
    threshold = at::where(by_p, sorted.gather(1, before.clamp_max(last)).maximum(threshold), threshold);
    threshold = at::where(by_min, threshold.maximum(max + log_min_p * temperature), threshold);

    const Tensor kept = above(mass), kept_total = SumOf(kept);
    const Tensor below = (kept.cumsum(1) <= uniform.to(at::kDouble) * kept_total).sum(1, /*keepdim=*/true);
    const Tensor last_with_mass = at::where(kept > 0.0, ids, 0).amax(1, /*keepdim=*/true);
    const Tensor drawn = below.minimum(last_with_mass),
                 largest = at::where(z == max, ids, last).amin(1, /*keepdim=*/true);
    const Tensor finite = z.isfinite().all(1, /*keepdim=*/true),
                 cut = finite.logical_and(greedy.logical_not())
                           .logical_and(by_k.logical_or(by_p).logical_or(by_min));
    Store(a.ids, at::where(finite, at::where(greedy, largest, drawn), -1));
    Store(a.log_kept, at::where(cut, (kept_total / total).clamp_max(1.0).log(), 0.0));
    Store(a.logprob,
          at::where(finite, x.gather(1, at::where(greedy, largest, drawn)) - SumOf(at::exp(x)).log(), NAN));
  }

  template <typename T>
  void ColumnSum(const ColumnSumArgs<T>& a) const {
    Add(a.out, Wide(a.x, {a.rows, a.n}).sum(0));
  }
  template <typename T>
  void GatherRows(const GatherRowsArgs<T>& a) const {
    TP_CHECK(!a.strips) << "this device reads no strips";
    const Tensor ids = Ids(a.ids, {a.rows});
    const Tensor rows = Raw(a.table, {a.table_rows, a.d}).index_select(0, ids.clamp_min(0));
    Store(a.out, rows.masked_fill((ids < 0).unsqueeze(1), 0));
  }
  template <typename T>
  void ScatterAddRows(const ScatterAddRowsArgs<T>& a) const {
    const Tensor ids = Ids(a.ids, {a.rows});
    Raw(a.table, {a.table_rows, a.d})
        .index_add_(0, ids.clamp_min(0), Wide(a.x, {a.rows, a.d}).masked_fill((ids < 0).unsqueeze(1), 0));
  }
  template <typename T>
  void Widen(const WidenArgs<T>& a) const {
    Store(a.out, Raw(a.x, {a.n}));
  }
  template <typename T>
  void Narrow(const NarrowArgs<T>& a) const {
    Store(a.out, Raw(a.x, {a.n}));
  }

  template <typename T>
  Tensor Operand(const T* p, at::IntArrayRef sizes) const {
    return operands == ProductOperands::kWide ? Wide(p, sizes) : Raw(p, sizes);
  }
  // out = left right
  template <typename T>
  void Product(T* out, const Tensor& left, const Tensor& right) const {
    Tensor to = Raw(out, {left.size(0), right.size(1)});
    if (to.scalar_type() == left.scalar_type()) {
      at::mm_out(to, left, right);
    } else {
      to.copy_(at::mm(left, right));
    }
  }
  template <typename T>
  void Multiply(const MultiplyArgs<T>& a) const {
    TP_CHECK(!a.strips && a.blocks == BlockType::kNone) << "this device reads no strips and no blocks";
    if (a.sums != nullptr) {
      TP_CHECK(a.tiles != nullptr) << "unrounded sums of no tiles";
      const int64_t from = a.tiles->begin[0], n = a.tiles->end[0][a.tiles->tiles - 1] - from;
      return Product(a.sums, Wide(a.x, {a.rows, a.k}).narrow(1, from, n),
                     Wide(a.w, {a.n, a.k}).narrow(1, from, n).t());
    }
    Product(a.y, Operand(a.x, {a.rows, a.k}), Operand(a.w, {a.n, a.k}).t());
  }
  template <typename T>
  void MultiplyBack(const MultiplyBackArgs<T>& a) const {
    TP_CHECK(!a.strips && a.blocks == BlockType::kNone) << "this device reads no strips and no blocks";
    if (a.sums != nullptr) {
      TP_CHECK(a.tiles != nullptr) << "unrounded sums of no tiles";
      Tensor to = Raw(a.sums, {a.rows, a.k}).zero_();
      for (int32_t s = 0; s < a.tiles->segments; ++s) {
        const int64_t from = a.tiles->begin[s], n = a.tiles->end[s][a.tiles->tiles - 1] - from;
        to.addmm_(Wide(a.dy, {a.rows, a.n}).narrow(1, from, n), Wide(a.w, {a.n, a.k}).narrow(0, from, n));
      }
      return;
    }
    Product(a.dx, Operand(a.dy, {a.rows, a.n}), Operand(a.w, {a.n, a.k}));
  }
  template <typename T>
  void MultiplyBackWeight(const MultiplyBackWeightArgs<T>& a) const {
    const Tensor dy = Operand(a.dy, {a.rows, a.n}).t(), x = Operand(a.x, {a.rows, a.k});
    Tensor dw = Raw(a.dw, {a.n, a.k});
    if (x.scalar_type() == at::kFloat) {
      dw.addmm_(dy, x);
    } else if (device.is_cuda()) {  // of bfloat16, added to float32
      at::addmm_out(dw, dw, dy, x, at::kFloat);
    } else {  // LibTorch has that product on GPUs alone
      dw.addmm_(dy.to(at::kFloat), x.to(at::kFloat));
    }
  }
  // Calls body(band, its columns of y, its columns of t).
  template <typename Args, typename F>
  void EachBand(const Args& a, F body) const {
    const Tensor y = Raw(a.y, {a.rows, a.width}), t = Raw(a.t, {a.rows, a.t_width()});
    for (int64_t i = 0; i < a.bands; ++i)
      body(i, y.narrow(1, a.first[i], a.n[i]), t.narrow(1, i * a.rank, a.rank));
  }
  template <typename T>
  void LowRank(const LowRankArgs<T>& a) const {
    EachBand(a, [&](int64_t i, const Tensor& y, Tensor t) {
      t.copy_(at::mm(y.to(at::kFloat), Wide(a.b[i], {a.rank, a.n[i]}).t()) * a.scale);
    });
  }
  template <typename T>
  void AddLowRank(const AddLowRankArgs<T>& a) const {
    EachBand(a, [&](int64_t i, Tensor y, const Tensor& t) {
      y.copy_(y.to(at::kFloat) + at::mm(t.to(at::kFloat), Wide(a.b[i], {a.rank, a.n[i]})) * a.scale);
    });
  }
  template <typename T>
  void LowRankBackWeight(const LowRankBackWeightArgs<T>& a) const {
    EachBand(a, [&](int64_t i, const Tensor& y, const Tensor& t) {
      Add(a.db[i], at::mm(t.to(at::kFloat).t(), y.to(at::kFloat)) * a.scale);
    });
  }
  template <typename T>
  void Router(const RouterArgs<T>& a) const {
    Store(a.logits, at::mm(Wide(a.x, {a.rows, a.d}), Wide(a.w, {a.experts, a.d}).t()));
  }

  // Runs `product` for each group.
  template <typename Args, typename F>
  void EachGroup(const Args& a, F product) const {
    const Tensor of_host = Raw(a.begin, {a.groups + 1}).cpu();
    const auto* at = of_host.template const_data_ptr<int32_t>();
    for (int64_t g = 0; g < a.groups; ++g) product(a.Group(g, at[g], at[g + 1] - at[g]));
  }
  template <typename T>
  void GroupedMultiply(const GroupedMultiplyArgs<T>& a) const {
    EachGroup(a, [&](const auto& of) { Multiply(of); });
  }
  template <typename T>
  void GroupedMultiplyBack(const GroupedMultiplyBackArgs<T>& a) const {
    EachGroup(a, [&](const auto& of) { MultiplyBack(of); });
  }
  template <typename T>
  void GroupedMultiplyBackWeight(const GroupedMultiplyBackWeightArgs<T>& a) const {
    EachGroup(a, [&](const auto& of) { MultiplyBackWeight(of); });
  }

  // What the experts gave to each row, in the order of its choices: [rows, k, d].
  template <typename Args, typename T>
  Tensor OfPairs(const Args& a, const T* y) const {
    return Wide(y, {a.rows * a.k, a.d})
        .index_select(0, Ids(a.place, {a.rows * a.k}))
        .reshape({a.rows, a.k, a.d});
  }
  template <typename T>
  void CombineExperts(const CombineExpertsArgs<T>& a) const {
    Tensor sum = (OfPairs(a, a.y) * Wide(a.weights, {a.rows, a.k, 1})).sum(1);
    if (a.shared != nullptr) sum = sum + Wide(a.shared, {a.rows, a.d}) * Wide(a.gate, {a.rows, 1});
    Store(a.out, sum);
  }
  template <typename T>
  void CombineExpertsBackward(const CombineExpertsBackwardArgs<T>& a) const {
    const Tensor dout = Wide(a.dout, {a.rows, a.d}), of_pairs = dout.unsqueeze(1);
    Store(a.dweights, SumOf(of_pairs * OfPairs(a, a.y)));
    const Tensor dy = (of_pairs * Wide(a.weights, {a.rows, a.k, 1})).reshape({a.rows * a.k, a.d});
    Raw(a.dy, dy.sizes()).index_copy_(0, Ids(a.place, {a.rows * a.k}), dy.to(kTypeOf<T>));
    if (a.shared == nullptr) return;
    Store(a.dgate, SumOf(dout * Wide(a.shared, {a.rows, a.d})));
    Store(a.dshared, dout * Wide(a.gate, {a.rows, 1}));
  }
  template <typename T>
  void GateBackward(const GateBackwardArgs<T>& a) const {
    const Tensor g = Wide(a.gate, {a.rows, 1}), dz = Wide(a.dgate, {a.rows, 1}) * (g * (1.0F - g));
    Store(a.dgate, dz);
    Add(a.dx, dz * Wide(a.w, {a.d}));
  }
  template <typename T>
  void SumExperts(const SumExpertsArgs<T>& a) const {
    Tensor sum = Wide(a.sum, {a.rows, a.d}) + OfPairs(a, a.x).sum(1);
    if (a.shared != nullptr) sum = sum + Wide(a.shared, {a.rows, a.d});
    Store(a.out, sum);
  }

  template <typename T>
  void AdamW(const AdamWArgs<T>& a) const {
    const Tensor norm = Raw(a.square_sum, {1}).sqrt(), finite = norm.isfinite(),
                 weights = Raw(a.weights, {a.n}), m = Raw(a.m, {a.n}), v = Raw(a.v, {a.n});
    const Tensor clip = at::where((norm > a.max_grad_norm).logical_and(norm * a.max_grad_norm > 0.0),
                                  a.max_grad_norm / (norm + 1e-6), 1.0)
                            .to(at::kFloat);
    const auto keep = [&](const Tensor& old, const Tensor& values) {
      old.copy_(at::where(finite, values, old));
    };
    Tensor p = weights;
    if constexpr (std::is_same_v<T, BF16>) {
      const Tensor bits = at::bitwise_left_shift(weights.view(at::kShort).to(at::kInt), 16);
      p = (bits + Raw(a.rest, {a.n})).view(at::kFloat);
    }
    const Tensor g = Raw(a.gradients, {a.n}) * clip, m_now = a.beta1 * m + a.rest1 * g,
                 v_now = a.beta2 * v + a.rest2 * g * g,
                 next = p * a.decay - a.step * m_now / (v_now.sqrt() * a.root + a.eps);
    keep(m, m_now);
    keep(v, v_now);
    if constexpr (std::is_same_v<T, BF16>) {
      const Tensor bits = next.view(at::kInt);
      keep(weights.view(at::kShort), at::bitwise_right_shift(bits + 0x8000, 16).to(at::kShort));
      keep(Raw(a.rest, {a.n}), bits.to(at::kShort));  // the lower half, as signed
    } else {
      keep(weights, next);
    }
  }
  void SquareSum(const SquareSumArgs& a) const {
    const Tensor x = Raw(a.x, {a.n}).to(at::kDouble);
    Store(a.sum, (x * x).sum(0, /*keepdim=*/true));
  }

  void SaltedSums(const SaltedSumsArgs& a) const {
    const auto shifted = [](const Tensor& x, int64_t by) {  // zeros come in from above
      return at::bitwise_right_shift(x, by).bitwise_and((int64_t{1} << (64 - by)) - 1);
    };
    const auto mix = [&](Tensor x) {  // Mix64 (core/base/hash.h)
      x = x + static_cast<int64_t>(0x9E3779B97F4A7C15ULL);
      x = x.bitwise_xor(shifted(x, 30)) * static_cast<int64_t>(0xBF58476D1CE4E5B9ULL);
      x = x.bitwise_xor(shifted(x, 27)) * static_cast<int64_t>(0x94D049BB133111EBULL);
      return x.bitwise_xor(shifted(x, 31));
    };
    for (int64_t b = 0; b < a.buckets(); ++b) {
      const int64_t n = std::min(a.bucket_words, a.words - b * a.bucket_words);
      Store(a.sums + b,
            mix(Raw(a.x + b * a.bucket_words, {n}).bitwise_xor(mix(Count(n) + b))).sum(0, /*keepdim=*/true));
    }
  }

  void Route(const RouteArgs& a) const {
    const Tensor probs = Raw(a.probs, {a.rows, a.experts});
    probs.copy_(at::softmax(probs, 1));
    // A stable sort has the lower id first among equals.
    const Tensor order =
        at::argsort(at::where(probs.isnan(), -1.0F, probs), /*stable=*/true, 1, /*descending=*/true);
    Tensor chosen = order.narrow(1, 0, a.k);
    if (a.replay != nullptr) {
      const Tensor replay = Ids(a.replay, {a.rows, a.k});
      chosen = at::where(replay.narrow(1, 0, 1) >= 0, replay, chosen);
    }
    const Tensor weights = probs.gather(1, chosen);
    Store(a.chosen, chosen);
    Store(a.weights, a.renormalize ? weights / SumOf(weights) : weights);
  }
  void GroupRows(const GroupRowsArgs& a) const {
    const int64_t pairs = a.rows * a.k;
    // A stable sort keeps the pairs of one expert in their order.
    const auto [experts, order] = at::sort(Ids(a.chosen, {pairs}), /*stable=*/true, 0, /*descending=*/false);
    Store(a.begin, at::searchsorted(experts, Count(a.experts + 1)));
    Store(a.row_of, order.floor_divide(a.k));
    Raw(a.place, {pairs}).index_copy_(0, order, Count(pairs).to(at::kInt));
  }
  void Sigmoid(const SigmoidArgs& a) const { Raw(a.x, {a.n}).sigmoid_(); }
  void RouteBackward(const RouteBackwardArgs& a) const {
    // In float64, as sums of the whole batch stand in the slopes.
    const auto wide = [&](const float* p, int64_t columns) {
      return Raw(p, {a.rows, columns}).to(at::kDouble);
    };
    const Tensor p = wide(a.probs, a.experts), weights = wide(a.weights, a.k),
                 chosen = Ids(a.chosen, {a.rows, a.k});
    Tensor dchosen = wide(a.dweights, a.k);
    if (a.renormalize)  // w_k = p_k / sum: d p_k = (d w_k - sum_j w_j d w_j) / sum
      dchosen = (dchosen - SumOf(weights * dchosen)) / SumOf(p.gather(1, chosen));
    const Tensor dp = Raw(a.expert_slope, {a.experts}).repeat({a.rows, 1}).scatter_add_(1, chosen, dchosen);
    Store(a.dlogits, p * (dp - SumOf(p * dp)));
  }
  void AddProbs(const AddProbsArgs& a) const {
    Add(a.sum, Raw(a.probs, {a.rows, a.experts}).to(at::kDouble).sum(0));
  }
};

TorchDevice::TorchDevice(c10::Device device, ProductOperands operands) : impl_(new Impl{device, operands}) {
  TP_CHECK(device.is_cpu() || device.has_index()) << "a device of " << device.str() << " without its number";
}
TorchDevice::~TorchDevice() = default;

std::string TorchDevice::name() const { return "torch " + impl_->device.str(); }
bool TorchDevice::host_memory() const { return impl_->device.is_cpu(); }

StatusOr<std::shared_ptr<Buffer>> TorchDevice::AllocateUnset(int64_t bytes) {
  try {  // LibTorch says by an exception that there is no memory
    return std::shared_ptr<Buffer>(std::make_shared<TorchBuffer>(
        at::empty({std::max<int64_t>(bytes, 1)}, at::TensorOptions().dtype(at::kByte).device(impl_->device)),
        bytes));
  } catch (const c10::Error& e) {
    const std::optional<int64_t> free = free_bytes();
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes on " + name() +
                             (free ? ", where " + std::to_string(*free) + " are free"
                                   : std::string(": ") + e.what_without_backtrace()));
  }
}
StatusOr<std::shared_ptr<Buffer>> TorchDevice::Allocate(int64_t bytes) {
  TP_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, TorchDevice::AllocateUnset(bytes));
  Zero(memory->data(), bytes);
  return memory;
}

void TorchDevice::Upload(void* to, const void* from_host, int64_t bytes) {
  if (bytes == 0) return;
  const c10::InferenceMode inference;
  const Tensor there = impl_->Raw(static_cast<std::byte*>(to), {bytes});
  // A copy from the host's own pages holds up whoever asks until every kernel before it has run. From pages
  // that the system may not move it takes its place among them. LibTorch keeps such pages for the next, and
  // does not give them out again before the copy is through.
  constexpr int64_t kPinnedMost = int64_t{8} << 20;
  if (!impl_->device.is_cpu() && bytes <= kPinnedMost) {
    Tensor pinned;
    try {
      pinned = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    } catch (const c10::Error&) {  // the host has no such pages left: the copy below needs none
    }
    if (pinned.defined()) {
      std::memcpy(pinned.mutable_data_ptr(), from_host, static_cast<size_t>(bytes));
      there.copy_(pinned, /*non_blocking=*/true);
      return;
    }
  }
  there.copy_(at::from_blob(const_cast<void*>(from_host), {bytes}, at::kByte));
}
void TorchDevice::Download(void* to_host, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const c10::InferenceMode inference;
  at::from_blob(to_host, {bytes}, at::kByte).copy_(impl_->Raw(static_cast<const std::byte*>(from), {bytes}));
}
void TorchDevice::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const c10::InferenceMode inference;
  impl_->Raw(static_cast<std::byte*>(to), {bytes})
      .copy_(impl_->Raw(static_cast<const std::byte*>(from), {bytes}));
}
void TorchDevice::Zero(void* to, int64_t bytes) {
  if (bytes == 0) return;
  const c10::InferenceMode inference;
  impl_->Raw(static_cast<std::byte*>(to), {bytes}).zero_();
}
void TorchDevice::Synchronize() {
  if (!host_memory())
    c10::impl::VirtualGuardImpl(impl_->device.type()).synchronizeDevice(impl_->device.index());
}

std::optional<int64_t> TorchDevice::free_bytes() {
  if (impl_->device.is_cpu()) return std::nullopt;
  Synchronize();
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(impl_->device.type());
  allocator->emptyCache();
  return static_cast<int64_t>(allocator->getMemoryInfo(impl_->device.index()).first);
}

std::unique_ptr<AttentionWork> TorchDevice::PlanAttention(const RowRunsOfHost& keys, const HeadShape&) {
  const c10::InferenceMode inference;
  return impl_->Plan(keys);
}
std::unique_ptr<AttentionWork> TorchDevice::PlanAttentionBackward(
    const RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>>, const HeadShape&) {
  const c10::InferenceMode inference;
  return impl_->Plan(keys);
}

#define TIDEPOOL_KERNEL(Kernel, Args)          \
  void TorchDevice::Kernel(const Args& args) { \
    const c10::InferenceMode inference;        \
    impl_->Kernel(args);                       \
  }
TIDEPOOL_EVERY_KERNEL
#undef TIDEPOOL_KERNEL

}  // namespace tidepool::device
