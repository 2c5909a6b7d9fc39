/** Timelines of a create, an exec, a pause and a resume, from events at the server's interfaces (trace-probe.ts). */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Fixture } from "./fixture.ts";
import { Service } from "./service.ts";
import { repeat } from "./statistics.ts";
import { type Mark, nowNs, type Sample, traceOf } from "./trace-stages.ts";

const probe = pathToFileURL(join(import.meta.dirname, "trace-probe.ts")).href;

/** A server configuration, and the state that each sample waits for. */
interface Scene {
  name: string;
  env: Record<string, string>;
  /** Creates the demand that the preparation follows. */
  before(service: Service): Promise<void>;
  ready(service: Service): Promise<unknown>;
  /** Traced besides creates. */
  also: ("resume" | "exec" | "pause")[];
}

const scenes: Scene[] = [
  {
    name: "nothing prepared",
    env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" },
    before: async () => {},
    ready: async () => {},
    also: ["resume"],
  },
  {
    name: "warm process",
    env: { CAPSULE_POOL: "off" },
    before: async (service) => void (await repeat(2, () => service.timeToInteractive())),
    ready: (service) => service.requireWarmProcesses(),
    also: ["resume", "exec", "pause"],
  },
  {
    name: "warm pool",
    env: { CAPSULE_POOL: "auto", CAPSULE_WARM_PROCESSES: "0" },
    before: async (service) => void (await service.timeToInteractive()),
    ready: (service) => service.requirePool(),
    also: [],
  },
];

export async function trace(fixture: Fixture): Promise<void> {
  for (const scene of scenes) {
    const creates: Sample[] = [];
    const also = { exec: [] as Sample[], pause: [] as Sample[], resume: [] as Sample[] };
    const marks = await marksOf(scene, async (service) => {
      for (let round = 0; round < fixture.rounds(20, 100); round++) {
        await scene.ready(service);
        await one(service, creates, also.exec);
      }
      if (scene.also.includes("resume")) await cycles(service, scene, fixture.rounds(20, 100), also.pause, also.resume);
    });
    fixture.report.trace(traceOf(`create → first exec, ${scene.name}`, marks, creates));
    for (const what of scene.also) fixture.report.trace(traceOf(names[what](scene), marks, also[what]));
  }
}

const names = {
  exec: () => "exec /bin/true over HTTP",
  pause: () => "pause, idle, durable",
  resume: ({ name }: Scene) => `resume → first exec, ${name}`,
};

/** A capsule from its create to its first command, and a later command of it. */
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

/** One capsule, paused and resumed repeatedly. */
async function cycles(
  service: Service,
  { ready }: Scene,
  rounds: number,
  pauses: Sample[],
  resumes: Sample[],
): Promise<void> {
  const id = await service.createRunning();
  await service.exec(id, "/bin/true");
  for (let round = 0; round < rounds; round++) {
    const pause = nowNs();
    await service.ask("POST", `/v1/capsules/${id}/pause`);
    const paused = nowNs();
    await ready(service);
    const resume = nowNs();
    await service.ask("POST", `/v1/capsules/${id}/resume`);
    await service.exec(id, "/bin/true");
    pauses.push({ beganNs: pause, endedNs: paused });
    resumes.push({ beganNs: resume, endedNs: nowNs() });
  }
  await service.destroy(id);
}

/** The probe's marks, read when the server has ended. */
async function marksOf({ env, before }: Scene, work: (service: Service) => Promise<void>): Promise<Mark[]> {
  const folder = await mkdtemp(join(tmpdir(), "capsule-trace-"));
  const file = join(folder, "marks.json");
  try {
    {
      const probed = { ...env, NODE_OPTIONS: `--import ${probe}`, CAPSULE_BENCH_TRACE: file };
      await using service = await Service.start(probed);
      await before(service);
      await work(service);
    }
    return JSON.parse(await readFile(file, "utf8")) as Mark[];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
