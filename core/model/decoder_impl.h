#pragma once
// Inside of Decoder, shared by low_rank.cc, the decode*.cc of this folder and parted_head.cc. Not for others.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/activation_arena.h"
#include "core/model/decoder.h"
#include "core/model/peers.h"
#include "core/model/sum_cuts.h"

namespace tidepool::model {

using device::Array;
using device::BF16;
using device::View;

struct AdapterOnModel;
// Rows [first, first + count) of a batch.
struct AdaptedRows {
  const AdapterOnModel* adapter = nullptr;
  int64_t first = 0, count = 0;
};

// A batch on the device.
struct DeviceBatch {
  std::shared_ptr<device::Buffer> memory;
  int64_t rows = 0;
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  device::RowRuns keys;
  const int32_t* experts = nullptr;  // [sparse layers, rows, K] to be taken; null: the router chooses
  const device::AttentionWork* attention = nullptr;
  std::vector<AdaptedRows> adapted;  // rows that have an adapter, in their order
};
// The numbers of a batch behind each other, and that batch where they were uploaded.
std::vector<int32_t> Pack(const RaggedBatch& batch);
DeviceBatch BatchAt(const RaggedBatch& batch, const int32_t* words, int64_t slot_count);

// Of a sparse block whose experts are divided between ranks: the rows of all ranks that this one's experts
// compute. They come rank after rank, each rank's expert after expert, and are put in the order of the
// experts, those of one in the order of the ranks.
struct ServedRows {
  ActivationArena* arena = nullptr;          // has what a backward reads
  int64_t rows = 0;                          // R
  std::vector<sharding::Interval> to, from;  // [rank] of this rank's gathered rows; of the rows that come
  std::vector<int32_t> bounds;               // [experts here, ranks + 1] where each rank's rows of each begin
  int32_t* begin = nullptr;                  // [experts here + 1] ranges of the rows in order
  int32_t* bounds_on_device = nullptr;       // `bounds` from 0 on for each expert
  int32_t* place = nullptr;                  // [R] in order, of a row as it comes
  int32_t* row_of = nullptr;                 // [R] the other way
  View x;                                    // [R, d] in order
  View gate_up;                              // [R, 2 m]
};

// What the experts of a sparse block compute. The pairs of a row and an expert that it chose stand together
// ("gathered"), expert after expert: G = rows * K of them (core/device/arguments.h).
struct MoeBuffers {
  View probs;                    // [P, E] float32, softmax of the router's logits
  int32_t* chosen = nullptr;     // [P, K] by falling weight
  float* weights = nullptr;      // [P, K]
  int32_t* begin = nullptr;      // [E + 1] ranges of gathered rows
  int32_t* place = nullptr;      // [P, K] gathered row of a pair
  int32_t* row_of = nullptr;     // [G] row of a gathered row
  View gate_up;                  // [G, 2 m]
  View y;                        // [G, d]
  View shared_gate_up;           // [P, 2 s]
  View shared;                   // [P, d]
  float* gate = nullptr;         // [P] sigmoid
  ServedRows* served = nullptr;  // where experts are divided, in the place of gate_up
  // Never saved.
  View x;           // [G, d]
  View act;         // [G, m]; not where experts are divided
  View shared_act;  // [P, s]
};

// Up to so many rows of a forward in inference kernels that follow each other are called together
// (Device::FusedMultiply): the residual stream then needs two arrays.
constexpr int64_t kRowsTogether = 32;

// The matrices of a block that an adapter may change: of rows of the batch, then of gathered ones.
enum Adapted : uint8_t { kQkv, kO, kGateUp, kDown, kOfBatch, kExpertsUp = kOfBatch, kExpertsDown, kAdapted };
// What an adapter has of one of them: indices of its layout.
struct AdapterMatrix {
  const DeviceWeights* weights = nullptr;  // its own
  int64_t a = -1;                          // -1: nothing
  int64_t b[device::LowRankShape::kMost] = {-1, -1, -1};
  device::LowRankShape shape;  // of b, but for the rows
  int64_t expert = 0;          // whose rows of a and b are meant
};

using AdaptedBlock = std::array<AdapterMatrix, kAdapted>;
inline const AdaptedBlock kNotAdapted;
struct AdapterOnModel {
  std::shared_ptr<DeviceWeights> weights;
  std::vector<AdaptedBlock> layers;
  AdapterMatrix embedding, head;  // embedding.a is a table [vocab, rank]
};

// What one block computes. With everything saved each block has buffers of its own; in inference
// and while recomputing they are shared by all blocks.
struct BlockBuffers {
  View x;                 // [P, d] block input
  View norm;              // [P, d] normed input of qkv, then of gate_up; never saved
  View rstd1;             // [P] float32, training only
  View qkv;               // [P, (Hq + 2 Hkv) D]; saved only with head norms
  View q;                 // [P, Hq D] rotated
  View k, v;              // [P, Hkv D], training only: the batch is its own KV memory
  View a;                 // [P, Hq D] attention output
  View lse;               // [P, Hq] float32, training only
  View x_mid;             // [P, d] after attention; may be x in inference
  View rstd2;             // [P] float32, training only
  View gate_up;           // [P, 2 ff]
  View act;               // [P, ff]; never saved
  View out;               // [P, d] product results on their way to the residual; never saved
  View sums;              // [nodes * P, d] float32, of a part: those of `out` that this rank has; never saved
  View narrow[kOfBatch];  // [P, rank * targets] of an adapter: rows by its A; in inference one for all, as
                          // wide as the widest
  MoeBuffers moe;         // sparse blocks

