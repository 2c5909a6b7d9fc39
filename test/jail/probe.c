/*
 * Stands for a compromised QEMU: attempts escapes and writes one line each, "NAME ok" or "NAME failed: WHY", to standard
 * error. As root without a jail every attempt must succeed. In a jail only those named "allowed: …" may.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void say(const char *name, int is_done) {
  if (is_done)
    fprintf(stderr, "%s ok\n", name);
  else
    fprintf(stderr, "%s failed: %s\n", name, strerror(errno));
}

static void try_open(const char *name, const char *path, int flags) {
  int fd = open(path, flags, 0600);
  char byte;
  say(name, fd >= 0 && ((flags & O_ACCMODE) != O_RDONLY || read(fd, &byte, 1) >= 0));
  if (fd >= 0) close(fd);
}

/* Runs an attempt in a child process, so that its success does not change the user or namespaces of later attempts. */
static int in_child(int (*attempt)(void)) {
  int channel[2], error = 0;
  if (pipe(channel) != 0) return 0;
  pid_t child = fork();
  if (child == 0) {
    error = attempt() ? 0 : errno;
    if (write(channel[1], &error, sizeof error) < 0) _exit(2);
    _exit(0);
  }
  close(channel[1]);
  error = ECHILD; /* killed before it could report */
  if (child > 0 && read(channel[0], &error, sizeof error) < 0) error = EIO;
  close(channel[0]);
  if (child > 0) waitpid(child, NULL, 0);
  errno = error;
  return child > 0 && error == 0;
}

static const char *own_folder;

static int mounts(void) { return mount("none", own_folder, "tmpfs", 0, NULL) == 0 && umount(own_folder) == 0; }
static int mounts_in_namespaces(void) {
  return unshare(CLONE_NEWUSER) == 0 && unshare(CLONE_NEWNS) == 0 && mount("none", own_folder, "tmpfs", 0, NULL) == 0;
}
/* As root the filter lets unshare(1) make the jail's user namespace, and so a further one, which must be of no use. */
static int changes_root_in_a_user_namespace(void) { return unshare(CLONE_NEWUSER) == 0 && chroot("/proc") == 0; }
static int clones_a_namespace(void) {
  pid_t pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid == 0) _exit(0);
  return pid > 0;
}
static int becomes_root(void) { return setresuid(0, 0, 0) == 0 && geteuid() == 0; }
static int becomes_another(void) { return setresgid(1, 1, 1) == 0 && setresuid(1, 1, 1) == 0; }
static int changes_root(void) { return chroot("/proc") == 0; }
static int makes_a_device(void) {
  return mknod("/tmp/capsule-probe-device", S_IFBLK | 0600, makedev(1, 0)) == 0 &&
         unlink("/tmp/capsule-probe-device") == 0;
}
static int traces(void) {
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  int is_traced = ptrace(PTRACE_ATTACH, child, NULL, NULL) == 0;
  int error = errno;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  errno = error;
  return is_traced;
}
static int makes_a_memory_file(void) { return syscall(SYS_memfd_create, "probe", 0) >= 0; }
static int shares_memory(void) {
  int id = shmget(IPC_PRIVATE, 4096, 0600);
  return id >= 0 && shmctl(id, IPC_RMID, NULL) == 0;
}
/* PR_SET_MM_MAP_SIZE only asks for a size, and passes the same check of the option as moving the command line. */
static int moves_its_command_line(void) {
  unsigned size = 0;
  return prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, &size, 0, 0) == 0;
}
static int speaks_x32(void) { return syscall(0x40000000 | 39) != 0 || errno == ENOSYS; }
static int uses_io_uring(void) {
  char parameters[120] = {0};
  return syscall(SYS_io_uring_setup, 4, parameters) >= 0;
}
static int uses_keys(void) { return syscall(SYS_keyctl, 0, -3, 1) >= 0; }
static int loads_bpf(void) {
  char attributes[128] = {0};
  /* An array map of one entry. */
  ((uint32_t *)attributes)[0] = 2;
  ((uint32_t *)attributes)[1] = ((uint32_t *)attributes)[2] = 4;
  ((uint32_t *)attributes)[3] = 1;
  return syscall(SYS_bpf, 0, attributes, sizeof attributes) >= 0;
}
static int opens_handles(void) {
  struct file_handle *handle = calloc(1, sizeof *handle + 128);
  int mount_id;
  handle->handle_bytes = 128;
  return name_to_handle_at(AT_FDCWD, "/", handle, &mount_id, 0) == 0;
}
/* Installs a second filter that allows everything. The first one must still hold. */
static int removes_its_filter(void) {
  struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {.len = 1, .filter = &allow};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 0;
  return socket(AF_INET, SOCK_STREAM, 0) >= 0;
}
static int raises_its_limits(void) {
  struct rlimit processes = {10000, 10000}, bytes = {(rlim_t)1 << 40, (rlim_t)1 << 40};
  return setrlimit(RLIMIT_NPROC, &processes) == 0 && setrlimit(RLIMIT_FSIZE, &bytes) == 0;
}

