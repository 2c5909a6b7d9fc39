/** Lifetimes and retentions of real capsules, awaited by their events. */
import assert from "node:assert/strict";
import type { Client, TestCapsule } from "../../client.ts";
import { EventStream } from "../../event-stream.ts";
import { section, test } from "../conforms.ts";
import { endGuest } from "../guest-end.ts";
import { cannotMakeKeys, clientOf, ofOneHost, client as shared } from "../service.ts";

/** A client of a team without other capsules. */
async function alone(team: string): Promise<Client & Disposable> {
  const client = cannotMakeKeys ? shared : await clientOf(team);
  return Object.assign(client, { [Symbol.dispose]: () => client !== shared && client.close() });
}

/** Sets policies that act at once, and resolves with the event that follows. */
async function change(events: EventStream, capsule: TestCapsule, json: object) {
  const { json: view } = await capsule.client.expect(200, "PATCH", capsule.path, { json });
  assert.deepEqual((await events.nextOf("capsule")).data, view, "the change itself");
  return await events.next();
}

const skip = ofOneHost("several changes within half a second may be one event");

export const lifetimes = section(import.meta, "lifetimes", () => {
  const run = async () => {
    using client = await alone("lifetimes");
    const capsule = await client.capsule({ lifetime_sec: 3_600, on_expiry: "pause" });
    const running = await capsule.view();
    assert.equal(Date.parse(running.expires_at) - Date.parse(running.started_at), 3_600_000);
    await capsule.sh("echo kept > /root/note");
    await using events = await EventStream.open(client);
    await events.nextOf("reset");
    const paused = await change(events, capsule, { lifetime_sec: 1 });
    assert.deepEqual([paused?.name, paused?.data.status, paused?.data.expires_at], ["capsule", "paused", null]);
    await client.expect(200, "PATCH", capsule.path, { json: { lifetime_sec: 600, on_expiry: "destroy" } });
    const { json: resumed } = await client.expect(200, "POST", `${capsule.path}/resume`);
    assert.equal(Date.parse(resumed.expires_at) - Date.parse(resumed.started_at), 600_000);
    assert.equal(await capsule.sh("cat /root/note"), "kept");
    const last = await client.expect(200, "PATCH", capsule.path, { json: { lifetime_sec: 1 } });
    assert.notEqual(last.json.expires_at, null);
    assert.equal((await events.nextOf("capsule-removed")).data.id, capsule.id);
    assert.equal((await client.call("GET", capsule.path)).status, 404);
    const { json: log } = await client.expect(200, "GET", `/v1/audit?capsule=${capsule.id}`);
    const own = log.entries.filter((entry: { key_id: string }) => entry.key_id === "");
    assert.deepEqual(
      own.map(({ action, subject }: { action: string; subject: string }) => [action, subject]),
      [
        ["capsule.destroy", "lifetime"],
        ["capsule.pause", "lifetime"],
      ],
    );
  };
  test("expires_at ends the run: destroy by default, or a pause from which it goes on", run, { skip });
});

export const retentions = section(import.meta, "retentions", () => {
  const run = async () => {
    using client = await alone("retentions");
    const [paused, off] = await Promise.all([client.capsule(), client.capsule({ retention_sec: 1 })]);
    await paused.pause();
    await using events = await EventStream.open(client);
    await events.nextOf("reset");
    const removed = await change(events, paused, { retention_sec: 1 });
    assert.deepEqual([removed?.name, removed?.data], ["capsule-removed", { id: paused.id }]);
    assert.equal((await off.view()).status, "running");
    await endGuest(off, "poweroff");
    assert.equal((await events.nextOf("capsule")).data.status, "stopped");
    assert.deepEqual((await events.nextOf("capsule-removed")).data, { id: off.id });
  };
  test("retention_sec destroys a paused capsule, and one that has powered itself off", run, { skip });
});
