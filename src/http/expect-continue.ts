/**
 * `Expect: 100-continue`: the client waits for a word before it sends its body. Node would send 100 as soon as it has read
 * the headers; here it is sent when the body is about to be read, so that a refusal by key, state or size comes first.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";

const waiting = new WeakMap<IncomingMessage, ServerResponse>();

export function deferContinue(server: Server): void {
  server.on("checkContinue", (request, response) => {
    waiting.set(request, response);
    server.emit("request", request, response);
  });
}

/** Call before the body is read. */
export function sendContinue(request: IncomingMessage): void {
  waiting.get(request)?.writeContinue();
  waiting.delete(request);
}
