/** Cold boot (kernel to agent) and what a client sees instead: create to running, from the frozen base. */
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { summarize, timed } from "./statistics.ts";

const rounds = 5;

export async function boot(rig: Rig): Promise<Figure[]> {
  const cold: number[] = [];
  const warm: number[] = [];
  for (let round = 0; round < rounds; round++) {
    cold.push(await rig.coldBoot());
    let id = "";
    warm.push(await timed(async () => (id = await rig.createRunning())));
    await rig.destroy(id);
  }
  const coldSummary = summarize(cold);
  const warmSummary = summarize(warm);
  return [
    { name: "cold boot, kernel to agent", unit: "ms", measured: coldSummary },
    {
      name: "create to running",
      unit: "ms",
      measured: warmSummary,
      comparedWith: { name: "cold boot", measured: coldSummary },
      target: { said: "≤ 1/8 of a cold boot", value: warmSummary.p50 / coldSummary.p50, most: 1 / 8 },
    },
  ];
}
