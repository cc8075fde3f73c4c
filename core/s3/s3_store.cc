// A place in S3 as a store of checkpoints, and the entry points of libtidepool_s3.so. Part of the module
// only.

#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "core/storage/s3_module.h"

#define TP_EXPORT extern "C" __attribute__((visibility("default")))

namespace tidepool::storage {
namespace {

namespace s3 = arrow::fs;
using Clock = std::chrono::steady_clock;

// Of an upload, and of what is read at a time: Arrow sends a part when it has 10 MiB.
constexpr int64_t kS3PieceBytes = int64_t{8} << 20;
// Silence of a connection; then the request is tried again.
constexpr double kSilence_s = 10;
constexpr int64_t kFirstDelay_ms = 100, kLongestDelay_ms = 5000;

// Tries again what may help, for so long. Arrow makes a request, with its repetitions, on one thread.
class RetryForSeconds : public s3::S3RetryStrategy {
 public:
  explicit RetryForSeconds(double seconds) : seconds_(seconds) {}
  bool ShouldRetry(const AWSErrorDetail& error, int64_t attempted) override {
    thread_local Clock::time_point begun;
    if (attempted == 0) begun = Clock::now();
    return error.should_retry && std::chrono::duration<double>(Clock::now() - begun).count() < seconds_;
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&, int64_t attempted) override {
    return std::min(kFirstDelay_ms << std::min<int64_t>(attempted, 10), kLongestDelay_ms);
  }

 private:
  const double seconds_;
};

// What Amazon and others call it, and what to do.
struct KnownError {
  const char* name;
  StatusCode code;
  const char* remedy;
};
constexpr KnownError kKnownErrors[] = {
    {"NO_SUCH_BUCKET", StatusCode::kFailedPrecondition,
     "there is no such bucket; make it, or correct checkpoint.store"},
    {"NoSuchBucket", StatusCode::kFailedPrecondition,
     "there is no such bucket; make it, or correct checkpoint.store"},
    {"NO_SUCH_KEY", StatusCode::kNotFound, "there is no such object; it was removed, or never put there"},
    {"ACCESS_DENIED", StatusCode::kPermissionDenied,
     "access denied; the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials, of "
     "this "
     "host) have to read, write, list and delete there"},
    {"INVALID_ACCESS_KEY_ID", StatusCode::kPermissionDenied,
     "the access key is not known there; correct AWS_ACCESS_KEY_ID or ~/.aws/credentials of this host"},
    {"SIGNATURE_DOES_NOT_MATCH", StatusCode::kPermissionDenied,
     "the secret key does not belong to the access key; correct AWS_SECRET_ACCESS_KEY or ~/.aws/credentials "
     "of "
     "this host"},
    {"EXPIRED_TOKEN", StatusCode::kPermissionDenied, "the credentials of this host have expired; renew them"},
    {"ExpiredToken", StatusCode::kPermissionDenied, "the credentials of this host have expired; renew them"},
    {"StorageFull", StatusCode::kResourceExhausted, "it is full; make room there"},
    {"QuotaExceeded", StatusCode::kResourceExhausted, "its quota is used up; make room there, or raise it"},
    {"HTTP status 507", StatusCode::kResourceExhausted, "it is full; make room there"},
    {"PermanentRedirect", StatusCode::kFailedPrecondition,
     "the bucket is in another region; set checkpoint.s3_region"},
    {"HTTP status 301", StatusCode::kFailedPrecondition,
     "the bucket is in another region; set checkpoint.s3_region"},
};

Status ToStatus(const arrow::Status& status, const StorePlace& place, const std::string& key) {
  if (status.ok()) return OkStatus();
  const std::string said = status.message();
  StatusCode code = StatusCode::kUnavailable;
  std::string remedy = "it did not answer as it should for " +
                       std::to_string(static_cast<int64_t>(place.timeout_s)) +
                       " s (checkpoint.store_timeout_s); look whether this host reaches it";
  // "Path does not exist": a HEAD that finds nothing has no words.
  if (status.IsIOError() && said.find("does not exist") != std::string::npos) {
    code = StatusCode::kNotFound;
    remedy = "there is no such object; it was removed, or never put there";
  }
  for (const KnownError& known : kKnownErrors) {
    if (said.find(known.name) == std::string::npos) continue;
    code = known.code;
    remedy = known.remedy;
    break;
  }
  return ErrorOf(place, Status(code, (key.empty() ? "" : key + ": ") + remedy + " (" + said + ")"));
}

class S3Store : public CheckpointStore {
 public:
  S3Store(std::shared_ptr<s3::S3FileSystem> fs, StorePlace place)
      : fs_(std::move(fs)), place_(std::move(place)), base_(place_.Path().substr(5)) {}
  // Arrow has to be ended before its statics go, at the end of the process: what is registered last is done
  // first, and by now all statics are there that the calls of this store have made.
  ~S3Store() override {
    fs_.reset();
    std::atexit([] { (void)s3::EnsureS3Finalized(); });
  }
  S3Store(const S3Store&) = delete;
  S3Store& operator=(const S3Store&) = delete;

