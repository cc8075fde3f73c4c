// Preloaded into a run: the machine has slept for an hour from the moment on at which the file exists that
// TIDEPOOL_TEST_SLEPT names. CLOCK_BOOTTIME counts such an hour, CLOCK_MONOTONIC does not.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, which, now);
  if (result == 0 && which == CLOCK_BOOTTIME) {
    const char* slept = getenv("TIDEPOOL_TEST_SLEPT");
    if (slept != NULL && access(slept, F_OK) == 0) now->tv_sec += 3600;
  }
  return result;
}
