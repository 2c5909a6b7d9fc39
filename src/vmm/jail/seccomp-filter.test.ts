/** The filter in an interpreter of BPF. test/jail runs it in the kernel. */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { seccompFilter } from "./seccomp-filter.ts";

const x64 = 0xc000003e;
const [allow, eperm, enosys, kill] = [0x7fff_0000, 0x0005_0001, 0x0005_0026, 0x8000_0000];
const newUser = 0x1000_0000;

interface Call {
  number: number;
  arch?: number;
  argument?: number;
}

/** The filter's return value for a call. */
function answer(program: Buffer, { number, arch = x64, argument = 0 }: Call): number {
  const fields: Record<number, number> = { 0: number, 4: arch, 16: argument };
  let accumulator = 0;
  for (let at = 0; at < program.length; at += 8) {
    const [code, ifTrue, ifFalse] = [program.readUInt16LE(at), program[at + 2]!, program[at + 3]!];
    const value = program.readUInt32LE(at + 4);
    if (code === 0x06) return value;
    if (code === 0x20) accumulator = fields[value]!;
    else {
      const isTrue =
        code === 0x15 ? accumulator === value : code === 0x35 ? accumulator >= value : (accumulator & value) !== 0;
      at += 8 * (isTrue ? ifTrue : ifFalse);
    }
  }
  throw new Error("the program has no end");
}

const asRoot = seccompFilter({ mayUnshareUser: true }, "x64")!;
const rootless = seccompFilter({ mayUnshareUser: false }, "x64")!;

test("calls that QEMU needs are allowed", () => {
  // read, mmap, ioctl, writev, accept4, futex, openat, ppoll, listen, getsockopt, prctl, execve, setresuid
  for (const number of [0, 9, 16, 20, 288, 202, 257, 271, 50, 55, 157, 59, 117]) {
    assert.equal(answer(asRoot, { number }), allow, String(number));
  }
});

test("calls that escapes have used are denied", () => {
  // ptrace, mount, socket, setns, bpf, userfaultfd, io_uring_setup, keyctl, open_by_handle_at, mknodat, pidfd_getfd
  for (const number of [101, 165, 41, 308, 321, 323, 425, 250, 304, 259, 438]) {
    assert.equal(answer(asRoot, { number }), eperm, String(number));
  }
});

test("memory past the limits, other ways to start programs and to reach processes are denied", () => {
  // memfd_create, memfd_secret, shmget, vmsplice, execveat, pidfd_open, pidfd_send_signal
  for (const number of [319, 447, 29, 278, 322, 434, 424]) assert.equal(answer(asRoot, { number }), eperm, `${number}`);
  // personality, migrate_pages, move_pages, open_tree_attr
  for (const number of [135, 256, 279, 467]) assert.equal(answer(asRoot, { number }), eperm, `${number}`);
});

test("prctl does not move the command line; every other option is allowed", () => {
  const prctl = 157;
  assert.equal(answer(asRoot, { number: prctl, argument: 35 }), eperm);
  for (let option = 0; option < 80; option++) {
    if (option !== 35) assert.equal(answer(asRoot, { number: prctl, argument: option }), allow, `${option}`);
  }
});

test("clone makes threads but no namespaces; clone3, whose flags a filter cannot read, fails with ENOSYS", () => {
  const thread = 0x003d_0f00;
  assert.equal(answer(asRoot, { number: 56, argument: thread }), allow);
  for (const flag of [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, newUser, 0x2000_0000, 0x4000_0000]) {
    assert.equal(answer(asRoot, { number: 56, argument: thread | flag }), eperm, flag.toString(16));
  }
  assert.equal(answer(asRoot, { number: 435 }), enosys);
});

test("unshare makes a user namespace and no other, and only as root", () => {
  assert.equal(answer(asRoot, { number: 272, argument: newUser }), allow);
  assert.equal(answer(asRoot, { number: 272, argument: newUser | 0x0002_0000 }), eperm);
  assert.equal(answer(rootless, { number: 272, argument: newUser }), eperm);
});

test("a call of another architecture kills the process", () => {
  fc.assert(
    fc.property(fc.nat(0xffff_ffff), fc.nat(600), (arch, number) => {
      if (arch !== x64) assert.equal(answer(asRoot, { number, arch }), kill);
      assert.equal(answer(asRoot, { number: 0x4000_0000 + number }), kill);
    }),
  );
});

test("the filter fits the kernel's 4,096 instructions; on other architectures there is none", () => {
  assert.ok(asRoot.length / 8 < 4_096);
  assert.equal(seccompFilter({ mayUnshareUser: true }, "arm64"), null);
});
