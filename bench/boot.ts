/** Cold boot (kernel to agent) and what a client sees instead: create to running, from the frozen base. */
import { coldBoots } from "./cold-boot.ts";
import { ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import { repeat, timed } from "./statistics.ts";

const rounds = 5;

export async function boot(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const { toAgent } = await coldBoots(rig);
  const created = await repeat(rounds, async () => {
    let id = "";
    const ms = await timed(async () => (id = await service.createRunning()));
    await service.destroy(id);
    return ms;
  });
  report.note("coldBoot", toAgent, {});
  report.note("createToRunning", created, { boot: ratio(created, "cold boot", toAgent) });
}
