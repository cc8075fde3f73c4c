#include "core/environments/drawing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numbers>
#include <optional>
#include <utility>

#include "core/base/limited_call.h"
#include "core/environments/toy_text.h"

namespace tidepool::environments {
namespace {

// The picture: title, scene, actions, curve of the return so far.
constexpr int kWidth = 640, kHeight = 440;
constexpr int kSceneTop = 44, kSceneHeight = 280, kMiddle = kWidth / 2;
constexpr int kActionsTop = 336, kCurveTop = 376, kCurveHeight = 40, kCurveLeft = 70, kCurveRight = 610;
constexpr double kHold_s = 1.5;  // the end stays so long before it begins again

// "12.5", "3", "-0.25": at most `digits` behind the point.
std::string Number(double value, int digits = 1) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  std::string out = text;
  if (out.find('.') != std::string::npos) {
    while (out.back() == '0') out.pop_back();
    if (out.back() == '.') out.pop_back();
  }
  return out == "-0" ? "0" : out;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

// Writes animations over the frames of one episode: frame 0 is the start, frame `steps` the end, which is
// held.
class Film {
 public:
  Film(int64_t steps, double step_s)
      : steps_(steps),
        hold_(static_cast<int64_t>(std::ceil(kHold_s / step_s))),
        duration_s_(static_cast<double>(steps + hold_) * step_s) {}

  using At = std::function<std::string(int64_t)>;
  // A value that moves evenly from frame to frame.
  [[nodiscard]] std::string Moving(const std::string& attribute, const At& at) const {
    return "<animate attributeName=\"" + attribute + "\"" + Values(at, hold_) + "/>";
  }
  // kind: translate, rotate.
  [[nodiscard]] std::string Transform(const std::string& kind, const At& at) const {
    return "<animateTransform attributeName=\"transform\" type=\"" + kind + "\"" + Values(at, hold_) + "/>";
  }
  // A value of each step that stays until the next; `after` once the episode has ended. Values stand side by
  // side there, where those of Moving stand at the ends of the steps.
  [[nodiscard]] std::string Switching(const std::string& attribute, const At& at,
                                      const std::string& after) const {
    std::string values;
    for (int64_t i = 0; i < steps_; ++i) values += at(i) + ";";
    for (int64_t i = 0; i < hold_; ++i) values += after + (i + 1 < hold_ ? ";" : "");
    return "<animate attributeName=\"" + attribute + "\" calcMode=\"discrete\" values=\"" + values + "\"" +
           Timing() + "/>";
  }
  [[nodiscard]] int64_t steps() const { return steps_; }

 private:
  [[nodiscard]] std::string Timing() const {
    return " dur=\"" + Number(duration_s_, 3) + "s\" repeatCount=\"indefinite\"";
  }
  [[nodiscard]] std::string Values(const At& at, int64_t hold) const {
    std::string values;
    for (int64_t i = 0; i <= steps_; ++i) values += (i > 0 ? ";" : "") + at(i);
    for (int64_t i = 0; i < hold; ++i) values += ";" + at(steps_);
    return " values=\"" + values + "\"" + Timing();
  }

