/** A host that is drained, with running capsules that move to another one: real daemons with VMs, PostgreSQL and Ceph. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client } from "../../src/sdk/sdk.ts";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons, untilConnected, untilRunningAt } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

/** Requests to a host that has died, or for a capsule that is on its way. */
const refused = [/"code":"unavailable"/, /cannot be reached now/];
const deadline = { timeout: 600_000 };

async function stateOf({ server }: Daemon, name: string): Promise<string | undefined> {
  const hosts = JSON.parse(await server.operate("admin", "hosts", "--json")) as { name: string; state: string }[];
  return hosts.find((each) => each.name === name)?.state;
}

describe("a host is drained", { skip: lacksPostgres || lacksCeph }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-drained-host-"));
  let ceph: CephServer | undefined;
  let daemons: Daemons | undefined;
  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    const bucket = await ceph.newBucket();
    daemons = await Daemons.start({ names: ["one", "two"], bucket, envOf: () => bare, errors: refused });
  });
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  /** A running capsule with a mark in its memory and a process, its holder, and the other host. */
  async function marked() {
    const [one, two] = daemons!.hosts as [Daemon, Daemon];
    const made = await one.client.capsule({ timeout_sec: 0 });
    const { json } = await one.client.expect(200, "GET", `/v1/capsules/${made.id}`);
    const [holder, other] = json.host === "one" ? [one, two] : [two, one];
    const capsule = other.client.known(made.id);
    const pid = await capsule.sh("echo memory > /run/mark; sleep 10000 > /dev/null 2>&1 & echo $!");
    return { id: made.id, holder, other, capsule, pid };
  }

  test(
    "its capsule runs on elsewhere, with its memory and processes, and a terminal of the SDK goes on",
    deadline,
    async () => {
      const { id, holder, other, capsule, pid } = await marked();
      const client = new Client({ url: other.server.url, apiKey: other.server.apiKey });
      const states: string[] = [];
      const pty = await client.capsule(id).pty({
        ...{ args: ["--norc"], envs: { PS1: "$ " }, onState: (state) => states.push(state) },
        reconnectMs: deadline.timeout,
      });
      let seen = "";
      const reading = (async () => {
        for await (const bytes of pty) seen += new TextDecoder().decode(bytes);
      })();
      await pty.write("stty -echo; echo first-$((1 + 1))\n");
      await waitFor("the first line", () => seen.includes("first-2"));
      await other.server.operate("admin", "hosts", "drain", holder.name);
      await untilRunningAt(other, id);
      assert.equal(await capsule.sh(`cat /run/mark; kill -0 ${pid} && echo alive`), "memory\nalive");
      await pty.write("echo second-$((1 + 2))\n");
      await waitFor("the second line", () => seen.includes("second-3"));
      await pty.write("exit 6\n");
      assert.equal(await pty.wait(), 6);
      await reading;
      assert.deepEqual(states, ["live", "reconnecting", "live"]);
      await other.server.operateWithin(deadline.timeout, "admin", "hosts", "drain", holder.name, "--wait"); // which ends with 0
      await waitFor("the host to be drained", async () => (await stateOf(other, holder.name)) === "drained");
      await holder.client.expect(204, "DELETE", `/v1/capsules/${id}`);
      await other.server.operate("admin", "hosts", "resume", holder.name);
      await daemons!.known();
    },
  );

  test("a server that is killed in the middle of a move goes on with it", deadline, async () => {
    const { id, holder, other, capsule, pid } = await marked();
    await holder.server.kill("SIGTERM");
    await holder.server.start({ CAPSULE_CRASH_AT: "releasing" });
    await untilConnected(holder);
    const ended = holder.server.exited();
    await other.server.operate("admin", "hosts", "drain", holder.name);
    assert.equal(await ended, "SIGKILL");
    await holder.server.start();
    await untilRunningAt(other, id);
    assert.equal(await capsule.sh(`cat /run/mark; kill -0 ${pid} && echo alive`), "memory\nalive");
    await other.client.expect(204, "DELETE", `/v1/capsules/${id}`);
    await other.server.operate("admin", "hosts", "resume", holder.name);
    await daemons!.known();
  });

  test("the last host keeps what runs, gets all else from the bucket, and serves alone", deadline, async () => {
    const [one, two] = daemons!.hosts as [Daemon, Daemon];
    const { id, holder, pid } = await marked();
    const [last, first] = holder === one ? [one, two] : [two, one];
    const model = await first.client.capsule({ timeout_sec: 0 });
    await first.client.known(model.id).sh("echo tool > /root/tool");
    await first.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: model.id, name: "tools" } });
    const paused = await first.client.capsule({ timeout_sec: 0 });
    await first.client.known(paused.id).sh("echo kept > /run/mark");
    await first.client.expect(200, "POST", `/v1/capsules/${paused.id}/pause`);
    await first.server.operateWithin(deadline.timeout, "admin", "cluster", "leave", "--deadline", "5m");
    assert.equal((await last.client.expect(200, "GET", `/v1/capsules/${paused.id}`)).json.status, "paused");

    const ended = last.server.exited();
    await last.server.operateWithin(deadline.timeout, "admin", "cluster", "leave", "--deadline", "5m");
    assert.equal(await ended, null); // no signal: it has exited
    await assert.rejects(last.server.start(), /has left its cluster: start it without CAPSULE_CLUSTER/);
    await last.server.start({ CAPSULE_CLUSTER: "" });
    await last.server.adopted();

    assert.equal(await last.client.known(id).sh(`cat /run/mark; kill -0 ${pid} && echo alive`), "memory\nalive");
    assert.equal((await last.client.expect(200, "GET", `/v1/capsules/${id}`)).json.host, null);
    await last.client.expect(200, "POST", `/v1/capsules/${paused.id}/resume`);
    assert.equal(await last.client.known(paused.id).sh("cat /run/mark"), "kept");
    const made = await last.client.capsule({ template: "tools", timeout_sec: 0 });
    assert.equal(await last.client.known(made.id).sh("cat /root/tool"), "tool");
    for (const each of [id, paused.id, made.id]) await last.client.expect(204, "DELETE", `/v1/capsules/${each}`);
  });
});
