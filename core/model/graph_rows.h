#pragma once
// How many rows a decode step has that is recorded as a graph (core/device/device.h). No LibTorch.

#include <bit>
#include <cstdint>

namespace tidepool::model {

// A step of more rows runs without: so many keep a device busy for longer than their kernels take to launch.
constexpr int64_t kGraphRowsMax = 256;

// Rows of the graph that takes `rows` of them, in 1..kGraphRowsMax: few graphs, and few rows that fill up.
constexpr int64_t GraphRows(int64_t rows) {
  if (rows <= 8) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t step = rows <= 64 ? 8 : 32;
  return (rows + step - 1) / step * step;
}
// Of all graphs that steps of up to `rows` take.
constexpr int64_t GraphRowsInAll(int64_t rows) {
  int64_t sum = 0;
  for (int64_t of_graph = 1; of_graph < rows; of_graph = GraphRows(of_graph + 1)) sum += of_graph;
  return sum + GraphRows(rows);
}
// How many graphs those are.
constexpr int64_t GraphsInAll(int64_t rows) {
  int64_t count = 1;
  for (int64_t of_graph = 1; of_graph < rows; of_graph = GraphRows(of_graph + 1)) ++count;
  return count;
}
// Rows that fill up a graph, at most.
constexpr int64_t kFillRowsMax = 31;

}  // namespace tidepool::model
