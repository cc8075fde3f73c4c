#include "workers/net/wire.h"

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/field_bytes.h"
#include "core/base/hash.h"
#include "core/sample/codec.h"
#include "proto/control.pb.h"
#include "workers/net/bounded_text.h"
#include "workers/net/message_fields.h"

namespace tidepool::workers {
namespace {

// What the words and the order below mean; one more when that changes and no list does.
constexpr uint64_t kProtocol = 4;

template <typename T>
concept VariantLike = requires {
  std::variant_size<T>::value;
};
struct Encoder : FieldWriter<Encoder, /*kShort=*/true> {
  template <typename T>
  void operator()(const char* /*name*/, const T& field, size_t most = kUnbounded) {
    if constexpr (std::same_as<T, std::string>) {
      if (field.size() > most) return PutText(Bounded(field, most));
    }
    Put(field);
  }
  template <typename T>
  void Put(const T& x) {
    if constexpr (std::same_as<T, sample::Segment>) {  // nothing new: no bytes
      PutText(x.size() == 0 && x.fragment.empty() ? "" : sample::Encode(x));
    } else if constexpr (std::same_as<T, sample::Trajectory>) {
      const auto bytes = sample::Encode(x);
      TP_CHECK(bytes.ok()) << bytes.status().message();
      PutText(*bytes);
    } else if constexpr (VariantLike<T>) {
      PutNumber(out, static_cast<uint8_t>(x.index()));
      std::visit([this](const auto& body) { VisitFields(body, *this); }, x);
    } else {
      FieldWriter::Put(x);
    }
  }
};

struct Decoder : FieldReader<Decoder, /*kShort=*/true> {
  const char* field = "";  // that is read, or the last one before it failed

  template <typename T>
  void operator()(const char* name, T& x, size_t most = kUnbounded) {
    if (!reader.ok()) return;
    field = name;
    if constexpr (ListField<T>) {
      GetList(x, most);
    } else {
      Get(x);
    }
    if constexpr (std::same_as<T, std::string>) {
      if (x.size() > most) x = Bounded(std::move(x), most);
    }
  }
  template <typename T>
  void Get(T& x) {
    if constexpr (std::same_as<T, sample::Segment>) {
      if (const auto bytes = GetText(); !bytes.empty()) Take(sample::DecodeSegment(bytes), x);
    } else if constexpr (std::same_as<T, sample::Trajectory>) {
      Take(sample::Decode(GetText()), x);
    } else if constexpr (VariantLike<T>) {
      GetKind(x, Byte(std::variant_size_v<T>));
    } else {
      FieldReader::Get(x);
    }
    if (!in_range) reader.Fail();
  }

 private:
  template <typename T>
  void Take(StatusOr<T> decoded, T& x) {
    if (decoded.ok()) {
      x = *std::move(decoded);
    } else {
      reader.Fail();
    }
  }
  template <size_t kKind = 0, typename T>
  void GetKind(T& x, size_t kind) {
    if constexpr (kKind < std::variant_size_v<T>) {
      if (kind != kKind) return GetKind<kKind + 1>(x, kind);
      VisitFields(x.template emplace<kKind>(), *this);
    }
  }
};

// The lists in words, to be hashed.
struct Describer {
  std::string out;

  template <typename T>
  void operator()(const char* name, const T& /*field*/, size_t = kUnbounded) {
    out += name;
    Describe<T>();
  }
  template <typename T>
  void Describe() {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      out += std::is_floating_point_v<T> ? 'f' : std::is_enum_v<T> ? 'e' : std::is_signed_v<T> ? 'i' : 'u';
      out += std::to_string(sizeof(T));
    } else if constexpr (PairField<T>) {
      Describe<typename T::first_type>();
      Describe<typename T::second_type>();
    } else if constexpr (VariantLike<T>) {
      [this]<size_t... kKind>(std::index_sequence<kKind...>) {
        (this->template Describe<std::variant_alternative_t<kKind, T>>(), ...);
      }
      (std::make_index_sequence<std::variant_size_v<T>>());
    } else if constexpr (ListField<T>) {
      out += '*';
      Describe<typename T::value_type>();
    } else if constexpr (MapField<T>) {
      out += '%';
      Describe<typename T::key_type>();
      Describe<typename T::mapped_type>();
    } else if constexpr (requires(T & x, Describer & v) { VisitFields(x, v); }) {
      out += '{';
      const T message;
      VisitFields(message, *this);
      out += '}';
    } else {
      out += '=';  // ids, texts, tokens: told apart by the name of the field
    }
  }
};

}  // namespace

uint64_t WireSchema() {
  static const uint64_t schema = [] {
    Describer lists;
    lists.Describe<FromWorker>();
    lists.Describe<ToWorker>();
    lists.Describe<BatchRow>();
    return Hash64(lists.out, kProtocol);
  }();
  return schema;
}

