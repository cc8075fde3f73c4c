#include "core/tasks/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

namespace tidepool::tasks {

struct Pattern::Impl {
  explicit Impl(pcre2_code* c) : code(c), context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context, 1'000'000);
    pcre2_set_heap_limit(context, 64 * 1024);  // KiB
  }
  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  pcre2_code* code;
  pcre2_match_context* context;
};

Pattern::Pattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pattern::~Pattern() = default;

StatusOr<std::shared_ptr<const Pattern>> Pattern::Compile(const std::string& text) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_DOTALL | PCRE2_UTF, &error, &at, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return InvalidArgument("bad regular expression at character " + std::to_string(at) + ": " +
                           reinterpret_cast<const char*>(message.data()));
  }
  return std::shared_ptr<const Pattern>(new Pattern(std::make_unique<Impl>(code)));
}

StatusOr<std::optional<std::string_view>> Pattern::Find(std::string_view text) const {
  pcre2_match_data* data = pcre2_match_data_create(2, nullptr);
  const int rc = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data,
                             impl_->context);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  std::optional<std::string_view> found;
  if (rc >= 0) {  // 0: it has more groups than there is room for
    const size_t group = rc == 1 ? 0 : 1;
    const PCRE2_SIZE from = ends[2 * group], to = ends[2 * group + 1];
    if (from != PCRE2_UNSET && from <= to) found = text.substr(from, to - from);
  }
  pcre2_match_data_free(data);
  if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH || (rc <= PCRE2_ERROR_UTF8_ERR1 && rc >= PCRE2_ERROR_UTF8_ERR21))
    return found;
  return ResourceExhausted("the regular expression gave up (PCRE2 error " + std::to_string(rc) + ")");
}

}  // namespace tidepool::tasks
