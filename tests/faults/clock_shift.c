/* Preloaded into a process: its wall clock is off by what the file CLOCK_SHIFT says, in seconds (a double, mapped).
   Stepping the file steps the clock of every process that maps it, and of no other. Waits until a time of that clock
   (futex, as absl uses it) go by the clock as it was when they began. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double* shift;

static long raw(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result > -4096 && result < 0) {
    errno = (int)-result;
    return -1;
  }
  return result;
}

__attribute__((constructor)) static void map_shift(void) {
  const char* path = getenv("CLOCK_SHIFT");
  const int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) shift = mapped;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const long failed = raw(SYS_clock_gettime, clock, (long)now, 0, 0, 0, 0);
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && shift != NULL)
    now->tv_sec += (time_t)*shift;
  return (int)failed;
}

int gettimeofday(struct timeval* now, void* zone) {
  struct timespec precise;
  (void)zone;
  const int failed = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return failed;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) {
  long v[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) v[i] = va_arg(arguments, long);
  va_end(arguments);
  struct timespec until;
  if (number == SYS_futex && (v[1] & FUTEX_CLOCK_REALTIME) != 0 && v[3] != 0 && shift != NULL) {
    until = *(const struct timespec*)v[3];
    until.tv_sec -= (time_t)*shift;
    if (until.tv_sec < 0) until.tv_sec = 0;
    v[3] = (long)&until;
  }
  return raw(number, v[0], v[1], v[2], v[3], v[4], v[5]);
}
