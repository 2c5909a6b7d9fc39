/*
 * Makes a process perform one system call as its own, under its own filters and namespaces, and prints what the kernel
 * returned, or "killed": inject PID NUMBER [ARGUMENT…]. An argument that is no number is a string, which is put below the stack.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static int memory;

static int fail(const char *what) {
  perror(what);
  return 1;
}

/* Address of a `syscall` instruction of the process: its [vdso] has one. 0: not found. */
static unsigned long long instruction(pid_t pid) {
  char path[64], line[512], code[16384];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE *maps = fopen(path, "r");
  unsigned long long from, to, found = 0;
  while (maps != NULL && found == 0 && fgets(line, sizeof line, maps) != NULL) {
    if (strstr(line, "[vdso]") == NULL || sscanf(line, "%llx-%llx", &from, &to) != 2) continue;
    ssize_t size = pread(memory, code, to - from < sizeof code ? to - from : sizeof code, (off_t)from);
    char *at = size > 0 ? memmem(code, (size_t)size, "\x0f\x05", 2) : NULL;
    if (at != NULL) found = from + (unsigned long long)(at - code);
  }
  if (maps != NULL) fclose(maps);
  return found;
}

/* The value of an argument; strings lie one below the other from `top` on. -1: it could not be written. */
static long long value_of(const char *text, unsigned long long *top) {
  char *end;
  long long number = strtoll(text, &end, 0);
  if (*text != '\0' && *end == '\0') return number;
  size_t size = strlen(text) + 1;
  *top -= (size + 15) & ~15ULL;
  return pwrite(memory, text, size, (off_t)*top) == (ssize_t)size ? (long long)*top : -1;
}

/* Waits until the thread has stopped. 0: a filter has ended it, which for a group's first thread no wait tells. */
static int stops(pid_t thread, int *status) {
  char path[64], stat[1024] = {0};
  snprintf(path, sizeof path, "/proc/%d/stat", thread);
  for (;; usleep(1000)) {
    pid_t found = waitpid(thread, status, __WALL | WNOHANG);
    if (found != 0) return found == thread && WIFSTOPPED(*status);
    int fd = open(path, O_RDONLY);
    char *name_end = fd >= 0 && read(fd, stat, sizeof stat - 1) > 0 ? strrchr(stat, ')') : NULL;
    if (fd >= 0) close(fd);
    if (name_end == NULL || name_end[2] == 'Z' || name_end[2] == 'X') return 0;
  }
}

/* The signal that a stop is for, which the process has not got yet; 0: the stop is the tracer's own. */
static long signal_of(int status) {
  return status >> 16 != 0 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
}

/* One attempt. -1: a signal came before the call, and the process has that now. */
static int inject(pid_t pid, int argc, char **argv) {
  int status;
  struct user_regs_struct before, call;
  if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0 || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0 ||
      waitpid(pid, &status, __WALL) != pid)
    return fail("attach");
  if (signal_of(status) != 0) return ptrace(PTRACE_DETACH, pid, NULL, signal_of(status)) == 0 ? -1 : fail("detach");
  if (ptrace(PTRACE_GETREGS, pid, NULL, &before) != 0) return fail("read registers");
  call = before;
  unsigned long long top = (before.rsp - 1024) & ~15ULL; /* past the 128 bytes that a leaf function may use */
  unsigned long long *places[] = {&call.rdi, &call.rsi, &call.rdx, &call.r10, &call.r8, &call.r9};
  for (int i = 3; i < argc; i++) *places[i - 3] = (unsigned long long)value_of(argv[i], &top);
  call.rax = strtoull(argv[2], NULL, 0);
  call.orig_rax = ~0ULL; /* not inside a call: the kernel restarts none */
  call.rip = instruction(pid);
  if (call.rip == 0 || ptrace(PTRACE_SETREGS, pid, NULL, &call) != 0 || ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0)
    return fail("call");
  if (!stops(pid, &status)) {
    puts("killed");
    return 0;
  }
  if (ptrace(PTRACE_GETREGS, pid, NULL, &call) != 0 || ptrace(PTRACE_SETREGS, pid, NULL, &before) != 0 ||
      ptrace(PTRACE_DETACH, pid, NULL, signal_of(status)) != 0)
    return fail("detach");
  if (status >> 8 != SIGTRAP) return -1;
  printf("%lld\n", (long long)call.rax);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 3 || argc > 9) return 2;
  pid_t pid = atoi(argv[1]);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  if ((memory = open(path, O_RDWR)) < 0) return fail(path);
  int result;
  while ((result = inject(pid, argc, argv)) < 0) usleep(1000);
  return result;
}