  int64_t steps_, hold_;
  double duration_s_;
};

std::string Rect(double x, double y, double w, double h, const std::string& rest) {
  return "<rect x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" width=\"" + Number(w) + "\" height=\"" +
         Number(h) + "\" " + rest + "/>";
}
std::string Line(double x1, double y1, double x2, double y2, const std::string& rest) {
  return "<line x1=\"" + Number(x1) + "\" y1=\"" + Number(y1) + "\" x2=\"" + Number(x2) + "\" y2=\"" +
         Number(y2) + "\" " + rest + "/>";
}
std::string Circle(double x, double y, double r, const std::string& rest) {
  return "<circle cx=\"" + Number(x) + "\" cy=\"" + Number(y) + "\" r=\"" + Number(r) + "\" " + rest + "/>";
}
std::string Text(double x, double y, const std::string& rest, const std::string& text) {
  return "<text x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" " + rest + ">" + Escaped(text) + "</text>";
}

double Degrees(double radians) { return radians * 180 / std::numbers::pi; }

// Angles of all frames from their cosine and sine, without the jumps at half a turn.
std::vector<double> Turned(const EpisodeFrames& e, size_t cosine, size_t sine) {
  std::vector<double> angles;
  const auto width = static_cast<size_t>(e.spec.observation_size);
  for (size_t at = 0; at + width <= e.observations.size(); at += width) {
    const double now = std::atan2(e.observations[at + sine], e.observations[at + cosine]);
    angles.push_back(
        angles.empty() ? now : angles.back() + std::remainder(now - angles.back(), 2 * std::numbers::pi));
  }
  return angles;
}

class View {
 public:
  View(const EpisodeFrames& e, const Film& film) : e_(e), film_(film) {}
  [[nodiscard]] double Seen(int64_t frame, int64_t number) const {
    return e_.observations[static_cast<size_t>(frame * e_.spec.observation_size + number)];
  }
  [[nodiscard]] const EpisodeFrames& episode() const { return e_; }
  [[nodiscard]] const Film& film() const { return film_; }

