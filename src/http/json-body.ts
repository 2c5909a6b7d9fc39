/**
 * Reads request bodies as JSON objects, bounded in size and time, strictly UTF-8. An empty body of any type is `{}`, so
 * that `POST …/pause` works from every client.
 */
import { isUtf8 } from "node:buffer";
import type { IncomingMessage } from "node:http";
import type { FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { AnswerCharge } from "./access/answer-budget.ts";
import type { ReceiveBudget } from "./access/receive-budget.ts";
import { enterTurn, ownerOf, responseOf, type TeamTurns } from "./access/team-turns.ts";
import { BodyBuffer } from "./body-buffer.ts";
import { sendContinue } from "./expect-continue.ts";
import { hasTooManyValues, jsonValuesMax } from "./json-values.ts";
import type { App } from "./route.ts";

/** Time to receive a whole body. */
export const bodyArrivalMs = 60_000;

/** Body of a request to an open route, which anyone can send. */
export const openBodyMaxBytes = 16 * 1024;

export interface JsonOptions {
  maxBytes: number;
  turns: TeamTurns;
  received: ReceiveBudget;
}

export function acceptJson(app: App, { maxBytes, turns, received }: JsonOptions): void {
  const read = async (request: FastifyRequest, payload: IncomingMessage) => {
    if (!announcesBody(payload)) return {};
    const { open } = request.routeOptions.config;
    const charge = received.open(ownerOf(request).name);
    const response = responseOf(request);
    const release = () => charge.release();
    response.once("close", release); // of a request that waits for its turn nothing else tells its end
    try {
      const bytes = await collect(payload, open === true ? Math.min(openBodyMaxBytes, maxBytes) : maxBytes, charge);
      const end = await enterTurn(turns, request, bytes.length);
      try {
        return parseObject(bytes);
      } finally {
        end();
      }
    } finally {
      response.off("close", release);
      release();
    }
  };
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("application/json", read);
  app.addContentTypeParser("*", async (request: FastifyRequest, payload: IncomingMessage) => {
    const type = request.headers["content-type"];
    if (type === undefined) return read(request, payload);
    if (!announcesBody(payload)) return {};
    throw new CapsuleError(
      "unsupported_media_type",
      `a body of type ${type} is not accepted here; send application/json`,
    );
  });
}

/** HTTP announces a body by Transfer-Encoding or Content-Length; a Content-Type alone does not. */
export function announcesBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) !== 0;
}

function parseObject(bytes: Buffer): object {
  if (bytes.length === 0) return {};
  if (!isUtf8(bytes)) throw new CapsuleError("invalid_request", "the request body is not UTF-8");
  if (hasTooManyValues(bytes)) {
    throw new CapsuleError("invalid_request", `the request body has more than ${jsonValuesMax} values`);
  }
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch (error) {
    throw new CapsuleError("invalid_request", "the request body is not valid JSON", { cause: error });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new CapsuleError("invalid_request", "the request body must be a JSON object");
  }
  return value;
}

async function collect(payload: IncomingMessage, maxBytes: number, charge: AnswerCharge): Promise<Buffer> {
  if (Number(payload.headers["content-length"]) > maxBytes) throw tooLarge(maxBytes);
  sendContinue(payload);
  return new Promise((resolve, reject) => {
    const body = new BodyBuffer(charge);
    let size = 0;
    const settle = (finish: () => void) => {
      clearTimeout(timer);
      payload.off("data", onData).off("end", onEnd).off("close", onClose);
      finish();
    };
    const onData = (chunk: Buffer) => {
      size += chunk.length;
      try {
        if (size > maxBytes) throw tooLarge(maxBytes);
        body.add(chunk);
      } catch (error) {
        settle(() => reject(error));
      }
    };
    const onEnd = () => settle(() => resolve(body.bytes));
    const onClose = () => settle(() => reject(new CapsuleError("invalid_request", "the request body was cut off")));
    const timer = setTimeout(
      () => settle(() => reject(new CapsuleError("request_timeout", "the request body did not arrive in time"))),
      bodyArrivalMs,
    );
    payload.on("data", onData).on("end", onEnd).on("close", onClose);
  });
}

function tooLarge(maxBytes: number): CapsuleError {
  return new CapsuleError("too_large", `the request body is larger than ${maxBytes} bytes`);
}
