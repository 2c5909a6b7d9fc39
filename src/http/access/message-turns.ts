/**
 * In one turn of the event loop, at most 64 units of small WebSocket messages, and of frames (sockets/paced-frames.ts), of each team
 * are handled, over all its sockets; further ones wait for the next turns, in order of arrival. Each socket has one message and one
 * frame in line, so none overtakes another of its socket.
 * Messages do not wait with the requests of their team (team-turns.ts), of which one goes on in a turn.
 */
import type { Ending } from "./team-turns.ts";

export const turnUnits = 64;
/** JSON is parsed, validated and encoded for the guest. */
export const textUnits = 4;
export const binaryUnits = 1;

interface Waiting {
  units: number;
  goOn(): void;
}

export class MessageTurns {
  /** Units of each team in this turn. */
  readonly #passed = new Map<string, number>();
  readonly #waiting = new Map<string, Set<Waiting>>();
  #isSoon = false;

  /**
   * Calls `next` at once while the team has units left in this turn, or else in a later one, unless the connection is closed before.
   * undefined: it is closed already, and the message is handled nevertheless.
   */
  enter(teamId: string, units: number, connection: Ending | undefined, next: () => void): void {
    if (this.#isFree(teamId)) {
      this.#pass(teamId, units);
      next();
      return;
    }
    if (connection?.closed === true) return;
    const line = this.#waiting.get(teamId) ?? new Set();
    this.#waiting.set(teamId, line);
    const leave = () => {
      connection?.off("close", leave);
      line.delete(waiting);
      if (line.size === 0) this.#waiting.delete(teamId);
    };
    const goOn = () => {
      leave();
      next();
    };
    const waiting = { units, goOn };
    line.add(waiting);
    connection?.once("close", leave);
  }

  /** Messages that wait. */
  get size(): number {
    return [...this.#waiting.values()].reduce((sum, line) => sum + line.size, 0);
  }

  #isFree(teamId: string): boolean {
    return (this.#passed.get(teamId) ?? 0) < turnUnits;
  }

  #pass(teamId: string, units: number): void {
    this.#passed.set(teamId, (this.#passed.get(teamId) ?? 0) + units);
    if (this.#isSoon) return;
    this.#isSoon = true;
    setImmediate(() => this.#begin());
  }

  /** Begins the next turn. */
  #begin(): void {
    this.#isSoon = false;
    this.#passed.clear();
    for (const [teamId, line] of [...this.#waiting]) {
      for (const { units, goOn } of line) {
        if (!this.#isFree(teamId)) break;
        this.#pass(teamId, units);
        goOn();
      }
    }
  }
}
