/** A command over HTTP, against the same program spawned by a program that is already inside, and in gVisor. */
import { commandsAtPort } from "./agent-port.ts";
import { readAnywhere } from "./caches.ts";
import { aboveOfTurns, type Finding, ratioOfTurns } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Service } from "./service.ts";
import { repeat, timed } from "./statistics.ts";

/** Few of each at a time: the machine is slower in one second than in the next, and each turn lies within one. */
const turns = 40;
const perTurn = 7;
const execsInGvisor = 3;
const getsPerTurn = 2;

/** Here as everywhere the first is not counted: it finds the caches as what ran before has left them. */
const spawnInside = `
import json, os, time
times = []
for _ in range(${1 + perTurn}):
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], os.environ), 0)
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times[1:]))
`;

export async function exec(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const id = await service.createRunning();
  const inside: number[][] = [];
  const outside: number[][] = [];
  const inGvisor: number[][] = [];
  const gets: number[] = [];
  const reads: number[] = [];
  const goInside = async () =>
    void inside.push(JSON.parse((await service.exec(id, "python3", "-c", spawnInside)).stdout) as number[]);
  const stayOutside = async () => {
    await service.exec(id, "/bin/true");
    outside.push(await repeat(perTurn, () => timed(() => service.exec(id, "/bin/true"))));
    gets.push(...(await repeat(getsPerTurn, () => getAfterExec(service, id))));
  };
  const takeTurns = async (execInGvisor: () => Promise<unknown>) => {
    for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) {
      if (turn % 2 === 0) await goInside();
      await stayOutside();
      if (turn % 2 === 1) await goInside();
      await execInGvisor();
      reads.push(readAnywhere());
    }
  };
  const runsc = await rig.runsc();
  if (typeof runsc === "string") await takeTurns(async () => {});
  else {
    await runsc.withIdle((container) =>
      takeTurns(async () => {
        await runsc.exec(container);
        inGvisor.push(await repeat(execsInGvisor, () => runsc.exec(container)));
      }),
    );
  }
  await service.destroy(id);
  const gvisor: Finding =
    typeof runsc === "string" ? { absent: runsc } : ratioOfTurns(outside, `${runsc.name} exec`, inGvisor);
  const above = aboveOfTurns(outside, "posix_spawn inside the guest", inside);
  report.note("exec", outside.flat(), { inside: above, gvisor });
  const atPort = await commandsAtPort(rig, perTurn, spawnInside);
  report.note("execAtPort", atPort.commands, {});
  report.note("aboveAtPort", atPort.above, {});
  report.note("getAfterExec", gets, {});
  report.note("readAnywhere", reads, {});
}

/** What HTTP alone costs a client whose server has slept meanwhile, beside a guest that has not. */
async function getAfterExec(service: Service, id: string): Promise<number> {
  await service.exec(id, "/bin/true");
  return timed(() => service.ask("GET", `/v1/capsules/${id}`));
}
