/*
 * Loaded into a server before its libraries: what it writes is not forced to the disk any more, except in files whose
 * path contains one of the words in $NO_SYNC_SPARES, which colons separate.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_spared(int fd) {
  const char *spares = getenv("NO_SYNC_SPARES");
  char words[256] = "", link[64], path[PATH_MAX + 1] = "", *rest;
  if (spares != NULL) strncpy(words, spares, sizeof words - 1);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, PATH_MAX) < 0) return 0;
  for (char *word = strtok_r(words, ":", &rest); word != NULL; word = strtok_r(NULL, ":", &rest))
    if (strstr(path, word) != NULL) return 1;
  return 0;
}

int fsync(int fd) { return is_spared(fd) ? (int)syscall(SYS_fsync, fd) : 0; }
int fdatasync(int fd) { return is_spared(fd) ? (int)syscall(SYS_fdatasync, fd) : 0; }
int syncfs(int fd) { return (void)fd, 0; }
void sync(void) {}
