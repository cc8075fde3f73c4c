#include "workers/device/sample_log.h"

#include <chrono>
#include <map>
#include <utility>

#include "core/base/thread_annotations.h"
#include "core/storage/lazy_sync.h"
#include "core/storage/payload.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

using Clock = std::chrono::steady_clock;

// What another host has written may take a moment to be seen here.
constexpr auto kSeen = std::chrono::seconds(5);
constexpr auto kSeenSoon = std::chrono::seconds(2);
constexpr auto kAnswers = 2 * kSeen;  // the disk, or it is given up

struct SampleLog::State {
  std::shared_ptr<FileSystem> fs;
  Options options;
  std::unique_ptr<storage::TokenLogWriter> tokens;  // the caller's
  std::unique_ptr<storage::PayloadWriter> payload;  // the disk thread's
  std::unique_ptr<storage::LazySync> sync_soon;
  Mutex mu;
  std::function<void(up::Stored)> say TP_GUARDED_BY(mu);  // none: nobody is to be told any more
  std::vector<HeldTokens::Finished> waiting TP_GUARDED_BY(mu);
  std::map<int64_t, std::pair<DeviceWork::ToRead, Clock::time_point>> reading TP_GUARDED_BY(mu);  // by count
  int64_t reads TP_GUARDED_BY(mu) = 0;
  std::vector<DeviceWork::WasRead> read TP_GUARDED_BY(mu);

  StatusOr<storage::PayloadRef> Write(const HeldTokens::Finished& f) {
    // Who goes on with the words of others waits until they are seen here; its own always are.
    const bool others = options.sync && !f.outline.empty();
    const auto until = Clock::now() + (others ? kSeenSoon : std::chrono::seconds(0));
    TP_ASSIGN_OR_RETURN(auto chain, storage::AwaitTokenChain(*fs, storage::RunPaths(options.run_dir).tokens(),
                                                             f.tid, f.att, f.newest, until));
    sample::Trajectory t{.tid = f.tid,
                         .att = f.att,
                         .finish = f.finish,
                         .prompt = sample::PromptSegment(f.prompt),
                         .segments = {}};
    if (f.outline.empty()) {
      t.segments = std::move(chain.segments);
    } else {
      TP_ASSIGN_OR_RETURN(t.segments, storage::FillOutline(f.outline, std::move(chain), f.tid));
    }
    return payload->Append(t);
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
    if (!options.sync && !all.empty()) sync_soon->Soon(payload->current_file());
    const MutexLock lock(mu);
    for (up::Stored& s : stored) {
      if (say) say(std::move(s));
    }
  }
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
  state->sync_soon = std::make_unique<storage::LazySync>(state->fs);
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
  const auto written = state_->tokens->Append(entries);
  if (!written.ok()) {
    for (size_t i = 0; i < deltas.size(); ++i) deltas[i].delta->tokens = std::move(entries[i].tokens);
    return written.status();
  }
  const auto& places = *written;
  // Hosts that are to read it see what has reached the disk.
  if (state_->options.sync) state_->sync_soon->Soon(state_->tokens->current_file());
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

void SampleLog::Read(const DeviceWork::ToRead& what) {
  const auto now = Clock::now();
  int64_t number = 0;
  {
    const MutexLock lock(state_->mu);
    number = ++state_->reads;
    state_->reading.emplace(number, std::pair(what, now + kAnswers));
  }
  // All that is asked for together has the time to be seen together.
  const auto until = state_->options.sync ? now + kSeen : now;
  reading_.Do("read of tokens/", [state = state_, what, number, until](const DiskThread::Say&) {
    {
      const MutexLock lock(state->mu);
      if (!state->reading.contains(number)) return;  // given up
    }
    auto chain = storage::AwaitTokenChain(*state->fs, storage::RunPaths(state->options.run_dir).tokens(),
                                          what.tid, what.att, what.newest, until, what.known);
    const MutexLock lock(state->mu);
    if (state->reading.erase(number) == 0) return;  // given up
    if (chain.ok()) {
      state->read.push_back({what, std::move(chain->segments)});
    } else {
      state->read.push_back({what, chain.status()});
    }
  });
}

std::vector<DeviceWork::WasRead> SampleLog::TakeRead() {
  const MutexLock lock(state_->mu);
  for (auto it = state_->reading.begin(); it != state_->reading.end();) {
    if (Clock::now() < it->second.second) break;  // the later ones have more time
    state_->read.push_back({it->second.first, DeadlineExceeded("the disk of tokens/ does not answer")});
    it = state_->reading.erase(it);
  }
  return std::exchange(state_->read, {});
}

}  // namespace tidepool::workers
