/** A command over HTTP, against the same program spawned by a program that is already inside, and in gVisor. */
import { above, type Finding, ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { repeat, timed } from "./statistics.ts";

const batches = 5;
const perBatch = 40;
const execsInGvisor = 6;
const getsPerBatch = 10;

const spawnInside = `
import json, os, time
times = []
for _ in range(${perBatch}):
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], os.environ), 0)
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))
`;

export async function exec(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const id = await service.createRunning();
  const inside: number[] = [];
  const outside: number[] = [];
  const inGvisor: number[] = [];
  const gets: number[] = [];
  const batch = async (execInGvisor: () => Promise<void>) => {
    for (let each = 0; each < rig.rounds(batches, 3 * batches); each++) {
      inside.push(...(JSON.parse((await service.exec(id, "python3", "-c", spawnInside)).stdout) as number[]));
      outside.push(...(await repeat(perBatch, () => timed(() => service.exec(id, "/bin/true")))));
      gets.push(...(await repeat(getsPerBatch, () => getAfterExec(service, id))));
      await execInGvisor();
    }
  };
  const runsc = await rig.runsc();
  if (typeof runsc === "string") await batch(async () => {});
  else {
    await runsc.withIdle((container) =>
      batch(async () => void inGvisor.push(...(await repeat(execsInGvisor, () => runsc.exec(container))))),
    );
  }
  await service.destroy(id);
  const gvisor: Finding =
    typeof runsc === "string" ? { absent: runsc } : ratio(outside, `${runsc.name} exec`, inGvisor);
  report.note("exec", outside, { inside: above(outside, "posix_spawn inside the guest", inside), gvisor });
  report.note("getAfterExec", gets, {});
}

/** What HTTP alone costs a client whose server has slept meanwhile, beside a guest that has not. */
async function getAfterExec(service: Service, id: string): Promise<number> {
  await service.exec(id, "/bin/true");
  return timed(() => service.ask("GET", `/v1/capsules/${id}`));
}
