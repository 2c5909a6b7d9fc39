/** Keys and clients' data must not be readable by others: a search of processes, logs and the data folder. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { after, before } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { processesOf } from "../../server.ts";
import { section, test } from "../conforms.ts";
import { fileForm } from "../requests.ts";
import { client, ofFirstHost, server } from "../service.ts";
import { TestSocket } from "../socket.ts";

const skip =
  server === undefined
    ? "the data folder of the server at CAPSULE_URL is not on this machine"
    : ofFirstHost("a capsule may be in the folder of any host");
/** Memory files and disks are larger; they may contain data of their capsules. */
const readMaxBytes = 32 << 20;
/**
 * The empty memory of a VM that boots from its kernel: for a base that an earlier test requested, or the probe of KVM.
 */
const emptyMemory = /^work\/(base|probe)-[0-9a-f]{32}\/zero$/;

export const secrets = section(import.meta, "secrets", () => {
  const marker = `marker-${randomBytes(12).toString("hex")}`;
  const envs = { SECRET: marker };
  let capsule: TestCapsule;
  let paused: TestCapsule;

  before(async () => {
    if (skip !== false) return;
    [capsule, paused] = await Promise.all([client.capsule({ envs: { KEPT: marker } }), client.capsule({ envs })]);
    assert.equal(await capsule.sh("printenv KEPT"), marker);
    await paused.pause();
    await capsule.exec({ cmd: "sleep", args: ["7001"], envs, background: true });
    await capsule.run("true", [marker], { envs });
    await capsule.exec({ cmd: "no-such-command", args: [marker], envs });
    await client.expect(204, "POST", `${capsule.path}/files/write`, { form: fileForm("/root/secret", marker) });
    await client.call("POST", `${capsule.path}/exec`, { json: { cmd: 1, args: [marker], envs } });
    await client.call("POST", `${capsule.path}/exec?secret=${marker}`, { json: {}, headers: { "x-secret": marker } });
    await client.call("GET", "/v1/capsules", { key: marker });
    await using stream = await TestSocket.open(capsule, "exec/stream");
    stream.say({ type: "start", cmd: "printenv", args: ["SECRET"], envs });
    assert.equal((await stream.output()).stdout, `${marker}\n`);
    await using terminal = await TestSocket.open(capsule, "pty");
    terminal.say({ type: "start", cmd: "cat", envs });
    await terminal.next("started");
    terminal.type(`${marker}\n`);
    await terminal.prints(new RegExp(marker));
  });
  after(() => Promise.all([capsule?.[Symbol.asyncDispose](), paused?.[Symbol.asyncDispose]()]));

  test(
    "no process has a secret in its arguments or environment",
    () => {
      const pids = [server!.pid, ...processesOf(server!.dataDir).map(({ pid }) => pid)];
      assert.ok(pids.length > 1, "the server and a VM");
      for (const pid of pids) {
        for (const file of ["cmdline", "environ"]) assertClean(contentOf(`/proc/${pid}/${file}`), `${pid} ${file}`);
      }
    },
    { skip },
  );

  test(
    "logs and files contain no secret, except the file for the first key",
    () => {
      assertClean(readFileSync(server!.log.file), "the log");
      const own = join(server!.dataDir, "capsules", capsule.id);
      const looked = filesBelow(server!.dataDir).filter(({ path, size }) => {
        if (size > readMaxBytes) return false;
        const bytes = contentOf(path);
        const name = relative(server!.dataDir, path);
        if (name === "api-key") assert.ok(bytes.includes(client.key));
        else if (path.startsWith(own) && name.endsWith("disk.qcow2")) assert.ok(!bytes.includes(client.key), name);
        else assertClean(bytes, name);
        return true;
      });
      const names = looked.map(({ path }) => relative(server!.dataDir, path));
      for (const name of ["api-key", "capsule.db", "capsule.db-wal"]) assert.ok(names.includes(name), name);
      assert.ok(names.some((name) => name.startsWith("capsules/")));
    },
    { skip },
  );

  test(
    "the data folder: folders 0700, files 0600; jails may read shared files and search hand-over folders",
    () => {
      assert.equal(lstatSync(server!.dataDir).mode & 0o777, 0o700);
      const open = entriesBelow(server!.dataDir).filter(({ path, mode, isFile }) => {
        const name = relative(server!.dataDir, path);
        const isSource = isFile && (/^(bases|templates)\//.test(name) || emptyMemory.test(name));
        const isHandover = !isFile && /^work\/handover-[0-9a-f]{32}$/.test(name);
        const allowed = isSource ? 0o740 : isHandover ? 0o710 : 0o700;
        return (mode & 0o777 & ~allowed) !== 0;
      });
      assert.deepEqual(
        open.map(({ path, mode }) => `${relative(server!.dataDir, path)} ${(mode & 0o777).toString(8)}`),
        [],
      );
    },
    { skip },
  );

  test(
    "VMs map their template's memory privately, so that none can write to it",
    () => {
      const maps = processesOf(server!.dataDir).flatMap(({ pid }) => mapsOf(pid));
      const shared = maps.filter(({ path }) => /\/memory$/.test(path));
      assert.ok(shared.length > 0, "a VM has its memory from a file");
      assert.deepEqual(
        shared.filter(({ access }) => access.endsWith("s")),
        [],
      );
    },
    { skip },
  );

  function assertClean(bytes: Buffer, what: string): void {
    assert.ok(!bytes.includes(client.key), `${what} holds the key`);
    assert.ok(!bytes.includes(marker), `${what} holds what a client passed in`);
  }
});

/** Processes and files may disappear during the search. */
function contentOf(path: string): Buffer {
  return unlessGone(() => readFileSync(path), Buffer.alloc(0));
}

function unlessGone<T>(look: () => T, otherwise: T): T {
  try {
    return look();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ESRCH") return otherwise;
    throw error;
  }
}

interface Entry {
  path: string;
  mode: number;
  size: number;
  isFile: boolean;
}

/** Everything below a folder, without following symbolic links. */
function entriesBelow(folder: string): Entry[] {
  return unlessGone(() => readdirSync(folder), []).flatMap((name) => {
    const path = join(folder, name);
    const found = lstatSync(path, { throwIfNoEntry: false });
    if (found === undefined || found.isSymbolicLink()) return [];
    const entry = { path, mode: found.mode, size: found.size, isFile: found.isFile() };
    return found.isDirectory() ? [entry, ...entriesBelow(path)] : [entry];
  });
}

function filesBelow(folder: string): Entry[] {
  return entriesBelow(folder).filter(({ isFile }) => isFile);
}

function mapsOf(pid: number): { access: string; path: string }[] {
  const lines = contentOf(`/proc/${pid}/maps`).toString().trim().split("\n");
  return lines.map((line) => {
    const [, access = "", , , , path = ""] = line.split(/\s+/);
    return { access, path };
  });
}
