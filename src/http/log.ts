/**
 * Structured logs: one line per request with its team, path, status and duration. Headers, queries, bodies and output are
 * never passed to the logger, so no key, ticket, command or output can appear in it.
 */
import { writeSync } from "node:fs";
import type { FastifyReply, FastifyRequest } from "fastify";
import pino, { type Logger } from "pino";
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

/** Type, message, stack and code, with those of the causes; an error's other fields may hold a command's output. */
export function describeError(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { type, message, stack } = pino.stdSerializers.err(error);
  const { code } = error as { code?: unknown };
  return { type, message, stack, ...(typeof code === "string" ? { code } : {}) };
}

/**
 * The logger's destination: standard output. A line that cannot be written is dropped. pino's own destination would end
 * the process when the log's disk is full, or block until there is space.
 */
export const standardOutput: pino.DestinationStream = {
  write(line) {
    try {
      const bytes = Buffer.from(line);
      for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
    } catch {}
  },
};
