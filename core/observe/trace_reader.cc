#include "core/observe/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/append_file.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;
constexpr int64_t kMaxTraceBytes = int64_t{1} << 30;

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

StatusOr<json> ReadEvents(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string bytes, RealFileSystem().ReadFile(path, kMaxTraceBytes));
  auto text = Gunzip(bytes, kMaxTraceBytes);
  if (!text.ok()) return text.status().At(path);
  json j = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (j.is_object() && j.contains("traceEvents")) j = json(std::move(j["traceEvents"]));
  if (!j.is_array()) return DataLoss(path + ": no trace; expected {\"traceEvents\": [...]}");
  return j;
}

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

}  // namespace

StatusOr<std::string> Gunzip(const std::string& bytes, int64_t max_bytes) {
  if (!bytes.starts_with("\x1f\x8b")) return bytes;
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return ResourceExhausted("no memory to decompress");
  std::string out;
  std::array<unsigned char, 65536> buffer{};
  stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<unsigned int>(bytes.size());
  int rc = Z_OK;
  while (rc == Z_OK && static_cast<int64_t>(out.size()) <= max_bytes) {
    stream.next_out = buffer.data();
    stream.avail_out = buffer.size();
    rc = inflate(&stream, Z_NO_FLUSH);
    out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
    if (rc == Z_STREAM_END && stream.avail_in > 0 && *stream.next_in == 0x1f) rc = inflateReset(&stream);
  }
  inflateEnd(&stream);
  if (static_cast<int64_t>(out.size()) > max_bytes)
    return ResourceExhausted("more than " + std::to_string(max_bytes) + " bytes decompressed");
  if (rc != Z_STREAM_END) return DataLoss("the gzip data is damaged or cut off");
  return out;
}

ReadTrace ReadTraces(const std::string& folder) {
  ReadTrace trace;
  for (const std::string& path : TraceFiles(folder)) {
    const auto events = ReadEvents(path);
    if (!events.ok()) {
      trace.problems.push_back(events.status().message());
      continue;
    }
    for (const json& item : *events) {
      Event event;
      FromJson(item, event);
      const auto worker = static_cast<int64_t>(event.pid), role = static_cast<int64_t>(event.tid);
      if (event.ph == "X") {
        trace.spans.push_back({worker, role, event.name, event.cat, event.ts / 1e6, event.dur / 1e6});
      } else if (event.ph == "M" && event.name == "process_name") {
        trace.workers[worker] = event.args.name;
      } else if (event.ph == "M" && event.name == "thread_name") {
        trace.roles[{worker, role}] = event.args.name;
      }
    }
  }
  std::ranges::stable_sort(trace.spans, {}, &ReadSpan::start_s);
  return trace;
}

}  // namespace tidepool::observe
