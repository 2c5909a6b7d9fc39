import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import type { Machine } from "../../vmm/vmm.ts";
import { readCapsule, writeCapsule } from "./capsule-folder.ts";
import { diskLayerOf, readManifest } from "./checkpoint-folder.ts";
import { requireSameMachine } from "./machine-record.ts";
import { decodeManifest, encodeManifest, imageLayer, newManifest, type Saved } from "./manifest.ts";

const folder = mkdtempSync(join(tmpdir(), "manifest-"));
after(() => rmSync(folder, { recursive: true }));

const sha256 = "5e".repeat(32);
const machine: Machine = {
  ...{ qemu: "10.0.2", qemuBuild: "b1", accelerator: "kvm", cpu: "host", cpuFeatures: "sse vendor=A" },
  ...{ tscKhz: 2_400_000, devices: ["ports:1"], vcpus: 2, memoryMb: 512 },
};
const saved: Saved = {
  ...{ kind: "pause", revision: 7, machine, agent: { protocol: 1 }, frozen: true },
  ...{ layers: [imageLayer("minimal", "ab", sha256)], diskLayer: { bytes: 5, mtimeNs: 1_764_000_000_123_456_789n } },
};

/** As the release before wrote it. */
const format1 = {
  format: 1,
  kind: "pause",
  machine: { qemu: "10.0.2", accelerator: "tcg", cpu: "max,-erms,-fsrm", layout: 1, vcpus: 1, memoryMb: 512 },
  image: { name: "minimal", hash: "ab" },
  createdAt: "2026-11-20T10:00:00.000Z",
  files: { state: { bytes: 13_000, sha256 }, "memory.diff": { bytes: 3_000_000, sha256 } },
};

const encoded = () => JSON.parse(JSON.stringify(encodeManifest(newManifest(saved, { state: { bytes: 3, sha256 } }))));

test("a manifest is read as it was written, and its fields have these names", () => {
  const { created_at, ...value } = encoded();
  assert.deepEqual(value, {
    format: 2,
    kind: "pause",
    revision: 7,
    epoch: 1,
    frozen: true,
    machine: {
      ...{ vcpus: 2, memory_mb: 512, accelerator: "kvm", cpu: "host", qemu: "10.0.2", qemu_build: "b1" },
      ...{ cpu_features: "sse vendor=A", tsc_khz: 2_400_000, devices: ["ports:1"] },
    },
    agent: { protocol: 1 },
    layers: [{ kind: "image", key: "minimal/ab", sha256 }],
    disk_layer: { bytes: 5, mtime_ns: "1764000000123456789" },
    hashes: "hashes",
    files: { state: { bytes: 3, sha256 } },
  });
  const read = decodeManifest({ ...value, created_at });
  assert.deepEqual(read, { ...newManifest(saved, { state: { bytes: 3, sha256 } }), createdAt: created_at });
});

test("a base says whether its agent can make a disk larger; what others say is left out", () => {
  const of = (agent: object) =>
    decodeManifest({ ...encodeManifest(newManifest(saved, { state: { bytes: 3 } })), agent }).agent;
  assert.deepEqual(of({ protocol: 1, grows: false }), { protocol: 1, grows: false });
  assert.deepEqual(of({ protocol: 1, grows: "yes" }), { protocol: 1 });
});

test("a machine whose build of QEMU is not known can be restored by every build of its version", () => {
  const { qemuBuild: _, ...unknown } = machine;
  const value = encodeManifest(newManifest({ ...saved, machine: unknown }, { state: { bytes: 3 } }));
  assert.equal((value.machine as { qemu_build: null }).qemu_build, null);
  const read = decodeManifest(JSON.parse(JSON.stringify(value))).machine;
  assert.deepEqual(read, unknown);
  requireSameMachine(read, machine, "it");
  requireSameMachine(machine, { ...machine, qemuBuild: "b2" }, "it");
});

