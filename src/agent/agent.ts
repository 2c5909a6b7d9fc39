/**
 * The program inside a capsule, as the host speaks to it: one method per verb of docs/AGENT-PROTOCOL.md.
 * Everything a guest says is untrusted; a protocol violation ends the connection and rejects every open call with
 * CapsuleError("agent_error"). What the guest refuses rejects (or fails the sink) with AgentFailure, see failure.ts. Nothing here
 * throws for what a guest or a lost connection does: a stream's sink hears `failed`, never before the call has returned.
 */
import type { Readable } from "node:stream";

export interface Wake {
  /** Bytes for the guest's random generator, at least 32. */
  entropy: Uint8Array;
  hostname: string;
  /** 32 lower-case hex digits. */
  machineId: string;
}

export interface Command {
  cmd: string;
  args: string[];
  envs?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  tag?: string | undefined;
}

export interface Started {
  pid: number;
  tag: string;
}

export interface Exit {
  /** 128 + n after death by signal n. */
  exitCode: number;
  /** Spawn to waitpid by the guest's clock, microseconds. A guest can lie: never use it for a decision. */
  guestDurationUs: number;
}

/** What a stream of process output delivers, in order. `exited` is the last call; or `failed`, and nothing after it. */
export interface OutputSink {
  /** Without it, a guest that runs a command is not asked to tell when it starts: one message less. */
  started?(process: Started): void;
  /**
   * A chunk; ours until it returns, so copy what must live longer. The sink calls `consumed(n)` on the handle when the
   * bytes are dealt with: that is the flow control.
   */
  output(channel: "stdout" | "stderr" | "pty", chunk: Uint8Array): void;
  exited(exit: Exit): void;
  failed(error: Error): void;
}

export interface RunningStream {
  /** Returns credit to the guest for n bytes handed to `output`. */
  consumed(bytes: number): void;
  /** Kills the tree; `exited` follows. */
  stop(): void;
  /** Drops the stream: kills a foreground tree, detaches from a session. No further calls to the sink. */
  cancel(): void;
}

export interface PtyStream extends RunningStream {
  /** False: wait for the drain before writing more; 4 MiB beyond it the stream fails. The bytes must not change afterwards. */
  write(bytes: Uint8Array): boolean;
  onDrain(callback: () => void): void;
  resize(cols: number, rows: number): void;
}

export type Selector = { pid: number } | { tag: string };

export interface GuestProcess {
  pid: number;
  tag: string;
  cmd: string;
  args: string[];
}

export interface GuestEntry {
  /** UTF-8, with U+FFFD for bytes that are none. */
  name: string;
  path: string;
  type: "file" | "directory" | "symlink";
  size: number;
  /** st_mode, all bits. */
  mode: number;
  owner: string;
  group: string;
  /** Unix seconds. */
  mtime: number;
  target: string | null;
}

export interface Upload {
  /**
   * Resolves when more may be written (flow control). Rejects when the guest refused: stop sending. One at a time; the
   * bytes must not change afterwards.
   */
  write(bytes: Uint8Array): Promise<void>;
  /** Names the target when it was not known at the start. */
  target(path: string): void;
  /** Ends the data; resolves after close and rename in the guest. */
  end(): Promise<{ bytes: number }>;
  /** Abandons: the old file stays. */
  cancel(): void;
}

export interface Agent {
  /** Resolves when the connection is lost or closed, with the reason. Never rejects. */
  readonly closed: Promise<Error>;
  /** From WELCOME. */
  readonly awake: boolean;
  probe(): Promise<void>;
  wake(wake: Wake): Promise<void>;
  /** From here until `thaw` or `wake` the guest may fall silent (a stopped VM) without being given up. */
  freeze(): Promise<{ frozen: boolean }>;
  thaw(): Promise<void>;

  // A call with an abort signal is dropped when it fires, and rejects with the signal's reason.

  /** Foreground: killed when cancelled or when the connection ends. */
  run(command: Command, sink: OutputSink): RunningStream;
  start(command: Command, signal?: AbortSignal): Promise<Started>;
  attach(selector: Selector, sink: OutputSink): RunningStream;
  /** How a background process ends, or has ended within the last minutes. */
  exit(selector: Selector, signal?: AbortSignal): Promise<Exit>;
  signal(selector: Selector, signal: "SIGKILL" | "SIGTERM", abandoned?: AbortSignal): Promise<void>;
  processes(signal?: AbortSignal): Promise<GuestProcess[]>;
  pty(command: Command, size: { cols: number; rows: number }, sink: OutputSink): PtyStream;
  connect(tag: string, sink: OutputSink): PtyStream;

  read(path: string, signal?: AbortSignal): Promise<{ size: number; body: Readable }>;
  /** `path` undefined: the guest spools until `target` is called. */
  write(path: string | undefined): Upload;
  list(path: string, depth: number, limit: number, signal?: AbortSignal): Promise<GuestEntry[]>;
  mkdir(path: string, signal?: AbortSignal): Promise<GuestEntry>;
  remove(path: string, signal?: AbortSignal): Promise<void>;

  /** Lets go of the connection; sessions in the guest live on. */
  close(reason?: Error): void;
}
