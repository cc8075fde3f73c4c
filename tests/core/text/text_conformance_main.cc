// Reads one JSON request a line and writes one answer a line: tests/conformance_text/text_operations.h, and
// for the scripts in tests/interop also {"op": "gguf.import", "file", "out"} and {"op": "tokenizer.bench",
// "tokenizer", "file", "rounds"}.

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/files/mapped_file.h"
#include "core/model/gguf_import.h"
#include "tests/conformance_text/text_operations.h"

namespace {

using Json = nlohmann::ordered_json;

Json Bench(const Json& request) {
  using Clock = std::chrono::steady_clock;
  const auto loaded = Clock::now();
  auto tokenizer = tidepool::text::Tokenizer::Load(request["tokenizer"].get<std::string>());
  if (!tokenizer.ok()) return {{"error", tokenizer.status().ToString()}};
  const double load_s = std::chrono::duration<double>(Clock::now() - loaded).count();
  auto text = tidepool::files::ReadSmallFile(request["file"].get<std::string>(), 1 << 30);
  if (!text.ok()) return {{"error", text.status().ToString()}};
  Json seconds = Json::array();
  size_t tokens = 0;
  for (int round = 0; round < request["rounds"].get<int>(); ++round) {
    const auto start = Clock::now();
    const auto ids = (*tokenizer)->Encode(*text);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (!ids.ok()) return {{"error", ids.status().ToString()}};
    tokens = ids->size();
  }
  return {{"load_s", load_s}, {"seconds", seconds}, {"tokens", tokens}, {"bytes", text->size()}};
}

}  // namespace

int main() {
  tidepool::text::TextConformance conformance;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    Json answer;
    if (request.is_object() && request.value("op", "") == "gguf.import") {
      const tidepool::Status status =
          tidepool::model::ImportGguf(request["file"].get<std::string>(), request["out"].get<std::string>());
      answer = status.ok() ? Json{{"ok", true}} : Json{{"error", status.ToString()}};
    } else if (request.is_object() && request.value("op", "") == "tokenizer.bench") {
      answer = Bench(request);
    } else if (auto result = conformance.Answer(request)) {
      answer = std::move(*result);
    } else {
      answer = {{"unsupported", true}};
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
