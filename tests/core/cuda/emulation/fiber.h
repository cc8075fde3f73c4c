#pragma once
// A second stack to run a function on, left and entered by hand. On x86-64 a switch is a few instructions;
// elsewhere it is swapcontext, which asks the kernel each time.

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tidepool::cuda::emulation {

#if defined(__x86_64__)
// Pushes what a call keeps, stores the stack pointer at *from and goes on where `to` was left.
extern "C" void tidepool_switch_stack(void** from, void* to);

struct Context {
  void* stack_pointer = nullptr;
};
inline void Switch(Context& from, Context& to) {
  tidepool_switch_stack(&from.stack_pointer, to.stack_pointer);
}
inline void Prepare(Context& c, char* stack, size_t bytes, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, bytes);  // a stack that was left in the middle keeps its marks
#endif
  auto* top = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15});
  *--top = 0;  // where entry would return to, which it does not; also keeps 16 bytes of alignment
  *--top = reinterpret_cast<uint64_t>(entry);
  top -= 6;  // rbp, rbx, r12 to r15
  for (int i = 0; i < 6; ++i) top[i] = 0;
  c.stack_pointer = top;
}
#else
struct Context {
  ucontext_t context;
};
inline void Switch(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
inline void Prepare(Context& c, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&c.context);
  c.context.uc_stack.ss_sp = stack;
  c.context.uc_stack.ss_size = bytes;
  c.context.uc_link = nullptr;
  makecontext(&c.context, entry, 0);
}
#endif

}  // namespace tidepool::cuda::emulation
