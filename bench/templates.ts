/** From a snapshot template to the first command's result, against the same from a cold boot. */
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { summarize, timed } from "./statistics.ts";

const rounds = 10;
const boots = 3;

export async function templates(rig: Rig): Promise<Figure[]> {
  const source = await rig.createRunning();
  await rig.exec(source, "bash", "-c", "echo tools > /root/tools; sync");
  const capture = await timed(() => rig.ask("POST", "/v1/snapshots", { sandbox_id: source, name: "bench" }));
  const warm: number[] = [];
  for (let round = 0; round < rounds; round++) {
    let id = "";
    warm.push(
      await timed(async () => {
        id = await rig.createRunning({ template: "bench" });
        await rig.exec(id, "/bin/true");
      }),
    );
    await rig.destroy(id);
  }
  const cold: number[] = [];
  for (let round = 0; round < boots; round++) cold.push(await rig.coldBootToExec());
  await rig.ask("DELETE", "/v1/snapshots/bench");
  const measured = summarize(warm);
  const yardstick = summarize(cold);
  return [
    { name: "capture into a template", unit: "ms", measured: summarize([capture]) },
    {
      name: "create from a template to first exec, no pool",
      unit: "ms",
      measured,
      comparedWith: { name: "cold boot to first exec", measured: yardstick },
      target: { said: "≤ 1/8 of the cold one", value: measured.p50 / yardstick.p50, most: 1 / 8 },
    },
  ];
}
