/** What an idle capsule costs in memory: its proportional share (PSS) of everything its VM has mapped. */
import { join } from "node:path";
import { readVm } from "../src/host/journal.ts";
import { pssMib } from "./process-memory.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { summarize } from "./statistics.ts";
import { withTemplate } from "./templates.ts";

const capsules = 10;

export async function memory(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const expectant = await rig.expectant();
  const anew = await shares(service, async () => {});
  const waited = await shares(expectant, () => expectant.requireBlanks());
  report.note("idleMemory", anew, { most: { value: summarize(anew).p50 } });
  report.note("idleMemoryWaited", waited, { most: { value: summarize(waited).p50 } });
}

/** What each of some capsules of one template takes in MiB, when each has run a command; `ready` before each. */
async function shares(service: Service, ready: () => Promise<void>): Promise<number[]> {
  const found: number[] = [];
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
    for (const id of ids) {
      const vm = await readVm(join(service.dataDir, "capsules", id));
      if (vm?.process == null) throw new Error(`capsule ${id} has no VM`);
      found.push(pssMib(vm.process.pid));
    }
    for (const id of ids) await service.destroy(id);
  });
  return found;
}
