/**
 * Passes bytes from one stream to another, at the pace of the reader and of the team's turns (access/chunk-turns.ts). At most one chunk
 * waits here; the source is read no further meanwhile.
 */
import type { Readable, Writable } from "node:stream";
import type { ChunkTurns } from "../access/chunk-turns.ts";
import type { Ending } from "../access/team-turns.ts";

export interface RelayPace {
  teamId: string;
  turns: ChunkTurns;
  /** The client's side, whose end lets a chunk wait no longer. */
  client: Ending;
  onBytes: (bytes: number) => void;
  /** Returns the part of a chunk that is written; default: all of it. */
  change?: ((chunk: Buffer) => Buffer) | undefined;
  /** Called behind the last chunk. */
  onEnd: () => void;
}

/** The end of the source is not passed on. The returned function stops reading it. */
export function relayBytes(
  source: Readable,
  sink: Writable,
  { teamId, turns, client, onBytes, change, onEnd }: RelayPace,
): () => void {
  let [isStopped, isWaiting, hasEnded] = [false, false, false];
  const goOn = () => {
    if (!isStopped && !isWaiting) source.resume();
  };
  const write = (chunk: Buffer): boolean => {
    if (isStopped || sink.destroyed || sink.writableEnded) return true;
    onBytes(chunk.length);
    const bytes = change === undefined ? chunk : change(chunk);
    return bytes.length === 0 || sink.write(bytes);
  };
  const onData = (chunk: Buffer) => {
    const turn = turns.enter(teamId, chunk.length, client);
    if (turn === undefined) {
      if (!write(chunk)) source.pause();
      return;
    }
    source.pause();
    isWaiting = true;
    void turn.then(() => {
      isWaiting = false;
      const isFree = write(chunk);
      if (hasEnded) finish();
      else if (isFree) goOn();
    });
  };
  // A stream that has ended tells so behind its last chunk, also while it is paused for that chunk's turn.
  const finish = () => {
    hasEnded = true;
    if (!isWaiting && !isStopped) onEnd();
  };
  source.once("end", finish);
  source.on("data", onData);
  sink.on("drain", goOn);
  return () => {
    isStopped = true;
    source.off("data", onData).off("end", finish);
    sink.off("drain", goOn);
  };
}
