/**
 * Structured logs: one line per request with its team, path, status and duration. Headers, queries, bodies and output are
 * never passed to the logger, so no key, ticket, command or output can appear in it.
 */
import { constants, fstatSync, openSync, writeSync } from "node:fs";
import type { FastifyReply, FastifyRequest } from "fastify";
import pino, { type Logger } from "pino";
import { RateLimiter } from "./access/rate-limiter.ts";
import type { App } from "./route.ts";

const pathMaxLength = 512;
/** Lines about refused requests without a valid key: all clients together could fill the log's disk with them. */
const refusedPerSec = 10;
const refusedBurst = 100;

/** Call before the routes are declared. */
export function logResponses(app: App, logger: Logger): void {
  if (!logger.isLevelEnabled("info")) return;
  const refused = new RateLimiter(refusedPerSec, refusedBurst);
  let unlogged = 0;
  app.addHook("onResponse", (request, reply, done) => {
    const isRefused = !request.identity && reply.statusCode >= 400 && reply.statusCode < 500;
    if (isRefused && refused.take("") > 0) unlogged++;
    else {
      logResponse(request, reply, unlogged);
      unlogged = 0;
    }
    done();
  });
}

/** `unlogged`: refused requests since the last line that have none. */
function logResponse(request: FastifyRequest, reply: FastifyReply, unlogged: number): void {
  const [path = ""] = request.url.split("?", 1);
  request.log.info(
    {
      method: request.method,
      path: path.length <= pathMaxLength ? path : `${path.slice(0, pathMaxLength - 1)}…`,
      status: reply.statusCode,
      durationMs: Math.round(reply.elapsedTime * 1_000) / 1_000,
      ...(request.identity ? { team: request.identity.team, key: request.identity.keyId } : {}),
      ...(unlogged > 0 ? { unlogged } : {}),
    },
    "request",
  );
}

/** Type, message, stack and code, with those of the causes; an error's other fields may hold a command's output. */
export function describeError(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { type, message, stack } = pino.stdSerializers.err(error);
  const { code } = error as { code?: unknown };
  return { type, message, stack, ...(typeof code === "string" ? { code } : {}) };
}

/**
 * The logger's destination: standard output. A line that cannot be written at once is dropped, so neither a full disk nor a
 * reader that has stopped holds up the service. pino's own destination would end the process, or block until there is space.
 */
export class StandardOutput implements pino.DestinationStream {
  readonly #fd = openUnblocked();
  /** The end of a line that a full pipe has taken a part of. */
  #rest: Buffer = Buffer.alloc(0);

  write(line: string): void {
    const rest = this.#rest;
    const bytes = Buffer.concat([rest, Buffer.from(line)]);
    let done = 0;
    try {
      while (done < bytes.length) done += writeSync(this.#fd, bytes, done);
    } catch {
      // full, or nobody reads it any more
    }
    this.#rest = done <= rest.length ? rest.subarray(done) : bytes.subarray(done);
  }
}

/**
 * Standard output without blocking. A pipe or terminal is opened anew, so that its other holders, such as a shell, keep theirs
 * as it was. A socket cannot be; Node's own stream makes it non-blocking.
 */
function openUnblocked(): number {
  const status = fstatSync(1);
  if (status.isSocket()) process.stdout.on("error", () => {});
  if (!status.isFIFO() && !status.isCharacterDevice()) return 1;
  try {
    return openSync("/proc/self/fd/1", constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    return 1;
  }
}
