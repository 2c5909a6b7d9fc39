/** A client of GET /v1/events that parses the stream as the HTML standard says. */
import assert from "node:assert/strict";

export interface ServerEvent {
  id: string;
  name: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  data: any;
}

export class EventStream implements AsyncDisposable {
  readonly #chunks: AsyncIterator<string>;
  readonly #abort: AbortController;
  #text = "";
  lastId: string | undefined;

  /** Throws for another status than 200. */
  static async open(url: string, key: string, lastId?: string): Promise<EventStream> {
    const abort = new AbortController();
    const response = await fetch(new URL("/v1/events", url), {
      headers: { "x-api-key": key, ...(lastId === undefined ? {} : { "last-event-id": lastId }) },
      signal: abort.signal,
    });
    assert.equal(response.status, 200);
    assert.equal(response.headers.get("content-type"), "text/event-stream");
    return new EventStream(response.body!.pipeThrough(new TextDecoderStream()), abort);
  }

  constructor(chunks: AsyncIterable<string>, abort = new AbortController()) {
    this.#chunks = chunks[Symbol.asyncIterator]();
    this.#abort = abort;
  }

  /** undefined at the end of the stream. */
  async next(): Promise<ServerEvent | undefined> {
    for (;;) {
      const end = this.#text.indexOf("\n\n");
      if (end === -1) {
        const { value, done } = await this.#chunks.next();
        if (done === true) return undefined;
        this.#text += value;
        continue;
      }
      const fields = fieldsOf(this.#text.slice(0, end));
      this.#text = this.#text.slice(end + 2);
      if (fields.data === undefined) continue;
      this.lastId = fields.id!;
      return { id: fields.id!, name: fields.event!, data: JSON.parse(fields.data) };
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
