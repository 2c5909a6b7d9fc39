/**
 * Frames, the unit of transfer in the pipe. The parser splits a byte stream into frames without copying payloads: the
 * socket reads directly into the parser's arena, and a payload is a view of it.
 *
 *      arena   [ parsed │ incomplete frame │ space: target of the next read ]
 */
import { ProtocolError } from "./records.ts";

export const FrameType = {
  HELLO: 0x01,
  WELCOME: 0x02,
  OPEN: 0x03,
  DATA: 0x04,
  END: 0x05,
  WINDOW: 0x06,
  EVENT: 0x07,
  RESULT: 0x08,
  FAIL: 0x09,
  CANCEL: 0x0a,
  NOTICE: 0x0b,
  /** A frame of docs/NETWORK-PROTOCOL.md only. */
  RESET: 0x0c,
} as const;

export const headerBytes = 12;
export const maxPayloadBytes = 65_536;
/** OPEN only: the payload continues in the next OPEN of the same stream. */
export const moreFlag = 1;
/** HELLO only: asks for a WELCOME that ends with the agent's verbs. Agents without such a list ignore the flag. */
export const listVerbsFlag = 1;

const arenaBytes = 2 * maxPayloadBytes;
const minSpaceBytes = arenaBytes / 4;

export interface FrameHeader {
  type: number;
  flags: number;
  epoch: number;
  stream: number;
  length: number;
}

export function writeHeader(target: Buffer, at: number, header: FrameHeader): void {
  target[at] = header.type;
  target[at + 1] = header.flags;
  target.writeUInt16LE(header.epoch, at + 2);
  target.writeUInt32LE(header.stream, at + 4);
  target.writeUInt32LE(header.length, at + 8);
}

/** A whole frame in one buffer, for control frames with their small payloads. */
export function encodeFrame(header: Omit<FrameHeader, "length">, payload: Uint8Array): Buffer {
  const frame = Buffer.allocUnsafe(headerBytes + payload.length);
  writeHeader(frame, 0, { ...header, length: payload.length });
  frame.set(payload, headerBytes);
  return frame;
}

/**
 * The OPEN frames of a request, as buffers to write. `framed` starts with space for the first frame's header, so that a
 * short request is one buffer.
 */
export function openFrames(framed: Buffer, epoch: number, stream: number): Buffer[] {
  const buffers: Buffer[] = [];
  for (let at = headerBytes; at < framed.length; at += maxPayloadBytes) {
    const length = Math.min(maxPayloadBytes, framed.length - at);
    const flags = at + length < framed.length ? moreFlag : 0;
    const isFirst = at === headerBytes;
    const header = isFirst ? framed : Buffer.allocUnsafe(headerBytes);
    writeHeader(header, 0, { type: FrameType.OPEN, flags, epoch, stream, length });
    if (isFirst) buffers.push(framed.subarray(0, at + length));
    else buffers.push(header, framed.subarray(at, at + length));
  }
  return buffers;
}

/** Called once per frame. The payload is a view that is valid only during the call. */
export type FrameListener = (type: number, flags: number, epoch: number, stream: number, payload: Buffer) => void;

export class FrameParser {
  readonly #arena = Buffer.allocUnsafeSlow(arenaBytes);
  readonly #onFrame: FrameListener;
  readonly #onPadding: (bytes: number) => void;
  #start = 0;
  #end = 0;
  #stopped = false;

  constructor(onFrame: FrameListener, onPadding: (bytes: number) => void = () => {}) {
    this.#onFrame = onFrame;
    this.#onPadding = onPadding;
  }

  /** Buffer for the next bytes; never empty. */
  space(): Buffer {
    return this.#arena.subarray(this.#end);
  }

  /** Parses the first `bytes` of the buffer from `space` and passes every complete frame to the listener. */
  filled(bytes: number): void {
    this.#end += bytes;
    while (!this.#stopped && this.#next());
    if (this.#stopped) this.#start = this.#end;
    this.#compact();
  }

  /** Copies bytes into the arena and parses them. */
  push(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length && !this.#stopped; ) {
      const space = this.space();
      const part = bytes.subarray(at, at + space.length);
      space.set(part);
      at += part.length;
      this.filled(part.length);
    }
  }

  /** Passes no more frames to the listener, including those received already. */
  stop(): void {
    this.#stopped = true;
  }

  #next(): boolean {
    const arena = this.#arena;
    let start = this.#start;
    while (start < this.#end && arena[start] === 0) start++;
    if (start > this.#start) this.#onPadding(start - this.#start);
    this.#start = start;
    const available = this.#end - start;
    if (available < headerBytes) return false;
    const length = arena.readUInt32LE(start + 8);
    if (length > maxPayloadBytes) throw new ProtocolError(`a frame claims a payload of ${length} bytes`);
    if (available < headerBytes + length) return false;
    this.#start = start + headerBytes + length;
    this.#onFrame(
      arena[start]!,
      arena[start + 1]!,
      arena.readUInt16LE(start + 2),
      arena.readUInt32LE(start + 4),
      arena.subarray(start + headerBytes, this.#start),
    );
    return true;
  }

  /** An incomplete frame takes at most half of the arena and a header, so there is space after the move. */
  #compact(): void {
    if (this.#start === this.#end) {
      this.#start = 0;
      this.#end = 0;
    } else if (arenaBytes - this.#end < minSpaceBytes) {
      this.#arena.copyWithin(0, this.#start, this.#end);
      this.#end -= this.#start;
      this.#start = 0;
    }
  }
}
