#include "workers/cli/journal_command.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/json_fields.h"
#include "core/base/names.h"
#include "core/base/places.h"
#include "core/base/real_file_system.h"
#include "core/base/utc_time.h"
#include "core/storage/journal.h"
#include "core/storage/journal_codec.h"
#include "workers/cli/command.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

// --- which records

// A moment: UTC, or seconds since the controller began.
struct Moment {
  std::optional<int64_t> unix_ms;
  double seconds = 0;
};

struct JournalFilter {
  std::vector<std::string> kinds;  // empty: all
  std::vector<int64_t> sample;     // ordinal, issue, sample: as many as were given
  WorkerRef worker;                // without a life: whatever its incarnation; without a place: any
  int64_t first_step = -1, last_step = -1;
  std::optional<Moment> since, until;

  [[nodiscard]] bool Passes(const JournalEntry& entry) const;
};

// Whether a field of a record, or of an item of its lists, is about what is looked for.
struct Mention {
  const JournalFilter& filter;
  bool sample = false, worker = false, old_actor = false, step = false;
  Incarnation life;  // that stands apart from the worker whose it is, in a FAULT

  [[nodiscard]] bool Life(Incarnation inc) const {
    return !filter.worker.inc.valid() || inc == filter.worker.inc;
  }
  void operator()(const char* /*name*/, const SampleId& id) {
    const int64_t parts[] = {id.ordinal, id.issue, id.sample};
    bool same = true;
    for (size_t i = 0; i < filter.sample.size(); ++i) same = same && parts[i] == filter.sample[i];
    sample = sample || same;
  }
  void operator()(const char* /*name*/, const WorkerRef& ref) {
    worker = worker || (ref.worker == filter.worker.worker && Life(ref.inc));
  }
  void operator()(const char* /*name*/, const StepNumber& at) {
    step = step || (at.value >= filter.first_step && at.value <= filter.last_step);
  }
  void operator()(const char* /*name*/, const Incarnation& inc) { life = inc; }
  void operator()(const char* /*name*/, const WorkerId& id) {
    worker = worker || (id == filter.worker.worker && Life(life));
  }
  // A FAULT of a program that did not write the worker has its place as the actor: "w3".
  void operator()(const char* name, const std::string& text) {
    old_actor = old_actor || (std::string_view(name) == "actor" &&
                              text == "w" + std::to_string(filter.worker.worker.value));
  }
  template <typename T>
  void operator()(const char* name, const std::vector<T>& items) {
    for (const T& item : items) (*this)(name, item);
  }
  template <typename T>
  void operator()(const char* /*name*/, const T& field) {
    if constexpr (requires { VisitFields(field, *this); }) VisitFields(field, *this);
  }
};

// Times of a journal that does not know when its controllers began cannot be compared with a moment in UTC.
bool Before(const JournalEntry& entry, const Moment& moment) {
  if (moment.unix_ms) return entry.unix_ms != 0 && entry.unix_ms < *moment.unix_ms;
  return static_cast<double>(entry.mono_ns) * 1e-9 < moment.seconds;
}
bool After(const JournalEntry& entry, const Moment& moment) {
  if (moment.unix_ms) return entry.unix_ms > *moment.unix_ms;
  return static_cast<double>(entry.mono_ns) * 1e-9 > moment.seconds;
}

bool JournalFilter::Passes(const JournalEntry& entry) const {
  if (!kinds.empty() && std::ranges::find(kinds, RecordName(entry.record)) == kinds.end()) return false;
  if ((since && Before(entry, *since)) || (until && After(entry, *until))) return false;
  const bool any_worker = !worker.worker.valid();
  if (sample.empty() && any_worker && first_step < 0) return true;
  Mention mention{*this};
  std::visit([&](const auto& r) { VisitFields(r, mention); }, entry.record);
  const bool worked = mention.worker || (mention.old_actor && mention.Life(mention.life));
  return (sample.empty() || mention.sample) && (any_worker || worked) && (first_step < 0 || mention.step);
}

