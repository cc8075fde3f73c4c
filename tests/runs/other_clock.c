// Preloaded into a run: its machine has another clock. It has slept for an hour from the moment on at which the
// file exists that TIDEPOOL_TEST_SLEPT names (CLOCK_BOOTTIME counts such an hour, CLOCK_MONOTONIC does not), and
// its time of day is TIDEPOOL_TEST_CLOCK_S seconds ahead.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long Ahead(void) {
  const char* seconds = getenv("TIDEPOOL_TEST_CLOCK_S");
  return seconds == NULL ? 0 : atol(seconds);
}

int clock_gettime(clockid_t which, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, which, now);
  if (result == 0 && which == CLOCK_BOOTTIME) {
    const char* slept = getenv("TIDEPOOL_TEST_SLEPT");
    if (slept != NULL && access(slept, F_OK) == 0) now->tv_sec += 3600;
  }
  if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += Ahead();
  return result;
}

time_t time(time_t* into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into != NULL) *into = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval* restrict into, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  into->tv_sec = now.tv_sec;
  into->tv_usec = now.tv_nsec / 1000;
  return 0;
}
