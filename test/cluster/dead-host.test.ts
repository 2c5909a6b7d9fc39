/** A template of a host that has died, used on another one: real daemons with VMs, PostgreSQL and Ceph. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { Daemons } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

test("a template whose host has died is fetched, and its capsules run", {
  skip: lacksPostgres || lacksCeph,
}, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-dead-host-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const ceph = await CephServer.startIn(join(folder, "ceph"));
  t.after(() => ceph.remove());
  await using daemons = await Daemons.start({ names: ["one", "two"], bucket: await ceph.newBucket() });
  const [one, two] = [daemons.host("one"), daemons.host("two")];
  const settings = { json: { timeout_sec: 0 } };
  const { id } = (await one.client.expect(201, "POST", "/v1/capsules", settings)).json;
  const running = ({ client }: typeof one, capsule: string) =>
    waitFor(`${capsule} to run`, async () => {
      const { json } = await client.expect(200, "GET", `/v1/capsules/${capsule}`);
      assert.notEqual(json.status, "error", json.error_reason);
      return json.status === "running";
    });
  await running(one, id);
  const write = { json: { cmd: "sh", args: ["-c", "echo kept > /root/kept"] } };
  await one.client.expect(200, "POST", `/v1/capsules/${id}/exec`, write);
  await one.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: id, name: "tools" } });
  await one.server.kill("SIGKILL");
  for (const link of [one.peers, one.database]) link.cut();
  const json = { template: "tools", timeout_sec: 0 };
  const made = await waitFor("host two to make a capsule", async () => {
    const reply = await two.client.call("POST", "/v1/capsules", { json });
    return reply.status !== 503 && reply;
  });
  assert.deepEqual([made.status, made.json.host], [201, "two"], JSON.stringify(made.json));
  await running(two, made.json.id);
  const read = { json: { cmd: "cat", args: ["/root/kept"] } };
  const { stdout } = (await two.client.expect(200, "POST", `/v1/capsules/${made.json.id}/exec`, read)).json;
  assert.equal(stdout, "kept\n");
  for (const link of [one.peers, one.database]) link.open();
});
