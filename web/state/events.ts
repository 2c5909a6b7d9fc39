/**
 * The service's live events, for as long as somebody looks: connects, goes on after the last event heard when the line
 * is cut, and says when it is.
 */
import type { Capsule } from "../../src/wire/capsule.ts";
import type { EventName } from "../../src/wire/event.ts";
import { EventParser, type RawEvent } from "./event-parser.ts";

export type ServiceEvent =
  /** The line stands. */
  | { type: "open" }
  /** The line is cut; it is tried again. */
  | { type: "lost" }
  /** Everything must be listed anew. */
  | { type: "reset" }
  | { type: "capsule"; capsule: Capsule }
  | { type: "capsule-removed"; id: string }
  | { type: "template" | "template-removed" };

const waitsMs = [500, 1_000, 2_000, 5_000, 10_000] as const;

/** `connect` asks for the stream after the event `lastId`; false from it: give up. Ends when the signal aborts. */
export async function* followEvents(
  connect: (lastId: string | undefined, signal: AbortSignal) => Promise<Response | false>,
  signal: AbortSignal,
): AsyncGenerator<ServiceEvent, void, undefined> {
  let lastId: string | undefined;
  for (let failures = 0; !signal.aborted; failures++) {
    try {
      const response = await connect(lastId, signal);
      if (response === false) return;
      failures = 0;
      yield { type: "open" };
      for await (const event of eventsOf(response)) {
        lastId = event.id ?? lastId;
        const known = meaningOf(event);
        if (known !== undefined) yield known;
      }
    } catch {
      // a cut line, which the next round mends
    }
    if (signal.aborted) return;
    yield { type: "lost" };
    await pause(waitsMs[Math.min(failures, waitsMs.length - 1)]!, signal);
  }
}

async function* eventsOf(response: Response): AsyncGenerator<RawEvent, void, undefined> {
  const parser = new EventParser();
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield* parser.push(value);
  }
}

/** Undefined for events of a newer server. */
function meaningOf({ name, data }: RawEvent): ServiceEvent | undefined {
  switch (name as EventName) {
    case "reset":
      return { type: "reset" };
    case "capsule":
      return { type: "capsule", capsule: JSON.parse(data) as Capsule };
    case "capsule-removed":
      return { type: "capsule-removed", id: (JSON.parse(data) as { id: string }).id };
    case "template":
    case "template-removed":
      return { type: name as "template" | "template-removed" };
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
