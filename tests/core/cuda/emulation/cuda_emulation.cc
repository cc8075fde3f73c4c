#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda/device_code.h"  // which includes cuda_emulation.h
#include "tests/core/cuda/emulation/fiber.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl tidepool_switch_stack
.type tidepool_switch_stack, @function
tidepool_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tidepool_switch_stack, .-tidepool_switch_stack
)");
#endif

namespace tidepool::cuda::emulation {

// All zero, so that cells of memory that nobody touches cost nothing (calloc).
// Epochs count the barriers of the block, warp epochs the __syncwarp of the warp. An access came before
// another one if its thread is the same, or a barrier of both lies between them.
struct Cell {
  uint32_t writer_block = 0, reader_block = 0;  // serial numbers over all launches; 0: none
  uint32_t write_epoch = 0, write_warp_epoch = 0;
  uint32_t read_epoch = 0, read_warp_epoch = 0;
  int16_t writer = 0, reader = 0;
  bool atomic = false;         // the last write was one
  bool pending = false;        // an asynchronous copy is under way
  bool unwritten = false;      // device memory: nobody wrote it yet
  bool other_readers = false;  // device memory: more than one block of this launch
};

namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int64_t kSharedArena = 256 * 1024;
constexpr int64_t kStaticSharedMax = 48 * 1024;
constexpr int kSharedUnit = 2;
constexpr int16_t kManyThreads = -1;  // of several warps; warp w alone: -2 - w

enum class State { kReady, kAtBarrier, kAtWarp, kDone };

struct Copy {
  const Region* region;
  char* to;
  char bytes[16];
  Place place;
};

struct Thread {
  Context context;
  State state = State::kDone;
  Dim3 index;
  int id = 0, warp = 0, lane = 0;
  int64_t until_put_aside = 0;
  bool waited = false;  // for the kernel before
  const char* waits_for = "";
  Place waits_at = {"", 0};
  std::vector<Copy> issued;
  std::vector<std::vector<Copy>> groups;
};

struct Warp {
  uint32_t epoch = 0;
  unsigned arrived = 0, mask = 0;
  int parity = 0;
  const char* what = "";
  Place place = {"", 0};
  alignas(16) char slots[2][32 * 64];
};

struct SharedArray {
  const char* name;
  int line;
  Region region;
};

class Device {
 public:
  Device() : cells_(kSharedArena / kSharedUnit) {
    arena_ = static_cast<char*>(std::aligned_alloc(1024, kSharedArena));
  }
  ~Device() { std::free(arena_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int Run(const Grid& grid, void (*body)(void*), void* context);

  // Of the running thread, which ends here. Not marked noreturn: the address sanitizer takes such a call as a
  // sign that this stack is left for good and looks for its end, which a fiber's does not have.
  void Fail(const std::string& what, Place place);
  void Yield(State state);
  void Access1(Cell& cell, const Region& region, Access access, Place place);

  uint64_t Random() {  // splitmix64
    uint64_t z = random_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  uint64_t random_ = 1;
  std::mutex mutex_;  // of all that is here: devices of several threads launch in turn
  static thread_local std::string error_;
  Counts counts_;
  struct Free {
    void operator()(Cell* cells) const { std::free(cells); }
  };
  std::map<const char*, std::pair<Region, std::unique_ptr<Cell, Free>>> memory_;  // by end
  int shared_max_ = 163 * 1024, multiprocessors_ = 1;
  // Of this thread's launches, the first block of those that may still run when a kernel starts early: the
  // last one that did not, and those since. 0: there was none.
  static thread_local uint32_t running_since_;

  // The launch.
  Grid grid_;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  uint32_t first_block_ = 1, block_ = 1;
  Dim3 block_index_;
  bool waited_ = false;  // a thread of it, for the kernel before
  // The block.
  uint32_t epoch_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<int> ready_;
  Thread* me_ = nullptr;
  Context scheduler_;
  bool failed_ = false;
  int at_barrier_ = 0, done_ = 0;
  Place barrier_ = {"", 0};
  bool vote_[2] = {};
  std::vector<std::unique_ptr<SharedArray>> arrays_;
  std::vector<std::unique_ptr<SharedArray>> parts_;  // of dynamic shared memory
  int64_t shared_used_ = 0;
  char* arena_ = nullptr;
  std::vector<Cell> cells_;
  char* stacks_ = nullptr;
  int stack_count_ = 0;

 private:
  bool RunBlock();
  std::string Where(const Thread& t) const;
  void ReportStuck();
};

thread_local std::string Device::error_;
thread_local uint32_t Device::running_since_ = 0;

Device& Dev() {
  static Device device;
  return device;
}

std::string Text(Place p) {
  const std::string file = p.file;
  const size_t slash = file.rfind('/');
  return (slash == std::string::npos ? file : file.substr(slash + 1)) + ":" + std::to_string(p.line);
}

std::string Device::Where(const Thread& t) const {
  return std::string("block (") + std::to_string(block_index_.x) + ", " + std::to_string(block_index_.y) +
         ", " + std::to_string(block_index_.z) + ") thread " + std::to_string(t.id);
}

void Device::Fail(const std::string& what, Place place) {
  if (!failed_) {
    error_ = std::string("kernel ") + grid_.name + ", " + Text(place) + ", " + Where(*me_) + ": " + what;
  }
  failed_ = true;
  Switch(me_->context, scheduler_);  // its frames are left as they are: kernels own nothing
  std::abort();
}

void Device::Yield(State state) {
  me_->state = state;
  if (state == State::kReady) ready_.push_back(me_->id);
  ++counts_.switches;
  Switch(me_->context, scheduler_);
}

void Entry() {
  Device& d = Dev();
  d.body_(d.context_);
  Thread* me = d.me_;
  me->groups.push_back(me->issued);
  for (const auto& group : me->groups) {
    if (!group.empty()) d.Fail("ends while its asynchronous copy is under way", group.front().place);
  }
  me->state = State::kDone;
  ++d.done_;
  Switch(me->context, d.scheduler_);
  std::abort();
}

void Device::ReportStuck() {
  // Threads wait and nobody can go on: some are missing where the others are.
  const auto waiting = [&](State s) {
    return std::find_if(threads_.begin(), threads_.end(), [&](const auto& t) { return t->state == s; });
  };
  if (const auto at = waiting(State::kAtWarp); at != threads_.end()) {
    const Thread& t = **at;
    const Warp& w = warps_[static_cast<size_t>(t.warp)];
    for (const auto& other : threads_) {
      if (other->warp != t.warp || (w.mask >> other->lane & 1U) == 0 ||
          (w.arrived >> other->lane & 1U) != 0) {
        continue;
      }
      error_ = std::string("kernel ") + grid_.name + ", " + Text(t.waits_at) + ", " + Where(*other) +
               ": lane " + std::to_string(other->lane) + " never comes to " + t.waits_for + ", " +
               (other->state == State::kDone
                    ? "it has ended"
                    : "it waits in " + std::string(other->waits_for) + " at " + Text(other->waits_at));
      return;
    }
    error_ = std::string("kernel ") + grid_.name + ", " + Text(t.waits_at) + ", " + Where(t) + ": " +
             t.waits_for + " with a mask of lanes that the block does not have";
    return;
  }
  const auto at = waiting(State::kAtBarrier);
  const auto ended = waiting(State::kDone);
  error_ = std::string("kernel ") + grid_.name + ", " + Text((*at)->waits_at) + ", " +
           (ended == threads_.end() ? Where(**at) : Where(**ended)) + ": never comes to " + (*at)->waits_for +
           ", it has ended";
}

bool Device::RunBlock() {
  ++counts_.blocks;
  epoch_ = 1;
  at_barrier_ = done_ = 0;
  vote_[0] = vote_[1] = false;
  arrays_.clear();
  parts_.clear();
  shared_used_ = 0;
  failed_ = false;
  if (grid_.shared_bytes > 0) {
    std::memset(arena_ + kStaticSharedMax, 0xFF, static_cast<size_t>(grid_.shared_bytes));
  }
  const int n = grid_.threads;
  if (n > stack_count_) {
    if (stacks_ != nullptr) munmap(stacks_, kStackBytes * static_cast<size_t>(stack_count_));
    stacks_ = static_cast<char*>(mmap(nullptr, kStackBytes * static_cast<size_t>(n), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks_ == MAP_FAILED) {
      std::perror("mmap of fiber stacks");
      std::abort();
    }
    stack_count_ = n;
  }
  while (static_cast<int>(threads_.size()) < n) threads_.push_back(std::make_unique<Thread>());
  threads_.resize(static_cast<size_t>(n));
  warps_.assign(static_cast<size_t>((n + 31) / 32), Warp{});
  ready_.clear();
  for (int i = 0; i < n; ++i) {
    Thread& t = *threads_[static_cast<size_t>(i)];
    t.state = State::kReady;
    t.index = {static_cast<unsigned>(i), 0, 0};
    t.id = i;
    t.warp = i / 32;
    t.lane = i % 32;
    t.until_put_aside = static_cast<int64_t>(Random() % 512);
    t.waited = !grid_.early;
    t.issued.clear();
    t.groups.clear();
    Prepare(t.context, stacks_ + kStackBytes * static_cast<size_t>(i), kStackBytes, Entry);
    ready_.push_back(i);
  }
  while (!ready_.empty()) {
    const size_t pick = static_cast<size_t>(Random() % ready_.size());
    me_ = threads_[static_cast<size_t>(ready_[pick])].get();
    ready_[pick] = ready_.back();
    ready_.pop_back();
    Switch(scheduler_, me_->context);
    if (failed_) {
      std::for_each(cells_.begin(), cells_.end(), [](Cell& c) { c.pending = false; });
      return false;
    }
  }
  if (done_ == n) return true;
  ReportStuck();
  return false;
}

int Device::Run(const Grid& grid, void (*body)(void*), void* context) {
  const std::lock_guard lock(mutex_);
  error_.clear();
  ++counts_.launches;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  grid_ = grid;
  body_ = body;
  context_ = context;
  if (grid.x < 0 || grid.x > 0x7FFFFFFF || grid.y < 0 || grid.y > 65535 || grid.z < 0 || grid.z > 65535 ||
      grid.threads < 32 || grid.threads > 1024 || grid.threads % 32 != 0 || grid.shared_bytes < 0 ||
      grid.shared_bytes > shared_max_) {
    error_ = std::string("kernel ") + grid.name +
             ": a grid that the device does not have: " + std::to_string(grid.x) + " x " +
             std::to_string(grid.y) + " x " + std::to_string(grid.z) + " blocks of " +
             std::to_string(grid.threads) + " threads, " + std::to_string(grid.shared_bytes) + " bytes";
    return cudaErrorInvalidValue;
  }
  first_block_ = block_ + 1;
  waited_ = false;
  if (!grid.early || running_since_ == 0) running_since_ = first_block_;
  const int64_t blocks = grid.x * grid.y * grid.z;
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i) {
    const auto j = static_cast<size_t>(Random() % static_cast<uint64_t>(i + 1));
    order[static_cast<size_t>(i)] = order[j];
    order[j] = i;
  }
  for (const int64_t i : order) {
    ++block_;
    block_index_ = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / grid.x / grid.y)};
    if (!RunBlock()) return cudaErrorLaunchFailure;
  }
  if (grid.early && !waited_) {  // then the one after it would not wait for those before it
    error_ = std::string("kernel ") + grid.name + ": starts early, and no block waits for the kernel before";
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

void Device::Access1(Cell& c, const Region& region, Access access, Place place) {
  const auto thread = static_cast<int16_t>(me_->id);
  const uint32_t warp_epoch = warps_[static_cast<size_t>(me_->warp)].epoch;
  // Whether what `who` did at these epochs lies before what this thread does now.
  const auto ordered = [&](int16_t who, uint32_t at, uint32_t warp_at) {
    if (who == thread || at < epoch_) return true;
    const int warp = who >= 0 ? who / 32 : who == kManyThreads ? -1 : -2 - who;
    return warp == me_->warp && warp_at < warp_epoch;
  };
  const auto other = [&](int16_t who) {
    return who >= 0              ? "thread " + std::to_string(who)
           : who == kManyThreads ? std::string("threads")
                                 : "threads of warp " + std::to_string(-2 - who);
  };
  if (!me_->waited && !region.shared) {
    if (access != Access::kRead)
      Fail(std::string(region.name) + ": written before the wait for the kernel before", place);
    if (!region.settled || (c.writer_block >= running_since_ && c.writer_block < first_block_))
      Fail(
          std::string(region.name) + ": read before the wait for the kernel before, which may still write it",
          place);
  }
  if (c.pending)
    Fail(std::string(region.name) + ": an asynchronous copy to this place was not waited for", place);
  if (c.writer_block == block_) {
    if (!(access == Access::kAtomic && c.atomic) && !ordered(c.writer, c.write_epoch, c.write_warp_epoch)) {
      Fail(std::string(region.name) + ": a race, " + other(c.writer) +
               " of the block wrote it without a barrier between",
           place);
    }
  } else if (!region.shared && c.writer_block >= first_block_ && !(access == Access::kAtomic && c.atomic)) {
    Fail(std::string(region.name) + ": a race, another block of this launch wrote it", place);
  }
  if (access == Access::kRead) {
    if (region.shared ? c.writer_block != block_ : c.unwritten) {
      Fail(std::string(region.name) + ": read before anything was written there", place);
    }
    const auto my_warp = static_cast<int16_t>(-2 - me_->warp);
    const bool of_my_warp = (c.reader >= 0 && c.reader / 32 == me_->warp) || c.reader == my_warp;
    if (c.reader_block != block_) {
      c.other_readers = c.reader_block >= first_block_;
      c.reader_block = block_;
      c.reader = thread;
    } else if (c.read_epoch != epoch_ || (of_my_warp && c.read_warp_epoch < warp_epoch)) {
      c.reader = thread;  // the reads before came before whatever this warp does from now on
    } else if (c.reader != thread) {
      c.reader = of_my_warp ? my_warp : kManyThreads;
    }
    c.read_epoch = epoch_;
    c.read_warp_epoch = warp_epoch;
    return;
  }
  if (c.reader_block == block_) {
    if (!ordered(c.reader, c.read_epoch, c.read_warp_epoch)) {
      Fail(std::string(region.name) + ": a race, " + other(c.reader) +
               " of the block read it without a barrier between",
           place);
    }
    if (!region.shared && c.other_readers) {
      Fail(std::string(region.name) + ": a race, another block of this launch read it", place);
    }
  } else if (!region.shared && c.reader_block >= first_block_) {
    Fail(std::string(region.name) + ": a race, another block of this launch read it", place);
  }
  const bool mixed = access == Access::kAtomic && c.writer_block == block_ && c.write_epoch == epoch_ &&
                     c.atomic && c.writer != thread;
  c.writer_block = block_;
  c.write_epoch = epoch_;
  c.write_warp_epoch = warp_epoch;
  c.writer = mixed ? kManyThreads : thread;
  c.atomic = access == Access::kAtomic;
  c.unwritten = false;
}

}  // namespace

void Seed(uint64_t seed) {
  const std::lock_guard lock(Dev().mutex_);
  Dev().random_ = seed * 0x9E3779B97F4A7C15ULL + 1;
}
const std::string& Error() { return Device::error_; }
const Counts& Totals() { return Dev().counts_; }

void AddMemory(void* begin, int64_t bytes, int unit, bool written, bool settled) {
  const auto count = static_cast<size_t>((bytes + unit - 1) / unit);
  std::unique_ptr<Cell, Device::Free> cells(static_cast<Cell*>(std::calloc(count, sizeof(Cell))));
  for (size_t i = 0; i < count && !written; ++i) cells.get()[i].unwritten = true;
  auto* p = static_cast<char*>(begin);
  const Region region{p, p + bytes, cells.get(), unit, false, "device memory", settled};
  const std::lock_guard lock(Dev().mutex_);
  Dev().memory_[p + bytes] = {region, std::move(cells)};
}
void RemoveMemory(const void* begin) {
  const std::lock_guard lock(Dev().mutex_);
  auto& memory = Dev().memory_;
  const auto at = memory.upper_bound(static_cast<const char*>(begin));
  if (at != memory.end() && at->second.first.begin == begin) memory.erase(at);
}
void Settle(const void* begin) {
  const std::lock_guard lock(Dev().mutex_);
  if (Region* r = FindMemory(begin); r != nullptr) r->settled = true;
}
void Synchronize() {
  const std::lock_guard lock(Dev().mutex_);
  Device::running_since_ = Dev().block_ + 1;
}
void Wrote(const void* begin, int64_t bytes) {
  const std::lock_guard lock(Dev().mutex_);
  Device::running_since_ = ++Dev().block_;
  Region* r = FindMemory(begin);
  if (r == nullptr || bytes == 0) return;
  const auto* p = static_cast<const char*>(begin);
  for (int64_t i = (p - r->begin) / r->unit; i <= (p - r->begin + bytes - 1) / r->unit; ++i)
    r->cells[i].writer_block = Dev().block_;
}
void SetSharedMax(int bytes) {
  const std::lock_guard lock(Dev().mutex_);
  Dev().shared_max_ = bytes;
}
void SetMultiprocessors(int n) {
  const std::lock_guard lock(Dev().mutex_);
  Dev().multiprocessors_ = n;
}
Region* FindMemory(const void* p) {
  auto& memory = Dev().memory_;
  const auto at = memory.upper_bound(static_cast<const char*>(p));
  return at != memory.end() && at->second.first.begin <= p ? &at->second.first : nullptr;
}

Region* DeclareShared(const char* name, int line, int64_t bytes) {
  Device& d = Dev();
  for (const auto& a : d.arrays_) {
    if (a->line == line && a->region.end - a->region.begin == bytes && std::strcmp(a->name, name) == 0) {
      return &a->region;
    }
  }
  const int64_t at = (d.shared_used_ + 15) / 16 * 16;
  if (at + bytes > kStaticSharedMax) d.Fail("more than 48 KiB of shared arrays", {name, line});
  if (at + bytes + d.grid_.shared_bytes > d.shared_max_)
    d.Fail("more shared memory than the " + std::to_string(d.shared_max_) + " bytes of a block of the device",
           {name, line});
  d.shared_used_ = at + bytes;
  char* begin = d.arena_ + at;
  std::memset(begin, 0xFF, static_cast<size_t>(bytes));
  d.arrays_.push_back(std::make_unique<SharedArray>(SharedArray{
      name, line,
      Region{begin, begin + bytes, d.cells_.data() + at / kSharedUnit, kSharedUnit, true, name}}));
  return &d.arrays_.back()->region;
}

Region* DynamicShared(int64_t offset, int64_t bytes, Place place) {
  Device& d = Dev();
  if (offset < 0 || offset % 16 != 0 || offset + bytes > d.grid_.shared_bytes) {
    d.Fail("a part of dynamic shared memory, bytes " + std::to_string(offset) + " to " +
               std::to_string(offset + bytes) + " of " + std::to_string(d.grid_.shared_bytes) +
               ", which has to begin on 16 bytes and lie inside",
           place);
  }
  char* begin = d.arena_ + kStaticSharedMax + offset;
  for (const auto& a : d.parts_) {
    if (a->region.begin == begin && a->region.end == begin + bytes) return &a->region;
  }
  d.parts_.push_back(std::make_unique<SharedArray>(
      SharedArray{"dynamic shared memory", place.line,
                  Region{begin, begin + bytes, d.cells_.data() + (kStaticSharedMax + offset) / kSharedUnit,
                         kSharedUnit, true, "dynamic shared memory"}}));
  return &d.parts_.back()->region;
}

void Check(const Region* region, const void* at, int64_t bytes, Access access, Place place) {
  Device& d = Dev();
  ++d.counts_.accesses;
  const auto* p = static_cast<const char*>(at);
  if (region == nullptr) d.Fail("an access through a pointer that is not device memory", place);
  if (p < region->begin || p + bytes > region->end) {
    d.Fail(std::string(region->name) + ": out of bounds, bytes " + std::to_string(p - region->begin) +
               " to " + std::to_string(p - region->begin + bytes) + " of " +
               std::to_string(region->end - region->begin),
           place);
  }
  if (--d.me_->until_put_aside < 0) {
    d.me_->until_put_aside = static_cast<int64_t>(d.Random() % 4096);
    d.Yield(State::kReady);
  }
  const int64_t first = (p - region->begin) / region->unit,
                last = (p - region->begin + bytes - 1) / region->unit;
  for (int64_t i = first; i <= last; ++i) d.Access1(region->cells[i], *region, access, place);
}

void CheckAligned(const void* at, int64_t bytes, Place place) {
  if (reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(bytes) != 0) {
    Dev().Fail("an access of " + std::to_string(bytes) + " bytes at once off its alignment", place);
  }
}

Dim3 ThreadIdx() { return Dev().me_->index; }
Dim3 BlockIdx() { return Dev().block_index_; }
Dim3 BlockDim() { return {static_cast<unsigned>(Dev().grid_.threads), 1, 1}; }
Dim3 GridDim() {
  const Grid& g = Dev().grid_;
  return {static_cast<unsigned>(g.x), static_cast<unsigned>(g.y), static_cast<unsigned>(g.z)};
}
int Lane() { return Dev().me_->lane; }

const char* Exchange(const char* what, unsigned mask, const void* mine, int64_t bytes, Place place) {
  Device& d = Dev();
  Thread& me = *d.me_;
  Warp& w = d.warps_[static_cast<size_t>(me.warp)];
  if ((mask >> me.lane & 1U) == 0) d.Fail(std::string(what) + ": the lane is not in its own mask", place);
  if (w.arrived == 0) {
    w.mask = mask;
    w.what = what;
    w.place = place;
  } else if (w.mask != mask || w.place.line != place.line || std::strcmp(w.what, what) != 0) {
    d.Fail("lane " + std::to_string(me.lane) + " comes to " + what + ", other lanes of its warp wait in " +
               w.what + " at " + Text(w.place),
           place);
  }
  const int parity = w.parity;
  std::memcpy(w.slots[parity] + 64 * me.lane, mine, static_cast<size_t>(bytes));
  w.arrived |= 1U << me.lane;
  if (w.arrived == mask) {
    w.arrived = 0;
    w.parity ^= 1;  // a slow lane still reads the old half when a fast one is here again
    const int first = me.warp * 32;
    for (int lane = 0; lane < 32; ++lane) {
      if (lane == me.lane || (mask >> lane & 1U) == 0) continue;
      d.threads_[static_cast<size_t>(first + lane)]->state = State::kReady;
      d.ready_.push_back(first + lane);
    }
  } else {
    me.waits_for = what;
    me.waits_at = place;
    d.Yield(State::kAtWarp);
  }
  return w.slots[parity];
}

void SyncWarp(unsigned mask, Place place) {
  Device& d = Dev();
  Warp& w = d.warps_[static_cast<size_t>(d.me_->warp)];
  const bool last = (w.arrived | 1U << d.me_->lane) == mask;
  if (last && mask == 0xFFFFFFFFU) ++w.epoch;
  Exchange("__syncwarp", mask, &mask, 0, place);
}

bool SyncThreadsOr(bool value, Place place) {
  Device& d = Dev();
  Thread& me = *d.me_;
  if (d.at_barrier_ == 0) {
    d.barrier_ = place;
  } else if (d.barrier_.line != place.line || std::strcmp(d.barrier_.file, place.file) != 0) {
    d.Fail("comes to a barrier here while others wait at that of " + Text(d.barrier_), place);
  }
  const int parity = static_cast<int>(d.epoch_ & 1U);
  d.vote_[parity] = d.vote_[parity] || value;
  if (++d.at_barrier_ == d.grid_.threads) {
    d.at_barrier_ = 0;
    ++d.epoch_;
    d.vote_[parity ^ 1] = false;
    for (const auto& t : d.threads_) {
      if (t.get() == &me) continue;
      t->state = State::kReady;
      d.ready_.push_back(t->id);
    }
  } else {
    me.waits_for = "__syncthreads";
    me.waits_at = place;
    d.Yield(State::kAtBarrier);
  }
  return d.vote_[parity];
}
void SyncThreads(Place place) { SyncThreadsOr(false, place); }

void CopyAsync(const Region* to_region, void* to, const Region* from_region, const void* from, bool there,
               Place place) {
  Device& d = Dev();
  CheckAligned(to, 16, place);
  Copy copy{to_region, static_cast<char*>(to), {}, place};
  if (there) {
    CheckAligned(from, 16, place);
    Check(from_region, from, 16, Access::kRead, place);
    std::memcpy(copy.bytes, from, 16);
  }
  Check(to_region, to, 16, Access::kWrite, place);
  std::memset(to, 0xFF, 16);
  const int64_t first = (copy.to - to_region->begin) / to_region->unit;
  for (int64_t i = first; i < first + 16 / to_region->unit; ++i) to_region->cells[i].pending = true;
  d.me_->issued.push_back(copy);
}
void CommitCopies() {
  Thread& me = *Dev().me_;
  me.groups.push_back(std::move(me.issued));
  me.issued.clear();
}
void WaitForKernelBefore() { Dev().me_->waited = Dev().waited_ = true; }
void WaitCopies(int left) {
  Thread& me = *Dev().me_;
  while (static_cast<int>(me.groups.size()) > left) {
    const std::vector<Copy> group = std::move(me.groups.front());
    me.groups.erase(me.groups.begin());
    for (const Copy& c : group) {
      const int64_t first = (c.to - c.region->begin) / c.region->unit;
      for (int64_t i = first; i < first + 16 / c.region->unit; ++i) c.region->cells[i].pending = false;
      Check(c.region, c.to, 16, Access::kWrite, c.place);
      std::memcpy(c.to, c.bytes, 16);
    }
  }
}

int Run(const Grid& grid, void (*body)(void*), void* context) { return Dev().Run(grid, body, context); }

namespace {
thread_local Launches* recording = nullptr;
}  // namespace
void RecordInto(Launches* launches) { recording = launches; }
Launches* Recording() { return recording; }

}  // namespace tidepool::cuda::emulation

namespace tidepool::cuda {
namespace {

float Half(uint32_t word, int which) {
  return std::bit_cast<float>(which == 0 ? word << 16 : word & 0xFFFF0000U);
}

void LoadMatrices(const char* what, bool transposed, Shared<const BF16> row, uint32_t (&out)[4],
                  emulation::Place place) {
  emulation::CheckAligned(row.at(), 16, place);
  const char* all = emulation::Exchange(what, 0xFFFFFFFFU, &row, sizeof(row), place);
  const int lane = emulation::Lane(), g = lane / 4, t = lane % 4;
  for (int m = 0; m < 4; ++m) {
    uint32_t words[2];
    for (int i = 0; i < 2; ++i) {
      Shared<const BF16> from;
      std::memcpy(static_cast<void*>(&from), all + 64 * (8 * m + (transposed ? 2 * t + i : g)), sizeof(from));
      const BF16* at = from.at() + (transposed ? g : 2 * t + i);
      emulation::Check(from.region(), at, 2, emulation::Access::kRead, place);
      words[i] = at->bits;
    }
    out[m] = words[0] | words[1] << 16;
  }
}

}  // namespace

int SharedMax() { return emulation::Dev().shared_max_; }
int Multiprocessors() { return emulation::Dev().multiprocessors_; }

void LoadMatrix4(Shared<const BF16> row, uint32_t (&out)[4], const char* file, int line) {
  LoadMatrices("ldmatrix", false, row, out, {file, line});
}
void LoadMatrix4Transposed(Shared<const BF16> row, uint32_t (&out)[4], const char* file, int line) {
  LoadMatrices("ldmatrix.trans", true, row, out, {file, line});
}

void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const char* file,
                  int line) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const char* all = emulation::Exchange("mma", 0xFFFFFFFFU, mine, sizeof(mine), {file, line});
  const auto of = [all](int lane, int word) {
    uint32_t v = 0;
    std::memcpy(&v, all + 64 * lane + 4 * word, 4);
    return v;
  };
  const int lane = emulation::Lane(), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int owner = k % 8 / 2;
      const uint32_t left = of(4 * g + owner, i / 2 + 2 * (k / 8)), right = of(4 * column + owner, 4 + k / 8);
      sum += Half(left, k % 2) * Half(right, k % 2);
    }
    c[i] += sum;
  }
}

}  // namespace tidepool::cuda
