#pragma once
// What a template calls by name on a value: filters (x | f), tests (x is t) and methods (x.m()), with the
// meaning of jinja2 and Python. One table holds them all; what is the same as a filter and as a method
// stands once.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/utf8.h"
#include "core/text/jinja/evaluator.h"

namespace tidepool::text::jinja {

// Where an operation is found; bits.
enum OperationKind : uint8_t {
  kFilter = 1,
  kTest = 2,
  kOfString = 4,  // methods
  kOfDict = 8,
  kOfList = 16,
  kOfTuple = 32,
  kOfLoop = 64,
};

// One call. Text arguments of filters may be any value, as in jinja2; those of methods are strings.
struct Operands {
  Evaluator& e;
  uint8_t kind;  // one of OperationKind
  const std::string& name;
  const Value& self;
  const Arguments& arguments;

  [[nodiscard]] const Value* Get(size_t place, std::string_view key) const {
    return arguments.Get(place, key);
  }
  [[nodiscard]] bool Flag(size_t place, std::string_view key) const { return arguments.Flag(place, key); }
  [[nodiscard]] std::string Text() const { return e.Str(self); }
  // False after an error. An integer that is not given stays as it is.
  bool Integer(size_t place, std::string_view key, int64_t* result) const {
    return e.IntegerArgument(Get(place, key), result, name);
  }
  bool TextArgument(const Value* value, std::string* text) const;
  // "the filter NAME " and what is wrong with its use.
  Value Fail(const std::string& what) const { return e.Fail(Title() + what); }
  Value Exhausted(const std::string& what) const { return e.Exhausted(Title() + what); }
  [[nodiscard]] std::string Title() const;
};

struct Operation {
  int kinds;
  std::string_view names;  // with blanks between them
  Value (*run)(const Operands&);
};
std::span<const Operation> TextOperations();      // operations_text.cc
std::span<const Operation> NumberOperations();    // operations_number.cc
std::span<const Operation> SequenceOperations();  // operations_sequence.cc
std::span<const Operation> TestOperations();      // operations_test.cc

// Shared by them: Python's str.strip (null: white space).
std::string Strip(std::string_view text, const std::string* characters, bool left, bool right);

}  // namespace tidepool::text::jinja
