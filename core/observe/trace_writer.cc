#include "core/observe/trace_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

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

using Clock = std::chrono::steady_clock;

constexpr std::string_view kEnd = "\n]}\n";
constexpr size_t kMostPending = 64 << 20;
constexpr auto kPatience = std::chrono::seconds(2);  // of who waits for the disk

}  // namespace

class TraceWriter::File {
 public:
  File(std::string path, TraceOptions options) : path_(std::move(path)), options_(std::move(options)) {
    // 15 + 16: gzip with the largest window.
    ready_ =
        deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
    Json head = {{"name", "process_name"},
                 {"ph", "M"},
                 {"pid", options_.worker},
                 {"tid", 0},
                 {"args", {{"name", options_.worker_name}}}};
    pending_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"clock_offset_us\":\"" +
               std::to_string(options_.clock_offset.count() / 1000) + "\"},\"traceEvents\":[\n" + Dump(head);
  }
  ~File() {
    if (ready_) deflateEnd(&stream_);
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void Put(Json event) {
    event["pid"] = options_.worker;
    const MutexLock lock(mu_);
    if (broken_) return;
    pending_ += ",\n";
    pending_ += Dump(event);
    if (pending_.size() > kMostPending)
      Break(ResourceExhausted(path_ + ": the disk does not keep up; this trace ends here"));
  }

  [[nodiscard]] double Microseconds(TimePoint when) const {
    return static_cast<double>((when.since_start + options_.clock_offset).count()) / 1000.0;
  }

  Status Flush() {
    const auto until = Clock::now() + kPatience;
    const MutexLock lock(mu_);
    const int64_t wanted = written_ + (writing_ ? 2 : 1);  // one that is under way may lack the newest
    asked_ = true;
    changed_.NotifyAll();
    while (written_ < wanted && !broken_) {
      if (Clock::now() >= until) return DeadlineExceeded(path_ + ": the disk does not take it");
      changed_.WaitFor(mu_, until - Clock::now());
    }
    return std::exchange(error_, OkStatus());
  }
  void Stop() {
    const MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }

  void Run() {
    std::string text;
    while (Next(text)) {
      const Status written = Write(text);
      const MutexLock lock(mu_);
      if (!written.ok()) Break(written);
      writing_ = false;
      ++written_;
      changed_.NotifyAll();
    }
  }

 private:
  // False: it is over.
  bool Next(std::string& text) {
    const MutexLock lock(mu_);
    if (!asked_ && !stop_)
      changed_.WaitFor(mu_, std::chrono::seconds(1), [&]() TP_REQUIRES(mu_) { return asked_ || stop_; });
    asked_ = false;
    if (broken_ || stop_) return false;
    text = std::exchange(pending_, {});
    writing_ = true;
    return true;
  }

  Status Write(const std::string& text) {
    if (!ready_) return ResourceExhausted(path_ + ": no memory for the compressor");
    if (fd_ < 0) {
      TP_RETURN_IF_ERROR(MakeFolderOf(path_));
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
      if (fd_ < 0) return FileError(errno, "open for writing", path_);
    }
    if (text.empty()) return OkStatus();
    std::string bytes;
    Deflate(stream_, text, Z_SYNC_FLUSH, bytes);
    const auto grown = static_cast<int64_t>(bytes.size());
    // The end is made by a copy of the compressor, so that the file can go on from before it.
    z_stream end{};
    if (deflateCopy(&end, &stream_) != Z_OK)
      return ResourceExhausted(path_ + ": no memory for the compressor");
    Deflate(end, kEnd, Z_FINISH, bytes);
    deflateEnd(&end);
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n =
          ::pwrite(fd_, bytes.data() + at, bytes.size() - at, offset_ + static_cast<int64_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "write; this trace ends here", path_);
      at += static_cast<size_t>(n);
    }
    offset_ += grown;
    return OkStatus();
  }

  void Break(Status status) TP_REQUIRES(mu_) {
    if (broken_) return;
    broken_ = true;
    error_ = std::move(status);
    pending_.clear();
    changed_.NotifyAll();
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

  const std::string path_;
  const TraceOptions options_;
  // Of the thread, which opens the file as well: a disk that hangs holds nobody else.
  int fd_ = -1;
  z_stream stream_{};
  bool ready_ = false;
  int64_t offset_ = 0;  // where the end stands, to be written over
  Mutex mu_;
  Condition changed_;
  std::string pending_ TP_GUARDED_BY(mu_);  // JSON that nobody has written yet
  bool asked_ TP_GUARDED_BY(mu_) = false, writing_ TP_GUARDED_BY(mu_) = false;
  bool stop_ TP_GUARDED_BY(mu_) = false, broken_ TP_GUARDED_BY(mu_) = false;
  int64_t written_ TP_GUARDED_BY(mu_) = 0;  // times that it wrote
  Status error_ TP_GUARDED_BY(mu_);
};

StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Create(const std::string& path,
                                                           const TraceOptions& options) {
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::make_shared<File>(path, options)));
  try {
    std::thread([file = writer->file_] { file->Run(); }).detach();  // it owns what it needs
  } catch (const std::system_error& e) {
    return ResourceExhausted(path + ": no thread to write it (" + e.what() + ")");
  }
  TP_RETURN_IF_ERROR(writer->Flush());
  return writer;
}

TraceWriter::TraceWriter(std::shared_ptr<File> file) : file_(std::move(file)) {}
TraceWriter::~TraceWriter() {
  (void)file_->Flush();  // nobody is left to tell
  file_->Stop();
}

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
