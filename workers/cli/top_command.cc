// tidepool top: a live view of a run on the terminal, until q.
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/json_fields.h"
#include "core/base/thread_annotations.h"
#include "core/base/utf8.h"
#include "core/observe/progress.h"
#include "core/observe/run_files.h"
#include "workers/cli/command.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"
#include "workers/cli/table.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

std::string HostsLine(const std::vector<observe::WorkerFacts>& workers) {
  std::set<std::string> hosts;
  std::map<std::string, int64_t> holds;
  for (const observe::WorkerFacts& worker : workers) {
    hosts.insert(worker.host);
    if (!worker.roles.empty()) ++holds[worker.roles];
  }
  std::string line = std::to_string(hosts.size()) + (hosts.size() == 1 ? " host, " : " hosts, ") +
                     std::to_string(workers.size()) + (workers.size() == 1 ? " worker" : " workers");
  for (const auto& [roles, count] : holds) line += ", " + std::to_string(count) + " at " + roles;
  return line;
}

// The picture of `status` in a terminal of this size: what the run does, then a line a worker.
std::vector<std::string> TopLines(const Json& status, const observe::TerminalSize& size) {
  if (status["state"] != "running" || !status.contains("live")) return Lines(DescribeStatus(status));
  observe::StatusFile live;
  FromJson(status["live"], live);
  std::vector<std::string> lines = observe::ProgressBlock(live, size);
  const auto n = [](int64_t count) { return std::to_string(count); };
  lines.push_back("  groups " + n(live.open_groups) + " open, " + n(live.awaiting) +
                  " samples await rewards, " + n(live.queued) + " groups queued, " + n(live.leased) +
                  " leased, " + n(live.in_flight) + " chunks in flight, " + n(live.restarts) + " restarts");
  if (const std::string silent = status["controller"].value("silent", ""); !silent.empty())
    lines.push_back("  " + silent);
  lines.push_back("  " + HostsLine(live.workers));
  lines.emplace_back();
  std::ranges::sort(live.workers, {},
                    [](const observe::WorkerFacts& w) { return std::tuple(w.host, w.place); });
  std::vector<Cells> rows = {{"HOST", "WORKER", "ROLES", "DOES", "RUNNING", "WAITING", "KV", "PEAK"}};
  for (const observe::WorkerFacts& w : live.workers) {
    const bool engine = w.roles.find("rollout") != std::string::npos;
    rows.push_back({w.host.empty() ? "?" : w.host, w.name, w.roles.empty() ? "-" : w.roles,
                    w.doing.empty() ? "-" : w.doing, engine ? n(w.running) : "-", engine ? n(w.waiting) : "-",
                    engine ? Formatted("%.0f %%", 100 * w.kv_usage) : "-", BytesText(w.peak_bytes)});
  }
  (void)FitTable(rows, static_cast<size_t>(size.columns), {"PEAK", "KV", "WAITING", "DOES"});
  for (std::string& line : Lines(TableText(rows))) lines.push_back(std::move(line));
  for (const observe::RestartFacts& place : live.restarting)
    lines.push_back(place.name + "  " + observe::RestartText(place));
  for (std::string& line : lines) line = WithoutControls(line);
  return lines;
}

