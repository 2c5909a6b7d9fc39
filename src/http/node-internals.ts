/**
 * The two undocumented properties of Node's sockets that the server reads, in one place. Node offers no other way to see
 * them; node-internals.test.ts fails when a release of Node changes either.
 */
import type { ServerResponse } from "node:http";
import type { Socket } from "node:net";

interface SocketInternals {
  /** The response that Node writes to this socket now. */
  _httpMessage?: ServerResponse | null;
  _handle?: {
    /** Bytes given to the operating system or queued before it. */
    bytesWritten: number;
    /** The part of them that the operating system has not accepted yet. */
    writeQueueSize: number;
  } | null;
}

/** The response to a request on this connection, until it is complete. */
export function pendingResponse(socket: Socket): ServerResponse | undefined {
  return (socket as SocketInternals)._httpMessage ?? undefined;
}

/** Bytes that the client has sent, and bytes that the operating system has accepted for it; those that only wait do not count. */
export function transferred(socket: Socket): { received: number; accepted: number } {
  const { bytesWritten, writeQueueSize } = (socket as SocketInternals)._handle ?? {
    bytesWritten: 0,
    writeQueueSize: 0,
  };
  return { received: socket.bytesRead, accepted: bytesWritten - writeQueueSize };
}
