/** An OpenTelemetry collector that stores what it receives: OTLP over HTTP, in JSON. */
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { json } from "node:stream/consumers";

export interface SentSpan {
  name: string;
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  status: { code?: number };
  attributes: { key: string; value: { stringValue?: string; intValue?: number } }[];
}

interface Export {
  resourceSpans: { scopeSpans: { spans: SentSpan[] }[] }[];
}

export class Collector implements AsyncDisposable {
  readonly spans: SentSpan[] = [];
  readonly #server: Server;

  static async start(): Promise<Collector> {
    const collector = new Collector();
    collector.#server.listen(0, "127.0.0.1");
    await once(collector.#server, "listening");
    return collector;
  }

  private constructor() {
    this.#server = createServer(async (request, response) => {
      const { resourceSpans } = (await json(request)) as Export;
      for (const { scopeSpans } of resourceSpans) for (const { spans } of scopeSpans) this.spans.push(...spans);
      response.setHeader("content-type", "application/json").end("{}");
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Throws when no span of this name has been received. */
  named(name: string): SentSpan {
    const found = this.spans.find((span) => span.name === name);
    if (found === undefined) throw new Error(`no span ${name} among ${this.spans.map((span) => span.name).join(", ")}`);
    return found;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

export function attributesOf({ attributes }: SentSpan): Record<string, string | number | undefined> {
  return Object.fromEntries(attributes.map(({ key, value }) => [key, value.stringValue ?? value.intValue]));
}
