/** The memory that ws holds for incomplete messages. It has no public counter; received-messages.test.ts fails when a release changes these. */
import type { WebSocket } from "ws";
import { pieceMinBytes } from "../access/receive-budget.ts";

/** Fragments of one message; ws closes the socket with 1008 beyond it. 2 MiB in frames of 4 KiB are 512. */
export const fragmentsMax = 1_024;

interface Receiver {
  /** Bytes of frames that have arrived in part, and the chunks that hold them. */
  _bufferedBytes: number;
  _buffers: unknown[];
  /** Bytes and number of the whole frames of a message without its last. */
  _messageLength: number;
  _fragments: unknown[];
}

/** Each chunk and frame counts as `pieceMinBytes` besides its bytes. */
export function unfinishedBytes(socket: WebSocket): number {
  const receiver = (socket as unknown as { _receiver?: Receiver })._receiver;
  if (receiver === undefined) return 0;
  const { _bufferedBytes, _buffers, _messageLength, _fragments } = receiver;
  return _bufferedBytes + _messageLength + pieceMinBytes * (_buffers.length + _fragments.length);
}
