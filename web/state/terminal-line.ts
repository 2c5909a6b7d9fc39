/**
 * One terminal session as its view speaks to it, in the order things were done. The SDK makes a cut connection again;
 * here is what comes before and after that: typing while the session starts, a capsule that is paused and resumed.
 *
 *   joining ── joined ──► live ── exit ──► ended
 *      ▲                   │ └─ refused ──────▲
 *      └── resumed ── parted (the capsule was paused, or somebody left)
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { hasCode, type Pty, type PtyConnection } from "../../src/sdk/sdk.ts";
import { said } from "./toasts.ts";

export type LineState =
  | { phase: "joining" }
  | { phase: "live" }
  | { phase: "parted" }
  | { phase: "ended"; reason: string };

export interface TerminalSize {
  cols: number;
  rows: number;
}

export interface LineOptions {
  /** Of a session that is there already. */
  tag?: string;
  size: TerminalSize;
  /** Starts a session, or comes back to the one of this tag. */
  connect: (tag: string | undefined, connection: PtyConnection) => Promise<Pty>;
  onTag: (tag: string) => void;
  onOutput: (bytes: Uint8Array) => void;
}

/** Typed before the session is there. */
const waitingMaxChars = 1_000_000;

export class TerminalLine {
  readonly #options: LineOptions;
  readonly #state = signal<LineState>({ phase: "joining" });
  #tag: string | undefined;
  #size: TerminalSize;
  #pty: Pty | undefined;
  #leaving = new AbortController();
  #waiting = "";

  constructor(options: LineOptions) {
    this.#options = options;
    this.#tag = options.tag;
    this.#size = options.size;
    void this.#join();
  }

  get state(): ReadonlySignal<LineState> {
    return this.#state;
  }

  type(text: string): void {
    if (this.#pty !== undefined) void this.#pty.write(text).catch(() => {});
    else if (this.#waiting.length + text.length <= waitingMaxChars) this.#waiting += text;
  }

  resize(size: TerminalSize): void {
    this.#size = size;
    this.#pty?.resize(size.cols, size.rows);
  }

  /** Ends the session's program. */
  kill(): void {
    this.#pty?.kill();
  }

  /** Hangs up; the session lives on. */
  leave(): void {
    this.#become({ phase: "parted" });
    this.#leaving.abort();
  }

  /** After the capsule was resumed. */
  rejoin(): void {
    if (this.#state.value.phase === "parted") void this.#join();
  }

  async #join(): Promise<void> {
    this.#leaving = new AbortController();
    const { signal } = this.#leaving;
    this.#become({ phase: "joining" });
    const onState = (state: "live" | "reconnecting") =>
      signal.aborted || this.#become({ phase: state === "live" ? "live" : "joining" });
    try {
      const pty = await this.#options.connect(this.#tag, { signal, onState });
      this.#joined(pty);
      for await (const bytes of pty) this.#options.onOutput(bytes);
      if (!signal.aborted)
        this.#become({ phase: "ended", reason: `The program ended with exit code ${pty.exitCode}.` });
    } catch (error) {
      if (signal.aborted) return;
      const isPaused = hasCode(error, "invalid_state");
      this.#become(isPaused ? { phase: "parted" } : { phase: "ended", reason: `${said(error)}.` });
    } finally {
      if (!signal.aborted) this.#pty = undefined;
    }
  }

  #joined(pty: Pty): void {
    this.#pty = pty;
    this.#tag = pty.tag;
    this.#options.onTag(pty.tag);
    pty.resize(this.#size.cols, this.#size.rows);
    const typed = this.#waiting;
    this.#waiting = "";
    if (typed !== "") this.type(typed);
  }

  #become(state: LineState): void {
    if (this.#state.value.phase !== "ended") this.#state.value = state;
  }
}
