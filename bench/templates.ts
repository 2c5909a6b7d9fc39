/** From a snapshot template to the result of a first command, against a cold boot. */
import { coldBoots } from "./cold-boot.ts";
import type { Fixture } from "./fixture.ts";
import { ratio } from "./report.ts";
import type { Service } from "./service.ts";
import { timed } from "./statistics.ts";

const rounds = 10;
const name = "bench";

export async function templates(fixture: Fixture): Promise<void> {
  const { report } = fixture;
  const booted = (await coldBoots(fixture)).toExec;
  const create = (service: Service) => service.timeToInteractive({ template: name });
  const warmService = await fixture.warmService();
  const [unprepared, warm]: [number[], number[]] = [[], []];
  const interleaved = async () => {
    for (let each = 0; each < 2; each++) await create(warmService);
    for (let each = 0; each < rounds; each++) {
      await warmService.requireWarmProcesses();
      warm.push(await create(warmService));
      await warmService.requireWarmProcesses(); // its replacement must not take time from the other
      unprepared.push(await create(fixture.service));
    }
  };
  const captureMs = await withTemplate(
    fixture.service,
    async () => void (await withTemplate(warmService, interleaved)),
  );
  report.note("capture", [captureMs], {});
  report.note("fromTemplateUnprepared", unprepared, {});
  report.note("fromTemplate", warm, { boot: ratio(warm, "cold boot to exec", booted) });
}

/** Captures the template "bench", runs `work`, deletes it. Resolves with the milliseconds of the capture. */
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
