// conformance: answers ALGORITHMS-style checking requests, one JSON object a line, with the functions that
// the trainer uses. `conformance --operations` lists what is offered.
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "tests/conformance/request.h"

int main(int argc, char** argv) {
  using namespace tidepool::algorithms::conformance;
  if (argc == 2 && std::string_view(argv[1]) == "--operations") {
    for (const std::string& name : Operations()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 1) {
    std::printf(
        "usage: conformance < requests.jsonl > answers.jsonl\n"
        "One request a line: {\"id\": 1, \"op\": \"adv.rloo\", \"params\": {}, \"inputs\": {...}}; "
        "--operations lists the names.\n"
        "Example: echo "
        "'{\"id\":1,\"op\":\"metric.pass_at_k\",\"params\":{\"k\":2},\"inputs\":{\"correct\":[[1,0,0,0]]}}' "
        "| conformance\n");
    return argc == 2 && std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::cout << Answer(line).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  }
  return 0;
}
