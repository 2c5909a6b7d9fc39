/** The filter in an interpreter of BPF. test/jail runs it in the kernel. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { describe, test } from "node:test";
import fc from "fast-check";
import { seccompFilter } from "./seccomp-filter.ts";

const x64 = 0xc000003e;
const [allow, eperm, enosys, kill] = [0x7fff_0000, 0x0005_0001, 0x0005_0026, 0x8000_0000];
const newUser = 0x1000_0000;

interface Call {
  number: number;
  arch?: number;
  argument?: number;
  third?: number;
}

/** The filter's return value for a call. */
function answer(program: Buffer, { number, arch = x64, argument = 0, third = 0 }: Call): number {
  const fields: Record<number, number> = { 0: number, 4: arch, 16: argument, 32: third };
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

test("QEMU's filter is what running VMs have, to the byte", () => {
  const hash = (filter: Buffer) => createHash("sha256").update(filter).digest("hex");
  assert.deepEqual([asRoot, rootless].map(hash), [
    "79c7532865717032f31b1a719b224156caa9e6ad854fb346902e5230efa73826",
    "b4ab2f45bb160803fd15540a2a3470af1384100fb2fef96bfd5daebdde8ae2ce",
  ]);
});

describe("the relay's filter", () => {
  const relay = seccompFilter({ mayUnshareUser: true, program: "relay" }, "x64")!;
  const [inet, inet6, netlink] = [2, 10, 16];

  test("permits sockets that dial, and the one of the machine's addresses", () => {
    for (const argument of [inet, inet6, netlink]) assert.equal(answer(relay, { number: 41, argument }), allow);
    assert.equal(answer(relay, { number: 42 }), allow, "connect");
    assert.equal(answer(relay, { number: 49, third: 12 }), allow, "bind of a netlink socket");
  });

  test("denies other families and protocols, listening, and addresses of its own", () => {
    for (let argument = 0; argument < 50; argument++)
      if (![inet, inet6, netlink].includes(argument)) assert.equal(answer(relay, { number: 41, argument }), eperm);
    for (const third of [1, 4, 12]) assert.equal(answer(relay, { number: 41, argument: netlink, third }), eperm);
    for (const third of [0, 16, 28, 110]) assert.equal(answer(relay, { number: 49, third }), eperm, `bind ${third}`);
    // listen, accept, accept4, socketpair
    for (const number of [50, 43, 288, 53]) assert.equal(answer(relay, { number }), eperm, `${number}`);
  });

  test("makes threads and no processes", () => {
    assert.equal(answer(relay, { number: 56, argument: 0x003d_0f00 }), allow);
    for (const argument of [0, 17, 0x0000_4111, 0x0100_0011])
      assert.equal(answer(relay, { number: 56, argument }), eperm);
    for (const number of [57, 58]) assert.equal(answer(relay, { number }), eperm);
    assert.equal(answer(relay, { number: 435 }), enosys);
    assert.equal(answer(relay, { number: 56, argument: 0x003d_0f00 | newUser }), eperm);
  });

  test("keeps every other denial of QEMU's", () => {
    for (let number = 0; number < 600; number++) {
      const isOwn = [41, 42, 49, 50, 43, 288, 53, 57, 58, 56].includes(number);
      if (!isOwn) assert.equal(answer(relay, { number }), answer(asRoot, { number }), `${number}`);
    }
  });
});

test("the filter fits the kernel's 4,096 instructions; on other architectures there is none", () => {
  assert.ok(asRoot.length / 8 < 4_096);
  assert.equal(seccompFilter({ mayUnshareUser: true }, "arm64"), null);
});
