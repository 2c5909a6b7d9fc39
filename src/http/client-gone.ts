/** Ties work for a request to its client: what to do when the client disconnects, or the response is closed. */
import type { FastifyReply, FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";

/** Deadline for guest operations that take milliseconds in a healthy guest. */
export const guestReplyMs = 60_000;

/** Calls back when the connection closes before the response is written; at once if it has. */
export function onClientGone(reply: FastifyReply, callback: () => void): void {
  const response = reply.raw;
  onClosed(reply, () => {
    if (!response.writableFinished) callback();
  });
}

/** Calls back when the response is written or the client is gone; at once if it is closed already. */
export function onClosed(reply: FastifyReply, callback: () => void): void {
  if (reply.raw.closed) callback();
  else reply.raw.once("close", callback);
}

/** Emitted by a response whose connection has become a WebSocket's; it never closes. */
export const upgraded = Symbol("upgraded");

/** Aborts when the client disconnects or after `deadlineMs`, until the connection has become a WebSocket's. */
export function requestSignal(reply: FastifyReply, deadlineMs?: number): AbortSignal {
  const controller = new AbortController();
  const isLate = () => controller.abort(new CapsuleError("agent_error", "the guest did not answer in time"));
  const timer = deadlineMs === undefined ? undefined : setTimeout(isLate, deadlineMs);
  reply.raw.once(upgraded, () => clearTimeout(timer));
  onClosed(reply, () => {
    clearTimeout(timer);
    if (!reply.raw.writableFinished) controller.abort(new Error("the client hung up"));
  });
  return controller.signal;
}

/**
 * The result of `work`, whose signal aborts when the client disconnects. A client that asks for a WebSocket has gone when it ends its
 * side; the connection would stay open here.
 */
export async function goneWhile<T>(
  { raw, routeOptions }: FastifyRequest,
  reply: FastifyReply,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  if (routeOptions.config.socket !== true) return await work(requestSignal(reply));
  const ended = new AbortController();
  const end = () => ended.abort(new CapsuleError("invalid_request", "the client has hung up"));
  raw.socket.once("end", end);
  try {
    return await work(AbortSignal.any([requestSignal(reply), ended.signal]));
  } finally {
    raw.socket.off("end", end);
  }
}
