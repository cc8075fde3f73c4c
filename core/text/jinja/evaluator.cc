// Statements, scopes and calls.

#include "core/text/jinja/evaluator.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "core/text/jinja/parser.h"

namespace tidepool::text::jinja {
namespace {

constexpr int64_t kRangeMax = 100'000;  // as in jinja2's sandbox
const std::string kFunctions[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};

}  // namespace

StatusOr<std::unique_ptr<Template>> Template::Compile(std::string_view source) {
  auto result = std::unique_ptr<Template>(new Template());
  TP_ASSIGN_OR_RETURN(result->block_, Parse(source));
  return result;
}

StatusOr<std::string> Template::Render(const nlohmann::ordered_json& variables,
                                       const RenderOptions& options) const {
  Evaluator evaluator(options);
  TP_RETURN_IF_ERROR(evaluator.SetVariables(variables));
  return evaluator.Run(block_);
}

const Value* Arguments::Get(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Evaluator::Evaluator(const RenderOptions& options) : options_(options), heap_(options.limits.heap_bytes) {
  globals_ = NewFrame(nullptr);
  for (const std::string& name : kFunctions) globals_->variables.emplace_back(name, Value::Function(&name));
}

Status Evaluator::SetVariables(const nlohmann::ordered_json& variables) {
  for (const auto& [name, json] : variables.items()) {
    StatusOr<Value> value = heap_.FromJson(json);
    if (!value.ok()) return value.status().At(name);
    Define(globals_, heap_.NewString(name).string(), *value);
  }
  return OkStatus();
}

StatusOr<std::string> Evaluator::Run(const Block& block) {
  std::string out;
  out_ = &out;
  Execute(block, NewFrame(globals_));
  if (failed()) return status_;
  return out;
}

bool Evaluator::Tick(int64_t operations) {
  if (failed()) return false;
  operations_ += operations;
  if (operations_ > options_.limits.operations)
    Exhausted("the chat template took more than " + std::to_string(options_.limits.operations) +
              " operations");
  if (heap_.exhausted())
    Exhausted("the chat template's values took more than " + std::to_string(options_.limits.heap_bytes) +
              " bytes");
  return !failed();
}

Value Evaluator::Fail(std::string what) {
  if (!failed()) status_ = InvalidArgument("line " + std::to_string(line_) + ": " + std::move(what));
  return {};
}
Value Evaluator::Exhausted(std::string what) {
  if (!failed()) status_ = ResourceExhausted("line " + std::to_string(line_) + ": " + std::move(what));
  return {};
}
Value Evaluator::String(std::string text) {
  operations_ += static_cast<int64_t>(text.size()) / 64;
  return heap_.NewString(std::move(text));
}
Value Evaluator::MakeList(List items) {
  operations_ += static_cast<int64_t>(items.size()) / 4;
  return heap_.NewList(std::move(items));
}

Frame* Evaluator::NewFrame(Frame* parent) {
  heap_.Charge(64);
  return &frames_.emplace_back(Frame{parent, {}});
}

void Evaluator::Define(Frame* frame, std::string_view name, const Value& value) {
  for (auto& [known, slot] : frame->variables) {
    if (known == name) {
      slot = value;
      return;
    }
  }
  heap_.Charge(32);
  frame->variables.emplace_back(name, value);
}

Value Evaluator::Lookup(const std::string& name, const Frame* frame) {
  for (; frame != nullptr; frame = frame->parent) {
    for (const auto& [known, value] : frame->variables) {
      if (known == name) return value;
    }
  }
  return Value::Undefined(&name);
}

void Evaluator::Emit(std::string_view text) {
  operations_ += static_cast<int64_t>(text.size()) / 64;
  if (out_->size() + text.size() > static_cast<size_t>(options_.limits.output_bytes)) {
    Exhausted("the text is longer than " + std::to_string(options_.limits.output_bytes) + " bytes");
    return;
  }
  *out_ += text;
}

std::string Evaluator::Capture(const Block& block, Frame* frame) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Execute(block, frame);
  out_ = outer;
  return text;
}

Evaluator::Flow Evaluator::Execute(const Block& block, Frame* frame) {
  if (++depth_ > kEvaluationDepthMax) Exhausted("nested deeper than " + std::to_string(kEvaluationDepthMax));
  Flow flow = Flow::kNext;
  for (const auto& statement : block) {
    if (!Tick()) break;
    line_ = statement->line;
    flow = ExecuteOne(*statement, frame);
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Evaluator::Flow Evaluator::ExecuteOne(const Statement& statement, Frame* frame) {
  switch (statement.kind) {
    case StatementKind::kText:
      Emit(statement.text);
      return Flow::kNext;
    case StatementKind::kPrint:
      Emit(Str(Evaluate(*statement.value, frame)));
      return Flow::kNext;
    case StatementKind::kIf:
      return Execute(Truth(Evaluate(*statement.value, frame)) ? statement.body : statement.otherwise, frame);
    case StatementKind::kFor:
      return ExecuteFor(statement, frame);
    case StatementKind::kSet:
      Assign(statement.target, Evaluate(*statement.value, frame), frame);
      return Flow::kNext;
    case StatementKind::kSetBlock: {
      Value text = String(Capture(statement.body, NewFrame(frame)));
      if (statement.value) {
        Frame* inner = NewFrame(frame);
        Define(inner, "", text);  // the filter's input, see kFilter in expressions.cc
        text = Evaluate(*statement.value, inner);
      }
      Assign(statement.target, text, frame);
      return Flow::kNext;
    }
    case StatementKind::kFilter: {
      Frame* inner = NewFrame(frame);
      Define(inner, "", String(Capture(statement.body, NewFrame(frame))));
      Emit(Str(Evaluate(*statement.value, inner)));
      return Flow::kNext;
    }
    case StatementKind::kMacro: {
      Macro* macro = heap_.NewMacro();
      *macro = {&statement, frame};
      Define(frame, statement.text, Value::OfMacro(macro));
      return Flow::kNext;
    }
    case StatementKind::kCall: {
      Macro* caller = heap_.NewMacro();
      *caller = {&statement, frame};
      const Value value = Value::OfMacro(caller);
      Emit(Str(Call(*statement.value, frame, &value)));
      return Flow::kNext;
    }
    case StatementKind::kWith: {
      Frame* inner = NewFrame(frame);
      for (const auto& [name, value] : statement.parameters) Define(inner, name, Evaluate(*value, frame));
      return Execute(statement.body, inner);
    }
    case StatementKind::kGeneration:
      return Execute(statement.body, NewFrame(frame));
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::ExecuteFor(const Statement& statement, Frame* frame) {
  List items = Iterate(Evaluate(*statement.value, frame));
  if (statement.filter && !failed()) {
    List kept;
    for (const Value& item : items) {
      if (!Tick()) break;
      Frame* inner = NewFrame(frame);
      Assign(statement.target, item, inner);
      if (Truth(Evaluate(*statement.filter, inner))) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (failed()) return Flow::kNext;
  if (items.empty()) return Execute(statement.otherwise, NewFrame(frame));

  Loop* loop = heap_.NewLoop();
  loop->items = &MakeList(std::move(items)).list();
  Flow flow = Flow::kNext;
  // One frame for all rounds, emptied at each: names set in a round are gone in the next. A macro that
  // is defined in the body keeps its frame, so then each round has its own.
  bool defines_macro = false;
  for (const auto& inner : statement.body) {
    defines_macro = defines_macro || inner->kind == StatementKind::kMacro;
  }
  Frame* body = NewFrame(frame);
  for (; loop->index < static_cast<int64_t>(loop->items->size()) && Tick(); ++loop->index) {
    if (defines_macro) body = NewFrame(frame);
    body->variables.clear();
    Define(body, "loop", Value::OfLoop(loop));
    Assign(statement.target, (*loop->items)[static_cast<size_t>(loop->index)], body);
    flow = Execute(statement.body, body);
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Evaluator::Assign(const Target& target, const Value& value, Frame* frame) {
  if (failed()) return;
  if (!target.attribute.empty()) {
    const Value object = Lookup(target.names[0], frame);
    if (!object.is(Kind::kNamespace)) {
      Fail("cannot set the attribute '" + target.attribute + "' of '" + target.names[0] +
           "', which is no namespace() but " + TypeName(object));
      return;
    }
    heap_.Charge(32);
    operations_ += static_cast<int64_t>(object.dict().items.size()) / 8;
    object.dict().Set(Value::String(&target.attribute), value);
    return;
  }
  if (target.names.size() == 1 && !target.unpack) {
    Define(frame, target.names[0], value);
    return;
  }
  const List parts = Iterate(value);
  if (failed()) return;
  if (parts.size() != target.names.size()) {
    Fail("cannot take " + std::to_string(parts.size()) + " values apart into " +
         std::to_string(target.names.size()) + " names");
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) Define(frame, target.names[i], parts[i]);
}

Arguments Evaluator::EvaluateArguments(const Expression& call, Frame* frame) {
  Arguments arguments;
  for (size_t i = 1; i < call.parts.size(); ++i)
    arguments.positional.push_back(Evaluate(*call.parts[i], frame));
  for (const auto& [name, value] : call.named) arguments.named.emplace_back(name, Evaluate(*value, frame));
  return arguments;
}

Value Evaluator::Call(const Expression& call, Frame* frame, const Value* caller) {
  const Value callee = Evaluate(*call.parts[0], frame);
  Arguments arguments = EvaluateArguments(call, frame);
  if (!Tick()) return {};
  switch (callee.kind()) {
    case Kind::kMacro:
      return CallMacro(callee.macro(), std::move(arguments), caller);
    case Kind::kMethod:
      return CallMethod(callee.method().self, callee.method().name, arguments);
    case Kind::kFunction:
      return CallFunction(callee.string(), arguments);
    case Kind::kUndefined:
      return Fail("'" + (callee.name() == nullptr ? std::string("value") : *callee.name()) +
                  "' is undefined and cannot be called");
    default:
      return Fail("a value of type " + TypeName(callee) + " cannot be called");
  }
}

Value Evaluator::CallMacro(const Macro& macro, Arguments arguments, const Value* caller) {
  const Statement& definition = *macro.definition;
  Frame* frame = NewFrame(macro.closure);
  const auto& parameters = definition.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Value* given = arguments.Get(i, parameters[i].first);
    if (given != nullptr) {
      Define(frame, parameters[i].first, *given);
    } else if (parameters[i].second) {
      Define(frame, parameters[i].first, Evaluate(*parameters[i].second, frame));
    } else {
      Define(frame, parameters[i].first, Value::Undefined(&parameters[i].first));
    }
  }
  List rest;
  for (size_t i = parameters.size(); i < arguments.positional.size(); ++i)
    rest.push_back(arguments.positional[i]);
  Dict* named = heap_.NewDict();
  for (const auto& [name, value] : arguments.named) {
    bool known = false;
    for (const auto& parameter : parameters) known = known || parameter.first == name;
    if (!known) named->Set(String(std::string(name)), value);
  }
  Define(frame, "varargs", heap_.NewTuple(std::move(rest)));
  Define(frame, "kwargs", Value::DictOf(named));
  if (caller != nullptr) Define(frame, "caller", *caller);
  const int line = line_;
  const Value result = String(Capture(definition.body, frame));
  if (!failed()) line_ = line;
  return result;
}

Value Evaluator::StringFromTime(const Value* format) {
  if (format == nullptr || !format->is_string()) return Fail("strftime_now takes a format");
  const std::time_t seconds = options_.unix_time_s;
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return Fail("strftime_now: the time is out of range");
  char buffer[1024];
  const size_t length = std::strftime(buffer, sizeof(buffer), format->string().c_str(), &parts);
  return String(std::string(buffer, length));
}

Value Evaluator::CallFunction(const std::string& name, const Arguments& arguments) {
  if (name == "raise_exception") {
    const Value* message = arguments.Get(0, "message");
    return Fail("the chat template refused: " + (message == nullptr ? std::string() : Str(*message)));
  }
  if (name == "strftime_now") return StringFromTime(arguments.Get(0, "format"));
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    const size_t count = arguments.positional.size();
    if (count < 1 || count > 3) return Fail("range takes one to three integers");
    for (size_t i = 0; i < count; ++i) {
      if (!IntegerArgument(&arguments.positional[i], &bounds[i], "range")) return {};
    }
    if (count == 1) std::swap(bounds[0], bounds[1]);
    if (bounds[2] == 0) return Fail("range has a step of 0");
    List items;
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      if (static_cast<int64_t>(items.size()) >= kRangeMax) {
        return Fail("range is longer than " + std::to_string(kRangeMax));
      }
      items.push_back(Value::Int(i));
      if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return MakeList(std::move(items));
  }
  // namespace and dict: from a mapping or pairs, then named values.
  Dict* dict = heap_.NewDict();
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      dict->items = source.dict().items;
    } else {
      for (const Value& pair : Iterate(source)) {
        const List parts = Iterate(pair);
        if (failed()) return {};
        if (parts.size() != 2) return Fail(name + "() takes a mapping or pairs");
        dict->Set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) dict->Set(String(std::string(key)), value);
  heap_.Charge(static_cast<int64_t>(dict->items.size()) * 32);
  return name == "dict" ? Value::DictOf(dict) : Value::Namespace(dict);
}

}  // namespace tidepool::text::jinja
