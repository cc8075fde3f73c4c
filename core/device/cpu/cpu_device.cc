#include "core/device/cpu/cpu_device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/device/cpu/adamw.h"
#include "core/device/cpu/attention_plan.h"
#include "core/device/cpu/attention_runs.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/salted_sums.h"
#include "core/device/cpu/sampler.h"
#include "core/device/log_prob_tiles.h"
#include "core/device/page_buffer.h"

namespace tidepool::device {

namespace {

class CpuBuffer : public Buffer {
 public:
  CpuBuffer(void* data, int64_t bytes) : Buffer(data, bytes) {}
  ~CpuBuffer() override { std::free(data()); }
};
class CpuPages : public Buffer {
 public:
  explicit CpuPages(PageBuffer pages)
      : Buffer(pages.bytes().data(), static_cast<int64_t>(pages.bytes().size())), pages_(std::move(pages)) {}

 private:
  PageBuffer pages_;
};

struct CpuAttention : AttentionWork {
  AttentionPlan plan;
};
struct CpuAttentionBackward : AttentionWork {
  AttentionBackwardPlan plan;
};

// In place, over a row; in the order of the experts.
void Softmax(float* row, int64_t n) {
  const float top = *std::max_element(row, row + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += row[e] = std::exp(row[e] - top);
  for (int64_t e = 0; e < n; ++e) row[e] /= sum;
}

// The k most probable, the lower id first among equals; NaN counts as least.
void Choose(const float* probs, int64_t experts, int64_t k, std::vector<int32_t>& order, int32_t* chosen) {
  order.resize(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [probs](int32_t e) { return std::isnan(probs[e]) ? -1.0F : probs[e]; };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    const float x = key(a), y = key(b);
    return x != y ? x > y : a < b;
  });
  std::copy_n(order.begin(), k, chosen);
}

// Rows of a matrix that is in strips, those behind its last strip not counted.
int64_t RowsInStrips(int64_t rows) { return rows / kStripRows * kStripRows; }

// A row of a table in strips is every sixteenth word of its strip.
template <typename T>
void GatherFromStrips(int64_t begin, int64_t end, const GatherRowsArgs<T>& a) {
  const int64_t words = a.d * static_cast<int64_t>(sizeof(T)) / 4;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t id = a.ids[r];
    if (id < 0) {
      std::memset(static_cast<void*>(a.out + r * a.d), 0, static_cast<size_t>(a.d) * sizeof(T));
      continue;
    }
    if (id >= RowsInStrips(a.table_rows)) {
      std::memcpy(static_cast<void*>(a.out + r * a.d), a.table + id * a.d,
                  static_cast<size_t>(a.d) * sizeof(T));
      continue;
    }
    const auto* from =
        reinterpret_cast<const uint32_t*>(a.table) + id / kStripRows * kStripRows * words + id % kStripRows;
    auto* to = reinterpret_cast<uint32_t*>(a.out + r * a.d);
    for (int64_t w = 0; w < words; ++w) to[w] = from[w * kStripRows];
  }
}

// And of one in blocks is read.
template <typename T>
void GatherFromBlocks(int64_t begin, int64_t end, const GatherRowsArgs<T>& a) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t id = a.ids[r];
    if (id < 0)
      std::memset(static_cast<void*>(a.out + r * a.d), 0, static_cast<size_t>(a.d) * sizeof(T));
    else
      Kernels<T>().product.read_blocks(id, id + 1, a.d, a.blocks, a.table, a.out + r * a.d);
  }
}

// A part of a grouped product: some of what the product of one group gives.
struct GroupPiece {
  int64_t group, begin, end;
};

}  // namespace

struct CpuDevice::Impl {
  std::vector<std::vector<float>> spaces;  // of each thread, for a product or attention
  PageBuffer sums;                         // of attention, shared by the threads
  std::vector<SamplerScratch> draws;       // of each thread