 private:
  const EpisodeFrames& e_;
  const Film& film_;
};

std::string DrawCartPole(const View& v) {
  constexpr double kScale = 125, kGround = 220, kCartWidth = 64, kCartHeight = 34;
  const auto rotate =
      v.film().Transform("rotate", [&](int64_t i) { return Number(Degrees(v.Seen(i, 2)), 2); });
  const auto move = v.film().Transform("translate", [&](int64_t i) {
    return Number(kMiddle + kScale * v.Seen(i, 0)) + " " + Number(kGround);
  });
  std::string out = Line(0, kGround + kCartHeight / 2, kWidth, kGround + kCartHeight / 2, "class=\"rule\"");
  for (const double edge : {-2.4, 2.4}) {
    const double x = kMiddle + kScale * edge;
    out += Line(x, kGround + kCartHeight / 2 - 12, x, kGround + kCartHeight / 2 + 12, "class=\"rule\"");
  }
  return out + "<g>" + move +
         Rect(-kCartWidth / 2, -kCartHeight / 2, kCartWidth, kCartHeight, "rx=\"5\" class=\"a\"") + "<g>" +
         rotate + Line(0, 0, 0, -kScale, "class=\"pole\"") + "</g>" + Circle(0, 0, 5, "class=\"ink\"") +
         "</g>";
}

std::string DrawPendulum(const View& v) {
  constexpr double kRod = 112;
  const std::vector<double> angles = Turned(v.episode(), 0, 1);
  // Upright is 0 and angles grow against the clock; a picture's grow with it.
  const auto rotate = v.film().Transform(
      "rotate", [&](int64_t i) { return Number(-Degrees(angles[static_cast<size_t>(i)]), 2); });
  return Circle(kMiddle, kSceneHeight / 2.0, kRod, "class=\"soft\" stroke-dasharray=\"3 6\"") +
         "<g transform=\"translate(" + Number(kMiddle) + " " + Number(kSceneHeight / 2.0) + ")\"><g>" +
         rotate + Line(0, 0, 0, -kRod, "class=\"pole\"") + Circle(0, -kRod, 13, "class=\"a\"") + "</g>" +
         Circle(0, 0, 6, "class=\"ink\"") + "</g>";
}

std::string DrawMountainCar(const View& v) {
  constexpr double kLeft = -1.2, kRight = 0.6, kScale = kWidth / (kRight - kLeft), kUp = 235;
  const auto across = [](double x) { return (x - kLeft) * kScale; };
  const auto down = [](double x) { return kSceneHeight - 8 - kUp * (std::sin(3 * x) * 0.45 + 0.55); };
  std::string points;
  for (double x = kLeft; x < kRight + 0.005; x += 0.02)
    points += Number(across(x)) + "," + Number(down(x)) + " ";
  const auto move = v.film().Transform("translate", [&](int64_t i) {
    return Number(across(v.Seen(i, 0))) + " " + Number(down(v.Seen(i, 0)));
  });
  const auto rotate = v.film().Transform("rotate", [&](int64_t i) {
    return Number(-Degrees(std::atan(1.35 * std::cos(3 * v.Seen(i, 0)) * kUp / kScale)), 2);
  });
  const double flag_x = across(0.5), flag_y = down(0.5);
  return "<polyline points=\"" + points + "\" class=\"rule\"/>" +
         Line(flag_x, flag_y, flag_x, flag_y - 44, "class=\"rule\"") + "<path d=\"M" + Number(flag_x) + " " +
         Number(flag_y - 44) + "l22 8l-22 8z\" class=\"good\"/><g>" + move + "<g>" + rotate +
         Rect(-18, -24, 36, 15, "rx=\"4\" class=\"a\"") + Circle(-10, -7, 6, "class=\"ink\"") +
         Circle(10, -7, 6, "class=\"ink\"") + "</g></g>";
}

std::string DrawAcrobot(const View& v) {
  constexpr double kLink = 64, kPivot = 136;
  const std::vector<double> upper = Turned(v.episode(), 0, 1), lower = Turned(v.episode(), 2, 3);
  const auto turn = [&](const std::vector<double>& angles) {
    return v.film().Transform("rotate",
                              [&](int64_t i) { return Number(-Degrees(angles[static_cast<size_t>(i)]), 2); });
  };
  return Line(0, kPivot - kLink, kWidth, kPivot - kLink, "class=\"goal\"") + "<g transform=\"translate(" +
         Number(kMiddle) + " " + Number(kPivot) + ")\"><g>" + turn(upper) +
         Line(0, 0, 0, kLink, "class=\"pole\"") + "<g transform=\"translate(0 " + Number(kLink) + ")\"><g>" +
         turn(lower) + Line(0, 0, 0, kLink, "class=\"pole second\"") + Circle(0, kLink, 6, "class=\"a\"") +
         "</g>" + Circle(0, 0, 6, "class=\"ink\"") + "</g></g>" + Circle(0, 0, 6, "class=\"ink\"") + "</g>";
}

std::string DrawLake(const View& v) {
  const int64_t places = v.episode().spec.observation_size;
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(places))));
  const double cell = static_cast<double>(kSceneHeight - 8) / static_cast<double>(side);
  const double left = kMiddle - cell * static_cast<double>(side) / 2;
  const std::string_view tiles = FrozenLakeTiles(side == 8 ? "8x8" : "4x4");
  std::string out;
  const auto corner = [&](int64_t place) {
    return std::pair(left + cell * static_cast<double>(place % side),
                     cell * static_cast<double>(place / side));
  };
  for (int64_t p = 0; p < places; ++p) {
    const char tile = tiles[static_cast<size_t>(p)];
    const auto [x, y] = corner(p);
    out += Rect(x + 1, y + 1, cell - 2, cell - 2,
                tile == 'H'   ? "rx=\"4\" class=\"hole\""
                : tile == 'G' ? "rx=\"4\" class=\"good\""
                              : "rx=\"4\" class=\"ice\"");
    if (tile == 'S' || tile == 'G')
      out += Text(x + 7, y + 17, "class=\"small\"", tile == 'S' ? "start" : "goal");
  }
  const auto move = v.film().Transform("translate", [&](int64_t i) {
    int64_t place = 0;
    while (place + 1 < places && v.Seen(i, place) < 0.5) ++place;
    const auto [x, y] = corner(place);
    return Number(x + cell / 2) + " " + Number(y + cell / 2);
  });
  return out + "<g>" + move + Circle(0, 0, cell * 0.24, "class=\"b\"") + "</g>";
}

