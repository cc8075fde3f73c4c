// Decode steps as graphs: one launch stands for the kernels of all layers.
//
// A graph's kernels have fixed arguments, so a step fills up its rows to a number that has one, and writes
// its numbers where the graph reads them. It is dropped when something moves that it points to, and recorded
// anew when the runs of slots or their keys outgrow its room.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/model/decoder_impl.h"
#include "core/model/graph_rows.h"

namespace tidepool::model {
namespace {

// A batch and rows that fill it up: each a sequence of one token, in a slot of its own.
class FilledBatch {
 public:
  FilledBatch(const RaggedBatch& b, int64_t rows)
      : ids_(b.ids.begin(), b.ids.end()),
        positions_(b.positions.begin(), b.positions.end()),
        slots_(b.slots.begin(), b.slots.end()),
        first_run_(b.first_run.begin(), b.first_run.end()),
        lengths_(b.lengths.begin(), b.lengths.end()),
        runs_(b.runs.begin(), b.runs.end()) {
    for (int32_t slot = b.fill_slot; static_cast<int64_t>(ids_.size()) < rows; ++slot) {
      ids_.push_back(0);
      positions_.push_back(0);
      slots_.push_back(slot);
      first_run_.push_back(static_cast<int32_t>(runs_.size()));
      lengths_.push_back(1);
      runs_.push_back({.start = slot, .count = 1});
    }
  }
  [[nodiscard]] int64_t runs() const { return static_cast<int64_t>(runs_.size()); }
  void MakeRoom(int64_t runs) { runs_.resize(static_cast<size_t>(runs)); }
  [[nodiscard]] device::RowRunsOfHost keys() const { return {first_run_, lengths_, runs_}; }
  [[nodiscard]] RaggedBatch view() const {
    return {.ids = ids_,
            .positions = positions_,
            .slots = slots_,
            .first_run = first_run_,
            .lengths = lengths_,
            .runs = runs_};
  }

 private:
  std::vector<int32_t> ids_, positions_, slots_, first_run_, lengths_;
  std::vector<device::KvRun> runs_;
};

// The batch's numbers, then how its attention is divided; nothing where that does not fit.
std::vector<int32_t> WordsOf(const FilledBatch& batch, device::GraphAttention& attention) {
  std::vector<int32_t> words = Pack(batch.view());
  const size_t at = words.size();
  words.resize(at + static_cast<size_t>(attention.words()));
  if (!attention.Divide(batch.keys(), std::span(words).subspan(at))) words.clear();
  return words;
}

}  // namespace

void Decoder::Impl::DropGraphs() {
  graphs.clear();
  graphs_out = Array();
}

bool Decoder::Impl::RunsAsGraph(const RaggedBatch& b) const {
  return b.fill_slot >= 0 && part.whole() && !graphs_refused && device.has_graphs() && b.experts.empty() &&
         !b.ids.empty() && static_cast<int64_t>(b.ids.size()) <= kGraphRowsMax &&
         std::ranges::adjacent_find(b.first_run, std::greater_equal<>()) == b.first_run.end() &&
         AdaptedRowsOf(b.adapters, static_cast<int64_t>(b.ids.size())).empty();
}

template <typename T>
Array Decoder::Impl::ForwardAsGraph(const RaggedBatch& given, const KvMemory& kv) {
  TP_CHECK(given.fill_slot + kFillRowsMax <= kv.k.rows / spec.layers)
      << "slot " << given.fill_slot << " is not followed by enough that are no token's";
  if (graphs_kv.k.data != kv.k.data || graphs_kv.v.data != kv.v.data || graphs_kv.k.rows != kv.k.rows ||
      device.scratch_moves() != graphs_scratch)
    DropGraphs();
  graphs_kv = kv;
  graphs_scratch = device.scratch_moves();
  if (!graphs_out) graphs_out = device.Take(kGraphRowsMax, spec.hidden_size, dtype);

  const auto rows = static_cast<int64_t>(given.ids.size()), of_graph = GraphRows(rows);
  FilledBatch batch(given, of_graph);
  const int64_t runs = batch.runs();
  const Array out{graphs_out.memory, graphs_out.view.Rows(0, rows)};
  auto found = graphs.find(of_graph);
  const int32_t* chosen = nullptr;
  std::vector<int32_t> words;
  if (found != graphs.end() && runs <= found->second.runs) {
    batch.MakeRoom(found->second.runs);
    words = WordsOf(batch, *found->second.attention);
  }
  if (words.empty()) {
    graphs.erase(of_graph);
    DecodeGraph graph;
    // Sequences grow by a run now and then, and by a part of the attention every few hundred tokens.
    graph.runs = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * runs)));
    batch.MakeRoom(graph.runs);
    graph.attention = device.PlanGraphAttention(batch.keys(), heads());
    words = WordsOf(batch, *graph.attention);
    TP_CHECK(!words.empty()) << "a plan without room for its own batch";
    graph.words = device.Put(std::span<const int32_t>(words));
    const auto* at = static_cast<const int32_t*>(graph.words->data());
    graph.attention->Place(at + words.size() - static_cast<size_t>(graph.attention->words()));
    DeviceBatch on_device = BatchAt(batch.view(), at, kv.k.rows / spec.layers);
    on_device.attention = &graph.attention->work();
    const BlockBuffers b = TakeInference(of_graph);
    graph.chosen = chosen = b.moe.chosen;
    const View all = graphs_out.view.Rows(0, of_graph);
    graph.graph = device.Record([&] { Infer<T>(on_device, b, kv, all); });
    if (const int64_t now = device.scratch_moves(); now != graphs_scratch) {
      graphs.clear();  // their kernels worked in what is gone
      graphs_scratch = now;
    }
    if (graph.graph == nullptr) {  // no memory: this step has run, and those that follow need none
      DropGraphs();
      graphs_refused = true;
      ++refused_graphs;
    } else {
      graphs.emplace(of_graph, std::move(graph));
      ++recorded_graphs;
    }
  } else {
    chosen = found->second.chosen;
    device.Upload(static_cast<int32_t*>(found->second.words->data()), std::span<const int32_t>(words));
    found->second.graph->Launch();
  }

  if (given.routed != nullptr) {  // without the rows that fill up
    const std::vector<int32_t> all = device.Read(chosen, routed_size(of_graph));
    const int64_t k = spec.moe.experts_per_token;
    given.routed->clear();
    for (int64_t layer = 0; layer < spec.sparse_layers(); ++layer) {
      const auto from = all.begin() + layer * of_graph * k;
      given.routed->insert(given.routed->end(), from, from + rows * k);
    }
  }
  return out;
}

template Array Decoder::Impl::ForwardAsGraph<float>(const RaggedBatch&, const KvMemory&);
template Array Decoder::Impl::ForwardAsGraph<BF16>(const RaggedBatch&, const KvMemory&);

}  // namespace tidepool::model
