/**
 * One terminal session as its view speaks to it: joins, and joins again when the line is cut, because the session lives
 * on inside the capsule and the server replays what was missed.
 *
 *   joining ── started ──► live ── exit ──► ended
 *      ▲   └── refused ──────┼──────────────►┘
 *      └────── line cut ─────┘        parted: somebody left, or the capsule was paused
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import type { PtyClientMessage, PtyServerMessage } from "../../src/wire/pty-messages.ts";

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
  connect: () => Promise<WebSocket>;
  onTag: (tag: string) => void;
  onOutput: (bytes: Uint8Array) => void;
}

/** The capsule was paused or is gone; whoever shows this line knows when to join again. */
const partingCodes = [4404, 4409];
const waitsMs = [250, 1_000, 2_000, 5_000] as const;
/** Of one message; the server takes 2 MiB, base64 adds a third. */
const inputMaxBytes = 48 * 1024;

export class TerminalLine {
  readonly #options: LineOptions;
  readonly #state = signal<LineState>({ phase: "joining" });
  #tag: string | undefined;
  #size: TerminalSize;
  #socket: WebSocket | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  /** Typed while the line was cut. */
  #waiting: Uint8Array[] = [];

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
    const bytes = new TextEncoder().encode(text);
    if (this.#state.value.phase === "live") this.#input(bytes);
    else if (this.#state.value.phase !== "ended") this.#waiting.push(bytes);
  }

  resize(size: TerminalSize): void {
    this.#size = size;
    if (this.#state.value.phase === "live") this.#send({ type: "resize", ...size });
  }

  /** Ends the session's process. */
  kill(): void {
    if (this.#state.value.phase === "live") this.#send({ type: "kill" });
    else this.leave();
  }

  /** Hangs up; the session lives on. */
  leave(): void {
    this.#become({ phase: "parted" });
    clearTimeout(this.#timer);
    this.#socket?.close();
    this.#socket = undefined;
  }

  /** After the capsule was resumed. */
  rejoin(): void {
    if (this.#state.value.phase === "parted") void this.#join();
  }

  async #join(): Promise<void> {
    this.#become({ phase: "joining" });
    try {
      const socket = await this.#options.connect();
      if (this.#state.value.phase !== "joining") return socket.close();
      this.#socket = socket;
      socket.onopen = () => this.#open();
      socket.onmessage = ({ data }) => this.#hear(JSON.parse(data as string) as PtyServerMessage);
      socket.onclose = ({ code }) => this.#closed(socket, code);
    } catch {
      this.#later();
    }
  }

  #open(): void {
    if (this.#tag === undefined) this.#send({ type: "start", ...this.#size });
    else this.#send({ type: "connect", tag: this.#tag });
  }

  #hear(message: PtyServerMessage): void {
    switch (message.type) {
      case "started":
        this.#started(message.tag);
        return;
      case "output":
        this.#options.onOutput(Uint8Array.from(atob(message.data), (char) => char.charCodeAt(0)));
        return;
      case "exit":
        this.#become({ phase: "ended", reason: `The program ended with exit code ${message.exit_code}.` });
        return;
      case "error":
        if (message.fatal && this.#state.value.phase === "joining")
          this.#become({ phase: "ended", reason: message.data });
        return;
      case "ping":
        return;
      default:
        message satisfies never;
    }
  }

  #started(tag: string): void {
    this.#failures = 0;
    this.#tag = tag;
    this.#options.onTag(tag);
    this.#become({ phase: "live" });
    this.#send({ type: "resize", ...this.#size });
    for (const bytes of this.#waiting.splice(0)) this.#input(bytes);
  }

  #closed(socket: WebSocket, code: number): void {
    if (this.#socket !== socket) return;
    this.#socket = undefined;
    if (this.#state.value.phase === "ended") return;
    if (partingCodes.includes(code)) this.#become({ phase: "parted" });
    else this.#later();
  }

  #later(): void {
    if (this.#state.value.phase === "ended" || this.#state.value.phase === "parted") return;
    this.#become({ phase: "joining" });
    this.#timer = setTimeout(() => void this.#join(), waitsMs[Math.min(this.#failures++, waitsMs.length - 1)]);
  }

  #become(state: LineState): void {
    if (this.#state.value.phase !== "ended") this.#state.value = state;
  }

  #input(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length; at += inputMaxBytes) {
      this.#send({ type: "input", data: base64(bytes.subarray(at, at + inputMaxBytes)) });
    }
  }

  #send(message: PtyClientMessage): void {
    this.#socket?.send(JSON.stringify(message));
  }
}

function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
