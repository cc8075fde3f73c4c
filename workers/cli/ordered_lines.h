#pragma once
// A file of lines that are made in any order and written in theirs: each as soon as all before it are there.
// One thread.

#include <fstream>
#include <string>
#include <vector>

namespace tidepool::workers {

class OrderedLines {
 public:
  OrderedLines(const std::string& path, std::ios::openmode mode, size_t lines)
      : out_(path, std::ios::out | mode), waiting_(lines) {}
  // False once the file could not be opened or written.
  [[nodiscard]] bool ok() const { return static_cast<bool>(out_); }
  // Line `i`, without its end; once for each.
  void Put(size_t i, const std::string& line) {
    waiting_[i] = line + "\n";
    for (; written_ < waiting_.size() && !waiting_[written_].empty(); ++written_) {
      out_ << waiting_[written_];
      waiting_[written_] = std::string();
    }
    out_.flush();
  }

 private:
  std::ofstream out_;
  std::vector<std::string> waiting_;
  size_t written_ = 0;
};

}  // namespace tidepool::workers
