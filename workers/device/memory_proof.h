#pragma once
// What a device worker proves when it has released a role: so many bytes of its slot are free.
//
//   free = capacity - held - still to come + held by the next role
// capacity: the slot's share of the machine, which is the smaller of physical memory and the cgroup's limit,
//   less what the plan says the job has in /dev/shm.
// held: what the process has, by its own count or by the system's, whichever is more; memory that a role
//   keeps although it was told to release it shows in either.
// still to come: what stays resident on this slot once it is there (weights, optimizer, further models) and
//   has not been made yet. It is set aside, so that a role's need is that of its passing arenas alone (with
//   train.offload_optimizer the actor's is also that of all it keeps beside the weights, which do not stay).
// held by the next role: what it kept of its need when it was released last, since there was room.

#include <cstdint>

#include "workers/device/memory_plan.h"

namespace tidepool::workers {

struct HeldMemory {
  model::MemoryUse roles;        // what the roles say
  int64_t further = 0;           // models beside the trained one, published copies
  int64_t resident_private = 0;  // what the system says of the process: pages that only it has
  int64_t of_next = 0;           // of all this, what the role that is granted next needs and has
};

// On a GPU, whose driver says what is free: bytes that its next role may use of them.
int64_t ProvenFreeOnGpu(int64_t free, const ProcessMemory& plan, const HeldMemory& held);

// Bytes that are free on a slot of `capacity` bytes; `plan` is its process. Below 0: more is held than there
// is.
int64_t ProvenFree(int64_t capacity, const ProcessMemory& plan, const HeldMemory& held);

// The smaller of physical memory and the limits of this process's cgroup and its parents; 0: unknown.
int64_t MachineMemory();
// Hands freed heap pages back to the system.
void TrimHeap();

}  // namespace tidepool::workers
