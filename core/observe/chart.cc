#include "core/observe/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace tidepool::observe {
namespace {

// The drawing in its own units; CSS scales it to the card.
constexpr double kWidth = 520;
constexpr double kHeight = 230;
constexpr double kLeft = 50;
constexpr double kRight = 508;
constexpr double kTop = 12;
constexpr double kBottom = 204;

std::string Coordinate(double v) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1f", v);
  return buffer.data();
}

struct Axes {
  double x_lo, x_hi, y_lo, y_hi;
  [[nodiscard]] double X(double x) const { return kLeft + (x - x_lo) / (x_hi - x_lo) * (kRight - kLeft); }
  [[nodiscard]] double Y(double y) const { return kBottom - (y - y_lo) / (y_hi - y_lo) * (kBottom - kTop); }
};

std::string AxesSvg(const Axes& axes, const ChartOptions& options) {
  std::string svg;
  for (const double y : NiceTicks(axes.y_lo, axes.y_hi, 5)) {
    const std::string at = Coordinate(axes.Y(y));
    svg += "<line class=\"grid\" x1=\"" + Coordinate(kLeft) + "\" x2=\"" + Coordinate(kRight) + "\" y1=\"" +
           at + "\" y2=\"" + at + "\"/>";
    svg += "<text class=\"tick\" text-anchor=\"end\" x=\"" + Coordinate(kLeft - 7) + "\" y=\"" +
           Coordinate(axes.Y(y) + 3.5) + "\">" + AxisText(y, options.percent) + "</text>";
  }
  for (const double x : NiceTicks(axes.x_lo, axes.x_hi, 7)) {
    if (x != std::floor(x)) continue;  // steps are whole
    svg += "<text class=\"tick\" text-anchor=\"middle\" x=\"" + Coordinate(axes.X(x)) + "\" y=\"" +
           Coordinate(kBottom + 17) + "\">" + AxisText(x, false) + "</text>";
  }
  svg += "<line class=\"axis\" x1=\"" + Coordinate(kLeft) + "\" x2=\"" + Coordinate(kRight) + "\" y1=\"" +
         Coordinate(kBottom) + "\" y2=\"" + Coordinate(kBottom) + "\"/>";
  return svg;
}

std::string Polyline(const Axes& axes, const Points& points, const std::string& color, const char* css) {
  std::string path;
  for (const auto& [x, y] : points)
    path += Coordinate(axes.X(x)) + "," + Coordinate(axes.Y(std::clamp(y, axes.y_lo, axes.y_hi))) + " ";
  return "<polyline class=\"" + std::string(css) + "\" stroke=\"" + color + "\" points=\"" + path + "\"/>";
}

// Exponential moving average, started without bias: weights 0.8^k of the points so far.
Points Smoothed(const Points& points) {
  constexpr double kKeep = 0.8;
  Points out;
  double sum = 0;
  double weight = 0;
  for (const auto& [x, y] : points) {
    sum = kKeep * sum + y;
    weight = kKeep * weight + 1;
    out.emplace_back(x, sum / weight);
  }
  return out;
}

std::string Legend(const std::vector<Series>& series, bool percent) {
  std::string html = "<div class=\"legend\">";
  for (const Series& s : series) {
    html += "<span><i style=\"background:" + s.color + "\"></i>" + Escape(s.name);
    if (!s.points.empty()) html += " <b>" + AxisText(s.points.back().second, percent) + "</b>";
    html += "</span>";
  }
  return html + "</div>";
}

