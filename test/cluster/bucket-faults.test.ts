/**
 * A bucket that is away, slow or hostile, of two real daemons with VMs over PostgreSQL and Ceph. Each test begins and ends with two capsules
 * that are paused and released, with marks in their memory and on their disks.
 */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { chunkLength } from "../../src/bucket/chunks.ts";
import { openBucket } from "../../src/bucket/opening.ts";
import { type ChunkRecord, type SealedBucket, sha256Of } from "../../src/bucket/sealed-bucket.ts";
import { type SealingKey, seal } from "../../src/bucket/sealing.ts";
import type { Reply, TestCapsule } from "../client.ts";
import { isLong } from "../faults/faults-form.ts";
import { processesOf } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { BucketLink } from "./bucket-link.ts";
import { type CephBucket, CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const mib = 1 << 20;
/** Requests that are refused, and what a bucket that fails leaves in the log. */
const errors = [
  ...[/"code":"unavailable"/, /"code":"agent_error"/, /cannot be reached now/],
  ...[/"msg":"a paused capsule could not be released/, /"msg":"a capsule could not be brought back/],
];
/** An upload that has failed is tried again up to a minute later. */
const patient = { deadlineMs: 600_000 };
/** Fields of a listed row. */
type Listed = Record<"id" | "status", string> & { host: string | null };
type Bytes = Buffer<ArrayBuffer>;

const skip = lacksPostgres || lacksCeph || (!isLong && "only with CAPSULE_FAULTS=long");

describe("a cluster whose bucket fails", { skip, concurrency: false }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-bucket-faults-"));
  let ceph: CephServer | undefined;
  let link: BucketLink;
  /** By a way of the test's own, which nothing disturbs. */
  let direct: SealedBucket;
  let sealing: SealingKey;
  let daemons: Daemons | undefined;
  let [one, two]: Daemon[] = [];
  let [first, second]: TestCapsule[] = [];

  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    const own = await ceph.newBucket();
    const disturbed = await BucketLink.to(own);
    link = disturbed.link;
    const envOf = () => ({ ...bare, CAPSULE_RELEASE_AFTER_SEC: "1" });
    daemons = await Daemons.start({ names: ["one", "two"], bucket: disturbed.bucket, envOf, errors });
    [one, two] = daemons.hosts;
    ({ direct, sealing } = await opened(one!, own));
    first = await rested("first"); // with all that both stand on
    second = await rested("second");
  });
  afterEach(() => {
    if (link !== undefined) link.rule = () => undefined;
    for (const { peers } of daemons?.hosts ?? []) peers.open();
  });
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await link?.[Symbol.asyncDispose]();
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  const view = async ({ path }: TestCapsule): Promise<Listed> => (await two!.client.expect(200, "GET", path)).json;
  const hostNamed = (name: string | null) => (name === "one" ? one! : two!);
  /** Folders of the capsule that hosts keep beside those that they hold. */
  const kept = ({ id }: TestCapsule) =>
    daemons!.hosts.flatMap(({ server }) => {
      const place = join(server.dataDir, "released");
      const names = existsSync(place) ? readdirSync(place) : [];
      return names.filter((name) => name.startsWith(`${id}.`)).map((name) => join(place, name));
    });

  /** A capsule with a mark, paused and released. */
  async function rested(mark: string): Promise<TestCapsule> {
    const { id } = await one!.client.capsule({ name: mark, timeout_sec: 0 });
    const capsule = two!.client.known(id);
    await capsule.sh(`echo ${mark} > /run/mark; echo ${mark} > /root/mark`);
    await rest(capsule);
    return capsule;
  }

  /** Pauses a running capsule. Resolves with the host that has released it, and keeps its folder. */
  async function rest(capsule: TestCapsule): Promise<Daemon> {
    const holder = hostNamed((await view(capsule)).host);
    await capsule.pause();
    await released(capsule);
    const own = join(holder.server.dataDir, "capsules", capsule.id);
    await waitFor("its folder to be set aside", () => !existsSync(own) && kept(capsule).length > 0);
    return holder;
  }

  /** Resolves when no host holds the paused capsule. */
  async function released({ path }: TestCapsule): Promise<void> {
    const isReleased = async () => {
      const { status, json, text } = await two!.client.call("GET", path);
      if (status === 503) return false; // it is on its way at this moment
      assert.deepEqual([status, json.status], [200, "paused"], text);
      return json.host === null;
    };
    await waitFor(`${path} to be released`, isReleased, patient);
  }

  /** No host has the capsule's files any longer. */
  function forget(capsule: TestCapsule): void {
    for (const path of kept(capsule)) rmSync(path, { recursive: true });
  }

  async function assertMarked(capsule: TestCapsule, mark: string): Promise<void> {
    assert.equal(await capsule.sh("cat /run/mark /root/mark"), `${mark}\n${mark}`);
  }

  function resume({ path }: TestCapsule): Promise<Reply> {
    return two!.client.call("POST", `${path}/resume`);
  }

  /**
   * The answer that is no 503: a host that is busy for 3 s is passed over, and the client asks again. Its acquire may go on; the next answer is
   * 409 then, and in the end that of a capsule that runs.
   */
  function resumed(capsule: TestCapsule): Promise<Reply> {
    return waitFor(`an answer to the resume of ${capsule.id}`, async () => {
      const reply = await resume(capsule);
      if (reply.status !== 409) return reply.status !== 503 && reply;
      const shown = await two!.client.call("GET", capsule.path);
      return shown.json?.status === "running" && shown;
    });
  }

  async function assertResumes(capsule: TestCapsule, mark: string): Promise<void> {
    const { status, text } = await resumed(capsule);
    assert.equal(status, 200, text);
    await assertMarked(capsule, mark);
  }

  async function assertUnavailable(reply: Promise<Reply>): Promise<void> {
    const { status, json, text } = await reply;
    assert.deepEqual([status, json?.error.code], [503, "unavailable"], text);
  }

  test("away: what runs goes on, what is here is resumed, and the backlog grows, is shown, and goes when the bucket is back", async () => {
    const running = await one!.client.capsule({ timeout_sec: 0 });
    const holder = hostNamed((await running.view()).host);
    await running.sh("echo here > /dev/shm/kept");
    forget(second!);
    link.rule = () => ({ isCut: true });
    const capture = { json: { sandbox_id: running.id, name: "never" } };
    await Promise.all([
      assertUnavailable(two!.client.call("POST", "/v1/snapshots", capture)),
      assertUnavailable(resume(second!)),
      assertResumes(first!, "first"),
    ]);
    await released(second!);
    await waitFor("the list to have it", async () => {
      const listed: Listed[] = (await one!.client.expect(200, "GET", "/v1/capsules")).json;
      const { status, host } = listed.find(({ id }) => id === second!.id)!;
      return status === "paused" && host === null;
    });
    for (const { client } of [one!, two!])
      assert.equal(await client.known(running.id).sh("cat /dev/shm/kept"), "here", "a capture that failed");
    const made = await two!.client.capsule({ timeout_sec: 0 });
    await Promise.all([made.destroy(), running.pause()]);
    await running.resume();
    await running.pause();
    await untilShown(holder);
    link.rule = () => undefined;
    await released(running);
    await waitFor("the end of the backlog", async () => (await backlogOf(holder)) === 0);
    await waitFor("the bucket to be no reason", async () => {
      return !(await holder.client.call("GET", "/healthz")).json.reasons.some(isOfBucket);
    });
    await assertResumes(second!, "second");
    await Promise.all([running.destroy(), rest(first!), rest(second!)]);
  });

  const isOfBucket = (reason: string) => reason.startsWith("the cluster's bucket is away");

  /** An operator sees in every place that the bucket is away, and what this host alone has. */
  async function untilShown(host: Daemon): Promise<void> {
    await waitFor("the host's health", async () => {
      const { status, json } = await host.client.call("GET", "/healthz");
      return status === 200 && json.ready && json.creates && json.reasons.some(isOfBucket);
    });
    await waitFor("the host's metrics", async () => {
      const text = await (await fetch(new URL("/metrics", host.server.url))).text();
      const of = (name: string) => Number(new RegExp(`^capsule_cluster_${name} (.*)$`, "m").exec(text)?.[1]);
      return of("bucket_up") === 0 && of("unreleased_capsules") > 0;
    });
    await waitFor("the backlog", async () => (await backlogOf(host)) > 0);
  }

  async function backlogOf({ name }: Daemon): Promise<number> {
    const hosts = JSON.parse(await one!.server.operate("admin", "hosts", "--json")) as {
      name: string;
      backlog: number;
    }[];
    return hosts.find((each) => each.name === name)!.backlog;
  }

  test("slow: a capsule that is on its way is 503 soon, and comes when the bucket answers; others are not held up", async () => {
    forget(first!);
    link.rule = ({ name }) => (name.includes(first!.id) ? { isHeld: true } : undefined);
    const [gets, puts] = [asked("GET", first!), asked("PUT", second!)];
    const coming = resumed(first!);
    await waitFor("the first object to be asked for", () => asked("GET", first!) > gets);
    for (const { client } of [one!, two!]) {
      const { status, headers } = await client.call("GET", first!.path);
      assert.deepEqual([status, headers["retry-after"]], [503, "1"]);
    }
    await assertResumes(second!, "second");
    link.rule = () => undefined;
    link.drop();
    assert.equal((await coming).status, 200);
    await assertMarked(first!, "first");
    // A resume waits for nothing of an upload.
    link.rule = ({ method, name }) => (method === "PUT" && name.includes(second!.id) ? { isHeld: true } : undefined);
    await second!.pause();
    await waitFor("the upload", () => asked("PUT", second!) > puts);
    await second!.resume();
    await assertMarked(second!, "second");
    link.rule = () => undefined;
    link.drop();
    await Promise.all([rest(first!), rest(second!)]);
  });

  function asked(of: string, { id }: TestCapsule): number {
    return link.asked.filter(({ method, name }) => method === of && name.includes(id)).length;
  }

  test("hostile: each changed object is refused, the capsule stays paused and whole, and is resumed from the mended bucket", async () => {
    const older = await uploadOf(first!);
    await assertResumes(first!, "first");
    await first!.sh("echo newer > /run/mark; echo newer > /root/mark");
    await rest(first!);
    const [newer, other] = [await uploadOf(first!), await uploadOf(second!)];
    for (const each of [first!, second!]) forget(each);
    const [chunk, foreign] = [newer.chunks[0]!, other.chunks[0]!];
    const [manifest, bytes] = [newer.manifest, await read(chunk.object)];
    const peaks = daemons!.hosts.map(peakBytes);
    await assertRefused("a manifest of another capsule", { [manifest]: await read(other.manifest) });
    await assertRefused("a manifest of an older checkpoint", { [manifest]: await read(older.manifest) });
    await assertRefused("a manifest with another bit", { [manifest]: flipped(await read(manifest)) });
    await assertRefused("chunks that were exchanged", { [chunk.object]: await read(foreign.object) });
    await assertRefused("a chunk that was cut", { [chunk.object]: bytes.subarray(0, bytes.length >> 1) });
    await assertRefused("a chunk with another bit", { [chunk.object]: flipped(bytes) });
    await assertRefused("a chunk that inflates to 1 GiB", { [chunk.object]: await inflating(chunk) });
    link.rule = ({ method, name }) => (method === "GET" && name === chunk.object ? { isEndless: true } : undefined);
    await assertRefused("a chunk without an end", {});
    link.rule = () => undefined;
    for (const [at, host] of daemons!.hosts.entries()) {
      const grown = peakBytes(host) - peaks[at]!;
      assert.ok(grown < 512 * mib, `${host.name} has taken ${grown} bytes more`);
    }
    await Promise.all([assertResumes(first!, "newer"), assertResumes(second!, "second")]);
    await first!.sh("echo first > /run/mark; echo first > /root/mark");
    await Promise.all([rest(first!), rest(second!)]);
  });

  /** The first capsule is resumed while the bucket has these objects, and its own ones are there again. */
  async function assertRefused(what: string, objects: Record<string, Bytes>): Promise<void> {
    const own = await Promise.all(Object.keys(objects).map(async (name) => [name, await read(name)] as const));
    for (const [name, bytes] of Object.entries(objects)) await direct.bucket.put(name, bytes);
    const { status, json, text } = await resumed(first!);
    assert.deepEqual([status, json.error?.code], [502, "agent_error"], `${what}: ${text}`);
    await released(first!);
    for (const { server } of daemons!.hosts) {
      const commands = processesOf(server.dataDir).map(({ command }) => command);
      assert.ok(!commands.some((command) => command.includes(`guest=${first!.id} `)), what);
      const work = join(server.dataDir, "work");
      await waitFor(`${what}: no file`, () => !readdirSync(work).some((name) => name.startsWith("fetch-")));
    }
    assert.deepEqual(kept(first!), [], what);
    for (const [name, bytes] of own) await direct.bucket.put(name, bytes);
  }

  test("damaged: the host that has released the capsule resumes it from its folder, once it is reached", async () => {
    await assertResumes(first!, "first");
    const holder = await rest(first!);
    const other = holder === one ? two! : one!;
    const { object } = (await uploadOf(first!)).chunks[0]!;
    await direct.bucket.put(object, flipped(await read(object)));
    holder.peers.cut();
    const begin = link.asked.length;
    await waitFor("the other host to find the damage", async () => {
      await assertUnavailable(other.client.call("POST", `${first!.path}/resume`));
      return link.asked.slice(begin).some(({ method, name }) => method === "GET" && name === object);
    });
    holder.peers.open();
    // As long as its heartbeats are late the other host alone is asked, which is 502.
    await waitFor("the holder to resume it", async () => (await resumed(first!)).status === 200);
    await assertMarked(first!, "first");
    assert.equal((await view(first!)).host, holder.name);
    await rest(first!);
  });

  /** The objects of the capsule's last upload, the largest chunks first. */
  async function uploadOf({ id }: TestCapsule): Promise<{ manifest: string; chunks: ChunkRecord[] }> {
    const isManifest = /\/manifest$/;
    const put = link.asked.filter(({ method, name }) => method === "PUT" && name.startsWith(`capsules/${id}/`));
    const object = put.findLast(({ name }) => isManifest.test(name))!.name;
    const sha256 = await sha256Of(await read(object));
    const { files } = await direct.getManifest({ object, sha256 }, 2 ** 40, {});
    const chunks = files.flatMap(({ bytes, chunks }) =>
      chunks.flatMap((each, index) => (each === null ? [] : { ...each, bytes: chunkLength(bytes, index) })),
    );
    return { manifest: object, chunks: chunks.sort((a, b) => b.bytes - a.bytes) };
  }

  function read(name: string): Promise<Bytes> {
    return direct.bucket.get(name, { maxBytes: 16 * mib });
  }

  /** Sealed under the cluster's key, as by a host that a guest has taken over. */
  function inflating({ object: name, bytes, sha256 }: ChunkRecord): Promise<Bytes> {
    return seal(sealing, { name, about: `chunk\n${name}\n${bytes}\n${sha256}`, plain: Buffer.alloc(1024 * mib) });
  }
});

/** The bucket as the host's file describes it, by another way. */
async function opened({ server }: Daemon, bucket: CephBucket): Promise<{ direct: SealedBucket; sealing: SealingKey }> {
  const file = JSON.parse(readFileSync(server.environment.CAPSULE_CLUSTER!, "utf8"));
  const { sealing_key, sealing_key_number: number } = file.bucket;
  const sealing = { number, key: Buffer.from(sealing_key, "hex") };
  return { direct: await openBucket({ ...bucket, sealing }), sealing };
}

/** A bit in the middle is another one. */
function flipped(bytes: Bytes): Bytes {
  const changed = Buffer.from(bytes);
  changed[changed.length >> 1]! ^= 1;
  return changed;
}

/** The most memory that the daemon has had at a time. */
function peakBytes({ server }: Daemon): number {
  const status = readFileSync(`/proc/${server.pid}/status`, "utf8");
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)![1]) * 1024;
}
