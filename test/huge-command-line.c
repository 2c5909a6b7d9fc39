/*
 * A process with a command line of the given number of bytes: it points its argument area at untouched memory by
 * prctl(PR_SET_MM_MAP), which needs no privilege. Writes "ready" or the error, then waits to be killed.
 */
#include <errno.h>
#include <linux/prctl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Fields 26 to 28 and 45 to 51 of /proc/self/stat: where the kernel has the process's areas. */
static int read_areas(struct prctl_mm_map *map) {
  static char stat[4096];
  FILE *file = fopen("/proc/self/stat", "r");
  size_t length = file == NULL ? 0 : fread(stat, 1, sizeof stat - 1, file);
  if (length == 0) return 0;
  fclose(file);
  uint64_t fields[64] = {0};
  int number = 2;
  for (char *field = strtok(strrchr(stat, ')') + 1, " "); field != NULL; field = strtok(NULL, " ")) {
    if (++number < 64) fields[number] = strtoull(field, NULL, 10);
  }
  map->start_code = fields[26], map->end_code = fields[27], map->start_stack = fields[28];
  map->start_data = fields[45], map->end_data = fields[46], map->start_brk = fields[47];
  map->brk = (uint64_t)sbrk(0);
  map->env_start = fields[50], map->env_end = fields[51];
  return 1;
}

int main(int count, char **arguments) {
  size_t bytes = count > 1 ? strtoull(arguments[1], NULL, 10) : 0;
  char *area = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct prctl_mm_map map = {.exe_fd = (uint32_t)-1};
  if (area == MAP_FAILED || !read_areas(&map)) return 1;
  map.arg_start = (uint64_t)area, map.arg_end = (uint64_t)area + bytes;
  int result = prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
  printf("%s\n", result == 0 ? "ready" : strerror(errno));
  fflush(stdout);
  pause();
}
