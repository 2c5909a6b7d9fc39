/**
 * Reads and discards the rest of a request's body after the response (nginx's lingering_close). Closing a socket with
 * unread bytes sends a reset, which destroys the response before a client that is still writing has read it. So the
 * response is followed by a FIN, and the socket is closed when the body or the client has ended.
 *
 * Each lingering socket is bounded in time and bytes, and each address in lingering sockets; beyond that the connection is
 * reset.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { Socket } from "node:net";
import { Counts } from "../counts.ts";
import { networkOf } from "./access/network.ts";

const lingerMs = 10_000;
/** Applies to routes with a smaller limit or without a body: a JSON body of 20 MB still gets its 413 (ADR 28, ADR 32). */
const leastBytes = 32 * 1024 * 1024;
const socketsPerAddress = 8;

/** Sockets whose response is complete; no further response may be written to them. */
const lingering = new WeakSet<Socket>();

export function isLingering(socket: Socket): boolean {
  return lingering.has(socket);
}

export class RefusedBodies {
  /** Sockets that linger, by address. */
  readonly #open = new Counts();
  readonly #uploadBytes: number;

  /** `uploadBytes`: the largest body of an upload. Routes with a larger limit, or without one, count as uploads too. */
  constructor(uploadBytes: number) {
    this.#uploadBytes = uploadBytes;
  }

  /** Call before the request is answered. `maxBytes`: the largest body that its route allows. */
  watch(request: IncomingMessage, response: ServerResponse, address: string, maxBytes: number): void {
    const { socket } = request;
    if (!(socket instanceof Socket)) return; // injected by a test
    // Before Node's own listener, which closes the socket when the answer said so.
    response.prependOnceListener("finish", () => {
      if (request.complete || request.destroyed) return;
      if (!response.shouldKeepAlive) socket.destroySoon = () => socket.end();
      if (!this.#linger(request, socket, address, this.#boundOf(maxBytes))) closeSoon(socket);
    });
  }

  #boundOf(maxBytes: number): number {
    // An upload that is refused for its size is larger than the limit, so the bound is beyond it.
    return maxBytes >= this.#uploadBytes ? this.#uploadBytes + leastBytes : Math.max(maxBytes, leastBytes);
  }

  /** The rest of what was no request: its socket has been given its answer and is ended. */
  discardGarbage(socket: Socket): void {
    // Node's parser would find fault with every further byte.
    socket.removeAllListeners("data");
    if (!this.#linger(socket, socket, networkOf(socket.remoteAddress), leastBytes)) closeSoon(socket);
  }

  /** False when the address has as many as it may. */
  #linger(body: IncomingMessage | Socket, socket: Socket, address: string, maxBytes: number): boolean {
    if (this.#open.of(address) >= socketsPerAddress) return false;
    this.#open.add(address);
    lingering.add(socket);
    let leftBytes = maxBytes;
    const onData = (chunk: Buffer) => {
      leftBytes -= chunk.length;
      if (leftBytes < 0) socket.destroy();
    };
    const onEnd = () => {
      settle();
      if (socket.writableEnded) closeSoon(socket);
    };
    const settle = () => {
      clearTimeout(timer);
      body.off("data", onData).off("end", onEnd);
      socket.off("close", settle);
      lingering.delete(socket);
      this.#open.subtract(address);
    };
    const timer = setTimeout(() => socket.destroy(), lingerMs).unref();
    body.on("data", onData).on("end", onEnd);
    socket.on("close", settle); // of which an answered request is not told
    body.resume();
    return true;
  }
}

/** When everything is written. */
function closeSoon(socket: Socket): void {
  Socket.prototype.destroySoon.call(socket);
}
