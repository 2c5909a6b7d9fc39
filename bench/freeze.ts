/**
 * Pause and resume, against what the same VM costs by QEMU's own means: a full `migrate` to a file with fsync, and a cold
 * boot. And what a pause writes, against what the capsule has dirtied.
 */
import { execFile } from "node:child_process";
import { statSync } from "node:fs";
import { open, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { readVm } from "../src/host/disk/capsule-folder.ts";
import { readDiff } from "../src/vmm/memory/diff-format.ts";
import { endProcess } from "../src/vmm/process.ts";
import { Qmp } from "../src/vmm/qmp.ts";
import { coldBoots, withBootedVm } from "./cold-boot.ts";
import { above, type Finding, ratio, ratioOfTurns } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Runsc } from "./runsc.ts";
import type { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const run = promisify(execFile);
const rounds = 10;
const migrations = 4;
/** How long nothing has been asked of a capsule or a container that counts as idle. */
const idleMs = 500;
const dirtyMib = 50;
/** What an idle capsule has dirtied, roughly. */
const idleMib = 2;
const writes = 30;
const memoryBytes = 512 << 20;

const holdMemory = `import os, time; held = os.urandom(${dirtyMib} << 20); print("held", flush=True); time.sleep(1e6)`;

export async function freeze(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const runsc = await rig.runsc();
  const migrated = await repeat(migrations, () => migrate(rig));
  const booted = (await coldBoots(rig)).toExec;
  const id = await service.createRunning();
  await service.exec(id, "/bin/true");
  const checkpoints = new Checkpoints(runsc);
  const { expected, anew } = await inTurns(rig, id, checkpoints);
  const { pauses, resumes } = expected;
  const gvisor = checkpoints.against();
  const migration = ratio(pauses, "QEMU's migrate to a file + fsync", migrated);
  const least = await repeat(rounds, () => leastOf(service));
  const floor = ratio(pauses, `dd of ${idleMib} MiB conv=fsync + the end of a QEMU`, least);
  report.note("pauseIdle", pauses, { migrate: migration, gvisor, floor });
  report.note("pauseAnew", anew.pauses, {});
  report.note("resumeAnew", anew.resumes, {});
  report.note("resume", resumes, { boot: ratio(resumes, "cold boot to exec", booted) });
  const written = await overhead(service, id);
  report.note("pauseWrites", written, { most: { value: summarize(written).p99 } });
  await service.exec(
    id,
    "bash",
    "-c",
    `setsid python3 -c '${holdMemory}' > /tmp/held & until grep -q held /tmp/held; do sleep 0.1; done`,
  );
  const dirty = await cycles(service, id, rounds);
  const copied = await repeat(rounds, () => writeByDd(service, dirtyMib));
  report.note("pauseDirty", dirty.pauses, { dd: above(dirty.pauses, `dd of ${dirtyMib} MiB conv=fsync`, copied, 3) });
  await service.destroy(id);
}

/** A checkpoint of one of gVisor's containers that sleeps, right after a pause; runsc cannot do it everywhere. */
class Checkpoints {
  readonly #runsc: Runsc | string;
  readonly #pauses: number[][] = [];
  readonly #saved: number[][] = [];
  #why: string | undefined;

  constructor(runsc: Runsc | string) {
    this.#runsc = runsc;
    if (typeof runsc === "string") this.#why = runsc;
  }

  /** None is taken after one that failed. */
  async takeAfter(pauseMs: number): Promise<void> {
    const runsc = this.#runsc;
    if (typeof runsc === "string" || this.#why !== undefined) return;
    try {
      const save = async (container: string) => {
        await delay(idleMs);
        return await runsc.checkpoint(container);
      };
      this.#saved.push([await runsc.withIdle(save)]);
      this.#pauses.push([pauseMs]);
    } catch (error) {
      this.#why = error instanceof Error ? error.message : String(error);
    }
  }

  against(): Finding {
    if (typeof this.#runsc === "string" || this.#why !== undefined) return { absent: this.#why ?? "" };
    return ratioOfTurns(this.#pauses, `${this.#runsc.name} checkpoint + fsync`, this.#saved);
  }
}

interface Cycles {
  pauses: number[];
  resumes: number[];
}

/** Milliseconds of each pause, and of each resume until a command has its result. */
async function cycles(service: Service, id: string, count: number): Promise<Cycles> {
  const taken: Cycles = { pauses: [], resumes: [] };
  for (let each = 0; each < count; each++) {
    taken.pauses.push(await pauseTime(service, id));
    taken.resumes.push(await resumeTime(service, id));
  }
  return taken;
}

/**
 * Cycles of this capsule, with nothing prepared, and of one that is resumed in a process that waits, as it is when there have
 * been resumes before.
 */
async function inTurns(rig: Rig, id: string, checkpoints: Checkpoints): Promise<{ expected: Cycles; anew: Cycles }> {
  const expectant = await rig.expectant();
  const other = await expectant.createRunning();
  await cycles(expectant, other, 2);
  const expected: Cycles = { pauses: [], resumes: [] };
  const anew: Cycles = { pauses: [], resumes: [] };
  for (let each = 0; each < rig.rounds(40, 100); each++) {
    await delay(idleMs);
    const pauseMs = await pauseTime(expectant, other);
    expected.pauses.push(pauseMs);
    await checkpoints.takeAfter(pauseMs);
    await expectant.requireBlanks();
    expected.resumes.push(await resumeTime(expectant, other));
    await expectant.requireBlanks(); // what replaces it must not take time from the other
    const { pauses, resumes } = await cycles(rig.service, id, 1);
    anew.pauses.push(...pauses);
    anew.resumes.push(...resumes);
  }
  await expectant.destroy(other);
  return { expected, anew };
}

function pauseTime(service: Service, id: string): Promise<number> {
  return timed(() => service.ask("POST", `/v1/capsules/${id}/pause`));
}

function resumeTime(service: Service, id: string): Promise<number> {
  return timed(async () => {
    await service.ask("POST", `/v1/capsules/${id}/resume`);
    await service.exec(id, "/bin/true");
  });
}

/** What each pause leaves on disk beyond the pages that hold data and the disk layer's growth. */
async function overhead(service: Service, id: string): Promise<number[]> {
  const folder = join(service.dataDir, "capsules", id);
  const samples: number[] = [];
  for (let each = 0; each < writes; each++) {
    await service.ask("POST", `/v1/capsules/${id}/pause`);
    const sizes = ["manifest.json", "state", "memory.diff"].map(
      (name) => statSync(join(folder, "checkpoint", name)).size,
    );
    const total = sizes.reduce((sum, size) => sum + size, 0);
    await using diff = await open(join(folder, "checkpoint/memory.diff"));
    samples.push(total - (await readDiff(diff, memoryBytes)).dataPages * 4_096);
    await service.ask("POST", `/v1/capsules/${id}/resume`);
  }
  return samples;
}

/** Freezes a running VM of the default shape by QEMU's own migration to a file, until the bytes are on disk. */
async function migrate(rig: Rig): Promise<number> {
  return withBootedVm(rig, async (folder) => {
    const file = join(folder, "migrated");
    const qmp = await Qmp.connect(join(folder, "qmp.sock"), () => {}, 5_000);
    try {
      return await timed(async () => {
        await qmp.command("stop");
        await qmp.command("migrate", { uri: `file:${file}` });
        for (;;) {
          const { status } = (await qmp.command("query-migrate")) as { status?: string };
          if (status === "completed") break;
          if (status === "failed") throw new Error("QEMU's migration failed");
          await delay(1);
        }
        await using out = await open(file, "r+");
        await out.sync();
      });
    } finally {
      qmp.close();
      await rm(file, { force: true });
    }
  });
}

/** What no pause can do without, though its answer need not wait for all of it: as many bytes on disk, and the end of a QEMU. */
async function leastOf(service: Service): Promise<number> {
  const id = await service.createRunning();
  const process = (await readVm(join(service.dataDir, "capsules", id)))?.process;
  if (!process) throw new Error(`capsule ${id} has no VM`);
  const leastMs = (await writeByDd(service, idleMib)) + (await timed(() => endProcess(process)));
  await service.destroy(id);
  return leastMs;
}

async function writeByDd(service: Service, mib: number): Promise<number> {
  const file = join(service.dataDir, "dd");
  try {
    return await timed(() => run("dd", ["if=/dev/zero", `of=${file}`, "bs=1M", `count=${mib}`, "conv=fsync"]));
  } finally {
    await rm(file, { force: true });
  }
}
