/**
 * The daemon is killed by SIGKILL at every named step of every transition, alone, and together with all VMs as by a reset of
 * the machine. Its successor must restore consistency: everything acknowledged is there, VMs match running rows, folders
 * match rows, and everything can be destroyed without residue. After a reset a capsule that ran is in `error`; a paused one
 * and a template are whole.
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { rmSync } from "node:fs";
import type { Socket } from "node:net";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { type StepName, steps } from "../../src/host/steps.ts";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { isLong } from "./faults-form.ts";
import { assertMarked, mark } from "./marks.ts";
import { type Fault, unbuiltJails, World } from "./world.ts";

/** A machine that is busy makes it late: the daemon does so in the background. */
const madeAhead = { deadlineMs: 240_000 };

/** The capsule can be used again with all its state, whatever state the crash left it in. */
async function assertWhole(world: World, id: string): Promise<void> {
  const capsule = world.capsule(id);
  const { status, error_reason } = await capsule.view();
  assert.ok(status === "running" || status === "paused", `${status}: ${error_reason}`);
  if (status === "paused") await capsule.resume();
  await assertMarked(capsule);
}

/** After a fault at a step up to which the capsule has run on: a reset has ended its VM, and the row says so. */
async function assertRanUntil(world: World, id: string, fault: Fault): Promise<void> {
  if (fault === "daemon") return await assertWhole(world, id);
  const { status, error_reason } = await world.capsule(id).view();
  assert.equal(status, "error");
  assert.ok(error_reason.length > 5, error_reason);
}

async function markedCapsule(world: World): Promise<TestCapsule> {
  const capsule = await world.client.capsule();
  await mark(capsule);
  return capsule;
}

/** A jail whose bubblewrap cannot tell which process it has started, and dies. */
async function leaveUnbuilt(argv: string[]): Promise<void> {
  const jail = ["bwrap", "--unshare-pid", "--as-pid-1", "--dev-bind", "/", "/", "--info-fd", "3", "--", ...argv];
  const bwrap = spawn("sh", ["-c", 'read _ && exec "$@"', "sh", ...jail], {
    stdio: ["pipe", "ignore", "ignore", "pipe"],
  });
  const ended = once(bwrap, "exit");
  (bwrap.stdio[3] as Socket).destroy();
  bwrap.stdin!.end("\n");
  assert.deepEqual(await ended, [null, "SIGPIPE"]);
}

/** Kills the daemon, or all processes, at `step` while `act` runs, and starts the daemon again. */
async function crash(world: World, at: Point, act: () => Promise<unknown>): Promise<void> {
  await world.restart("SIGTERM", at.step);
  await world.die(act, at.fault);
  await world.restart("SIGKILL");
}

const post = ({ client }: World, path: string, json?: unknown) =>
  client.call("POST", path, json === undefined ? {} : { json });

interface Point {
  step: StepName;
  fault: Fault;
}

interface Scenario {
  at: readonly StepName[];
  /** In the long form only, because another transition passes the same step with the same result. */
  alsoAt?: readonly StepName[];
  run(world: World, at: Point): Promise<void>;
}

/** Steps of a create and a resume after their commit, and of a pause and a capture before theirs. */
const whileRunning: readonly StepName[] = [
  "running.committed",
  "release.thawed",
  "save.frozen",
  "save.stopped",
  "save.written",
];

async function assertKept(world: World, id: string, { step, fault }: Point): Promise<void> {
  if (whileRunning.includes(step)) await assertRanUntil(world, id, fault);
  else await assertWhole(world, id);
}

/** A running capsule with a file on its disk. */
async function synced(world: World): Promise<TestCapsule> {
  const capsule = await world.client.capsule();
  await capsule.sh("echo kept > /root/kept; sync");
  return capsule;
}

async function assertOnDisk(world: World, id: string): Promise<void> {
  assert.equal(await world.capsule(id).sh("cat /root/kept"), "kept");
}

async function startAgain(world: World, id: string): Promise<void> {
  await world.capsule(id).start();
  await assertOnDisk(world, id);
}

async function assertStarted(world: World, { step, fault }: Point): Promise<void> {
  const [view] = await world.views();
  assert.ok(view, "an accepted capsule is not forgotten");
  if (fault === "machine" && whileRunning.includes(step)) return await assertRanUntil(world, view.id, fault);
  await world.capsule(view.id).until("running");
  assert.equal(await world.capsule(view.id).sh("echo alive"), "alive");
}

