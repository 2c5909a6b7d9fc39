/**
 * The connection of one terminal view to its session. The SDK restores a broken connection; this adds input typed while
 * the session starts, and capsules that are paused and resumed.
 *
 *   joining ── joined ──► live ── exit ──► ended
 *      ▲                   │ └─ refused ──────▲
 *      └── resumed ── detached (the capsule was paused, or the view was closed)
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { hasCode, type Pty, type PtyConnection } from "../../src/sdk/sdk.ts";
import { messageOf } from "./toasts.ts";

export type LineState =
  | { phase: "joining" }
  | { phase: "live" }
  | { phase: "detached" }
  | { phase: "ended"; reason: string };

export interface TerminalSize {
  cols: number;
  rows: number;
}

export interface LineOptions {
  /** Tag of an existing session. */
  tag?: string;
  size: TerminalSize;
  /** Starts a session, or joins the one with this tag. */
  connect: (tag: string | undefined, connection: PtyConnection) => Promise<Pty>;
  onTag: (tag: string) => void;
  onOutput: (bytes: Uint8Array) => void;
}

/** Limit of the input that is typed before the session has started. */
const waitingMaxChars = 1_000_000;

export class TerminalLine {
  readonly #options: LineOptions;
  readonly #state = signal<LineState>({ phase: "joining" });
  #tag: string | undefined;
  #size: TerminalSize;
  #pty: Pty | undefined;
  #connection = new AbortController();
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

  /** Closes the connection; the session goes on. */
  disconnect(): void {
    this.#become({ phase: "detached" });
    this.#connection.abort();
  }

  /** After the capsule was resumed. */
  rejoin(): void {
    if (this.#state.value.phase === "detached") void this.#join();
  }

  async #join(): Promise<void> {
    this.#connection = new AbortController();
    const { signal } = this.#connection;
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
      this.#become(isPaused ? { phase: "detached" } : { phase: "ended", reason: `${messageOf(error)}.` });
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