template <typename Messages>
size_t Pack(const Messages& batch, size_t at, size_t most, v1::Frame* out) {
  out->set_schema(WireSchema());
  for (size_t bytes = 0; at < batch.size(); ++at) {
    std::string message;
    Encoder{{message}}.Put(batch[at]);
    bytes += message.size();
    if (bytes > most && out->messages_size() > 0) break;
    out->add_messages(std::move(message));
  }
  return at;
}

template <typename Message>
StatusOr<std::vector<Message>> Unpack(const v1::Frame& in) {
  if (in.schema() != WireSchema()) {
    return FailedPrecondition("the other end speaks wire schema " + std::to_string(in.schema()) +
                              ", this one " + std::to_string(WireSchema()) + "; use one build for both");
  }
  std::vector<Message> out;
  out.reserve(static_cast<size_t>(in.messages_size()));
  for (const std::string& bytes : in.messages()) {
    Decoder decoder{{ByteReader(bytes)}};
    decoder.Get(out.emplace_back());
    if (!decoder.reader.ok())
      return InvalidArgument(std::string("a message is wrong at its field \"") + decoder.field + '"');
    if (decoder.reader.left() > 0) return InvalidArgument("a message has more bytes than fields");
  }
  return out;
}

template <typename Messages>
bool WriteFrames(const Messages& batch, size_t most, const std::function<bool(const v1::Frame&)>& write) {
  for (size_t at = 0; at < batch.size();) {
    v1::Frame frame;
    at = Pack(batch, at, most, &frame);
    std::string& first = *frame.mutable_messages(0);
    if (first.size() > most) {
      const std::string whole = std::move(first);
      size_t from = 0;
      frame.set_cut(true);
      for (; whole.size() - from > most; from += most) {
        first = whole.substr(from, most);
        if (!write(frame)) return false;
      }
      frame.set_cut(false);
      first = whole.substr(from);
    }
    if (!write(frame)) return false;
  }
  return true;
}

template <typename Message>
StatusOr<std::vector<Message>> FrameReader::Take(v1::Frame& frame) {
  if (!frame.cut() && begun_.empty()) return Unpack<Message>(frame);
  if (frame.messages_size() != 1) return InvalidArgument("a part of a message comes with another message");
  std::string& part = *frame.mutable_messages(0);
  if (part.size() > most_ - begun_.size())
    return InvalidArgument("a message has more than " + std::to_string(most_ >> 20) + " MiB");
  begun_ += part;
  if (frame.cut()) return std::vector<Message>();
  part = std::exchange(begun_, {});
  return Unpack<Message>(frame);
}

StatusOr<std::vector<BatchRow>> ReadRows(const std::function<bool(v1::Frame*)>& read) {
  std::vector<BatchRow> rows;
  FrameReader reader(SIZE_MAX);  // with routing a long row has any size
  for (v1::Frame frame; read(&frame); frame.Clear()) {
    TP_ASSIGN_OR_RETURN(auto more, reader.Take<BatchRow>(frame));
    for (BatchRow& row : more) {
      if (std::exchange(row.same_prompt, false)) {
        if (rows.empty() || rows.back().trajectory.is_outline())
          return InvalidArgument("a row has the prompt of one before it, and there is none");
        row.trajectory.prompt = rows.back().trajectory.prompt;
      }
      rows.push_back(std::move(row));
    }
  }
  if (reader.within()) return InvalidArgument("the rows end within a row");
  return rows;
}

std::string AsBytes(const FetchedRows& fetched) {
  std::string bytes;
  Encoder{{bytes}}.Put(fetched);
  return bytes;
}

StatusOr<FetchedRows> FetchedFrom(std::string_view bytes) {
  FetchedRows fetched;
  Decoder decoder{{ByteReader(bytes)}};
  decoder.Get(fetched);
  if (decoder.reader.ok() && decoder.reader.left() == 0) return fetched;
  return Internal(std::string("what came are no rows: they are wrong at \"") + decoder.field + '"');
}

template size_t Pack(const std::deque<ToWorker>&, size_t, size_t, v1::Frame*);
template size_t Pack(const std::deque<FromWorker>&, size_t, size_t, v1::Frame*);
template size_t Pack(const std::vector<BatchRow>&, size_t, size_t, v1::Frame*);
using WriteFrame = std::function<bool(const v1::Frame&)>;
template bool WriteFrames(const std::deque<ToWorker>&, size_t, const WriteFrame&);
template bool WriteFrames(const std::deque<FromWorker>&, size_t, const WriteFrame&);
template bool WriteFrames(const std::vector<BatchRow>&, size_t, const WriteFrame&);
template StatusOr<std::vector<ToWorker>> FrameReader::Take(v1::Frame&);
template StatusOr<std::vector<FromWorker>> FrameReader::Take(v1::Frame&);
template StatusOr<std::vector<ToWorker>> Unpack(const v1::Frame&);
template StatusOr<std::vector<FromWorker>> Unpack(const v1::Frame&);

}  // namespace tidepool::workers
