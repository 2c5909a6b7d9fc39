/** One way to run /bin/true in a VM, against a program that is already inside and spawns it there. */
import { repeat, summarize, timed } from "./statistics.ts";

/** Few of each at a time: the machine is slower in one half of a second than in the next, and a turn has to fit into one. */
const perTurn = 5;
/** They find the caches, and what an emulator has at hand, as what ran before has left them: of each side, in each turn. */
const uncounted = 2;

/** Waits inside until it is asked, since Python takes a quarter of a second to start. */
const spawner = `
import json, os, time
while True:
    with open("/tmp/asked") as asked:
        asked.read()
    times = []
    for _ in range(${uncounted + perTurn}):
        began = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], os.environ), 0)
        times.append((time.perf_counter() - began) * 1000)
    with open("/tmp/answered", "w") as answered:
        json.dump(times[${uncounted}:], answered)
`;
const start = 'mkfifo /tmp/asked /tmp/answered && { setsid python3 -c "$0" </dev/null >/dev/null 2>&1 & }';
const ask = "echo > /tmp/asked; cat /tmp/answered";

/** Resolves with what it prints. Throws unless it ends well. */
export type Run = (cmd: string, ...args: string[]) => Promise<string>;

/** Milliseconds, turn by turn. */
export class CommandTurns {
  readonly inside: number[][] = [];
  readonly outside: number[][] = [];
  readonly #run: Run;

  static async start(run: Run): Promise<CommandTurns> {
    await run("/bin/sh", "-c", start, spawner);
    return new CommandTurns(run);
  }

  private constructor(run: Run) {
    this.#run = run;
  }

  /** The spawns inside come first in every other turn. */
  async take(): Promise<void> {
    const insideFirst = this.outside.length % 2 === 0;
    if (insideFirst) await this.#goInside();
    const outside = await repeat(uncounted + perTurn, () => timed(() => this.#run("/bin/true")));
    this.outside.push(outside.slice(uncounted));
    if (!insideFirst) await this.#goInside();
  }

  async #goInside(): Promise<void> {
    this.inside.push(JSON.parse(await this.#run("/bin/sh", "-c", ask)) as number[]);
  }

  /** By how much each turn's p50 lies above that of the spawns inside. */
  above(): number[] {
    return this.outside.map((turn, index) => summarize(turn).p50 - summarize(this.inside[index]!).p50);
  }
}
