/**
 * Power cuts. At random instants, mostly after an acknowledged change, the block device is copied, and a server that starts
 * on the copy is checked against all that was acknowledged. CAPSULE_POWER_CUTS=300 takes ten minutes. CAPSULE_TEST_SEED
 * repeats the choices, though not their timing.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { after, before, describe, type TestContext, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Random } from "../conformance/random.ts";
import { type Acknowledged, assertKept, type Pending } from "./acknowledged.ts";
import { type CopiedDisk, CutDisk } from "./cut-disk.ts";
import { RandomChanges } from "./random-changes.ts";
import { RebootedServer } from "./rebooted-server.ts";
import { World } from "./world.ts";

const cuts = Number(process.env.CAPSULE_POWER_CUTS || 8);
/** Seconds between journal commits. With 1, names reach the disk before the bytes of their files; with 300, only by fsync. */
const commitSecs = [1, 300];
/** The kernel writes a file's bytes back after 30 s, so the cut comes earlier. */
const latestMs = 3_000;
const longestStepMs = 500;
const stepsMax = 4;
const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "1" };

/** Why no disk can be made here; undefined when one can. */
function noDisk(): string | undefined {
  try {
    new CutDisk(5)[Symbol.dispose]();
    return undefined;
  } catch (error) {
    return `a file system of its own cannot be mounted here: ${String(error).trim().split("\n").at(-1)}`;
  }
}

interface Cut {
  disk: CopiedDisk;
  known: Acknowledged;
  pending: Pending | undefined;
}

/** A server on a disk whose power can be cut. */
class PoweredWorld implements AsyncDisposable {
  readonly #disk: CutDisk;
  readonly #world: World;
  readonly changes: RandomChanges;

  static async start(random: Random, commitSec: number, more: Record<string, string> = {}): Promise<PoweredWorld> {
    const disk = new CutDisk(commitSec);
    try {
      const world = await World.start({ parent: disk.path, env: { ...env, ...more } });
      disk.sync(join(world.server.dataDir, "bases")); // shared by all test servers, so they are not new
      return new PoweredWorld(disk, world, random);
    } catch (error) {
      disk[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(disk: CutDisk, world: World, random: Random) {
    this.#disk = disk;
    this.#world = world;
    this.changes = new RandomChanges(world.client, random);
  }

  /** Leaves nothing to the kernel, which writes a file's bytes back 30 s after the first of them that it had not written. */
  sync(): void {
    this.#disk.syncAll();
  }

  cut(): Cut {
    const { server } = this.#world;
    const vms = this.#world.vms().flatMap((name) => this.#world.pidsOf(name));
    const disk = this.#disk.cut([server.pid!, ...vms]);
    return { disk, known: this.changes.known, pending: this.changes.pending };
  }

  /** Starts a server on the copy and checks that it has all that was acknowledged. */
  async assertKept({ disk, known, pending }: Cut): Promise<void> {
    await using copied = disk;
    copied.mount();
    const { dataDir } = this.#world.server;
    await using rebooted = await RebootedServer.start(join(copied.path, basename(dirname(dataDir)), "data"), {
      ...env,
      CAPSULE_WARM_PROCESSES: "0",
    });
    await assertKept(rebooted, known, pending);
    await rebooted.log.assertExpected();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    using _last = this.#disk;
    await this.#world[Symbol.asyncDispose]();
  }
}

/** A cut during a change, in a third of all cases, or up to 3 s after its acknowledgement. */
async function cutSomewhere(random: Random, world: PoweredWorld): Promise<Cut> {
  for (let steps = random.below(stepsMax); steps > 0; steps--) await world.changes.step();
  const step = world.changes.step();
  if (random.below(3) === 0) {
    await Promise.race([step, delay(random.below(longestStepMs))]);
    const cut = world.cut();
    await step;
    return cut;
  }
  await step;
  await delay(random.below(2) === 0 ? random.below(latestMs) : random.size(latestMs));
  return world.cut();
}

describe("a power cut", { skip: noDisk() ?? false }, () => {
  for (const [index, commitSec] of commitSecs.entries()) {
    const count = Math.floor((cuts + index) / commitSecs.length);
    const name = `loses nothing acknowledged, with a journal commit every ${commitSec} s`;
    test(name, { timeout: 300_000 + count * 60_000 }, async (t) => {
      const random = new Random(t);
      await using world = await PoweredWorld.start(random, commitSec);
      const during = new Map<string, number>();
      for (let done = 0; done < count; done++) {
        const cut = await cutSomewhere(random, world);
        const verb = cut.pending?.verb ?? "nothing";
        during.set(verb, 1 + (during.get(verb) ?? 0));
        await world.assertKept(cut).catch((error: unknown) => {
          throw new Error(`cut ${done}, during ${verb}: ${error}`, { cause: error });
        });
      }
      t.diagnostic(`${count} power cuts, during: ${[...during].map((each) => each.join(" ")).join(", ")}`);
    });
  }
});

/** Servers without fsync: the changes made, and whether the check must fail after them. QEMU keeps its own fsyncs. */
const unsynced: [what: string, env: Record<string, string>, changes: [Pending["verb"], isLost: boolean][]][] = [
  [
    "nothing",
    {},
    [
      ["create", true],
      ["make key", true],
    ],
  ],
  [
    "its database and its first key only",
    { NO_SYNC_SPARES: "capsule.db:api-key" },
    [
      ["create", false],
      ["write", false],
      ["pause", true],
      ["resume", false],
      ["capture", true],
    ],
  ],
];

describe("a power cut is noticed", { skip: noDisk() ?? false }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-no-sync-"));
  const library = join(folder, "no-sync.so");
  before(() => execFileSync("cc", ["-shared", "-fPIC", "-o", library, join(import.meta.dirname, "no-sync.c")]));
  after(() => rmSync(folder, { recursive: true }));

  for (const [what, spared, changes] of unsynced) {
    test(`where the server syncs ${what}`, { timeout: 300_000 }, async (t: TestContext) => {
      const random = new Random(t);
      await using world = await PoweredWorld.start(random, commitSecs[1]!, { LD_PRELOAD: library, ...spared });
      for (const [verb, isLost] of changes) {
        world.sync();
        await world.changes.step(verb);
        if (!isLost) continue;
        await assert.rejects(world.assertKept(world.cut()), (error) => {
          t.diagnostic(`${verb}: ${String(error).split("\n")[0]}`);
          assert.doesNotMatch(String(error), /that no test announced/, "noticed by what is lost, not by the log");
          return true;
        });
      }
    });
  }
});