  Status Put(const std::string& path, const std::string& key, const GoOn& go_on) override {
    std::ifstream in(path, std::ios::binary);
    if (!in) return NotFound(path + ": cannot be read");
    auto opened = fs_->OpenOutputStream(base_ + "/" + key);
    if (!opened.ok()) return ToStatus(opened.status(), place_, key);
    const std::shared_ptr<arrow::io::OutputStream> out = *std::move(opened);
    std::vector<char> piece(kS3PieceBytes);
    Status status;
    while (status.ok() && in) {
      in.read(piece.data(), kS3PieceBytes);
      if (in.bad()) status = DataLoss(path + ": cannot be read to its end");
      if (status.ok() && !go_on()) status = Status(StatusCode::kCancelled, key + ": was called off");
      if (status.ok()) status = ToStatus(out->Write(piece.data(), in.gcount()), place_, key);
    }
    if (status.ok()) return ToStatus(out->Close(), place_, key);
    (void)out->Abort();  // the first error is the one to tell; parts that stay are the bucket's to expire
    return status;
  }

  Status Read(const std::string& key, const Take& take) override {
    auto opened = fs_->OpenInputFile(base_ + "/" + key);
    if (!opened.ok()) {
      const Status error = ToStatus(opened.status(), place_, key);
      if (error.code() == StatusCode::kNotFound) TP_RETURN_IF_ERROR(FindBucket());
      return error;
    }
    std::vector<char> piece(kS3PieceBytes);
    for (int64_t at = 0;;) {
      const auto read = (*opened)->ReadAt(at, kS3PieceBytes, piece.data());
      if (!read.ok()) return ToStatus(read.status(), place_, key);
      if (*read == 0) return OkStatus();
      TP_RETURN_IF_ERROR(take({piece.data(), static_cast<size_t>(*read)}));
      at += *read;
    }
  }

  StatusOr<std::vector<Object>> List() override { return ListBelow(base_); }

  Status RemoveAll() override {
    TP_RETURN_IF_ERROR(RemoveBelow(base_));
    // The folder of the run goes with the last that was in it.
    const size_t slash = base_.rfind('/');
    if (place_.below.find('/') == std::string::npos) return OkStatus();
    const std::string parent = base_.substr(0, slash);
    TP_ASSIGN_OR_RETURN(const auto others, ListBelow(parent));
    return others.empty() ? RemoveBelow(parent) : OkStatus();
  }

 private:
  StatusOr<std::vector<Object>> ListBelow(const std::string& folder) {
    s3::FileSelector selector;
    selector.base_dir = folder;
    selector.allow_not_found = true;
    selector.recursive = true;
    const auto found = fs_->GetFileInfo(selector);
    if (!found.ok()) return ToStatus(found.status(), place_, "");
    std::vector<Object> objects;
    for (const s3::FileInfo& info : *found) {
      if (info.type() == s3::FileType::File)
        objects.push_back({info.path().substr(folder.size() + 1), info.size()});
    }
    if (objects.empty()) TP_RETURN_IF_ERROR(FindBucket());
    std::ranges::sort(objects, {}, &Object::key);
    return objects;
  }
  // Of a bucket that is not there Arrow says no more than of an object that is not.
  Status FindBucket() {
    const auto info = fs_->GetFileInfo(base_.substr(0, base_.find('/')));
    if (!info.ok()) return ToStatus(info.status(), place_, "");
    if (info->type() == s3::FileType::Directory) return OkStatus();
    return ToStatus(arrow::Status::IOError("NO_SUCH_BUCKET"), place_, "");
  }
  Status RemoveBelow(const std::string& folder) {
    const auto info = fs_->GetFileInfo(folder);
    if (!info.ok()) return ToStatus(info.status(), place_, "");
    if (info->type() == s3::FileType::NotFound) return OkStatus();
    return ToStatus(fs_->DeleteDir(folder), place_, "");
  }

  std::shared_ptr<s3::S3FileSystem> fs_;
  const StorePlace place_;
  const std::string base_;  // "bucket/prefix/run/step": without a slash at its end
};

StatusOr<std::unique_ptr<CheckpointStore>> Open(const StorePlace& place) {
  static const arrow::Status begun = [] {
    // AWS' library writes to connections that the other side may have closed. A program that has chosen what
    // to do then keeps it.
    struct sigaction now {};
    if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
    return s3::EnsureS3Initialized();
  }();
  if (!begun.ok()) return ToStatus(begun, place, "");
  s3::S3Options options = s3::S3Options::Defaults();  // credentials by AWS' own rules
  if (!place.region.empty()) options.region = place.region;
  if (const size_t scheme = place.endpoint.find("://"); scheme != std::string::npos) {
    options.scheme = place.endpoint.substr(0, scheme);
    options.endpoint_override = place.endpoint.substr(scheme + 3);
  }
  options.connect_timeout = options.request_timeout = std::min(kSilence_s, place.timeout_s);
  options.background_writes = false;  // else all that is written would wait in memory
  options.retry_strategy = std::make_shared<RetryForSeconds>(place.timeout_s);
  auto made = s3::S3FileSystem::Make(options);
  if (!made.ok()) return ToStatus(made.status(), place, "");
  return std::unique_ptr<CheckpointStore>(std::make_unique<S3Store>(*std::move(made), place));
}

}  // namespace

TP_EXPORT int tidepool_s3_abi() { return TIDEPOOL_S3_INTERFACE; }

TP_EXPORT void tidepool_s3_open(const StorePlace* place, S3Opened* opened) { *opened = Open(*place); }

}  // namespace tidepool::storage
