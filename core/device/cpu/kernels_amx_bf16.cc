// Products and attention by the tiles of a processor with AMX (flags in CMakeLists.txt). The rest of the
// kernels there are those of AVX-512 with bfloat16.
#define TIDEPOOL_ISA amx_bf16
#include "core/device/cpu/attention_amx.inc"
#include "core/device/cpu/multiply_amx.inc"

namespace tidepool::device::amx_bf16 {
namespace {

// Assembler, since the intrinsics of GCC and clang take tile numbers in different ways.
struct Amx {
  static void Set(int64_t a, int64_t b) {
    // Palette 1: bytes in a row of each tile from byte 16 on, rows of each from byte 48 on. Tiles without
    // rows have no bytes either.
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64);
    const int64_t rows[8] = {a, a, b, b, a, b, kTileSide, kTileSide};
    for (int t = 0; t < 8; ++t) {
      config.rows[t] = static_cast<uint8_t>(rows[t]);
      config.bytes[t] = rows[t] > 0 ? kTileBytes : 0;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  static void Release() { __asm__ volatile("tilerelease" : : : "memory"); }
  template <int t>
  TP_INLINE static void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(t));
  }
  template <int t>
  TP_INLINE static void Load(const void* from, int64_t bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(bytes), "i"(t) : "memory");
  }
  template <int t>
  TP_INLINE static void LoadOnce(const void* from, int64_t bytes) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(bytes), "i"(t) : "memory");
  }
  template <int t>
  TP_INLINE static void Store(void* to, int64_t bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(bytes), "i"(t) : "memory");
  }
  template <int t, int x, int w>
  TP_INLINE static void Add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(t), "i"(x), "i"(w));
  }
};

}  // namespace

extern const TileKernels kTiles;
const TileKernels kTiles = {.product = AmxProducts<Amx>::Table(),
                            .attention = AmxAttention<Amx>::Forward,
                            .attention_backward = AmxAttention<Amx>::Backward};

}  // namespace tidepool::device::amx_bf16
