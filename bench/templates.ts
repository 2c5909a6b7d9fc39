/** From a snapshot template to the first command's result, against the same from a cold boot. */
import { coldBoots } from "./cold-boot.ts";
import { ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { repeat, timed } from "./statistics.ts";

const rounds = 10;
const name = "bench";

export async function templates(rig: Rig): Promise<void> {
  const { report } = rig;
  const booted = (await coldBoots(rig)).toExec;
  const create = (service: Service) => service.timeToInteractive({ template: name });
  const captureMs = await withTemplate(rig.service, async () => {
    report.note("fromTemplateAnew", await repeat(rounds, () => create(rig.service)), {});
  });
  report.note("capture", [captureMs], {});
  const expectant = await rig.expectant();
  await withTemplate(expectant, async () => {
    for (let each = 0; each < 2; each++) await create(expectant);
    const created: number[] = [];
    for (let each = 0; each < rounds; each++) {
      await expectant.requireBlanks();
      created.push(await create(expectant));
    }
    report.note("fromTemplate", created, { boot: ratio(created, "cold boot to exec", booted) });
  });
}

/** A snapshot template called "bench" while `work` goes on; resolves with the milliseconds of its capture. */
export async function withTemplate(service: Service, work: () => Promise<void>): Promise<number> {
  const source = await service.createRunning();
  await service.exec(source, "bash", "-c", "echo tools > /root/tools; sync");
  const captureMs = await timed(() => service.ask("POST", "/v1/snapshots", { sandbox_id: source, name }));
  try {
    await work();
  } finally {
    await service.ask("DELETE", `/v1/snapshots/${name}`);
  }
  return captureMs;
}
