#include "core/algorithms/cells.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace tidepool::algorithms {

Cells Cells::Padded(int64_t rows, int64_t width, std::vector<uint8_t> mask) {
  TP_CHECK(static_cast<int64_t>(mask.size()) == rows * width)
      << mask.size() << " cells, " << rows << " x " << width;
  Cells c;
  c.mask = std::move(mask);
  for (int64_t i = 1; i <= rows; ++i) c.begin.push_back(i * width);
  return c;
}

Cells Cells::Packed(std::vector<int64_t> begin) {
  Cells c;
  c.begin = std::move(begin);
  c.mask.assign(static_cast<size_t>(c.size()), 1);
  return c;
}

std::vector<size_t> Cells::Valid(size_t row) const {
  std::vector<size_t> cells;
  for (auto t = static_cast<size_t>(begin[row]); t < static_cast<size_t>(begin[row + 1]); ++t) {
    if (mask[t] != 0) cells.push_back(t);
  }
  return cells;
}

int64_t Cells::Tokens(int64_t row) const {
  return static_cast<int64_t>(Valid(static_cast<size_t>(row)).size());
}

int64_t Cells::Tokens() const {
  return std::ranges::count_if(mask, [](uint8_t m) { return m != 0; });
}

int64_t Cells::Sequences() const {
  int64_t n = 0;
  for (int64_t i = 0; i < rows(); ++i) n += LastValid(i) >= 0 ? 1 : 0;
  return n;
}

int64_t Cells::LastValid(int64_t row) const {
  const std::vector<size_t> cells = Valid(static_cast<size_t>(row));
  return cells.empty() ? -1 : static_cast<int64_t>(cells.back());
}

Cells Cells::Rows(std::span<const int64_t> wanted, std::vector<int64_t>& from) const {
  Cells c;
  from.clear();
  for (const int64_t row : wanted) {
    for (int64_t t = begin[static_cast<size_t>(row)]; t < begin[static_cast<size_t>(row) + 1]; ++t) {
      from.push_back(t);
      c.mask.push_back(mask[static_cast<size_t>(t)]);
    }
    c.begin.push_back(static_cast<int64_t>(c.mask.size()));
  }
  return c;
}

std::vector<double> Masked(std::span<const double> x, const Cells& cells) {
  TP_CHECK(static_cast<int64_t>(x.size()) == cells.size())
      << x.size() << " values, " << cells.size() << " cells";
  std::vector<double> out(x.size(), 0.0);
  for (size_t t = 0; t < x.size(); ++t) {
    if (cells.mask[t] != 0) out[t] = x[t];
  }
  return out;
}

std::vector<double> Spread(std::span<const double> per_row, const Cells& cells) {
  TP_CHECK(static_cast<int64_t>(per_row.size()) == cells.rows())
      << per_row.size() << " values, " << cells.rows() << " rows";
  std::vector<double> out(cells.mask.size(), 0.0);
  for (size_t i = 0; i < per_row.size(); ++i) {
    for (const size_t t : cells.Valid(i)) out[t] = per_row[i];
  }
  return out;
}

std::vector<double> RowSums(std::span<const double> x, const Cells& cells) {
  std::vector<double> sums(static_cast<size_t>(cells.rows()), 0.0);
  for (size_t i = 0; i < sums.size(); ++i) {
    for (const size_t t : cells.Valid(i)) sums[i] += x[t];
  }
  return sums;
}

std::vector<double> RowMeans(std::span<const double> x, const Cells& cells) {
  std::vector<double> means = RowSums(x, cells);
  for (size_t i = 0; i < means.size(); ++i) {
    const int64_t n = cells.Tokens(static_cast<int64_t>(i));
    if (n > 0) means[i] /= static_cast<double>(n);
  }
  return means;
}

double TokenMean(std::span<const double> x, const Cells& cells) {
  double sum = 0;
  int64_t n = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    sum += x[t];
    ++n;
  }
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

}  // namespace tidepool::algorithms
