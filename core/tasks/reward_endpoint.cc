#include "core/tasks/reward_endpoint.h"

#include <algorithm>
#include <charconv>

namespace tidepool::tasks {
namespace {

constexpr std::string_view kHttp = "http://";

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && port < 65536;
}

}  // namespace

StatusOr<RewardEndpoint> ParseRewardEndpoint(std::string_view text) {
  const auto wrong = [&](const std::string& expected) {
    return InvalidArgument("found '" + std::string(text) + "'; expected " + expected);
  };
  if (text.starts_with("unix:")) return RewardEndpoint();
  if (text.starts_with("https://")) {
    return wrong(
        "http://HOST:PORT/PATH: a reward server is asked without encryption, so keep it on this "
        "machine or behind a tunnel that ends here");
  }
  if (!text.starts_with(kHttp)) {
    const size_t colon = text.rfind(':');
    const bool has_port = colon != std::string_view::npos && colon > 0 && IsPort(text.substr(colon + 1));
    if (text.find("://") != std::string_view::npos || !has_port)
      return wrong("unix:PATH or HOST:PORT (gRPC), or http://HOST:PORT/PATH (JSON over HTTP)");
    return RewardEndpoint();
  }
  RewardEndpoint out{.http = true, .host = {}, .port = "80", .path = "/"};
  std::string_view place = text.substr(kHttp.size());
  if (const size_t slash = place.find_first_of("/?"); slash != std::string_view::npos) {
    out.path = (place[slash] == '?' ? "/" : "") + std::string(place.substr(slash));
    place = place.substr(0, slash);
  }
  // Else a request could be written into the path.
  const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!plain || text.find('#') != std::string_view::npos || place.find('@') != std::string_view::npos)
    return wrong("http://HOST:PORT/PATH without spaces, names of users and #parts");
  const bool bracketed = place.starts_with('[');
  const size_t close = bracketed ? place.find(']') : std::string_view::npos;
  const size_t colon =
      bracketed && close != std::string_view::npos ? place.find(':', close) : place.find(':');
  if (colon != std::string_view::npos) {
    out.port = place.substr(colon + 1);
    place = place.substr(0, colon);
  }
  if (bracketed) place = place.ends_with(']') ? place.substr(1, place.size() - 2) : "";
  out.host = place;
  if (out.host.empty() || !IsPort(out.port)) return wrong("http://HOST:PORT/PATH");
  return out;
}

}  // namespace tidepool::tasks
