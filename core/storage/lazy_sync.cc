#include "core/storage/lazy_sync.h"

#include <set>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool::storage {

struct LazySync::State {
  std::shared_ptr<FileSystem> fs;
  Options options;
  Mutex mu;
  std::set<std::pair<int, std::string>> files TP_GUARDED_BY(mu);  // written since the sync that began last

  void Sync(const DiskThread::Say& say) TP_EXCLUDES(mu) {
    std::this_thread::sleep_for(kWithin);
    std::set<std::pair<int, std::string>> all;
    {
      const MutexLock lock(mu);
      all = std::exchange(files, {});
    }
    for (const auto& [rank, file] : all) {
      const std::string in = options.folder + "/";
      say("fsync of " + (!options.folder.empty() && file.starts_with(in) ? file.substr(in.size()) : file));
      const Status synced = fs->SyncFile(file);
      if (synced.code() == StatusCode::kNotFound) continue;  // nobody needed it any more, and it was removed
      if (!synced.ok() && options.failed && !options.failed(file, synced)) return;
    }
  }
};

LazySync::LazySync(std::shared_ptr<FileSystem> fs, Options options) : state_(std::make_shared<State>()) {
  state_->fs = std::move(fs);
  state_->options = std::move(options);
}

void LazySync::Soon(const std::string& file, int rank) {
  {
    const MutexLock lock(state_->mu);
    if (!state_->files.emplace(rank, file).second || state_->files.size() > 1) return;
  }
  disk_.Do("group commit", [state = state_](const DiskThread::Say& say) { state->Sync(say); });
}

}  // namespace tidepool::storage
