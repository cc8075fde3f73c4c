#include "tests/conformance/request.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>

namespace tidepool::algorithms::conformance {
namespace {

// Numbers, true and false, and the texts nan, inf, -inf.
std::optional<double> AsNumber(const Json& v) {
  if (v.is_number()) return v.get<double>();
  if (v.is_boolean()) return v.get<bool>() ? 1 : 0;
  if (!v.is_string()) return std::nullopt;
  std::string text = v.get<std::string>();
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf" || text == "+inf" || text == "infinity") return std::numeric_limits<double>::infinity();
  if (text == "-inf" || text == "-infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::optional<int64_t> AsInteger(const Json& v) {
  if (v.is_number_integer()) return v.get<int64_t>();
  const auto number = AsNumber(v);
  if (!number || !(std::fabs(*number) < 9e15) || std::floor(*number) != *number) return std::nullopt;
  return static_cast<int64_t>(*number);
}

// Nested plain lists as one flat list with its shape; false if they are ragged.
bool Flatten(const Json& v, size_t depth, std::vector<int64_t>& shape, std::vector<const Json*>& flat) {
  if (!v.is_array()) {
    flat.push_back(&v);
    return depth == shape.size();
  }
  if (depth > 4) return false;
  const auto n = static_cast<int64_t>(v.size());
  if (shape.size() == depth && flat.empty()) shape.push_back(n);
  if (depth >= shape.size() || shape[depth] != n) return false;
  for (const Json& item : v) {
    if (!Flatten(item, depth + 1, shape, flat)) return false;
  }
  return true;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Json Encode(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  return v;
}

}  // namespace

const Json* Params::Find(std::string_view name) const {
  if (object_ == nullptr) return nullptr;
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

void Params::Fail(Status status) const {
  if (status_->ok()) *status_ = std::move(status);
}

const Params& Params::Known(std::initializer_list<std::string_view> names) const {
  if (object_ == nullptr) return *this;
  for (const auto& [name, value] : object_->items()) {
    if (!value.is_null() && std::ranges::count(names, std::string_view(name)) == 0) {
      Fail(Unimplemented(where_ + name + " is no parameter of this operation"));
    }
  }
  return *this;
}

std::optional<double> Params::Maybe(std::string_view name) const {
  const Json* v = Find(name);
  if (v == nullptr) return std::nullopt;
  const auto number = AsNumber(*v);
  if (!number || v->is_boolean()) Fail(InvalidArgument(where_ + std::string(name) + " is not a number"));
  return number;
}

double Params::Need(std::string_view name) const {
  const auto number = Maybe(name);
  if (!number) Fail(InvalidArgument(where_ + std::string(name) + " is missing; expected a number"));
  return number.value_or(0);
}

int64_t Params::Integer(std::string_view name, int64_t otherwise) const {
  const Json* v = Find(name);
  if (v == nullptr) return otherwise;
  const auto number = AsInteger(*v);
  if (!number) Fail(InvalidArgument(where_ + std::string(name) + " is not an integer"));
  return number.value_or(otherwise);
}

int64_t Params::NeedInteger(std::string_view name) const {
  if (!Has(name)) Fail(InvalidArgument(where_ + std::string(name) + " is missing; expected an integer"));
  return Integer(name, 0);
}

bool Params::Flag(std::string_view name, bool otherwise) const {
  const Json* v = Find(name);
  if (v == nullptr) return otherwise;
  if (v->is_boolean()) return v->get<bool>();
  if (v->is_number() && (*v == 0 || *v == 1)) return *v == 1;
  Fail(InvalidArgument(where_ + std::string(name) + " is not true or false"));
  return otherwise;
}

std::string Params::Text(std::string_view name, std::string_view otherwise) const {
  const Json* v = Find(name);
  if (v == nullptr) return std::string(otherwise);
  if (v->is_string()) return v->get<std::string>();
  Fail(InvalidArgument(where_ + std::string(name) + " is not a text"));
  return std::string(otherwise);
}

std::string Params::Choice(std::string_view name, std::string_view otherwise,
                           std::initializer_list<std::string_view> choices) const {
  const std::string text = Text(name, otherwise);
  if (std::ranges::count(choices, std::string_view(text)) == 0 && status_->ok()) {
    Fail(Unimplemented(where_ + std::string(name) + " '" + text + "' is not offered"));
  }
  return text;
}

Params Params::Sub(std::string_view name) const {
  const Json* v = Find(name);
  if (v != nullptr && !v->is_object()) {
    Fail(InvalidArgument(where_ + std::string(name) + " is not an object"));
    v = nullptr;
  }
  return {v, where_ + std::string(name) + ".", status_};
}

Value Params::OptionValue(std::string_view name) const {
  const Json* v = Find(name);
  if (v == nullptr) return {};
  if (v->is_boolean()) return v->get<bool>();
  if (v->is_number()) return v->get<double>();
  if (v->is_string()) {
    if (const auto number = AsNumber(*v)) return *number;
    return v->get<std::string>();
  }
  Fail(InvalidArgument(where_ + std::string(name) + " is neither a number, a text, true nor false"));
  return {};
}

Request::Request(const Json& request) : params_(nullptr, "", &status_) {
  const auto part = [&](const char* name) -> const Json* {
    const auto it = request.find(name);
    if (it == request.end() || it->is_null()) return nullptr;
    if (!it->is_object()) Fail(InvalidArgument(std::string(name) + " is not an object"));
    return it->is_object() ? &*it : nullptr;
  };
  params_ = Params(part("params"), "", &status_);
  inputs_ = part("inputs");
}

void Request::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const Json* Request::Raw(std::string_view name) const {
  if (inputs_ == nullptr) return nullptr;
  const auto it = inputs_->find(name);
  return it == inputs_->end() || it->is_null() ? nullptr : &*it;
}

bool Request::Has(std::string_view input) const { return Raw(input) != nullptr; }

Tensor Request::Decode(std::string_view name, const Json& value) {
  const std::string who = "input " + std::string(name);
  Tensor out;
  std::vector<const Json*> flat;
  const Json* data = &value;
  bool single = false;  // float32 values
  if (value.is_object()) {
    const auto it = value.find("data");
    if (it == value.end() || !it->is_array()) {
      Fail(InvalidArgument(who + " has no data list"));
      return out;
    }
    data = &*it;
    if (const auto type = value.find("dtype"); type != value.end()) {
      if (*type != "f32" && *type != "f64" && *type != "i64" && *type != "bool") {
        Fail(InvalidArgument(who + ": dtype is not f32, f64, i64 or bool"));
        return out;
      }
      single = *type == "f32";
    }
  }
  if (!Flatten(*data, 0, out.shape, flat)) {
    Fail(InvalidArgument(who + ": the lists have different lengths"));
    return out;
  }
  if (value.is_object() && value.contains("shape")) {
    out.shape.clear();
    double cells = 1;
    const Json& shape = value["shape"];
    for (size_t i = 0; shape.is_array() && i < shape.size(); ++i) {
      const auto n = AsInteger(shape[i]);
      out.shape.push_back(n.value_or(-1));
      cells *= static_cast<double>(n.value_or(-1));
    }
    if (!shape.is_array() || std::ranges::any_of(out.shape, [](int64_t n) { return n < 0; }) ||
        cells != static_cast<double>(flat.size())) {
      Fail(InvalidArgument(who + ": shape " + shape.dump() + " does not hold its " +
                           std::to_string(flat.size()) + " values"));
      return out;
    }
  }
  out.data.reserve(flat.size());
  for (const Json* v : flat) {
    const auto number = AsNumber(*v);
    if (!number) {
      Fail(InvalidArgument(who + " holds " +
                           v->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40) +
                           ", which is not a number"));
      return out;
    }
    out.data.push_back(single ? static_cast<double>(static_cast<float>(*number)) : *number);
  }
  return out;
}

Tensor Request::Input(std::string_view name) {
  const Json* v = Raw(name);
  if (v == nullptr) {
    Fail(InvalidArgument("input " + std::string(name) + " is missing"));
    return {};
  }
  return Decode(name, *v);
}

std::vector<double> Request::Vector(std::string_view name, int64_t size) {
  Tensor t = Input(name);
  if (ok() && size >= 0 && static_cast<int64_t>(t.data.size()) != size) {
    Fail(InvalidArgument("input " + std::string(name) + " has " + std::to_string(t.data.size()) +
                         " values, expected " + std::to_string(size)));
  }
  return std::move(t.data);
}

std::vector<double> Request::Matrix(std::string_view name, const std::vector<int64_t>& shape) {
  Tensor t = Input(name);
  if (ok() && t.shape != shape) {
    Fail(InvalidArgument("input " + std::string(name) + " has shape " + ShapeText(t.shape) + ", expected " +
                         ShapeText(shape)));
  }
  return std::move(t.data);
}

std::vector<double> Request::MaybeMatrix(std::string_view name, const std::vector<int64_t>& shape) {
  return Has(name) ? Matrix(name, shape) : std::vector<double>();
}

std::vector<int64_t> Request::Integers(std::string_view name, int64_t size) {
  std::vector<int64_t> out;
  const Json* v = Raw(name);
  if (v == nullptr) {
    Fail(InvalidArgument("input " + std::string(name) + " is missing"));
    return out;
  }
  std::vector<int64_t> shape;
  std::vector<const Json*> flat;
  if (!Decode(name, *v).data.empty() || size != 0) {
    const Json& data = v->is_object() && v->contains("data") ? (*v)["data"] : *v;
    Flatten(data, 0, shape, flat);
  }
  for (const Json* item : flat) {
    const auto number = AsInteger(*item);
    if (!number) {
      Fail(InvalidArgument("input " + std::string(name) + " holds a value that is not an integer"));
      break;
    }
    out.push_back(*number);
  }
  if (ok() && size >= 0 && static_cast<int64_t>(out.size()) != size) {
    Fail(InvalidArgument("input " + std::string(name) + " has " + std::to_string(out.size()) +
                         " values, expected " + std::to_string(size)));
  }
  return out;
}

std::vector<int64_t> Request::Ids(std::string_view name, int64_t size) {
  const Json* v = Raw(name);
  const Json* list = v != nullptr && v->is_object() && v->contains("data") ? &(*v)["data"] : v;
  if (list == nullptr || !list->is_array() ||
      std::ranges::none_of(*list, [](const Json& i) { return i.is_string(); })) {
    return Integers(name, size);
  }
  std::map<std::string, int64_t> number;
  std::vector<int64_t> ids;
  for (const Json& item : *list) {
    const std::string key = item.dump(-1, ' ', false, Json::error_handler_t::replace);
    ids.push_back(number.try_emplace(key, static_cast<int64_t>(number.size())).first->second);
  }
  if (size >= 0 && static_cast<int64_t>(ids.size()) != size) {
    Fail(InvalidArgument("input " + std::string(name) + " has " + std::to_string(ids.size()) +
                         " ids, expected " + std::to_string(size)));
  }
  return ids;
}

std::vector<uint8_t> Request::Bits(std::string_view name, const std::vector<int64_t>& shape) {
  const std::vector<double> data = Matrix(name, shape);
  std::vector<uint8_t> bits;
  for (const double v : data) {
    if (v != 0 && v != 1)
      Fail(InvalidArgument("input " + std::string(name) + " holds a value that is neither 0 nor 1"));
    bits.push_back(v == 1 ? 1 : 0);
  }
  return bits;
}

double Request::Scalar(std::string_view name) {
  const std::vector<double> v = Vector(name, 1);
  return ok() ? v[0] : 0;
}

int64_t Request::IntegerScalar(std::string_view name) {
  const std::vector<int64_t> v = Integers(name, 1);
  return ok() ? v[0] : 0;
}

Cells Request::MaskedCells(std::string_view like) {
  const bool given = Has("mask");
  const Tensor t = Input(given ? std::string_view("mask") : like);
  if (!ok()) return {};
  if (t.shape.empty() || t.shape.size() > 2) {
    Fail(InvalidArgument(std::string(given ? "mask" : like) + " has shape " + ShapeText(t.shape) +
                         ", expected [rows, positions]"));
    return {};
  }
  std::vector<uint8_t> mask(t.data.size(), 1);
  for (size_t i = 0; given && i < mask.size(); ++i) {
    if (t.data[i] != 0 && t.data[i] != 1) {
      Fail(InvalidArgument("mask holds a value that is neither 0 nor 1"));
      return {};
    }
    mask[i] = t.data[i] == 1 ? 1 : 0;
  }
  shape_ = t.shape;
  return t.shape.size() == 1 ? Cells::Padded(1, t.shape[0], std::move(mask))
                             : Cells::Padded(t.shape[0], t.shape[1], std::move(mask));
}

Aggregation Request::Agg(const Params& p, AggregationMode otherwise, const Cells& cells) {
  Aggregation a;
  a.mode = otherwise;
  p.Known({"mode", "global_tokens", "global_seqs", "dp_size", "scale", "divide_by_seqs", "max_steps",
           "rollout", "divide"});
  if (const auto mode = ParseWord<AggregationMode>("aggregation mode", p.Text("mode", Name(otherwise)));
      mode.ok()) {
    a.mode = mode.value();
  } else {
    Fail(mode.status());
  }
  a.global_tokens = p.Maybe("global_tokens");
  a.global_seqs = p.Maybe("global_seqs");
  a.dp_size = p.Number("dp_size", 1);
  a.scale = p.Number("scale", 1);
  a.divide_by_seqs = p.Flag("divide_by_seqs");
  a.max_steps = p.Number("max_steps", 1);
  a.divide = p.Flag("divide", true);
  if (a.mode == AggregationMode::kSeqMeanTokenSumNorm && !p.Has("scale"))
    Fail(InvalidArgument("agg: scale (L_max) is missing"));
  if (a.mode == AggregationMode::kMaskRatio && !p.Has("max_steps"))
    Fail(InvalidArgument("agg: max_steps is missing"));
  if (a.mode == AggregationMode::kRolloutMean) {
    if (const Json* ids = p.Find("rollout")) {
      // Read as an input is, numbers or texts.
      const Json wrapped = {{"inputs", {{"rollout", *ids}}}};
      Request inner(wrapped);
      a.rollout = inner.Ids("rollout", cells.rows());
      if (!inner.ok()) Fail(inner.status());
    } else {
      a.rollout = Ids("rollout", cells.rows());
    }
  }
  return a;
}

std::optional<WhitenOptions> Request::WhitenParam() {
  if (!params_.Has("whiten")) return std::nullopt;
  const Params p = params_.Sub("whiten").Known({"ddof", "eps", "eps_mode"});
  WhitenOptions w{.ddof = p.Integer("ddof", 1), .eps = p.Number("eps", 0)};
  if (const auto mode = ParseWord<EpsMode>("eps_mode", p.Text("eps_mode", "add_var")); mode.ok()) {
    w.eps_mode = mode.value();
  } else {
    Fail(mode.status());
  }
  return w;
}

void Request::Put(std::string_view name, const std::vector<double>& data, const std::vector<int64_t>& shape) {
  Json list = Json::array();
  for (const double v : data) list.push_back(Encode(v));
  outputs_[std::string(name)] = {{"dtype", "f64"}, {"shape", shape}, {"data", std::move(list)}};
}

void Request::PutMask(std::string_view name, const std::vector<uint8_t>& mask) {
  PutCells(name, std::vector<double>(mask.begin(), mask.end()));
}

void Request::PutBits(std::string_view name, const std::vector<bool>& bits) {
  Json list = Json::array();
  for (const bool v : bits) list.push_back(v);
  outputs_[std::string(name)] = {
      {"dtype", "bool"}, {"shape", {static_cast<int64_t>(bits.size())}}, {"data", std::move(list)}};
}

void Request::PutScalar(std::string_view name, double value) {
  if (std::isfinite(value)) {
    outputs_[std::string(name)] = value;
  } else {
    outputs_[std::string(name)] = {{"dtype", "f64"}, {"shape", Json::array()}, {"data", {Encode(value)}}};
  }
}

std::vector<std::string> Operations() {
  std::vector<std::string> names;
  for (const auto& family : {GroupOperations(), TimeOperations(), LossOperations(), SupervisedOperations(),
                             GapOperations(), RewardOperations(), TaskOperations()}) {
    for (const NamedOperation& op : family) names.emplace_back(op.name);
  }
  return names;
}

Json Answer(std::string_view line) {
  static const std::map<std::string, Operation, std::less<>> operations = [] {
    std::map<std::string, Operation, std::less<>> all;
    for (const auto& family : {GroupOperations(), TimeOperations(), LossOperations(), SupervisedOperations(),
                               GapOperations(), RewardOperations(), TaskOperations()}) {
      for (const NamedOperation& op : family) all[std::string(op.name)] = op.run;
    }
    return all;
  }();
  Json answer = {{"id", nullptr}};
  try {
    const Json request = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!request.is_object()) {
      answer["error"] = request.is_discarded() ? "the line is not JSON" : "the request is not an object";
      return answer;
    }
    if (const auto id = request.find("id"); id != request.end()) answer["id"] = *id;
    const auto op = request.find("op");
    if (op == request.end() || !op->is_string()) {
      answer["error"] = "op is missing; expected the name of an operation";
      return answer;
    }
    const auto run = operations.find(op->get<std::string>());
    if (run == operations.end()) {
      answer["unsupported"] = true;
      return answer;
    }
    Request decoded(request);
    Status status = decoded.status();
    if (status.ok()) status = run->second(decoded);
    if (status.ok()) {
      answer["outputs"] = std::move(decoded.outputs());
    } else if (status.code() == StatusCode::kUnimplemented) {
      answer["unsupported"] = true;
    } else {
      answer["error"] = status.message();
    }
  } catch (
      const std::exception& e) {  // the JSON library and the allocator throw; the next line is not affected
    answer.erase("outputs");
    answer["error"] = std::string("the request could not be handled: ") + e.what();
  }
  return answer;
}

}  // namespace tidepool::algorithms::conformance
