/** Where each millisecond of a create, an exec, a pause and a resume goes, seen from the server's borders (trace-probe.ts). */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Rig } from "./rig.ts";
import { Service } from "./service.ts";
import { type Mark, nowNs, type Sample, traceOf } from "./trace-stages.ts";

const probe = pathToFileURL(join(import.meta.dirname, "trace-probe.ts")).href;

export async function trace(rig: Rig): Promise<void> {
  for (const pool of ["off", "auto"] as const) {
    const creates: Sample[] = [];
    const execs: Sample[] = [];
    const pauses: Sample[] = [];
    const resumes: Sample[] = [];
    const marks = await marksOf(pool, async (service) => {
      const hasPool = pool === "auto" && (await isWarm(service));
      if (pool === "auto" && !hasPool) return;
      for (let round = 0; round < rig.rounds(20, 100); round++) {
        if (hasPool) await service.poolIsFull();
        await one(service, creates, execs);
      }
      if (!hasPool) await cycles(service, rig.rounds(20, 100), pauses, resumes);
    });
    if (creates.length === 0) continue;
    const name = `create → first exec, pool ${pool === "auto" ? "warm" : "empty"}`;
    rig.report.trace(traceOf(name, marks, creates));
    if (pool === "auto") continue;
    rig.report.trace(traceOf("exec /bin/true over HTTP", marks, execs));
    rig.report.trace(traceOf("pause, idle, durable", marks, pauses));
    rig.report.trace(traceOf("resume → first exec", marks, resumes));
  }
}

/** A capsule from its create to its first command, and then commands as they are when everything is warm. */
async function one(service: Service, creates: Sample[], execs: Sample[]): Promise<void> {
  const create = nowNs();
  const id = await service.createRunning();
  await service.exec(id, "/bin/true");
  creates.push({ beganNs: create, endedNs: nowNs() });
  for (let warm = 0; warm < 5; warm++) await service.exec(id, "/bin/true");
  const exec = nowNs();
  await service.exec(id, "/bin/true");
  execs.push({ beganNs: exec, endedNs: nowNs() });
  await service.destroy(id);
}

/** One capsule, paused and resumed again and again. */
async function cycles(service: Service, rounds: number, pauses: Sample[], resumes: Sample[]): Promise<void> {
  const id = await service.createRunning();
  await service.exec(id, "/bin/true");
  for (let round = 0; round < rounds; round++) {
    const pause = nowNs();
    await service.ask("POST", `/v1/capsules/${id}/pause`);
    const resume = nowNs();
    await service.ask("POST", `/v1/capsules/${id}/resume`);
    await service.exec(id, "/bin/true");
    pauses.push({ beganNs: pause, endedNs: resume });
    resumes.push({ beganNs: resume, endedNs: nowNs() });
  }
  await service.destroy(id);
}

async function isWarm(service: Service): Promise<boolean> {
  await service.timeToInteractive();
  return service.poolIsFull();
}

/** What the probe has seen when the server has ended. */
async function marksOf(pool: string, work: (service: Service) => Promise<void>): Promise<Mark[]> {
  const folder = await mkdtemp(join(tmpdir(), "capsule-trace-"));
  const file = join(folder, "marks.json");
  try {
    {
      const env = {
        CAPSULE_POOL: pool,
        CAPSULE_BLANKS: "0",
        NODE_OPTIONS: `--import ${probe}`,
        CAPSULE_BENCH_TRACE: file,
      };
      await using service = await Service.start(env);
      await work(service);
    }
    return JSON.parse(await readFile(file, "utf8")) as Mark[];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