std::vector<std::string> KindNames() {
  std::vector<std::string> names;
  [&]<size_t... kKind>(std::index_sequence<kKind...>) {
    (names.push_back(RecordName(JournalRecord(std::in_place_index<kKind>))), ...);
  }
  (std::make_index_sequence<std::variant_size_v<JournalRecord>>{});
  return names;
}

// --- options

struct JournalWords {
  std::string run;
  bool json = false, follow = false;
  int64_t from = 0, tail = -1;
  std::vector<std::string> kinds;
  std::string sample, worker, step, since, until;
};

Status Wrong(const std::string& option, const std::string& value, const std::string& expected) {
  return InvalidArgument(option + ": is " + value + "; expected " + expected);
}

// "12.0.3" with up to `most` numbers, or nothing.
std::vector<int64_t> Numbers(std::string_view text, char between, size_t most) {
  std::vector<int64_t> numbers;
  while (numbers.size() < most) {
    int64_t number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
    if (end.ec != std::errc()) return {};
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end.ptr - text.data()));
    if (text.empty()) return numbers;
    if (text.front() != between) return {};
    text.remove_prefix(1);
  }
  return {};
}

StatusOr<Moment> ParseMoment(const char* option, const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0') return Moment{std::nullopt, seconds};
  if (const auto ms = ParseUtcTime(text)) return Moment{*ms, 0};
  return Wrong(option, text, "a time in UTC such as 2026-01-31T12:00:00, or seconds of the run such as 12.5");
}

// Of this config: a life of the run before it may have had others.
int64_t PlacesOf(const JobConfig& config) {
  const EnvironmentConfig* plays = config.environment();
  return config.cluster.slots + (plays == nullptr ? config.reward.workers : plays->workers);
}

// "reward-0", or the number of a place; -1: there is none of that name. requires one that is not empty
int64_t PlaceOf(const std::string& worker, const std::optional<JobConfig>& config) {
  const auto number = Numbers(std::string_view(worker).substr(worker.front() == 'w' ? 1 : 0), '.', 1);
  if (!number.empty()) return number[0];
  if (!config) return -1;
  for (int64_t place = 0; place < PlacesOf(*config); ++place) {
    if (PlaceName(*config, place) == worker) return place;
  }
  return -1;
}

StatusOr<JournalFilter> ParseFilter(const JournalWords& words, const std::optional<JobConfig>& config) {
  JournalFilter filter;
  const std::vector<std::string> known = KindNames();
  for (std::string kind : words.kinds) {
    for (char& c : kind) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (std::ranges::find(known, kind) == known.end())
      return InvalidArgument("--kind: no record is called " + kind + "; " + DidYouMean(kind, known));
    filter.kinds.push_back(std::move(kind));
  }
  if (!words.sample.empty()) {
    filter.sample = Numbers(words.sample, '.', 3);
    if (filter.sample.empty())
      return Wrong("--sample", words.sample, "a sample such as 12.0.3, or the group 12.0, or the row 12");
  }
  if (!words.worker.empty()) {
    const size_t slash = words.worker.find('/');
    const std::string place = words.worker.substr(0, slash);
    filter.worker.worker = {place.empty() ? -1 : PlaceOf(place, config)};
    bool wrong = !filter.worker.worker.valid();
    if (slash != std::string::npos) {
      constexpr std::string_view kInc = "/inc";
      const std::string_view life = std::string_view(words.worker).substr(slash);
      const auto number =
          life.starts_with(kInc) ? Numbers(life.substr(kInc.size()), '.', 1) : std::vector<int64_t>{};
      wrong = wrong || number.empty() || number[0] < 0;
      if (!wrong) filter.worker.inc = {number[0]};
    }
    if (wrong) {
      return Wrong("--worker", words.worker,
                   "a worker of this run such as device-0, its place such as 0, or one life of it such as "
                   "device-0/inc1");
    }
  }
  if (!words.step.empty()) {
    const auto range = Numbers(words.step, '-', 2);
    if (range.empty() || range.front() < 0 || range.back() < range.front())
      return Wrong("--step", words.step, "a step such as 7, or steps such as 7-12");
    filter.first_step = range.front();
    filter.last_step = range.back();
  }
  for (const auto& [option, text, moment] : {std::tuple("--since", &words.since, &filter.since),
                                             std::tuple("--until", &words.until, &filter.until)}) {
    if (text->empty()) continue;
    TP_ASSIGN_OR_RETURN(*moment, ParseMoment(option, *text));
  }
  return filter;
}