// While it is there, keys come at once and are not shown, and the screen is another one than before.
class Screen {
 public:
  Screen() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    std::printf("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    std::printf("\x1b[?25h\x1b[?1049l");
    std::fflush(stdout);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Draw(std::vector<std::string> lines, const observe::TerminalSize& size) const {
    const auto rows = static_cast<size_t>(std::max<int64_t>(2, size.rows)) - 1;
    if (lines.size() > rows) {
      const size_t left = lines.size() - rows + 1;
      lines.resize(rows - 1);
      lines.push_back("... and " + std::to_string(left) + " more lines");
    }
    std::string out = "\x1b[H";
    for (const std::string& line : lines) {
      const auto width = static_cast<size_t>(size.columns);
      out += (line.size() > width ? line.substr(0, CharacterStart(line, width)) : line) + "\x1b[K\n";
    }
    out +=
        "\x1b[J"
        "q: ends";
    std::fwrite(out.data(), 1, out.size(), stdout);
    std::fflush(stdout);
  }

 private:
  termios before_{};
};

volatile sig_atomic_t ended = 0;

// Looks at the run beside the screen, one at a time: a disk or a controller that does not answer holds up no
// key.
class Looks {
 public:
  explicit Looks(StatusSource source) : state_(std::make_shared<State>()) {
    state_->source = std::move(source);
  }
  // Begins one, unless one is under way.
  void Begin() {
    if (disk_.Busy()) return;
    disk_.Do("look at the run", [state = state_](const DiskThread::Say&) {
      StatusOr<Json> status = state->source();
      const MutexLock lock(state->mu);
      state->newest = std::move(status);
      ++state->done;
    });
  }
  [[nodiscard]] int64_t done() const {
    const MutexLock lock(state_->mu);
    return state_->done;
  }
  // What the newest one saw, and that the next one does not end.
  [[nodiscard]] std::vector<std::string> Lines(const observe::TerminalSize& size) const {
    std::vector<std::string> lines;
    if (const auto busy = disk_.Busy(); busy && busy->takes > kLong)
      lines.push_back("the look at the run has not ended for " + observe::DurationText(busy->takes) +
                      "; what stands here is from before");
    const MutexLock lock(state_->mu);
    if (!state_->newest) return lines;
    const StatusOr<Json>& newest = *state_->newest;
    const std::vector<std::string> seen =
        newest.ok() ? TopLines(*newest, size) : std::vector<std::string>{newest.status().message()};
    lines.insert(lines.end(), seen.begin(), seen.end());
    return lines;
  }

 private:
  static constexpr auto kLong = std::chrono::seconds(2);
  struct State {
    StatusSource source;
    Mutex mu;
    std::optional<StatusOr<Json>> newest TP_GUARDED_BY(mu);
    int64_t done TP_GUARDED_BY(mu) = 0;
  };
  const std::shared_ptr<State> state_;  // the thread has it too, which may hang
  DiskThread disk_;
};

// Waits for a key or a signal for so long at most. True: it is one that ends the picture.
bool KeyEnds(std::chrono::duration<double> wait) {
  pollfd key{STDIN_FILENO, POLLIN, 0};
  const int came = ::poll(&key, 1, std::max(0, static_cast<int>(1e3 * wait.count()) + 1));
  char c = 0;
  return came > 0 && (::read(STDIN_FILENO, &c, 1) <= 0 || c == 'q' || c == 'Q');
}

// Until q, Ctrl-C, or the end of the terminal.
Status Follow(const StatusSource& source, double interval_s) {
  using Clock = std::chrono::steady_clock;
  struct sigaction stop {};
  stop.sa_handler = [](int) { ended = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &stop, nullptr);
  const Screen screen;
  Looks looks(source);
  while (ended == 0) {
    const auto begin = Clock::now();
    const auto left = [&](std::chrono::duration<double> after) { return after - (Clock::now() - begin); };
    const int64_t before = looks.done();
    looks.Begin();
    // Where nothing hangs it ends within milliseconds, and is drawn at once.
    const std::chrono::duration<double> interval(interval_s), most(std::min(interval_s, 0.5));
    while (ended == 0 && looks.done() == before && left(most).count() > 0)
      if (KeyEnds(std::min<std::chrono::duration<double>>(left(most), std::chrono::milliseconds(10))))
        return OkStatus();
    const observe::TerminalSize size = observe::SizeOfTerminal(stdout);
    screen.Draw(looks.Lines(size), size);
    while (ended == 0 && left(interval).count() > 0)
      if (KeyEnds(left(interval))) return OkStatus();
  }
  return OkStatus();
}

}  // namespace

void AddTopCommand(CLI::App& app, CommandContext& context) {
  struct Options {
    std::string run, token_file;
    double interval_s = 1;
    bool once = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("top", "A live view of a run: hosts, slots, queue, lag, throughput");
  AddRunOrAddress(*command, options->run, options->token_file);
  command->add_option("--interval", options->interval_s, "Seconds between looks; default: 1")
      ->check(CLI::Range(0.1, 3600.0));
  command->add_flag("--once", options->once, "One picture, for scripts; so it is where there is no terminal");
  command->footer("Example: tidepool top quickstart");
  command->callback([options, &context] {
    const auto source = SourceOf(options->run, options->token_file, ReadJournal::kWhereNothingElseTells);
    if (!source.ok()) return Fail(context, source.status());
    const StatusOr<Json> first = (*source)();
    if (!first.ok()) return Fail(context, first.status());
    if (!options->once && observe::IsTerminal(stdout) && ::isatty(STDIN_FILENO) == 1) {
      if (const Status done = Follow(*source, options->interval_s); !done.ok()) Fail(context, done);
      return;
    }
    for (const std::string& line : TopLines(*first, {.columns = 120, .rows = 1000}))
      std::printf("%s\n", line.c_str());
  });
}

}  // namespace tidepool::workers
