#include "core/base/group_condition.h"

#include <charconv>
#include <cmath>
#include <string_view>

namespace tidepool {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

StatusOr<GroupCondition> ParseGroupCondition(const std::string& text) {
  const auto wrong = [&] {
    return InvalidArgument("'" + text +
                           "' is no condition; write NAME >= NUMBER or NAME <= NUMBER, for example "
                           "'reward >= 0.1'");
  };
  const size_t at = text.find_first_of("<>");
  if (at == std::string::npos || at + 1 >= text.size() || text[at + 1] != '=') return wrong();
  const std::string_view all = text, number = Trimmed(all.substr(at + 2));
  GroupCondition condition{.value = std::string(Trimmed(all.substr(0, at))), .at_least = text[at] == '>'};
  const auto read = std::from_chars(number.data(), number.data() + number.size(), condition.bound);
  if (condition.value.empty() || read.ec != std::errc() || read.ptr != number.data() + number.size() ||
      !std::isfinite(condition.bound))
    return wrong();
  return condition;
}

}  // namespace tidepool
