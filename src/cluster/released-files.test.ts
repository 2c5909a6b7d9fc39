import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { MemoryObjects } from "../../test/fakes/memory-objects.ts";
import {
  type MovingHost,
  movableFiles,
  movedId,
  movedRevision,
  movingHost,
  pauseOn,
} from "../../test/fakes/movable-capsule.ts";
import { Bucket } from "../bucket/bucket.ts";
import { SealedBucket } from "../bucket/sealed-bucket.ts";
import { upload } from "../bucket/upload.ts";
import type { Capsule } from "../capsules/store.ts";
import { encodeMachine } from "../host/disk/machine-record.ts";
import { LocalFetches } from "../host/moves/local-fetches.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Released } from "./released.ts";
import { FetchedFiles } from "./released-files.ts";

const prefix = `capsules/${movedId}/3.${movedRevision}.0a0b0c0d`;
const code = (expected: string) => (error: CapsuleError) => error.code === expected;

/** A capsule that the first host has released, and the files of it for the second one. */
async function releasedFor(t: TestContext) {
  const [first, second] = [await movingHost(t), await movingHost(t)];
  await pauseOn(first);
  const objects = new MemoryObjects();
  const retries = { attempts: 1, unseenMs: 0, pauseMs: 1 };
  const bucket = new SealedBucket(new Bucket(objects, retries), { number: 1, key: randomBytes(32) });
  const { files, machine, record, bytes, revision } = await first.moves.describe(movedId);
  const { sha256 } = await upload(bucket, { prefix, layers: [], files });
  const released = {
    row: { id: movedId, storage: null, vcpus: 1, memoryMb: 128, diskMb: 4 } as Capsule,
    ...{ host: null, epoch: 4, lastHost: "a", kept: {} as Released["kept"] },
    isMoving: false,
    checkpoint: {
      ...{ prefix, manifestSha256: sha256, bytes, at: 1, revision: revision + 1, savedRevision: revision },
      ...{ machine: encodeMachine(machine), qemuBuild: machine.qemuBuild ?? null, format: 2 },
      record: JSON.parse(JSON.stringify(record)) as Record<string, unknown>,
    },
  } satisfies Released;
  return { first, second, objects, bucket, released };
}

function filesOf(host: MovingHost, bucket: SealedBucket) {
  const asked: string[] = [];
  const held: string[] = [];
  const room = { freeBytes: Number.POSITIVE_INFINITY };
  const space = {
    orReclaim: async <T>(reserve: () => T) => reserve(),
    reserve(bytes: number) {
      if (bytes > room.freeBytes) throw new CapsuleError("no_space", "the disk is full");
      room.freeBytes -= bytes;
      const free = () => {
        room.freeBytes += bytes;
      };
      return { grow() {}, keep() {}, [Symbol.dispose]: free };
    },
  };
  const templates = { requireMachine: async () => {} };
  const fetches = new LocalFetches({ paths: host.paths, space, templates });
  const artifacts = {
    async fetch(kind: string, key: string) {
      asked.push(`${kind} ${key}`);
      if (kind === "qemu") throw new CapsuleError("unavailable", "the bucket has none");
      return new DisposableStack();
    },
    async hold(kind: string, key: string) {
      const name = `${kind} ${key}`;
      held.push(name);
      return { [Symbol.dispose]: () => void held.splice(held.indexOf(name), 1) };
    },
  };
  return { files: new FetchedFiles({ bucket, artifacts, moved: host.moves, fetches }), asked, held, room };
}

/** Nothing of a fetch is left but these folders. */
function requireNothing({ paths }: MovingHost, ...waiting: string[]): void {
  const [capsules, work] = [paths.capsules, paths.work].map((path) => readdirSync(path));
  assert.deepEqual([capsules, work, paths.releasedNames()], [[], [], waiting]);
}

