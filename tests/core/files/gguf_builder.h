#pragma once
// Bytes of a GGUF file, field by field, for tests.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tidepool::files {

class GgufBuilder {
 public:
  void Tensor(const std::string& name, const std::vector<uint64_t>& ne, uint32_t type,
              const std::string& bytes) {
    tensors_.push_back({name, ne, type, bytes, data_.size()});
    data_ += bytes;
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  void String(const std::string& key, const std::string& value) { Value(key, 8, Text(value)); }
  void Uint32(const std::string& key, uint32_t value) { Value(key, 4, Pod(value)); }
  void Float(const std::string& key, float value) { Value(key, 6, Pod(value)); }
  void Bool(const std::string& key, bool value) { Value(key, 7, Pod(static_cast<uint8_t>(value))); }
  void Strings(const std::string& key, const std::vector<std::string>& values) {
    std::string content = Pod(uint32_t{8}) + Pod(static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) content += Text(value);
    Value(key, 9, content);
  }
  void Int32s(const std::string& key, const std::vector<int32_t>& values) {
    std::string content = Pod(uint32_t{5}) + Pod(static_cast<uint64_t>(values.size()));
    for (const int32_t value : values) content += Pod(value);
    Value(key, 9, content);
  }
  void Value(const std::string& key, uint32_t type, const std::string& content) {
    values_ += Text(key) + Pod(type) + content;
    ++value_count_;
  }
  [[nodiscard]] std::string Build() const {
    std::string file =
        "GGUF" + Pod(uint32_t{3}) + Pod(static_cast<uint64_t>(tensors_.size())) + Pod(value_count_) + values_;
    for (const Entry& tensor : tensors_) {
      file += Text(tensor.name) + Pod(static_cast<uint32_t>(tensor.ne.size()));
      for (const uint64_t extent : tensor.ne) file += Pod(extent);
      file += Pod(tensor.type) + Pod(static_cast<uint64_t>(tensor.offset));
    }
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

  template <typename T>
  static std::string Pod(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(const std::string& text) { return Pod(static_cast<uint64_t>(text.size())) + text; }

 private:
  struct Entry {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type;
    std::string bytes;
    size_t offset;
  };
  std::vector<Entry> tensors_;
  std::string data_;
  std::string values_;
  uint64_t value_count_ = 0;
};

inline std::string Floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace tidepool::files
