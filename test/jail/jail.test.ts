/**
 * Each wall of the jail, tried from inside: a program that stands in for a QEMU taken over by its guest is started in the
 * very cell that QEMU gets, and tries what such a one would. The same program, started free, must succeed with all of it:
 * so every refusal here is the jail's doing.
 */
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { release, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { isSchedulerRecent, Jail } from "../../src/vmm/jail/jail.ts";
import { handoverPath } from "../../src/vmm/jail/jail-args.ts";
import { programFilesOf } from "../../src/vmm/jail/program-files.ts";
import { qemuProfile } from "../../src/vmm/qemu-profile.ts";
import type { VmSpec } from "../../src/vmm/vmm.ts";

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
/** What nobody inside may read, all of it there. */
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
  machine: { qemu: "10.0.2", accelerator: "tcg", cpu: "max", layout: 1, vcpus: 1, memoryMb: 512 },
  files: {
    dir: own,
    memory: join(base, "memory"),
    disk,
    backing: [join(base, "disk.qcow2"), join(data, "root.ext4")],
    kernel: "/none",
    initrd: "/none",
  },
};

/** The probe's words: what follows a line's name. */
type Words = Map<string, string>;
let free: Words;
let jailed: Words;
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

  // Mounts and the like are to stay its own.
  const { stderr } = spawnSync("unshare", ["--mount", probe, ...args], { cwd: own, encoding: "utf8" });
  free = wordsOf(stderr);
  writeFileSync(disk, "secret");
  chmodSync(shown, 0o600);

  chownSync(spec.files.backing[0]!, uids.first + 7, uids.first + 7);
  jail = await Jail.open({ uids });
  jailed = wordsOf(await jail.run([probe, ...args], await qemuProfile(spec, await programFilesOf(probe), "restore")));
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

function wordsOf(said: string): Words {
  return new Map(
    said.split("\n").map((line) => {
      const at = / (ok$|failed: .*$|\d+( \d+)*$)/.exec(line)?.index ?? line.length;
      return [line.slice(0, at), line.slice(at + 1)];
    }),
  );
}

