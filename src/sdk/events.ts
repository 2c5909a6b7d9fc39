/** The service's live events, as server-sent events. A broken stream continues after its last event. */
import { ConnectionError, ServiceError } from "./errors.ts";
import { camelKeys } from "./key-case.ts";
import { refuseUnknown } from "./options.ts";
import type { ServiceEvent } from "./resources.ts";
import { retryDelayMs, sleep } from "./retry.ts";
import type { Transport } from "./transport.ts";

export interface EventOptions {
  /** Ends the iteration, without an error. */
  signal?: AbortSignal | undefined;
  /** Called when the stream is open, and when it is lost and being opened again. */
  onState?: (state: "live" | "reconnecting") => void;
}

/** The service sends heartbeats more often than this. */
const silenceMs = 45_000;
const lineMaxChars = 4 * 1024 * 1024;
const mostAttempts = 20;
const lost = new ConnectionError("unreachable", "");

export async function* follow(
  transport: Transport,
  options: EventOptions,
): AsyncGenerator<ServiceEvent, void, undefined> {
  const { signal, onState, ...unknown } = options;
  refuseUnknown("events", unknown);
  let lastId: string | undefined;
  for (let attempt = 0; ; ) {
    try {
      for await (const { id, event } of stream(transport, lastId, signal)) {
        attempt = 0;
        if (event === undefined) onState?.("live");
        else yield event;
        lastId = id ?? lastId;
      }
    } catch (error) {
      if (signal?.aborted) return;
      const mayPass = error instanceof ConnectionError || (error instanceof ServiceError && error.status >= 429);
      if (!mayPass || ++attempt > mostAttempts) throw error;
    }
    onState?.("reconnecting");
    await sleep(retryDelayMs(lost, attempt, "always") ?? 0, signal).catch(() => {});
    if (signal?.aborted) return;
  }
}

interface Told {
  id: string | undefined;
  /** Undefined: the first bytes of the stream arrived. */
  event: ServiceEvent | undefined;
}

async function* stream(
  transport: Transport,
  lastId: string | undefined,
  signal: AbortSignal | undefined,
): AsyncGenerator<Told> {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), silenceMs);
  const response = await transport.response({
    method: "GET",
    path: "/v1/events",
    repeat: "unsent",
    headers: { accept: "text/event-stream", ...(lastId === undefined ? {} : { "last-event-id": lastId }) },
    signal: signal === undefined ? silence.signal : AbortSignal.any([signal, silence.signal]),
  });
  const reader = response.body!.getReader();
  try {
    const parser = new EventParser();
    const decoder = new TextDecoder();
    let isLive = false;
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      if (!isLive) yield { id: undefined, event: undefined };
      isLive = true;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), silenceMs);
      yield* parser.feed(decoder.decode(next.value, { stream: true }));
    }
    if (!isLive) throw new Error("it ended before its first byte"); // the service sends some at once
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ConnectionError("cut_off", "the stream of events broke", { cause: error });
  } finally {
    clearTimeout(timer);
    await reader.cancel().catch(() => {});
  }
}

/** Parses text into events. Unknown event names are skipped: a newer service may send more kinds. */
export class EventParser {
  #rest = "";
  #name = "";
  #data: string[] = [];
  #id: string | undefined;

  *feed(text: string): Generator<{ id: string | undefined; event: ServiceEvent }> {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop()!;
    if (this.#rest.length > lineMaxChars) throw new ConnectionError("cut_off", "an event is too long");
    for (const line of lines) {
      const event = this.#take(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event !== undefined) yield { id: this.#id, event };
    }
  }

  #take(line: string): ServiceEvent | undefined {
    if (line !== "") {
      const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line)!;
      if (field === "event") this.#name = value!;
      else if (field === "data") this.#data.push(value!);
      else if (field === "id") this.#id = value;
      return undefined;
    }
    const [name, data] = [this.#name, this.#data.join("\n")];
    this.#name = "";
    this.#data = [];
    return data === "" ? undefined : eventOf(name, camelKeys(JSON.parse(data)));
  }
}

function eventOf(type: string, data: never): ServiceEvent | undefined {
  switch (type) {
    case "capsule":
      return { type, capsule: data };
    case "template":
      return { type, template: data };
    case "reset":
    case "capsule-removed":
    case "template-removed":
      return { type, ...(data as object) } as ServiceEvent;
    default:
      return undefined;
  }
}