  // Takes over the buffers that are never saved.
  void LendUnsaved(const BlockBuffers& from) {
    norm = from.norm, act = from.act, out = from.out, sums = from.sums;
    moe.x = from.moe.x, moe.act = from.moe.act, moe.shared_act = from.moe.shared_act;
  }
};

struct SavedActivations {
  bool recompute = false;
  int64_t rows = 0;
  DeviceBatch batch;  // `experts`: what the router chose, or was told to
  std::unique_ptr<device::AttentionWork> attention, backward;
  std::vector<int32_t> experts;      // batch.experts on the host
  std::vector<double> prob_sum;      // [E] over the rows of all sparse blocks
  std::vector<BlockBuffers> blocks;  // with recompute only x of each
  std::deque<ServedRows> served;  // where experts are divided, of each sparse block; with recompute of none
  View x_last;                    // [P, d] input of the final norm
  View rstd_last;                 // [P]
  std::unique_ptr<ActivationArena> arena;
  Decoder::Impl* owner = nullptr;  // takes the arena back
};

// A decode step of some number of rows, recorded.
struct DecodeGraph {
  int64_t runs = 0;                       // room
  std::shared_ptr<device::Buffer> words;  // what Pack() gives, then the division of the attention
  std::unique_ptr<device::GraphAttention> attention;
  const int32_t* chosen = nullptr;  // [sparse layers, rows, K]
  std::unique_ptr<device::Graph> graph;
};

struct LayerWeights {
  // Indices of the layout, -1: none.
  int64_t attention_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, gate_up_bias, down,
      down_bias;
  int64_t router, experts_gate_up, experts_down, shared_gate_up, shared_down, shared_gate;
  int64_t sparse;                                        // number among the sparse layers
  std::span<const AdapterMatrix> adapter = kNotAdapted;  // by Adapted, of the one that is trained
  [[nodiscard]] int64_t first_adapted() const {
    for (const AdapterMatrix& m : adapter)
      if (m.a >= 0) return m.a;
    return -1;
  }
};

struct Decoder::Impl {
  Impl(const Weights& w, std::shared_ptr<device::Device> d, const Part& p);

