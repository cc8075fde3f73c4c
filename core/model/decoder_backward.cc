#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/model/decoder_impl.h"

// c = alpha op(a) op(b) + beta c, from bfloat16 to float32 (row-major, c [m, n]): MKL's, which LibTorch's
// x86-64 builds contain and export. Null in a build without it.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b,
                                                             int m, int n, int k, float alpha,
                                                             const uint16_t* a, int lda, const uint16_t* b,
                                                             int ldb, float beta, float* c, int ldc);

namespace tidepool::model {
namespace {

// Asked only where products are LibTorch's (kernels/kernels.h), which is on Intel processors with AMX: MKL
// uses it.
bool AddsUpInFloat32() { return cblas_gemm_bf16bf16f32 != nullptr; }

// to[n, k] += dy[P, n]^T x[P, k] without rounding in between.
void AddInFloat32(const at::Tensor& dy, const at::Tensor& x, float* to) {
  constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
  const auto n = static_cast<int>(dy.size(1)), k = static_cast<int>(x.size(1));
  cblas_gemm_bf16bf16f32(kRowMajor, kTranspose, kNoTranspose, n, k, static_cast<int>(dy.size(0)), 1.0F,
                         static_cast<const uint16_t*>(dy.const_data_ptr()), static_cast<int>(dy.stride(0)),
                         static_cast<const uint16_t*>(x.const_data_ptr()), static_cast<int>(x.stride(0)),
                         1.0F, to, k);
}

}  // namespace

void RunCells(const AttentionBackwardPlan& plan, int64_t kv_heads,
              const std::function<void(int64_t, int64_t, int64_t)>& body) {
  const auto cells = static_cast<int64_t>(plan.cells.size());
  std::mutex mu;
  std::deque<int64_t> ready;  // cell * kv_heads + kv_head; under mu, like what follows
  std::vector<int32_t> waits;
  int64_t left = cells * kv_heads;
  for (int64_t i = 0; i < left; ++i) {
    waits.push_back(plan.waits[static_cast<size_t>(i / kv_heads)]);
    if (waits.back() == 0) ready.push_back(i);
  }
  const auto work = [&](int64_t thread) {
    std::unique_lock lock(mu);
    while (left > 0) {
      if (ready.empty()) {  // what is missing is being computed and takes microseconds
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
        continue;
      }
      const int64_t task = ready.front(), cell = task / kv_heads, kv = task % kv_heads;
      ready.pop_front();
      lock.unlock();
      body(cell, kv, thread);
      lock.lock();
      --left;
      for (const auto* next : {&plan.next_rows, &plan.next_slots}) {
        const int64_t after = (*next)[static_cast<size_t>(cell)];
        if (after >= 0 && --waits[static_cast<size_t>(after * kv_heads + kv)] == 0)
          ready.push_back(after * kv_heads + kv);
      }
    }
  };
  // One cell is worth another thread from some tens of rows on; smaller ranges come many at a time.
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), left);
  if (threads == 1) return work(0);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) work(thread);
  });
}

