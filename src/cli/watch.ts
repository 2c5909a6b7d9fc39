/** `capsule ls --watch`: the list, updated by the service's events; redrawn on a terminal, else one line per change. */
import type { CapsuleInfo, Client } from "../sdk/sdk.ts";
import type { Call } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { capsuleTable, note, painted, print, printJson, printLine } from "./screen.ts";

/** To the alternate screen, without a cursor, lines cut off at its edge; and back. */
const enter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const leave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const home = "\x1b[H";
const clearToRight = "\x1b[K";
const clearBelow = "\x1b[J";
/** The table's head, the count of rows left out, an empty line, the foot. */
const rowsAround = 4;
/** Ages change although no event comes. */
const redrawMs = 10_000;

export async function watch(client: Client, call: Call): Promise<number> {
  const stop = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop.abort());
  const known: Known = new Map();
  const isDrawn = !call.isJson && process.stdout.isTTY === true;
  const view = isDrawn ? new Screen(known) : new Lines(known, call.isJson);
  const release = isDrawn ? endByKey(() => stop.abort()) : () => {};
  const redraw = setInterval(() => view.draw(), redrawMs);
  try {
    const events = client.events({ signal: stop.signal, onState: (state) => view.become(state) });
    for await (const event of events) {
      if (event.type === "reset") {
        const listed = (await client.list({ signal: stop.signal })).reverse();
        for (const id of known.keys()) if (!listed.some((capsule) => capsule.id === id)) await view.gone(id);
        for (const { id, info } of listed) {
          known.set(id, info);
          await view.changed(info);
        }
        if (listed.length === 0) view.draw();
      } else if (event.type === "capsule") {
        known.set(event.capsule.id, event.capsule);
        await view.changed(event.capsule);
      } else if (event.type === "capsule-removed" && known.has(event.id)) await view.gone(event.id);
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  } finally {
    clearInterval(redraw);
    release();
    await view.end();
  }
  return exitCodes.done;
}

/** Also Ctrl-C and Ctrl-D, which send no signal from a raw terminal. */
const endKeys = ["q", "Q", "\x03", "\x04"];

/** Takes the terminal's keys without echo, until the returned function is called. */
function endByKey(end: () => void): () => void {
  const { stdin } = process;
  if (!stdin.isTTY) return () => {};
  const heard = (bytes: Buffer) => {
    if (endKeys.some((key) => bytes.includes(key))) end();
  };
  stdin.setRawMode(true);
  stdin.on("data", heard);
  return () => {
    stdin.off("data", heard);
    stdin.setRawMode(false);
    stdin.pause();
  };
}

type Known = Map<string, CapsuleInfo>;

/** For pipes: one line for each change. */
class Lines {
  readonly #known: Known;
  readonly #isJson: boolean;

  constructor(known: Known, isJson: boolean) {
    this.#known = known;
    this.#isJson = isJson;
  }

  changed(info: CapsuleInfo): Promise<void> {
    return this.#isJson
      ? printJson({ type: "capsule", capsule: info })
      : printLine([info.lastUpdated, info.id, info.status].join("\t"));
  }

  gone(id: string): Promise<void> {
    this.#known.delete(id);
    return this.#isJson
      ? printJson({ type: "capsule-removed", id })
      : printLine([new Date().toISOString(), id, "removed"].join("\t"));
  }

  become(state: "live" | "reconnecting"): void {
    if (state === "reconnecting") note("capsule ls: the connection was lost; reconnecting");
  }

  draw(): void {}

  async end(): Promise<void> {}
}

/** On the alternate screen: the terminal's earlier content is restored at the end. */
class Screen {
  readonly #known: Known;
  #state = "";

  constructor(known: Known) {
    this.#known = known;
    process.stdout.write(enter);
    process.stdout.on("resize", () => this.draw());
  }

  async changed(): Promise<void> {
    this.draw();
  }

  async gone(id: string): Promise<void> {
    this.#known.delete(id);
    this.draw();
  }

  become(state: "live" | "reconnecting"): void {
    this.#state = state === "live" ? "" : "  the connection was lost; reconnecting …";
    this.draw();
  }

  draw(): void {
    const newestFirst = [...this.#known.values()].sort((a, b) => b.createdAt.localeCompare(a.createdAt));
    const room = Math.max(1, process.stdout.rows - rowsAround);
    const body =
      newestFirst.length === 0 ? ["There are no capsules."] : capsuleTable(newestFirst.slice(0, room)).split("\n");
    if (newestFirst.length > room) body.push(painted(`… and ${newestFirst.length - room} more`, "dim"));
    const foot = painted(`q ends this.${this.#state}`, "dim");
    void print(home + [...body, "", foot].map((line) => `${line}${clearToRight}`).join("\n") + clearBelow);
  }

  end(): Promise<void> {
    return print(leave);
  }
}
