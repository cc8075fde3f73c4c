#pragma once
// The first two passes over rows of logits, for kernels that go on with what they give.

#include "core/cuda/kernels/launch.h"
#include "core/cuda/kernels/vocab_row.h"

namespace tidepool::cuda {

// device::InverseTemperature.
__device__ inline float ScaleOf(const device::SampleRow& how) {
  return how.temperature == 0.0F ? 1.0F : fminf(1.0F / how.temperature, 3.0e38F);
}

template <typename T>
struct VocabRows {
  int64_t rows = 0, vocab = 0;
  const T* logits = nullptr;               // [.., vocab]
  const int32_t* source = nullptr;         // [rows] rows of logits; null: all, in order
  const device::SampleRow* how = nullptr;  // [rows]: of each row its scale; null: `scale`
  float scale = 1;
  bool entropy = false;
};
// Takes the launcher's scratch, which *out then lies in.
template <typename T>
int SumVocab(const VocabRows<T>& rows, Launcher& launcher, VocabParts* out);

}  // namespace tidepool::cuda
