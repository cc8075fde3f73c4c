#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>

#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

// A compiled pattern with a bound on backtracking, so that no response can stall a grader.
class Pattern {
 public:
  static StatusOr<std::shared_ptr<const Pattern>> Compile(const std::string& text) {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_DOTALL | PCRE2_UTF, &error, &at, nullptr);
    if (code == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      return InvalidArgument("format: bad regular expression at character " + std::to_string(at) + ": " +
                             reinterpret_cast<const char*>(message.data()));
    }
    return std::shared_ptr<const Pattern>(new Pattern(code));
  }
  ~Pattern() {
    pcre2_match_context_free(context_);
    pcre2_code_free(code_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  [[nodiscard]] Verdict Match(std::string_view text) const {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    const int rc =
        pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data, context_);
    pcre2_match_data_free(data);
    if (rc >= 0) return Ok(1);
    // Text that is no UTF-8 does not have the format; a pattern that backtracks too long is a fault of the
    // config.
    if (rc == PCRE2_ERROR_NOMATCH || (rc <= PCRE2_ERROR_UTF8_ERR1 && rc >= PCRE2_ERROR_UTF8_ERR21))
      return Ok(0);
    return BadData("the format's regular expression gave up (PCRE2 error " + std::to_string(rc) + ")");
  }

 private:
  explicit Pattern(pcre2_code* code) : code_(code), context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context_, 1'000'000);
    pcre2_set_heap_limit(context_, 64 * 1024);  // KiB
  }
  pcre2_code* code_;
  pcre2_match_context* context_;
};

StatusOr<Reward> MakeFormat(const std::string& argument) {
  if (argument.empty()) return Reward([](const RewardInput& in) { return Ok(in.ended ? 1 : 0); });
  TP_ASSIGN_OR_RETURN(const std::shared_ptr<const Pattern> pattern, Pattern::Compile(argument));
  return Reward([pattern](const RewardInput& in) { return pattern->Match(in.text); });
}

}  // namespace

TP_PLUGIN(Reward, format) {
  return {.argument = "regular expression",
          .doc = "1 if the response matches; without an argument, if it ended by itself",
          .make = MakeFormat};
}

}  // namespace tidepool::tasks