  void ReserveSpaces() {
    const auto threads = static_cast<size_t>(Threads());
    if (spaces.size() < threads) spaces.resize(threads);
  }
  // `floats` of a thread's own, aligned to a cache line, after ReserveSpaces().
  float* Space(int64_t thread, int64_t floats) {
    constexpr size_t kLine = 64;
    std::vector<float>& mine = spaces[static_cast<size_t>(thread)];
    const size_t want = static_cast<size_t>(floats) + kLine / sizeof(float);
    if (mine.size() < want) mine.resize(want);
    void* p = mine.data();
    size_t bytes = mine.size() * sizeof(float);
    return static_cast<float*>(std::align(kLine, bytes - kLine, p, bytes));
  }
  float* Sums(int64_t floats) {
    const auto want = static_cast<size_t>(floats) * sizeof(float);
    if (sums.bytes().size() < want) {
      sums = PageBuffer();
      StatusOr<PageBuffer> pages = PageBuffer::Create(want);
      if (!pages.ok())
        throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "attention: " + pages.status().message());
      sums = std::move(pages).value();
    }
    return sums.As<float>().data();
  }

  // Runs `body(begin, end, scratch)` over [0, items) in pieces of `unit`, each thread with `floats` of its
  // own.
  void ParallelProduct(int64_t items, int64_t unit, int64_t cost, int64_t floats, int64_t pieces_each,
                       const std::function<void(int64_t, int64_t, float*)>& body) {
    ReserveSpaces();
    ParallelItems((items + unit - 1) / unit, unit * cost,
                  [&](int64_t begin, int64_t end) {
                    body(begin * unit, std::min(items, end * unit), Space(ThreadIndex(), floats));
                  },
                  pieces_each);
  }

  // The same over the items of all groups, in one region. items(g): of a group; cost(g): of one of its items.
  void ParallelGroups(int64_t groups, int64_t unit, const std::function<int64_t(int64_t)>& items,
                      const std::function<int64_t(int64_t)>& cost, int64_t floats,
                      const std::function<void(int64_t, int64_t, int64_t, float*)>& body) {
    int64_t total = 0;
    for (int64_t g = 0; g < groups; ++g) total += items(g) * cost(g);
    // Operands are laid out once a piece, so a group is cut no further than the threads need.
    const int64_t share = std::max<int64_t>(32768, total / (4 * Threads()));
    std::vector<GroupPiece> pieces;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t n = items(g), each = std::max<int64_t>(1, cost(g));
      if (n == 0 || cost(g) == 0) continue;
      const int64_t size = RoundUp(std::max<int64_t>(1, share / each), unit);
      for (int64_t at = 0; at < n; at += size) pieces.push_back({g, at, std::min(n, at + size)});
    }
    ReserveSpaces();
    ParallelItems(static_cast<int64_t>(pieces.size()), share, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const GroupPiece& p = pieces[static_cast<size_t>(i)];
        body(p.group, p.begin, p.end, Space(ThreadIndex(), floats));
      }
    });
  }

  // Columns of a product of so many rows that are not parted: those of a tile.
  template <typename T>
  static int64_t Unit(int64_t rows) {
    return Kernels<T>().product.strip_columns(rows);
  }

  // Runs `body(part, row, begin, end, scratch)` over pieces of the rows of a product by strips, from `row`
  // on, with all columns of the result, or over pieces of its columns, with all rows: the bits of a row
  // depend on it alone.
  template <typename T>
  void ParallelMultiply(const MultiplyArgs<T>& a, int64_t columns, int64_t unit,
                        const std::function<void(const MultiplyArgs<T>&, int64_t row, int64_t begin,
                                                 int64_t end, float*)>& body,
                        int64_t more_floats = 0) {
    const ProductTable<T>& product = Kernels<T>().product;
    if (columns == 0) return;
    if (const int64_t piece = product.strip_rows(a.rows, a.k, Threads()); piece < a.rows) {
      const int64_t floats = product.multiply_scratch(piece, a.k) + more_floats;
      ReserveSpaces();
      return ParallelPieces((a.rows + piece - 1) / piece, 1, [&](int64_t begin, int64_t end) {
        MultiplyArgs<T> part = a;
        for (int64_t i = begin; i < end; ++i) {
          part.rows = std::min(piece, a.rows - i * piece);
          part.x = a.x + i * piece * a.k;
          if (a.sums == nullptr)
            part.y = a.y + i * piece * a.n;
          else
            part.sums = a.sums + i * piece * a.n;
          body(part, i * piece, 0, columns, Space(ThreadIndex(), floats));
        }
      });
    }
    ParallelProduct(columns, unit, a.rows * a.k * (a.n / columns),
                    product.multiply_scratch(a.rows, a.k) + more_floats, /*pieces_each=*/4,
                    [&](int64_t begin, int64_t end, float* s) { body(a, 0, begin, end, s); });
  }
  // Columns [0, columns) of the result.
  template <typename T>
  void MultiplyStrips(const MultiplyArgs<T>& a, int64_t columns) {
    ParallelMultiply<T>(a, columns, Unit<T>(a.rows),
                        [&](const MultiplyArgs<T>& part, int64_t, int64_t begin, int64_t end, float* s) {
                          Kernels<T>().product.multiply_strips(begin, end, part, s);
                        });
  }
  // By a matrix in blocks: some rows of it at a time stand in strips, which stay in a core's second cache, or
  // in its first one where few rows of x are multiplied with them.
  template <typename T>
  void MultiplyBlocks(const MultiplyArgs<T>& a) {
    TP_CHECK(a.n % kStripRows == 0 && a.k % kBlockValues == 0) << "blocks of [" << a.n << ", " << a.k << "]";
    constexpr int64_t kManyBytes = 256 << 10, kFewBytes = 32 << 10, kFewRows = 16;
    const ProductTable<T>& product = Kernels<T>().product;
    const int64_t unit = Unit<T>(a.rows), row_bytes = a.k * static_cast<int64_t>(sizeof(T)),
                  fit = (a.rows <= kFewRows ? kFewBytes : kManyBytes) / row_bytes / unit * unit,
                  most = std::min(std::max(fit, unit), RoundUp(a.n, unit)), floats = most * row_bytes / 4;
    ParallelMultiply<T>(
        a, a.n, unit,
        [&](const MultiplyArgs<T>& part, int64_t, int64_t begin, int64_t end, float* space) {
          auto* strips = reinterpret_cast<T*>(space);
          MultiplyArgs<T> of = part;
          of.w = strips, of.strips = true, of.blocks = BlockType::kNone;
          for (int64_t c = begin; c < end; c += most) {
            const int64_t count = std::min(most, end - c);
            product.lay_out_blocks(c / kStripRows, (c + count) / kStripRows, a.k, a.blocks, a.w, strips);
            of.sums == nullptr ? void(of.y = part.y + c) : void(of.sums = part.sums + c);
            product.multiply_strips(0, count, of, space + floats);
          }
        },
        floats);
  }
  template <typename T>
  void Multiply(const MultiplyArgs<T>& a) {
    if (a.blocks != BlockType::kNone) return MultiplyBlocks(a);
    const int64_t in_strips = a.strips ? RowsInStrips(a.n) : 0;
    MultiplyStrips(a, in_strips);
    if (in_strips == a.n || a.rows == 0) return;
    a.sums == nullptr ? MultiplyRows(a, in_strips, a.y) : MultiplyRows(a, in_strips, a.sums);
  }
  // The columns of the result from `first` on, whose rows of the matrix are in no strips: they are laid out
  // here, with zeros up to whole strips, and each tile's terms with zeros up to whole words.
  template <typename T, typename Out>
  void MultiplyRows(const MultiplyArgs<T>& a, int64_t first, Out* y) {
    constexpr int64_t kWord = 4 / static_cast<int64_t>(sizeof(T));
    SumTiles given, padded;
    given.end[0][0] = a.k;
    if (a.tiles != nullptr) given = *a.tiles;
    padded.tiles = given.tiles;
    padded.unit = given.unit;
    const auto begin_of = [](const SumTiles& t, int tile) {
      return tile == 0 ? t.begin[0] : t.end[0][tile - 1];
    };
    for (int t = 0; t < given.tiles; ++t)
      padded.end[0][t] = begin_of(padded, t) + RoundUp(given.end[0][t] - begin_of(given, t), kWord);
    const int64_t n = a.n - first, columns = RoundUp(n, kStripRows), k = padded.end[0][given.tiles - 1],
                  words = k / kWord;
    const auto copy_row = [&](const T* from, T* to) {
      for (int t = 0; t < given.tiles; ++t)
        std::copy_n(from + begin_of(given, t), given.end[0][t] - begin_of(given, t),
                    to + begin_of(padded, t));
    };
    std::vector<uint32_t> strips(static_cast<size_t>(columns * words));
    ParallelItems(columns / kStripRows, kStripRows * words, [&](int64_t begin, int64_t end) {
      std::vector<T> rows(static_cast<size_t>(kStripRows * k));
      for (int64_t s = begin; s < end; ++s) {
        std::ranges::fill(rows, T{});
        for (int64_t r = 0; r < kStripRows && s * kStripRows + r < n; ++r)
          copy_row(a.w + (first + s * kStripRows + r) * a.k, rows.data() + r * k);
        Kernels<T>().product.lay_out(0, 1, words, reinterpret_cast<const uint32_t*>(rows.data()),
                                     strips.data() + s * kStripRows * words);
      }
    });
    std::vector<T> x(static_cast<size_t>(a.rows * k));
    for (int64_t r = 0; r < a.rows; ++r) copy_row(a.x + r * a.k, x.data() + r * k);
    std::vector<Out> sums(static_cast<size_t>(a.rows * columns));
    MultiplyArgs<T> of{.rows = a.rows,
                       .n = columns,
                       .k = k,
                       .x = x.data(),
                       .w = reinterpret_cast<const T*>(strips.data()),
                       .strips = true,
                       .tiles = a.tiles == nullptr ? nullptr : &padded};
    if constexpr (std::is_same_v<Out, T>) of.y = sums.data();
    if (a.sums != nullptr) of.sums = reinterpret_cast<float*>(sums.data());
    MultiplyStrips(of, columns);
    for (int64_t r = 0; r < a.rows; ++r) std::copy_n(sums.data() + r * columns, n, y + r * a.n + first);
  }
  // Whether a product and the gate after it are one kernel.
  template <typename T>
  static bool TakesGlu(const MultiplyArgs<T>& a) {
    // Few rows: what lies between the kernels stays in the caches.
    return Kernels<T>().product.multiply_glu != nullptr && a.strips && a.rows > 32 && a.k % 32 == 0 &&
           a.n % 64 == 0 && a.tiles == nullptr && a.sums == nullptr;
  }
  template <typename T>
  void MultiplyGlu(const MultiplyArgs<T>& a, T* act) {
    const int64_t ff = a.n / 2;
    ParallelMultiply<T>(a, ff, /*unit=*/32,
                        [&](const MultiplyArgs<T>& part, int64_t row, int64_t begin, int64_t end, float* s) {
                          Kernels<T>().product.multiply_glu(begin, end, part, act + row * ff, s);
                        });
  }
  template <typename T>
  void MultiplyBack(const MultiplyBackArgs<T>& a) {
    ParallelProduct(
        a.rows, /*unit=*/12, a.n * a.k, MultiplyBackScratch(a.tiles == nullptr ? 1 : a.tiles->tiles),
        /*pieces_each=*/1,
        [&](int64_t begin, int64_t end, float* s) { Kernels<T>().product.multiply_back(begin, end, a, s); });
  }
  template <typename T>
  void MultiplyBackWeight(const MultiplyBackWeightArgs<T>& a) {
    ParallelProduct(a.n, /*unit=*/12, a.rows * a.k, MultiplyBackScratch(), /*pieces_each=*/1,
                    [&](int64_t begin, int64_t end, float* s) {
                      Kernels<T>().product.multiply_back_weight(begin, end, a, s);
                    });
  }

  template <typename T>
  void Attention(const AttentionArgs<T>& a) {
    const AttentionPlan& plan = static_cast<const CpuAttention&>(*a.work).plan;
    AttentionTileArgs<T> args{a};
    args.tile_rows = plan.tile_rows.data();
    args.first_part = plan.first_part.data();
    args.part_count = plan.part_count.data();
    args.parts = Sums(plan.parts * a.heads * AttentionPartFloats(a.head_size));
    ReserveSpaces();
    RunTiles(plan, [&](const AttentionTile& tile, int64_t thread) {
      Kernels<T>().attention(tile, args, Space(thread, AttentionScratch(a.head_size)));
    });
  }
  template <typename T>
  void AttentionBackward(const AttentionBackwardArgs<T>& a) {
    const AttentionBackwardPlan& plan = static_cast<const CpuAttentionBackward&>(*a.work).plan;
    const int64_t padded = RoundUp(a.head_size, 16), of_rows = plan.lanes * a.kv_heads * padded,
                  of_slots = a.kv_heads * a.keys.rows * padded;
    AttentionCellArgs<T> args{a};
    args.tiles = plan.tiles.data();
    args.dq = Sums(of_rows + 2 * of_slots);
    args.dk = args.dq + of_rows;
    args.dv = args.dk + of_slots;
    ReserveSpaces();
    RunCells(plan, a.kv_heads, [&](int64_t cell, int64_t kv, int64_t thread) {
      Kernels<T>().attention_backward(plan.cells[static_cast<size_t>(cell)], kv, args,
                                      Space(thread, AttentionBackwardScratch(a.head_size)));
    });
  }

  // By columns, 16 at a time.
  static void Columns(int64_t n, int64_t cost, const std::function<void(int64_t, int64_t)>& body) {
    ParallelItems(RoundUp(n, 16) / 16, 16 * cost,
                  [&](int64_t begin, int64_t end) { body(begin * 16, std::min(n, end * 16)); });
  }

  template <typename T>
  void RmsNorm(const RmsNormArgs<T>& a) {
    ParallelItems(a.rows, 6 * a.d, [&](int64_t begin, int64_t end) { Kernels<T>().rms_norm(begin, end, a); });
  }
  template <typename T>
  void RmsNormBackward(const RmsNormBackwardArgs<T>& a) {
    if (a.dweight != nullptr)
      Columns(a.d, 3 * a.rows, [&](int64_t begin, int64_t end) {
        Kernels<T>().rms_norm_backward_weight(begin, end, a.rows, a.d, a.x, a.rstd, a.dout, a.dweight);
      });
    ParallelItems(a.rows, 8 * a.d, [&](int64_t begin, int64_t end) {
      Kernels<T>().rms_norm_backward(begin, end, a.d, a.x, a.weight, a.rstd, a.dout, a.dx, a.dx_copy);
    });
  }
  template <typename T>
  void Rotary(const RotaryArgs<T>& a) {
    ParallelItems(a.rows, 4 * (a.heads + 2 * a.kv_heads) * a.head_size,
                  [&](int64_t begin, int64_t end) { Kernels<T>().rotary(begin, end, a); });
  }
  template <typename T>
  void HeadNormBackward(const HeadNormBackwardArgs<T>& a) {
    // Blocks of 64 rows, summed in order, whatever the number of threads.
    const int64_t blocks = (a.rows + 63) / 64, tiles = a.tiles == nullptr ? 1 : a.tiles->tiles,
                  width = tiles * 2 * a.head_size;
    std::vector<float> partial(static_cast<size_t>(blocks * width), 0.0F);
    ParallelItems(blocks, 64 * 16 * (a.heads + 2 * a.kv_heads) * a.head_size,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      Kernels<T>().head_norm_backward(i * 64, std::min(a.rows, i * 64 + 64), a,
                                                      partial.data() + i * width);
                    }
                  });
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t t = 0; t < tiles; ++t) {
        const float* of_tile = partial.data() + i * width + t * 2 * a.head_size;
        for (int64_t c = 0; c < a.head_size; ++c) {
          a.dq_norm[t * a.head_size + c] += of_tile[c];
          a.dk_norm[t * a.head_size + c] += of_tile[a.head_size + c];
        }
      }
    }
  }
  template <typename T>
  void AddBias(const AddBiasArgs<T>& a) {
    ParallelItems(a.rows, 2 * a.n,
                  [&](int64_t begin, int64_t end) { Kernels<T>().add_bias(begin, end, a.n, a.bias, a.x); });
  }
  template <typename T>
  void SwiGlu(const SwiGluArgs<T>& a) {
    ParallelItems(a.rows, 16 * a.ff, [&](int64_t begin, int64_t end) {
      Kernels<T>().swiglu(begin, end, a.ff, a.gate_up, a.act);
    });
  }
  template <typename T>
  void SwiGluBackward(const SwiGluBackwardArgs<T>& a) {
    ParallelItems(a.rows, 24 * a.ff, [&](int64_t begin, int64_t end) {
      Kernels<T>().swiglu_backward(begin, end, a.ff, a.gate_up, a.dact, a.dgate_up);
    });
  }
  template <typename T>
  void TokenLogProb(const TokenLogProbArgs<T>& a) {
    ParallelItems(a.rows, 12 * a.vocab,
                  [&](int64_t begin, int64_t end) { Kernels<T>().token_logprob(begin, end, a); });
  }
  template <typename T>
  void TokenLogProbBackward(const TokenLogProbBackwardArgs<T>& a) {
    ParallelItems(a.rows, 12 * a.vocab, [&](int64_t begin, int64_t end) {
      Kernels<T>().token_logprob_backward(begin, end, a.vocab, a.logits, a.ids, a.inv_temperature, a.lse,
                                          a.entropy, a.dlogprob, a.dentropy);
    });
  }
  template <typename T>
  void Sample(const SampleArgs<T>& a) {
    draws.resize(static_cast<size_t>(Threads()));
    ParallelItems(a.rows, 24 * a.vocab, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Draw draw = DrawToken(a.logits + a.source[r] * a.vocab, a.vocab, a.how[r],
                                    draws[static_cast<size_t>(ThreadIndex())]);
        a.ids[r] = draw.id;
        a.log_kept[r] = draw.log_kept;
        a.logprob[r] = LogProbOf(a, r);
      }
    });
  }
  template <typename T>
  static float LogProbOf(const SampleArgs<T>& a, int64_t r) {
    TokenLogProbArgs<T> of{.rows = 1,
                           .vocab = a.vocab,
                           .logits = a.logits + a.source[r] * a.vocab,
                           .inv_temperature = InverseTemperature(a.how[r].temperature)};
    LogProbTile tiles[SumTiles::kMost];
    const auto ask = [&](int64_t first, LogProbTile& tile) {
      const int32_t id = a.ids[r] - static_cast<int32_t>(first);
      tile.has_token = a.ids[r] >= first && id < of.vocab;
      const int32_t own = tile.has_token ? id : -1;
      of.ids = &own, of.logprob = &tile.logprob, of.lse = &tile.log_total, of.top = &tile.top;
      Kernels<T>().token_logprob(0, 1, of);
    };
    if (a.tiles == nullptr || a.tiles->tiles == 1) {
      ask(0, tiles[0]);
      return tiles[0].logprob;
    }
    int64_t first = 0;
    for (int32_t t = 0; t < a.tiles->tiles; ++t, first += of.vocab, of.logits += of.vocab) {
      of.vocab = a.tiles->end[0][t] - first;
      ask(first, tiles[t]);
    }
    return OfTiles(std::span(tiles, static_cast<size_t>(a.tiles->tiles)), of.inv_temperature).logprob;
  }
  template <typename T>
  void ColumnSum(const ColumnSumArgs<T>& a) {
    Columns(a.n, a.rows, [&](int64_t begin, int64_t end) {
      Kernels<T>().column_sum(begin, end, a.rows, a.n, a.x, a.out);
    });
  }
  template <typename T>
  void GatherRows(const GatherRowsArgs<T>& a) {
    ParallelItems(a.rows, a.d, [&](int64_t begin, int64_t end) {
      if (a.strips) return GatherFromStrips(begin, end, a);
      if (a.blocks != BlockType::kNone) return GatherFromBlocks(begin, end, a);
      const auto bytes = static_cast<size_t>(a.d) * sizeof(T);
      for (int64_t r = begin; r < end; ++r) {
        if (a.ids[r] < 0)
          std::memset(static_cast<void*>(a.out + r * a.d), 0, bytes);
        else
          std::memcpy(static_cast<void*>(a.out + r * a.d), a.table + int64_t{a.ids[r]} * a.d, bytes);
      }
    });
  }
  template <typename T>
  void ScatterAddRows(const ScatterAddRowsArgs<T>& a) {
    // A thread owns columns, so rows with the same id are summed in their order.
    Columns(a.d, a.rows, [&](int64_t begin, int64_t end) {
      Kernels<T>().scatter_add_rows(begin, end, a.rows, a.d, a.ids, a.x, a.table);
    });
  }
  template <typename T>
  void Widen(const WidenArgs<T>& a) {
    ParallelItems((a.n + 4095) / 4096, 4096, [&](int64_t begin, int64_t end) {
      Kernels<T>().widen(begin * 4096, std::min(a.n, end * 4096), a.x, a.out);
    });
  }
  template <typename T>
  void Narrow(const NarrowArgs<T>& a) {
    ParallelItems((a.n + 4095) / 4096, 4096, [&](int64_t begin, int64_t end) {
      Kernels<T>().narrow(begin * 4096, std::min(a.n, end * 4096), a.x, a.out);
    });
  }
  template <typename T>
  void Router(const RouterArgs<T>& a) {
    ParallelItems(a.rows, 2 * a.d * a.experts, [&](int64_t begin, int64_t end) {
      Kernels<T>().router(begin, end, a.d, a.experts, a.x, a.w, a.logits);
    });
  }
  // The product of group g.
  template <typename Args>
  static auto Group(const Args& a, int64_t g) {
    return a.Group(g, a.begin[g], a.begin[g + 1] - a.begin[g]);
  }
  template <typename T>
  void GroupedMultiply(const GroupedMultiplyArgs<T>& a) {
    if (!a.strips || a.n % kStripRows != 0) {  // rows behind the strips of an only expert
      for (int64_t g = 0; g < a.groups; ++g) Multiply(Group(a, g));
      return;
    }
    const ProductTable<T>& product = Kernels<T>().product;
    int64_t floats = 0;
    for (int64_t g = 0; g < a.groups; ++g)
      floats = std::max(floats, product.multiply_scratch(Group(a, g).rows, a.k));
    ParallelGroups(
        a.groups, Unit<T>(a.rows / std::max<int64_t>(a.groups, 1)), [&](int64_t) { return a.n; },
        [&](int64_t g) { return Group(a, g).rows * a.k; }, floats,
        [&](int64_t g, int64_t begin, int64_t end, float* s) {
          product.multiply_strips(begin, end, Group(a, g), s);
        });
  }
  template <typename T>
  void GroupedMultiplyBack(const GroupedMultiplyBackArgs<T>& a) {
    ParallelGroups(
        a.groups, /*unit=*/12, [&](int64_t g) { return Group(a, g).rows; },
        [&](int64_t) { return a.n * a.k; }, MultiplyBackScratch(),
        [&](int64_t g, int64_t begin, int64_t end, float* s) {
          Kernels<T>().product.multiply_back(begin, end, Group(a, g), s);
        });
  }
  template <typename T>
  void GroupedMultiplyBackWeight(const GroupedMultiplyBackWeightArgs<T>& a) {
    ParallelGroups(
        a.groups, /*unit=*/12, [&](int64_t) { return a.n; },
        [&](int64_t g) { return Group(a, g).rows * a.k; }, MultiplyBackScratch(),
        [&](int64_t g, int64_t begin, int64_t end, float* s) {
          Kernels<T>().product.multiply_back_weight(begin, end, Group(a, g), s);
        });
  }
  template <typename T>
  void CombineExperts(const CombineExpertsArgs<T>& a) {
    ParallelItems(a.rows, 2 * (a.k + 1) * a.d,
                  [&](int64_t begin, int64_t end) { Kernels<T>().combine_experts(begin, end, a); });
  }
  template <typename T>
  void CombineExpertsBackward(const CombineExpertsBackwardArgs<T>& a) {
    ParallelItems(a.rows, 4 * (a.k + 1) * a.d,
                  [&](int64_t begin, int64_t end) { Kernels<T>().combine_experts_backward(begin, end, a); });
  }
  template <typename T>
  void GateBackward(const GateBackwardArgs<T>& a) {
    std::vector<float> w(static_cast<size_t>(a.d));
    Kernels<T>().widen(0, a.d, a.w, w.data());
    ParallelItems(a.rows, 2 * a.d, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float g = a.gate[r];
        a.dgate[r] *= g * (1.0F - g);
        for (int64_t c = 0; c < a.d; ++c) a.dx[r * a.d + c] += a.dgate[r] * w[static_cast<size_t>(c)];
      }
    });
  }
  template <typename T>
  void SumExperts(const SumExpertsArgs<T>& a) {
    ParallelItems(a.rows, 2 * (a.k + 1) * a.d, [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(a.d));
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(a.sum + r * a.d, a.d, sum.begin());
        for (int64_t i = 0; i < a.k; ++i)
          Kernels<T>().accumulate(0, a.d, a.x + int64_t{a.place[r * a.k + i]} * a.d, sum.data());
        if (a.shared != nullptr) Kernels<T>().accumulate(0, a.d, a.shared + r * a.d, sum.data());
        Kernels<T>().narrow(0, a.d, sum.data(), a.out + r * a.d);
      }
    });
  }
  static int64_t BandColumns(const LowRankShape& a) {
    return std::accumulate(a.n, a.n + a.bands, int64_t{0});
  }
  template <typename T>
  void LowRank(const LowRankArgs<T>& a) {
    ParallelItems((a.rows + kLowRankRows - 1) / kLowRankRows, 2 * kLowRankRows * a.rank * BandColumns(a),
                  [&](int64_t begin, int64_t end) {
                    Kernels<T>().low_rank(begin * kLowRankRows, std::min(a.rows, end * kLowRankRows), a);
                  });
  }
  template <typename T>
  void AddLowRank(const AddLowRankArgs<T>& a) {
    ParallelItems((a.rows + kLowRankRows - 1) / kLowRankRows, 2 * kLowRankRows * a.rank * BandColumns(a),
                  [&](int64_t begin, int64_t end) {
                    Kernels<T>().add_low_rank(begin * kLowRankRows, std::min(a.rows, end * kLowRankRows), a);
                  });
  }
  // A thread owns columns of a band: there are few rows.
  template <typename T>
  void LowRankBackWeight(const LowRankBackWeightArgs<T>& a) {
    for (int64_t i = 0; i < a.bands; ++i)
      ParallelProduct(a.n[i], /*unit=*/kBackColumns, a.rows * a.rank, MultiplyBackScratch(),
                      /*pieces_each=*/1, [&](int64_t begin, int64_t end, float* s) {
                        Kernels<T>().product.low_rank_back_weight(i, begin, end, a, s);
                      });
  }
  template <typename T>
  void AdamW(const AdamWArgs<T>& a) {
    device::AdamW(a);
  }
};

