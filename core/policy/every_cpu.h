#pragma once
// TP_EVERY_CPU in front of a function of plain loops: it is compiled for several instruction sets, and the
// program takes the best that its processor has.

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TP_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else  // the dynamic linker resolves clones before a sanitizer's run time is ready
#define TP_EVERY_CPU
#endif
