#pragma once
// Ranks of one host: they exchange by memory that they share, in rounds.
//
// A rank has two outboxes there. In a round it fills one, says so, waits until all others have said so, and
// reads theirs; the next round takes the other outbox. Who has said so of one round has read what the round
// before brought, so an outbox is never filled while somebody reads it, and a round costs one meeting.
//
// What ranks gather is copied once, where it is much: each tells where its bytes are and how far they are
// written, and the others take them from its own memory (process_vm_readv) straight to where they want them.
// That one process may read another's is the kernel's to allow (ptrace(2): the same user, Yama's
// ptrace_scope 0); where one rank may not, all of them use the outboxes, from then on. Nobody writes what it
// shows before all have said that they are done; who goes on without that says so first, and whoever was late
// and may have read what came after learns it.
//
// A rank that waits sleeps on a futex, and looks now and then whether those that it waits for are still
// there: each holds a lock on the file for as long as it has the group, which ends with its process. So a
// rank that is gone is an error at once, and one that does not come to a round is named when the deadline is
// over, with what it did last. Ranks that are at different operations tell each other, too.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/comm/host_file.h"

namespace tidepool::comm {

// A file (host_file.h) that every rank has mapped.
class HostMemory {
 public:
  // `name`: by which the others find it. Errors of HostFile.
  static StatusOr<std::unique_ptr<HostMemory>> Make(const std::string& folder, int ranks, std::string& name);
  static StatusOr<std::unique_ptr<HostMemory>> Open(const std::string& folder, const std::string& name,
                                                    int rank, int ranks);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  static int64_t Bytes(int ranks);          // that a group takes of the host's shared memory
  static int64_t OutboxBytes(int ranks);    // of one outbox; a multiple of 64 x ranks
  void Unlink() { file_.Unlink(); }         // nobody else can open it any more
  [[nodiscard]] bool Here(int rank) const;  // whether that rank still has it

  struct Rank;  // what a rank says
  [[nodiscard]] Rank& of(int rank) const;
  [[nodiscard]] std::byte* outbox(int rank, uint32_t round) const;

 private:
  HostMemory(HostFile file, int ranks) : file_(std::move(file)), ranks_(ranks) {}
  static StatusOr<std::unique_ptr<HostMemory>> Map(HostFile file, int rank, int ranks);

  HostFile file_;
  const int ranks_;
  std::byte* base_ = nullptr;
};

// All ranks have the memory. Options as of MakeGroup.
std::unique_ptr<Collective> MakeHostGroup(const GroupOptions& options, std::unique_ptr<HostMemory> memory);

}  // namespace tidepool::comm
