import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, openSync } from "node:fs";
import { link, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, truncate, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { endProcess, spawnDetached } from "./process.ts";
import {
  agentSocketName,
  clearFolder,
  deviceStateMaxBytes,
  layDeviceState,
  listenForVm,
  moveFolder,
  qmpSocketName,
  readDeviceState,
} from "./vm-folder.ts";

let folder = "";
beforeEach(async () => {
  // Deeper than a socket's path may be long.
  folder = join(await mkdtemp(join(tmpdir(), "vm-folder-")), "deep".repeat(50));
  await mkdir(folder);
});
afterEach(() => rm(join(folder, ".."), { recursive: true }));

test("a device state file is created, read back, and removed", async () => {
  const saved = join(folder, "saved");
  await writeFile(saved, "state of devices");
  const path = await layDeviceState(folder, saved);
  assert.equal(readDeviceState(folder).toString(), "state of devices");
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  await truncate(path, 0);
  assert.throws(() => readDeviceState(folder), /has 0 bytes/, "QEMU has not written it");
  await assert.rejects(layDeviceState(folder, null), { code: "EEXIST" });
  await clearFolder(folder);
  assert.deepEqual(await readdir(folder), ["saved"]);
});

test("a device state that is a link, has a second name, is no plain file or is huge is not read", async () => {
  const secret = join(folder, "secret");
  const path = join(folder, "devices");
  await writeFile(secret, "secret");
  await symlink(secret, path);
  assert.throws(() => readDeviceState(folder), { code: "ELOOP" });
  await rm(path);
  await link(secret, path);
  assert.throws(() => readDeviceState(folder), /no plain file/);
  assert.equal(await readFile(secret, "utf8"), "secret");
  await rm(path);
  execFileSync("mkfifo", [path]);
  assert.throws(() => readDeviceState(folder), /no plain file/, "without waiting for a writer");
  await rm(path);
  await mkdir(path);
  assert.throws(() => readDeviceState(folder), /no plain file/);
  await rm(path, { recursive: true });
  await writeFile(path, "");
  await truncate(path, deviceStateMaxBytes + 1);
  assert.throws(() => readDeviceState(folder), /has 16777217 bytes/);
});

test("the sockets of all parts move with a VM, and are removed with it", async () => {
  const [from, to] = ["from", "to"].map((name) => join(folder, name)) as [string, string];
  for (const path of [from, to]) await mkdir(path);
  for (const name of ["agent.sock", "qmp.sock", "second.sock"]) await writeFile(join(from, name), "");
  for (const name of ["vm.json", "disk"]) await writeFile(join(from, name), "");
  await layDeviceState(from, null);
  await moveFolder(from, to);
  assert.deepEqual((await readdir(from)).sort(), ["disk", "vm.json"]);
  assert.deepEqual((await readdir(to)).sort(), ["agent.sock", "devices", "qmp.sock", "second.sock"]);
  await writeFile(join(to, "second.sock.new"), "");
  await clearFolder(to);
  assert.deepEqual(await readdir(to), []);
  await clearFolder(join(folder, "gone"));
});

test("a listening socket stays open in the process that inherits it, and is closed with that process", async () => {
  const open = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY);
  const path = `/proc/self/fd/${open}/${agentSocketName}`;
  const knock = async () => {
    const socket = connect(path);
    try {
      await once(socket, "connect");
    } finally {
      socket.destroy();
    }
  };
  try {
    const sockets = await listenForVm(open, [agentSocketName, qmpSocketName]);
    const { process } = spawnDetached(
      ["/bin/sleep", "1000"],
      "/",
      sockets.map(({ fd }) => fd),
    );
    for (const socket of sockets) socket.close();
    assert.deepEqual((await readdir(folder)).sort(), ["agent.sock", "qmp.sock"]);
    await knock();
    await endProcess(process);
    await assert.rejects(knock(), { code: "ECONNREFUSED" });
  } finally {
    closeSync(open);
  }
});
