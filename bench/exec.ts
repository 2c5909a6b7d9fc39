/** A command over HTTP, against the same program spawned by a program that is already inside, and in gVisor. */
import { commandsAtPort } from "./agent-port.ts";
import { CommandTurns } from "./command-turns.ts";
import { withRelay } from "./relay.ts";
import { aboveOfTurns, type Finding, ratioOfTurns } from "./report.ts";
import type { Rig } from "./rig.ts";
import type { Runsc } from "./runsc.ts";
import type { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const turns = 100;
const execsInGvisor = 3;
const relayName = "a Fastify that only relays";

export async function exec(rig: Rig): Promise<void> {
  const runsc = await rig.runsc();
  if (typeof runsc === "string") await compare(rig, runsc);
  else await runsc.withIdle((container) => compare(rig, new InGvisor(runsc, container)));
  const atPort = await commandsAtPort(rig);
  rig.report.note("execAtPort", atPort.outside.flat(), {});
  rig.report.note("aboveAtPort", atPort.above(), {});
}

/** With what gVisor does, or why that is not known. */
async function compare(rig: Rig, gvisor: InGvisor | string): Promise<void> {
  const { service } = rig;
  const id = await service.createRunning();
  try {
    await compareWith(rig, id, gvisor);
  } finally {
    await service.destroy(id);
  }
}

async function compareWith(rig: Rig, id: string, gvisor: InGvisor | string): Promise<void> {
  const { service, report } = rig;
  const served = await CommandTurns.start(async (cmd, ...args) => (await service.exec(id, cmd, ...args)).stdout);
  const gets: number[] = [];
  const relayed = await withRelay(rig, async (run) => {
    const taken = await CommandTurns.start(run);
    for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) {
      // Each side of each way meets what gVisor has left behind in a quarter of the turns.
      for (const way of turn % 4 < 2 ? [served, taken] : [taken, served]) await way.take(turn % 2 === 0);
      gets.push(await getAfterExec(service, id));
      if (typeof gvisor !== "string") await gvisor.take();
    }
    return taken;
  });
  report.note("exec", served.outside.flat(), {
    inside: aboveOfTurns(served.outside, "posix_spawn inside the guest", served.inside),
    gvisor: typeof gvisor === "string" ? { absent: gvisor } : gvisor.finding(served.outside, relayed.outside),
    relay: ratioOfTurns(served.outside, relayName, relayed.outside),
  });
  report.note("execByRelay", relayed.outside.flat(), {});
  report.note("aboveByRelay", relayed.above(), {});
  if (typeof gvisor === "string") report.miss("relayOfGvisor", gvisor);
  else report.note("relayOfGvisor", gvisor.percentages(relayed.outside), {});
  report.note("getAfterExec", gets, {});
}

class InGvisor {
  readonly name: string;
  readonly taken: number[][] = [];
  readonly #runsc: Runsc;
  readonly #container: string;

  constructor(runsc: Runsc, container: string) {
    this.name = `${runsc.name} exec`;
    this.#runsc = runsc;
    this.#container = container;
  }

  async take(): Promise<void> {
    await this.#runsc.exec(this.#container);
    this.taken.push(await repeat(execsInGvisor, () => this.#runsc.exec(this.#container)));
  }

  /** Of `turns`, which cannot be better than what another server, that does nothing else, takes in the same run. */
  finding(turns: readonly number[][], limit: readonly number[][]): Finding {
    const finding = ratioOfTurns(turns, this.name, this.taken);
    const value = summarize(this.percentages(limit)).p50 / 100;
    return { ...finding, limit: { name: relayName, value } };
  }

  /** What these turns took, each of what this one's took. */
  percentages(turns: readonly number[][]): number[] {
    return turns.map((turn, index) => (100 * summarize(turn).p50) / summarize(this.taken[index]!).p50);
  }
}

/** What HTTP alone costs a client whose server has slept meanwhile, beside a guest that has not. */
async function getAfterExec(service: Service, id: string): Promise<number> {
  await service.exec(id, "/bin/true");
  return timed(() => service.ask("GET", `/v1/capsules/${id}`));
}
