/** What a client has been told, and how to find out whether a server on a copied disk still knows it. */
import assert from "node:assert/strict";
import type { Client, TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import type { Survivor } from "./survivor.ts";

/** The change that has been asked for and not been acknowledged: it may have happened or not. */
export interface Pending {
  verb: "create" | "write" | "pause" | "resume" | "capture" | "delete" | "delete template" | "make key" | "revoke key";
  /** Id of a capsule or a key, or name of a template; for a capture, both. */
  subjects: string[];
}

export interface Acknowledged {
  /** `text`: what its disk and its memory have, null when nothing was written yet. */
  capsules: Map<string, { status: "running" | "paused"; text: string | null }>;
  deleted: Set<string>;
  templates: Map<string, string>;
  keys: Map<string, { key: string; isValid: boolean }>;
  /** What the audit log must have: action and subject of the last changes, most recent last. */
  audited: string[];
}

export const nothingAcknowledged = (): Acknowledged => ({
  capsules: new Map(),
  deleted: new Set(),
  templates: new Map(),
  keys: new Map(),
  audited: [],
});

/** The same text on the disk and in memory, each beside a few MB that are the same too. */
export async function writeText(capsule: TestCapsule, text: string): Promise<void> {
  await capsule.sh(
    `head -c 2000000 /dev/urandom > /dev/shm/bytes; cp /dev/shm/bytes /root/bytes
     echo ${text} > /root/text; sync; echo ${text} > /dev/shm/text`,
  );
}

async function assertText(capsule: TestCapsule, text: string, what: string): Promise<void> {
  const found = await capsule.sh("cat /root/text /dev/shm/text; cmp /root/bytes /dev/shm/bytes && echo same");
  assert.equal(found, `${text}\n${text}\nsame`, `${what}: content of disk and memory`);
}

/** Everything acknowledged is there, and nothing else but what `pending` may have made; all of it can be deleted. */
export async function assertKept(survivor: Survivor, known: Acknowledged, pending: Pending | undefined): Promise<void> {
  const { client } = survivor;
  await assertKeys(client, known, pending);
  await assertAudited(client, known);
  const names = (await client.expect(200, "GET", "/v1/snapshots?type=snapshot")).json.map(
    ({ name }: { name: string }) => name,
  );
  assertListed("templates", names, [...known.templates.keys()], pending, pending?.verb === "capture");
  const views: { id: string; status: string }[] = (await client.expect(200, "GET", "/v1/capsules")).json;
  const ids = views.map(({ id }) => id);
  assertListed("capsules", ids, [...known.capsules.keys()], pending, pending?.verb === "create");
  for (const id of known.deleted) await client.expect(404, "GET", `/v1/capsules/${id}`);
  assertNoOrphans(survivor, ids, names.length);
  for (const { id } of views) await assertCapsule(client, id, known, pending);
  for (const [name, text] of known.templates) if (names.includes(name)) await assertTemplate(client, name, text);
  await assertDeletable(survivor);
}

/** `mayHaveMore`: one that was never acknowledged. */
function assertListed(
  what: string,
  found: string[],
  known: string[],
  pending: Pending | undefined,
  mayHaveMore: boolean,
) {
  for (const each of known) {
    assert.ok(found.includes(each) || pending?.subjects.includes(each), `${what}: ${each} is missing`);
  }
  const more = found.filter((each) => !known.includes(each));
  assert.ok(more.length <= (mayHaveMore ? 1 : 0), `${what}: ${more} were never acknowledged`);
}

function assertNoOrphans(survivor: Survivor, ids: string[], templates: number): void {
  for (const folder of survivor.entries("capsules")) {
    assert.ok(folder === "lost+found" || ids.includes(folder), `the folder capsules/${folder} belongs to nothing`);
  }
  assert.equal(survivor.entries("templates").length, templates, "one folder for each template");
}

async function assertKeys(client: Client, known: Acknowledged, pending: Pending | undefined): Promise<void> {
  for (const [id, { key, isValid }] of known.keys) {
    const { status } = await client.as(key).call("GET", "/v1/limits");
    const isEither = pending?.verb === "revoke key" && pending.subjects.includes(id);
    assert.ok(
      isEither || status === (isValid ? 200 : 401),
      `the key ${id} is ${isValid ? "valid" : "revoked"}: ${status}`,
    );
  }
}

async function assertAudited(client: Client, { audited }: Acknowledged): Promise<void> {
  const { json } = await client.expect(200, "GET", "/v1/audit?limit=1000");
  const entries: string[] = json.entries.map(
    (entry: Record<string, string | null>) => `${entry.action} ${entry.capsule_id ?? entry.subject}`,
  );
  const countOf = (list: string[], what: string) => list.filter((each) => each === what).length;
  for (const each of new Set(audited)) {
    assert.ok(countOf(entries, each) >= countOf(audited, each), `audit log: an entry is missing: ${each}`);
  }
}

async function assertCapsule(client: Client, id: string, known: Acknowledged, pending: Pending | undefined) {
  const capsule = client.known(id);
  const view = await eventually(`${id} has started`, async () => {
    const now = await capsule.view();
    return now.status !== "starting" && now;
  });
  const { status, text } = known.capsules.get(id) ?? { status: "running", text: null };
  const verb = pending?.subjects.includes(id) === true ? pending.verb : undefined;
  const is = `${id} is ${view.status} (${view.error_reason}); acknowledged: ${status}, asked for: ${verb ?? "nothing"}`;
  if (view.status === "paused") {
    assert.ok(status === "paused" || verb === "pause", is);
    await capsule.resume();
    if (text !== null) await assertText(capsule, text, is);
    return;
  }
  // Its VM ended with the machine. A create is begun anew until a command has been acknowledged.
  assert.ok(status === "running" || verb === "resume", is);
  assert.ok(view.status === "error" || (text === null && verb !== "resume"), is);
}

async function assertTemplate(client: Client, template: string, text: string): Promise<void> {
  const capsule = await client.capsule({ template });
  await assertText(capsule, text, `the template ${template}`);
}

async function assertDeletable(survivor: Survivor): Promise<void> {
  const { client } = survivor;
  const { json: views } = await client.expect(200, "GET", "/v1/capsules");
  for (const { id } of views) await client.known(id).destroy();
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
  for (const { name } of templates) await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
  await survivor.emptied("capsules", "templates", "work");
}
