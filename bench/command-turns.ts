/** One way to run /bin/true in a VM, interleaved with a program in the guest that spawns it there. */
import { repeat, summarize, timed } from "./statistics.ts";

/** Few per turn: the machine changes its speed every half second, and both sides of a turn have to see the same. */
const perTurn = 5;
/** Dropped from each side of each turn, because they run with the caches of the other side. */
const uncounted = 2;
/** Warm-up until V8 has compiled the server's code for a command. */
const commandsBefore = 400;

/** Waits in the guest for each request, because starting Python takes a quarter of a second. */
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
/** `timeout`, because without the spawner opening the FIFOs would block for ever. */
const ask = ["60", "/bin/sh", "-c", "echo > /tmp/asked; cat /tmp/answered"];

/** Resolves with the output. Rejects unless the command exits with 0. */
export type Run = (cmd: string, ...args: string[]) => Promise<string>;

/** Milliseconds, turn by turn. */
export class CommandTurns {
  readonly inside: number[][] = [];
  readonly outside: number[][] = [];
  readonly #run: Run;

  /** Starts the spawner and runs the warm-up commands. */
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

  /** Each turn's p50 minus that of the spawns in the guest. */
  above(): number[] {
    return this.outside.map((turn, index) => summarize(turn).p50 - summarize(this.inside[index]!).p50);
  }
}
