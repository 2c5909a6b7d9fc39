/** A client of GET /v1/events that parses the stream as the HTML standard says. */
import assert from "node:assert/strict";
import type { Contract } from "./openapi-contract.ts";
import { within } from "./wait-for.ts";

const deadlineMs = 120_000;

export interface ServerEvent {
  id: string;
  name: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  data: any;
}

export interface EventSource {
  url: string;
  key: string;
  /** Checks what arrives. */
  contract?: Contract;
}

export class EventStream implements AsyncDisposable {
  readonly #chunks: AsyncIterator<string>;
  readonly #abort: AbortController;
  readonly #check: (event: ServerEvent) => void;
  #text = "";
  lastId: string | undefined;

  /** Throws for another status than 200, and for what the OpenAPI document does not describe. */
  static async open({ url, key, contract }: EventSource, lastId?: string): Promise<EventStream> {
    const path = "/v1/events";
    const abort = new AbortController();
    const response = await fetch(new URL(path, url), {
      headers: { "x-api-key": key, ...(lastId === undefined ? {} : { "last-event-id": lastId }) },
      signal: abort.signal,
    });
    assert.equal(response.status, 200);
    const headersOf = Object.fromEntries(response.headers);
    contract?.check({ method: "GET", path, status: 200, headers: headersOf, body: undefined });
    assert.equal(response.headers.get("content-type"), "text/event-stream");
    const check = ({ name, data }: ServerEvent) => contract?.checkEvent(path, name, data);
    return new EventStream(response.body!.pipeThrough(new TextDecoderStream()), abort, check);
  }

  constructor(
    chunks: AsyncIterable<string>,
    abort = new AbortController(),
    check: (event: ServerEvent) => void = () => {},
  ) {
    this.#check = check;
    this.#chunks = chunks[Symbol.asyncIterator]();
    this.#abort = abort;
  }

  /** undefined at the end of the stream. */
  async next(): Promise<ServerEvent | undefined> {
    for (;;) {
      const end = this.#text.indexOf("\n\n");
      if (end === -1) {
        const { value, done } = await within("another event", this.#chunks.next(), { deadlineMs });
        if (done === true) return undefined;
        this.#text += value;
        continue;
      }
      const fields = fieldsOf(this.#text.slice(0, end));
      this.#text = this.#text.slice(end + 2);
      if (fields.data === undefined) continue;
      this.lastId = fields.id!;
      const event: ServerEvent = { id: fields.id!, name: fields.event!, data: JSON.parse(fields.data) };
      this.#check(event);
      return event;
    }
  }

  /** The next event of this name. */
  async nextOf(name: string): Promise<ServerEvent> {
    for (;;) {
      const event = await this.next();
      assert.ok(event, `the stream ended before an event ${name}`);
      if (event.name === name) return event;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#abort.abort();
    await this.#chunks.return?.().catch(() => {});
  }
}

function fieldsOf(block: string): Record<string, string> {
  const lines = block.split("\n").filter((line) => !line.startsWith(":"));
  return Object.fromEntries(lines.map((line) => line.split(/: (.*)/s).slice(0, 2)));
}
