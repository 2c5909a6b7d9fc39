/** Permission for pages of other origins to use the API, by the browsers' protocol CORS. */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { AnswerHeader } from "../answer-headers.ts";

const methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
const requestHeaders = ["X-API-Key", "Authorization", "Content-Type", "Idempotency-Key", "Range", "Last-Event-ID"];
/** Answers' headers that a page may read, beside those that every page may. */
const exposed: AnswerHeader[] = [
  "X-Next-Cursor",
  "X-Ignored-Fields",
  "Idempotent-Replayed",
  "Retry-After",
  "X-Dropped-Bytes",
  "Content-Range",
  "X-Request-Id",
];
/** Browsers keep a preflight's answer at most this long. */
const keepSec = 7_200;

export class Cors {
  readonly #origins: ReadonlySet<string>;

  /** `origins`: as browsers send them, for example `https://app.example.org`. */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  addHeaders({ headers }: FastifyRequest, reply: FastifyReply): void {
    if (this.#origins.size === 0) return;
    reply.header("vary", "Origin");
    const { origin } = headers;
    if (origin === undefined || !this.#origins.has(origin)) return;
    reply.header("access-control-allow-origin", origin).header("access-control-expose-headers", exposed.join(", "));
  }

  /** Whether a browser asks, without the page's key, if a page of a permitted origin may send a request. */
  isPreflight({ method, headers }: FastifyRequest): boolean {
    const { origin } = headers;
    const asks = headers["access-control-request-method"] !== undefined;
    return method === "OPTIONS" && asks && origin !== undefined && this.#origins.has(origin);
  }

  answerPreflight(reply: FastifyReply): void {
    reply
      .code(204)
      .header("access-control-allow-methods", methods.join(", "))
      .header("access-control-allow-headers", requestHeaders.join(", "))
      .header("access-control-max-age", keepSec)
      .send();
  }
}
