#include "core/text/jinja/operations.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidepool::text::jinja {
namespace {

uint8_t MethodsOf(const Value& object) {
  switch (object.kind()) {
    case Kind::kString:
      return kOfString;
    case Kind::kDict:
      return kOfDict;
    case Kind::kList:
      return kOfList;
    case Kind::kTuple:
      return kOfTuple;
    case Kind::kLoop:
      return kOfLoop;
    default:
      return 0;
  }
}

// Null: there is none.
const Operation* Find(uint8_t kind, std::string_view name) {
  static const auto all = [] {
    std::map<std::pair<uint8_t, std::string_view>, const Operation*> table;
    for (const auto& part : {TextOperations(), NumberOperations(), SequenceOperations(), TestOperations()}) {
      for (const Operation& operation : part) {
        for (std::string_view rest = operation.names; !rest.empty();) {
          const std::string_view one = rest.substr(0, rest.find(' '));
          rest.remove_prefix(std::min(rest.size(), one.size() + 1));
          for (int bit = 1; bit <= operation.kinds; bit *= 2) {
            if ((operation.kinds & bit) != 0) table[{static_cast<uint8_t>(bit), one}] = &operation;
          }
        }
      }
    }
    return table;
  }();
  const auto it = all.find({kind, name});
  return it == all.end() ? nullptr : it->second;
}

}  // namespace

std::string Operands::Title() const {
  return std::string(kind == kFilter ? "the filter "
                     : kind == kTest ? "the test "
                                     : "the method ") +
         name + " ";
}

bool Operands::TextArgument(const Value* value, std::string* text) const {
  if (value != nullptr && (kind == kFilter || value->is_string())) {
    *text = e.Str(*value);
    return true;
  }
  Fail("takes a string" + (value == nullptr ? std::string() : ", not " + TypeName(*value)));
  return false;
}

Value Evaluator::Filter(const std::string& name, const Value& input, const Arguments& arguments) {
  const Operation* filter = Find(kFilter, name);
  return filter != nullptr ? filter->run({*this, kFilter, name, input, arguments})
                           : Fail("no filter is named '" + name + "'");
}

bool Evaluator::Test(const std::string& name, const Value& subject, const Arguments& arguments) {
  if (failed()) return false;
  const Operation* test = Find(kTest, name);
  return Truth(test != nullptr ? test->run({*this, kTest, name, subject, arguments})
                               : Fail("no test is named '" + name + "'"));
}

bool Evaluator::HasMethod(const Value& object, std::string_view name) {
  return Find(MethodsOf(object), name) != nullptr;
}

Value Evaluator::CallMethod(const Value& self, const std::string& name, const Arguments& arguments) {
  const uint8_t kind = MethodsOf(self);
  if (self.is_string()) operations_ += static_cast<int64_t>(self.string().size()) / 64;
  return Find(kind, name)->run({*this, kind, name, self, arguments});
}

}  // namespace tidepool::text::jinja