std::string Card(const ChartOptions& options, const std::vector<Series>& series, const Axes& axes,
                 const std::string& body) {
  nlohmann::json data = {{"box", {kLeft, kTop, kRight, kBottom}},
                         {"x", {axes.x_lo, axes.x_hi}},
                         {"y", {axes.y_lo, axes.y_hi}},
                         {"percent", options.percent},
                         {"series", nlohmann::json::array()}};
  for (const Series& s : series)
    data["series"].push_back({{"name", s.name}, {"color", s.color}, {"points", s.points}});
  std::string html = "<figure class=\"card chart\"><figcaption><h3>" + Escape(options.title) + "</h3>" +
                     Legend(series, options.percent) + "</figcaption>";
  html += "<svg viewBox=\"0 0 " + Coordinate(kWidth) + " " + Coordinate(kHeight) +
          "\" role=\"img\" aria-label=\"" + Escape(options.title) + "\" data-chart=\"" +
          Escape(data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\">" +
          AxesSvg(axes, options) + body + "</svg>";
  if (!options.note.empty()) html += "<p class=\"note\">" + Escape(options.note) + "</p>";
  return html + "</figure>\n";
}

// Whether a whole UTF-8 character starts at i, and how long it is.
size_t CharacterLength(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char c = byte(i);
  const size_t n = c < 0x80                ? 1
                   : c >= 0xC2 && c < 0xE0 ? 2
                   : c >= 0xE0 && c < 0xF0 ? 3
                   : c >= 0xF0 && c < 0xF5 ? 4
                                           : 0;
  if (n == 0 || i + n > text.size()) return 0;
  for (size_t k = 1; k < n; ++k) {
    if ((byte(i + k) & 0xC0U) != 0x80U) return 0;
  }
  return n;
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = CharacterLength(text, i);
    const char c = text[i];
    if (n == 0 || (n == 1 && static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t')) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    if (n > 1) {
      out += text.substr(i, n);
    } else {
      switch (c) {
        case '&':
          out += "&amp;";
          break;
        case '<':
          out += "&lt;";
          break;
        case '>':
          out += "&gt;";
          break;
        case '"':
          out += "&quot;";
          break;
        case '\'':
          out += "&#39;";
          break;
        default:
          out += c;
      }
    }
    i += n;
  }
  return out;
}

std::string AxisText(double value, bool percent) {
  std::array<char, 32> buffer{};
  if (percent) {
    const double p = 100 * value;
    std::snprintf(buffer.data(), buffer.size(), std::abs(p - std::round(p)) < 0.05 ? "%.0f%%" : "%.1f%%", p);
    return buffer.data();
  }
  const double size = std::abs(value);
  if (size >= 1e9) {
    std::snprintf(buffer.data(), buffer.size(), "%.3gG", value / 1e9);
  } else if (size >= 1e6) {
    std::snprintf(buffer.data(), buffer.size(), "%.3gM", value / 1e6);
  } else if (size >= 1e4) {
    std::snprintf(buffer.data(), buffer.size(), "%.3gk", value / 1e3);
  } else if (size >= 100) {
    std::snprintf(buffer.data(), buffer.size(), "%.0f", value);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%.3g", value);
  }
  return buffer.data();
}

std::vector<double> NiceTicks(double lo, double hi, int count) {
  std::vector<double> ticks;
  if (!(hi > lo) || count < 1) return ticks;
  const double rough = (hi - lo) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
  for (double k = std::ceil(lo / step - 1e-9); k * step <= hi + 1e-9 * step; ++k)
    ticks.push_back(k == 0 ? 0 : k * step);
  return ticks;
}

Points Thin(const Points& points, size_t most) {
  if (points.size() <= most) return points;
  Points out;
  for (size_t i = 0; i < most; ++i) {
    const size_t from = i * points.size() / most;
    const size_t to = (i + 1) * points.size() / most;
    double y = 0;
    for (size_t k = from; k < to; ++k) y += points[k].second;
    out.emplace_back(points[to - 1].first, y / static_cast<double>(to - from));
  }
  return out;
}

std::string LineChart(const ChartOptions& options, std::vector<Series> series) {
  std::erase_if(series, [](const Series& s) { return s.points.empty(); });
  if (series.empty()) return {};
  Axes axes{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
            std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (Series& s : series) {
    s.points = Thin(s.points, 400);
    for (const auto& [x, y] : s.points) {
      axes = {std::min(axes.x_lo, x), std::max(axes.x_hi, x), std::min(axes.y_lo, y), std::max(axes.y_hi, y)};
    }
  }
  if (axes.x_hi <= axes.x_lo) axes.x_hi = axes.x_lo + 1;
  const double slack =
      axes.y_hi > axes.y_lo ? 0.06 * (axes.y_hi - axes.y_lo) : std::max(0.5 * std::abs(axes.y_hi), 1e-3);
  // Zero is a landmark: a curve of values that are not negative starts there, if it is not far away.
  const bool from_zero = axes.y_lo >= 0 && axes.y_lo < 0.6 * axes.y_hi + 1e-12;
  axes.y_lo = options.y_min.value_or(from_zero ? 0 : axes.y_lo - slack);
  axes.y_hi = options.y_max.value_or(axes.y_hi + slack);
  if (axes.y_hi <= axes.y_lo) axes.y_hi = axes.y_lo + 1;
  std::string body;
  for (const Series& s : series) {
    const bool smooth = s.smooth && s.points.size() >= 12;
    body += Polyline(axes, s.points, s.color, smooth ? "line faint" : "line");
    if (smooth) body += Polyline(axes, Smoothed(s.points), s.color, "line");
    if (s.dots || s.points.size() == 1) {
      for (const auto& [x, y] : s.points) {
        body += "<circle r=\"3.4\" fill=\"#fff\" stroke-width=\"2\" stroke=\"" + s.color + "\" cx=\"" +
                Coordinate(axes.X(x)) + "\" cy=\"" + Coordinate(axes.Y(std::clamp(y, axes.y_lo, axes.y_hi))) +
                "\"/>";
      }
    }
  }
  return Card(options, series, axes, body);
}

std::string StackedBars(const ChartOptions& options, std::vector<Series> series) {
  std::erase_if(series, [](const Series& s) { return s.points.empty(); });
  if (series.empty()) return {};
  for (Series& s : series) s.points = Thin(s.points, 120);
  const size_t bars = series.front().points.size();
  const double first = series.front().points.front().first;
  const double last = series.front().points.back().first;
  const double pitch = bars > 1 ? (last - first) / static_cast<double>(bars - 1) : 1;
  double top = 0;
  for (size_t i = 0; i < bars; ++i) {
    double sum = 0;
    for (const Series& s : series) sum += s.points[i].second;
    top = std::max(top, sum);
  }
  const Axes axes{first - pitch / 2, last + pitch / 2, 0, top > 0 ? 1.06 * top : 1};
  std::string body;
  const double width = std::max(0.6, 0.82 * (kRight - kLeft) / static_cast<double>(bars));
  for (size_t i = 0; i < bars; ++i) {
    double below = 0;
    for (const Series& s : series) {
      const auto& [x, y] = s.points[i];
      const double height = axes.Y(below) - axes.Y(below + y);
      if (height > 0.05) {
        body += "<rect x=\"" + Coordinate(axes.X(x) - width / 2) + "\" y=\"" + Coordinate(axes.Y(below + y)) +
                "\" width=\"" + Coordinate(width) + "\" height=\"" + Coordinate(height) + "\" fill=\"" +
                s.color + "\"/>";
      }
      below += y;
    }
  }
  return Card(options, series, axes, body);
}

}  // namespace tidepool::observe
