/**
 * Several clients do at random what clients do, while the daemon is killed at random instants. CAPSULE_TEST_SEED makes
 * the same choices again, though not at the same moments.
 */
import assert from "node:assert/strict";
import { lstatSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { ExecResult, Reply, TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { Random } from "../conformance/random.ts";
import { isLong } from "./form.ts";
import { Ledger } from "./ledger.ts";
import { World } from "./world.ts";

const clients = 3;
const mostCapsules = 4;
const durationMs = isLong ? 300_000 : 18_000;
const longestLifeMs = 5_000;
/** What clients may hear when others act on the same capsules. */
const expected = new Set([200, 201, 202, 204, 404, 409, 502]);

let world: World;
let ready: Promise<unknown> = Promise.resolve();
before(async () => {
  world = await World.start({ env: { CAPSULE_WARM_PROCESSES: "2" } });
});
after(() => world[Symbol.asyncDispose]());

/** The answer, or undefined when the daemon died over it. */
async function ask(method: string, path: string, json?: unknown): Promise<Reply | undefined> {
  await ready;
  const reply = await world.client.call(method, path, json === undefined ? {} : { json }).catch((error: unknown) => {
    assert.ok(typeof (error as NodeJS.ErrnoException).code === "string", String(error));
    return undefined;
  });
  if (reply !== undefined && !expected.has(reply.status)) {
    assert.fail(`${method} ${path}: ${reply.status} ${reply.text}\n${world.complaints()}`);
  }
  return reply;
}

/** One client's next step. */
async function act(random: Random, ledger: Ledger, serial: () => number): Promise<void> {
  const list = await ask("GET", "/v1/capsules");
  if (list === undefined) return;
  const ids = list.json.map(({ id }: { id: string }) => id);
  if (ids.length === 0 || (ids.length < mostCapsules && random.below(4) === 0)) return await create(random, ledger);
  const id = ids[random.below(ids.length)];
  const path = `/v1/capsules/${id}`;
  const dice = random.below(20);
  if (dice < 9) {
    const file = `/root/file-${serial()}`;
    const content = String(random.next());
    const args = ["-c", `printf %s ${content} > ${file}`];
    const reply = await ask("POST", `${path}/exec`, { cmd: "bash", args });
    if (reply?.status === 200 && reply.json.exit_code === 0) ledger.wrote(id, file, content);
  } else if (dice < 13) await ask("POST", `${path}/pause`);
  else if (dice < 17) await ask("POST", `${path}/resume`);
  else if (dice < 19) {
    ledger.destroyBegun(id);
    if ((await ask("DELETE", path))?.status === 204) ledger.destroyed(id);
  } else await capture(id, `made-${serial()}`, ledger);
}

async function create(random: Random, ledger: Ledger): Promise<void> {
  const { templates } = ledger;
  const template = random.below(2) === 0 ? templates[random.below(templates.length)] : undefined;
  const reply = await ask("POST", "/v1/capsules", { template, timeout_sec: random.below(3) });
  if (reply?.status !== 201) return;
  if (template === undefined) ledger.created(reply.json.id);
  else ledger.createdFrom(template, reply.json.id);
  await ask("GET", `/v1/capsules/${reply.json.id}?wait=running&timeout=20`);
}

async function capture(id: string, name: string, ledger: Ledger): Promise<void> {
  const files = new Map(ledger.filesOf(id));
  const { status } = (await ask("GET", `/v1/capsules/${id}`))?.json ?? {};
  if (status !== "running") return;
  ledger.destroyBegun(id);
  if ((await ask("POST", "/v1/snapshots", { sandbox_id: id, name }))?.status === 201) ledger.captured(id, name, files);
}

/** Kills the daemon again and again; resolves with how often. */
async function reign(random: Random, ledger: Ledger, deadline: number): Promise<number> {
  for (let deaths = 0; ; deaths++) {
    await delay(random.below(longestLifeMs)); // any instant
    if (performance.now() > deadline) return deaths;
    ready = world.restart("SIGKILL");
    await ready;
    ledger.assertListed(
      (await world.views()).map(({ id }) => id),
      false,
    );
  }
}

/** Whatever was acknowledged is there. */
async function assertKept(ledger: Ledger): Promise<void> {
  const views = await world.views();
  ledger.assertListed(
    views.map(({ id }) => id),
    true,
  );
  const names = await world.snapshots();
  for (const name of ledger.templates) assert.ok(names.includes(name), `the template ${name} is forgotten`);
  for (const { id } of views) {
    const capsule = world.capsule(id);
    const { status, error_reason } = await eventually(`${id} is at rest`, async () => {
      const view = await capsule.view();
      return view.status !== "starting" && view;
    });
    assert.notEqual(status, "error", `${id}: ${error_reason}`);
    for (const [file, content] of ledger.filesOf(id)) {
      const { stdout, stderr } = await read(capsule, file);
      assert.equal(stdout, content, `${id}: ${file} ${stderr}`);
    }
    // Its own inactivity may be pausing it at this moment.
    await eventually(`${id} is paused`, async () => {
      await ask("POST", `${capsule.path}/pause`);
      return (await capsule.view()).status === "paused";
    });
  }
}

/** Resumes the capsule as often as its inactivity time pauses it. */
async function read(capsule: TestCapsule, file: string): Promise<ExecResult> {
  return eventually(`${capsule.id} can be read`, async () => {
    await ask("POST", `${capsule.path}/resume`);
    const reply = await capsule.exec({ cmd: "cat", args: [file] });
    return reply.status === 200 && reply.json;
  });
}

/** Bytes on disk below a folder, but for the database, which grows with what it has to remember. */
function takenBytes(folder: string): number {
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => !entry.name.startsWith("capsule.db"))
    .map((entry) => join(folder, entry.name))
    .reduce((sum, path) => {
      const found = lstatSync(path);
      return sum + found.blocks * 512 + (found.isDirectory() ? takenBytes(path) : 0);
    }, 0);
}

test("several clients at random, and a daemon that dies at random", { timeout: durationMs + 120_000 }, async (t) => {
  const random = new Random(t);
  const ledger = new Ledger();
  const before = takenBytes(world.server.dataDir);
  const deadline = performance.now() + durationMs;
  let serials = 0;
  let acts = 0;
  const play = async () => {
    for (; performance.now() < deadline; acts++) await act(random, ledger, () => serials++);
  };
  const deaths = reign(random, ledger, deadline);
  await Promise.all(Array.from({ length: clients }, play));
  t.diagnostic(`${acts} steps, ${await deaths} deaths of the daemon`);

  await world.restart("SIGKILL");
  await assertKept(ledger);
  await world.assertOneStory();
  await world.assertNoResidue();
  const grownBytes = takenBytes(world.server.dataDir) - before;
  assert.ok(grownBytes < 1 << 20, `${grownBytes} bytes more than before`);
});