  const ModelSpec whole;
  const Part own;             // what it has of the model
  const Part part;            // of its matrices: all, where experts are divided
  const ModelSpec spec;       // of what it has
  const int64_t first_token;  // of the part
  Peers* peers = nullptr;     // who have the rest
  bool sums_apart = false;    // SumEachRankApart
  const std::shared_ptr<device::Device> shared_device;
  device::Device& device;
  const DType dtype;
  const SumCuts cuts;
  // Sums over what ranks divide, as this one forms them: its nodes.
  using Sum = std::vector<device::SumTiles>;
  Sum over_heads, over_inner;                             // of o and down
  Sum over_qkv, over_gate_up, over_vocabulary;            // of their inputs' gradients
  device::SumTiles head_tiles;                            // of q and k, all of this part
  device::SumTiles vocabulary;                            // of the whole
  std::vector<std::pair<int64_t, int64_t>> logits_tiles;  // [first, end) of this part's own
  const std::shared_ptr<DeviceWeights> shared_weights;  // with other decoders of these weights on the device
  DeviceWeights& on_device;
  const Weights* const base;                     // the model's
  const std::shared_ptr<DeviceWeights> adapter;  // that is trained; null: none, the model itself is
  std::map<int32_t, AdapterOnModel> adapters;    // that rows may have; kOwnWeights: the one that is trained
  int32_t next_adapter = 0;
  std::vector<LayerWeights> layers;
  AdapterMatrix of_embedding, of_head;  // of the adapter that is trained
  // A backward ends with this block, for nothing before it is trained, the embedding aside: layers.size()
  // where no block is.
  int64_t lowest_trained = 0;
  [[nodiscard]] bool trains_embedding() const { return !adapter || of_embedding.a >= 0; }
  int64_t embedding = 0, final_norm = 0, head = 0;
  int64_t positions = 0;  // rows of cos and sin
  Array cos, sin;         // [positions, D / 2], grown on demand
  ActivationArena scratch;
  std::vector<std::unique_ptr<ActivationArena>> idle;  // of finished training forwards
  std::shared_ptr<device::Buffer> logits;              // reused when nobody holds it any more
  std::map<int64_t, DecodeGraph> graphs;               // by rows; their kernels work in `scratch`
  KvMemory graphs_kv;                                  // and on this memory
  Array graphs_out;                                    // [kGraphRowsMax, d]
  int64_t graphs_scratch = 0;                          // Device::scratch_moves() when they were recorded
  bool graphs_refused = false;                         // there was no memory for one
  int64_t recorded_graphs = 0, refused_graphs = 0;
  double* prob_sum = nullptr;  // [E] of the training forward that is going on

