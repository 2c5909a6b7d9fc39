/**
 * Pause and resume, against QEMU's own `migrate` to a file with fsync, a cold boot, and gVisor's checkpoint. And the bytes
 * that a pause writes beyond the capsule's dirty pages.
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
import type { Fixture } from "./fixture.ts";
import { above, type Finding, pairedRatio, ratio } from "./report.ts";
import type { Runsc } from "./runsc.ts";
import type { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const run = promisify(execFile);
const rounds = 10;
const migrations = 4;
/** A capsule or container is idle after this time without a request. */
const idleMs = 500;
const dirtyMib = 50;
/** About the size of the dirty pages of an idle capsule. */
const idleMib = 2;
const writes = 30;
const memoryBytes = 512 << 20;

const holdMemory = `import os, time; held = os.urandom(${dirtyMib} << 20); print("held", flush=True); time.sleep(1e6)`;

export async function freeze(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const runsc = await fixture.runsc();
  const migrated = await repeat(migrations, () => migrate(fixture));
  const booted = (await coldBoots(fixture)).toExec;
  const id = await service.createRunning();
  await service.exec(id, "/bin/true");
  const checkpoints = new Checkpoints(runsc);
  const { warm, unprepared } = await interleaved(fixture, id, checkpoints);
  const { pauses, resumes } = warm;
  const gvisor = checkpoints.against();
  const migration = ratio(pauses, "QEMU's migrate to a file + fsync", migrated);
  const least = await repeat(rounds, () => leastOf(service));
  const floor = ratio(pauses, `dd of ${idleMib} MiB conv=fsync + the end of a QEMU`, least);
  report.note("pauseIdle", pauses, { migrate: migration, gvisor, floor });
  report.note("pauseUnprepared", unprepared.pauses, {});
  report.note("resumeUnprepared", unprepared.resumes, {});
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

/** A checkpoint of an idle gVisor container after each pause. Not every platform of runsc supports it. */
class Checkpoints {
  readonly #runsc: Runsc | string;
  readonly #pauses: number[][] = [];
  readonly #saved: number[][] = [];
  #why: string | undefined;

  constructor(runsc: Runsc | string) {
    this.#runsc = runsc;
    if (typeof runsc === "string") this.#why = runsc;
  }

  /** Does nothing after a failure. */
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
    return pairedRatio(this.#pauses, `${this.#runsc.name} checkpoint + fsync`, this.#saved);
  }
}

interface Cycles {
  pauses: number[];
  resumes: number[];
}

/** Milliseconds of each pause, and of each resume to the result of a command. */
async function cycles(service: Service, id: string, count: number): Promise<Cycles> {
  const taken: Cycles = { pauses: [], resumes: [] };
  for (let each = 0; each < count; each++) {
    taken.pauses.push(await pauseTime(service, id));
    taken.resumes.push(await resumeTime(service, id));
  }
  return taken;
}

/**
 * Cycles of capsule `id` on the server with nothing prepared, interleaved with those of a capsule that is resumed in a warm
 * process.
 */
async function interleaved(
  fixture: Fixture,
  id: string,
  checkpoints: Checkpoints,
): Promise<{ warm: Cycles; unprepared: Cycles }> {
  const warmService = await fixture.warmService();
  const other = await warmService.createRunning();
  await cycles(warmService, other, 2);
  const warm: Cycles = { pauses: [], resumes: [] };
  const unprepared: Cycles = { pauses: [], resumes: [] };
  for (let each = 0; each < fixture.rounds(40, 100); each++) {
    await delay(idleMs);
    const pauseMs = await pauseTime(warmService, other);
    warm.pauses.push(pauseMs);
    await checkpoints.takeAfter(pauseMs);
    await warmService.requireWarmProcesses();
    warm.resumes.push(await resumeTime(warmService, other));
    await warmService.requireWarmProcesses(); // its replacement must not take time from the other
    const { pauses, resumes } = await cycles(fixture.service, id, 1);
    unprepared.pauses.push(...pauses);
    unprepared.resumes.push(...resumes);
  }
  await warmService.destroy(other);
  return { warm, unprepared };
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

/** Bytes that each pause leaves on disk beyond the data pages and the growth of the disk layer. */
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

/** Saves a running VM of the default shape by QEMU's migration to a file, with fsync. */
async function migrate(fixture: Fixture): Promise<number> {
  return withBootedVm(fixture, async (folder) => {
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

/** The unavoidable parts of a pause: the same number of bytes synced to disk, and the end of a QEMU. */
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
