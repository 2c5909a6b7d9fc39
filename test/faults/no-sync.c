/*
 * Loaded into a server before its libraries: what it writes is not forced to the disk any more, except in files whose
 * path contains $NO_SYNC_SPARES.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_spared(int fd) {
  const char *spared = getenv("NO_SYNC_SPARES");
  if (spared == NULL) return 0;
  char link[64], path[PATH_MAX + 1] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return readlink(link, path, PATH_MAX) > 0 && strstr(path, spared) != NULL;
}

int fsync(int fd) { return is_spared(fd) ? (int)syscall(SYS_fsync, fd) : 0; }
int fdatasync(int fd) { return is_spared(fd) ? (int)syscall(SYS_fdatasync, fd) : 0; }
int syncfs(int fd) { return (void)fd, 0; }
void sync(void) {}
