#include "core/storage/lazy_sync.h"

#include <set>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool::storage {

struct LazySync::State {
  std::shared_ptr<FileSystem> fs;
  Mutex mu;
  std::set<std::string> files TP_GUARDED_BY(mu);  // written since the sync that began last
};

LazySync::LazySync(std::shared_ptr<FileSystem> fs) : state_(std::make_shared<State>()) {
  state_->fs = std::move(fs);
}

void LazySync::Soon(const std::string& file) {
  {
    const MutexLock lock(state_->mu);
    if (!state_->files.insert(file).second || state_->files.size() > 1) return;
  }
  disk_.Do("group commit", [state = state_](const DiskThread::Say& say) {
    std::this_thread::sleep_for(kWithin);
    std::set<std::string> files;
    {
      const MutexLock lock(state->mu);
      files = std::exchange(state->files, {});
    }
    for (const std::string& each : files) {
      say("fsync of " + each);
      (void)state->fs->SyncFile(each);
    }
  });
}

}  // namespace tidepool::storage
