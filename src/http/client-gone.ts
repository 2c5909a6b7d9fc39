/** When the client hangs up before it has its answer. */
import type { FastifyReply } from "fastify";

export function onClientGone(reply: FastifyReply, callback: () => void): void {
  const response = reply.raw;
  response.once("close", () => {
    if (!response.writableFinished) callback();
  });
}

export function clientGoneSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  onClientGone(reply, () => controller.abort());
  return controller.signal;
}