const scenarios = {
  create: {
    at: ["start.journalled", "restore.journalled", "running.committed"],
    alsoAt: ["restore.loaded", "restore.awake", "release.thawed"],
    async run(world, at) {
      await crash(world, at, async () => {
        const { json } = await post(world, "/v1/capsules", {});
        await world.client.call("GET", `/v1/capsules/${json.id}?wait=running`);
      });
      await assertStarted(world, at);
    },
  },
  resume: {
    at: ["restore.loaded", "restore.awake", "running.committed", "release.thawed"],
    alsoAt: ["restore.journalled"],
    async run(world, at) {
      const { id } = await markedCapsule(world);
      await world.capsule(id).pause();
      await crash(world, at, () => post(world, `/v1/capsules/${id}/resume`));
      await world.assertConsistent();
      await assertKept(world, id, at);
    },
  },
  pause: {
    at: ["save.stopped", "save.written", "save.published", "paused.committed", "end.killed"],
    alsoAt: ["save.frozen"],
    async run(world, at) {
      const { id } = await markedCapsule(world);
      await crash(world, at, () => post(world, `/v1/capsules/${id}/pause`));
      await world.assertConsistent();
      await assertKept(world, id, at);
    },
  },
  stop: {
    at: ["stop.halted", "stopped.committed"],
    alsoAt: ["end.killed"],
    async run(world, at) {
      const { id } = await synced(world);
      await crash(world, at, () => post(world, `/v1/capsules/${id}/stop`));
      await world.capsule(id).until("stopped");
      await startAgain(world, id);
    },
  },
  start: {
    at: ["restore.journalled", "restore.loaded", "running.committed"],
    alsoAt: ["restore.awake", "release.thawed"],
    async run(world, at) {
      const { id } = await synced(world);
      await world.capsule(id).stop();
      await crash(world, at, () => post(world, `/v1/capsules/${id}/start`));
      const { status } = await world.capsule(id).view();
      const lost = at.fault === "machine" ? "error" : "running";
      assert.equal(status, whileRunning.includes(at.step) ? lost : "stopped");
      if (status === "running") await assertOnDisk(world, id);
      else await startAgain(world, id);
    },
  },
  reboot: {
    at: ["restore.loaded"],
    alsoAt: ["restore.journalled", "restore.awake"],
    async run(world, at) {
      const { id } = await synced(world);
      // The daemon of a busy machine may hear of the guest's end before the answer.
      world.server.log.expect(
        /"message":"the connection to the guest agent was (closed|lost)".*"msg":"request failed"/,
      );
      const reset = { cmd: "bash", args: ["-c", "(sleep 0.1; reboot) >/dev/null 2>&1 &"] };
      await crash(world, at, () => post(world, `/v1/capsules/${id}/exec`, reset));
      await world.capsule(id).until("running");
      await assertOnDisk(world, id);
    },
  },
  capture: {
    at: ["save.frozen", "capture.written", "captured.committed"],
    alsoAt: ["save.stopped", "save.written", "save.published", "capture.published", "end.killed", "remove.reaped"],
    async run(world, at) {
      const { id } = await markedCapsule(world);
      await crash(world, at, () => post(world, "/v1/snapshots", { sandbox_id: id, name: "made" }));
      await world.assertConsistent();
      const isMade = (await world.snapshots()).includes("made");
      assert.equal((await world.views()).length, isMade ? 0 : 1, "either the template or the capsule");
      if (isMade) await assertMarked(await world.client.capsule({ template: "made" }));
      else await assertKept(world, id, at);
    },
  },
  overwrite: {
    at: ["capture.published"],
    alsoAt: ["captured.committed"],
    async run(world, at) {
      await post(world, "/v1/snapshots", { sandbox_id: (await markedCapsule(world)).id, name: "made" });
      const { id } = await markedCapsule(world);
      await crash(world, at, () => post(world, "/v1/snapshots?overwrite=true", { sandbox_id: id, name: "made" }));
      await world.assertConsistent();
      assert.deepEqual(await world.snapshots(), ["made"]);
      await assertMarked(await world.client.capsule({ template: "made" }));
    },
  },
  destroy: {
    at: ["destroy.committed", "remove.reaped"],
    alsoAt: ["end.killed"],
    async run(world, at) {
      const { id } = await markedCapsule(world);
      await crash(world, at, () => world.client.call("DELETE", `/v1/capsules/${id}`));
      assert.equal((await world.client.call("GET", `/v1/capsules/${id}`)).status, 404);
      await world.assertConsistent();
    },
  },
  "making ahead of time": {
    at: ["pool.ready"],
    async run(world, at) {
      await world.server.kill("SIGTERM");
      await world.server.start({ CAPSULE_CRASH_AT: at.step, CAPSULE_POOL: "auto" });
      await world.die(() => Promise.resolve(), at.fault);
      assert.equal(world.vms().length, at.fault === "daemon" ? 1 : 0, "what it had made is still there");
      await world.restart("SIGKILL");
      assert.deepEqual(world.vms(), []);
    },
  },
  "starting a process ahead of time": {
    at: ["warm.started", "warm.ready"],
    async run(world, at) {
      await world.restart("SIGTERM", at.step, { CAPSULE_WARM_PROCESSES: "1" });
      await world.die(async () => {
        for (const capsule of [await world.client.capsule(), await world.client.capsule()]) await capsule.destroy();
      }, at.fault);
      assert.equal(world.vms().includes("warm"), at.fault === "daemon", "what it had started is still there");
      await world.restart("SIGKILL");
    },
  },
  "resume in a process that waited": {
    at: ["warm.claimed"],
    async run(world, at) {
      const capsule = await markedCapsule(world);
      const { id } = capsule;
      await world.restart("SIGTERM", at.step, { CAPSULE_WARM_PROCESSES: "1" });
      for (let each = 0; each < 2; each++) {
        await world.capsule(id).pause();
        await world.capsule(id).resume();
      }
      await world.capsule(id).pause();
      await waitFor("one waits", async () => (await world.health()).warm_processes.ready > 0, madeAhead);
      await world.die(() => post(world, `/v1/capsules/${id}/resume`), at.fault);
      await world.restart("SIGKILL");
      assert.equal((await world.capsule(id).view()).status, "paused");
      await world.assertConsistent();
      await assertWhole(world, id);
    },
  },
  "create from the pool": {
    at: ["pool.unparked"],
    async run(world, at) {
      await world.restart("SIGTERM", at.step, { CAPSULE_POOL: "auto" });
      await waitFor("one is ready", async () => (await world.health()).pool.ready > 0, madeAhead);
      await world.die(async () => {
        const { json } = await post(world, "/v1/capsules", {});
        await world.client.call("GET", `/v1/capsules/${json.id}?wait=running`);
      }, at.fault);
      await world.restart("SIGKILL");
      await assertStarted(world, at);
    },
  },
  "template's delete": {
    at: ["template.retired"],
    async run(world, at) {
      await post(world, "/v1/snapshots", { sandbox_id: (await markedCapsule(world)).id, name: "made" });
      const { id } = await world.client.capsule({ template: "made" });
      await crash(world, at, () => world.client.call("DELETE", "/v1/snapshots/made"));
      assert.deepEqual(await world.snapshots(), []);
      if (at.fault === "daemon") await world.capsule(id).pause();
      await assertRanUntil(world, id, at.fault);
    },
  },
} satisfies Record<string, Scenario>;

