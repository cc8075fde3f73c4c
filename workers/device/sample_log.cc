#include "workers/device/sample_log.h"

#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "core/base/thread_annotations.h"
#include "core/storage/payload.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

// Between a write and the sync that brings it to the disk, where nobody waits for it.
constexpr auto kGroupCommit = std::chrono::milliseconds(20);

struct SampleLog::State : std::enable_shared_from_this<State> {
  std::shared_ptr<FileSystem> fs;
  Options options;
  std::unique_ptr<storage::TokenLogWriter> tokens;  // the caller's
  std::unique_ptr<storage::PayloadWriter> payload;  // the disk thread's
  Mutex mu;
  std::function<void(up::Stored)> say TP_GUARDED_BY(mu);  // none: nobody is to be told any more
  std::vector<HeldTokens::Finished> waiting TP_GUARDED_BY(mu);

  StatusOr<storage::PayloadRef> Write(const HeldTokens::Finished& f) {
    TP_ASSIGN_OR_RETURN(auto chain, storage::ReadTokenChain(*fs, storage::RunPaths(options.run_dir).tokens(),
                                                            f.tid, f.att, f.newest));
    return payload->Append({.tid = f.tid,
                            .att = f.att,
                            .finish = f.finish,
                            .prompt = sample::PromptSegment(f.prompt),
                            .segments = std::move(chain.segments)});
  }

  // All that waits, with one sync.
  void WriteAll() TP_EXCLUDES(mu) {
    std::vector<HeldTokens::Finished> all;
    {
      const MutexLock lock(mu);
      all = std::exchange(waiting, {});
    }
    std::vector<up::Stored> stored;
    for (const HeldTokens::Finished& f : all) {
      up::Stored& s = stored.emplace_back(up::Stored{f.tid, f.att, f.newest, {}, ""});
      if (auto ref = Write(f); ref.ok()) {
        s.ref = *ref;
      } else {
        s.error = ref.status().message();
      }
    }
    if (options.sync && !all.empty()) {
      if (const Status synced = payload->Sync(); !synced.ok()) {
        for (up::Stored& s : stored) s.error = synced.message();
      }
    }
    if (!options.sync && !all.empty()) SyncSoon(payload->current_file());
    const MutexLock lock(mu);
    for (up::Stored& s : stored) {
      if (say) say(std::move(s));
    }
  }

  // Nobody is told of an error: what this host has not written when it dies, no disk has.
  void SyncSoon(const std::string& file) TP_EXCLUDES(mu) {
    {
      const MutexLock lock(mu);
      if (!unsynced.insert(file).second || unsynced.size() > 1) return;
    }
    syncing.Do("group commit", [self = shared_from_this()](const DiskThread::Say& say) {
      std::this_thread::sleep_for(kGroupCommit);
      std::set<std::string> files;
      {
        const MutexLock lock(self->mu);
        files = std::exchange(self->unsynced, {});
      }
      for (const std::string& each : files) {
        say("fsync of " + each);
        (void)self->fs->SyncFile(each);
      }
    });
  }
  std::set<std::string> unsynced TP_GUARDED_BY(mu);
  DiskThread syncing;
};

SampleLog::~SampleLog() {
  (void)disk_.Drain(DiskThread::kPatience);
  const MutexLock lock(state_->mu);
  state_->say = nullptr;
}

StatusOr<std::unique_ptr<SampleLog>> SampleLog::Open(std::shared_ptr<FileSystem> fs, const Options& options,
                                                     std::function<void(up::Stored)> say) {
  auto state = std::make_shared<State>();
  state->fs = std::move(fs);
  state->options = options;
  {
    const MutexLock lock(state->mu);
    state->say = std::move(say);
  }
  const storage::RunPaths paths(options.run_dir);
  const int64_t first = storage::FirstFileOf(options.inc);
  TP_ASSIGN_OR_RETURN(state->tokens,
                      storage::TokenLogWriter::Open(*state->fs, paths.tokens(), options.run_id, first));
  TP_ASSIGN_OR_RETURN(state->payload,
                      storage::PayloadWriter::Open(*state->fs, paths.payload(), options.run_id,
                                                   storage::kPayloadFileBytes, first));
  return std::unique_ptr<SampleLog>(new SampleLog(std::move(state)));
}

Status SampleLog::Log(const std::vector<DeviceWork::ToLog>& deltas) {
  std::vector<storage::LoggedTokens> entries;
  for (const auto& [delta, before] : deltas)
    entries.push_back({delta->tid, delta->att, delta->from, before, std::move(delta->tokens)});
  TP_ASSIGN_OR_RETURN(const auto places, state_->tokens->Append(entries));
  // Hosts that are to read it see what has reached the disk.
  if (state_->options.sync) state_->SyncSoon(state_->tokens->current_file());
  for (size_t i = 0; i < deltas.size(); ++i) {
    deltas[i].delta->tokens = entries[i].tokens.Outline();
    deltas[i].delta->logged = places[i];
  }
  return OkStatus();
}

void SampleLog::Store(HeldTokens::Finished finished) {
  {
    const MutexLock lock(state_->mu);
    state_->waiting.push_back(std::move(finished));
  }
  disk_.Do("write of payload/", [state = state_](const DiskThread::Say&) { state->WriteAll(); });
}

}  // namespace tidepool::workers
