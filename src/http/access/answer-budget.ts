/**
 * Memory for answers that are complete before their first byte is sent: listings and the output of foreground commands.
 * They are held until their client has read them, so one budget for all teams bounds them, in bytes as sent. An answer
 * beyond it is refused; none is cut.
 */

import { Counts } from "../../counts.ts";
import { CapsuleError } from "../../wire/errors.ts";

/** One team's part of the budget: one foreground command with two full streams of control characters at the defaults. */
export const teamShare = 3 / 4;
/** Not counted against the budget, so that other teams' answers cannot refuse a team's ordinary ones. */
export const reservedPerTeamBytes = 4 << 20;

export class AnswerBudget {
  readonly #maxBytes: number;
  readonly #usedByTeam = new Counts();
  /** Bytes of all teams beyond each team's reserve. */
  #sharedBytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** An answer of this team, without any bytes yet. */
  open(teamId: string): AnswerCharge {
    return new AnswerCharge((bytes) => this.#change(teamId, bytes));
  }

  /** Bytes held for all teams. */
  get usedBytes(): number {
    return this.#usedByTeam.sum;
  }

  #change(teamId: string, bytes: number): void {
    const before = this.#usedByTeam.of(teamId);
    const after = before + bytes;
    const sharedBytes = this.#sharedBytes + beyondReserve(after) - beyondReserve(before);
    if (bytes > 0 && after > reservedPerTeamBytes) {
      if (sharedBytes > this.#maxBytes || after > this.#maxBytes * teamShare) throw noRoom();
    }
    this.#sharedBytes = sharedBytes;
    this.#usedByTeam.set(teamId, after);
  }
}

function beyondReserve(bytes: number): number {
  return Math.max(0, bytes - reservedPerTeamBytes);
}

function noRoom(): CapsuleError {
  return new CapsuleError("no_capacity", "too many large answers wait for their clients to read them; try again later");
}

/** The bytes of one answer. */
export class AnswerCharge {
  readonly #change: (bytes: number) => void;
  #bytes = 0;
  #isReleased = false;

  constructor(change: (bytes: number) => void) {
    this.#change = change;
  }

  /** Throws CapsuleError("no_capacity"), without a change. */
  add(bytes: number): void {
    if (this.#isReleased) return;
    this.#change(bytes);
    this.#bytes += bytes;
  }

  /** Gives all bytes back; later additions count nothing. */
  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    this.#change(-this.#bytes);
  }
}
