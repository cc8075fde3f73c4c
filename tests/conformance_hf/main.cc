// conformance-hf: answers questions about model folders, tokenizers, templates and files with the product's
// own functions, one JSON object a line (docs/conformance_hf.md).
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/json_text.h"
#include "tests/conformance_hf/model_operations.h"
#include "tests/conformance_hf/supervisor.h"
#include "tests/conformance_text/text_operations.h"

namespace tidepool::conformance_hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 512;

std::string Line(const Json& answer) { return answer.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json Failed(const Json& request, const std::string& why) {
  Json answer = Json::object();
  answer["id"] = request.is_object() && request.contains("id") ? request["id"] : Json(nullptr);
  answer["error"] = why.empty() ? "unknown" : why;
  return answer;
}

// Nothing (discarded) if the line is not JSON or nested deeper than kDepthMax.
Json Parse(const std::string& line) {
  if (!JsonDepthWithin(line, kDepthMax)) return Json(Json::value_t::discarded);
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

class Program {
 public:
  std::string Answer(const std::string& line) {
    Json request;
    try {
      request = Parse(line);
      if (!request.is_object()) return Line(Failed(request, "the line is no JSON object"));
      if (!request.contains("op") || !request["op"].is_string())
        return Line(Failed(request, "the request has no string \"op\""));
      if (std::optional<Json> answer = text_.Answer(request); answer.has_value()) return Line(*answer);
      std::optional<StatusOr<Json>> result = models_.Run(request);
      if (!result.has_value()) {
        Json answer = {{"id", request.contains("id") ? request["id"] : Json(nullptr)}};
        answer["unsupported"] = true;
        return Line(answer);
      }
      if (!result->ok()) return Line(Failed(request, result->status().ToString()));
      Json answer = {{"id", request.contains("id") ? request["id"] : Json(nullptr)}};
      answer.update(**result);
      return Line(answer);
    } catch (const std::exception& e) {  // the door: LibTorch's errors, memory
      return Line(Failed(request, std::string("INTERNAL: ") + e.what()));
    }
  }

 private:
  text::TextConformance text_;
  ModelOperations models_;
};

}  // namespace
}  // namespace tidepool::conformance_hf

int main(int argc, char** argv) {
  using namespace tidepool::conformance_hf;
  // Threads that spin while they wait make small models many times slower on a busy machine. The OpenMP
  // library reads this when it is loaded, so the program starts itself again.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
  }
  SupervisorOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--deadline-s") == 0 && i + 1 < argc) {
      options.deadline_s = options.first_deadline_s = std::strtod(argv[++i], nullptr);
    } else {
      std::fprintf(stderr,
                   "usage: conformance-hf [--deadline-s SECONDS]\n"
                   "Reads one JSON object a line, writes one a line. Example:\n"
                   "  echo '{\"id\":1,\"op\":\"model.check\",\"model\":\"models/smollm2-135m-instruct\"}' | "
                   "build/bin/conformance-hf\n");
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
  }
  std::unique_ptr<Program> program;  // of the child
  return Supervise(
      options,
      [&](const std::string& line) {
        if (program == nullptr) program = std::make_unique<Program>();
        return program->Answer(line);
      },
      [](const std::string& line, const std::string& why) {
        return Line(Failed(Parse(line), "UNAVAILABLE: " + why));
      });
}
