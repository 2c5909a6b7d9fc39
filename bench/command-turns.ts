/** One way to run /bin/true in a VM, against a program that is already inside and spawns it there. */
import { repeat, summarize, timed } from "./statistics.ts";

/** Few of each at a time: the machine is slower in one half of a second than in the next, and a turn has to fit into one. */
const perTurn = 5;
/** They find the caches, and what an emulator has at hand, as what ran before has left them: of each side, in each turn. */
const uncounted = 2;
/** Until what a server does for a command is compiled as it will be. */
const commandsBefore = 400;

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
        json.dump(times, answered)
`;
const start = 'mkfifo /tmp/asked /tmp/answered && { setsid python3 -c "$0" </dev/null >/dev/null 2>&1 & }';
/** Without a spawner nobody would ever open the other ends. */
const ask = ["60", "/bin/sh", "-c", "echo > /tmp/asked; cat /tmp/answered"];

/** Resolves with what it prints. Throws unless it ends well. */
export type Run = (cmd: string, ...args: string[]) => Promise<string>;

/** Milliseconds, turn by turn. */
export class CommandTurns {
  readonly inside: number[][] = [];
  readonly outside: number[][] = [];
  readonly #run: Run;

  /** After as many commands as it takes until they cost what they will. */
  static async start(run: Run): Promise<CommandTurns> {
    await run("/bin/sh", "-c", start, spawner);
    for (let command = 0; command < commandsBefore; command++) await run("/bin/true");
    return new CommandTurns(run);
  }

  private constructor(run: Run) {
    this.#run = run;
  }

  async take(insideFirst: boolean): Promise<void> {
    if (insideFirst) await this.#goInside();
    const outside = await repeat(uncounted + perTurn, () => timed(() => this.#run("/bin/true")));
    this.outside.push(outside.slice(uncounted));
    if (!insideFirst) await this.#goInside();
  }

  async #goInside(): Promise<void> {
    const inside = JSON.parse(await this.#run("timeout", ...ask)) as number[];
    this.inside.push(inside.slice(uncounted));
  }

  /** By how much each turn's p50 lies above that of the spawns inside. */
  above(): number[] {
    return this.outside.map((turn, index) => summarize(turn).p50 - summarize(this.inside[index]!).p50);
  }
}
