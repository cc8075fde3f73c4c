// Statements.

#include <algorithm>

#include "core/text/jinja/parser_state.h"

namespace tidepool::text::jinja {

StatusOr<Block> Parser::Run() {
  Block block = ParseBlock({});
  if (!failed() && Current().kind != TokenKind::kEnd) Fail("unexpected '" + Current().text + "'");
  if (failed()) return status_;
  return block;
}

std::unique_ptr<Statement> Parser::NewStatement(StatementKind kind) const {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = Current().line;
  return statement;
}

void Parser::EndTag() {
  if (Current().kind != TokenKind::kBlockEnd) {
    Fail("expected the end of the tag, found '" + Current().text + "'");
    return;
  }
  Next();
}

// Stops with the current token at the name inside one of the end tags, or at the end of the template.
Block Parser::ParseBlock(std::initializer_list<std::string_view> ends) {
  const Nested nested(*this);
  Block block;
  while (!failed()) {
    switch (Current().kind) {
      case TokenKind::kText: {
        auto statement = NewStatement(StatementKind::kText);
        statement->text = Current().text;
        block.push_back(std::move(statement));
        Next();
        break;
      }
      case TokenKind::kPrintBegin: {
        auto statement = NewStatement(StatementKind::kPrint);
        Next();
        statement->value = ParseTuple(/*with_conditional=*/true);
        if (!failed() && Current().kind != TokenKind::kPrintEnd)
          Fail("expected '}}', found '" + Current().text + "'");
        Next();
        block.push_back(std::move(statement));
        break;
      }
      case TokenKind::kBlockBegin:
        Next();
        if (Current().kind == TokenKind::kName &&
            std::find(ends.begin(), ends.end(), Current().text) != ends.end()) {
          return block;
        }
        ParseStatement(&block);
        break;
      default:
        if (ends.size() > 0)
          Fail("the template ends inside a block that waits for " + std::string(*(ends.end() - 1)));
        return block;
    }
  }
  return block;
}

void Parser::ParseStatement(Block* block) {
  const std::string name = Current().kind == TokenKind::kName ? Current().text : std::string();
  std::unique_ptr<Statement> statement;
  if (name == "if") {
    statement = ParseIf();
  } else if (name == "for") {
    statement = ParseFor();
  } else if (name == "set") {
    statement = ParseSet();
  } else if (name == "macro") {
    statement = ParseMacro();
  } else if (name == "call") {
    statement = ParseCall();
  } else if (name == "filter") {
    statement = ParseFilterBlock();
  } else if (name == "with") {
    statement = ParseWith();
  } else if (name == "generation") {
    statement = NewStatement(StatementKind::kGeneration);
    Next();
    EndTag();
    statement->body = ParseBlock({"endgeneration"});
    Next();
    EndTag();
  } else if (name == "break" || name == "continue") {
    if (loops_ == 0) Fail(name + " outside of a loop");
    statement = NewStatement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
    Next();
    EndTag();
  } else if (name == "print") {
    statement = NewStatement(StatementKind::kPrint);
    Next();
    statement->value = ParseTuple(/*with_conditional=*/true);
    EndTag();
  } else if (name == "extends" || name == "block" || name == "include" || name == "import" ||
             name == "from" || name == "do" || name == "autoescape" || name == "trans") {
    Refuse(Unimplemented("the tag '" + name + "' is not supported in chat templates"));
  } else {
    Fail("unknown tag '" + (name.empty() ? Current().text : name) + "'");
  }
  if (statement) block->push_back(std::move(statement));
}

Target Parser::ParseTarget(bool with_attribute) {
  Target target;
  const bool parenthesis = SkipOperator("(");
  target.names.push_back(ExpectName());
  if (with_attribute && !parenthesis && SkipOperator(".")) {
    target.attribute = ExpectName();
    return target;
  }
  while (SkipOperator(",")) {
    target.unpack = true;
    if (Current().kind != TokenKind::kName || AtName("in")) break;
    target.names.push_back(ExpectName());
  }
  if (parenthesis) ExpectOperator(")");
  for (const std::string& name : target.names) {
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) Fail("cannot assign to '" + name + "'");
    }
  }
  return target;
}

