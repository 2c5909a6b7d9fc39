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
import { readDiff } from "../src/vmm/diff-format.ts";
import { Qmp } from "../src/vmm/qmp.ts";
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { type Summary, summarize, timed } from "./statistics.ts";

const run = promisify(execFile);
const rounds = 10;
const migrations = 3;
const dirtyMib = 50;
const writes = 50;
const memoryBytes = 512 << 20;
const slackBytes = 256 * 1024;

const holdMemory = `import os, time; held = os.urandom(${dirtyMib} << 20); print("held", flush=True); time.sleep(1e6)`;

export async function freeze(rig: Rig): Promise<Figure[]> {
  const migrated = summarize(await repeat(migrations, () => migrate(rig)));
  const booted = summarize(await repeat(migrations, () => rig.coldBoot()));
  const id = await rig.createRunning();
  await rig.exec(id, "/bin/true");
  const idle = await cycles(rig, id, rounds);
  const written = await overhead(rig, id);
  await rig.exec(
    id,
    "bash",
    "-c",
    `setsid python3 -c '${holdMemory}' > /tmp/held & until grep -q held /tmp/held; do sleep 0.1; done`,
  );
  const dirty = await cycles(rig, id, rounds);
  const dd = summarize(await repeat(rounds, () => writeByDd(rig)));
  await rig.destroy(id);
  return [
    {
      name: "pause, idle, durable",
      unit: "ms",
      measured: idle.pauses,
      comparedWith: { name: "QEMU's migrate to a file + fsync", measured: migrated },
      target: { said: "≤ 1/10 of the migrate", value: idle.pauses.p50 / migrated.p50, most: 1 / 10 },
    },
    {
      name: `pause, ${dirtyMib} MiB dirty, durable`,
      unit: "ms",
      measured: dirty.pauses,
      comparedWith: { name: `dd of ${dirtyMib} MiB conv=fsync`, measured: dd },
      target: { said: "ms above 3 × dd ≤ 60", value: Math.max(0, dirty.pauses.p50 - 3 * dd.p50), most: 60 },
    },
    {
      name: "resume to running, idle",
      unit: "ms",
      measured: idle.resumes,
      comparedWith: { name: "cold boot", measured: booted },
      target: { said: "≤ 1/10 of a cold boot", value: idle.resumes.p50 / booted.p50, most: 1 / 10 },
    },
    {
      name: `a pause's writes beyond dirty pages, ${writes} pauses`,
      unit: "bytes",
      measured: written,
      target: { said: "most bytes ≤ 262144", value: written.p99, most: slackBytes },
    },
  ];
}

async function cycles(rig: Rig, id: string, count: number): Promise<{ pauses: Summary; resumes: Summary }> {
  const pauses: number[] = [];
  const resumes: number[] = [];
  for (let each = 0; each < count; each++) {
    pauses.push(await timed(() => rig.ask("POST", `/v1/capsules/${id}/pause`)));
    resumes.push(await timed(() => rig.ask("POST", `/v1/capsules/${id}/resume`)));
  }
  return { pauses: summarize(pauses), resumes: summarize(resumes) };
}

/** What each pause leaves on disk beyond the pages that hold data and the disk layer's growth. */
async function overhead(rig: Rig, id: string): Promise<Summary> {
  const folder = join(rig.dataDir, "capsules", id);
  const samples: number[] = [];
  for (let each = 0; each < writes; each++) {
    await rig.ask("POST", `/v1/capsules/${id}/pause`);
    const sizes = ["manifest.json", "state", "memory.diff"].map(
      (name) => statSync(join(folder, "checkpoint", name)).size,
    );
    const total = sizes.reduce((sum, size) => sum + size, 0);
    await using diff = await open(join(folder, "checkpoint/memory.diff"));
    samples.push(total - (await readDiff(diff, memoryBytes)).dataPages * 4_096);
    await rig.ask("POST", `/v1/capsules/${id}/resume`);
  }
  return summarize(samples);
}

/** Freezes a running VM of the default shape by QEMU's own migration to a file, until the bytes are on disk. */
async function migrate(rig: Rig): Promise<number> {
  return rig.withBootedVm(async (folder) => {
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

async function writeByDd(rig: Rig): Promise<number> {
  const file = join(rig.dataDir, "dd");
  try {
    return await timed(() => run("dd", ["if=/dev/zero", `of=${file}`, "bs=1M", `count=${dirtyMib}`, "conv=fsync"]));
  } finally {
    await rm(file, { force: true });
  }
}

async function repeat(count: number, measure: () => Promise<number>): Promise<number[]> {
  const samples: number[] = [];
  for (let each = 0; each < count; each++) samples.push(await measure());
  return samples;
}
