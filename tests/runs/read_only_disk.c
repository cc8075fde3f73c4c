// Preloaded into a process: the folder that TIDEPOOL_TEST_READ_ONLY names is of a disk that is read-only as long as
// the file is there that TIDEPOOL_TEST_READ_ONLY_WHILE names. As on a file server that makes it so, what is open for
// writing fails, too; Linux itself refuses to do that to a disk that it writes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int ReadOnly(const char* path) {
  const char* folder = getenv("TIDEPOOL_TEST_READ_ONLY");
  if (folder == NULL || path == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
  if (path[strlen(folder)] != '/') return 0;
  const char* flag = getenv("TIDEPOOL_TEST_READ_ONLY_WHILE");
  if (flag == NULL || access(flag, F_OK) != 0) return 0;
  errno = EROFS;
  return 1;
}

static int ReadOnlyFile(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return ReadOnly(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                                  \
  int name(const char* path, int flags, ...) {                                                      \
    va_list more;                                                                                   \
    va_start(more, flags);                                                                          \
    const mode_t mode = (mode_t)va_arg(more, int);                                                  \
    va_end(more);                                                                                   \
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0 && ReadOnly(path)) return -1;        \
    return REAL(name)(path, flags, mode);                                                           \
  }
OPEN(open)
OPEN(open64)

#define WRITE(type, name, parameters, arguments)  \
  type name parameters {                          \
    if (ReadOnlyFile(fd)) return -1;              \
    return REAL(name) arguments;                  \
  }
WRITE(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
WRITE(ssize_t, writev, (int fd, const struct iovec* parts, int count), (fd, parts, count))
WRITE(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), (fd, data, size, at))
WRITE(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at), (fd, data, size, at))
WRITE(int, ftruncate, (int fd, off_t size), (fd, size))
WRITE(int, ftruncate64, (int fd, off64_t size), (fd, size))
WRITE(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
WRITE(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))

#define NAME(name, parameters, arguments)  \
  int name parameters {                    \
    if (ReadOnly(path)) return -1;         \
    return REAL(name) arguments;           \
  }
NAME(mkdir, (const char* path, mode_t mode), (path, mode))
NAME(rename, (const char* path, const char* to), (path, to))
NAME(unlink, (const char* path), (path))
NAME(remove, (const char* path), (path))
NAME(rmdir, (const char* path), (path))
NAME(link, (const char* path, const char* to), (path, to))
