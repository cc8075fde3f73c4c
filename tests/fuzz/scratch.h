#pragma once
// Files for parsers that open paths: a folder in memory (/dev/shm where there is one), removed at exit.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace tidepool::fuzz {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern =
        std::filesystem::exists("/dev/shm") ? "/dev/shm/tidepool-fuzz-XXXXXX" : "/tmp/tidepool-fuzz-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  void Write(const std::string& name, std::string_view content) const {
    FILE* file = std::fopen((path_ + "/" + name).c_str(), "wb");
    if (file == nullptr) std::abort();
    if (std::fwrite(content.data(), 1, content.size(), file) != content.size()) std::abort();
    std::fclose(file);
  }
  void Remove(const std::string& name) const { std::remove((path_ + "/" + name).c_str()); }

 private:
  std::string path_;
};

inline std::string_view View(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace tidepool::fuzz