// --- what is shown

// Bytes that are no UTF-8 become U+FFFD.
std::string OneLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// "reward-0/inc3" of {"w", "inc"}.
std::string Worker(const Json& at, const std::optional<JobConfig>& config) {
  const auto place = at["w"].get<int64_t>();
  return place < 0 ? "none" : WorkerName(NameOfPlace(place, config), Incarnation{at["inc"].get<int64_t>()});
}

// A value of a record for people: sample ids, versions and workers as they are written elsewhere.
std::string Plain(const Json& value, const std::optional<JobConfig>& config) {
  const auto number = [&](const char* key) { return value[key].dump(); };
  if (value.is_string()) {
    const std::string text = OneLine(value);
    return text.size() == 2 || text.find_first_of(" \\") != std::string::npos
               ? text
               : text.substr(1, text.size() - 2);
  }
  if (value.is_object()) {
    if (value.contains("ordinal") && value.contains("sample")) {
      SampleId tid;
      FromJson(value, tid);
      return ToString(tid);
    }
    if (value.contains("lineage") && value.contains("number"))
      return number("lineage") + ":" + number("number");
    if (value.size() == 2 && value.contains("w") && value.contains("inc")) return Worker(value, config);
    if (value.contains("tid") && value.contains("oldest"))  // a row of STEP_COMMIT
      return Plain(value["tid"], config) + "@" + Plain(value["oldest"], config);
    std::string out;
    for (const auto& [key, item] : value.items())
      out += (out.empty() ? "" : " ") + key + "=" + Plain(item, config);
    return "{" + out + "}";
  }
  if (value.is_array()) {
    constexpr size_t kShown = 4;
    std::string out = std::to_string(value.size()) + "[";
    for (size_t i = 0; i < std::min(value.size(), kShown); ++i)
      out += (i == 0 ? "" : " ") + Plain(value[i], config);
    return out + (value.size() > kShown ? " ...]" : "]");
  }
  return value.dump();
}

std::string RecordLine(const JournalEntry& entry, const std::optional<JobConfig>& config) {
  const Json json = storage::JournalEntryToJson(entry);
  char head[128];
  std::snprintf(head, sizeof(head), "%8lld  %s%se%u %10.3fs  %-13s", static_cast<long long>(entry.lsn.value),
                entry.unix_ms != 0 ? UtcTimeText(entry.unix_ms).c_str() : "", entry.unix_ms != 0 ? "  " : "",
                entry.ctl_epoch, static_cast<double>(entry.mono_ns) * 1e-9, RecordName(entry.record));
  std::string line = head;
  for (const auto& [key, value] : json.items()) {
    if (key == "lsn" || key == "ctl_epoch" || key == "mono_ns" || key == "time" || key == "kind") continue;
    if (key == "tid" && Plain(value, config) == ToString(SampleId())) continue;  // a FAULT may be about none
    // A FAULT of a worker has it as `w`, too.
    if (key == "actor" && json.contains("w") && json["w"] != -1 &&
        value == NameOfPlace(json["w"].get<int64_t>(), config))
      continue;
    if (key == "w" && json.contains("inc")) {
      if (value != -1) line += " worker=" + Worker(json, config);  // a FAULT may be of none
    } else if (key != "inc" || !json.contains("w")) {
      line += " " + key + "=" + Plain(value, config);
    }
  }
  return line;
}

