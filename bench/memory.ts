/** The cost of an idle capsule: the proportional set size (PSS) of its VM, and its processor time. */
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { readVm } from "../src/host/disk/capsule-folder.ts";
import type { Fixture } from "./fixture.ts";
import { pssMib, ranSinceMs, threadsRanMs } from "./process-costs.ts";
import type { Service } from "./service.ts";
import { summarize } from "./statistics.ts";
import { withTemplate } from "./templates.ts";

const capsules = 10;
/** Idle time before and during the measurement of processor time. */
const idleMs = { before: 6_000, during: 4_000 };

export async function memory(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const warmService = await fixture.warmService();
  const unprepared = await costs(service, async () => {});
  const warm = await costs(warmService, () => warmService.requireWarmProcesses());
  const value = (samples: number[]) => ({ value: summarize(samples).p50 });
  report.note("idleMemory", unprepared.mib, { most: value(unprepared.mib) });
  report.note("idleMemoryWarmProcess", warm.mib, { most: value(warm.mib) });
  report.note("idleProcessor", unprepared.msEachSecond, { most: value(unprepared.msEachSecond) });
}

/** Costs of ten capsules of one template after a command each. `ready` is awaited before each create. */
async function costs(service: Service, ready: () => Promise<void>): Promise<{ mib: number[]; msEachSecond: number[] }> {
  const found = { mib: [] as number[], msEachSecond: [] as number[] };
  await withTemplate(service, async () => {
    const template = { template: "bench" };
    for (let each = 0; each < 2; each++) await service.timeToInteractive(template);
    const ids: string[] = [];
    for (let each = 0; each < capsules; each++) {
      await ready();
      const id = await service.createRunning(template);
      await service.exec(id, "/bin/true");
      ids.push(id);
    }
    const pids = await Promise.all(ids.map((id) => vmOf(service, id)));
    found.mib = pids.map(pssMib);
    await delay(idleMs.before);
    const before = pids.map(threadsRanMs);
    const beganMs = performance.now();
    await delay(idleMs.during);
    const seconds = (performance.now() - beganMs) / 1_000;
    found.msEachSecond = pids.map((pid, at) => ranSinceMs(pid, before[at]!) / seconds);
    for (const id of ids) await service.destroy(id);
  });
  return found;
}

async function vmOf(service: Service, id: string): Promise<number> {
  const vm = await readVm(join(service.dataDir, "capsules", id));
  if (vm?.process == null) throw new Error(`capsule ${id} has no VM`);
  return vm.process.pid;
}