std::vector<std::pair<int64_t, int64_t>> ClosedRanges(const RaggedBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  std::vector<int64_t> low(static_cast<size_t>(rows)), high(static_cast<size_t>(rows));  // slots a row reads
  for (int64_t r = 0; r < rows; ++r) {
    int64_t left = batch.lengths[static_cast<size_t>(r)], lo = r, hi = r;
    for (auto i = static_cast<size_t>(batch.first_run[static_cast<size_t>(r)]); left > 0; ++i) {
      TP_CHECK(i < batch.runs.size()) << "row " << r << ": its runs end before its length";
      const KvRun& run = batch.runs[i];
      const int64_t used = std::min<int64_t>(left, run.count);
      if (used > 0) {
        lo = std::min<int64_t>(lo, run.start);
        hi = std::max<int64_t>(hi, run.start + used - 1);
      }
      left -= used;
    }
    TP_CHECK(lo >= 0 && hi < rows) << "row " << r << " reads slots outside the batch";
    low[static_cast<size_t>(r)] = lo;
    high[static_cast<size_t>(r)] = hi;
  }
  for (int64_t r = rows - 2; r >= 0; --r) {
    low[static_cast<size_t>(r)] = std::min(low[static_cast<size_t>(r)], low[static_cast<size_t>(r + 1)]);
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t begin = 0, reach = -1;
  for (int64_t r = 0; r < rows; ++r) {
    if (r > begin && reach < r && low[static_cast<size_t>(r)] >= r) {
      ranges.emplace_back(begin, r);
      begin = r;
    }
    reach = std::max(reach, high[static_cast<size_t>(r)]);
  }
  if (rows > 0) ranges.emplace_back(begin, rows);
  return ranges;
}

template <typename T>
void Decoder::Impl::AddProductGradient(int64_t index, const at::Tensor& dy, const at::Tensor& x,
                                       Gradients& grads, int64_t row) {
  at::Tensor gradient = grads.Get(index).narrow(0, row, dy.size(1));
  if (own_products) {
    MultiplyBackWeight(Ptr<float>(gradient), dy, x);
    return;
  }
  if (AddsUpInFloat32() && dy.stride(1) == 1 && x.stride(1) == 1) {
    AddInFloat32(dy, x, Ptr<float>(gradient));
    return;
  }
  // The product is rounded to bfloat16 once per call and summed in float32. Blocks of rows bound the copy.
  const int64_t n = gradient.size(0), k = gradient.size(1),
                block = std::max<int64_t>(16, (int64_t{8} << 20) / k / 16 * 16);
  for (int64_t at = 0; at < n; at += block) {
    const int64_t size = std::min(block, n - at);
    if (!weight_gradient.defined() || weight_gradient.numel() < size * k ||
        weight_gradient.is_inference() != c10::InferenceMode::is_enabled()) {
      weight_gradient = at::empty({size * k}, at::TensorOptions().dtype(at::kBFloat16));
    }
    at::Tensor product = weight_gradient.narrow(0, 0, size * k).view({size, k});
    at::mm_out(product, dy.narrow(1, at, size).t(), x);
    float* to = Ptr<float>(gradient) + at * k;
    ParallelItems(size, k, [&](int64_t begin, int64_t end) {
      Kernels<T>().accumulate(begin * k, end * k, Ptr<T>(product), to);
    });
  }
}

void Decoder::Impl::MultiplyBack(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) const {
  TP_CHECK(dy.is_contiguous() && dx.is_contiguous()) << "gradient of a product: rows with gaps";
  const bool narrow = dy.scalar_type() == at::kBFloat16;
  if (narrow && !own_products) {
    at::mm_out(dx, dy, w);
    return;
  }
  const auto multiply = [&]<typename T>(T) {
    const MultiplyBackArgs<T> args{.rows = dy.size(0),
                                   .n = w.size(0),
                                   .k = w.size(1),
                                   .dy = Ptr<T>(dy),
                                   .w = Ptr<T>(w),
                                   .dx = Ptr<T>(dx)};
    ParallelProduct(args.rows, /*unit=*/12, args.n * args.k, MultiplyBackScratch(),
                    [&](int64_t begin, int64_t end, float* scratch) {
                      Kernels<T>().product.multiply_back(begin, end, args, scratch);
                    });
  };
  narrow ? multiply(BF16{}) : multiply(float{});
}

void Decoder::Impl::MultiplyBackWeight(float* dw, const at::Tensor& dy, const at::Tensor& x) const {
  TP_CHECK(dy.is_contiguous() && x.is_contiguous()) << "gradient of a product: rows with gaps";
  const auto multiply = [&]<typename T>(T) {
    const MultiplyBackArgs<T> args{
        .rows = dy.size(0), .n = dy.size(1), .k = x.size(1), .dy = Ptr<T>(dy), .x = Ptr<T>(x), .dw = dw};
    ParallelProduct(args.n, /*unit=*/12, args.rows * args.k, MultiplyBackScratch(),
                    [&](int64_t begin, int64_t end, float* scratch) {
                      Kernels<T>().product.multiply_back_weight(begin, end, args, scratch);
                    });
  };
  dy.scalar_type() == at::kBFloat16 ? multiply(BF16{}) : multiply(float{});
}

template <typename T>
void Decoder::Impl::AddBiasGradient(int64_t index, int64_t rows, const at::Tensor& dy,
                                    Gradients& grads) const {
  if (index < 0) return;
  const int64_t n = dy.size(1);
  float* gradient = grads.values().data() + weights.layout()[static_cast<size_t>(index)].offset;
  ParallelItems(RoundUp(n, 16) / 16, 16 * rows, [&](int64_t begin, int64_t end) {
    Kernels<T>().column_sum(begin * 16, std::min(n, end * 16), rows, n, Ptr<T>(dy), gradient);
  });
}

template <typename T>
void Decoder::Impl::MlpBackward(int64_t gate_up_index, int64_t down_index, int64_t expert, at::Tensor gate_up,
                                at::Tensor act, const at::Tensor& x, const at::Tensor& dy, at::Tensor dx,
                                Gradients& grads) {
  const int64_t n = act.size(0), m = act.size(1), d = dy.size(1);
  const auto rows_of = [&](int64_t index, int64_t rows) {
    return parameters[static_cast<size_t>(index)].narrow(0, expert * rows, rows);
  };
  ParallelItems(n, 16 * m, [&](int64_t begin, int64_t end) {
    Kernels<T>().swiglu(begin, end, m, Ptr<T>(gate_up), Ptr<T>(act));
  });
  AddProductGradient<T>(down_index, dy, act, grads, expert * d);
  MultiplyBack(act, dy, rows_of(down_index, d));
  ParallelItems(n, 24 * m, [&](int64_t begin, int64_t end) {
    Kernels<T>().swiglu_backward(begin, end, m, Ptr<T>(gate_up), Ptr<T>(act), Ptr<T>(gate_up));
  });
  AddProductGradient<T>(gate_up_index, gate_up, x, grads, expert * 2 * m);
  MultiplyBack(dx, gate_up, rows_of(gate_up_index, 2 * m));
}

// The experts' backward is in another file.
template void Decoder::Impl::MlpBackward<float>(int64_t, int64_t, int64_t, at::Tensor, at::Tensor,
                                                const at::Tensor&, const at::Tensor&, at::Tensor, Gradients&);
template void Decoder::Impl::MlpBackward<BF16>(int64_t, int64_t, int64_t, at::Tensor, at::Tensor,
                                               const at::Tensor&, const at::Tensor&, at::Tensor, Gradients&);

template <typename T>
void Decoder::Impl::BlockBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                                  const at::Tensor& dx, const at::Tensor& dx_narrow, double balance_scale,
                                  Gradients& grads) {
  const KernelTable<T>& kernels = Kernels<T>();
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const auto param = [&](int64_t i) { return i < 0 ? nullptr : Ptr<T>(parameters[static_cast<size_t>(i)]); };
  const auto grad = [&](int64_t i) {
    return grads.values().data() + weights.layout()[static_cast<size_t>(i)].offset;
  };
  const int64_t d = spec.hidden_size, padded = saved.padded, rows = saved.rows;
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  const auto eps = static_cast<float>(spec.rms_norm_eps);
  at::Tensor norm = b.norm, dnorm = b.out;

  const auto renorm = [&](const at::Tensor& x, int64_t weight) {
    const RmsNormArgs<T> args{
        .d = d, .x = Ptr<T>(x), .weight = param(weight), .eps = eps, .out = Ptr<T>(norm)};
    ParallelItems(padded, 4 * d, [&](int64_t begin, int64_t end) { kernels.rms_norm(begin, end, args); });
  };
  const auto norm_backward = [&](const at::Tensor& x, const at::Tensor& rstd, int64_t weight) {
    ParallelItems(RoundUp(d, 16) / 16, 48 * padded, [&](int64_t begin, int64_t end) {
      kernels.rms_norm_backward_weight(begin * 16, std::min(d, end * 16), padded, d, Ptr<T>(x),
                                       Ptr<float>(rstd), Ptr<T>(dnorm), grad(weight));
    });
    ParallelItems(padded, 8 * d, [&](int64_t begin, int64_t end) {
      kernels.rms_norm_backward(begin, end, d, Ptr<T>(x), param(weight), Ptr<float>(rstd), Ptr<T>(dnorm),
                                Ptr<float>(dx), Ptr<T>(dx_narrow));
    });
  };

  // MLP. x_out = x_mid + act · down^T
  renorm(b.x_mid, w.mlp_norm);
  if (w.sparse >= 0) {
    ExpertsBackward<T>(layer, saved, b, dx_narrow, balance_scale, grads);
  } else {
    AddBiasGradient<T>(w.down_bias, rows, dx_narrow, grads);
    MlpBackward<T>(w.gate_up, w.down, /*expert=*/0, b.gate_up, b.act, norm, dx_narrow, dnorm, grads);
    AddBiasGradient<T>(w.gate_up_bias, rows, b.gate_up, grads);
  }
  norm_backward(b.x_mid, b.rstd2, w.mlp_norm);

  // Attention. x_mid = x + a · o^T
  AddBiasGradient<T>(w.o_bias, rows, dx_narrow, grads);
  AddProductGradient<T>(w.o, dx_narrow, b.a, grads);
  at::Tensor da = scratch.Take({padded, spec.heads * spec.head_size}, t);
  MultiplyBack(da, dx_narrow, parameters[static_cast<size_t>(w.o)]);
  at::Tensor dqkv = scratch.Take({padded, qkv_width()}, t);
  std::memset(static_cast<void*>(Ptr<T>(dqkv) + rows * qkv_width()), 0,
              static_cast<size_t>((padded - rows) * qkv_width()) * sizeof(T));
  const int64_t head_floats = RoundUp(spec.head_size, 16);
  at::Tensor dq = scratch.Take({backward_plan.lanes, spec.kv_heads, head_floats}, at::kFloat),
             dkv = scratch.Take({2, spec.kv_heads, rows, head_floats}, at::kFloat);
  const AttentionBackwardArgs<T> args{.forward = {.heads = spec.heads,
                                                  .kv_heads = spec.kv_heads,
                                                  .head_size = spec.head_size,
                                                  .q = Ptr<T>(b.q),
                                                  .k = Ptr<T>(b.k),
                                                  .v = Ptr<T>(b.v),
                                                  .first_run = saved.first_run.data(),
                                                  .lengths = saved.lengths.data(),
                                                  .runs = saved.runs.data(),
                                                  .out = Ptr<T>(b.a),
                                                  .lse = Ptr<float>(b.lse)},
                                      .rows = rows,
                                      .dout = Ptr<T>(da),
                                      .cos = cos.data(),
                                      .sin = sin.data(),
                                      .positions = saved.positions.data(),
                                      .tiles = backward_plan.tiles.data(),
                                      .dq = Ptr<float>(dq),
                                      .dk = Ptr<float>(dkv),
                                      .dv = Ptr<float>(dkv) + spec.kv_heads * rows * head_floats,
                                      .dqkv = Ptr<T>(dqkv)};
  ReserveSpaces();
  RunCells(backward_plan, spec.kv_heads, [&](int64_t cell, int64_t kv, int64_t thread) {
    kernels.attention_backward(backward_plan.cells[static_cast<size_t>(cell)], kv, args,
                               Space(thread, AttentionBackwardScratch(spec.head_size)));
  });
  if (spec.qk_norm) {
    const HeadNormBackwardArgs<T> head{.heads = spec.heads,
                                       .kv_heads = spec.kv_heads,
                                       .head_size = spec.head_size,
                                       .qkv = Ptr<T>(b.qkv),
                                       .bias = param(w.qkv_bias),
                                       .q_norm = param(w.q_norm),
                                       .k_norm = param(w.k_norm),
                                       .eps = eps,
                                       .dqkv = Ptr<T>(dqkv)};
    // Blocks of 64 rows, summed in order, whatever the number of threads.
    const int64_t blocks = (rows + 63) / 64, width = 2 * spec.head_size;
    std::vector<float> partial(static_cast<size_t>(blocks * width), 0.0F);
    ParallelItems(blocks, 64 * 16 * qkv_width(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        kernels.head_norm_backward(i * 64, std::min(rows, i * 64 + 64), head, partial.data() + i * width);
      }
    });
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t c = 0; c < spec.head_size; ++c) {
        grad(w.q_norm)[c] += partial[static_cast<size_t>(i * width + c)];
        grad(w.k_norm)[c] += partial[static_cast<size_t>(i * width + spec.head_size + c)];
      }
    }
  }
  AddBiasGradient<T>(w.qkv_bias, rows, dqkv, grads);
  renorm(b.x, w.attention_norm);
  AddProductGradient<T>(w.qkv, dqkv, norm, grads);
  MultiplyBack(dnorm, dqkv, parameters[static_cast<size_t>(w.qkv)]);
  norm_backward(b.x, b.rstd1, w.attention_norm);
}

