/**
 * The daemon is killed by SIGKILL at every named step of every transition. Its successor must restore consistency:
 * everything acknowledged is there, VMs match running rows, folders match rows, and everything can be destroyed without
 * residue.
 */
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { type StepName, steps } from "../../src/host/steps.ts";
import type { TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { isLong } from "./form.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

/** The capsule can be used again with all its state, whatever state the crash left it in. */
async function assertWhole(world: World, id: string): Promise<void> {
  const capsule = world.capsule(id);
  const { status, error_reason } = await capsule.view();
  assert.ok(status === "running" || status === "paused", `${status}: ${error_reason}`);
  if (status === "paused") await capsule.resume();
  await assertMarked(capsule);
}

async function markedCapsule(world: World): Promise<TestCapsule> {
  const capsule = await world.client.capsule();
  await mark(capsule);
  return capsule;
}

/** Kills the daemon at `step` while `act` runs, and starts it again. */
async function crash(world: World, step: StepName, act: () => Promise<unknown>): Promise<void> {
  await world.restart("SIGTERM", step);
  await world.die(act);
  await world.restart("SIGKILL");
}

const post = ({ client }: World, path: string, json?: unknown) =>
  client.call("POST", path, json === undefined ? {} : { json });

interface Scenario {
  at: readonly StepName[];
  /** In the long form only, because another transition passes the same step with the same result. */
  alsoAt?: readonly StepName[];
  run(world: World, step: StepName): Promise<void>;
}

const scenarios = {
  create: {
    at: ["start.journalled", "restore.journalled", "running.committed"],
    alsoAt: ["restore.loaded", "restore.awake", "release.thawed"],
    async run(world, step) {
      await crash(world, step, async () => {
        const { json } = await post(world, "/v1/capsules", {});
        await world.client.call("GET", `/v1/capsules/${json.id}?wait=running`);
      });
      const [view] = await world.views();
      assert.ok(view, "an accepted capsule is not forgotten");
      await world.capsule(view.id).until("running");
      assert.equal(await world.capsule(view.id).sh("echo alive"), "alive");
    },
  },
  resume: {
    at: ["restore.loaded", "restore.awake", "running.committed", "release.thawed"],
    alsoAt: ["restore.journalled"],
    async run(world, step) {
      const { id } = await markedCapsule(world);
      await world.capsule(id).pause();
      await crash(world, step, () => post(world, `/v1/capsules/${id}/resume`));
      await world.assertConsistent();
      await assertWhole(world, id);
    },
  },
  pause: {
    at: ["save.stopped", "save.written", "save.published", "paused.committed", "end.killed"],
    alsoAt: ["save.frozen"],
    async run(world, step) {
      const { id } = await markedCapsule(world);
      await crash(world, step, () => post(world, `/v1/capsules/${id}/pause`));
      await world.assertConsistent();
      await assertWhole(world, id);
    },
  },
  capture: {
    at: ["save.frozen", "capture.written", "captured.committed"],
    alsoAt: ["save.stopped", "save.written", "save.published", "capture.published", "end.killed", "remove.reaped"],
    async run(world, step) {
      const { id } = await markedCapsule(world);
      await crash(world, step, () => post(world, "/v1/snapshots", { sandbox_id: id, name: "made" }));
      await world.assertConsistent();
      const isMade = (await world.snapshots()).includes("made");
      assert.equal((await world.views()).length, isMade ? 0 : 1, "either the template or the capsule");
      if (isMade) await assertMarked(await world.client.capsule({ template: "made" }));
      else await assertWhole(world, id);
    },
  },
  overwrite: {
    at: ["capture.published"],
    alsoAt: ["captured.committed"],
    async run(world, step) {
      await post(world, "/v1/snapshots", { sandbox_id: (await markedCapsule(world)).id, name: "made" });
      const { id } = await markedCapsule(world);
      await crash(world, step, () => post(world, "/v1/snapshots?overwrite=true", { sandbox_id: id, name: "made" }));
      await world.assertConsistent();
      assert.deepEqual(await world.snapshots(), ["made"]);
      await assertMarked(await world.client.capsule({ template: "made" }));
    },
  },
  destroy: {
    at: ["destroy.committed", "remove.reaped"],
    alsoAt: ["end.killed"],
    async run(world, step) {
      const { id } = await markedCapsule(world);
      await crash(world, step, () => world.client.call("DELETE", `/v1/capsules/${id}`));
      assert.equal((await world.client.call("GET", `/v1/capsules/${id}`)).status, 404);
      await world.assertConsistent();
    },
  },
  "making ahead of time": {
    at: ["pool.ready"],
    async run(world, step) {
      await world.server.kill("SIGTERM");
      await world.server.start({ CAPSULE_CRASH_AT: step, CAPSULE_POOL: "auto" });
      assert.equal(await world.server.exited(), "SIGKILL");
      assert.equal(world.vms().length, 1, "what it had made is still there");
      await world.restart("SIGKILL");
      assert.deepEqual(world.vms(), []);
    },
  },
  "starting a process ahead of time": {
    at: ["warm.started", "warm.ready"],
    async run(world, step) {
      await world.restart("SIGTERM", step, { CAPSULE_WARM_PROCESSES: "1" });
      await world.die(async () => {
        for (const capsule of [await world.client.capsule(), await world.client.capsule()]) await capsule.destroy();
      });
      assert.ok(world.vms().includes("warm"), "what it had started is still there");
      await world.restart("SIGKILL");
    },
  },
  "resume in a process that waited": {
    at: ["warm.claimed"],
    async run(world, step) {
      const capsule = await markedCapsule(world);
      const { id } = capsule;
      await world.restart("SIGTERM", step, { CAPSULE_WARM_PROCESSES: "1" });
      for (let each = 0; each < 2; each++) {
        await world.capsule(id).pause();
        await world.capsule(id).resume();
      }
      await world.capsule(id).pause();
      await eventually("one waits", async () => (await world.health()).warm_processes.ready > 0);
      await world.die(() => post(world, `/v1/capsules/${id}/resume`));
      await world.restart("SIGKILL");
      assert.equal((await world.capsule(id).view()).status, "paused");
      await world.assertConsistent();
      await assertWhole(world, id);
    },
  },
  "create from the pool": {
    at: ["pool.unparked"],
    async run(world, step) {
      await world.restart("SIGTERM", step, { CAPSULE_POOL: "auto" });
      await eventually("one is ready", async () => (await world.health()).pool.ready > 0 || undefined);
      await world.die(async () => {
        const { json } = await post(world, "/v1/capsules", {});
        await world.client.call("GET", `/v1/capsules/${json.id}?wait=running`);
      });
      await world.restart("SIGKILL");
      const [view] = await world.views();
      assert.ok(view, "an accepted capsule is not forgotten");
      await world.capsule(view.id).until("running");
      assert.equal(await world.capsule(view.id).sh("echo alive"), "alive");
    },
  },
  "template's delete": {
    at: ["template.retired"],
    async run(world, step) {
      await post(world, "/v1/snapshots", { sandbox_id: (await markedCapsule(world)).id, name: "made" });
      const { id } = await world.client.capsule({ template: "made" });
      await crash(world, step, () => world.client.call("DELETE", "/v1/snapshots/made"));
      assert.deepEqual(await world.snapshots(), []);
      await world.capsule(id).pause();
      await assertWhole(world, id);
    },
  },
} satisfies Record<string, Scenario>;

function testAll(of: Record<string, Scenario>, world: () => World): void {
  for (const [name, { at, alsoAt = [], run }] of Object.entries(of)) {
    for (const step of isLong ? [...at, ...alsoAt] : at) {
      const skip = step.startsWith("warm.") && process.getuid?.() !== 0 && "warm processes need root";
      test(`the daemon is killed at ${step} of a capsule's ${name}`, { skip }, async () => {
        await run(world(), step);
        await world().assertConsistent();
        await world().assertNoResidue();
      });
    }
  }
}

/** Tests with a server of their own. */
function inWorld(name: string, tests: (world: () => World) => void): void {
  describe(name, { concurrency: false }, () => {
    let world: World;
    before(async () => {
      world = await World.start();
    });
    after(() => world[Symbol.asyncDispose]());
    tests(() => world);
  });
}

// In parallel, because each waits for its own daemon to start most of the time.
describe("kills of the daemon", { concurrency: true }, () => {
  const { create, resume, pause, destroy, ...others } = scenarios;

  inWorld("in the life of a capsule", (world) => {
    testAll({ create, resume, pause, destroy }, world);

    test("a VM whose folder has been removed is ended by the next start", async () => {
      const { server } = world();
      const { id } = await world().client.capsule();
      await server.kill("SIGKILL");
      rmSync(join(server.dataDir, "capsules", id), { recursive: true });
      assert.deepEqual(world().vms(), [id], "no journal names it now");
      await world().restart("SIGKILL");
      assert.deepEqual(world().vms(), []);
      assert.equal((await world().capsule(id).view()).status, "error");
      await world().assertNoResidue();
    });
  });

  inWorld("while something is made of it, or ahead of it", (world) => testAll(others, world));
});

test("every named step has a test", () => {
  const crashed = new Set(Object.values(scenarios).flatMap(({ at }) => at));
  assert.deepEqual(
    steps.filter((step) => !crashed.has(step)),
    [],
  );
});