CpuDevice::CpuDevice() : impl_(std::make_unique<Impl>()) {}
CpuDevice::~CpuDevice() = default;

std::string CpuDevice::name() const { return std::string("cpu ") + Name(BestIsa()); }

bool CpuDevice::lays_out(int64_t rows, int64_t n, int64_t k, DType dtype) const {
  return FitsStrips(n, k * SizeOf(dtype), rows == n);
}

void CpuDevice::LayOut(const View& matrices, void* out) {
  const int64_t words = matrices.cols * SizeOf(matrices.dtype) / 4;
  ParallelItems(matrices.rows / kStripRows, kStripRows * words, [&](int64_t begin, int64_t end) {
    const auto* from = static_cast<const uint32_t*>(matrices.data);
    auto* to = static_cast<uint32_t*>(out);
    if (end == matrices.rows / kStripRows && out != matrices.data)
      std::copy(from + RowsInStrips(matrices.rows) * words, from + matrices.rows * words,
                to + RowsInStrips(matrices.rows) * words);
    const auto lay_out = Kernels<float>().product.lay_out;
    if (out != matrices.data) return lay_out(begin, end, words, from, to);
    std::vector<uint32_t> strip(static_cast<size_t>(kStripRows * words));
    for (int64_t s = begin; s < end; ++s) {
      std::copy_n(from + s * kStripRows * words, strip.size(), strip.begin());
      lay_out(0, 1, words, strip.data(), to + s * kStripRows * words);
    }
  });
}

