#pragma once
// Inside of the parser: a recursive descent over tokens. After the first error `failed()` is true, the
// token is the end token, and every rule returns at once, so rules need not check each call.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/text/jinja/ast.h"
#include "core/text/jinja/lexer.h"

namespace tidepool::text::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  StatusOr<Block> Run();

 private:
  static constexpr int kDepthMax = 120;  // of nested expressions and blocks together
  static constexpr int kChainMax = 100;

  // Tokens.
  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool AtOperator(std::string_view op) const {
    return Current().kind == TokenKind::kOperator && Current().text == op;
  }
  bool AtName(std::string_view name) const {
    return Current().kind == TokenKind::kName && Current().text == name;
  }
  bool SkipOperator(std::string_view op) { return AtOperator(op) ? (Next(), true) : false; }
  bool SkipName(std::string_view name) { return AtName(name) ? (Next(), true) : false; }
  void ExpectOperator(std::string_view op);
  std::string ExpectName();
  [[nodiscard]] bool failed() const { return !status_.ok(); }
  void Fail(const std::string& what);
  void Refuse(Status status);

  // Counts nesting; an error beyond kDepthMax.
  struct Nested {
    explicit Nested(Parser& p) : parser(p) {
      if (++parser.depth_ > kDepthMax) {
        parser.Refuse(ResourceExhausted("nested deeper than " + std::to_string(kDepthMax)));
      }
    }
    ~Nested() { --parser.depth_; }
    Parser& parser;
  };

  // A chain of operators is as deep a tree as brackets are.
  void CountChain(int links);

  // Expressions (parser.cc); never null.
  ExpressionPtr New(ExpressionKind kind) const;
  ExpressionPtr Binary(ExpressionKind kind, ExpressionPtr a, ExpressionPtr b) const;
  ExpressionPtr ParseExpression() { return ParseConditional(); }
  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  // Operands joined by some of the operators, from left to right.
  ExpressionPtr ParseArithmetic(std::initializer_list<std::string_view> operators,
                                ExpressionPtr (Parser::*operand)());
  ExpressionPtr ParseSum() { return ParseArithmetic({"+", "-"}, &Parser::ParseConcat); }
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct() { return ParseArithmetic({"*", "/", "//", "%"}, &Parser::ParsePower); }
  ExpressionPtr ParsePower() { return ParseArithmetic({"**"}, &Parser::ParseOperand); }
  ExpressionPtr ParseOperand() { return ParseUnary(/*with_filter=*/true); }
  ExpressionPtr ParseUnary(bool with_filter);
  ExpressionPtr ParsePrimary();
  ExpressionPtr CallOf(ExpressionPtr callee);
  ExpressionPtr ParsePostfix(ExpressionPtr node);
  ExpressionPtr ParseFilters(ExpressionPtr node);
  ExpressionPtr ParseFilter(ExpressionPtr input);  // after `|`
  ExpressionPtr ParseTest(ExpressionPtr node);     // after `is`
  ExpressionPtr ParseSubscript(ExpressionPtr node);
  ExpressionPtr ParseDict();
  ExpressionPtr ParseTuple(bool with_conditional);
  void ParseArguments(Expression* call);  // at `(`
  bool AtTupleEnd() const;

  // Statements (parser_statements.cc).
  Block ParseBlock(std::initializer_list<std::string_view> ends);  // stops at the name of an end tag
  void ParseStatement(Block* block);
  void EndTag();  // the closing delimiter of a block tag
  std::unique_ptr<Statement> NewStatement(StatementKind kind) const;
  Target ParseTarget(bool with_attribute);
  // The rest of a tag, its body up to the tag `end`, and that tag.
  std::unique_ptr<Statement> ParseUntil(std::string_view end, std::unique_ptr<Statement> statement);
  std::unique_ptr<Statement> ParseIf();
  std::unique_ptr<Statement> ParseFor();
  std::unique_ptr<Statement> ParseSet();
  std::unique_ptr<Statement> ParseMacro();
  std::unique_ptr<Statement> ParseCall();
  std::unique_ptr<Statement> ParseFilterBlock();
  std::unique_ptr<Statement> ParseWith();
  void ParseParameters(Statement* statement);  // at `(`

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // for blocks that are open; break and continue need one
  Status status_;
};

}  // namespace tidepool::text::jinja
