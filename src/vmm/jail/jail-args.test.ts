import assert from "node:assert/strict";
import { test } from "node:test";
import { type JailedStart, jailArgs } from "./jail-args.ts";
import { isSchedulerRecent } from "./jail-tools.ts";

const start: JailedStart = {
  profile: {
    readOnly: ["/usr/bin/qemu", "/data/bases/b/memory"],
    writable: ["/data/capsules/cl-1/disk.qcow2"],
    deviceNodes: ["/dev/kvm"],
    folder: "/data/capsules/cl-1",
    limits: { fileBytes: 1_000, dataBytes: 2_000, processes: 97, openFiles: 256, cpus: 3 },
  },
  user: { uid: 2_000, gid: 2_000, groups: [1_000, 108] },
  tools: { bwrap: "/b/bwrap", chrt: "/b/chrt", prlimit: "/b/prlimit", setpriv: "/b/setpriv", unshare: "/b/unshare" },
  join: [],
  infoFd: 5,
  filterFd: 6,
  argv: ["/usr/bin/qemu", "-name", "guest=cl-1 nonce=0 dir=/data"],
};

/** The whole command line, so that a removed option shows in this test's diff. */
const asRoot = `
/b/chrt --batch 0
/b/bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try
--new-session --as-pid-1 --clearenv
--cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP
--info-fd 5 --seccomp 6
--dir /b --dir /data --dir /data/bases --dir /data/bases/b --dir /data/capsules --dir /data/capsules/cl-1
--dir /dev --dir /usr --dir /usr/bin
--ro-bind /b/prlimit /b/prlimit --ro-bind /b/setpriv /b/setpriv --ro-bind /b/unshare /b/unshare
--ro-bind /usr/bin/qemu /usr/bin/qemu --ro-bind /data/bases/b/memory /data/bases/b/memory
--proc /proc
--dev-bind /dev/null /dev/null --dev-bind /dev/urandom /dev/urandom --dev-bind /dev/kvm /dev/kvm
--bind /data/capsules/cl-1/disk.qcow2 /data/capsules/cl-1/disk.qcow2
--remount-ro / --chdir /data/capsules/cl-1 --
/b/prlimit --core=0 --fsize=1000 --data=2000 --nproc=97 --nofile=256 --memlock=0 --msgqueue=0 --
/b/setpriv --reuid 2000 --regid 2000 --groups 1000,108 --inh-caps=-all --bounding-set=-all --no-new-privs --
/b/unshare --user --map-current-user --
/usr/bin/qemu -name
`;

const words = (text: string) => text.trim().split(/\s+/);
const without = (args: string[], ...left: string[]) => args.filter((arg) => !left.includes(arg));

test("as root: bubblewrap, limits, a separate user without capabilities, a user namespace", () => {
  assert.deepEqual(jailArgs(start), [...words(asRoot), "guest=cl-1 nonce=0 dir=/data"]);
});

test("without root: the same, except that the user stays the service's", () => {
  const args = jailArgs({ ...start, user: null });
  const shared = without(words(asRoot).slice(0, words(asRoot).indexOf("/b/setpriv", 60)), "--cap-add");
  const root = ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "/b/setpriv", "/b/unshare"];
  for (const option of without(shared, ...root)) assert.ok(args.includes(option), option);
  assert.ok(args.includes("--unshare-user"));
  for (const absent of [...root, "--cap-add", "--reuid"]) assert.ok(!args.includes(absent), absent);
  assert.deepEqual(args.slice(-3), start.argv);
});

test("the hand-over folder is mounted beside the working directory", () => {
  const handover = "/data/work/handover";
  const args = jailArgs({ ...start, profile: { ...start.profile, handoverDir: handover } }).join(" ");
  assert.ok(args.includes(`--bind ${handover} /data/capsules/handover --remount-ro /`), args);
});

test("the control group is joined first; without a filter there is no --seccomp", () => {
  const args = jailArgs({ ...start, join: ["/bin/sh", "-c", "x", "group"], filterFd: null });
  assert.deepEqual(args.slice(0, 5), ["/bin/sh", "-c", "x", "group", "/b/chrt"]);
  assert.ok(!args.includes("--seccomp"));
});

test("of a program that is run to its end bubblewrap tells nobody", () => {
  const args = jailArgs({ ...start, infoFd: null });
  assert.deepEqual(args.join(" "), jailArgs(start).join(" ").replace(" --info-fd 5", ""));
});

test("before Linux 6.12 the program is not scheduled as a batch", () => {
  const args = jailArgs({ ...start, tools: { ...start.tools, chrt: null } });
  assert.deepEqual(args, [...words(asRoot).slice(3), "guest=cl-1 nonce=0 dir=/data"]);
  const kernels = ["5.10.0-1-amd64", "6.1.0-28-amd64", "6.11.9", "6.12.1-amd64", "6.18.44-fc-v657", "7.0"];
  assert.deepEqual(kernels.map(isSchedulerRecent), [false, false, false, true, true, true]);
});

test("VMs outlive the service: bubblewrap runs without --die-with-parent", () => {
  assert.ok(!jailArgs(start).includes("--die-with-parent"));
});
