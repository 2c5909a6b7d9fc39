/* Runs in the relay's place: system calls that Node has no function for. One line of JSON on the channel, descriptor 3. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int first = 1;

static void tell(const char *name, long result) {
    dprintf(3, "%s\"%s\":\"%s\"", first ? "{" : ",", name, result < 0 ? strerrorname_np(errno) : "done");
    first = 0;
}

static long ended(long pid) {
    if (pid == 0) _exit(0);
    if (pid > 0) waitpid(pid, NULL, 0);
    return pid;
}

int main(void) {
    int pair[2];
    struct sockaddr_in any = {.sin_family = AF_INET};
    int tcp = socket(AF_INET, SOCK_STREAM, 0);
    int route = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    tell("tcp socket", tcp);
    tell("udp socket", socket(AF_INET, SOCK_DGRAM, 0));
    tell("ipv6 socket", socket(AF_INET6, SOCK_DGRAM, 0));
    tell("route socket", route);
    tell("bind the route socket", bind(route, (struct sockaddr *)&kernel, sizeof kernel));
    tell("bind", bind(tcp, (struct sockaddr *)&any, sizeof any));
    tell("listen", listen(tcp, 1));
    tell("accept", accept(tcp, NULL, NULL) < 0 && errno == EINVAL ? 0 : -1);
    tell("unix socket", socket(AF_UNIX, SOCK_STREAM, 0));
    tell("socket pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    tell("packet socket", socket(AF_PACKET, SOCK_RAW, 0));
    tell("raw socket", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    tell("netfilter socket", socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
    tell("list sockets", socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG));
    tell("vsock", socket(40, SOCK_STREAM, 0));
    tell("fork", ended(syscall(SYS_fork)));
    tell("vfork", vfork() == 0 ? (_exit(0), 0) : (errno == EPERM ? -1 : 0));
    tell("clone", ended(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)));
    tell("clone3", syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS ? -1 : 0);
    tell("new network", unshare(CLONE_NEWNET));
    tell("new mounts", unshare(CLONE_NEWNS));
    tell("ptrace", ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    dprintf(3, "}\n");
    pause();
    return 0;
}