// Curves of the first numbers that are observed, for an environment of which nothing more is known.
std::string DrawNumbers(const View& v) {
  const int64_t curves = std::min<int64_t>(v.episode().spec.observation_size, 6), steps = v.film().steps();
  const double height = static_cast<double>(kSceneHeight) / static_cast<double>(curves);
  std::string out;
  for (int64_t k = 0; k < curves; ++k) {
    double low = v.Seen(0, k), high = low;
    for (int64_t i = 0; i <= steps; ++i)
      low = std::min(low, v.Seen(i, k)), high = std::max(high, v.Seen(i, k));
    const double range = high > low ? high - low : 1, top = height * static_cast<double>(k) + 6;
    const auto x = [&](int64_t i) {
      return kCurveLeft + static_cast<double>((kCurveRight - kCurveLeft) * i) /
                              static_cast<double>(std::max<int64_t>(steps, 1));
    };
    const auto y = [&](int64_t i) { return top + (height - 12) * (1 - (v.Seen(i, k) - low) / range); };
    std::string points;
    for (int64_t i = 0; i <= steps; ++i) points += Number(x(i)) + "," + Number(y(i)) + " ";
    out += "<polyline points=\"" + points + "\" class=\"curve\"/>" +
           Text(kCurveLeft - 8, top + (height - 12) / 2 + 4, "class=\"small\" text-anchor=\"end\"",
                "sees " + std::to_string(k)) +
           "<circle r=\"4\" class=\"b\">" + v.film().Moving("cx", [&](int64_t i) { return Number(x(i)); }) +
           v.film().Moving("cy", [&](int64_t i) { return Number(y(i)); }) + "</circle>";
  }
  return out;
}

struct Scene {
  const char* environment;
  double step_s;  // of the task, or what one can follow
  std::string (*draw)(const View&);
  std::vector<std::string> actions;  // of choices, by number; what a number is, where actions are numbers
};
const std::vector<Scene>& Scenes() {
  static const std::vector<Scene> scenes = {
      {"cartpole", 0.02, DrawCartPole, {"push left", "push right"}},
      {"pendulum", 0.05, DrawPendulum, {"torque"}},
      {"mountain_car", 1.0 / 30, DrawMountainCar, {"push left", "coast", "push right"}},
      {"acrobot", 1.0 / 15, DrawAcrobot, {"torque -1", "none", "torque +1"}},
      {"frozen_lake_grid", 0.5, DrawLake, {"left", "down", "right", "up"}},
  };
  return scenes;
}
Scene SceneOf(const VectorSpec& spec) {
  const auto it = std::ranges::find(Scenes(), spec.name, &Scene::environment);
  if (it != Scenes().end()) return *it;
  Scene scene{"", 1.0 / 30, DrawNumbers, {}};
  const int64_t fields = spec.continuous ? 1 : std::min<int64_t>(spec.actions, 5);
  for (int64_t a = 0; a < fields; ++a)
    scene.actions.push_back((spec.continuous ? "number " : "choice ") + std::to_string(a));
  return scene;
}

