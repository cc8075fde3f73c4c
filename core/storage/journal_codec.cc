#include "core/storage/journal_codec.h"

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <utility>

#include "core/base/little_endian.h"

namespace tidepool::storage {
namespace {

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

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  template <typename T>
  void operator()(const char* name, const T& field) {
    if constexpr (std::is_same_v<T, WorkerRef>) {
      if (std::string_view(name) == "worker") {
        Key("w"), Put(field.worker);
        Key("inc"), Put(field.inc);
        return;
      }
    }
    // FAULT's field would hide the record's own kind.
    Key(std::string_view(name) == "kind" ? "class" : name);
    if constexpr (std::is_same_v<T, std::vector<std::pair<std::string, double>>>) {
      out_.push_back('{');
      first_ = true;
      for (const auto& [key, value] : field) Key(key), Put(value);
      out_.push_back('}');
      first_ = false;
    } else {
      Put(field);
    }
  }

  void Begin() {
    out_.push_back('{');
    first_ = true;
  }
  void End() {
    out_.push_back('}');
    first_ = false;
  }
  void Key(std::string_view name) {
    if (!first_) out_.push_back(',');
    first_ = false;
    Text(name);
    out_.push_back(':');
  }

  template <typename T>
  void Put(const T& x) {
    if constexpr (std::is_same_v<T, bool>) {
      out_ += x ? "true" : "false";
    } else if constexpr (std::is_same_v<T, uint64_t>) {  // in records, these are digests
      char text[24];
      const auto end = std::to_chars(text, text + sizeof(text), x, 16).ptr;
      out_ += "\"0x";
      out_.append(16 - static_cast<size_t>(end - text), '0');
      out_.append(text, end);
      out_.push_back('"');
    } else if constexpr (std::floating_point<T>) {
      if (!std::isfinite(x)) {
        out_ += std::isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"";
        return;
      }
      Digits(x);
    } else if constexpr (std::is_arithmetic_v<T>) {
      Digits(x);
    } else if constexpr (std::is_enum_v<T>) {
      Text(Name(x));
    } else if constexpr (std::is_same_v<T, std::string>) {
      Text(x);
    } else if constexpr (kIsStrongId<T>) {
      Digits(x.value);
    } else if constexpr (kIsVector<T>) {
      out_.push_back('[');
      bool first = true;
      for (const auto& item : x) {
        if (!first) out_.push_back(',');
        first = false;
        Put(item);
      }
      out_.push_back(']');
    } else {
      Begin();
      VisitFields(x, *this);
      End();
    }
  }

  template <typename T>
  void Digits(T x) {
    char text[40];
    out_.append(text, std::to_chars(text, text + sizeof(text), x).ptr);
  }

 private:
  // Escapes what JSON demands; bytes that are no UTF-8 become U+FFFD, so that the line always parses.
  void Text(std::string_view text);

  std::string& out_;
  bool first_ = true;
};

// Length of the valid UTF-8 sequence at the front of `s`; 0 if there is none.
size_t Utf8Length(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : 0U; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return tail(1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    if (b == 0xE0 && byte(1) < 0xA0) return 0;
    if (b == 0xED && byte(1) > 0x9F) return 0;
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    if (b == 0xF0 && byte(1) < 0x90) return 0;
    if (b == 0xF4 && byte(1) > 0x8F) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

void JsonWriter::Text(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out_.push_back('"');
  while (!text.empty()) {
    const auto c = static_cast<uint8_t>(text.front());
    if (c == '"' || c == '\\') {
      out_.push_back('\\');
      out_.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out_ += "\\n";
    } else if (c < 0x20) {
      out_ += "\\u00";
      out_.push_back(kHex[c >> 4]);
      out_.push_back(kHex[c & 15]);
    } else {
      const size_t n = Utf8Length(text);
      if (n == 0) {
        out_ += "\xEF\xBF\xBD";
      } else {
        out_.append(text.substr(0, n));
        text.remove_prefix(n);
        continue;
      }
    }
    text.remove_prefix(1);
  }
  out_.push_back('"');
}

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

std::string JournalEntryToJson(const JournalEntry& entry) {
  std::string out;
  out.reserve(256);
  JsonWriter json(out);
  json.Begin();
  json.Key("lsn"), json.Put(entry.lsn);
  json.Key("ctl_epoch"), json.Digits(entry.ctl_epoch);
  json.Key("mono_ns"), json.Digits(entry.mono_ns);
  json.Key("kind"), json.Put(std::string(RecordName(entry.record)));
  std::visit([&](const auto& r) { VisitFields(r, json); }, entry.record);
  json.End();
  return out;
}

}  // namespace tidepool::storage
