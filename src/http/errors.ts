/**
 * Turns every thrown value into a response: a CapsuleError as it is, the framework's and the HTTP parser's errors
 * translated, any other error logged in full and answered as internal_error.
 */
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type { FastifyReply, FastifyRequest } from "fastify";
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";
import type { ErrorBody } from "../wire/schema.ts";
import { isAwaitingContinue } from "./expect-continue.ts";
import { ignoredFieldsHeader } from "./ignored-fields.ts";
import { describeError } from "./log.ts";
import { pendingResponse } from "./node-internals.ts";
import { isLingering, type RefusedBodies } from "./refused-bodies.ts";

const retryAfterSec = 5;
/** Refused for now. */
const retried = new Set<ErrorCode>(["quota_exceeded", "no_capacity", "unavailable"]);
/** A client can cause these as often as it likes, and nothing of the service has failed. */
export const unloggedCodes: ReadonlySet<ErrorCode> = new Set(["timeout", "port_closed"]);

export function sendError(thrown: unknown, request: FastifyRequest, reply: FastifyReply): void {
  if (reply.raw.destroyed) {
    reply.hijack(); // the client is gone
    return;
  }
  const error = toCapsuleError(thrown);
  if (error.status >= 500 && !unloggedCodes.has(error.code)) {
    request.log.error({ error: describeError(thrown), code: error.code }, "request failed");
  }
  reply.removeHeader(ignoredFieldsHeader);
  const retryAfter = retryAfterOf(error);
  if (retryAfter !== undefined) reply.header("retry-after", retryAfter);
  if (error.code === "unauthorized") reply.header("www-authenticate", "Bearer"); // for which browsers ask nobody
  if (isUploading(request.raw) || isAwaitingContinue(request.raw)) reply.raw.shouldKeepAlive = false;
  // Only a refused upgrade, an upload that was refused half-way and a missing 100 close their connection.
  if (reply.raw.shouldKeepAlive) reply.removeHeader("connection");
  else reply.header("connection", "close");
  reply
    .code(error.status)
    .header("x-request-id", request.id)
    .header("content-type", "application/json; charset=utf-8")
    .send(JSON.stringify(bodyOf(error)));
}

/** The seconds of `Retry-After`; undefined: the answer has none. */
export function retryAfterOf({ code, retryAfterSec: own }: CapsuleError): number | undefined {
  return retried.has(code) && own !== null ? (own ?? retryAfterSec) : undefined;
}

/** Up to here a body that is no upload is sent in one piece. */
const pieceMaxBytes = 2 * 1024 * 1024;

/**
 * Clients that stream a body may stop in the middle of it when they read their refusal, and some (aiohttp 3.8, Mojolicious
 * 9.31) send the next request on the same connection all the same. Bodies that are sent in one piece arrive whole.
 */
function isUploading({ complete, headers }: IncomingMessage): boolean {
  if (complete !== false) return false;
  const { "transfer-encoding": encoding, "content-type": type = "", "content-length": length } = headers;
  return encoding !== undefined || /^multipart\//i.test(type) || Number(length) > pieceMaxBytes;
}

export function toCapsuleError(thrown: unknown): CapsuleError {
  if (thrown instanceof CapsuleError) return thrown;
  const { code, statusCode, message } = (thrown ?? {}) as { code?: unknown; statusCode?: unknown; message?: unknown };
  const known = typeof code === "string" ? frameworkErrors[code] : undefined;
  if (known !== undefined) return new CapsuleError(...known, { cause: thrown });
  if (typeof statusCode === "number" && statusCode >= 400 && statusCode < 500) {
    return new CapsuleError("invalid_request", `the request cannot be understood: ${message}`, { cause: thrown });
  }
  return new CapsuleError("internal_error", "something broke inside the service; its log has the request's id", {
    cause: thrown,
  });
}

const frameworkErrors: Record<string, [ErrorCode, string]> = {
  FST_ERR_BAD_URL: ["invalid_request", "the URL's percent-encoding is malformed"],
  FST_ERR_CTP_INVALID_MEDIA_TYPE: [
    "unsupported_media_type",
    "the Content-Type header is malformed or not accepted here",
  ],
};

export function bodyOf({ code, message, details }: CapsuleError): ErrorBody {
  return { error: { code, message, ...(details === undefined ? {} : { details }) } };
}

/** For bytes that the HTTP parser could not read as a request. */
export function refuseMalformedRequest(error: NodeJS.ErrnoException, socket: Socket, bodies: RefusedBodies): void {
  const isAnswered = pendingResponse(socket)?.headersSent === true || isLingering(socket);
  if (error.code === "ECONNRESET" || !socket.writable || isAnswered) {
    socket.destroy();
    return;
  }
  const refusal = parserRefusals[error.code ?? ""] ?? malformed;
  const body = JSON.stringify(bodyOf(new CapsuleError(...refusal.error)));
  socket.end(
    `HTTP/1.1 ${refusal.statusLine}\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
  bodies.discardGarbage(socket);
}

interface ParserRefusal {
  statusLine: string;
  error: [ErrorCode, string];
}

const malformed: ParserRefusal = {
  statusLine: "400 Bad Request",
  error: ["invalid_request", "this is not an HTTP/1.1 request"],
};

const parserRefusals: Record<string, ParserRefusal> = {
  HPE_HEADER_OVERFLOW: {
    statusLine: "431 Request Header Fields Too Large",
    error: ["headers_too_large", "the URL and headers are too large"],
  },
  ERR_HTTP_REQUEST_TIMEOUT: {
    statusLine: "408 Request Timeout",
    error: ["request_timeout", "the request's headers did not arrive in time"],
  },
};
