/**
 * A capsule moves while a daemon is killed at each named step of the way: of its release on the one side, and of its acquire on the
 * other. The daemon starts again, the capsule is one host's, with the memory and the disk of its last command, and nothing is left over.
 */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { type BucketStepName, bucketSteps } from "../../src/host/steps.ts";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons, untilConnected } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const skip = lacksPostgres || lacksCeph;
/** A daemon may have to start, and to reach PostgreSQL and the bucket, in each of these waits. */
const times = { deadlineMs: 300_000, longestPauseMs: 250 };
/** Requests on the capsule while it is no host's yet. */
const refused = [/"code":"unavailable"/, /cannot be reached now/];

interface Shown {
  status: string;
  host: string | null;
}

const isReleased = ({ status, host }: Shown) => status === "paused" && host === null;

describe("a daemon is killed while a capsule moves", { skip, concurrency: false }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-moving-"));
  let ceph: CephServer | undefined;
  let daemons: Daemons | undefined;
  /** The host that has the capsule first, and the one that has never had any. Never more than one of them runs while the capsule moves. */
  let [from, to] = [] as unknown as [Daemon, Daemon];
  let id = "";
  let path = "";
  /** All that the commands have written. */
  let marks = "";
  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    const envOf = () => ({ ...bare, CAPSULE_RELEASE_AFTER_SEC: "1" });
    daemons = await Daemons.start({ names: ["one", "two"], bucket: await ceph.newBucket(), envOf, errors: refused });
    const [one, two] = daemons.hosts as [Daemon, Daemon];
    id = (await one.client.expect(201, "POST", "/v1/capsules", { json: { timeout_sec: 0 } })).json.id;
    path = `/v1/capsules/${id}`;
    const { host } = await shown(one, ({ status }) => status === "running");
    [from, to] = host === "one" ? [one, two] : [two, one];
  });
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  /** The capsule by this host, which never says that there is none, once it is as expected. */
  function shown({ name, client }: Daemon, isExpected: (capsule: Shown) => boolean): Promise<Shown> {
    let last = "";
    return waitFor(
      () => `${name} to show the capsule as expected, and not by ${last}`,
      async () => {
        const { status, json, text } = await client.call("GET", path);
        last = `${status} ${text}`;
        if (status === 503) return false; // it is on its way
        assert.equal(status, 200, text);
        return isExpected(json) && json;
      },
      times,
    );
  }

  /** Asks until it is done: by the answer `done`, or by one `before` where an earlier answer may have been lost. */
  async function untilDone(ask: () => Promise<{ status: number; text: string }>, done: number, before: number) {
    let isRepeated = false;
    await waitFor(`an answer ${done}`, async () => {
      const { status, text } = await ask();
      if (status !== 503) assert.ok(status === done || (isRepeated && status === before), `${status} ${text}`);
      isRepeated = true;
      return status !== 503;
    });
  }

  const pause = ({ client }: Daemon) => client.call("POST", `${path}/pause`);
  const resume = ({ client }: Daemon) => client.call("POST", `${path}/resume`);

  /** A command that changes memory and disk; nothing of it is flushed. */
  async function mark({ client }: Daemon, text: string): Promise<void> {
    const json = { cmd: "sh", args: ["-c", `echo ${text} >> /run/mark; echo ${text} >> /root/mark`] };
    assert.equal((await client.expect(200, "POST", `${path}/exec`, { json })).json.exit_code, 0);
    marks += `${text}\n`;
  }

  /** The capsule resumes on this host, as its last command has left it. */
  async function requireResumed(host: Daemon): Promise<void> {
    await untilDone(() => resume(host), 200, 409);
    const { host: holder } = await shown(host, ({ status }) => status === "running");
    assert.equal(holder, host.name);
    const json = { cmd: "cat", args: ["/run/mark", "/root/mark"] };
    assert.equal((await host.client.expect(200, "POST", `${path}/exec`, { json })).json.stdout, marks + marks);
  }

  /** Asks the daemon, which was started to die at this step, until it does. */
  async function dies(host: Daemon, step: BucketStepName, ask?: (host: Daemon) => Promise<unknown>): Promise<void> {
    let isOver = false;
    const ended = host.server.exited().finally(() => {
      isOver = true;
    });
    const asked = async () => {
      if (!isOver) await ask?.(host).catch(() => {});
      return isOver;
    };
    await waitFor(`${host.name} to die at ${step}`, asked, times);
    assert.equal(await ended, "SIGKILL", `the daemon did not reach ${step}`);
    covered.add(step);
  }

  async function startUntil(host: Daemon, step: BucketStepName): Promise<void> {
    await host.server.start({ CAPSULE_CRASH_AT: step });
    await host.server.adopted();
    await untilConnected(host);
  }

  /** A start goes on with a release that an earlier life has begun, perhaps to this step before the daemon listens. */
  async function diesGoingOn(host: Daemon, step: BucketStepName): Promise<void> {
    const start = host.server.start({ CAPSULE_CRASH_AT: step });
    const refusal = await start.then(
      () => undefined,
      (error: unknown) => error,
    );
    await dies(host, step).catch((error: unknown) => {
      throw refusal ?? error;
    });
  }

  /** The host has the folders of these capsules, and nothing that is under way or lost. */
  async function untilTidy({ name, server }: Daemon, capsules: string[] = []): Promise<void> {
    const wanted = JSON.stringify({ capsules, work: [], lost: [] });
    const namesIn = (part: string) =>
      existsSync(join(server.dataDir, part)) ? readdirSync(join(server.dataDir, part)) : [];
    let found = "";
    await waitFor(
      () => `${name} to have the folders ${wanted}, and not ${found}`,
      () => {
        const lost = ["lost+found/capsules", "lost+found/templates"].flatMap(namesIn);
        found = JSON.stringify({ capsules: namesIn("capsules"), work: namesIn("work"), lost });
        return found === wanted;
      },
    );
  }

  /** Paused capsules that only this host has, and for how long one of them has been due for the bucket. */
  async function unreleased({ server }: Daemon): Promise<Record<"capsules" | "ageSec", number>> {
    const text = await (await fetch(new URL("/metrics", server.url))).text();
    const of = (name: string) => Number(new RegExp(`^capsule_cluster_unreleased_${name} (.*)$`, "m").exec(text)?.[1]);
    return { capsules: of("capsules"), ageSec: of("age_seconds") };
  }

  test("at each step of a release, which goes on, and in an acquire by the host that had the capsule", async () => {
    await to.server.kill("SIGKILL");
    await mark(from, "first");
    await from.server.kill("SIGKILL");
    await startUntil(from, "chunk");
    await mark(from, "second");
    await dies(from, "chunk", pause);
    await diesGoingOn(from, "releasing");
    await diesGoingOn(from, "released");
    await startUntil(from, "fetched");
    await shown(from, isReleased);
    await untilTidy(from);
    await dies(from, "fetched", resume); // by the folder that it has kept
    await from.server.start();
    await shown(from, isReleased);
    await untilTidy(from);
    await requireResumed(from);
  });

  test("at each step of an acquire by a host that has no record of any capsule, and starts all the same", async () => {
    await mark(from, "third");
    await untilDone(() => pause(from), 200, 409);
    await shown(from, isReleased);
    await untilTidy(from);
    await from.server.kill("SIGKILL");
    for (const link of [from.peers, from.database]) link.cut();
    for (const step of ["acquired", "fetched", "held"] as const) {
      await startUntil(to, step);
      await shown(to, isReleased);
      await untilTidy(to);
      await dies(to, step, resume);
    }
    await to.server.start({ CAPSULE_RELEASE_AFTER_SEC: "3600" });
    await shown(to, ({ status, host }) => status === "paused" && host === to.name);
    assert.deepEqual(await unreleased(to), { capsules: 1, ageSec: 0 }, "it is not due for an hour");
    await untilTidy(to, [id]);
    await requireResumed(to);
    for (const link of [from.peers, from.database]) link.open();
    await from.server.start();
    await daemons!.known();
    await shown(from, ({ status, host }) => status === "running" && host === to.name);
    await untilTidy(from);
    await untilDone(() => to.client.call("DELETE", path), 204, 404);
    for (const host of [from, to]) {
      await untilDone(() => host.client.call("GET", path), 404, 404);
      await untilTidy(host);
    }
  });
});

const covered = new Set<BucketStepName>();

test("every named step of a move has a test", { skip }, () => {
  assert.deepEqual(
    bucketSteps.filter((step) => !covered.has(step)),
    [],
  );
});
