/**
 * Detects a guest that has stopped answering: probes it after a time without answers, and reports it when the probe
 * stays unanswered too.
 *
 * The time is counted in timer ticks and not read from a clock: a tick does not come while the daemon or its machine is
 * suspended, so that time does not count.
 */
const ticksUntilUnresponsive = 6;

export interface LivenessOptions {
  /** A guest is unresponsive after this time without an answer. It is probed after a sixth of it. */
  silenceMs: number;
  /** Resolves when the guest has answered or the connection has ended. */
  probe: () => Promise<void>;
  onUnresponsive: () => void;
  onTick: () => void;
}

/** Cause of a connection's end: the guest did not answer a probe within `silenceMs`. */
export class SilenceError extends Error {
  override readonly name = "SilenceError";
}

export class Liveness {
  readonly #options: LivenessOptions;
  readonly #timer: NodeJS.Timeout;
  #hasAnswered = true;
  #isSuspended = false;
  #isProbing = false;
  #silentTicks = 0;

  constructor(options: LivenessOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#tick(), options.silenceMs / ticksUntilUnresponsive).unref();
  }

  /** An answer has arrived. */
  heard(): void {
    this.#hasAnswered = true;
  }

  /**
   * Ticks do not count while suspended, but earlier ones are kept: repeated attempts to pause a guest that hangs must
   * not postpone its detection.
   */
  suspend(): void {
    this.#isSuspended = true;
  }

  resume(): void {
    this.#isSuspended = false;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #tick(): void {
    this.#options.onTick();
    if (this.#hasAnswered) {
      this.#hasAnswered = false;
      this.#silentTicks = 0;
      return;
    }
    if (this.#isSuspended) return;
    this.#silentTicks++;
    if (!this.#isProbing) void this.#probe();
    else if (this.#silentTicks > ticksUntilUnresponsive) this.#options.onUnresponsive();
  }

  async #probe(): Promise<void> {
    this.#isProbing = true;
    await this.#options.probe();
    this.#isProbing = false;
  }
}
