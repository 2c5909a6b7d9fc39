/**
 * In one turn of the event loop, at most 1 MiB of each team's uploads is passed on; further chunks wait for the next turns, in order
 * of arrival. A lone upload has one or two chunks of some 64 KiB in a turn, at most one in 16 of which waits. Chunks do not wait with
 * the requests of their team (team-turns.ts), so that these do not stand behind hundreds of uploads.
 *
 * The bytes are counted until they are a turn's share, over several turns if need be. A callback in each turn would keep the loop
 * from waiting for more bytes: it would read smaller chunks, and take 40 % more time for each upload.
 */
import type { Ending } from "./team-turns.ts";

/** As many bytes as are parsed and passed on in one to two milliseconds. */
export const turnBytes = 1024 * 1024;
/** A smaller chunk costs no less. */
export const chunkMinBytes = 16 * 1024;

interface Waiting {
  bytes: number;
  goOn(): void;
}

export class ChunkTurns {
  /** Bytes of each team since the last turn in which one had its share. */
  readonly #passed = new Map<string, number>();
  readonly #waiting = new Map<string, Set<Waiting>>();
  #isSoon = false;

  /**
   * Resolves in the turn in which a chunk of so many bytes may be passed on, and when the response is closed before; undefined: at
   * once.
   */
  enter(teamId: string, bytes: number, response: Ending): Promise<void> | undefined {
    if (this.#isFree(teamId)) {
      this.#pass(teamId, bytes);
      return undefined;
    }
    if (response.closed) return undefined;
    return new Promise((resolve) => {
      const line = this.#waiting.get(teamId) ?? new Set();
      this.#waiting.set(teamId, line);
      const goOn = () => {
        response.off("close", goOn);
        line.delete(waiting);
        if (line.size === 0) this.#waiting.delete(teamId);
        resolve();
      };
      const waiting = { bytes, goOn };
      line.add(waiting);
      response.once("close", goOn);
    });
  }

  /** Chunks that wait. */
  get size(): number {
    return [...this.#waiting.values()].reduce((sum, line) => sum + line.size, 0);
  }

  #isFree(teamId: string): boolean {
    return (this.#passed.get(teamId) ?? 0) < turnBytes;
  }

  #pass(teamId: string, bytes: number): void {
    this.#passed.set(teamId, (this.#passed.get(teamId) ?? 0) + Math.max(bytes, chunkMinBytes));
    if (this.#isSoon || this.#isFree(teamId)) return;
    this.#isSoon = true;
    setImmediate(() => this.#begin());
  }

  /** Begins the next turn. */
  #begin(): void {
    this.#isSoon = false;
    this.#passed.clear();
    for (const [teamId, line] of [...this.#waiting]) {
      for (const { bytes, goOn } of line) {
        if (!this.#isFree(teamId)) break;
        this.#pass(teamId, bytes);
        goOn();
      }
    }
  }
}
