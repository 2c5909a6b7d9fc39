/** When the client hangs up before it has its answer. */
import type { FastifyReply } from "fastify";
import { CapsuleError } from "../wire/errors.ts";

/** For what a guest that is well does in no time. */
export const promptMs = 60_000;

export function onClientGone(reply: FastifyReply, callback: () => void): void {
  const response = reply.raw;
  response.once("close", () => {
    if (!response.writableFinished) callback();
  });
}

/** Calls back once the answer has left or the client is gone; at once if so already. */
export function onAnswered(reply: FastifyReply, callback: () => void): void {
  if (reply.raw.closed) callback();
  else reply.raw.once("close", callback);
}

export function clientGoneSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  onClientGone(reply, () => controller.abort());
  return controller.signal;
}

/** Ends a wait for the guest: when the client is gone, and when the guest takes longer than it may. */
export function patience(reply: FastifyReply, deadlineMs?: number): AbortSignal {
  const controller = new AbortController();
  onClientGone(reply, () => controller.abort(new Error("the client hung up")));
  if (deadlineMs !== undefined) {
    const late = () => controller.abort(new CapsuleError("agent_error", "the guest did not answer in time"));
    const timer = setTimeout(late, deadlineMs);
    reply.raw.once("close", () => clearTimeout(timer));
  }
  return controller.signal;
}