  [[nodiscard]] View parameter(int64_t i) const { return on_device.parameter(i); }
  template <typename T>
  [[nodiscard]] const T* Weight(int64_t i) const {  // null for -1
    return i < 0 ? nullptr : parameter(i).As<T>();
  }
  // out = x w^T (w: index of the parameter), dx = dy w, dw += dy^T x.
  template <typename T>
  [[nodiscard]] device::MultiplyArgs<T> Product(const View& out, const View& x, int64_t w) const;
  template <typename T>
  void Multiply(const View& out, const View& x, int64_t w) const;
  template <typename T>
  void MultiplyBack(const View& dx, const View& dy, const DeviceWeights::Matrices& w) const;
  // The same where ranks divide the sum; `sums`: BlockBuffers'. `what` names it.
  template <typename T>
  void Multiply(const View& out, const View& x, int64_t w, const Sum& sum, const View& sums,
                const char* what) const;
  template <typename T>
  void MultiplyBack(const View& dx, const View& dy, int64_t w, const Sum& sum, const View& sums,
                    const char* what) const;
  template <typename Args, typename Call>
  void FormSum(Args args, const View& out, const Sum& sum, const View& sums, const char* what,
               Call product) const;
  [[nodiscard]] View TakeSums(ActivationArena& arena, int64_t rows) const;  // nothing where there is one part
  template <typename T>
  void MultiplyBackWeight(float* dw, const View& dy, const View& x) const;
  [[nodiscard]] device::HeadShape heads() const { return {spec.heads, spec.kv_heads, spec.head_size, dtype}; }
  // Experts that rows choose in all sparse layers, and where those of one layer stand; null in a dense one.
  [[nodiscard]] int64_t routed_size(int64_t rows) const {
    return spec.sparse_layers() * rows * spec.moe.experts_per_token;
  }
  [[nodiscard]] int32_t* ChosenOf(int64_t layer, int64_t rows, int32_t* of_all) const {
    const int64_t sparse = layers[static_cast<size_t>(layer)].sparse;
    return sparse < 0 ? nullptr : of_all + sparse * rows * spec.moe.experts_per_token;
  }
  [[nodiscard]] int64_t qkv_width() const { return (spec.heads + 2 * spec.kv_heads) * spec.head_size; }
  // Numbers of each tile of the vocabulary, `each` of one; `mine`: of this part's tiles.
  [[nodiscard]] std::vector<float> OfAllTiles(std::vector<float> mine, size_t each) const;
  [[nodiscard]] Peers& others() const {
    TP_CHECK(peers != nullptr) << "a part of a model computes without the other ranks";
    return *peers;
  }
  // Ids in this part's tables; -1: another rank's.
  [[nodiscard]] std::vector<int32_t> OwnIds(std::span<const int32_t> ids) const;
  void EnsurePositions(std::span<const int32_t> positions);
  void CheckBatch(const RaggedBatch& batch) const;
  [[nodiscard]] DeviceBatch Upload(const RaggedBatch& batch, int64_t slot_count) const;
  void DropGraphs();

