#include "core/storage/journal_codec.h"

#include <array>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/little_endian.h"

namespace tidepool::storage {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
inline constexpr bool kIsPair = false;
template <typename A, typename B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <typename T>
inline constexpr bool kIsStrongId = false;
template <typename Tag>
inline constexpr bool kIsStrongId<StrongId<Tag>> = true;

struct Encoder {
  std::string& out;

  template <typename T>
  void operator()(const char* /*name*/, const T& field) {
    Put(field);
  }

  template <typename T>
  void Put(const T& x) {
    if constexpr (std::is_same_v<T, bool>) {
      PutNumber(out, static_cast<uint8_t>(x));
    } else if constexpr (std::is_arithmetic_v<T>) {
      PutNumber(out, x);
    } else if constexpr (std::is_enum_v<T>) {
      PutNumber(out, static_cast<uint8_t>(x));
    } else if constexpr (std::is_same_v<T, std::string>) {
      PutString(out, x);
    } else if constexpr (kIsStrongId<T>) {
      PutNumber(out, x.value);
    } else if constexpr (kIsPair<T>) {
      Put(x.first), Put(x.second);
    } else if constexpr (kIsVector<T>) {
      PutNumber(out, static_cast<uint32_t>(x.size()));
      for (const auto& item : x) Put(item);
    } else {
      VisitFields(x, *this);
    }
  }
};

struct Decoder {
  ByteReader reader;
  uint32_t format = kJournalSchema;
  bool in_range = true;

  // Fields of the record itself: missing at the end means an older writer.
  template <typename T>
  void operator()(const char* /*name*/, T& field) {
    if (reader.ok() && reader.left() == 0) return;
    Get(field);
  }

  // Fields of items in lists are all there.
  struct Nested {
    Decoder& outer;
    uint32_t format = outer.format;
    template <typename T>
    void operator()(const char* /*name*/, T& field) {
      outer.Get(field);
    }
  };

  template <typename T>
  void Get(T& x) {
    if constexpr (std::is_same_v<T, bool>) {
      x = reader.Number<uint8_t>() != 0;
    } else if constexpr (std::is_arithmetic_v<T>) {
      x = reader.Number<T>();
    } else if constexpr (std::is_enum_v<T>) {
      const auto byte = reader.Number<uint8_t>();
      in_range = in_range && byte < kWords<T>.size();  // else damage, or a newer program
      x = static_cast<T>(byte);
    } else if constexpr (std::is_same_v<T, std::string>) {
      x = std::string(reader.String());
    } else if constexpr (kIsStrongId<T>) {
      x.value = reader.Number<int64_t>();
    } else if constexpr (kIsPair<T>) {
      Get(x.first), Get(x.second);
    } else if constexpr (kIsVector<T>) {
      // One byte is the least that any item takes; items are small, so a wild count cannot allocate much
      // more than the record's own size.
      const size_t count = reader.Count(1);
      x.clear();
      for (size_t i = 0; i < count && reader.ok(); ++i) Get(x.emplace_back());
    } else {
      Nested nested{*this};
      VisitFields(x, nested);
    }
  }
};

template <size_t kKind>
StatusOr<JournalRecord> DecodeKind(std::string_view bytes, uint32_t schema) {
  JournalRecord record(std::in_place_index<kKind>);
  Decoder decoder{.reader = ByteReader(bytes), .format = schema};
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

// Fields as JSON, by the rules of the header.
struct JsonFields {
  Json& out;

  template <typename T>
  void operator()(const char* name, const T& field) {
    const std::string_view key = name;
    if constexpr (std::is_same_v<T, WorkerRef>) {
      if (key == "worker") return VisitFields(field, *this);
    }
    // FAULT's field would hide the record's own kind.
    out[key == "kind" ? "class" : name] = Value(field);
  }

 private:
  template <typename T>
  static Json Value(const T& x) {
    if constexpr (std::is_same_v<T, uint64_t>) {  // in records, these are digests
      char text[24];
      std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(x));
      return text;
    } else if constexpr (std::floating_point<T>) {
      if (!std::isfinite(x)) return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
      return x;
    } else if constexpr (std::is_enum_v<T>) {
      return Name(x);
    } else if constexpr (kIsStrongId<T>) {
      return x.value;
    } else if constexpr (std::is_same_v<T, std::vector<std::pair<std::string, double>>>) {
      Json object = Json::object();
      for (const auto& [name, value] : x) object[name] = Value(value);
      return object;
    } else if constexpr (kIsVector<T>) {
      Json list = Json::array();
      for (const auto& item : x) list.push_back(Value(item));
      return list;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return x;
    } else {
      Json object = Json::object();
      VisitFields(x, JsonFields{object});
      return object;
    }
  }
};

}  // namespace

uint16_t KindOf(const JournalRecord& record) { return static_cast<uint16_t>(record.index()); }

void EncodeFields(const JournalRecord& record, std::string& out) {
  Encoder encoder{out};
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
  std::visit([&](const auto& r) { VisitFields(r, JsonFields{json}); }, entry.record);
  return json;
}

}  // namespace tidepool::storage
