/**
 * Messages of many sockets of a team that are short and many: in a turn of the event loop a team sends 64 of them, eight of each socket
 * in line.
 */

/** Messages of one team in a turn of the event loop. */
const perTurn = 64;
/** Messages of one socket before the next in line. */
export const messagesAtOnce = 8;

/** Sends at most `messagesAtOnce`, and returns how many it has sent. It enters again where there are more. */
type Send = () => number;

export class WatchTurns {
  readonly #lines = new Map<string, Send[]>();

  /** Calls `send` behind the others of its team, in the turn under way while less than 64 messages are sent in it, else in a later one. */
  enter(teamId: string, send: Send): void {
    if (this.#lines.size === 0) setImmediate(() => this.#turn());
    const line = this.#lines.get(teamId);
    if (line === undefined) this.#lines.set(teamId, [send]);
    else line.push(send);
  }

  #turn(): void {
    for (const [teamId, line] of this.#lines) {
      for (let left = perTurn; left > 0; ) {
        const send = line.shift();
        if (send === undefined) break;
        left -= Math.max(1, send());
      }
      if (line.length === 0) this.#lines.delete(teamId);
    }
    if (this.#lines.size > 0) setImmediate(() => this.#turn());
  }
}
