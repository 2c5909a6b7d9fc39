/**
 * The frames of a client's WebSocket, before ws joins them into messages. ws handles one message or ping of a socket in a turn of the
 * event loop, but as many fragments of a message as have arrived, and unmasks each byte. So each frame waits for units of its team
 * (message-turns.ts), at the point where ws has all bytes of it. A whole small message takes none here, but when it is handled.
 * received-messages.test.ts fails when a release of ws changes the private members used.
 */
import type { WebSocket } from "ws";

/** The answer to a ping is a call of the operating system. */
export const controlUnits = 1;
/** 1 024 fragments of a team in a turn. */
export const fragmentUnits = 1 / 16;
/** Unmasking takes about 1 ns for each byte. */
export const bytesOfUnit = 16 * 1024;

interface Receiver {
  _state: number;
  _bufferedBytes: number;
  _payloadLength: number;
  _opcode: number;
  _fin: boolean;
  getData(onWritten: (error?: Error) => void): void;
  startLoop(onWritten: (error?: Error) => void): void;
}

/** States of a receiver: it has a frame's header; it waits for a callback, which continues its loop. */
const hasHeader = 4;
const isDeferred = 6;

/** `enter` calls `next`, at once or later, also when the socket is closed: ws tells of the close after the frames that have arrived. */
export function paceFrames(socket: WebSocket, enter: (units: number, next: () => void) => void): void {
  const receiver = (socket as unknown as { _receiver: Receiver })._receiver;
  const getData = receiver.getData.bind(receiver);
  let hasTurn = false;
  receiver.getData = (onWritten) => {
    const units = unitsOf(receiver);
    if (hasTurn || units === 0 || receiver._bufferedBytes < receiver._payloadLength) {
      hasTurn = false;
      getData(onWritten);
      return;
    }
    let isWaiting = false;
    enter(units, () => {
      hasTurn = true;
      if (!isWaiting) return;
      receiver._state = hasHeader;
      receiver.startLoop(onWritten);
    });
    if (hasTurn) {
      hasTurn = false;
      getData(onWritten);
      return;
    }
    isWaiting = true;
    receiver._state = isDeferred;
  };
}

function unitsOf({ _opcode, _fin, _payloadLength }: Receiver): number {
  if (_opcode > 7) return controlUnits;
  if (_fin && _payloadLength < bytesOfUnit) return 0;
  return fragmentUnits + _payloadLength / bytesOfUnit;
}
