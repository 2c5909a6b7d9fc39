/**
 * The jail around a running capsule's QEMU. A debugger (inject.c) makes each of its threads perform system calls, as
 * machine code of an attacker in it would. The same calls in a free process of root must succeed, so each refusal here is
 * due to the jail.
 */
import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { Server } from "../server.ts";

const canInject = process.arch === "x64" && process.getuid!() === 0;
const folder = mkdtempSync(join(tmpdir(), "capsule-inject-"));
const inject = join(folder, "inject");

const number = {
  socket: 41,
  fork: 57,
  kill: 62,
  setuid: 105,
  openat: 257,
  unshare: 272,
  memfdCreate: 319,
} as const;
const [here, readOnly] = [-100, 0];
const [inet, unix, stream] = [2, 1, 1];
const [newUser, newMounts] = [0x1000_0000, 0x2_0000];
const [eperm, enoent, esrch] = ["-1", "-2", "-3"];

let server: Server;
let client: Client;
let own: TestCapsule;
let other: TestCapsule;
let free: ChildProcess;

describe("the QEMU of a running capsule", {
  skip: canInject ? false : "only root, on x86-64, can make another process perform system calls",
}, () => {
  before(async () => {
    execFileSync("cc", ["-O1", "-o", inject, join(import.meta.dirname, "inject.c")]);
    free = spawn("sleep", ["infinity"], { stdio: "ignore" });
    server = await Server.start({ env: { CAPSULE_POOL: "off" } });
    client = await Client.connect(server.url, server.apiKey);
    own = await client.capsule();
    other = await client.capsule();
  });
  after(async () => {
    free?.kill("SIGKILL");
    client?.close();
    await server?.[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true });
  });

  const dirOf = ({ id }: TestCapsule) => join(server.dataDir, "capsules", id);
  const vmOf = (capsule: TestCapsule): number =>
    JSON.parse(readFileSync(join(dirOf(capsule), "vm.json"), "utf8")).process.pid;

  const threadsOf = (capsule: TestCapsule) => readdirSync(`/proc/${vmOf(capsule)}/task`).map(Number);

  /** The system call's result, an error as its negative number; "killed": it ended the thread. */
  function call(thread: number, which: number, args: (number | string)[]): string {
    return execFileSync(inject, [String(thread), String(which), ...args.map(String)], { encoding: "utf8" }).trim();
  }

  test("no thread of it makes sockets, memory files or processes, signals the server, or opens a file of others", async () => {
    const path = (name: string) => join(server.dataDir, name);
    const attempts: [what: string, which: number, args: (number | string)[], error: string][] = [
      ["an Internet socket", number.socket, [inet, stream, 0], eperm],
      ["a UNIX socket", number.socket, [unix, stream, 0], eperm],
      ["a memory file", number.memfdCreate, ["name", 0], eperm],
      ["a signal to the server", number.kill, [server.pid!, 0], esrch],
      ["the database", number.openat, [here, path("capsule.db"), readOnly], enoent],
      ["the first API key", number.openat, [here, path("api-key"), readOnly], enoent],
      ["its own journal", number.openat, [here, join(dirOf(own), "vm.json"), readOnly], enoent],
      ["another capsule's disk", number.openat, [here, join(dirOf(other), "disk.qcow2"), readOnly], enoent],
      ["the host's passwords", number.openat, [here, "/etc/shadow", readOnly], enoent],
      ["a shell", number.openat, [here, "/bin/sh", readOnly], enoent],
    ];
    const threads = threadsOf(own);
    assert.ok(threads.length >= 2, `${threads.length} threads: no processor of the guest among them`);
    /** In all threads but those that end meanwhile, as QEMU's idle ones do. */
    const attempt = (what: string, which: number, args: (number | string)[], error: string) => {
      for (const thread of threads.filter((each) => threadsOf(own).includes(each))) {
        try {
          assert.equal(call(thread, which, args), error, `${what}, thread ${thread} of ${threads}`);
        } catch (failure) {
          if (threadsOf(own).includes(thread)) throw failure;
        }
      }
    };
    for (const [what, which, args, error] of attempts) {
      attempt(what, which, args, error);
      assert.ok(Number(call(free.pid!, which, args)) >= 0, `${what}, without a jail`);
    }
    attempt("a process", number.fork, [], eperm);
    const left = threadsOf(own).filter((each) => threads.includes(each));
    assert.ok(left.length >= 2, `${left.length} threads were tried throughout`);
    assert.equal(await own.sh("echo alive"), "alive");
  });

  // In this order: inside its new namespace the free process could not become root.
  for (const [what, which, args] of [
    ["root's rights", number.setuid, [0]],
    ["a user namespace alone", number.unshare, [newUser]],
    ["a mount namespace", number.unshare, [newMounts]],
  ] as const) {
    test(`QEMU's own filter ends a thread that asks for ${what}; a delete ends the others`, async () => {
      await using attacked = await client.capsule();
      const [thread, ...others] = threadsOf(attacked);
      assert.equal(call(thread!, which, [...args]), "killed");
      assert.equal(call(free.pid!, which, [...args]), "0", "without a jail");
      await attacked.destroy();
      // The first thread is the group's id: where it is a zombie, nobody can see the others in /proc by a command line.
      assert.deepEqual(
        others.filter((each) => existsSync(`/proc/${thread}/task/${each}`)),
        [],
      );
      assert.equal(await other.sh("echo alive"), "alive");
    });
  }

  test("its descriptors are files of its own, shared files that it cannot write, and its own sockets", () => {
    const vm = vmOf(own);
    const sockets = new Map<string, string>();
    for (const line of readFileSync("/proc/net/unix", "utf8").split("\n").slice(1)) {
      const fields = line.split(/\s+/);
      sockets.set(`socket:[${fields[6]}]`, fields[7] ?? "");
    }
    const bound = new Set<string>();
    for (const fd of readdirSync(`/proc/${vm}/fd`)) {
      const target = readlinkSync(`/proc/${vm}/fd/${fd}`);
      const name = sockets.get(target);
      if (target.startsWith("anon_inode:") || target === "/dev/null") continue;
      if (target.startsWith("socket:")) {
        assert.ok(name !== undefined, `descriptor ${fd} is a socket of the network`);
        const match = /^$|\/(agent|net|qmp|qtest)\.sock(\.new)?$/.exec(name);
        assert.ok(match !== null, `descriptor ${fd} is the socket ${name}`);
        if (match[1] !== undefined) bound.add(match[1]);
        continue;
      }
      const flags = /^flags:\s+(\d+)/m.exec(readFileSync(`/proc/${vm}/fdinfo/${fd}`, "utf8"))![1]!;
      const isWritable = (Number.parseInt(flags, 8) & 0o3) !== 0;
      const isOwn = target.startsWith(`${dirOf(own)}/`);
      assert.ok(isOwn || !isWritable, `descriptor ${fd} can write ${target}`);
      assert.ok(isOwn || !target.startsWith(join(server.dataDir, "capsules")), `descriptor ${fd} is ${target}`);
    }
    for (const name of ["agent", "net", "qmp"]) assert.ok(bound.has(name), `${name} among ${[...bound].join()}`);
  });
});
