#pragma once
// Runs a parsed template. After the first error `failed()` is true and every rule returns at once with
// an undefined value, so rules need not check each call. One rendering, one thread.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/text/jinja/ast.h"
#include "core/text/jinja/template.h"
#include "core/text/jinja/value.h"

namespace tidepool::text::jinja {

constexpr int kEvaluationDepthMax = 1200;  // a level takes under 1 KiB of stack

// Variables of a scope. Loops, macros, call blocks and `with` open one; `if` does not.
struct Frame {
  Frame* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string_view, Value>> named;
  // By place or name; null if not given.
  [[nodiscard]] const Value* Get(size_t place, std::string_view name) const;
  [[nodiscard]] bool Flag(size_t place, std::string_view name) const {  // given, and true
    const Value* value = Get(place, name);
    return value != nullptr && Truth(*value);
  }
  [[nodiscard]] Arguments From(size_t place) const {  // without those before that place
    return {
        {positional.begin() + static_cast<ptrdiff_t>(std::min(place, positional.size())), positional.end()},
        named};
  }
};

class Evaluator {
 public:
  explicit Evaluator(const RenderOptions& options);
  Status SetVariables(const nlohmann::ordered_json& variables);
  StatusOr<std::string> Run(const Block& block);

  // --- for operations
  // Limits and errors.
  bool Tick(int64_t operations = 1);  // false if failed
  [[nodiscard]] bool failed() const { return !status_.ok(); }
  Value Fail(std::string what);
  Value Exhausted(std::string what);
  Value String(std::string text);
  Value MakeList(List items);

  Heap& heap() { return heap_; }

  // Values (expressions.cc).
  std::string Str(const Value& value);
  List Iterate(const Value& value);  // the items of a for loop; an error if there are none
  bool Same(const Value& a, const Value& b);
  Value Arithmetic(const std::string& op, const Value& a, const Value& b);
  Value IntegerArithmetic(char op, int64_t a, int64_t b);
  Value Compare(const std::string& op, const Value& a, const Value& b);
  Value Attribute(const Value& object, const std::string& name);
  Value Item(const Value& object, const Value& key);
  Value FormatPercent(const std::string& format, const Value& values);
  bool IntegerArgument(const Value* value, int64_t* result, std::string_view what);

  // By name (operations.cc).
  Value Filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool Test(const std::string& name, const Value& subject, const Arguments& arguments);
  Value CallMethod(const Value& self, const std::string& name, const Arguments& arguments);
  static bool HasMethod(const Value& object, std::string_view name);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements (evaluator.cc).
  Flow Execute(const Block& block, Frame* frame);
  Flow ExecuteOne(const Statement& statement, Frame* frame);
  Flow ExecuteFor(const Statement& statement, Frame* frame);
  void Assign(const Target& target, const Value& value, Frame* frame);
  void Define(Frame* frame, std::string_view name, const Value& value);
  Frame* NewFrame(Frame* parent);
  void Emit(std::string_view text);
  std::string Capture(const Block& block, Frame* frame);  // what the block would put out
  Value Lookup(const std::string& name, const Frame* frame);

  // Calls (evaluator.cc).
  Value Call(const Expression& call, Frame* frame, const Value* caller);
  Value CallMacro(const Macro& macro, Arguments arguments, const Value* caller);
  Value CallFunction(const std::string& name, const Arguments& arguments);
  Value StringFromTime(const Value* format);
  Arguments EvaluateArguments(const Expression& call, Frame* frame);

  // Expressions (expressions.cc).
  Value Evaluate(const Expression& node, Frame* frame);
  Value EvaluateNode(const Expression& node, Frame* frame);
  bool Contains(const Value& container, const Value& item);
  Value Slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Value LoopAttribute(const Value& loop, const std::string& name);

  RenderOptions options_;
  Heap heap_;
  Status status_;
  int64_t operations_ = 0;
  int depth_ = 0;
  int line_ = 0;  // of the statement that runs
  std::deque<Frame> frames_;
  Frame* globals_ = nullptr;
  std::string* out_ = nullptr;
};

}  // namespace tidepool::text::jinja
