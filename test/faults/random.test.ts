/**
 * Several clients send random requests while the daemon is killed at random times, alone or together with all VMs.
 * CAPSULE_TEST_SEED repeats the choices, but not the times.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { ExecResult, Reply, TestCapsule } from "../client.ts";
import { Random } from "../conformance/random.ts";
import { bytesBelow } from "../soak/measure.ts";
import { waitFor } from "../wait-for.ts";
import { isLong } from "./faults-form.ts";
import { Model } from "./model.ts";
import { World } from "./world.ts";

const clients = 3;
const maxCapsules = 4;
const durationMs = isLong ? 300_000 : 18_000;
const maxLifeMs = 5_000;
const verbs = ["create", "exec", "pause", "resume", "destroy", "capture", "create from a template"] as const;
type Verb = (typeof verbs)[number];
/**
 * The changes that a run has to see acknowledged. On a slow machine it goes on for longer, up to `longestMs`, with daemons that
 * live longer and longer: a change that takes more than the first lives could never be acknowledged.
 */
const wanted = verbs.filter((verb) => isLong || (verb !== "capture" && verb !== "create from a template"));
const longestMs = durationMs + 600_000;
const longerLife = 1.5;
/** The refusal of a capture whose guest's connection was made anew meanwhile. */
const notFrozen = /could not be frozen/;
/** The refusal of a request to a guest whose agent is slow to answer a new daemon. */
const notAdopted = /"code":"unavailable","msg":"request failed"/;
/** Expected statuses when several clients act on the same capsules. */
const expected = new Set([200, 201, 202, 204, 404, 409]);

type View = Awaited<ReturnType<World["views"]>>[number];

let world: World;
let ready: Promise<unknown> = Promise.resolve();
const acknowledged = new Map<Verb, number>(verbs.map((verb) => [verb, 0]));
const acknowledge = (verb: Verb) => acknowledged.set(verb, acknowledged.get(verb)! + 1);
const missing = () => wanted.filter((verb) => acknowledged.get(verb) === 0);

before(async () => {
  world = await World.start({ env: { CAPSULE_WARM_PROCESSES: "2" }, errors: [notFrozen, notAdopted] });
});
after(() => world[Symbol.asyncDispose]());

/** The answer; undefined when the daemon ended before it. */
async function ask(method: string, path: string, json?: unknown): Promise<Reply | undefined> {
  await ready;
  const reply = await world.client.call(method, path, json === undefined ? {} : { json }).catch((error: unknown) => {
    assert.ok(typeof (error as NodeJS.ErrnoException).code === "string", String(error));
    return undefined;
  });
  const isNotFrozen = reply?.status === 502 && notFrozen.test(reply.text);
  const isNotAdopted = reply?.status === 503 && reply.json.error.code === "unavailable";
  if (reply !== undefined && !expected.has(reply.status) && !isNotFrozen && !isNotAdopted) {
    assert.fail(`${method} ${path}: ${reply.status} ${reply.text}\n${world.complaints()}`);
  }
  return reply;
}

/** One client's next step. */
async function act(random: Random, model: Model, serial: () => number): Promise<void> {
  const list = await ask("GET", "/v1/capsules");
  if (list === undefined) return;
  const views: View[] = list.json;
  const ids = views.map(({ id }) => id);
  const lost = views.find(({ status }) => status === "error");
  if (lost !== undefined) {
    model.assertLost(lost.id, lost.error_reason);
    return await destroy(lost.id, model);
  }
  const verb = choose(random, views);
  if (verb === "create" || verb === "create from a template") return await create(random, model);
  const running = views.filter(({ status }) => status === "running").map(({ id }) => id);
  const subjects = verb === "capture" && running.length > 0 ? running : ids;
  const id = subjects[random.below(subjects.length)]!;
  const path = `/v1/capsules/${id}`;
  if (verb === "exec") {
    const file = `/root/file-${serial()}`;
    const content = String(random.next());
    const args = ["-c", `printf %s ${content} > ${file}`];
    const reply = await ask("POST", `${path}/exec`, { cmd: "bash", args });
    if (reply?.status !== 200 || reply.json.exit_code !== 0) return;
    acknowledge("exec");
    model.wrote(id, file, content);
  } else if (verb === "pause") {
    const paused = model.pausing(id);
    if ((await ask("POST", `${path}/pause`))?.status !== 200) return;
    acknowledge("pause");
    paused();
  } else if (verb === "resume") {
    const reply = await ask("POST", `${path}/resume`).finally(model.resuming(id));
    if (reply?.status === 200) acknowledge("resume");
  } else if (verb === "destroy") await destroy(id, model);
  else await capture(id, `made-${serial()}`, model);
}

/** Every other time one that was never acknowledged, so that a slow machine sees all of them too. */
function choose(random: Random, views: View[]): Verb {
  if (views.length === 0 || (views.length < maxCapsules && random.below(4) === 0)) return "create";
  const unseen = missing();
  if (unseen.length > 0 && random.below(2) === 0) return unseen[random.below(unseen.length)]!;
  const dice = random.below(20);
  if (dice < 9) return "exec";
  if (dice < 13) return "pause";
  if (dice < 17) return "resume";
  return dice < 19 ? "destroy" : "capture";
}

