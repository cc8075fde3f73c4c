#include "core/observe/tensorboard_writer.h"

#include <bit>
#include <cstring>

#include "core/base/hash.h"

namespace tidepool::observe {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records and protobuf are written as they lie in memory");

template <typename T>
void Fixed(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void Varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

// Wire types of protobuf: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
void Tag(std::string& out, uint32_t field, uint32_t wire_type) { Varint(out, (field << 3) | wire_type); }

void Bytes(std::string& out, uint32_t field, std::string_view bytes) {
  Tag(out, field, 2);
  Varint(out, bytes.size());
  out += bytes;
}

uint32_t Masked(std::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8U; }

}  // namespace

StatusOr<TensorBoardWriter> TensorBoardWriter::Create(const std::string& folder, double unix_s,
                                                      const std::string& name) {
  std::string seconds = std::to_string(static_cast<int64_t>(unix_s));
  if (seconds.size() < 10) seconds.insert(0, 10 - seconds.size(), '0');  // files are ordered by name
  TP_ASSIGN_OR_RETURN(AppendFile file,
                      AppendFile::Open(folder + "/events.out.tfevents." + seconds + "." + name));
  TensorBoardWriter writer(std::move(file));
  std::string event;
  Tag(event, 1, 1);
  Fixed(event, unix_s);
  Bytes(event, 3, "brain.Event:2");
  TP_RETURN_IF_ERROR(writer.Record(event));
  return writer;
}

Status TensorBoardWriter::Write(int64_t step, double unix_s, const std::map<std::string, double>& scalars) {
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    Bytes(value, 1, name);
    Tag(value, 2, 5);
    Fixed(value, static_cast<float>(number));
    Bytes(summary, 1, value);
  }
  std::string event;
  Tag(event, 1, 1);
  Fixed(event, unix_s);
  Tag(event, 2, 0);
  Varint(event, static_cast<uint64_t>(step));
  Bytes(event, 5, summary);
  return Record(event);
}

Status TensorBoardWriter::Record(std::string_view event) {
  std::string record;
  Fixed(record, static_cast<uint64_t>(event.size()));
  Fixed(record, Masked(record));
  record += event;
  Fixed(record, Masked(event));
  return file_.Append(record);
}

}  // namespace tidepool::observe
