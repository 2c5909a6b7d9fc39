import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import {
  type Cleanup,
  type MovingHost,
  movedId,
  movedMachine,
  movedRevision,
  movingHost,
  pauseOn,
} from "../../../test/fakes/movable-capsule.ts";
import { emptyOverlay, type Overlay } from "../../vmm/qcow2.ts";
import { openCheckpoint } from "../disk/checkpoint-folder.ts";
import { requireSameLayer } from "../disk/disk-layer.ts";
import type { FetchedRow, MovedRecord } from "./moved-folders.ts";

interface Fetched {
  host: MovingHost;
  folder: string;
  row: FetchedRow;
}

/** One host's capsule; and a host with its image and base that fetches it. */
async function hosts(t: Cleanup, about: { memoryBytes?: number } = {}): Promise<[from: MovingHost, to: MovingHost]> {
  const from = await movingHost(t);
  await pauseOn(from, about);
  return [from, await movingHost(t, from)];
}

let count = 0;

async function fetched([from, host]: [from: MovingHost, to: MovingHost]): Promise<Fetched> {
  const { files, record } = await from.moves.describe(movedId);
  const folder = host.paths.scratch(`fetched-${count++}`);
  for (const { name, path } of files) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    cpSync(path, join(folder, name)); // with a time of its own
  }
  const kept = JSON.parse(JSON.stringify(record)) as MovedRecord;
  const { vcpus, memoryMb } = movedMachine;
  return { host, folder, row: { epoch: 4, record: kept, storage: null, vcpus, memoryMb, diskMb: 4 } };
}

/** Changes a field of a JSON file. */
function edit(path: string, change: (value: Record<string, unknown>) => void): void {
  const value = JSON.parse(readFileSync(path, "utf8"));
  change(value);
  writeFileSync(path, JSON.stringify(value));
}

for (const memoryBytes of [300_000, 5 << 20]) {
  test(`a fetched folder with ${memoryBytes} bytes of memory becomes one that can be resumed here`, async (t) => {
    const { host, folder, row } = await fetched(await hosts(t, { memoryBytes }));
    await host.moves.finish(folder, row);
    const published = host.paths.capsule(movedId);
    host.paths.move(folder, published);
    const manifest = await openCheckpoint(join(published, "checkpoint"));
    assert.deepEqual([manifest?.epoch, manifest?.revision, manifest?.machine], [4, movedRevision, movedMachine]);
    requireSameLayer(published, manifest!, "the capsule");
    assert.deepEqual(await readable(host), row.record);
    execFileSync("qemu-img", ["check", "-q", join(published, "disk.qcow2")]);
  });
}

async function readable({ moves }: MovingHost): Promise<unknown> {
  return JSON.parse(JSON.stringify((await moves.describe(movedId)).record));
}

type Spoil = (folder: string, row: FetchedRow, host: MovingHost) => void;

const capsuleJson =
  (change: (value: Record<string, unknown>) => void): Spoil =>
  (folder) =>
    edit(join(folder, "capsule.json"), change);
const manifestJson =
  (change: (value: Record<string, unknown>) => void): Spoil =>
  (folder) =>
    edit(join(folder, "checkpoint/manifest.json"), change);
const both =
  (change: (value: Record<string, unknown>) => void): Spoil =>
  (folder, ...more) => {
    capsuleJson(change)(folder, ...more);
    manifestJson(change)(folder, ...more);
  };
const record =
  (change: (value: Record<string, unknown>) => void): Spoil =>
  (_, row) =>
    change(row.record as Record<string, unknown>);
const add =
  (name: string): Spoil =>
  (folder) =>
    writeFileSync(join(folder, name), "{}");
const backing = "../../bases/minimal-b/disk.qcow2";
/** Another disk layer, of the size that the manifest names. */
const layer =
  (overlay: Partial<Overlay>): Spoil =>
  (folder) => {
    const path = join(folder, "disk.qcow2");
    const size = readFileSync(path).length;
    writeFileSync(path, emptyOverlay({ sizeBytes: 4 << 20, backingFile: backing, backingFormat: "qcow2", ...overlay }));
    truncateSync(path, size);
  };
const header =
  (at: number, bytes: number[]): Spoil =>
  (folder) => {
    const path = join(folder, "disk.qcow2");
    const content = readFileSync(path);
    content.set(bytes, at);
    writeFileSync(path, content);
  };
const machine = (value: Record<string, unknown>) => value.machine as Record<string, unknown>;