async function destroy(id: string, model: Model): Promise<void> {
  model.deleting(id);
  if ((await ask("DELETE", `/v1/capsules/${id}`))?.status !== 204) return;
  acknowledge("destroy");
  model.destroyed(id);
}

async function create(random: Random, model: Model): Promise<void> {
  const { templates } = model;
  const template = random.below(2) === 0 ? templates[random.below(templates.length)] : undefined;
  const reply = await ask("POST", "/v1/capsules", { template, timeout_sec: random.below(3) });
  if (reply?.status !== 201) return;
  acknowledge(template === undefined ? "create" : "create from a template");
  if (template === undefined) model.created(reply.json.id);
  else model.createdFrom(template, reply.json.id);
  await ask("GET", `/v1/capsules/${reply.json.id}?wait=running&timeout=20`);
}

async function capture(id: string, name: string, model: Model): Promise<void> {
  const files = new Map(model.filesOf(id));
  const { status } = (await ask("GET", `/v1/capsules/${id}`))?.json ?? {};
  if (status !== "running") return;
  model.deleting(id);
  if ((await ask("POST", "/v1/snapshots", { sandbox_id: id, name }))?.status !== 201) return;
  acknowledge("capture");
  model.captured(id, name, files);
}

/** Kills the daemon repeatedly, every third time with all VMs; resolves with the number of kills. */
async function killDaemon(
  random: Random,
  model: Model,
  { isOver, isLate }: { isOver: () => boolean; isLate: () => boolean },
): Promise<number> {
  let lifeMs = maxLifeMs;
  for (let kills = 0; ; kills++) {
    await delay(random.below(lifeMs));
    if (isOver()) return kills;
    if (isLate()) lifeMs *= longerLife;
    ready = kills % 3 === 1 ? reset(model) : world.startAgain("SIGKILL");
    await ready;
    model.assertListed(
      (await world.views()).map(({ id }) => id),
      false,
    );
  }
}

async function reset(model: Model): Promise<void> {
  await world.reset(() => model.machineReset());
}

/** Everything that was acknowledged is there. */
async function assertKept(model: Model): Promise<void> {
  const views = await world.views();
  model.assertListed(
    views.map(({ id }) => id),
    true,
  );
  const names = await world.snapshots();
  for (const name of model.templates) assert.ok(names.includes(name), `the template ${name} is forgotten`);
  for (const { id } of views) {
    const capsule = world.capsule(id);
    const { status, error_reason } = await waitFor(`${id} has started`, async () => {
      const view = await capsule.view();
      return view.status !== "starting" && view;
    });
    if (status === "error") {
      model.assertLost(id, error_reason);
      await world.capsule(id).destroy();
      continue;
    }
    for (const [file, content] of model.filesOf(id)) {
      const { stdout, stderr } = await read(capsule, file);
      assert.equal(stdout, content, `${id}: ${file} ${stderr}`);
    }
    // Its inactivity timeout may pause it at the same time.
    await waitFor(`${id} is paused`, async () => {
      await ask("POST", `${capsule.path}/pause`);
      return (await capsule.view()).status === "paused";
    });
  }
}

/** Reads a file; resumes the capsule again when its inactivity timeout has paused it. */
async function read(capsule: TestCapsule, file: string): Promise<ExecResult> {
  return waitFor(`${capsule.id} can be read`, async () => {
    const resumed = await ask("POST", `${capsule.path}/resume`);
    if (resumed?.status === 409) assert.match(resumed.json.error.message, /it is running|being paused/);
    const reply = await capsule.exec({ cmd: "cat", args: [file] });
    return reply.status === 200 && reply.json;
  });
}

test("random requests of several clients while the daemon is killed at random", {
  timeout: longestMs + 120_000,
}, async (t) => {
  const random = new Random(t);
  const model = new Model();
  const before = bytesBelow(world.server.dataDir);
  const began = performance.now();
  const isLate = () => performance.now() - began > durationMs;
  const isOver = () => isLate() && (missing().length === 0 || performance.now() - began > longestMs);
  let serials = 0;
  let acts = 0;
  const play = async () => {
    for (; !isOver(); acts++) await act(random, model, () => serials++);
  };
  const killing = killDaemon(random, model, { isOver, isLate });
  await Promise.all(Array.from({ length: clients }, play));
  const kills = await killing;
  const counts = [...acknowledged].map(([verb, count]) => `${verb} ${count}`).join(", ");
  t.diagnostic(`${acts} steps, acknowledged: ${counts}; ${kills} kills of the daemon`);
  assert.ok(kills > 1, "the daemon and the VMs were not killed");
  assert.deepEqual(missing(), [], `never acknowledged: ${counts}`);

  await world.restart("SIGKILL");
  await assertKept(model);
  await world.assertConsistent();
  await world.assertNoResidue();
  const grownBytes = () => bytesBelow(world.server.dataDir) - before;
  await waitFor(
    () => `${grownBytes()} bytes more than before are less than 1 MiB`,
    () => grownBytes() < 1 << 20,
  );
});
