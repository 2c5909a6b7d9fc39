/** A command over HTTP, against the same program spawned in the guest, through a relay, and in gVisor. */
import { commandsAtPort } from "./agent-port.ts";
import { CommandTurns } from "./command-turns.ts";
import type { Fixture } from "./fixture.ts";
import { withRelay } from "./relay.ts";
import { type Finding, pairedDifference, pairedRatio } from "./report.ts";
import type { Runsc } from "./runsc.ts";
import type { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const turns = 100;
const execsInGvisor = 3;
const relayName = "a Fastify that only relays";

export async function exec(fixture: Fixture): Promise<void> {
  const runsc = await fixture.runsc();
  if (typeof runsc === "string") await compare(fixture, runsc);
  else await runsc.withIdle((container) => compare(fixture, new InGvisor(runsc, container)));
  const atPort = await commandsAtPort(fixture);
  fixture.report.note("execAtPort", atPort.outside.flat(), {});
  fixture.report.note("aboveAtPort", atPort.above(), {});
}

/** `gvisor` is a sentence where it cannot run here. */
async function compare(fixture: Fixture, gvisor: InGvisor | string): Promise<void> {
  const { service } = fixture;
  const id = await service.createRunning();
  try {
    await compareWith(fixture, id, gvisor);
  } finally {
    await service.destroy(id);
  }
}

async function compareWith(fixture: Fixture, id: string, gvisor: InGvisor | string): Promise<void> {
  const { service, report } = fixture;
  const served = await CommandTurns.start(async (cmd, ...args) => (await service.exec(id, cmd, ...args)).stdout);
  const gets: number[] = [];
  const relayed = await withRelay(fixture, async (run) => {
    const taken = await CommandTurns.start(run);
    for (let turn = 0; turn < fixture.rounds(turns, 3 * turns); turn++) {
      // The order changes so that each side follows gVisor in a quarter of the turns.
      for (const way of turn % 4 < 2 ? [served, taken] : [taken, served]) await way.take(turn % 2 === 0);
      gets.push(await getAfterExec(service, id));
      if (typeof gvisor !== "string") await gvisor.take();
    }
    return taken;
  });
  report.note("exec", served.outside.flat(), {
    inside: pairedDifference(served.outside, "posix_spawn inside the guest", served.inside),
    gvisor: typeof gvisor === "string" ? { absent: gvisor } : gvisor.finding(served.outside, relayed.outside),
    relay: pairedRatio(served.outside, relayName, relayed.outside),
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

  /** `limit`: the turns of the relay, which no service on the same Fastify can beat. */
  finding(turns: readonly number[][], limit: readonly number[][]): Finding {
    const finding = pairedRatio(turns, this.name, this.taken);
    const value = summarize(this.percentages(limit)).p50 / 100;
    return { ...finding, limit: { name: relayName, value } };
  }

  /** Each turn's p50 in percent of gVisor's in the same turn. */
  percentages(turns: readonly number[][]): number[] {
    return turns.map((turn, index) => (100 * summarize(turn).p50) / summarize(this.taken[index]!).p50);
  }
}

/** HTTP alone, measured right after a command, while the guest may still be busy. */
async function getAfterExec(service: Service, id: string): Promise<number> {
  await service.exec(id, "/bin/true");
  return timed(() => service.ask("GET", `/v1/capsules/${id}`));
}
