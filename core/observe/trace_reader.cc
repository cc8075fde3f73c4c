#include "core/observe/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

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

double NumberAt(const json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_number() ? it->get<double>() : 0.0;
}

std::string TextAt(const json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
}

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
    for (const json& event : *events) {
      if (!event.is_object()) continue;
      const std::string phase = TextAt(event, "ph");
      const auto worker = static_cast<int64_t>(NumberAt(event, "pid"));
      const auto role = static_cast<int64_t>(NumberAt(event, "tid"));
      const std::string name = TextAt(event, "name");
      if (phase == "M" && event.contains("args") && event["args"].is_object()) {
        if (name == "process_name") trace.workers[worker] = TextAt(event["args"], "name");
        if (name == "thread_name") trace.roles[{worker, role}] = TextAt(event["args"], "name");
      } else if (phase == "X") {
        trace.spans.push_back({worker, role, name, TextAt(event, "cat"), NumberAt(event, "ts") / 1e6,
                               NumberAt(event, "dur") / 1e6});
      }
    }
  }
  std::ranges::stable_sort(trace.spans, {}, &ReadSpan::start_s);
  return trace;
}

}  // namespace tidepool::observe