static void try_network(const char *port, const char *socket_path) {
  struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  say("tcp", fd >= 0 && connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
  fd = socket(AF_INET, SOCK_DGRAM, 0);
  say("udp", fd >= 0 && sendto(fd, "x", 1, 0, (struct sockaddr *)&there, sizeof there) == 1);
  struct sockaddr_un here = {.sun_family = AF_UNIX};
  strncpy(here.sun_path, socket_path, sizeof here.sun_path - 1);
  fd = socket(AF_UNIX, SOCK_STREAM, 0);
  say("unix", fd >= 0 && connect(fd, (struct sockaddr *)&here, sizeof here) == 0);
}

/* Forks sleeping children until fork fails, `most` at most. */
static void try_forks(int most) {
  pid_t children[most];
  int count = 0;
  while (count < most && (children[count] = fork()) >= 0) {
    if (children[count] == 0) {
      pause();
      _exit(0);
    }
    count++;
  }
  fprintf(stderr, "forks %d\n", count);
  for (int i = 0; i < count; i++) kill(children[i], SIGKILL);
  while (wait(NULL) > 0) continue;
}

static void try_bounds(const char *disk) {
  signal(SIGXFSZ, SIG_IGN);
  int fd = open(disk, O_RDWR), opened = 0;
  say("huge file", fd >= 0 && pwrite(fd, "x", 1, (off_t)1 << 40) == 1 && ftruncate(fd, 0) == 0);
  close(fd);
  void *memory = mmap(NULL, (size_t)8 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  say("much memory", memory != MAP_FAILED);
  if (memory != MAP_FAILED) munmap(memory, (size_t)8 << 30);
  while (opened < 1000 && dup(2) >= 0) opened++;
  fprintf(stderr, "files %d\n", opened);
  for (int i = 3; i < 1100; i++) close(i);
}

static void list(const char *name, const char *path, int only_numbers) {
  DIR *folder = opendir(path);
  fprintf(stderr, "%s", name);
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] == '.' || (only_numbers && (entry->d_name[0] < '0' || entry->d_name[0] > '9'))) continue;
    fprintf(stderr, " %s", entry->d_name);
  }
  fprintf(stderr, "\n");
  if (folder != NULL) closedir(folder);
}

/* FOLDER PORT SOCKET PID WRITABLE SHOWN HIDDEN… : working folder, the host's TCP port and socket, a process of the host, files. */
int main(int argc, char **argv) {
  if (argc < 7) return 2;
  const char *folder = argv[1], *writable = argv[5], *shown = argv[6];
  char path[4096];
  own_folder = folder;
  fprintf(stderr, "uid %d\n", getuid());
  fprintf(stderr, "scheduling policy %d\n", sched_getscheduler(0));
  for (char **variable = environ; *variable != NULL; variable++) fprintf(stderr, "variable %s\n", *variable);
  list("descriptors", "/proc/self/fd", 1);
  list("folder", folder, 0);
  list("processes", "/proc", 1);
  try_open("allowed: read shown", shown, O_RDONLY);
  try_open("allowed: write own", writable, O_RDWR);
  for (int i = 7; i < argc; i++) {
    snprintf(path, sizeof path, "read %s", argv[i]);
    try_open(path, argv[i], O_RDONLY);
  }
  try_open("write shown", shown, O_RDWR);
  say("chmod shown", chmod(shown, 0666) == 0);
  snprintf(path, sizeof path, "%s/made", folder);
  try_open("make a file", path, O_RDWR | O_CREAT);
  say("link", symlink("/etc/shadow", "./made-link") == 0 && unlink("./made-link") == 0);
  snprintf(path, sizeof path, "%s.gone", writable);
  say("rename own", rename(writable, path) == 0 && rename(path, writable) == 0);
  try_open("write the kernel's settings", "/proc/sys/kernel/core_pattern", O_WRONLY);
  say("signal the host", kill(atoi(argv[4]), 0) == 0);
  try_network(argv[2], argv[3]);
  say("mount", in_child(mounts));
  say("mount in namespaces", in_child(mounts_in_namespaces));
  say("change root in a user namespace", in_child(changes_root_in_a_user_namespace));
  say("clone a namespace", in_child(clones_a_namespace));
  say("become root", in_child(becomes_root));
  say("become another", in_child(becomes_another));
  say("change root", in_child(changes_root));
  say("make a device", in_child(makes_a_device));
  say("trace", in_child(traces));
  say("memory file", in_child(makes_a_memory_file));
  say("shared memory", in_child(shares_memory));
  say("move the command line", in_child(moves_its_command_line));
  say("x32", in_child(speaks_x32));
  say("io_uring", in_child(uses_io_uring));
  say("keys", in_child(uses_keys));
  say("bpf", in_child(loads_bpf));
  say("file handles", in_child(opens_handles));
  say("remove the filter", in_child(removes_its_filter));
  say("raise limits", in_child(raises_its_limits));
  try_forks(400);
  try_bounds(writable);
  return 0;
}
