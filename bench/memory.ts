/** What an idle capsule costs in memory: its proportional share (PSS) of everything its VM has mapped. */
import { processesOf } from "../test/server.ts";
import { pssMib } from "./process-memory.ts";
import type { Rig } from "./rig.ts";
import { summarize } from "./statistics.ts";
import { withTemplate } from "./templates.ts";

const capsules = 10;

export async function memory(rig: Rig): Promise<void> {
  const { service, report } = rig;
  await withTemplate(service, async () => {
    const ids: string[] = [];
    for (let each = 0; each < capsules; each++) {
      const id = await service.createRunning({ template: "bench" });
      await service.exec(id, "/bin/true");
      ids.push(id);
    }
    const shares = processesOf(`${service.dataDir}/capsules/`).map(({ pid }) => pssMib(pid));
    for (const id of ids) await service.destroy(id);
    if (shares.length !== capsules) throw new Error(`${shares.length} VMs were found instead of ${capsules}`);
    report.note("idleMemory", shares, { most: { value: summarize(shares).p50 } });
  });
}
