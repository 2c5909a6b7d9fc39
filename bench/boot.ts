/** Cold boot (kernel to agent) and what a client sees instead: create to running, from the frozen base. */
import { coldBoot } from "./cold-boot.ts";
import { ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import { timed } from "./statistics.ts";

const rounds = 5;

export async function boot(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const cold: number[] = [];
  const created: number[] = [];
  for (let round = 0; round < rounds; round++) {
    cold.push(await coldBoot(rig));
    let id = "";
    created.push(await timed(async () => (id = await service.createRunning())));
    await service.destroy(id);
  }
  report.note("coldBoot", cold, {});
  report.note("createToRunning", created, { boot: ratio(created, "cold boot", cold) });
}
