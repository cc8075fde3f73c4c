#pragma once
// The functions behind the table of launch.h; each is defined beside its kernel.

#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

template <typename T>
int RmsNorm(const device::RmsNormArgs<T>&, int64_t rows, Stream);
template <typename T>
int RmsNormBackward(int64_t rows, int64_t d, const T* x, const T* weight, const float* rstd, const T* dout,
                    float* dx, T* dx_copy, Stream);
template <typename T>
int RmsNormBackwardWeight(int64_t rows, int64_t d, const T* x, const float* rstd, const T* dout,
                          float* dweight, Stream);
template <typename T>
int Rotary(const device::RotaryArgs<T>&, int64_t rows, Stream);
template <typename T>
int HeadNormBackward(const device::HeadNormBackwardArgs<T>&, int64_t rows, float* dweight, float* scratch,
                     Stream);
template <typename T>
int AddBias(int64_t rows, int64_t n, const T* bias, T* x, Stream);
template <typename T>
int SwiGlu(int64_t rows, int64_t ff, const T* gate_up, T* act, Stream);
template <typename T>
int SwiGluBackward(int64_t rows, int64_t ff, const T* gate_up, const T* dact, T* dgate_up, Stream);
template <typename T>
int TokenLogProb(int64_t rows, int64_t vocab, const T* logits, const int32_t* ids, float inv_temperature,
                 float* logprob, float* entropy, float* lse, Stream);
template <typename T>
int TokenLogProbBackward(int64_t rows, int64_t vocab, T* logits, const int32_t* ids, float inv_temperature,
                         const float* lse, const float* entropy, const float* dlogprob, const float* dentropy,
                         Stream);
template <typename T>
int Sample(const SampleArgs<T>&, Stream);
template <typename T>
int ColumnSum(int64_t rows, int64_t columns, int64_t stride, const T* x, float* out, Stream);
template <typename T>
int GatherRows(int64_t rows, int64_t d, const int32_t* ids, const T* table, T* out, Stream);
int EmbeddingBackward(int64_t rows, int64_t d, const int32_t* ids, const float* dx, float* table, Stream);
template <typename T>
int Accumulate(int64_t n, const T* x, float* sum, Stream);
template <typename T>
int WidenArray(int64_t n, const T* x, float* out, Stream);
template <typename T>
int NarrowArray(int64_t n, const float* x, T* out, Stream);
template <typename T>
int Router(int64_t rows, int64_t d, int64_t experts, const T* x, const T* w, float* logits, Stream);
int Route(const RouteArgs&, Stream);
template <typename T>
int GroupedMultiply(const GroupedArgs<T>&, Stream);
template <typename T>
int GroupedMultiplyBack(const GroupedArgs<T>&, Stream);
template <typename T>
int GroupedMultiplyBackWeight(const GroupedArgs<T>&, Stream);
template <typename T>
int CombineExperts(const device::CombineExpertsArgs<T>&, Stream);
template <typename T>
int CombineExpertsBackward(const device::CombineExpertsBackwardArgs<T>&, Stream);
int SquareSum(int64_t n, const float* x, double* sum, double* scratch, Stream);
template <typename T>
int AdamW(const AdamWArgs<T>&, Stream);
template <typename T>
int DecodeAttention(const DecodeArgs<T>&, Stream);
template <typename T>
int PrefillAttention(const PrefillArgs<T>&, Stream);
template <typename T>
int AttentionBackward(const device::AttentionBackwardArgs<T>&, int64_t row_begin, int64_t row_end,
                      float* scratch, Stream);

}  // namespace tidepool::cuda
