/**
 * Finds out whether a guest that says nothing is still there: asks it, and gives it a long time to answer.
 *
 * Silence is measured in looks and not by the clock: while the daemon or its whole machine stands still nobody looks, so
 * that time is not held against the guest.
 */
const looks = 6;

export interface SilenceOptions {
  /** Of a probe and all else left unanswered; a guest of which nothing is heard for a sixth of this is probed. */
  silenceMs: number;
  /** Resolves when the guest has answered, or cannot any more. */
  probe: () => Promise<void>;
  /** It was silent for too long. */
  onSilence: () => void;
  onLook: () => void;
}

/** Why a connection was closed: the guest left a probe unanswered for too long. */
export class SilenceError extends Error {
  override readonly name = "SilenceError";
}

export class Silence {
  readonly #options: SilenceOptions;
  readonly #timer: NodeJS.Timeout;
  #isBroken = true;
  #isAllowed = false;
  #isProbing = false;
  #silentLooks = 0;

  constructor(options: SilenceOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#look(), options.silenceMs / looks).unref();
  }

  /** The guest has said something that was waited for. */
  break(): void {
    this.#isBroken = true;
  }

  /**
   * A guest about to be stopped may fall silent: what is allowed is not held against it. Nor is it forgiven what was not: a
   * guest that hangs, and that somebody tries to pause again and again, is given up like any other.
   */
  allow(allowed: boolean): void {
    this.#isAllowed = allowed;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #look(): void {
    this.#options.onLook();
    if (this.#isBroken) {
      this.#isBroken = false;
      this.#silentLooks = 0;
      return;
    }
    if (this.#isAllowed) return;
    this.#silentLooks++;
    if (!this.#isProbing) void this.#probe();
    else if (this.#silentLooks > looks) this.#options.onSilence();
  }

  async #probe(): Promise<void> {
    this.#isProbing = true;
    await this.#options.probe();
    this.#isProbing = false;
  }
}
