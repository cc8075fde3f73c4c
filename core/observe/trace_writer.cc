#include "core/observe/trace_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/thread_annotations.h"
#include "core/observe/append_file.h"

namespace tidepool::observe {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json ToJson(const TraceArgs& args) {
  Json j = Json::object();
  for (const auto& [name, value] : args) {
    std::visit([&j, &name = name](const auto& v) { j[name] = v; }, value);
  }
  return j;
}

constexpr std::string_view kEnd = "\n]}\n";

}  // namespace

class TraceWriter::File {
 public:
  File(int fd, std::string path, TraceOptions options)
      : fd_(fd), path_(std::move(path)), options_(std::move(options)) {
    // 15 + 16: gzip with the largest window.
    ready_ =
        deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
    if (!ready_) broken_ = true;
    Json head = {{"name", "process_name"},
                 {"ph", "M"},
                 {"pid", options_.worker},
                 {"tid", 0},
                 {"args", {{"name", options_.worker_name}}}};
    pending_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"clock_offset_us\":\"" +
               std::to_string(options_.clock_offset.count() / 1000) + "\"},\"traceEvents\":[\n" + Dump(head);
  }
  ~File() {
    (void)Flush();  // nobody is left to tell
    if (ready_) deflateEnd(&stream_);
    ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void Put(Json event) {
    event["pid"] = options_.worker;
    const MutexLock lock(mu_);
    if (broken_) return;
    pending_ += ",\n";
    pending_ += Dump(event);
    if (static_cast<int64_t>(pending_.size()) >= options_.flush_bytes)
      (void)FlushLocked();  // kept in broken_
  }

  [[nodiscard]] double Microseconds(TimePoint when) const {
    return static_cast<double>((when.since_start + options_.clock_offset).count()) / 1000.0;
  }

  Status Flush() {
    const MutexLock lock(mu_);
    return FlushLocked();
  }

 private:
  Status FlushLocked() TP_REQUIRES(mu_) {
    if (broken_) return std::exchange(error_, OkStatus());
    if (pending_.empty()) return OkStatus();
    std::string bytes;
    Deflate(stream_, pending_, Z_SYNC_FLUSH, bytes);
    pending_.clear();
    const auto grown = static_cast<int64_t>(bytes.size());
    // The end is made by a copy of the compressor, so that the file can go on from before it.
    z_stream end{};
    if (deflateCopy(&end, &stream_) != Z_OK)
      return Break(ResourceExhausted(path_ + ": no memory for the compressor"));
    Deflate(end, kEnd, Z_FINISH, bytes);
    deflateEnd(&end);
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n =
          ::pwrite(fd_, bytes.data() + at, bytes.size() - at, offset_ + static_cast<int64_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Break(FileError(errno, "write; this trace ends here", path_));
      at += static_cast<size_t>(n);
    }
    offset_ += grown;
    return OkStatus();
  }

  Status Break(Status status) TP_REQUIRES(mu_) {
    broken_ = true;
    error_ = status;
    return std::exchange(error_, OkStatus());
  }

  static void Deflate(z_stream& stream, std::string_view in, int flush, std::string& out) {
    std::array<unsigned char, 16384> buffer{};
    stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(in.data()));
    stream.avail_in = static_cast<unsigned int>(in.size());
    do {
      stream.next_out = buffer.data();
      stream.avail_out = buffer.size();
      deflate(&stream, flush);
      out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }

  int fd_;
  std::string path_;
  TraceOptions options_;
  Mutex mu_;
  std::string pending_ TP_GUARDED_BY(mu_);  // JSON not yet compressed
  z_stream stream_ TP_GUARDED_BY(mu_){};
  bool ready_ = false;
  bool broken_ TP_GUARDED_BY(mu_) = false;
  Status error_ TP_GUARDED_BY(mu_);
  int64_t offset_ TP_GUARDED_BY(mu_) = 0;  // where the end stands, to be written over
};

StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Create(const std::string& path,
                                                           const TraceOptions& options) {
  TP_RETURN_IF_ERROR(MakeFolderOf(path));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(errno, "open for writing", path);
  auto writer = std::unique_ptr<TraceWriter>(new TraceWriter(std::make_unique<File>(fd, path, options)));
  TP_RETURN_IF_ERROR(writer->Flush());
  return writer;
}

TraceWriter::TraceWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}
TraceWriter::~TraceWriter() = default;

void TraceWriter::NameRole(int role, std::string_view name) {
  file_->Put({{"name", "thread_name"}, {"ph", "M"}, {"tid", role}, {"args", {{"name", name}}}});
}

void TraceWriter::Add(const TraceSpan& span) {
  Json event = {{"name", span.name},
                {"cat", span.category},
                {"ph", "X"},
                {"ts", file_->Microseconds(span.start)},
                {"dur", static_cast<double>(span.duration.count()) / 1000.0},
                {"tid", span.role}};
  if (!span.args.empty()) event["args"] = ToJson(span.args);
  file_->Put(std::move(event));
}

Status TraceWriter::Flush() { return file_->Flush(); }

}  // namespace tidepool::observe
