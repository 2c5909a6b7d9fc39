/**
 * The daemon dies, as by kill -9, at every named step of every transition; the next one must find or make one story: what
 * was acknowledged is there, VMs = running rows, folders = rows, and everything can still be destroyed without residue.
 */
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { type StepName, steps } from "../../src/host/steps.ts";
import type { TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { isLong } from "./form.ts";
import { assertFurnished, furnish } from "./furniture.ts";
import { World } from "./world.ts";

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

/** Whatever state the crash left it in, it comes back with all it had. */
async function assertWhole(id: string): Promise<void> {
  const capsule = world.capsule(id);
  const { status, error_reason } = await capsule.view();
  assert.ok(status === "running" || status === "paused", `${status}: ${error_reason}`);
  if (status === "paused") await capsule.resume();
  await assertFurnished(capsule);
}

async function furnished(): Promise<TestCapsule> {
  const capsule = await world.client.capsule();
  await furnish(capsule);
  return capsule;
}

/** Kills the daemon at `step` while `act` runs against capsule `id`, and starts the next one. */
async function crash(step: StepName, act: () => Promise<unknown>): Promise<void> {
  await world.restart("SIGTERM", step);
  await world.die(act);
  await world.restart("SIGKILL");
}

const post = (path: string, json?: unknown) => world.client.call("POST", path, json === undefined ? {} : { json });

/** `at`: always; `alsoAt`: in the long form, since another change comes by the same step and ends there in the same way. */
const scenarios: Record<
  string,
  { at: readonly StepName[]; alsoAt?: readonly StepName[]; run: (step: StepName) => Promise<void> }
> = {
  create: {
    at: ["start.journalled", "restore.journalled", "running.committed"],
    alsoAt: ["restore.loaded", "restore.awake", "release.thawed"],
    async run(step) {
      await crash(step, async () => {
        const { json } = await post("/v1/capsules", {});
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
    async run(step) {
      const { id } = await furnished();
      await world.capsule(id).pause();
      await crash(step, () => post(`/v1/capsules/${id}/resume`));
      await world.assertOneStory();
      await assertWhole(id);
    },
  },
  pause: {
    at: ["save.stopped", "save.written", "save.published", "paused.committed", "end.killed"],
    alsoAt: ["save.frozen"],
    async run(step) {
      const { id } = await furnished();
      await crash(step, () => post(`/v1/capsules/${id}/pause`));
      await world.assertOneStory();
      await assertWhole(id);
    },
  },
  capture: {
    at: ["save.frozen", "capture.written", "captured.committed"],
    alsoAt: ["save.stopped", "save.written", "save.published", "capture.published", "end.killed", "remove.reaped"],
    async run(step) {
      const { id } = await furnished();
      await crash(step, () => post("/v1/snapshots", { sandbox_id: id, name: "made" }));
      await world.assertOneStory();
      const isMade = (await world.snapshots()).includes("made");
      assert.equal((await world.views()).length, isMade ? 0 : 1, "either the template or the capsule");
      if (isMade) await assertFurnished(await world.client.capsule({ template: "made" }));
      else await assertWhole(id);
    },
  },
  overwrite: {
    at: ["capture.published"],
    alsoAt: ["captured.committed"],
    async run(step) {
      await post("/v1/snapshots", { sandbox_id: (await furnished()).id, name: "made" });
      const { id } = await furnished();
      await crash(step, () => post("/v1/snapshots?overwrite=true", { sandbox_id: id, name: "made" }));
      await world.assertOneStory();
      assert.deepEqual(await world.snapshots(), ["made"]);
      await assertFurnished(await world.client.capsule({ template: "made" }));
    },
  },
  destroy: {
    at: ["destroy.committed", "remove.reaped"],
    alsoAt: ["end.killed"],
    async run(step) {
      const { id } = await furnished();
      await crash(step, () => world.client.call("DELETE", `/v1/capsules/${id}`));
      assert.equal((await world.client.call("GET", `/v1/capsules/${id}`)).status, 404);
      await world.assertOneStory();
    },
  },
  "making ahead of time": {
    at: ["pool.ready"],
    async run(step) {
      await world.server.kill("SIGTERM");
      await world.server.start({ CAPSULE_CRASH_AT: step, CAPSULE_POOL: "auto" });
      assert.equal(await world.server.exited(), "SIGKILL");
      assert.equal(world.vms().length, 1, "what it had made is still there");
      await world.restart("SIGKILL");
      assert.deepEqual(world.vms(), []);
    },
  },
  "starting a process ahead of time": {
    at: ["blank.ready"],
    async run(step) {
      await world.restart("SIGTERM", step, { CAPSULE_BLANKS: "1" });
      await world.die(async () => {
        for (const capsule of [await world.client.capsule(), await world.client.capsule()]) await capsule.destroy();
      });
      assert.ok(world.vms().includes("blank"), "what it had started is still there");
      await world.restart("SIGKILL");
    },
  },
  "resume in a process that waited": {
    at: ["blank.claimed"],
    async run(step) {
      const capsule = await furnished();
      const { id } = capsule;
      await world.restart("SIGTERM", step, { CAPSULE_BLANKS: "1" });
      for (let each = 0; each < 2; each++) {
        await world.capsule(id).pause();
        await world.capsule(id).resume();
      }
      await world.capsule(id).pause();
      await eventually("one waits", async () => (await world.health()).blanks.ready > 0);
      await world.die(() => post(`/v1/capsules/${id}/resume`));
      await world.restart("SIGKILL");
      assert.equal((await world.capsule(id).view()).status, "paused");
      await world.assertOneStory();
      await assertWhole(id);
    },
  },
  "create from the pool": {
    at: ["pool.roused"],
    async run(step) {
      await world.restart("SIGTERM", step, { CAPSULE_POOL: "auto" });
      await eventually("one is ready", async () => (await world.health()).pool.ready > 0 || undefined);
      await world.die(async () => {
        const { json } = await post("/v1/capsules", {});
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
    async run(step) {
      await post("/v1/snapshots", { sandbox_id: (await furnished()).id, name: "made" });
      const { id } = await world.client.capsule({ template: "made" });
      await crash(step, () => world.client.call("DELETE", "/v1/snapshots/made"));
      assert.deepEqual(await world.snapshots(), []);
      await world.capsule(id).pause();
      await assertWhole(id);
    },
  },
};

for (const [name, { at, alsoAt = [], run }] of Object.entries(scenarios)) {
  for (const step of isLong ? [...at, ...alsoAt] : at) {
    const skip = step.startsWith("blank.") && process.getuid?.() !== 0; // blanks need users of their own
    test(`the daemon dies at ${step} of a capsule's ${name}`, { skip }, async () => {
      await run(step);
      await world.assertOneStory();
      await world.assertNoResidue();
    });
  }
}

test("a VM whose folder is gone is ended by the next start", async () => {
  const { id } = await world.client.capsule();
  await world.server.kill("SIGKILL");
  rmSync(join(world.server.dataDir, "capsules", id), { recursive: true });
  assert.deepEqual(world.vms(), [id], "nobody's journal names it now");
  await world.restart("SIGKILL");
  assert.deepEqual(world.vms(), []);
  assert.equal((await world.capsule(id).view()).status, "error");
  await world.assertNoResidue();
});

test("every named step is crashed at", () => {
  const crashed = new Set(Object.values(scenarios).flatMap(({ at }) => at));
  assert.deepEqual(
    steps.filter((step) => !crashed.has(step)),
    [],
  );
});
