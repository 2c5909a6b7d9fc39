/** The filter, run as the kernel would run it. That the kernel agrees is tried in test/jail. */
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

/** What the program answers to a call. */
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

test("what QEMU needs is allowed", () => {
  // read, mmap, ioctl, writev, accept4, futex, openat, ppoll, listen, getsockopt, prctl, execve, setresuid
  for (const number of [0, 9, 16, 20, 288, 202, 257, 271, 50, 55, 157, 59, 117]) {
    assert.equal(answer(asRoot, { number }), allow, String(number));
  }
});

test("what leads out of jails is denied", () => {
  // ptrace, mount, socket, setns, bpf, userfaultfd, io_uring_setup, keyctl, open_by_handle_at, mknodat, pidfd_getfd
  for (const number of [101, 165, 41, 308, 321, 323, 425, 250, 304, 259, 438]) {
    assert.equal(answer(asRoot, { number }), eperm, String(number));
  }
});

test("threads may be cloned, namespaces not; clone3, whose flags no filter sees, is said not to be there", () => {
  const thread = 0x003d_0f00;
  assert.equal(answer(asRoot, { number: 56, argument: thread }), allow);
  for (const flag of [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, newUser, 0x2000_0000, 0x4000_0000]) {
    assert.equal(answer(asRoot, { number: 56, argument: thread | flag }), eperm, flag.toString(16));
  }
  assert.equal(answer(asRoot, { number: 435 }), enosys);
});

test("only the way in makes a user namespace, and only that", () => {
  assert.equal(answer(asRoot, { number: 272, argument: newUser }), allow);
  assert.equal(answer(asRoot, { number: 272, argument: newUser | 0x0002_0000 }), eperm);
  assert.equal(answer(rootless, { number: 272, argument: newUser }), eperm);
});

test("calls by another architecture's numbers end the process", () => {
  fc.assert(
    fc.property(fc.nat(0xffff_ffff), fc.nat(600), (arch, number) => {
      if (arch !== x64) assert.equal(answer(asRoot, { number, arch }), kill);
      assert.equal(answer(asRoot, { number: 0x4000_0000 + number }), kill);
    }),
  );
});

test("it fits the kernel's bounds, and is none where the numbers mean something else", () => {
  assert.ok(asRoot.length / 8 < 4_096);
  assert.equal(seccompFilter({ mayUnshareUser: true }, "arm64"), null);
});
