#include "core/observe/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/status.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

std::vector<std::string> TraceFiles(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if ((name.ends_with(".json.gz") || name.ends_with(".json")) && name != "all.json.gz")
      paths.push_back(it->path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

// The text of a gzip file (several members are read as one) or of a plain one, a piece at a time.
class GzipText : public std::streambuf {
 public:
  explicit GzipText(const std::string& path) : file_(::gzopen(path.c_str(), "rbe")) {}
  GzipText(const GzipText&) = delete;
  GzipText& operator=(const GzipText&) = delete;
  ~GzipText() override { Close(); }
  // False: it could not be read to its end.
  bool Close() { return file_ != nullptr && ::gzclose_r(std::exchange(file_, nullptr)) == Z_OK && !failed_; }

 protected:
  int_type underflow() override {
    const int got = file_ == nullptr ? -1 : ::gzread(file_, piece_.data(), piece_.size());
    failed_ = failed_ || got < 0;
    if (got <= 0) return traits_type::eof();
    setg(piece_.data(), piece_.data(), piece_.data() + got);
    return traits_type::to_int_type(piece_[0]);
  }

 private:
  gzFile file_;
  bool failed_ = false;
  std::array<char, 65536> piece_{};
};

// One of a file in the Chrome trace format, as far as it is read.
struct EventArgs {
  std::string name;
};
struct Event {
  std::string ph, name, cat;
  double pid = 0, tid = 0, ts = 0, dur = 0;
  EventArgs args;
};
TP_FIELDS(EventArgs, name)
TP_FIELDS(Event, ph, name, cat, pid, tid, ts, dur, args)

void Take(const json& item, ReadTrace& trace) {
  Event event;
  FromJson(item, event);
  const auto worker = static_cast<int64_t>(event.pid), role = static_cast<int64_t>(event.tid);
  if (event.ph == "X") {
    trace.Add({worker, role, event.name, event.cat, event.ts / 1e6, event.dur / 1e6});
  } else if (event.ph == "M" && event.name == "process_name") {
    trace.workers[worker] = event.args.name;
  } else if (event.ph == "M" && event.name == "thread_name") {
    trace.roles[{worker, role}] = event.args.name;
  }
}

// {"traceEvents": [event, ...]} or [event, ...]. Each event is dropped when it was taken.
Status ReadEvents(const std::string& path, ReadTrace& trace) {
  GzipText text(path);
  std::istream in(&text);
  std::string key;
  int events_depth = -1;  // of the events, while the parser is among them
  bool found = false;
  const json parsed = json::parse(
      in,
      [&](int depth, json::parse_event_t what, const json& value) {
        const bool of_trace = depth == 0 || (depth == 1 && key == "traceEvents");
        if (what == json::parse_event_t::key && depth == 1) {
          key = value.get<std::string>();
        } else if (what == json::parse_event_t::array_start && of_trace) {
          found = true;
          events_depth = depth + 1;
        } else if (what == json::parse_event_t::array_end && depth + 1 == events_depth) {
          events_depth = -1;
        } else if (what == json::parse_event_t::object_end && depth == events_depth) {
          Take(value, trace);
          return false;
        }
        return true;
      },
      /*allow_exceptions=*/false);
  if (!text.Close()) return DataLoss(path + ": cannot be read to its end; it is damaged or cut off");
  if (parsed.is_discarded() || !found)
    return DataLoss(path + ": no trace; expected {\"traceEvents\": [...]}");
  return OkStatus();
}

// Neighbours of a lane become one where they have the same category and no more than `gap` between them, or
// where they are no longer than `gap` together: of several categories the one with the most time is shown.
std::vector<ReadSpan> Merged(std::vector<ReadSpan>&& spans, double gap) {
  std::vector<ReadSpan> out;
  std::map<std::pair<int64_t, int64_t>, size_t> last;  // by lane
  const auto share = [](const ReadSpan& span) { return span.count == 1 ? span.duration_s : span.share_s; };
  for (ReadSpan& span : spans) {
    const auto [at, first] = last.try_emplace({span.worker, span.role}, out.size());
    if (!first) {
      ReadSpan& before = out[at->second];
      const double before_end = before.start_s + before.duration_s, end = span.start_s + span.duration_s;
      const bool same = before.category == span.category;
      const bool one_phase = same && !before.mixed && !span.mixed && span.start_s - before_end <= gap;
      if (one_phase || end - before.start_s <= gap) {
        before.share_s = share(before);
        if (same) {
          before.share_s += share(span);
        } else if (share(span) > before.share_s) {
          before.share_s = share(span);
          before.category = std::move(span.category);
          before.name = std::move(span.name);
        }
        before.mixed = before.mixed || span.mixed || !same;
        before.duration_s = std::max(before_end, end) - before.start_s;
        before.count += span.count;
        continue;
      }
    }
    at->second = out.size();
    out.push_back(std::move(span));
  }
  return out;
}

}  // namespace

void MergeSpans(std::vector<ReadSpan>& spans, size_t most) {
  std::ranges::stable_sort(spans, {}, &ReadSpan::start_s);
  double end = 0;
  for (const ReadSpan& span : spans) end = std::max(end, span.start_s + span.duration_s);
  for (double gap = end / 20000; spans.size() > most && gap < 2 * end; gap *= 2)
    spans = Merged(std::move(spans), gap);
}

void ReadTrace::Add(ReadSpan span) {
  spans.push_back(std::move(span));
  if (spans.size() > kSpansKeptMax) MergeSpans(spans, kSpansKeptMax / 2);
}

ReadTrace ReadTraces(const std::string& folder) {
  ReadTrace trace;
  for (const std::string& path : TraceFiles(folder)) {
    if (const Status read = ReadEvents(path, trace); !read.ok()) trace.problems.push_back(read.message());
  }
  std::ranges::stable_sort(trace.spans, {}, &ReadSpan::start_s);
  return trace;
}

}  // namespace tidepool::observe
