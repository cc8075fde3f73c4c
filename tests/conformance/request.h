#pragma once
// One request of the conformance protocol, decoded: parameters, tensors, and the answer in the making.
//
// Reading is sticky: the first thing that is wrong becomes status(), later reads give empty values. An
// operation reads all it needs, returns status() if that is not ok, and computes. kUnimplemented becomes
// "unsupported", any other code "error".

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/cells.h"
#include "core/algorithms/options.h"
#include "core/algorithms/statistics.h"
#include "core/base/status.h"

namespace tidepool::algorithms::conformance {

using Json = nlohmann::json;

// An object of parameters. Absent and null are the same.
class Params {
 public:
  Params(const Json* object, std::string where, Status* status)
      : object_(object), where_(std::move(where)), status_(status) {}

  // Every name that is given (not null) has to be one of these.
  const Params& Known(std::initializer_list<std::string_view> names) const;
  [[nodiscard]] bool Has(std::string_view name) const { return Find(name) != nullptr; }
  [[nodiscard]] std::optional<double> Maybe(std::string_view name) const;
  [[nodiscard]] double Number(std::string_view name, double otherwise) const {
    return Maybe(name).value_or(otherwise);
  }
  [[nodiscard]] double Need(std::string_view name) const;
  [[nodiscard]] int64_t Integer(std::string_view name, int64_t otherwise) const;
  [[nodiscard]] int64_t NeedInteger(std::string_view name) const;
  [[nodiscard]] bool Flag(std::string_view name, bool otherwise = false) const;
  [[nodiscard]] std::string Text(std::string_view name, std::string_view otherwise) const;
  // Text that has to be one of these; kUnimplemented otherwise.
  [[nodiscard]] std::string Choice(std::string_view name, std::string_view otherwise,
                                   std::initializer_list<std::string_view> choices) const;
  [[nodiscard]] Params Sub(std::string_view name) const;
  [[nodiscard]] const Json* Find(std::string_view name) const;
  [[nodiscard]] const Json* object() const { return object_; }
  // The value of a registered option; nothing if absent.
  [[nodiscard]] Value OptionValue(std::string_view name) const;
  void Fail(Status status) const;

 private:
  const Json* object_;  // null: no parameters
  std::string where_;
  Status* status_;
};

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> data;
};

class Request {
 public:
  explicit Request(const Json& request);

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool ok() const { return status_.ok(); }
  void Fail(Status status);
  [[nodiscard]] const Params& params() const { return params_; }

  [[nodiscard]] bool Has(std::string_view input) const;
  Tensor Input(std::string_view name);                              // kInvalidArgument if absent
  std::vector<double> Vector(std::string_view name, int64_t size);  // -1: any number of values
  std::vector<double> Matrix(std::string_view name, const std::vector<int64_t>& shape);
  std::vector<double> MaybeMatrix(std::string_view name,
                                  const std::vector<int64_t>& shape);  // empty if absent
  std::vector<int64_t> Integers(std::string_view name, int64_t size);
  std::vector<uint8_t> Bits(std::string_view name, const std::vector<int64_t>& shape);
  // Ids of any kind (numbers or texts) as integers that are equal where they are.
  std::vector<int64_t> Ids(std::string_view name, int64_t size);
  double Scalar(std::string_view name);
  int64_t IntegerScalar(std::string_view name);
  const Json* Raw(std::string_view name) const;
  // The mask [B, T] as rows of cells; shape() is its shape from then on. A mask of one dimension is one row.
  // Without a mask all cells of `like` are valid.
  Cells MaskedCells(std::string_view like);
  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }

  // Aggregation of params `agg` (or of the params themselves).
  Aggregation Agg(const Params& params, AggregationMode otherwise, const Cells& cells);
  // `whiten`; nothing if it is null.
  std::optional<WhitenOptions> WhitenParam();

  void Put(std::string_view name, const std::vector<double>& data, const std::vector<int64_t>& shape);
  void PutCells(std::string_view name, const std::vector<double>& data) { Put(name, data, shape_); }
  void PutMask(std::string_view name, const std::vector<uint8_t>& mask);
  void PutBits(std::string_view name, const std::vector<bool>& bits);
  void PutVector(std::string_view name, const std::vector<double>& data) {
    Put(name, data, {static_cast<int64_t>(data.size())});
  }
  void PutScalar(std::string_view name, double value);
  void PutInteger(std::string_view name, int64_t value) { outputs_[std::string(name)] = value; }
  void PutJson(std::string_view name, Json value) { outputs_[std::string(name)] = std::move(value); }
  [[nodiscard]] Json& outputs() { return outputs_; }

 private:
  Tensor Decode(std::string_view name, const Json& value);

  Status status_;
  const Json* inputs_ = nullptr;
  Params params_;
  std::vector<int64_t> shape_;
  Json outputs_ = Json::object();
};

// Answers one line: an object with the id and outputs, unsupported or error.
Json Answer(std::string_view line);
// Names of all operations.
std::vector<std::string> Operations();

using Operation = Status (*)(Request& request);
struct NamedOperation {
  std::string_view name;
  Operation run;
};
// One list a family; together they are what Operations() names.
std::vector<NamedOperation> GroupOperations();
std::vector<NamedOperation> TimeOperations();
std::vector<NamedOperation> LossOperations();
std::vector<NamedOperation> SupervisedOperations();
std::vector<NamedOperation> GapOperations();
std::vector<NamedOperation> RewardOperations();
std::vector<NamedOperation> TaskOperations();

}  // namespace tidepool::algorithms::conformance