// Prints what passes; with a tail, the last of it once the end is reached.
class Printer {
 public:
  Printer(const JournalFilter& filter, const JournalWords& words, const std::optional<JobConfig>& config)
      : filter_(filter), config_(config), json_(words.json), tail_(words.tail) {}

  void Take(const JournalEntry& entry) {
    if (!filter_.Passes(entry)) return;
    ++passed_;
    if (tail_ < 0) return Print(entry);
    kept_.push_back(entry);
    if (static_cast<int64_t>(kept_.size()) > tail_) kept_.pop_front();
  }
  // What comes from here on is printed as it comes.
  void End() {
    for (const JournalEntry& entry : kept_) Print(entry);
    kept_.clear();
    tail_ = -1;
    std::fflush(stdout);
  }
  [[nodiscard]] int64_t passed() const { return passed_; }

 private:
  void Print(const JournalEntry& entry) const {
    std::printf("%s\n",
                (json_ ? OneLine(storage::JournalEntryToJson(entry)) : RecordLine(entry, config_)).c_str());
  }
  const JournalFilter& filter_;
  const std::optional<JobConfig>& config_;
  const bool json_;
  int64_t tail_;
  int64_t passed_ = 0;
  std::deque<JournalEntry> kept_;
};

// A controller that starts takes a moment until it listens.
constexpr int kQuietLooks = 25;  // of 200 ms

// What is there and what comes, until the run ends, its controller is gone without a last word, or another
// run is in its place.
Status Follow(RealFileSystem& real, const RunPlace& place, Lsn from, Printer& printer) {
  storage::JournalTail tail(real, place.journal, from);
  int quiet = 0;  // looks in a row that found nothing new and no controller
  for (bool ended = false; !ended;) {
    int64_t came = 0;
    const Status polled = tail.Poll([&](JournalEntry&& entry) {
      ++came;
      printer.Take(entry);
      // A run that was ended and resumed has more behind it; one that was ended and pruned has not.
      ended = std::holds_alternative<record::EndRun>(entry.record) ||
              (ended && std::holds_alternative<record::CheckpointDelete>(entry.record));
      return OkStatus();
    });
    printer.End();
    if (polled.code() == StatusCode::kAborted) {  // --fresh, or it was moved
      std::fprintf(stderr, "note: %s; the run that was followed is not here any more\n",
                   polled.message().c_str());
      return OkStatus();
    }
    TP_RETURN_IF_ERROR(polled);
    const bool waits = ended || came > 0 || place.dir.empty() || HasController(place.dir);
    quiet = waits ? 0 : quiet + 1;
    if (quiet == kQuietLooks) {
      std::fprintf(stderr, "note: no controller works on this run; `tidepool status %s` says how to go on\n",
                   place.dir.c_str());
      return OkStatus();
    }
    // Polling: there is no event to wait for that works on every file system a run may be on.
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return OkStatus();
}

void Journal(CommandContext& context, const JournalWords& words) {
  const auto place = FindRun(words.run);
  if (!place.ok()) return Fail(context, place.status());
  const auto config = place->dir.empty() ? std::nullopt : ConfigOf(place->dir);
  const auto filter = ParseFilter(words, config);
  if (!filter.ok()) return Fail(context, filter.status());
  RealFileSystem real;
  Printer printer(*filter, words, config);
  if (words.follow) {
    const Status followed = Follow(real, *place, Lsn{words.from}, printer);
    if (!followed.ok()) Fail(context, followed, followed.code() == StatusCode::kNotFound ? 2 : 4);
    return;
  }
  int64_t seen = 0;
  bool wall_clock = true;
  const auto summary =
      storage::ScanJournal(real, place->journal, "", Lsn{words.from}, [&](JournalEntry&& entry) {
        ++seen;
        wall_clock = wall_clock && entry.unix_ms != 0;
        printer.Take(entry);
        return OkStatus();
      });
  printer.End();
  if (!summary.ok())
    return Fail(context, OfJournal(*place, summary.status()),
                summary.status().code() == StatusCode::kNotFound ? 2 : 4);
  if (const auto& torn = summary->torn_tail) {
    std::fprintf(stderr,
                 "note: %s: %lld bytes at the end are a record that was cut off while it was written (%s)\n",
                 torn->file.c_str(), static_cast<long long>(torn->bytes), torn->why.c_str());
  }
  const bool utc = (filter->since && filter->since->unix_ms) || (filter->until && filter->until->unix_ms);
  if (utc && !wall_clock) {
    std::fprintf(
        stderr,
        "note: parts of this journal are of a program that did not write the time of day; --since and "
        "--until take seconds of the run there\n");
  }
  if (words.from > 0 && words.from >= summary->next.value) {
    std::fprintf(stderr, "note: the journal has %lld records, there is none from %lld on\n",
                 static_cast<long long>(summary->next.value), static_cast<long long>(words.from));
  } else if (seen == 0) {
    std::fprintf(stderr, "note: the journal has no record yet\n");
  } else if (printer.passed() == 0) {
    std::fprintf(stderr, "note: none of the %lld records passes\n", static_cast<long long>(seen));
    if (const int64_t places = config ? PlacesOf(*config) : INT64_MAX; filter->worker.worker.value >= places)
      std::fprintf(stderr, "note: --worker %s: the places of this run are 0 to %lld\n", words.worker.c_str(),
                   static_cast<long long>(places - 1));
  }
}

}  // namespace

