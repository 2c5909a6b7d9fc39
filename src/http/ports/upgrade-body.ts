/**
 * The body of a request that asks for an upgrade, from its socket: Node reads no further than the head of such a request. Bytes behind
 * the body belong to the protocol after the upgrade and stay in the socket, so the guest is sent nothing behind its request.
 */
import type { ClientRequest } from "node:http";
import type { Socket } from "node:net";

/** Ends the request after so many bytes. `first`: bytes that came with the head. */
export function sendUpgradeBody(
  socket: Socket,
  first: Buffer,
  { bytes, onBytes }: { bytes: number; onBytes: (bytes: number) => void },
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
  };
  pass();
}
