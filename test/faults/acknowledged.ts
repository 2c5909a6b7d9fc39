/** The changes that a server has acknowledged, and the check that a server on a copy of its disk still has it. */
import assert from "node:assert/strict";
import type { Client, TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import type { RebootedServer } from "./rebooted-server.ts";

/** The change that was requested and is not acknowledged yet. Both outcomes are right. */
export interface Pending {
  verb: "create" | "write" | "pause" | "resume" | "capture" | "delete" | "delete template" | "make key" | "revoke key";
  /** Id of a capsule or a key, or name of a template; for a capture, both. */
  subjects: string[];
}

export interface Acknowledged {
  /** `text` is on its disk and in its memory; null before the first write. */
  capsules: Map<string, { status: "running" | "paused"; text: string | null }>;
  deleted: Set<string>;
  templates: Map<string, string>;
  keys: Map<string, { key: string; isValid: boolean }>;
  /** Actions and subjects that the audit log must contain, the most recent last. */
  audited: string[];
}

export const nothingAcknowledged = (): Acknowledged => ({
  capsules: new Map(),
  deleted: new Set(),
  templates: new Map(),
  keys: new Map(),
  audited: [],
});

/** Writes the same text and the same 2 MB to the disk and to memory. */
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

/** Asserts that everything acknowledged is there, and nothing else but the outcome of `pending`; then deletes all of it. */
export async function assertKept(
  rebooted: RebootedServer,
  known: Acknowledged,
  pending: Pending | undefined,
): Promise<void> {
  const { client } = rebooted;
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
  assertNoOrphans(rebooted, ids);
  for (const { id } of views) await assertCapsule(client, id, known, pending);
  for (const [name, text] of known.templates) if (names.includes(name)) await assertTemplate(client, name, text);
  await assertDeletable(rebooted);
}

/** `mayHaveMore`: the pending change may have made one more. */
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

/** A deleted template keeps its folder while capsules stand on it, so templates are checked after all deletes. */
function assertNoOrphans(rebooted: RebootedServer, ids: string[]): void {
  for (const folder of rebooted.entries("capsules")) {
    assert.ok(ids.includes(folder), `the folder capsules/${folder} has no record`);
  }
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
  const view = await waitFor(`${id} has started`, async () => {
    const now = await capsule.view();
    return now.status !== "starting" && now;
  });
  const { status, text } = known.capsules.get(id) ?? { status: "running", text: null };
  const verb = pending?.subjects.includes(id) === true ? pending.verb : undefined;
  const is = `${id} is ${view.status} (${view.error_reason}); acknowledged: ${status}, asked for: ${verb ?? "nothing"}`;
  if (view.status === "paused") {
    assert.ok(status === "paused" || verb === "pause" || verb === "capture", is); // a capture pauses first
    await capsule.resume();
    if (text !== null) await assertText(capsule, text, is);
    return;
  }
  // The VM ended with the machine. A capsule whose create was acknowledged, and no command, may be created again.
  assert.ok(status === "running" || verb === "resume", is);
  assert.ok(view.status === "error" || (text === null && verb !== "resume"), is);
}

async function assertTemplate(client: Client, template: string, text: string): Promise<void> {
  const capsule = await client.capsule({ template });
  await assertText(capsule, text, `the template ${template}`);
}

async function assertDeletable(rebooted: RebootedServer): Promise<void> {
  const { client } = rebooted;
  const { json: views } = await client.expect(200, "GET", "/v1/capsules");
  for (const { id } of views) await client.known(id).destroy();
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
  for (const { name } of templates) await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
  await rebooted.emptied("capsules", "templates", "work");
}
