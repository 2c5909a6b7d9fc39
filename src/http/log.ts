/**
 * Structured logs. One line per request says who asked what and how it ended. Headers, queries, bodies and outputs are
 * never handed to the logger, so no key, ticket, command or output can be in it.
 */
import { writeSync } from "node:fs";
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from "fastify";
import pino, { type LogFn, type Logger } from "pino";
import type { App } from "./route.ts";

/** Call before the routes are declared. */
export function logResponses(app: App, logger: Logger): void {
  if (!logger.isLevelEnabled("info")) return;
  app.addHook("onResponse", (request, reply, done) => {
    logResponse(request, reply);
    done();
  });
}

function logResponse(request: FastifyRequest, reply: FastifyReply): void {
  request.log.info(
    {
      method: request.method,
      path: request.url.split("?", 1)[0],
      status: reply.statusCode,
      durationMs: Math.round(reply.elapsedTime * 1_000) / 1_000,
      ...(request.identity ? { team: request.identity.team, key: request.identity.keyId } : {}),
    },
    "request",
  );
}

/** Only what an error says of itself, and its causes: its other fields may hold a command's output. */
export function describeError(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { type, message, stack } = pino.stdSerializers.err(error);
  const { code } = error as { code?: unknown };
  return { type, message, stack, ...(typeof code === "string" ? { code } : {}) };
}

/**
 * Standard output, as the logger's destination. Lines that cannot be written are lost, and nothing else: pino's own
 * destination ends the process when the log's disk is full, and then waits for room for ever.
 */
export const standardOutput: pino.DestinationStream = {
  write(line) {
    try {
      const bytes = Buffer.from(line);
      for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
    } catch {}
  },
};

/** The same logger, but its children are made when they first have something to say: most requests never have. */
export function quietUntilUsed(logger: Logger): FastifyBaseLogger {
  return new QuietLogger(() => logger);
}

class QuietLogger implements FastifyBaseLogger {
  readonly #make: () => FastifyBaseLogger;
  #made: FastifyBaseLogger | undefined;

  constructor(make: () => FastifyBaseLogger) {
    this.#make = make;
  }

  get #logger(): FastifyBaseLogger {
    this.#made ??= this.#make();
    return this.#made;
  }

  child(...args: Parameters<FastifyBaseLogger["child"]>): FastifyBaseLogger {
    return new QuietLogger(() => this.#logger.child(...args));
  }

  get level(): string {
    return this.#logger.level;
  }

  trace(...args: unknown[]): void {
    this.#logger.trace(...(args as Parameters<LogFn>));
  }

  debug(...args: unknown[]): void {
    this.#logger.debug(...(args as Parameters<LogFn>));
  }

  info(...args: unknown[]): void {
    this.#logger.info(...(args as Parameters<LogFn>));
  }

  warn(...args: unknown[]): void {
    this.#logger.warn(...(args as Parameters<LogFn>));
  }

  error(...args: unknown[]): void {
    this.#logger.error(...(args as Parameters<LogFn>));
  }

  fatal(...args: unknown[]): void {
    this.#logger.fatal(...(args as Parameters<LogFn>));
  }

  silent(): void {}
}
