/** A cold boot (kernel to agent) next to a create from the frozen base. */
import { coldBoots } from "./cold-boot.ts";
import type { Fixture } from "./fixture.ts";
import { ratio } from "./report.ts";
import { repeat, timed } from "./statistics.ts";

const rounds = 5;

export async function boot(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const { toAgent } = await coldBoots(fixture);
  const created = await repeat(rounds, async () => {
    let id = "";
    const ms = await timed(async () => (id = await service.createRunning()));
    await service.destroy(id);
    return ms;
  });
  report.note("coldBoot", toAgent, {});
  report.note("createToRunning", created, { boot: ratio(created, "cold boot", toAgent) });
}
