#include "core/storage/journal_codec.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/field_bytes.h"
#include "core/base/json_fields.h"
#include "core/base/utc_time.h"

namespace tidepool::storage {
namespace {

using Json = nlohmann::ordered_json;

struct Encoder : FieldWriter<Encoder> {
  template <typename T>
  void operator()(const char* /*name*/, const T& field) {
    Put(field);
  }
};

struct Decoder : FieldReader<Decoder> {
  uint32_t format;

  template <typename T>
  void operator()(const char* /*name*/, T& field) {
    // Fields of the record itself that are missing at its end: an older writer.
    if (depth == 0 && reader.ok() && reader.left() == 0) return;
    Get(field);
  }
};

template <size_t kKind>
StatusOr<JournalRecord> DecodeKind(std::string_view bytes, uint32_t schema) {
  JournalRecord record(std::in_place_index<kKind>);
  Decoder decoder{{ByteReader(bytes)}, schema};
  VisitFields(std::get<kKind>(record), decoder);
  const char* why = nullptr;
  if (!decoder.reader.ok()) why = "it ends inside a field";
  if (decoder.reader.ok() && decoder.reader.left() > 0)
    why = "it has more bytes than fields (written by a newer program?)";
  if (!decoder.in_range) why = "an enum has a value that this program does not know";
  if (why != nullptr)
    return DataLoss(std::string("a record of kind ") + RecordName(record) + " does not parse: " + why);
  return record;
}

using DecodeFunction = StatusOr<JournalRecord> (*)(std::string_view, uint32_t);
constexpr size_t kKinds = std::variant_size_v<JournalRecord>;
constexpr auto kDecoders = []<size_t... kKind>(std::index_sequence<kKind...>) {
  return std::array<DecodeFunction, kKinds>{&DecodeKind<kKind>...};
}
(std::make_index_sequence<kKinds>{});

}  // namespace

uint16_t KindOf(const JournalRecord& record) { return static_cast<uint16_t>(record.index()); }

void EncodeFields(const JournalRecord& record, std::string& out) {
  Encoder encoder{{out}};
  std::visit([&](const auto& r) { VisitFields(r, encoder); }, record);
}

StatusOr<JournalRecord> DecodeFields(uint16_t kind, std::string_view bytes, uint32_t schema) {
  if (kind >= kKinds) {
    return DataLoss("record kind " + std::to_string(kind) + " is unknown; this program knows 0.." +
                    std::to_string(kKinds - 1) + " (written by a newer program?)");
  }
  return kDecoders[kind](bytes, schema);
}

Json JournalEntryToJson(const JournalEntry& entry) {
  Json json = {{"lsn", entry.lsn.value},
               {"ctl_epoch", entry.ctl_epoch},
               {"mono_ns", entry.mono_ns},
               {"kind", RecordName(entry.record)}};
  if (entry.unix_ms != 0) json["time"] = UtcTimeText(entry.unix_ms);
  const auto put = [&]<typename T>(const char* name, const T& field) {
    if constexpr (std::is_same_v<T, WorkerRef>) {
      if (std::string_view(name) == "worker") return json.update(JsonOf<Json>(field));
    }
    // FAULT's field would hide the record's own kind.
    json[std::string_view(name) == "kind" ? "class" : name] = JsonOf<Json>(field);
  };
  std::visit([&](const auto& r) { VisitFields(r, put); }, entry.record);
  return json;
}

}  // namespace tidepool::storage
