/**
 * The undocumented properties of Node's sockets and responses that the server uses, in one place. Node offers no other way;
 * node-internals.test.ts fails when a release of Node changes one.
 */
import { type ClientRequest, type ServerResponse, STATUS_CODES } from "node:http";
import type { Socket } from "node:net";

interface SocketInternals {
  /** Reads the requests of this connection. A result of 2 ends its reading of a segment, as after the headers of an upgrade. */
  parser?: { onIncoming: ((...about: unknown[]) => number) | null } | null;
  /** With TLS, the socket below. */
  _parent?: Socket | null;
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

/** The socket of the TCP connection. */
export function transportOf(socket: Socket): Socket {
  return (socket as SocketInternals)._parent ?? socket;
}

/** Parses nothing more of what the client has sent; the connection is to be destroyed. */
export function stopParsing(socket: Socket): void {
  const { parser } = socket as SocketInternals;
  if (parser !== null && parser !== undefined) parser.onIncoming = () => 2;
}

/** Sets the idle time of the `Keep-Alive` header, which is the server's for every connection. Call before the headers are sent. */
export function tellKeepAlive(response: ServerResponse, ms: number): void {
  (response as { _keepAliveTimeout?: number })._keepAliveTimeout = ms;
}

/** Node closes an idle connection so much later than the `Keep-Alive` header says; its `keepAliveTimeoutBuffer`. */
const keepAliveGraceMs = 1_000;

/**
 * Lets an idle connection stay for `ms`. Call in a listener for the `finish` of a response: Node has set the server's time then, in its
 * own listener, unless another request waits or the connection ends.
 */
export function keepIdle(socket: Socket, ms: number): void {
  if ((socket.timeout ?? 0) > 0) socket.setTimeout(ms + keepAliveGraceMs);
}

interface MessageInternals {
  _storeHeader(line: string, headers: readonly string[]): void;
  _send(data: string, encoding: string): boolean;
  _writeRaw(data: string, encoding: string): boolean;
}

/**
 * Writes the head of a client's request, with these headers (as `rawHeaders`) in their order and bytes. Given to the constructor, they
 * would get a `Transfer-Encoding` where the method may have a body and the request has none.
 */
export function writeRequestHead(request: ClientRequest, headers: readonly string[]): void {
  const internals = request as unknown as MessageInternals;
  request.removeHeader("transfer-encoding"); // none but that of `headers`
  // With `Expect` among the headers it is sent at once, as UTF-8.
  internals._send = () => true;
  try {
    internals._storeHeader(`${request.method} ${request.path} HTTP/1.1\r\n`, headers);
  } finally {
    delete (internals as Partial<MessageInternals>)._send;
  }
  sendHead(request);
}

/** As `flushHeaders`, which sends the bytes from 128 on as UTF-8. */
export function sendHead(message: ClientRequest | ServerResponse): void {
  (message as unknown as MessageInternals)._send("", "latin1");
}

/** Sends a provisional answer, of a status other than 100. */
export function writeInformation(response: ServerResponse, status: number, headers: readonly string[]): void {
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? "Information"}\r\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`;
  (response as unknown as MessageInternals)._writeRaw(`${text}\r\n`, "latin1");
}