describe("inside the jail", { skip: isRoot ? false : "what a free process can do is tried as root" }, () => {
  const refusals: Record<string, string[]> = {
    "files of the host, of other capsules, and of the daemon in its own folder": hidden.map((path) => `read ${path}`),
    "writing to what templates share": ["write shown", "chmod shown"],
    "making, linking or renaming files": ["make a file", "link", "rename own"],
    "the host's network and sockets": ["tcp", "udp", "unix"],
    "the host's processes": ["signal the host", "trace"],
    "mounts, namespaces and other roots": ["mount", "mount in namespaces", "clone a namespace", "change root"],
    "becoming somebody else": ["become root", "become another"],
    devices: ["make a device"],
    "the kernel's back rooms": ["write the kernel's settings", "x32", "io_uring", "keys", "bpf", "file handles"],
    "loosening the jail": ["talk the filter away", "raise limits"],
    "more than its share of disk and memory": ["huge file", "much memory"],
  };
  for (const [what, names] of Object.entries(refusals)) {
    test(`refused: ${what}`, () => {
      for (const name of names) {
        assert.equal(free.get(name), "ok", `${name}, started free`);
        assert.match(jailed.get(name) ?? "not tried", /^failed: /, `${name}, jailed`);
      }
    });
  }

  test("it can do its work: read what it is shown, write its own disk", () => {
    assert.equal(jailed.get("allowed: read shown"), "ok");
    assert.equal(jailed.get("allowed: write own"), "ok");
  });

  test("it is nobody of this machine, without environment, and sees itself and its files alone", () => {
    const uid = Number(jailed.get("uid"));
    assert.ok(uid > uids.first && uid <= uids.last, `uid ${uid}`);
    const variables = (words: Words) => [...words.keys()].filter((name) => name.startsWith("variable "));
    assert.deepEqual(variables(jailed), [`variable PWD=${own}`]);
    assert.ok(variables(free).some((name) => name.startsWith("variable PATH=")));
    assert.equal(jailed.get("processes"), "1");
    assert.ok(free.get("processes")!.split(" ").includes(String(process.pid)));
    // The fourth is the folder being listed.
    assert.equal(jailed.get("descriptors"), "0 1 2 3");
    assert.ok(
      jailed.has("folder devices disk.qcow2") || jailed.has("folder disk.qcow2 devices"),
      [...jailed].join("; "),
    );
  });

  test("a hatch is no folder to it: nothing can be seen, made or renamed in it, nor opened that was not given", async () => {
    const [dir, handover] = [join(data, "work/blank"), join(data, "work/hatch-1")];
    for (const each of [dir, handover]) mkdirSync(each, { recursive: true, mode: 0o700 });
    const held = join(handover, "disk.qcow2");
    const [folder, seen] = [join(dir, handoverPath), join(dir, handoverPath, "disk.qcow2")];
    for (const path of [join(dir, "devices"), held]) writeFileSync(path, "secret", { mode: 0o600 });
    const cell = await qemuProfile(
      { ...spec, files: { ...spec.files, dir, disk: held } },
      await programFilesOf(probe),
      "warm",
    );
    const said = wordsOf(await jail.run([probe, folder, "1", "/none", "1", seen, spec.files.memory, seen], cell));
    for (const name of ["make a file", "rename own", "allowed: write own"]) {
      assert.match(said.get(name) ?? "not tried", /^failed: /, name);
    }
    assert.equal(said.get(`read ${seen}`), "failed: Permission denied", "it is there");
    assert.ok(said.has("folder"), "it is listed as empty");
    assert.equal(said.get("allowed: read shown"), "ok");
    assert.equal(readFileSync(held, "utf8"), "secret");
  });

  test("it interrupts nobody when it wakes up, where the host's scheduler is made for that", () => {
    const [other, batch] = ["0", "3"]; // SCHED_OTHER, SCHED_BATCH
    assert.equal(free.get("scheduling policy"), other);
    assert.equal(jailed.get("scheduling policy"), isSchedulerRecent(release()) ? batch : other);
  });

  test("processes and open files end at its bounds", () => {
    assert.equal(free.get("forks"), "400");
    assert.ok(Number(jailed.get("forks")) < 100, jailed.get("forks"));
    assert.equal(free.get("files"), "1000");
    assert.ok(Number(jailed.get("files")) < 256, jailed.get("files"));
  });

  test("what it left in its files is all that has changed", () => {
    assert.equal(readFileSync(spec.files.memory, "utf8"), "secret");
    assert.equal(statSync(spec.files.memory).uid, 0);
    for (const path of hidden.filter((each) => each.startsWith(data))) {
      assert.equal(readFileSync(path, "utf8"), "secret");
      assert.deepEqual([statSync(path).uid, statSync(path).mode & 0o777], [0, 0o600], path);
    }
  });

  test("what was a VM's own and is shared now is root's", () => {
    for (const path of [spec.files.memory, ...spec.files.backing]) {
      const { uid, gid, mode } = statSync(path);
      assert.deepEqual([uid, gid, mode & 0o777], [0, uids.first, 0o640], path);
    }
  });

  test("no two at a time are the same user", async () => {
    const view = await programFilesOf(probe);
    const cells = Array.from({ length: 8 }, async (_, index) => {
      const dir = join(data, `capsules/cl-${index}`);
      mkdirSync(dir, { mode: 0o700 });
      for (const name of ["disk", "devices"]) writeFileSync(join(dir, name), "", { mode: 0o600 });
      return qemuProfile({ ...spec, files: { ...spec.files, dir, disk: join(dir, "disk") } }, view, "restore");
    });
    const said = cells.map(async (cell) => {
      const { folder: dir, writable } = await cell;
      const args = [dir, "1", "/none", "1", writable[0]!, spec.files.memory];
      return wordsOf(await jail.run([probe, ...args], await cell)).get("uid");
    });
    assert.equal(new Set(await Promise.all(said)).size, 8);
  });
});
