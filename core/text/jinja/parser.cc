// Expressions. Rules follow jinja2's parser.py in order of precedence.

#include "core/text/jinja/parser.h"

#include <charconv>

#include "core/text/jinja/parser_state.h"

namespace tidepool::text::jinja {

StatusOr<Block> Parse(std::string_view source) {
  TP_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

void Parser::Fail(const std::string& what) { Refuse(InvalidArgument(what)); }

void Parser::Refuse(Status status) {
  if (!failed()) status_ = status.At("line " + std::to_string(Current().line));
  at_ = tokens_.size() - 1;  // the end token: nothing more is taken
}

void Parser::CountChain(int links) {
  if (links > kChainMax)
    Refuse(ResourceExhausted("more than " + std::to_string(kChainMax) + " operators in a row"));
}

void Parser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) Fail("expected '" + std::string(op) + "', found '" + Current().text + "'");
}

std::string Parser::ExpectName() {
  if (Current().kind != TokenKind::kName) {
    Fail("expected a name, found '" + Current().text + "'");
    return {};
  }
  std::string name = Current().text;
  Next();
  return name;
}

ExpressionPtr Parser::New(ExpressionKind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Current().line;
  return node;
}

ExpressionPtr Parser::Binary(ExpressionKind kind, ExpressionPtr a, ExpressionPtr b) const {
  ExpressionPtr node = New(kind);
  node->line = a->line;
  node->parts.push_back(std::move(a));
  node->parts.push_back(std::move(b));
  return node;
}

ExpressionPtr Parser::ParseConditional() {
  const Nested nested(*this);
  ExpressionPtr value = ParseOr();
  for (int n = 0; SkipName("if"); CountChain(++n)) {
    ExpressionPtr node = New(ExpressionKind::kConditional);
    node->parts.push_back(ParseOr());
    node->parts.push_back(std::move(value));
    node->parts.push_back(SkipName("else") ? ParseConditional() : nullptr);
    value = std::move(node);
  }
  return value;
}

ExpressionPtr Parser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  for (int n = 0; SkipName("or"); CountChain(++n))
    left = Binary(ExpressionKind::kOr, std::move(left), ParseAnd());
  return left;
}

ExpressionPtr Parser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  for (int n = 0; SkipName("and"); CountChain(++n))
    left = Binary(ExpressionKind::kAnd, std::move(left), ParseNot());
  return left;
}

ExpressionPtr Parser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const Nested nested(*this);
  ExpressionPtr node = New(ExpressionKind::kNot);
  Next();
  node->parts.push_back(ParseNot());
  return node;
}

ExpressionPtr Parser::ParseCompare() {
  ExpressionPtr left = ParseSum();
  ExpressionPtr node;
  while (!failed()) {
    std::string op;
    for (const char* candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (AtOperator(candidate)) op = candidate;
    }
    if (AtName("in")) op = "in";
    const bool not_in = AtName("not") && Ahead().kind == TokenKind::kName && Ahead().text == "in";
    if (not_in) {
      op = "not in";
      Next();
    }
    if (op.empty()) break;
    Next();
    if (!node) {
      node = New(ExpressionKind::kCompare);
      node->parts.push_back(std::move(left));
    }
    node->operators.push_back(op);
    node->parts.push_back(ParseSum());
  }
  return node ? std::move(node) : std::move(left);
}