const faults: [what: string, Fault][] = [
  ["the daemon is killed", "daemon"],
  ["the daemon and all VMs are killed", "machine"],
];

function testAll(of: Record<string, Scenario>, world: () => World): void {
  for (const [name, { at, alsoAt = [], run }] of Object.entries(of)) {
    for (const step of isLong ? [...at, ...alsoAt] : at) {
      const skip = step.startsWith("warm.") && process.getuid?.() !== 0 && "warm processes need root";
      for (const [what, fault] of faults) {
        test(`${what} at ${step} of a capsule's ${name}`, { skip }, async () => {
          await run(world(), { step, fault });
          await world().assertConsistent();
          await world().assertNoResidue();
        });
      }
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
  const { create, resume, pause, stop, start, reboot, destroy, ...others } = scenarios;

  inWorld("in the life of a capsule", (world) => {
    testAll({ create, resume, pause, stop, start, reboot, destroy }, world);

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

    test("what bubblewrap has started for a VM, and not let begin before it died, is ended by the next start", async () => {
      const { dataDir } = world().server;
      await world().server.kill("SIGKILL");
      const folder = join(dataDir, "capsules/gone");
      await leaveUnbuilt(["sleep", "100000", "-name", `guest=gone nonce=${"5".repeat(32)} dir=${folder}`]);
      assert.equal(unbuiltJails(folder).length, 1);
      await world().restart("SIGKILL");
      assert.deepEqual(unbuiltJails(folder), []);
      await world().assertNoResidue();
    });
  });

  inWorld("while something is made of it, or ahead of it", (world) => testAll(others, world));
});

test("every named step has a test", () => {
  const crashed = new Set<StepName>(Object.values(scenarios).flatMap(({ at }) => at));
  // The steps of a network are in test/network/policies-inside.ts, beside a relay whose decisions are seen.
  assert.deepEqual(
    steps.filter((step) => !crashed.has(step) && !step.startsWith("network.")),
    [],
  );
});
