/** A host that dies, and its capsules and templates on another one: real daemons with VMs, PostgreSQL and Ceph. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { Reply } from "../client.ts";
import { isLong } from "../faults/faults-form.ts";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const endless = { timeout_sec: 0 };
/** From the death of a capsule's last host to the answer of another one that has resumed it. */
const promisedMs = 15_000;
/** Requests to the host that is dead. */
const refused = [/"code":"unavailable"/, /cannot be reached now/];

function running({ client }: Daemon, id: string): Promise<unknown> {
  return waitFor(`${id} to run`, async () => {
    const { json } = await client.expect(200, "GET", `/v1/capsules/${id}`);
    assert.notEqual(json.status, "error", json.error_reason);
    return json.status === "running";
  });
}

async function shell({ client }: Daemon, id: string, script: string): Promise<string> {
  const json = { cmd: "sh", args: ["-c", script] };
  return (await client.expect(200, "POST", `/v1/capsules/${id}/exec`, { json })).json.stdout;
}

async function made({ client }: Daemon, json: object): Promise<string> {
  return (await client.expect(201, "POST", "/v1/capsules", { json })).json.id;
}

/** Resolves when no host holds the paused capsule. */
function released({ client }: Daemon, id: string): Promise<unknown> {
  return waitFor(`${id} to be released`, async () => {
    const { status, json, text } = await client.call("GET", `/v1/capsules/${id}`);
    if (status === 503) return false; // it is being released at this moment
    assert.deepEqual([status, json.status], [200, "paused"], text);
    return json.host === null;
  });
}

/** The first answer that is no 503: those who ask again get it. */
function answered({ client }: Daemon, method: string, path: string, json: object = {}): Promise<Reply> {
  return waitFor(`an answer to ${method} ${path}`, async () => {
    const reply = await client.call(method, path, { json });
    return reply.status !== 503 && reply;
  });
}

describe("a host dies", { skip: lacksPostgres || lacksCeph }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-dead-host-"));
  let ceph: CephServer | undefined;
  let daemons: Daemons | undefined;
  let [one, two]: Daemon[] = [];
  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    const envOf = () => ({ ...bare, CAPSULE_RELEASE_AFTER_SEC: "1" });
    daemons = await Daemons.start({ names: ["one", "two"], bucket: await ceph.newBucket(), envOf, errors: refused });
    [one, two] = daemons.hosts;
  });
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  test("a capsule moves to the host that resumes it, with memory and disk, and back", async (t) => {
    const id = await made(one!, { ...endless, name: "mover" });
    await running(one!, id);
    await shell(one!, id, "echo memory > /run/mark; echo disk > /root/mark");
    await one!.client.expect(200, "POST", `/v1/capsules/${id}/pause`);
    await released(two!, id);
    // Its last host keeps the folder, and is asked first.
    await two!.client.expect(200, "POST", `/v1/capsules/${id}/resume`);
    assert.equal((await two!.client.expect(200, "GET", "/v1/capsules/mover")).json.host, "one");
    assert.equal(await shell(two!, id, "cat /run/mark /root/mark; echo more > /run/mark"), "memory\ndisk\n");
    await two!.client.expect(200, "POST", `/v1/capsules/${id}/pause`);
    await released(one!, id);
    await one!.server.kill("SIGKILL");
    for (const link of [one!.peers, one!.database]) link.cut();
    const diedAt = performance.now();
    const resumed = await answered(two!, "POST", `/v1/capsules/${id}/resume`);
    const tookMs = Math.round(performance.now() - diedAt);
    t.diagnostic(`resumed ${tookMs} ms after its last host's death`);
    assert.deepEqual([resumed.status, resumed.json.host], [200, "two"], resumed.text);
    if (isLong) assert.ok(tookMs < promisedMs, `${tookMs} ms`); // of an idle machine
    assert.equal(await shell(two!, id, "cat /run/mark /root/mark"), "more\ndisk\n");
    for (const link of [one!.peers, one!.database]) link.open();
    await one!.server.start();
    await daemons!.known();
    assert.equal((await one!.client.expect(200, "GET", `/v1/capsules/${id}`)).json.host, "two");
    await two!.client.expect(200, "POST", `/v1/capsules/${id}/pause`);
    await released(one!, id);
    await one!.client.expect(204, "DELETE", `/v1/capsules/${id}`);
    await two!.client.expect(404, "GET", `/v1/capsules/${id}`);
  });

  test("a template of it is fetched, and its capsules run", async () => {
    const id = await made(one!, endless);
    const holder = (await one!.client.expect(200, "GET", `/v1/capsules/${id}`)).json.host === "one" ? one! : two!;
    const other = holder === one ? two! : one!;
    await running(holder, id);
    await shell(holder, id, "echo kept > /root/kept");
    await holder.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: id, name: "tools" } });
    await holder.server.kill("SIGKILL");
    for (const link of [holder.peers, holder.database]) link.cut();
    const reply = await answered(other, "POST", "/v1/capsules", { ...endless, template: "tools" });
    assert.deepEqual([reply.status, reply.json.host], [201, other.name], reply.text);
    await running(other, reply.json.id);
    assert.equal(await shell(other, reply.json.id, "cat /root/kept"), "kept\n");
    for (const link of [holder.peers, holder.database]) link.open();
  });
});
