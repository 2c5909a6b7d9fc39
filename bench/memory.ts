/** What an idle capsule costs: its proportional share (PSS) of everything its VM has mapped, and its processor time. */
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { readVm } from "../src/host/disk/capsule-folder.ts";
import { pssMib, ranSinceMs, threadsRanMs } from "./process-costs.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { summarize } from "./statistics.ts";
import { withTemplate } from "./templates.ts";

const capsules = 10;
/** Capsules have nothing to do for so long before their processor time is looked at, and while it is. */
const idleMs = { before: 6_000, during: 4_000 };

export async function memory(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const expectant = await rig.expectant();
  const anew = await costs(service, async () => {});
  const waited = await costs(expectant, () => expectant.requireBlanks());
  const value = (samples: number[]) => ({ value: summarize(samples).p50 });
  report.note("idleMemory", anew.mib, { most: value(anew.mib) });
  report.note("idleMemoryWaited", waited.mib, { most: value(waited.mib) });
  report.note("idleProcessor", anew.msEachSecond, { most: value(anew.msEachSecond) });
}

/** What each of some capsules of one template takes, when each has run a command; `ready` before each. */
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
