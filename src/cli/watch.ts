/** `capsule ls --watch`: the listing, kept true by the service's events. On a terminal it is drawn anew; else line by line. */
import type { CapsuleInfo, Client } from "../sdk/sdk.ts";
import { capsuleTable } from "./capsule-table.ts";
import type { Call } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { note, painted, print, printJson, printLine } from "./screen.ts";

const clear = "\x1b[H\x1b[2J\x1b[3J";
/** Ages move on a screen where nothing else does. */
const redrawMs = 10_000;

export async function watch(client: Client, call: Call): Promise<number> {
  const stop = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop.abort());
  const view = call.isJson || !process.stdout.isTTY ? new Lines(call.isJson) : new Screen();
  const known = new Map<string, CapsuleInfo>();
  const redraw = setInterval(() => view.draw(known), redrawMs);
  try {
    const events = client.events({ signal: stop.signal, onState: (state) => view.become(state, known) });
    for await (const event of events) {
      if (event.type === "reset") {
        const listed = (await client.list({ signal: stop.signal })).reverse();
        for (const id of known.keys()) if (!listed.some((capsule) => capsule.id === id)) await view.gone(id, known);
        for (const { id, info } of listed) {
          known.set(id, info);
          await view.changed(info, known);
        }
        if (listed.length === 0) view.draw(known);
      } else if (event.type === "capsule") {
        known.set(event.capsule.id, event.capsule);
        await view.changed(event.capsule, known);
      } else if (event.type === "capsule-removed" && known.has(event.id)) await view.gone(event.id, known);
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  } finally {
    clearInterval(redraw);
  }
  return exitCodes.done;
}

type Known = Map<string, CapsuleInfo>;

/** For pipes: one line for each change. */
class Lines {
  readonly #isJson: boolean;

  constructor(isJson: boolean) {
    this.#isJson = isJson;
  }

  changed(info: CapsuleInfo): Promise<void> {
    return this.#isJson
      ? printJson({ type: "capsule", capsule: info })
      : printLine([info.lastUpdated, info.id, info.status].join("\t"));
  }

  gone(id: string, known: Known): Promise<void> {
    known.delete(id);
    return this.#isJson
      ? printJson({ type: "capsule-removed", id })
      : printLine([new Date().toISOString(), id, "removed"].join("\t"));
  }

  become(state: "live" | "reconnecting"): void {
    if (state === "reconnecting") note("capsule ls: the connection was lost; trying again");
  }

  draw(): void {}
}

class Screen {
  #state = "";

  async changed(_info: CapsuleInfo, known: Known): Promise<void> {
    this.draw(known);
  }

  async gone(id: string, known: Known): Promise<void> {
    known.delete(id);
    this.draw(known);
  }

  become(state: "live" | "reconnecting", known: Known): void {
    this.#state = state === "live" ? "" : "  the connection was lost; trying again …";
    this.draw(known);
  }

  draw(known: Known): void {
    const newestFirst = [...known.values()].sort((a, b) => b.createdAt.localeCompare(a.createdAt));
    const body = newestFirst.length === 0 ? "There are no capsules." : capsuleTable(newestFirst);
    const foot = painted(`Ctrl-C ends this.${this.#state}`, "dim");
    void print(`${clear}${body}\n\n${foot}\n`);
  }
}