// A field for each choice, lit while it is taken; of a number a bar from the middle.
std::string DrawActions(const View& v, const Scene& scene) {
  const EpisodeFrames& e = v.episode();
  constexpr double kFieldWidth = 108, kFieldHeight = 24, kGap = 10;
  std::string out;
  if (e.spec.continuous) {
    constexpr double kHalf = 200;
    const double most = std::max(std::fabs(e.spec.low), std::fabs(e.spec.high));
    const auto size = [&](int64_t i) {
      const double a = std::clamp<double>(e.actions[static_cast<size_t>(i * e.spec.action_size())],
                                          e.spec.low, e.spec.high);
      return kHalf * a / most;
    };
    out += Rect(kMiddle - kHalf, kActionsTop + 6, 2 * kHalf, 12, "rx=\"3\" class=\"field\"") + "<rect y=\"" +
           Number(kActionsTop + 6) + "\" height=\"12\" x=\"" + Number(kMiddle) +
           "\" width=\"0\" class=\"b\">" +
           v.film().Switching(
               "x", [&](int64_t i) { return Number(kMiddle + std::min(0.0, size(i))); }, Number(kMiddle)) +
           v.film().Switching(
               "width", [&](int64_t i) { return Number(std::fabs(size(i))); }, "0") +
           "</rect>" + Line(kMiddle, kActionsTop + 2, kMiddle, kActionsTop + 22, "class=\"rule\"") +
           Text(kMiddle - kHalf - 8, kActionsTop + 17, "class=\"small\" text-anchor=\"end\"",
                scene.actions.front() + " " + Number(e.spec.low, 2)) +
           Text(kMiddle + kHalf + 8, kActionsTop + 17, "class=\"small\"", Number(e.spec.high, 2));
    return out;
  }
  const auto n = static_cast<double>(scene.actions.size());
  double x = kMiddle - (n * kFieldWidth + (n - 1) * kGap) / 2;
  for (size_t a = 0; a < scene.actions.size(); ++a, x += kFieldWidth + kGap) {
    out +=
        Rect(x, kActionsTop, kFieldWidth, kFieldHeight, "rx=\"6\" class=\"field\"") + "<rect x=\"" +
        Number(x) + "\" y=\"" + Number(kActionsTop) + "\" width=\"" + Number(kFieldWidth) + "\" height=\"" +
        Number(kFieldHeight) + "\" rx=\"6\" class=\"b\" opacity=\"0\">" +
        v.film().Switching(
            "opacity",
            [&](int64_t i) {
              return std::string(e.actions[static_cast<size_t>(i)] == static_cast<float>(a) ? "0.75" : "0");
            },
            "0") +
        "</rect>" +
        Text(x + kFieldWidth / 2, kActionsTop + 17, "class=\"small\" text-anchor=\"middle\"",
             scene.actions[a]);
  }
  return out;
}

// The return so far over the steps, and where the film is.
std::string DrawCurve(const View& v) {
  const EpisodeFrames& e = v.episode();
  std::vector<double> sums = {0};
  for (const float r : e.rewards) sums.push_back(sums.back() + r);
  const auto [low, high] = std::ranges::minmax(sums);
  const double range = high > low ? high - low : 1, floor = low;
  const auto x = [&](int64_t i) {
    return kCurveLeft + static_cast<double>((kCurveRight - kCurveLeft) * i) /
                            static_cast<double>(std::max<int64_t>(v.film().steps(), 1));
  };
  const auto y = [&](int64_t i) {
    return kCurveTop + kCurveHeight * (1 - (sums[static_cast<size_t>(i)] - floor) / range);
  };
  std::string points;
  for (int64_t i = 0; i <= v.film().steps(); ++i) points += Number(x(i)) + "," + Number(y(i)) + " ";
  return "<polyline points=\"" + points + "\" class=\"curve\"/>" +
         (high > low
              ? Text(kCurveLeft - 8, kCurveTop + 6, "class=\"small\" text-anchor=\"end\"", Number(high, 1))
              : "") +
         Text(kCurveLeft - 8, kCurveTop + kCurveHeight, "class=\"small\" text-anchor=\"end\"",
              Number(low, 1)) +
         Text(kCurveLeft, kCurveTop + kCurveHeight + 16, "class=\"small\"", "return so far") +
         Text(kCurveRight, kCurveTop + kCurveHeight + 16, "class=\"small\" text-anchor=\"end\"",
              "step " + std::to_string(v.film().steps())) +
         "<circle r=\"4\" class=\"b\">" + v.film().Moving("cx", [&](int64_t i) { return Number(x(i)); }) +
         v.film().Moving("cy", [&](int64_t i) { return Number(y(i)); }) + "</circle>";
}

