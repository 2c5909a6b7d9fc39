/** From a snapshot template to the first command's result, against the same from a cold boot. */
import { coldBoots } from "./cold-boot.ts";
import { ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { timed } from "./statistics.ts";

const rounds = 10;
const name = "bench";

export async function templates(rig: Rig): Promise<void> {
  const { report } = rig;
  const booted = (await coldBoots(rig)).toExec;
  const create = (service: Service) => service.timeToInteractive({ template: name });
  const expectant = await rig.expectant();
  const [anew, expected]: [number[], number[]] = [[], []];
  const inTurns = async () => {
    for (let each = 0; each < 2; each++) await create(expectant);
    for (let each = 0; each < rounds; each++) {
      await expectant.requireBlanks();
      expected.push(await create(expectant));
      await expectant.requireBlanks(); // what replaces it must not take time from the other
      anew.push(await create(rig.service));
    }
  };
  const captureMs = await withTemplate(rig.service, async () => void (await withTemplate(expectant, inTurns)));
  report.note("capture", [captureMs], {});
  report.note("fromTemplateAnew", anew, {});
  report.note("fromTemplate", expected, { boot: ratio(expected, "cold boot to exec", booted) });
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
