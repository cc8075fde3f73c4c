// The products and attention of a processor with AMX on tiles of plain code, for processors that have none
// (flags in CMakeLists.txt: what surrounds the tiles needs AVX-512 with bfloat16).
#define TIDEPOOL_ISA emulated_tiles
#include "core/device/cpu/attention_amx.inc"
#include "core/device/cpu/multiply_amx.inc"

namespace tidepool::device {
namespace emulated_tiles {
namespace {

// As "Intel 64 and IA-32 Architectures Software Developer's Manual" has them, TDPBF16PS; denormals are kept.
struct PlainTiles {
  struct Tile {
    int64_t rows = 0;
    unsigned char bytes[16][64] = {};
  };
  static thread_local Tile tiles[8];

  static void Set(int64_t a, int64_t b) {
    const int64_t rows[8] = {a, a, b, b, a, b, 16, 16};
    for (int t = 0; t < 8; ++t) {
      if (rows[t] < 0 || rows[t] > 16) __builtin_trap();
      tiles[t] = Tile{.rows = rows[t]};
    }
  }
  static void Release() {
    for (Tile& tile : tiles) tile.rows = 0;
  }
  static Tile& In(int t) {
    if (tiles[t].rows == 0) __builtin_trap();  // an undefined instruction
    return tiles[t];
  }
  template <int t>
  static void Zero() {
    In(t) = Tile{.rows = In(t).rows};
  }
  template <int t>
  static void Load(const void* from, int64_t bytes) {
    for (int64_t r = 0; r < In(t).rows; ++r)
      __builtin_memcpy(In(t).bytes[r], static_cast<const char*>(from) + r * bytes, 64);
  }
  template <int t>
  static void LoadOnce(const void* from, int64_t bytes) {
    Load<t>(from, bytes);
  }
  template <int t>
  static void Store(void* to, int64_t bytes) {
    for (int64_t r = 0; r < In(t).rows; ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * bytes, In(t).bytes[r], 64);
  }
  template <int t, int x, int w>
  static void Add() {
    if (In(t).rows != In(x).rows || In(w).rows != 16) __builtin_trap();
    for (int64_t m = 0; m < In(t).rows; ++m) {
      float sum[16];
      BF16 of_x[32], of_w[32];
      __builtin_memcpy(sum, In(t).bytes[m], 64);
      __builtin_memcpy(static_cast<void*>(of_x), In(x).bytes[m], 64);
      float even[16] = {}, odd[16] = {};
      for (int64_t k = 0; k < 16; ++k) {
        __builtin_memcpy(static_cast<void*>(of_w), In(w).bytes[k], 64);
        for (int n = 0; n < 16; ++n) {
          even[n] = __builtin_fmaf(Get(of_x + 2 * k), Get(of_w + 2 * n), even[n]);
          odd[n] = __builtin_fmaf(Get(of_x + 2 * k + 1), Get(of_w + 2 * n + 1), odd[n]);
        }
      }
      for (int n = 0; n < 16; ++n) sum[n] += even[n] + odd[n];
      __builtin_memcpy(In(t).bytes[m], sum, 64);
    }
  }
};
thread_local PlainTiles::Tile PlainTiles::tiles[8];

}  // namespace
}  // namespace emulated_tiles

extern const TileKernels kEmulatedTiles;
const TileKernels kEmulatedTiles = {
    .product = emulated_tiles::AmxProducts<emulated_tiles::PlainTiles>::Table(),
    .attention = emulated_tiles::AmxAttention<emulated_tiles::PlainTiles>::Forward,
    .attention_backward = emulated_tiles::AmxAttention<emulated_tiles::PlainTiles>::Backward};

}  // namespace tidepool::device