const spoilt: [what: string, spoil: Spoil, why: RegExp][] = [
  ["has a journal", add("vm.json"), /it has the files .*vm\.json/],
  ["has another file in its checkpoint", add("checkpoint/disk.qcow2"), /it has the files .*disk\.qcow2/],
  ["lacks its hashes", (folder) => rmSync(join(folder, "checkpoint/hashes")), /it has the files/],
  [
    "has a link",
    (folder) => {
      rmSync(join(folder, "checkpoint/state"));
      symlinkSync("/etc/passwd", join(folder, "checkpoint/state"));
    },
    /state is no plain file/,
  ],
  [
    "has a folder in place of a file",
    (folder) => {
      rmSync(join(folder, "capsule.json"));
      mkdirSync(join(folder, "capsule.json"));
    },
    /capsule\.json is no plain file/,
  ],
  [
    "has endless JSON",
    (folder) => truncateSync(join(folder, "capsule.json"), 1 << 30),
    /capsule\.json has 1073741824 bytes/,
  ],
  [
    "has an endless device state",
    (folder) => truncateSync(join(folder, "checkpoint/state"), 2 ** 31),
    /state has \d+ bytes/,
  ],
  [
    "has more memory than its machine",
    (folder) => truncateSync(join(folder, "checkpoint/memory.diff"), 2 ** 28),
    /memory\.diff has \d+ bytes/,
  ],
  ["has no JSON", (folder) => writeFileSync(join(folder, "capsule.json"), "{"), /cannot be used/],
  ["is of a later release", capsuleJson((value) => (value.format = 3)), /format 3/],
  ["has a checkpoint of a later release", manifestJson((value) => (value.format = 3)), /format 3/],
  [
    "has memory of another size than its manifest",
    (folder) => appendFileSync(join(folder, "checkpoint/memory.diff"), "x"),
    /memory\.diff has/,
  ],
  [
    "has another device state",
    (folder) => writeFileSync(join(folder, "checkpoint/state"), "DEVICES"),
    /checksum of state is wrong/,
  ],
  [
    "has hashes of other memory",
    (folder) => edit(join(folder, "checkpoint/hashes"), (value) => (value.files = {})),
    /hashes are not those of memory\.diff/,
  ],
  ["is a base", manifestJson((value) => (value.kind = "base")), /is a base/],
  ["is of another revision", manifestJson((value) => (value.revision = 8)), /its revision is not the row's/],
  [
    "is of another version of the protocol",
    manifestJson((value) => (value.agent = { protocol: 2 })),
    /its protocol is not/,
  ],
  [
    "lists other files",
    manifestJson((value) => delete (value.files as Record<string, unknown>).state),
    /has the files memory\.diff/,
  ],
  ["is of another machine", both((value) => (machine(value).cpu = "host")), /its machine is not the row's/],
  ["is of another QEMU", both((value) => (machine(value).qemu_build = "c".repeat(64))), /its machine is not the row's/],
  ["has two machines", manifestJson((value) => (machine(value).vcpus = 2)), /another machine than its capsule\.json/],
  [
    "stands on another image than its disk",
    capsuleJson((value) => (value.image = { name: "minimal", hash: "c" })),
    /another image/,
  ],
  [
    "names an image elsewhere",
    capsuleJson((value) => (value.image = { name: "..", hash: "etc" })),
    /its image is "\.\.\/etc"/,
  ],
  ["names a parent elsewhere", capsuleJson((value) => (value.origin = "../etc")), /started from "\.\.\/etc"/],
  [
    "names a parent beside the bases",
    capsuleJson((value) => (value.origin = "bases/../capsules/cl-2")),
    /started from/,
  ],
  ["stands on a base that is not here", capsuleJson((value) => (value.origin = "bases/other")), /are gone/],
  ["stands on another base of this name", capsuleJson((value) => (value.originSha256 = "d".repeat(64))), /are gone/],
  [
    "has a disk layer of another size than its manifest",
    (folder) => appendFileSync(join(folder, "disk.qcow2"), "x"),
    /disk layer has another size/,
  ],
  ["has another backing file", layer({ backingFile: "/etc/shadow" }), /backing file is "\/etc\/shadow"/],
  ["has the backing file of another depth", layer({ backingFile: "../bases/minimal-b/disk.qcow2" }), /backing file is/],
  ["has a backing file in JSON", layer({ backingFile: "json:{}" }), /backing file is "json:/],
  ["has a backing file of another format", layer({ backingFormat: "raw" }), /has the format raw/],
  ["has a larger disk than its capsule.json", layer({ sizeBytes: 1 << 30 }), /disk has 1073741824 bytes/],
  ["has an external data file", header(79, [4]), /incompatible features: 0x4/],
  ["has an encrypted disk", header(35, [2]), /encrypted/],
  ["has snapshots", header(63, [1]), /snapshots/],
  ["has no disk", header(0, [0]), /not a qcow2 file/],
  [
    "has a larger disk than its row",
    capsuleJson((value) => (value.diskBytes = 1 << 30)),
    /disk has 4194304 bytes instead of 1073741824/,
  ],
  ["is of a row with another size of the disk", (_, row) => (row.diskMb = 8), /not the row's/],
  ["is of a row with more memory", (_, row) => (row.memoryMb = 256), /not the row's/],
  ["is of a row with more vCPUs", (_, row) => (row.vcpus = 2), /not the row's/],
  ["is of a row with a template", (_, row) => (row.storage = "t1"), /its row from t1/],
  ["is of a row without a record", (_, row) => (row.record = null), /not the row's/],
  ["is of a row with a larger record", record((value) => (value.more = 1)), /its record is not the row's/],
  ["is of a row with another parent", record((value) => (value.parent = "bases/c")), /its parent is not the row's/],
  ["is of a row with another image", record((value) => (value.imageSha256 = "e".repeat(64))), /its imageSha256 is not/],
];

const shared = await hosts({ after });

for (const [what, spoil, why] of spoilt) {
  test(`a fetched folder that ${what} is refused`, async () => {
    const { host, folder, row } = await fetched(shared);
    spoil(folder, row, host);
    await assert.rejects(host.moves.finish(folder, row), (error: Error & { code?: string }) => {
      assert.match(error.message, why);
      assert.equal(error.code, "agent_error", error.message);
      return true;
    });
    const path = join(folder, "checkpoint/manifest.json");
    assert.ok(!existsSync(`${path}.new`));
    assert.doesNotMatch(readFileSync(path, "utf8"), /"epoch": 4/);
  });
}
