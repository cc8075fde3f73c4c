#pragma once
// Kernels of the CPU (core/device/arguments.h says what they compute), and their tables.
//
// Each works on a range of independent items, so the caller splits the range over threads as it likes: the
// result of an item never depends on the split. Sums run in one fixed order: 16 lanes by index mod 16, lanes
// added as a balanced tree. The code is compiled once for each `Isa`
// and chosen at run time; equal bits are promised on one instruction set, not between two of them
// (fused multiply-add differs). Pure functions of their arguments; thread-safe.

#include <cstdint>

#include "core/base/words.h"
#include "core/device/arguments.h"

namespace tidepool::device {

// Attention (AttentionArgs) comes in tiles (attention_plan.h). Keys are taken in blocks of kKeyBlock from
// position 0 on, so a row has the same bits in every tile and however its blocks are divided; a part is what
// was computed of a row elsewhere: of its first blocks together, or of one later block.
inline constexpr int64_t kKeyBlock = 128;
inline constexpr int64_t kAttentionRows = 192;  // rows x query heads of a tile, at most
inline constexpr int64_t kTileSequences = 16;   // of a tile's rows, at most
struct AttentionTile {
  int32_t first_row = 0, rows = 0;       // in AttentionTileArgs::tile_rows; those of a sequence side by side
  int32_t head_begin = 0, head_end = 0;  // query heads: of whole KV heads, or some of one
  int32_t block_begin = 0, block_end = 0;  // keys that a row does not see are passed over
  // -1: folds the rows' parts and these blocks, writes out and lse. 0: writes part 0 of its rows, with
  // block_begin 0. Else: a part for each block, `part` and following ones.
  int32_t part = -1;
};
template <typename T>
struct AttentionTileArgs : AttentionArgs<T> {
  const int32_t* tile_rows = nullptr;
  const int32_t* first_part = nullptr;  // [rows], null without parts
  const int32_t* part_count = nullptr;  // [rows]
  float* parts = nullptr;               // [parts, heads, AttentionPartFloats]
};

// Its backward comes in cells of tiles by slots (attention_plan.h); sums wait in dq, dk and dv until their
// last cell.
inline constexpr int64_t kBackwardLanes = 64;  // rows x query heads of a tile, at most
struct AttentionBackwardTile {
  int32_t first_row = 0, rows = 0;  // of one sequence
  int32_t head = 0, heads = 0;      // of the query heads of a KV head
  int64_t lane = 0;                 // rows x heads, up to whole chunks of 16, of the tiles before
};
struct AttentionCell {
  int32_t tile_begin = 0, tile_end = 0;
  int32_t slot_begin = 0, slot_end = 0;
  // The first cell of these tiles sets their sums to zero, the last one writes them; and so for slots.
  bool first_of_rows = false, last_of_rows = false, first_of_slots = false, last_of_slots = false;
};
template <typename T>
struct AttentionCellArgs : AttentionBackwardArgs<T> {
  const AttentionBackwardTile* tiles = nullptr;
  float* dq = nullptr;  // [lanes, kv_heads, padded], padded: head_size up to a multiple of 16
  float* dk = nullptr;  // [kv_heads, rows, padded]
  float* dv = nullptr;
};

// Rows of a matrix that stand side by side when it is laid out for products (cpu/multiply_strips.inc).
inline constexpr int64_t kStripRows = 16;
// Whether matrices of `rows` rows of so many bytes that stand behind each other can be. Of one alone the rows
// that are left over, behind its strips, stay as they are.
inline bool FitsStrips(int64_t rows, int64_t row_bytes, bool alone) {
  return (rows % kStripRows == 0 || (alone && rows > kStripRows)) && row_bytes % 4 == 0;
}

template <typename T>
struct ProductTable {
  // Columns [begin, end) of y, by a matrix in strips; begin and end: multiples of kStripRows. Best in whole
  // tiles of strip_columns(rows). scratch: multiply_scratch(rows, k) floats, which may be none.
  void (*multiply_strips)(int64_t begin, int64_t end, const MultiplyArgs<T>&, float* scratch);
  int64_t (*multiply_scratch)(int64_t rows, int64_t k);
  int64_t (*strip_columns)(int64_t rows);
  // Strips [begin, end) of a matrix whose rows have `words` of 32 bits.
  void (*lay_out)(int64_t begin, int64_t end, int64_t words, const uint32_t* w, uint32_t* strips);
  // Of a matrix in blocks (core/device/blocks.h) with rows of k: rows [begin, end) as numbers, and strips
  // [begin, end), which are laid out. The first stands at `out`.
  void (*read_blocks)(int64_t begin, int64_t end, int64_t k, BlockType, const void* w, T* out);
  void (*lay_out_blocks)(int64_t begin, int64_t end, int64_t k, BlockType, const void* w, T* out);
  // Rows [begin, end) of dx, and rows [begin, end) of dw. scratch: MultiplyBackScratch(tiles) floats.
  void (*multiply_back)(int64_t begin, int64_t end, const MultiplyBackArgs<T>&, float* scratch);
  void (*multiply_back_weight)(int64_t begin, int64_t end, const MultiplyBackWeightArgs<T>&, float* scratch);
  // Columns [begin, end) of db of one band. scratch: MultiplyBackScratch() floats.
  void (*low_rank_back_weight)(int64_t band, int64_t begin, int64_t end, const LowRankBackWeightArgs<T>&,
                               float* scratch);
  // Rows in strips that a thread of several best takes at once, with all columns; `rows`: all, and some
  // columns.
  int64_t (*strip_rows)(int64_t rows, int64_t k, int64_t threads);
  // Columns [begin, end) of act[rows, n / 2] = silu(gate) * up, where y = gate | up; y is not written. The
  // bits are those of multiply_strips and swiglu. requires strips and that k, n / 2, begin and end are
  // multiples of 32. Null: there is no such kernel.
  void (*multiply_glu)(int64_t begin, int64_t end, const MultiplyArgs<T>&, T* act, float* scratch) = nullptr;
};

template <typename T>
struct KernelTable {
  ProductTable<T> product;
  void (*rms_norm)(int64_t begin, int64_t end, const RmsNormArgs<T>&);
  // dx[rows, d] (float32) += d norm / d x . dout; dx_copy (T, may be null) gets the sum rounded.
  void (*rms_norm_backward)(int64_t begin, int64_t end, int64_t d, const T* x, const T* weight,
                            const float* rstd, const T* dout, float* dx, T* dx_copy);
  // dweight[c] += sum over rows of dout * x * rstd, for columns [begin, end).
  void (*rms_norm_backward_weight)(int64_t begin, int64_t end, int64_t rows, int64_t d, const T* x,
                                   const float* rstd, const T* dout, float* dweight);
  void (*rotary)(int64_t begin, int64_t end, const RotaryArgs<T>&);
  // scratch: AttentionScratch(head_size) floats.
  void (*attention)(const AttentionTile&, const AttentionTileArgs<T>&, float* scratch);
  // scratch: AttentionBackwardScratch(head_size) floats.
  void (*attention_backward)(const AttentionCell&, int64_t kv_head, const AttentionCellArgs<T>&,
                             float* scratch);
  // dweight[tiles, 2 * head_size]: of q, then of k; added to, in place of the arguments' own.
  void (*head_norm_backward)(int64_t begin, int64_t end, const HeadNormBackwardArgs<T>&, float* dweight);
  void (*add_bias)(int64_t begin, int64_t end, int64_t n, const T* bias, T* x);  // x[rows, n] += bias[n]
  // logits[rows, experts] (float32) = x[rows, d] . w[experts, d]^T, each a sum in the fixed order.
  void (*router)(int64_t begin, int64_t end, int64_t d, int64_t experts, const T* x, const T* w,
                 float* logits);
  void (*combine_experts)(int64_t begin, int64_t end, const CombineExpertsArgs<T>&);
  void (*combine_experts_backward)(int64_t begin, int64_t end, const CombineExpertsBackwardArgs<T>&);
  // gate_up[rows, 2 ff] -> act[rows, ff] = silu(gate) * up.
  void (*swiglu)(int64_t begin, int64_t end, int64_t ff, const T* gate_up, T* act);
  // dgate_up[rows, 2 ff] from dact[rows, ff]; dgate_up may be gate_up.
  void (*swiglu_backward)(int64_t begin, int64_t end, int64_t ff, const T* gate_up, const T* dact,
                          T* dgate_up);
  void (*token_logprob)(int64_t begin, int64_t end, const TokenLogProbArgs<T>&);
  // In place: logits become d loss / d logits, given d loss / d logprob and d loss / d entropy (may be null).
  void (*token_logprob_backward)(int64_t begin, int64_t end, int64_t vocab, T* logits, const int32_t* ids,
                                 float inv_temperature, const float* lse, const float* entropy,
                                 const float* dlogprob, const float* dentropy);
  // out[c] += sum over rows of x[r, c], columns [begin, end).
  void (*column_sum)(int64_t begin, int64_t end, int64_t rows, int64_t stride, const T* x, float* out);
  // table[ids[r], c] += x[r, c], columns [begin, end), rows in order.
  void (*scatter_add_rows)(int64_t begin, int64_t end, int64_t rows, int64_t d, const int32_t* ids,
                           const T* x, float* table);
  void (*low_rank)(int64_t begin, int64_t end, const LowRankArgs<T>&);
  void (*add_low_rank)(int64_t begin, int64_t end, const AddLowRankArgs<T>&);
  void (*accumulate)(int64_t begin, int64_t end, const T* x, float* sum);  // sum[i] += x[i]
  void (*widen)(int64_t begin, int64_t end, const T* x, float* out);
  void (*narrow)(int64_t begin, int64_t end, const float* x, T* out);  // nearest, ties to even
};

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Blocks of the backward: terms that are summed at a time, rows and columns of the result. Tiles have larger
// ones (cpu/multiply_amx.inc), and the scratch is enough for them.
constexpr int64_t kBackTerms = 256, kBackRows = 192, kBackColumns = 384;
constexpr int64_t MultiplyBackScratch(int64_t tiles = 1) {
  return 288 * 576 * (tiles > 1 ? 3 : 1) + 128 * (576 + 288) + 64;
}
inline int64_t AttentionScratch(int64_t head_size) {
  return (2 * kKeyBlock + 2 * kAttentionRows + 16) * RoundUp(head_size, 16) +
         (128 + 2 * kTileSequences) * kKeyBlock + 1024;
}
inline int64_t AttentionPartFloats(int64_t head_size) { return RoundUp(head_size, 16) + 16; }
inline int64_t AttentionBackwardScratch(int64_t head_size) {
  return (3 * kKeyBlock + 4 * kBackwardLanes) * RoundUp(head_size, 16) + (3 * kKeyBlock + 4) * kBackwardLanes;
}

inline constexpr int64_t kLowRankRows = 8;  // of a tile of low_rank and add_low_rank, at most

// What tiles of a processor with AMX, or of a test, do in place of the kernels of AVX-512 with bfloat16.
struct TileKernels {
  ProductTable<BF16> product;
  decltype(KernelTable<BF16>::attention) attention;
  decltype(KernelTable<BF16>::attention_backward) attention_backward;
  [[nodiscard]] KernelTable<BF16> In(KernelTable<BF16> table) const {
    table.product = product;
    table.attention = attention;
    table.attention_backward = attention_backward;
    return table;
  }
};

// The best set this CPU has. T: float or BF16.
template <typename T>
const KernelTable<T>& Kernels();

enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };
// What the kernels of this process use: the best this CPU has, or TIDEPOOL_CPU_ISA=avx2 and the like. A word
// that is no instruction set ends the process (exit 2), and one that this CPU lacks is said to be: on stderr,
// once.
Isa BestIsa();
constexpr auto WordsOf(Isa) {
  return std::to_array<const char*>({"baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16"});
}
template <typename T>
const KernelTable<T>& KernelsFor(Isa isa);  // requires that the CPU has it
template <>
const KernelTable<float>& KernelsFor(Isa isa);
template <>
const KernelTable<BF16>& KernelsFor(Isa isa);

}  // namespace tidepool::device