test("a capsule is fetched with what it stands on, and comes back from the folder that was set aside", async (t) => {
  const { first, second, objects, bucket, released } = await releasedFor(t);
  const { files, asked, held, room } = filesOf(second, bucket);
  const below = [`image minimal/${"a".repeat(64)}`, `qemu ${"b".repeat(64)}`, "base minimal-b"];
  {
    using _admitted = await files.admit(released);
    await files.bring(released);
    assert.deepEqual(held, below);
    requireNothing(second, `${movedId}.4.${movedRevision}`); // it waits for its row
    assert.deepEqual(await second.moves.cached(), []);
    files.take(released);
  }
  assert.deepEqual(held, []);
  assert.deepEqual(asked, [`qemu ${"b".repeat(64)}`, `image minimal/${"a".repeat(64)}`, "base minimal-b"]);
  assert.equal(room.freeBytes, Number.POSITIVE_INFINITY);
  const contentOf = (host: MovingHost, name: string) => readFileSync(join(host.paths.capsule(movedId), name));
  for (const name of movableFiles) {
    const [sent, came] = [contentOf(first, name), contentOf(second, name)];
    if (name !== "checkpoint/manifest.json") assert.ok(sent.equals(came), name);
    else assert.equal(JSON.parse(came.toString()).epoch, 4);
  }
  assert.deepEqual((await second.moves.describe(movedId)).record, (await first.moves.describe(movedId)).record);
  objects.isAway = true;
  await second.moves.setAside(movedId, { epoch: 3, revision: movedRevision });
  const later = { ...released, epoch: 9 }; // it was acquired and given back meanwhile
  for (const isTaken of [false, true]) {
    using _again = await files.admit(later);
    await files.bring(later);
    assert.deepEqual(held, below);
    requireNothing(second, `${movedId}.9.${movedRevision}`);
    if (isTaken) files.take(later);
    else await files.putBack(later);
  }
  assert.deepEqual([second.paths.capsuleIds(), second.paths.releasedNames()], [[movedId], []]);
});

test("a byte that was changed in any object, or an object that is missing, leaves nothing here", async (t) => {
  const { second, objects, bucket, released } = await releasedFor(t);
  const { files } = filesOf(second, bucket);
  using _admitted = await files.admit(released);
  assert.ok(objects.objects.size > movableFiles.length);
  for (const [name, bytes] of [...objects.objects]) {
    for (const at of [0, bytes.length >> 1, bytes.length - 1]) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1;
      objects.objects.set(name, changed);
      await assert.rejects(files.bring(released), code("agent_error"), `byte ${at} of ${name}`);
    }
    objects.objects.delete(name);
    await assert.rejects(files.bring(released), code("agent_error"), `without ${name}`);
    requireNothing(second);
    objects.objects.set(name, bytes);
  }
  const names = [...objects.objects.keys()].filter((name) => !name.endsWith("/manifest"));
  const [one, two] = [names[0]!, names[1]!];
  objects.objects.set(one, objects.objects.get(two)!);
  await assert.rejects(files.bring(released), code("agent_error"), "an object of another name");
  requireNothing(second);
});

test("a row that contradicts the files is refused, and so is a bucket that does not answer", async (t) => {
  const { second, objects, bucket, released } = await releasedFor(t);
  const { files, room } = filesOf(second, bucket);
  const { checkpoint, row } = released;
  const others: Released[] = [
    { ...released, row: { ...row, memoryMb: 256 } },
    { ...released, row: { ...row, storage: "t1" } },
    { ...released, checkpoint: { ...checkpoint, record: { ...checkpoint.record, revision: 9 } } },
    { ...released, checkpoint: { ...checkpoint, record: {} } },
    { ...released, checkpoint: { ...checkpoint, bytes: checkpoint.bytes - 1 } },
    { ...released, checkpoint: { ...checkpoint, manifestSha256: "0".repeat(64) } },
  ];
  for (const other of others) await assert.rejects(files.bring(other), code("agent_error"));
  objects.isAway = true;
  await assert.rejects(files.bring(released), code("unavailable"));
  requireNothing(second);
  room.freeBytes = checkpoint.bytes - 1;
  await assert.rejects(files.admit(released), code("no_space"));
  await assert.rejects(files.admit({ ...released, checkpoint: { ...checkpoint, format: 3 } }), code("conflict"));
  await assert.rejects(files.admit({ ...released, checkpoint: { ...checkpoint, machine: {} } }), code("agent_error"));
});

test("four capsules are fetched at a time, and so many wait", async (t) => {
  const { second, bucket, released } = await releasedFor(t);
  const { files } = filesOf(second, bucket);
  const admitted = await Promise.all(Array.from({ length: 4 }, () => files.admit(released)));
  let begun = 0;
  const waiting = Array.from({ length: 32 }, () =>
    files.admit(released).then((each) => {
      begun++;
      each[Symbol.dispose]();
    }),
  );
  await assert.rejects(files.admit(released), code("unavailable"));
  assert.equal(begun, 0);
  for (const each of admitted) each[Symbol.dispose]();
  await Promise.all(waiting);
  assert.equal(begun, 32);
});
