/**
 * Each wall of the jail, tried from inside. The program probe.c stands for a compromised QEMU: it runs under QEMU's own
 * sandbox profile and attempts escapes. The same program without a jail must succeed with every attempt, so each
 * refusal here is due to the jail.
 */
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer, type Server } from "node:net";
import { release, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { Jail } from "../../src/vmm/jail/jail.ts";
import { handoverPath } from "../../src/vmm/jail/jail-args.ts";
import { isSchedulerRecent } from "../../src/vmm/jail/jail-tools.ts";
import { programFilesOf } from "../../src/vmm/jail/program-files.ts";
import { qemuProfile } from "../../src/vmm/qemu-profile.ts";
import type { VmSpec } from "../../src/vmm/vmm.ts";
import { waitFor } from "../wait-for.ts";

const isRoot = process.getuid!() === 0;
const uids = loadConfig({}).jailUids;
const folder = mkdtempSync(join(tmpdir(), "capsule-jail-"));
const probe = join(folder, "probe");
const listeners: Server[] = [];

/** A data folder with two capsules in it. */
const data = join(folder, "data");
const own = join(data, "capsules/cl-own");
const foreign = join(data, "capsules/cl-foreign");
const base = join(data, "bases/b");
const disk = join(own, "disk.qcow2");
/** Existing files that the jailed program must not be able to read. */
const hidden = [
  join(data, "capsule.db"),
  join(data, "api-key"),
  join(own, "vm.json"),
  join(own, "capsule.json"),
  join(foreign, "disk.qcow2"),
  join(base, "manifest.json"),
  `/proc/${process.pid}/environ`,
  `/proc/${process.pid}/maps`,
  "/etc/shadow",
  "/etc/passwd",
  "/bin/sh",
];

const spec: VmSpec = {
  name: "cl-own",
  nonce: "0".repeat(32),
  machine: { qemu: "10.0.2", accelerator: "tcg", cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
  files: {
    dir: own,
    memory: join(base, "memory"),
    disk,
    backing: [join(base, "disk.qcow2"), join(data, "root.ext4")],
    kernel: "/none",
    initrd: "/none",
  },
};

/** The probe's results by the name of the attempt. */
type Results = Map<string, string>;
let free: Results;
let jailed: Results;
let jail: Jail;

before(async () => {
  execFileSync("cc", ["-O1", "-o", probe, join(import.meta.dirname, "probe.c")]);
  for (const each of [own, foreign, base]) mkdirSync(each, { recursive: true, mode: 0o700 });
  const files = [...hidden, disk, join(own, "devices"), spec.files.memory, ...spec.files.backing];
  for (const path of files.filter((each) => each.startsWith(data))) writeFileSync(path, "secret", { mode: 0o600 });
  const socket = join(folder, "socket");
  const [port] = [await listen(0), await listen(socket)];
  const [shown] = [spec.files.memory];
  const args = [own, String(port), socket, String(process.pid), disk, shown, ...hidden];

  // In a mount namespace of its own, so that its mounts do not reach the host.
  const { stderr } = spawnSync("unshare", ["--mount", probe, ...args], { cwd: own, encoding: "utf8" });
  free = resultsOf(stderr);
  writeFileSync(disk, "secret");
  chmodSync(shown, 0o600);

  chownSync(spec.files.backing[0]!, uids.first + 7, uids.first + 7);
  jail = await Jail.open({ uids });
  jailed = resultsOf(await jail.run([probe, ...args], await qemuProfile(spec, await programFilesOf(probe), "restore")));
});

after(() => {
  for (const each of listeners) each.close();
  rmSync(folder, { recursive: true });
});

function listen(where: number | string): Promise<number | undefined> {
  const server = createServer((socket) => socket.destroy());
  listeners.push(server);
  const listening = () => (server.address() as { port?: number } | null)?.port;
  return new Promise((resolve) =>
    server.listen(typeof where === "number" ? { port: where, host: "127.0.0.1" } : { path: where }, () =>
      resolve(listening()),
    ),
  );
}

function resultsOf(output: string): Results {
  return new Map(
    output.split("\n").map((line) => {
      const at = / (ok$|failed: .*$|\d+( \d+)*$)/.exec(line)?.index ?? line.length;
      return [line.slice(0, at), line.slice(at + 1)];
    }),
  );
}

describe("inside the jail", {
  skip: isRoot ? false : "the unjailed probe must run as root to succeed with every attempt",
}, () => {
  const refusals: Record<string, string[]> = {
    "files of the host, of other capsules, and of the daemon in its own folder": hidden.map((path) => `read ${path}`),
    "writing to files that templates share": ["write shown", "chmod shown"],
    "making, linking or renaming files": ["make a file", "link", "rename own"],
    "the host's network and sockets": ["tcp", "udp", "unix"],
    "the host's processes": ["signal the host", "trace"],
    "mounts, namespaces and other roots": [
      "mount",
      "mount in namespaces",
      "change root in a user namespace",
      "clone a namespace",
      "change root",
    ],
    "changing its user": ["become root", "become another"],
    devices: ["make a device"],
    "rarely used kernel interfaces": ["write the kernel's settings", "x32", "io_uring", "keys", "bpf", "file handles"],
    "loosening the jail": ["remove the filter", "raise limits"],
    "more disk and memory than its limits": ["huge file", "much memory", "memory file", "shared memory"],
    "a command line of any length": ["move the command line"],
  };
  for (const [what, names] of Object.entries(refusals)) {
    test(`refused: ${what}`, () => {
      for (const name of names) {
        assert.equal(free.get(name), "ok", `${name}, without a jail`);
        assert.match(jailed.get(name) ?? "not tried", /^failed: /, `${name}, jailed`);
      }
    });
  }

  test("it can read its read-only files and write its own disk", () => {
    assert.equal(jailed.get("allowed: read shown"), "ok");
    assert.equal(jailed.get("allowed: write own"), "ok");
  });

  test("it has a reserved user and no environment, and sees only its own process and files", () => {
    const uid = Number(jailed.get("uid"));
    assert.ok(uid > uids.first && uid <= uids.last, `uid ${uid}`);
    const variables = (results: Results) => [...results.keys()].filter((name) => name.startsWith("variable "));
    assert.deepEqual(variables(jailed), [`variable PWD=${own}`]);
    assert.ok(variables(free).some((name) => name.startsWith("variable PATH=")));
    assert.equal(jailed.get("processes"), "1");
    assert.ok(free.get("processes")!.split(" ").includes(String(process.pid)));
    // Descriptor 3 is the folder being listed.
    assert.equal(jailed.get("descriptors"), "0 1 2 3");
    assert.ok(
      jailed.has("folder devices disk.qcow2") || jailed.has("folder disk.qcow2 devices"),
      [...jailed].join("; "),
    );
  });

  test("in its hand-over folder it can list, create and rename nothing, and opens only files handed over", async () => {
    const [dir, handover] = [join(data, "work/warm"), join(data, "work/handover-1")];
    for (const each of [dir, handover]) mkdirSync(each, { recursive: true, mode: 0o700 });
    const held = join(handover, "disk.qcow2");
    const [folder, seen] = [join(dir, handoverPath), join(dir, handoverPath, "disk.qcow2")];
    for (const path of [join(dir, "devices"), held]) writeFileSync(path, "secret", { mode: 0o600 });
    const profile = await qemuProfile(
      { ...spec, files: { ...spec.files, dir, disk: held } },
      await programFilesOf(probe),
      "warm",
      handover,
    );
    const args = [folder, "1", "/none", "1", seen, spec.files.memory, seen];
    const results = resultsOf(await jail.run([probe, ...args], profile));
    for (const name of ["make a file", "rename own", "allowed: write own"]) {
      assert.match(results.get(name) ?? "not tried", /^failed: /, name);
    }
    assert.equal(results.get(`read ${seen}`), "failed: Permission denied", "the file exists");
    assert.ok(results.has("folder"), "the folder is listed as empty");
    assert.equal(results.get("allowed: read shown"), "ok");
    assert.equal(readFileSync(held, "utf8"), "secret");
  });

  test("a program is ended when its signal fires, and the reason thrown once it has ended", async () => {
    const sleep = await programFilesOf("sleep");
    const profile = { ...(await qemuProfile(spec, sleep, "restore")), writable: [], deviceNodes: [] };
    const seconds = "86399.5";
    const isSleeping = () =>
      readdirSync("/proc").some((pid) => {
        try {
          return readFileSync(`/proc/${pid}/cmdline`, "utf8") === `${sleep.program}\0${seconds}\0`;
        } catch {
          return false;
        }
      });
    const destroyed = new AbortController();
    const running = jail.run([sleep.program, seconds], profile, { signal: destroyed.signal });
    running.catch(() => {});
    await waitFor("the program sleeps", isSleeping);
    destroyed.abort(new Error("destroyed"));
    await assert.rejects(running, /^Error: destroyed/);
    assert.equal(isSleeping(), false);
  });

  test("it runs under SCHED_BATCH on kernels since 6.12", () => {
    const [other, batch] = ["0", "3"]; // SCHED_OTHER, SCHED_BATCH
    assert.equal(free.get("scheduling policy"), other);
    assert.equal(jailed.get("scheduling policy"), isSchedulerRecent(release()) ? batch : other);
  });

  test("the numbers of processes and open files are limited", () => {
    assert.equal(free.get("forks"), "400");
    assert.ok(Number(jailed.get("forks")) < 100, jailed.get("forks"));
    assert.equal(free.get("files"), "1000");
    assert.ok(Number(jailed.get("files")) < 256, jailed.get("files"));
  });

  test("no other file has changed its content, owner or mode", () => {
    assert.equal(readFileSync(spec.files.memory, "utf8"), "secret");
    assert.equal(statSync(spec.files.memory).uid, 0);
    for (const path of hidden.filter((each) => each.startsWith(data))) {
      assert.equal(readFileSync(path, "utf8"), "secret");
      assert.deepEqual([statSync(path).uid, statSync(path).mode & 0o777], [0, 0o600], path);
    }
  });

  test("a shared file that belonged to a VM belongs to root now", () => {
    for (const path of [spec.files.memory, ...spec.files.backing]) {
      const { uid, gid, mode } = statSync(path);
      assert.deepEqual([uid, gid, mode & 0o777], [0, uids.first, 0o640], path);
    }
  });

  test("no two programs run under the same user at a time", async () => {
    const programFiles = await programFilesOf(probe);
    const profiles = Array.from({ length: 8 }, async (_, index) => {
      const dir = join(data, `capsules/cl-${index}`);
      mkdirSync(dir, { mode: 0o700 });
      for (const name of ["disk", "devices"]) writeFileSync(join(dir, name), "", { mode: 0o600 });
      return qemuProfile({ ...spec, files: { ...spec.files, dir, disk: join(dir, "disk") } }, programFiles, "restore");
    });
    const users = profiles.map(async (profile) => {
      const { folder: dir, writable } = await profile;
      const args = [dir, "1", "/none", "1", writable[0]!, spec.files.memory];
      return resultsOf(await jail.run([probe, ...args], await profile)).get("uid");
    });
    assert.equal(new Set(await Promise.all(users)).size, 8);
  });
});
