/**
 * `Expect: 100-continue`: the client sends its body only after a 100. Node would send 100 as soon as it has read the headers;
 * here it is sent when the body is about to be read, so that a refusal by key, state or size comes first.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";

const waiting = new WeakMap<IncomingMessage, ServerResponse>();

export function deferContinue(server: Server): void {
  server.on("checkContinue", (request, response) => {
    waiting.set(request, response);
    server.emit("request", request, response);
  });
  // Other expectations are ignored. Node would refuse them before the gate checks the key.
  server.on("checkExpectation", (request, response) => server.emit("request", request, response));
}

/** Call with a request for an upgrade, whose expectation Node does not tell. */
export function noteExpectation(request: IncomingMessage, response: ServerResponse): void {
  const { httpVersion, headers } = request;
  if (httpVersion === "1.1" && /(?:^|\W)100-continue(?:$|\W)/i.test(headers.expect ?? ""))
    waiting.set(request, response);
}

/**
 * Whether the client was sent no 100. Node then closes the connection after the final response, since the body may follow
 * all the same; the response must say so.
 */
export function isAwaitingContinue(request: IncomingMessage): boolean {
  return waiting.has(request);
}

/** Call before the body is read. */
export function sendContinue(request: IncomingMessage): void {
  waiting.get(request)?.writeContinue();
  waiting.delete(request);
}