template <typename T>
void Decoder::Impl::Backward(SavedActivations& saved, const at::Tensor& grad_hidden, double balance_scale,
                             Gradients& grads) {
  const int64_t rows = saved.rows, padded = saved.padded, d = spec.hidden_size;
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  TP_CHECK(grad_hidden.dim() == 2 && grad_hidden.size(0) == rows && grad_hidden.size(1) == d &&
           grad_hidden.scalar_type() == t)
      << "backward: the gradient of the hidden rows has another shape or dtype";
  scratch.Reset();
  BlockBuffers shared;
  if (saved.recompute) PlanBatch(saved.batch());
  if (saved.recompute) shared = TakeBlock(scratch, rows, padded, /*training=*/true, /*layer=*/-1);
  TakeUnsaved(scratch, rows, padded, shared);
  if (saved.recompute && !spec.qk_norm) shared.qkv = scratch.Take({padded, qkv_width()}, t);
  // The residual stream's gradient is kept in float32; products read it rounded.
  const at::Tensor dx = scratch.Take({padded, d}, at::kFloat);
  const at::Tensor dx_narrow = wide ? dx : scratch.Take({padded, d}, t);
  std::memset(dx.data_ptr(), 0, static_cast<size_t>(padded * d) * sizeof(float));

  T* dh = Ptr<T>(shared.out);
  const at::Tensor dense = grad_hidden.contiguous();
  std::memcpy(static_cast<void*>(dh), dense.const_data_ptr(), static_cast<size_t>(rows * d) * sizeof(T));
  std::memset(static_cast<void*>(dh + rows * d), 0, static_cast<size_t>((padded - rows) * d) * sizeof(T));
  float* dnorm = grads.values().data() + weights.layout()[static_cast<size_t>(final_norm)].offset;
  ParallelItems(RoundUp(d, 16) / 16, 48 * padded, [&](int64_t begin, int64_t end) {
    Kernels<T>().rms_norm_backward_weight(begin * 16, std::min(d, end * 16), padded, d, Ptr<T>(saved.x_last),
                                          Ptr<float>(saved.rstd_last), dh, dnorm);
  });
  ParallelItems(padded, 8 * d, [&](int64_t begin, int64_t end) {
    Kernels<T>().rms_norm_backward(begin, end, d, Ptr<T>(saved.x_last),
                                   Ptr<T>(parameters[static_cast<size_t>(final_norm)]),
                                   Ptr<float>(saved.rstd_last), dh, Ptr<float>(dx), Ptr<T>(dx_narrow));
  });
  const RaggedBatch batch = saved.batch();
  backward_plan = PlanAttentionBackward(batch.first_run, batch.lengths, batch.runs, ClosedRanges(batch),
                                        {.heads = spec.heads, .kv_heads = spec.kv_heads});
  const ActivationArena::Mark mark = scratch.mark();
  for (int64_t l = spec.layers - 1; l >= 0; --l) {
    scratch.Rewind(mark);
    BlockBuffers b = saved.recompute ? shared : saved.blocks[static_cast<size_t>(l)];
    b.LendUnsaved(shared);
    if (saved.recompute) {
      b.x = saved.blocks[static_cast<size_t>(l)].x;
      Block<T>(l, batch, padded, b, Ptr<T>(b.x), nullptr, Ptr<T>(b.k), Ptr<T>(b.v));
    }
    BlockBackward<T>(l, saved, b, dx, dx_narrow, balance_scale, grads);
  }
  float* table = grads.values().data() + weights.layout()[static_cast<size_t>(embedding)].offset;
  // A thread owns columns, so rows with the same id are summed in their order.
  ParallelItems(RoundUp(d, 16) / 16, 16 * rows, [&](int64_t begin, int64_t end) {
    Kernels<T>().embedding_backward(begin * 16, std::min(d, end * 16), rows, d, batch.ids.data(),
                                    Ptr<float>(dx), table);
  });
}

void Decoder::Backward(SavedPtr saved, const at::Tensor& grad_hidden, Gradients& grads,
                       double balance_scale) const {
  if (impl_->wide) {
    impl_->Backward<float>(*saved, grad_hidden, balance_scale, grads);
  } else {
    impl_->Backward<BF16>(*saved, grad_hidden, balance_scale, grads);
  }
}

at::Tensor Decoder::LogitsBackward(const at::Tensor& hidden, const at::Tensor& dlogits,
                                   Gradients& grads) const {
  Impl& m = *impl_;
  if (m.wide) {
    m.AddProductGradient<float>(m.head, dlogits, hidden.contiguous(), grads);
  } else {
    m.AddProductGradient<BF16>(m.head, dlogits, hidden.contiguous(), grads);
  }
  at::Tensor dhidden = at::empty(hidden.sizes(), hidden.options());
  m.MultiplyBack(dhidden, dlogits, m.parameters[static_cast<size_t>(m.head)]);
  return dhidden;
}

}  // namespace tidepool::model
