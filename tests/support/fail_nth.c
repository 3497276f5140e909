/* Preloaded into a program (LD_PRELOAD): its N-th call of a kind fails, later ones work.
 *
 *   FAIL_CALL   alloc, open, read, write, sync, rename or truncate
 *   FAIL_NTH    the call that fails, from 1; 0: none does
 *   FAIL_UNDER  only files whose path begins so are counted (of alloc: no files, all are)
 *   FAIL_TOLD   a file that gets a line when the call has failed
 *   FAIL_ALL    set: all later calls fail, too, as on a full disk
 *
 * Children of the program inherit this, each with a count of its own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static long nth = -1;
static int all;
static const char *call_name, *under;
static __thread int inside;

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

static void settle(void) {
  if (nth >= 0) return;
  const char* text = getenv("FAIL_NTH");
  call_name = getenv("FAIL_CALL");
  under = getenv("FAIL_UNDER");
  all = getenv("FAIL_ALL") != NULL;
  nth = text && call_name ? strtol(text, NULL, 10) : 0;
}

static void tell(void) {
  const char* told = getenv("FAIL_TOLD");
  if (!told) return;
  static int (*real_open)(const char*, int, ...);
  static ssize_t (*real_write)(int, const void*, size_t);
  if (!real_open) real_open = (int (*)(const char*, int, ...))next("open");
  if (!real_write) real_write = (ssize_t(*)(int, const void*, size_t))next("write");
  int file = real_open(told, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0) return;
  if (real_write(file, "failed\n", 7) != 7) abort();
  close(file);
}

/* Does this call fail? */
static int fails(const char* name, const char* path) {
  if (inside) return 0;
  settle();
  if (nth == 0 || strcmp(call_name, name) != 0) return 0;
  if (path && (!under || strncmp(path, under, strlen(under)) != 0)) return 0;
  long count = atomic_fetch_add(&calls, 1) + 1;
  if (count != nth && !(all && count > nth)) return 0;
  inside = 1;
  if (count == nth) tell();
  inside = 0;
  return 1;
}

static int descriptor_fails(const char* name, int file) {
  char link[64], path[4096];
  if (inside) return 0;
  settle();
  if (nth == 0 || strcmp(call_name, name) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(name, path);
}

#define REAL(type, name, ...)                             \
  static type (*real)(__VA_ARGS__);                       \
  if (!real) real = (type(*)(__VA_ARGS__))next(#name)

/* dlsym itself allocates: what it needs comes from here. */
static char early[65536];
static size_t taken;
static void* early_memory(size_t size) {
  void* memory = early + taken;
  taken += (size + 15) & ~(size_t)15;
  return taken <= sizeof early ? memory : NULL;
}

void* malloc(size_t size) {
  static void* (*real)(size_t);
  static __thread int resolving;
  if (!real) {
    if (resolving) return early_memory(size);
    resolving = 1;
    real = (void* (*)(size_t))next("malloc");
    resolving = 0;
  }
  if (fails("alloc", NULL)) return errno = ENOMEM, NULL;
  return real(size);
}
void* calloc(size_t count, size_t size) {
  static void* (*real)(size_t, size_t);
  static __thread int resolving;
  if (!real) {
    if (resolving) return early_memory(count * size);
    resolving = 1;
    real = (void* (*)(size_t, size_t))next("calloc");
    resolving = 0;
  }
  if (fails("alloc", NULL)) return errno = ENOMEM, NULL;
  return real(count, size);
}
void* realloc(void* memory, size_t size) {
  REAL(void*, realloc, void*, size_t);
  if (fails("alloc", NULL)) return errno = ENOMEM, NULL;
  return real(memory, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  REAL(int, posix_memalign, void**, size_t, size_t);
  if (fails("alloc", NULL)) return ENOMEM;
  return real(memory, alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  REAL(void*, aligned_alloc, size_t, size_t);
  if (fails("alloc", NULL)) return errno = ENOMEM, NULL;
  return real(alignment, size);
}
void free(void* memory) {
  if ((char*)memory >= early && (char*)memory < early + sizeof early) return;
  REAL(void, free, void*);
  real(memory);
}

#define OPEN(name)                                              \
  int name(const char* path, int flags, ...) {                  \
    REAL(int, name, const char*, int, ...);                     \
    va_list rest;                                               \
    va_start(rest, flags);                                      \
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;   \
    va_end(rest);                                               \
    if (fails("open", path)) return errno = EACCES, -1;         \
    return real(path, flags, mode);                             \
  }
OPEN(open)
OPEN(open64)

#define READ(name, offset_type)                                           \
  ssize_t name(int file, void* data, size_t size, offset_type offset) {   \
    REAL(ssize_t, name, int, void*, size_t, offset_type);                 \
    if (descriptor_fails("read", file)) return errno = EIO, -1;           \
    return real(file, data, size, offset);                                \
  }
READ(pread, off_t)
READ(pread64, off64_t)
ssize_t read(int file, void* data, size_t size) {
  REAL(ssize_t, read, int, void*, size_t);
  if (descriptor_fails("read", file)) return errno = EIO, -1;
  return real(file, data, size);
}

/* Half of what was to be written is: a full disk takes what it can. */
#define WRITE(name, offset_type)                                               \
  ssize_t name(int file, const void* data, size_t size, offset_type offset) {  \
    REAL(ssize_t, name, int, const void*, size_t, offset_type);                \
    if (descriptor_fails("write", file)) {                                     \
      if (size > 1) real(file, data, size / 2, offset);                        \
      return errno = ENOSPC, -1;                                               \
    }                                                                          \
    return real(file, data, size, offset);                                     \
  }
WRITE(pwrite, off_t)
WRITE(pwrite64, off64_t)
ssize_t write(int file, const void* data, size_t size) {
  REAL(ssize_t, write, int, const void*, size_t);
  if (descriptor_fails("write", file)) {
    if (size > 1 && real(file, data, size / 2) < 0) return -1;
    return errno = ENOSPC, -1;
  }
  return real(file, data, size);
}
ssize_t writev(int file, const struct iovec* parts, int count) {
  REAL(ssize_t, writev, int, const struct iovec*, int);
  if (descriptor_fails("write", file)) return errno = ENOSPC, -1;
  return real(file, parts, count);
}

#define SYNC(name)                                              \
  int name(int file) {                                          \
    REAL(int, name, int);                                       \
    if (descriptor_fails("sync", file)) return errno = EIO, -1; \
    return real(file);                                          \
  }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name, size_type)                                     \
  int name(int file, size_type size) {                                \
    REAL(int, name, int, size_type);                                  \
    if (descriptor_fails("truncate", file)) return errno = ENOSPC, -1; \
    return real(file, size);                                          \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  if (fails("rename", to)) return errno = EIO, -1;
  return real(from, to);
}