  // Buffers of one layer, or (-1) of any layer.
  BlockBuffers TakeBlock(ActivationArena& arena, int64_t rows, bool training, int64_t layer) const;
  void TakeUnsaved(ActivationArena& arena, int64_t rows,
                   BlockBuffers& b) const;  // norm, act, out and the experts' own
  // x[rows, n] += bias, where there is one.
  template <typename T>
  void AddBias(int64_t bias, const View& x) const;
  // out = experts(norm); decoder_moe.cc.
  template <typename T>
  void Experts(int64_t layer, const DeviceBatch& batch, const BlockBuffers& b);
  // Reads dx_narrow (the gradient of the experts' output), writes d norm into b.out; decoder_moe_backward.cc.
  template <typename T>
  void ExpertsBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                       const View& dx_narrow, double balance_scale, Gradients& grads);
  // Experts are divided (decoder_divided_experts.cc): rows go to the ranks that have theirs, and come back.
  [[nodiscard]] bool divided() const { return !own.whole() && own.what == Cut::kExperts; }
  // y = experts(x) of the gathered rows. `begin`: MoeBuffers'; null: this rank has no rows of its own.
  template <typename T>
  void DividedExperts(const LayerWeights& w, const int32_t* begin, const View& x, const View& y,
                      ServedRows& served);
  // d y becomes d x.
  template <typename T>
  void DividedExpertsBackward(const LayerWeights& w, const View& dy, const ServedRows& served,
                              Gradients& grads);
  void AgreeOnRows(const int32_t* begin, ServedRows& served) const;
  template <typename T>
  void AddWeightGradient(const View& dy, const View& x, int64_t matrix, const ServedRows& served,
                         Gradients& grads);
  template <typename T>
  void ServeForward(SavedActivations* saved);
  template <typename T>
  void ServeBackward(SavedActivations& saved, Gradients& grads);
  // The normed rows of the pairs, for their experts.
  template <typename T>
  void GatherPairs(int64_t rows, const MoeBuffers& moe, const View& norm) const;
  // A product of all experts, [n, k] each; its arrays are left open. Args: of one of the grouped products.
  template <typename Args>
  [[nodiscard]] Args OfExperts(const MoeBuffers& moe, int64_t pairs, int64_t n, int64_t k) const {
    Args a;
    a.groups = spec.moe.experts, a.rows = pairs, a.n = n, a.k = k, a.begin = moe.begin;
    return a;
  }
  template <typename T>
  void Embed(const DeviceBatch& batch, const View& x);
  // x (+ add) -> everything up to `out`, which is still to be added to x_mid. k and v: of this layer.
  // for_backward: what the backward reads, so a dense block without its last product.
  template <typename T>
  void Block(int64_t layer, const DeviceBatch& batch, const BlockBuffers& b, const T* x_before, const T* add,
             T* k, T* v, bool for_backward = false);
  template <typename T>
  void FinalNorm(const View& hidden, const T* x, const T* add, T* x_out, float* rstd) const;
  // Buffers of a forward in inference, from the start of `scratch`; moe.chosen: of all sparse layers.
  BlockBuffers TakeInference(int64_t rows);
  // From embedding to final norm; kernels alone.
  template <typename T>
  void Infer(const DeviceBatch& batch, const BlockBuffers& buffers, const KvMemory& kv, const View& hidden);
  template <typename T>
  Array Forward(const RaggedBatch& batch, const KvMemory& kv);
  // The same by a graph; decode_graphs.cc.
  [[nodiscard]] bool RunsAsGraph(const RaggedBatch& batch) const;
  template <typename T>
  Array ForwardAsGraph(const RaggedBatch& batch, const KvMemory& kv);
  [[nodiscard]] SavedPtr NewSaved(bool recompute);  // of a training forward
  template <typename T>
  Array ForwardTraining(const RaggedBatch& batch, SavedActivations& saved);
  template <typename T>
  void Backward(SavedActivations& saved, const View& grad_hidden, double balance_scale, Gradients& grads);
  template <typename T>
  void BlockBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b, const View& dx,
                     const View& dx_narrow, double balance_scale, Gradients& grads);
  // Of parameter `index`, on the device; null for -1, and where an adapter is trained in its place.
  [[nodiscard]] float* Gradient(int64_t index, Gradients& grads) const;
  // low_rank.cc. Nothing where the adapter has none of the matrix, or there is no adapter.
  [[nodiscard]] AdapterOnModel FindAdapter(const Weights& of) const;
  [[nodiscard]] std::vector<AdaptedRows> AdaptedRowsOf(std::span<const AdapterRows> adapters,
                                                       int64_t rows) const;
  void TakeNarrow(ActivationArena& arena, int64_t rows, bool training, BlockBuffers& b) const;
  template <typename T>
  void ToNarrow(const AdapterMatrix& m, const View& x, const View& narrow) const;  // narrow = x a^T
  // y += of each row its adapter's.
  template <typename T>
  void Adapt(int64_t layer, Adapted which, const DeviceBatch& batch, const View& x, const View& narrow,
             const View& y) const;
  template <typename T>
  void AddWide(const AdapterMatrix& m, const View& narrow, const View& y) const;  // y += scale narrow b
  // Adds the gradient of b; dnarrow = that of `narrow`.
  template <typename T>
  void AddWideBack(const AdapterMatrix& m, const View& narrow, const View& dy, const View& dnarrow,
                   Gradients& grads) const;
  // A matrix's a or b; of experts that of m.expert.
  template <typename T>
  [[nodiscard]] const T* LowRankOf(const AdapterMatrix& m, int64_t index) const;
  [[nodiscard]] float* AdapterGradient(const AdapterMatrix& m, int64_t index, Gradients& grads) const;
  // Calls each(matrix, first, rows) for every run of gathered rows that have one expert and one adapter.
  template <typename F>
  void EachAdaptedExpert(int64_t layer, Adapted which, const DeviceBatch& batch, const MoeBuffers& moe,
                         F each) const;
  // The same as Adapt, AdaptGradients and AdaptBack of gathered rows. `narrow` is not kept: it is made again
  // of x.
  template <typename T>
  void AdaptExperts(int64_t layer, Adapted which, const DeviceBatch& batch, const MoeBuffers& moe,
                    const View& x, const View& y);
  template <typename T>
  View AdaptExpertsGradients(int64_t layer, Adapted which, const DeviceBatch& batch, const MoeBuffers& moe,
                             const View& x, const View& dy, Gradients& grads);
  template <typename T>
  void AdaptExpertsBack(int64_t layer, Adapted which, const DeviceBatch& batch, const MoeBuffers& moe,
                        const View& dnarrow, const View& dx) const;
  // Adds to each row of `x` what its adapter's embedding gives; and back, for the adapter that is trained:
  // adds its gradients to `grads`.
  template <typename T>
  View EmbeddingNarrow(const AdapterMatrix& m, const int32_t* ids, int64_t rows);
  template <typename T>
  void AdaptEmbedding(const DeviceBatch& batch, const View& x);
  template <typename T>
  void AdaptEmbeddingGradients(const DeviceBatch& batch, const View& dx, Gradients& grads);
  // Adds to each row of `logits` what its adapter's head gives; and back, for the adapter that is trained:
  // adds its gradients to `grads`, and what they give to `dhidden`.
  template <typename T>
  void AdaptHead(const std::vector<AdaptedRows>& adapted, const View& hidden, const View& logits);
  template <typename T>
  void AdaptHeadBack(const View& hidden, const View& dlogits, const View& dhidden, Gradients& grads);
  // Adds the gradients of a and b; returns that of `narrow`, for AdaptBack.
  template <typename T>
  View AdaptGradients(const AdapterMatrix& m, const View& x, const View& narrow, const View& dy,
                      Gradients& grads);
  template <typename T>
  void AddGradients(const AdapterMatrix& m, const View& x, const View& narrow, const View& dy,
                    const View& dnarrow, Gradients& grads) const;
  template <typename T>
  void AdaptBack(const AdapterMatrix& m, const View& dnarrow, const View& dx) const;  // dx += its
  // Of down(swiglu(gate_up x)): gate_up [P, 2m] and act [P, m] become gradients, those of the weights are
  // added to, and dx gets the input's. It may be dy.
  template <typename T>
  void MlpBackward(const LayerWeights& w, bool shared, const View& gate_up, const View& act, const View& x,
                   const View& dy, const View& dx, const View& sums, Gradients& grads,
                   const View* narrow = nullptr);
  // Gradients of norms of q's and k's heads, which all ranks have: those of this part's heads, in tiles
  // [head_tiles.tiles, head_size] each, are added up over all and added to `grads`.
  void AddHeadNorms(const LayerWeights& w, const View& dq_norm, const View& dk_norm, Gradients& grads) const;
  template <typename T>
  void AddBiasGradient(int64_t index, const View& dy, Gradients& grads) const;
};

// Whole, one product; else one for each node, whose sums go over the ranks.
template <typename Args, typename Call>
void Decoder::Impl::FormSum(Args args, const View& out, const Sum& sum, const View& sums, const char* what,
                            Call product) const {
  if (part.whole()) {
    if (sum[0].tiles > 1) args.tiles = sum.data();
    return product(args);
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    args.tiles = &sum[i];
    args.sums = sums.Rows(static_cast<int64_t>(i) * out.rows, out.rows).template As<float>();
    product(args);
  }
  others().AddUpNodes(device, sums, cuts.nodes(), out, what);
}

// Ranges of rows that attend inside themselves only: [begin, end) pairs that tile [0, rows).
std::vector<std::pair<int64_t, int64_t>> ClosedRanges(const RaggedBatch& batch);

}  // namespace tidepool::model