ExpressionPtr Parser::ParseArithmetic(std::initializer_list<std::string_view> operators,
                                      ExpressionPtr (Parser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  const auto at_one = [&] { return std::ranges::any_of(operators, [&](auto op) { return AtOperator(op); }); };
  for (int n = 0; at_one(); CountChain(++n)) {
    const std::string op = Current().text;
    Next();
    left = Binary(ExpressionKind::kArithmetic, std::move(left), (this->*operand)());
    left->text = op;
  }
  return left;
}

ExpressionPtr Parser::ParseConcat() {
  ExpressionPtr first = ParseProduct();
  if (!AtOperator("~")) return first;
  ExpressionPtr node = New(ExpressionKind::kConcat);
  node->parts.push_back(std::move(first));
  while (SkipOperator("~")) node->parts.push_back(ParseProduct());
  return node;
}

ExpressionPtr Parser::ParseUnary(bool with_filter) {
  const Nested nested(*this);
  ExpressionPtr node;
  if (AtOperator("-") || AtOperator("+")) {
    node = New(AtOperator("-") ? ExpressionKind::kNegate : ExpressionKind::kPlus);
    Next();
    node->parts.push_back(ParseUnary(/*with_filter=*/false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  return with_filter ? ParseFilters(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::ParsePrimary() {
  ExpressionPtr node = New(ExpressionKind::kLiteral);
  const Token& token = Current();
  switch (token.kind) {
    case TokenKind::kName:
      if (token.text == "true" || token.text == "True") {
        node->literal = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node->literal = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node->literal = Value::None();
      } else {
        node->kind = ExpressionKind::kName;
        node->text = token.text;
      }
      Next();
      return node;
    case TokenKind::kString:
      for (; Current().kind == TokenKind::kString; Next())
        node->text += Current().text;  // adjacent ones join
      node->literal = Value::String(&node->text);
      return node;
    case TokenKind::kInteger: {
      int64_t value = 0;
      const auto end = token.text.data() + token.text.size();
      if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
        Fail("the integer " + token.text + " is beyond 64 bits");
      }
      node->literal = Value::Int(value);
      Next();
      return node;
    }
    case TokenKind::kFloat: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      node->literal = Value::Float(value);
      Next();
      return node;
    }
    case TokenKind::kOperator:
      if (SkipOperator("(")) {
        node = ParseTuple(/*with_conditional=*/true);
        ExpectOperator(")");
        return node;
      }
      if (SkipOperator("[")) {
        node->kind = ExpressionKind::kList;
        while (!failed() && !AtOperator("]")) {
          node->parts.push_back(ParseExpression());
          if (!SkipOperator(",")) break;
        }
        ExpectOperator("]");
        return node;
      }
      if (AtOperator("{")) return ParseDict();
      break;
    default:
      break;
  }
  Fail(token.kind == TokenKind::kEnd ? "unexpected end of the template" : "unexpected '" + token.text + "'");
  return node;
}

ExpressionPtr Parser::ParseDict() {
  ExpressionPtr node = New(ExpressionKind::kDict);
  ExpectOperator("{");
  while (!failed() && !AtOperator("}")) {
    node->parts.push_back(ParseExpression());
    ExpectOperator(":");
    node->parts.push_back(ParseExpression());
    if (!SkipOperator(",")) break;
  }
  ExpectOperator("}");
  return node;
}

bool Parser::AtTupleEnd() const {
  return Current().kind == TokenKind::kPrintEnd || Current().kind == TokenKind::kBlockEnd ||
         Current().kind == TokenKind::kEnd || AtOperator(")") || AtName("recursive");
}

// `a`, `a, b`, `a,` or nothing (an empty tuple, in parentheses only).
ExpressionPtr Parser::ParseTuple(bool with_conditional) {
  const bool parenthesis =
      at_ > 0 && tokens_[at_ - 1].kind == TokenKind::kOperator && tokens_[at_ - 1].text == "(";
  ExpressionPtr tuple = New(ExpressionKind::kTuple);
  if (AtTupleEnd()) {
    if (!parenthesis) Fail("expected an expression");
    return tuple;
  }
  bool is_tuple = false;
  while (!failed()) {
    tuple->parts.push_back(with_conditional ? ParseConditional() : ParseOr());
    if (!SkipOperator(",")) break;
    is_tuple = true;
    if (AtTupleEnd()) break;
  }
  if (!is_tuple && !tuple->parts.empty()) return std::move(tuple->parts[0]);
  return tuple;
}

ExpressionPtr Parser::CallOf(ExpressionPtr callee) {
  ExpressionPtr call = New(ExpressionKind::kCall);
  call->parts.push_back(std::move(callee));
  ParseArguments(call.get());
  return call;
}

ExpressionPtr Parser::ParsePostfix(ExpressionPtr node) {
  int chain = 0;
  while (!failed()) {
    if (AtOperator(".") || AtOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (AtOperator("(")) {
      node = CallOf(std::move(node));
    } else {
      break;
    }
    CountChain(++chain);
  }
  return node;
}

ExpressionPtr Parser::ParseFilters(ExpressionPtr node) {
  int chain = 0;
  while (!failed()) {
    if (SkipOperator("|")) {
      node = ParseFilter(std::move(node));
    } else if (SkipName("is")) {
      node = ParseTest(std::move(node));
    } else if (AtOperator("(")) {
      node = CallOf(std::move(node));
    } else {
      break;
    }
    CountChain(++chain);
  }
  return node;
}

ExpressionPtr Parser::ParseFilter(ExpressionPtr input) {
  ExpressionPtr node = New(ExpressionKind::kFilter);
  node->text = ExpectName();
  while (SkipOperator(".")) node->text += "." + ExpectName();
  node->parts.push_back(std::move(input));
  if (AtOperator("(")) ParseArguments(node.get());
  return node;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr subject) {
  const bool negated = SkipName("not");
  ExpressionPtr node = New(ExpressionKind::kTest);
  node->text = ExpectName();
  node->parts.push_back(std::move(subject));
  const TokenKind kind = Current().kind;
  if (AtOperator("(")) {
    ParseArguments(node.get());
  } else if (kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
             AtOperator("[") || AtOperator("{") ||
             (kind == TokenKind::kName && !AtName("else") && !AtName("or") && !AtName("and"))) {
    if (AtName("is")) Fail("tests cannot be chained with is");
    node->parts.push_back(ParsePostfix(ParsePrimary()));
  }
  if (!negated) return node;
  ExpressionPtr result = New(ExpressionKind::kNot);
  result->parts.push_back(std::move(node));
  return result;
}

ExpressionPtr Parser::ParseSubscript(ExpressionPtr node) {
  if (SkipOperator(".")) {
    if (Current().kind == TokenKind::kInteger) {
      ExpressionPtr index = ParsePrimary();
      return Binary(ExpressionKind::kItem, std::move(node), std::move(index));
    }
    ExpressionPtr attribute = New(ExpressionKind::kAttribute);
    attribute->text = ExpectName();
    attribute->parts.push_back(std::move(node));
    return attribute;
  }
  ExpectOperator("[");
  ExpressionPtr bounds[3];
  bool slice = false;
  if (!AtOperator(":")) bounds[0] = ParseExpression();
  for (int i = 1; i < 3 && SkipOperator(":"); ++i) {
    slice = true;
    if (!AtOperator("]") && !AtOperator(":")) bounds[i] = ParseExpression();
  }
  if (AtOperator(",")) Refuse(Unimplemented("an index with a comma is not supported"));
  ExpectOperator("]");
  if (!slice) return Binary(ExpressionKind::kItem, std::move(node), std::move(bounds[0]));
  ExpressionPtr result = New(ExpressionKind::kSlice);
  result->parts.push_back(std::move(node));
  for (ExpressionPtr& bound : bounds) result->parts.push_back(std::move(bound));
  return result;
}

void Parser::ParseArguments(Expression* call) {
  ExpectOperator("(");
  while (!failed() && !AtOperator(")")) {
    if (AtOperator("*") || AtOperator("**")) {
      Refuse(Unimplemented("* and ** in a call are not supported"));
      return;
    }
    const bool named =
        Current().kind == TokenKind::kName && Ahead().kind == TokenKind::kOperator && Ahead().text == "=";
    if (named) {
      std::string name = ExpectName();
      ExpectOperator("=");
      call->named.emplace_back(std::move(name), ParseExpression());
    } else {
      if (!call->named.empty()) Fail("a positional argument follows a named one");
      call->parts.push_back(ParseExpression());
    }
    if (!SkipOperator(",")) break;
  }
  ExpectOperator(")");
}

}  // namespace tidepool::text::jinja