// A run that was ended in its first moments has a folder, and no record.
Status OfJournal(const RunPlace& place, const Status& status) {
  if (status.code() != StatusCode::kNotFound || place.dir.empty()) return status;
  return NotFound(place.dir +
                  ": nothing has happened in this run yet, it has no record; if nobody works on it, go on "
                  "with `tidepool train CONFIG --run-dir " +
                  place.dir + " --resume`");
}

void AddJournalCommand(CLI::App& app, CommandContext& context) {
  const CLI::Validator not_negative(
      [](const std::string& text) {
        return text.starts_with('-') ? "is " + text + "; expected 0 or more" : "";
      },
      "");
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? "is empty; expected a value" : ""; }, "");
  auto words = std::make_shared<JournalWords>();
  CLI::App* command =
      app.add_subcommand("journal", "Every record of what happened, or those that you ask for");
  command
      ->add_option("run", words->run,
                   "Run directory, or the name of a run under runs/ (the newest that begins so)")
      ->required();
  command->add_flag("--json", words->json, "For machines");
  command->add_option("--from", words->from, "First record (lsn)")->check(not_negative);
  command->add_option("--kind", words->kinds, "Records of this kind: FAULT, STEP_COMMIT; several: A,B")
      ->delimiter(',');
  command->add_option("--sample", words->sample, "About this sample (12.0.3), group (12.0) or row (12)")
      ->check(not_empty);
  command
      ->add_option("--worker", words->worker,
                   "About this worker: device-0, or its place: 0; or one life of it: device-0/inc1")
      ->check(not_empty);
  command->add_option("--step", words->step, "About this step (7), or these (7-12)")->check(not_empty);
  command
      ->add_option("--since", words->since,
                   "Not before: UTC (2026-01-31T12:00:00), or seconds since the controller began")
      ->check(not_empty);
  command->add_option("--until", words->until, "Not after, likewise")->check(not_empty);
  command->add_option("--tail", words->tail, "The last so many of them")->check(not_negative);
  command->add_flag("--follow", words->follow, "Go on until the run ends");
  command->footer(
      "RUN may also be a folder of journal segments.\nExample: tidepool journal quickstart --kind "
      "FAULT,STEP_COMMIT --tail 20");
  command->callback([words, &context] { Journal(context, *words); });
}

}  // namespace tidepool::workers
