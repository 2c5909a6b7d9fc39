/**
 * The bytes of a client that asks for an upgrade, from its socket: Node reads no further than the head of such a request. Its body goes to
 * the guest. Bytes behind the body belong to the protocol after the upgrade, and wait for it here.
 */
import type { ClientRequest } from "node:http";
import type { Socket } from "node:net";
import { CapsuleError } from "../../wire/errors.ts";

/** Bytes behind a request, from a client that does not wait for the change of the protocol; more are 400. */
export const earlyMaxBytes = 64 * 1024;

export interface UpgradeBody {
  /** Its length. */
  bytes: number;
  onBytes: (bytes: number) => void;
  /** Called behind it. */
  onEnd: () => void;
}

/** `first`: bytes that came with the head. */
export function sendUpgradeBody(
  socket: Socket,
  first: Buffer,
  { bytes, onBytes, onEnd }: UpgradeBody,
  message: ClientRequest,
): void {
  if (first.length > 0) socket.unshift(first);
  let leftBytes = bytes;
  const pass = () => {
    socket.off("readable", pass);
    while (leftBytes > 0) {
      const size = Math.min(leftBytes, socket.readableLength);
      const chunk: Buffer | null = size === 0 ? null : socket.read(size);
      if (chunk === null) {
        socket.once("readable", pass);
        return;
      }
      leftBytes -= chunk.length;
      onBytes(chunk.length);
      if (message.destroyed) return;
      if (!message.write(chunk) && leftBytes > 0) {
        message.once("drain", pass);
        return;
      }
    }
    message.end();
    onEnd();
  };
  pass();
}

/** The refusal of a client that has sent too many. */
export function tooEarly(): CapsuleError {
  return new CapsuleError(
    "invalid_request",
    `the client has sent more than ${earlyMaxBytes} bytes behind its request, before the answer`,
  );
}

/**
 * Reads the client on while it waits for its answer: the end of one that is not read would not be seen. It is read no further from
 * `onTooMany` on. The returned function ends that, and puts the bytes back.
 */
export function readEarly(socket: Socket, onTooMany: () => void): () => void {
  const kept: Buffer[] = [];
  let keptBytes = 0;
  const read = () => {
    while (keptBytes <= earlyMaxBytes) {
      const chunk: Buffer | null = socket.read();
      if (chunk === null) return;
      kept.push(chunk);
      keptBytes += chunk.length;
    }
    socket.off("readable", read);
    onTooMany();
  };
  socket.on("readable", read);
  read();
  return () => {
    socket.off("readable", read);
    if (keptBytes > 0) socket.unshift(Buffer.concat(kept));
  };
}