test("a manifest of format 1 is read: its layout as devices, and what it lacks as unknown", () => {
  const read = decodeManifest(format1);
  const { image, ...about } = format1;
  assert.deepEqual(read, {
    ...about,
    ...{ epoch: 1, revision: null, frozen: null, diskLayer: null, hashes: null, agent: { protocol: 1 } },
    machine: { ...decodeManifest(format1).machine, devices: ["ports:1"] },
    layers: [imageLayer("minimal", "ab", null)],
    image,
  });
  const { cpu, accelerator, vcpus, memoryMb, qemu } = format1.machine;
  const now = {
    cpu,
    accelerator: accelerator as "tcg",
    vcpus,
    memoryMb,
    qemu,
    tscKhz: 2_000_000,
    devices: ["ports:1"],
  };
  requireSameMachine(read.machine, now, "it");
});

const wrongValues = {
  ...{ kind: "vm", revision: -1, epoch: 0, frozen: "yes", agent: {}, created_at: "then", files: {}, hashes: "../h" },
  ...{ machine: null, disk_layer: { bytes: 5 }, format: 0 },
  layers: [{ kind: "image", key: "a/b/c", sha256: null }],
};
for (const [field, wrong] of Object.entries(wrongValues)) {
  test(`a manifest is refused without a right ${field}`, () => {
    assert.doesNotThrow(() => decodeManifest(encoded()));
    for (const value of [wrong, undefined, -1.5, [[]]]) {
      if (field === "agent" && value === undefined) continue; // saves of earlier releases have none
      assert.throws(() => decodeManifest({ ...encoded(), [field]: value }), Error, JSON.stringify(value));
    }
  });
}

test("a manifest is refused without a right field of its machine, layers or files", () => {
  for (const field of ["vcpus", "memory_mb", "accelerator", "cpu", "qemu", "devices"]) {
    const value = encoded();
    value.machine[field] = {};
    assert.throws(() => decodeManifest(value), new RegExp(`machine's ${field}`));
  }
  for (const layer of [{ kind: "disk" }, { key: "" }, { sha256: "5e" }]) {
    const value = encoded();
    Object.assign(value.layers[0], layer);
    assert.throws(() => decodeManifest(value), /layer/);
  }
  for (const files of [{ "../up": { bytes: 1 } }, { state: {} }, { state: { bytes: 1, sha256: "x" } }]) {
    assert.throws(() => decodeManifest({ ...encoded(), files }), /file/);
  }
  assert.throws(() => decodeManifest({ ...format1, machine: { ...format1.machine, layout: 2 } }), /layout is 2/);
});

test("the format of a later release is refused with both numbers, and is no damage", async () => {
  const checkpoint = join(folder, "capsules-cl-1");
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, "manifest.json"), JSON.stringify({ ...encoded(), format: 3 }));
  await assert.rejects(readManifest(checkpoint), {
    code: "conflict",
    message: /cannot be opened: it has format 3, and this release opens formats 1 to 2$/,
  });
  writeFileSync(join(checkpoint, "capsule.json"), JSON.stringify({ format: 3 }));
  await assert.rejects(readCapsule(checkpoint), {
    code: "conflict",
    message: /^capsule\.json of .* cannot be opened: it has format 3, and this release opens formats 1 to 2$/,
  });
});

test("capsule.json is read as it was written, also by the release before", async () => {
  const capsule = { parent: "bases/b", parentSha256: sha256, image: { name: "minimal", hash: "ab" }, machine };
  const path = join(folder, "capsule");
  mkdirSync(path);
  await writeCapsule(path, capsule);
  assert.deepEqual(await readCapsule(path), capsule);
  const { machine: former } = format1;
  const earlier = { origin: "bases/b", originSha256: sha256, image: capsule.image, format: 1, machine: former };
  writeFileSync(join(path, "capsule.json"), JSON.stringify(earlier));
  const { layout: _, ...same } = former;
  assert.deepEqual(await readCapsule(path), { ...capsule, machine: { ...same, devices: ["ports:1"] } });
  for (const wrong of [{ origin: 1 }, { originSha256: "x" }, { image: {} }, { machine: {} }]) {
    writeFileSync(join(path, "capsule.json"), JSON.stringify({ ...earlier, ...wrong }));
    await assert.rejects(readCapsule(path), {
      code: "internal_error",
      message: /^capsule\.json of .* cannot be used: /,
    });
  }
});

test("a disk layer's time is exact to the nanosecond", () => {
  const path = join(folder, "layer");
  writeFileSync(path, "12345");
  assert.deepEqual(diskLayerOf(path), { bytes: 5, mtimeNs: statSync(path, { bigint: true }).mtimeNs });
});
