#pragma once
// The shape that every formula of this room works on: rows of token cells, one after another, with a mask.
//
// Padded [B, T] and packed (cu_seqlens) input are the same thing here: row i owns the cells
// [begin[i], begin[i + 1]), and mask says which of them the policy sampled (1) and which are prompt, tool
// text or padding (0). So packed equals padded because both run the same loop.
//
// Masked cells may hold anything (NaN, inf): Masked() replaces the *inputs* by 0 before any arithmetic.
// A NaN or inf in a valid cell is passed on and shows in the result; the trainer refuses such a step.
// All arithmetic is in float64. Pure functions; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::algorithms {

struct Cells {
  std::vector<int64_t> begin = {0};  // [rows + 1], from 0, never falling
  std::vector<uint8_t> mask;         // [cells]

  static Cells Padded(int64_t rows, int64_t width, std::vector<uint8_t> mask);
  // All cells valid.
  static Cells Packed(std::vector<int64_t> begin);

  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }
  [[nodiscard]] int64_t size() const { return begin.back(); }
  [[nodiscard]] bool valid(int64_t cell) const { return mask[static_cast<size_t>(cell)] != 0; }
  // Cells of a row that are valid, ascending.
  [[nodiscard]] std::vector<size_t> Valid(size_t row) const;
  [[nodiscard]] int64_t Tokens(int64_t row) const;     // n_i
  [[nodiscard]] int64_t Tokens() const;                // N
  [[nodiscard]] int64_t Sequences() const;             // S: rows with a valid cell
  [[nodiscard]] int64_t LastValid(int64_t row) const;  // -1: none
  // The rows in this order, with their cells; `from` gets the cell of this that each new cell is.
  [[nodiscard]] Cells Rows(std::span<const int64_t> rows, std::vector<int64_t>& from) const;
};

// where(m, x, 0). x: [cells].
std::vector<double> Masked(std::span<const double> x, const Cells& cells);
// A value per row on each valid cell of the row.
std::vector<double> Spread(std::span<const double> per_row, const Cells& cells);
// Sum over the valid cells of each row: [rows].
std::vector<double> RowSums(std::span<const double> x, const Cells& cells);
// Mean over the valid cells of each row, 0 for rows without one: [rows].
std::vector<double> RowMeans(std::span<const double> x, const Cells& cells);
// <x>: mean over all valid cells; 0 without one.
double TokenMean(std::span<const double> x, const Cells& cells);

}  // namespace tidepool::algorithms
