/** Real qemu-img on real layers, with and without its jail, and on layers that a compromised QEMU could leave. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { loadConfig } from "../config.ts";
import { Jail } from "./jail/jail.ts";
import { layerMerger, type MergeLayer } from "./layer-merge.ts";
import { emptyOverlay } from "./qcow2.ts";

const run = promisify(execFile);
const sizeBytes = 1 << 20;

let folder = "";
let merges: [string, MergeLayer][];
let count = 0;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "capsule-merge-"));
  await mkdir(join(folder, "bases"));
  await writeFile(join(folder, "bases/root"), Buffer.alloc(sizeBytes, 7), { mode: 0o600 });
  const parent = emptyOverlay({ sizeBytes, backingFile: "root", backingFormat: "raw" });
  await writeFile(join(folder, "bases/parent"), parent, { mode: 0o600 });
  await write("bases/parent", 5, 0);
  const jail = await Jail.open({ uids: loadConfig({}).jailUids });
  merges = [
    ["jailed", await layerMerger(jail)],
    ["unjailed", await layerMerger(undefined)],
  ];
});
after(() => rm(folder, { recursive: true, force: true }));

/** Writes 64 KiB of a byte at an offset of a layer. */
async function write(name: string, byte: number, at: number): Promise<void> {
  await run("qemu-io", ["-f", "qcow2", "-c", `write -P ${byte} ${at} 65536`, join(folder, name)]);
}

/** A layer in a new folder, with its parent and root. */
async function layer(backingFile = "../bases/parent") {
  const name = `layer-${count++}`;
  await mkdir(join(folder, name), { mode: 0o700 });
  const path = join(folder, name, "disk");
  await writeFile(path, emptyOverlay({ sizeBytes, backingFile, backingFormat: "qcow2" }), { mode: 0o600 });
  return { layer: path, parent: join(folder, "bases/parent"), root: join(folder, "bases/root") };
}

test("layers are merged, with and without a jail, and belong to the service afterwards", async () => {
  for (const [how, merge] of merges) {
    const what = await layer();
    await run("qemu-io", ["-f", "qcow2", "-c", "write -P 9 131072 65536", what.layer]);
    await merge(what);
    const { stdout } = await run("qemu-img", ["info", "--output=json", what.layer]);
    assert.equal(JSON.parse(stdout)["backing-filename"], "../bases/root", how);
    const reads = ["read -P 5 0 65536", "read -P 7 65536 65536", "read -P 9 131072 65536"];
    const read = await run("qemu-io", ["-f", "qcow2", ...reads.flatMap((each) => ["-c", each]), what.layer]);
    assert.doesNotMatch(read.stdout, /verification failed/, how);
    const { uid, mode } = await stat(what.layer);
    assert.deepEqual([uid, mode & 0o777], [process.getuid!(), 0o600], how);
  }
});

test("a merge whose signal has fired ends with the reason", async () => {
  for (const [how, merge] of merges) {
    const destroyed = new AbortController();
    const merging = merge(await layer(), destroyed.signal);
    destroyed.abort(new Error("destroyed"));
    await assert.rejects(merging, /^Error: destroyed/, how);
  }
});

test("a layer whose backing file is a file of the host is refused and not changed", async () => {
  const secret = join(folder, "secret");
  await writeFile(secret, Buffer.alloc(sizeBytes, "secret "));
  for (const [how, merge] of merges) {
    const what = await layer(secret);
    const before = await readFile(what.layer);
    await assert.rejects(merge(what), { code: "agent_error", message: /backing file is ".*secret"/ }, how);
    assert.deepEqual(await readFile(what.layer), before, how);
  }
});

test("a layer with a damaged L1 table fails", async () => {
  for (const [how, merge] of merges) {
    const what = await layer();
    const bytes = await readFile(what.layer);
    // The first entry of the L1 table: an L2 table that begins within a cluster.
    bytes.writeBigUInt64BE(0x8000_0000_0000_0200n, 3 * 65_536);
    await writeFile(what.layer, bytes);
    await assert.rejects(merge(what), /qemu-img/, how);
  }
});