StatusOr<std::shared_ptr<Buffer>> CpuDevice::Allocate(int64_t bytes) {
  constexpr int64_t kPagesFrom = int64_t{1} << 20;
  if (bytes >= kPagesFrom) {
    TP_ASSIGN_OR_RETURN(PageBuffer pages, PageBuffer::Create(static_cast<size_t>(bytes)));
    return std::shared_ptr<Buffer>(std::make_shared<CpuPages>(std::move(pages)));
  }
  const auto size = static_cast<size_t>(RoundUp(std::max<int64_t>(bytes, 1), 64));
  void* data = std::aligned_alloc(64, size);
  if (data == nullptr) return ResourceExhausted("cannot allocate " + std::to_string(size) + " bytes");
  std::memset(data, 0, size);
  return std::shared_ptr<Buffer>(std::make_shared<CpuBuffer>(data, bytes));
}

void CpuDevice::Upload(void* to, const void* from_host, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from_host, static_cast<size_t>(bytes));
}
void CpuDevice::Download(void* to_host, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from, static_cast<size_t>(bytes));
}
void CpuDevice::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void CpuDevice::Zero(void* to, int64_t bytes) {
  ParallelItems(bytes, 1, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<std::byte*>(to) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void CpuDevice::ReleaseScratch() {
  impl_->spaces.clear();
  impl_->sums = PageBuffer();
  impl_->draws.clear();
}

int64_t CpuDevice::scratch_bytes() const {
  auto sum = static_cast<int64_t>(impl_->sums.bytes().size());
  for (const auto& space : impl_->spaces) sum += static_cast<int64_t>(space.size() * sizeof(float));
  return sum;
}

std::unique_ptr<AttentionWork> CpuDevice::PlanAttention(const RowRunsOfHost& keys, const HeadShape& shape) {
  auto work = std::make_unique<CpuAttention>();
  work->plan = device::PlanAttention(
      keys.first_run, keys.lengths, keys.runs,
      {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_size = shape.head_size, .threads = Threads()});
  return work;
}

std::unique_ptr<AttentionWork> CpuDevice::PlanAttentionBackward(
    const RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>> ranges, const HeadShape& shape) {
  auto work = std::make_unique<CpuAttentionBackward>();
  work->plan = device::PlanAttentionBackward(
      keys.first_run, keys.lengths, keys.runs, ranges,
      {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_size = shape.head_size});
  return work;
}

#define TIDEPOOL_TYPED(Kernel)                                                     \
  void CpuDevice::Kernel(const Kernel##Args<float>& args) { impl_->Kernel(args); } \
  void CpuDevice::Kernel(const Kernel##Args<BF16>& args) { impl_->Kernel(args); }
TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
#undef TIDEPOOL_TYPED

void CpuDevice::FusedMultiply(const FusedMultiplyArgs<BF16>& a) {
  if (a.glu.rows == 0 || !Impl::TakesGlu(a.multiply)) return Device::FusedMultiply(a);
  if (a.norm.rows > 0) RmsNorm(a.norm);
  impl_->MultiplyGlu(a.multiply, a.glu.act);
}

void CpuDevice::Route(const RouteArgs& a) {
  ParallelItems(a.rows, 20 * a.experts, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> order;
    for (int64_t r = begin; r < end; ++r) {
      float* p = a.probs + r * a.experts;
      Softmax(p, a.experts);
      int32_t* ids = a.chosen + r * a.k;
      if (a.replay != nullptr && a.replay[r * a.k] >= 0) {
        std::copy_n(a.replay + r * a.k, a.k, ids);
      } else {
        Choose(p, a.experts, a.k, order, ids);
      }
      float* weight = a.weights + r * a.k;
      float sum = 0;
      for (int64_t i = 0; i < a.k; ++i) sum += weight[i] = p[ids[i]];
      if (!a.renormalize) continue;
      for (int64_t i = 0; i < a.k; ++i) weight[i] /= sum;
    }
  });
}

void CpuDevice::GroupRows(const GroupRowsArgs& a) {
  const int64_t pairs = a.rows * a.k;
  std::fill_n(a.begin, a.experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++a.begin[a.chosen[i] + 1];
  for (int64_t e = 0; e < a.experts; ++e) a.begin[e + 1] += a.begin[e];
  std::vector<int32_t> next(a.begin, a.begin + a.experts);
  for (int64_t i = 0; i < pairs; ++i) {
    a.place[i] = next[static_cast<size_t>(a.chosen[i])]++;
    a.row_of[a.place[i]] = static_cast<int32_t>(i / a.k);
  }
}

void CpuDevice::Sigmoid(const SigmoidArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) a.x[i] = 1.0F / (1.0F + std::exp(-a.x[i]));
}

void CpuDevice::RouteBackward(const RouteBackwardArgs& a) {
  ParallelItems(a.rows, 8 * a.experts, [&](int64_t begin, int64_t end) {
    std::vector<double> dp(static_cast<size_t>(a.experts));
    for (int64_t r = begin; r < end; ++r) {
      const float* p = a.probs + r * a.experts;
      const int32_t* ids = a.chosen + r * a.k;
      const float* weight = a.weights + r * a.k;
      const float* dw = a.dweights + r * a.k;
      std::copy_n(a.expert_slope, a.experts, dp.begin());
      double sum = 1, inner = 0;  // w_k = p_k / sum: d p_k = (d w_k - sum_j w_j d w_j) / sum
      if (a.renormalize) {
        sum = 0;
        for (int64_t i = 0; i < a.k; ++i) sum += p[ids[i]], inner += double{weight[i]} * dw[i];
      }
      for (int64_t i = 0; i < a.k; ++i) dp[static_cast<size_t>(ids[i])] += (dw[i] - inner) / sum;
      double mean = 0;
      for (int64_t e = 0; e < a.experts; ++e) mean += p[e] * dp[static_cast<size_t>(e)];
      for (int64_t e = 0; e < a.experts; ++e)
        a.dlogits[r * a.experts + e] = static_cast<float>(p[e] * (dp[static_cast<size_t>(e)] - mean));
    }
  });
}

void CpuDevice::AddProbs(const AddProbsArgs& a) {
  for (int64_t i = 0; i < a.rows * a.experts; ++i) a.sum[i % a.experts] += a.probs[i];
}

void CpuDevice::SquareSum(const SquareSumArgs& a) { device::SquareSum(a); }
void CpuDevice::SaltedSums(const SaltedSumsArgs& a) { device::SaltedSums(a); }

}  // namespace tidepool::device
