#pragma once
// Runs a parsed template. After the first error `failed()` is true and every rule returns at once with
// an undefined value, so rules need not check each call. One rendering, one thread.

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
};

class Evaluator {
 public:
  explicit Evaluator(const RenderOptions& options);
  Status SetVariables(const nlohmann::ordered_json& variables);
  StatusOr<std::string> Run(const Block& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Limits and errors.
  bool Tick(int64_t operations = 1);  // false if failed
  [[nodiscard]] bool failed() const { return !status_.ok(); }
  Value Fail(std::string what);
  Value Exhausted(std::string what);
  Value String(std::string text);
  Value MakeList(List items);

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
  Arguments EvaluateArguments(const Expression& call, Frame* frame);

  // Expressions (expressions.cc).
  Value Evaluate(const Expression& node, Frame* frame);
  Value EvaluateNode(const Expression& node, Frame* frame);
  Value Arithmetic(const std::string& op, const Value& a, const Value& b);
  Value IntegerArithmetic(char op, int64_t a, int64_t b);
  Value Compare(const std::string& op, const Value& a, const Value& b);
  bool Contains(const Value& container, const Value& item);
  bool Same(const Value& a, const Value& b);
  Value Attribute(const Value& object, const std::string& name);
  Value Item(const Value& object, const Value& key);
  Value Slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Value LoopAttribute(const Value& loop, const std::string& name);
  Value FormatPercent(const std::string& format, const Value& values);
  List Iterate(const Value& value);  // the items of a for loop; an error if there are none
  std::string Str(const Value& value);
  bool IntegerArgument(const Value* value, int64_t* result, const char* what);

  // Filters and tests (filters.cc, filters_sequence.cc, predicates.cc).
  Value Filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool FilterText(const std::string& name, const Value& input, const Arguments& arguments, Value* result);
  bool FilterSequence(const std::string& name, const Value& input, const Arguments& arguments, Value* result);
  Value SelectFilter(const std::string& name, const Value& input, const Arguments& arguments);
  Value MapFilter(const Value& input, const Arguments& arguments);
  Value SortFilter(const Value& input, const Arguments& arguments);
  Value UniqueFilter(const Value& input, const Arguments& arguments);
  Value GroupByFilter(const Value& input, const Arguments& arguments);
  Value DictSortFilter(const Value& input, const Arguments& arguments);
  Value ExtremeFilter(bool largest, const Value& input, const Arguments& arguments);
  Value BatchFilter(const Value& input, const Arguments& arguments);
  Value IndentFilter(const Value& input, const Arguments& arguments);
  Value JsonFilter(const Value& input, const Arguments& arguments);
  Value RoundFilter(const Value& input, const Arguments& arguments);
  Value PathOf(const Value& item, const Value& path);  // "a.b.0" or an integer
  Value FoldCase(const Value& value);
  // What a filter compares of an item: its attribute, if one is named; in lower case unless case_sensitive.
  Value KeyOf(const Value& item, const Value* attribute, bool case_sensitive);
  List SortedByKey(std::vector<std::pair<Value, Value>> keyed, bool backwards);  // the second of each
  bool LessThan(const Value& a, const Value& b);
  bool Test(const std::string& name, const Value& subject, const Arguments& arguments);

  // Methods (methods.cc).
  static bool HasMethod(const Value& object, std::string_view name);
  Value CallMethod(const Value& self, const std::string& name, const Arguments& arguments);
  Value StringMethod(const std::string& self, const std::string& name, const Arguments& arguments);
  bool StringSplitMethod(const std::string& self, const std::string& name, const Arguments& arguments,
                         Value* result);
  bool StringPredicate(const std::string& self, const std::string& name, Value* result);
  Value StringFind(const std::string& self, const std::string& name, const Arguments& arguments);
  Value FormatBraces(const std::string& format, const Arguments& arguments);
  Value DictMethod(Dict& self, const std::string& name, const Arguments& arguments);
  Value ListMethod(const List& self, const std::string& name, const Arguments& arguments);
  Value LoopMethod(Loop& self, const std::string& name, const Arguments& arguments);
  Value StringFromTime(const Value* format);

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

// Text operations in code points (methods.cc).
int64_t LengthInCodePoints(std::string_view text);
std::string Strip(std::string_view text, const std::string* characters, bool left, bool right);
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to, int64_t count);
std::string TitleCase(std::string_view text);
std::string Capitalize(std::string_view text);
std::vector<std::string> SplitLines(std::string_view text);
std::vector<std::string> SplitSpace(std::string_view text, int64_t splits_max);

}  // namespace tidepool::text::jinja