std::unique_ptr<Statement> Parser::ParseIf() {
  auto statement = NewStatement(StatementKind::kIf);
  Next();
  statement->value = ParseTuple(/*with_conditional=*/false);
  EndTag();
  statement->body = ParseBlock({"elif", "else", "endif"});
  // Each elif is an if in the other branch; the chain is built in a loop, so its length is no depth here.
  Statement* last = statement.get();
  int chain = 0;
  while (!failed() && AtName("elif")) {
    if (++chain > 4 * kDepthMax)
      Refuse(ResourceExhausted("more than " + std::to_string(4 * kDepthMax) + " elif"));
    auto next = NewStatement(StatementKind::kIf);
    Next();
    next->value = ParseTuple(/*with_conditional=*/false);
    EndTag();
    next->body = ParseBlock({"elif", "else", "endif"});
    Statement* added = next.get();
    last->otherwise.push_back(std::move(next));
    last = added;
  }
  if (SkipName("else")) {
    EndTag();
    last->otherwise = ParseBlock({"endif"});
  }
  Next();
  EndTag();
  return statement;
}

std::unique_ptr<Statement> Parser::ParseFor() {
  auto statement = NewStatement(StatementKind::kFor);
  Next();
  statement->target = ParseTarget(/*with_attribute=*/false);
  if (!SkipName("in")) Fail("expected 'in', found '" + Current().text + "'");
  statement->value = ParseTuple(/*with_conditional=*/false);
  if (SkipName("if")) statement->filter = ParseExpression();
  if (AtName("recursive")) Refuse(Unimplemented("recursive loops are not supported"));
  EndTag();
  ++loops_;
  statement->body = ParseBlock({"else", "endfor"});
  --loops_;
  if (SkipName("else")) {
    EndTag();
    statement->otherwise = ParseBlock({"endfor"});
  }
  Next();
  EndTag();
  return statement;
}

std::unique_ptr<Statement> Parser::ParseUntil(std::string_view end, std::unique_ptr<Statement> statement) {
  EndTag();
  const bool runs_elsewhere =
      statement->kind == StatementKind::kMacro || statement->kind == StatementKind::kCall;
  const int loops = std::exchange(loops_, runs_elsewhere ? 0 : loops_);
  statement->body = ParseBlock({end});
  loops_ = loops;
  Next();
  EndTag();
  return statement;
}

std::unique_ptr<Statement> Parser::ParseSet() {
  auto statement = NewStatement(StatementKind::kSet);
  Next();
  statement->target = ParseTarget(/*with_attribute=*/true);
  if (SkipOperator("=")) {
    statement->value = ParseTuple(/*with_conditional=*/true);
    EndTag();
    return statement;
  }
  statement->kind = StatementKind::kSetBlock;
  for (int n = 0; SkipOperator("|"); CountChain(++n))
    statement->value = ParseFilter(std::move(statement->value));
  return ParseUntil("endset", std::move(statement));
}

void Parser::ParseParameters(Statement* statement) {
  ExpectOperator("(");
  while (!failed() && !AtOperator(")")) {
    std::string name = ExpectName();
    ExpressionPtr fallback;
    if (SkipOperator("=")) {
      fallback = ParseExpression();
    } else if (!statement->parameters.empty() && statement->parameters.back().second) {
      Fail("a parameter without a default follows one with a default");
    }
    statement->parameters.emplace_back(std::move(name), std::move(fallback));
    if (!SkipOperator(",")) break;
  }
  ExpectOperator(")");
}

std::unique_ptr<Statement> Parser::ParseMacro() {
  auto statement = NewStatement(StatementKind::kMacro);
  Next();
  statement->text = ExpectName();
  ParseParameters(statement.get());
  return ParseUntil("endmacro", std::move(statement));
}

std::unique_ptr<Statement> Parser::ParseCall() {
  auto statement = NewStatement(StatementKind::kCall);
  Next();
  if (AtOperator("(")) ParseParameters(statement.get());
  statement->value = ParseExpression();
  if (!failed() && statement->value->kind != ExpressionKind::kCall) Fail("expected a call after 'call'");
  return ParseUntil("endcall", std::move(statement));
}

std::unique_ptr<Statement> Parser::ParseFilterBlock() {
  auto statement = NewStatement(StatementKind::kFilter);
  Next();
  statement->value = ParseFilter(nullptr);
  for (int n = 0; SkipOperator("|"); CountChain(++n))
    statement->value = ParseFilter(std::move(statement->value));
  return ParseUntil("endfilter", std::move(statement));
}

std::unique_ptr<Statement> Parser::ParseWith() {
  auto statement = NewStatement(StatementKind::kWith);
  Next();
  while (!failed() && Current().kind != TokenKind::kBlockEnd) {
    std::string name = ExpectName();
    ExpectOperator("=");
    statement->parameters.emplace_back(std::move(name), ParseExpression());
    if (!SkipOperator(",")) break;
  }
  return ParseUntil("endwith", std::move(statement));
}

}  // namespace tidepool::text::jinja
