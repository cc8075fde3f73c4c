#pragma once
// What is shown on the terminal.

#include <string>
#include <vector>

namespace tidepool::workers {

using Cells = std::vector<std::string>;
// Columns two blanks apart, each as wide as its widest cell in characters. Rows have one length.
std::string TableText(const std::vector<Cells>& rows);
// Takes away columns, those of `least` in this order as the first row names them, until no line is longer
// than `width` characters; returns those.
std::vector<std::string> FitTable(std::vector<Cells>& rows, size_t width,
                                  const std::vector<std::string>& least);
// Text of others: a control character but the end of a line, which a terminal might obey, becomes '?'.
std::string WithoutControls(const std::string& text);
// std::printf of one number.
std::string Formatted(const char* format, double value);

}  // namespace tidepool::workers