constexpr const char* kStyle = R"(<style>
svg{--paper:#fbfbf9;--ink:#1f2933;--soft:#c4ccd4;--a:#2563eb;--b:#d97706;--good:#2f9e57;--ice:#dcecf6;--hole:#50657a}
@media(prefers-color-scheme:dark){svg{--paper:#14191f;--ink:#e3e8ed;--soft:#4b5763;--a:#6ea0ff;--b:#f0a33c;--good:#4cc27a;--ice:#27404f;--hole:#0a0d10}}
text{font:15px system-ui,sans-serif;fill:var(--ink)}.small{font-size:12px}
.paper{fill:var(--paper)}.ink{fill:var(--ink)}.a{fill:var(--a)}.b{fill:var(--b)}.good{fill:var(--good)}.ice{fill:var(--ice)}.hole{fill:var(--hole);stroke:var(--soft)}
.rule{stroke:var(--ink);stroke-width:2;fill:none}.soft{stroke:var(--soft);stroke-width:2;fill:none}.field{fill:none;stroke:var(--soft);stroke-width:1.5}
.pole{stroke:var(--b);stroke-width:10;stroke-linecap:round}.second{stroke:var(--good)}.goal{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:6 6}
.curve{fill:none;stroke:var(--a);stroke-width:2}
</style>)";

}  // namespace

StatusOr<EpisodeFrames> ReplayEpisode(const VectorOptions& options, uint64_t index,
                                      const std::vector<float>& actions,
                                      const std::optional<PluginCall>& limit) {
  const std::vector<uint64_t> indices = {index};
  std::optional<LimitedCall> call;
  if (limit) call.emplace(*limit);
  TP_ASSIGN_OR_RETURN(const auto environment, VectorEnvironment::Create(options, indices));
  EpisodeFrames out{.spec = environment->spec(), .observations = {}, .actions = {}, .rewards = {}};
  const auto step = static_cast<size_t>(out.spec.action_size());
  TP_ASSIGN_OR_RETURN(out.observations, environment->Observations());
  VectorStep moved;
  for (size_t at = 0; at + step <= actions.size(); at += step) {
    if (limit) call.emplace(*limit);
    TP_RETURN_IF_ERROR(environment->Step(std::span(actions).subspan(at, step), moved));
    out.rewards.push_back(moved.rewards.front());
    const bool ended = moved.flags.front() != 0;
    const std::vector<float>& seen = ended ? moved.final_observations : moved.observations;
    out.observations.insert(out.observations.end(), seen.begin(), seen.end());
    if (!ended) continue;
    if (at + step != actions.size()) break;
    out.actions = actions;
    return out;
  }
  return InvalidArgument(options.name + ": " + std::to_string(actions.size() / step) +
                         " actions are not one episode");
}

std::string DrawEpisode(const EpisodeFrames& episode, const std::string& title) {
  const Scene scene = SceneOf(episode.spec);
  const Film film(static_cast<int64_t>(episode.rewards.size()), scene.step_s);
  const View view(episode, film);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + std::to_string(kWidth) +
                    " " + std::to_string(kHeight) + "\" width=\"" + std::to_string(kWidth) + "\" height=\"" +
                    std::to_string(kHeight) + "\" role=\"img\">\n<title>" + Escaped(title) + "</title>\n" +
                    kStyle + "\n" + Rect(0, 0, kWidth, kHeight, "class=\"paper\"") + "\n" +
                    Text(20, 28, "", title) + "\n<g transform=\"translate(0 " + std::to_string(kSceneTop) +
                    ")\">" + scene.draw(view) + "</g>\n";
  return out + DrawActions(view, scene) + "\n" + DrawCurve(view) + "\n</svg>\n";
}

}  // namespace tidepool::environments
