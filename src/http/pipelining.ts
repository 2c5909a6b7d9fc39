/**
 * Requests that a client sends on one connection before earlier ones are answered (RFC 9112, 9.3.2). Node reads all of a segment of
 * 64 KiB, some 800 requests, and would parse and check them in one turn of the event loop. Here the requests of one connection are
 * handled one after the other, each in a turn of its own, and a connection with more than a few that wait is reset. No known client
 * sends so many.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { stopParsing } from "./node-internals.ts";

/** Requests of one connection that wait behind the one that is handled. */
export const pipelinedMax = 16;

/** Parts of the server that wait for the end of one response: 11 for the longest route, beyond Node's bound of 10. */
const responseListenersMax = 16;

type Exchange = [request: IncomingMessage, response: ServerResponse];
type Handle = (this: Server, ...exchange: Exchange) => void;

/** Call when all listeners for requests are added: each gets a request when it is its turn. */
export function handleOneByOne(server: Server): void {
  const listeners = server.listeners("request") as Handle[];
  server.removeAllListeners("request");
  const waiting = new WeakMap<Socket, Exchange[]>();
  const begin = ([request, response]: Exchange) => {
    const { socket } = request;
    response.setMaxListeners(responseListenersMax);
    response.once("close", () => setImmediate(next, socket));
    for (const handle of listeners) handle.call(server, request, response);
  };
  const next = (socket: Socket) => {
    const exchange = socket.writable ? waiting.get(socket)?.shift() : undefined;
    if (exchange === undefined) waiting.delete(socket);
    else begin(exchange);
  };
  server.on("request", (...exchange) => {
    const { socket } = exchange[0];
    if (socket.destroyed) return;
    const line = waiting.get(socket);
    if (line === undefined) {
      waiting.set(socket, []);
      begin(exchange);
    } else if (line.length < pipelinedMax) line.push(exchange);
    else {
      stopParsing(socket); // of the rest of the segment, which a destroyed socket does not stop
      socket.destroy();
    }
  });
}
