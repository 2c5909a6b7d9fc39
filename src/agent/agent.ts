/**
 * The host's interface to the agent in a capsule: one method per verb of docs/AGENT-PROTOCOL.md.
 *
 * Everything from the guest is untrusted. A protocol violation ends the connection and rejects every open call with
 * CapsuleError("agent_error"). A request that the guest refuses rejects, or fails its sink, with AgentFailure
 * (failure.ts). No method throws because of the guest or a lost connection; a sink's `failed` is called after the
 * method has returned.
 */
import type { Readable } from "node:stream";
import type { NetworkVerbs } from "./network-verbs.ts";

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
  /** The name of a user of the guest, or a decimal uid. Default: root. */
  user?: string | undefined;
  tag?: string | undefined;
  /** Standard input is a pipe; otherwise it is /dev/null. */
  stdin?: true | undefined;
  /** The process lives on when its client goes. */
  survive?: true | undefined;
}

export interface Started {
  pid: number;
  tag: string;
}

export interface Exit {
  /** 128 + n after death by signal n. */
  exitCode: number;
  /** From spawn to waitpid by the guest's clock, in microseconds. Untrusted: never base a decision on it. */
  guestDurationUs: number;
}

/** Receiver of a process's output, in order. The last call is `exited` or `failed`. */
export interface OutputSink {
  /** Without this method, EXEC does not request the start message, which saves one frame. */
  started?(process: Started): void;
  /**
   * The chunk is valid only during the call. The sink calls `consumed(n)` on the stream when it has processed the
   * bytes, which lets the guest send more.
   */
  output(channel: "stdout" | "stderr" | "pty", chunk: Uint8Array): void;
  /** After `started`, for clients of kept output: how many bytes of both streams come before the first one of `output`. */
  positioned?(offset: number): void;
  exited(exit: Exit): void;
  failed(error: Error): void;
}

export interface RunningStream {
  /** Returns credit to the guest for n bytes handed to `output`. */
  consumed(bytes: number): void;
  /** Kills the tree; `exited` follows. */
  stop(): void;
  /** Ends the stream: kills a foreground tree, or detaches from a session. The sink gets no further calls. */
  cancel(): void;
}

/** A process that reads input from the host. */
export interface InputStream extends RunningStream {
  /**
   * False: wait for the drain before writing more. A terminal with more than 4 MiB queued fails. The bytes must not change
   * afterwards.
   */
  write(bytes: Uint8Array): boolean;
  onDrain(callback: () => void): void;
}

/** A foreground command. Without `stdin` in its command, nothing must be written. */
export interface CommandStream extends InputStream {
  /** The end of its standard input, after what was written. */
  endInput(): void;
}

/** The last call is `ended` or `failed`. */
export interface InputSink {
  /** Standard input is open. */
  opened(): void;
  /** Standard input has ended, or its process has. */
  ended(): void;
  failed(error: Error): void;
}

/** The standard input of a background process. */
export interface ProcessInput extends Pick<CommandStream, "write" | "onDrain" | "endInput"> {
  /** The sink gets no further calls. Written bytes are still passed on, up to 4 MiB of all released inputs of a capsule. */
  release(): void;
}

export interface PtyStream extends InputStream {
  resize(cols: number, rows: number): void;
}

/** Where the output of an attached client begins: with what is kept, now, or after so many bytes of both streams. */
export type OutputStart = "start" | "now" | number;

/** The kept output of a background process, of one stream or of both in the order of arrival. */
export interface KeptOutput {
  size: number;
  /** Bytes of both streams that were written before the kept ones. */
  dropped: number;
  body: Readable;
}

export interface LogsRequest {
  stream: "both" | "stdout" | "stderr";
  /** Only the last lines, so many. */
  tail?: number | undefined;
}

export type Selector = { pid: number } | { tag: string };

export interface GuestProcess {
  pid: number;
  tag: string;
  cmd: string;
  args: string[];
  /** These three are missing from agents of earlier releases. The name of a user, or a decimal uid. */
  user?: string;
  /** Unix time in milliseconds. */
  startedAtMs?: number;
  /** How the API started it, if it did. */
  kind?: "exec" | "pty" | "other";
}

export interface GuestEntry {
  /** Bytes as text: see wire/file-names.ts. So are `path` and `target`, and the paths of requests. */
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

export interface ListRequest {
  path: string;
  depth: number;
  entriesMax: number;
  /** Most bytes of the guest's encoding of all entries. */
  bytesMax: number;
}

/** Receives the items of a listing one by one. An error that it throws ends the listing. */
export interface ListingSink<Item> {
  item(item: Item): void;
  /** Called before that many further bytes are held for an incomplete item. */
  reserve(bytes: number): void;
}

/** The names in the archive are relative to `base`, or else to `/`. */
export interface ArchiveRequest {
  paths: string[];
  base?: string | undefined;
}

/** Bytes of a file by their positions, the last one included; `last` undefined: to the end. Or so many at the end. */
export type ByteRange = { first: number; last?: number | undefined } | { suffix: number };

export interface FileAttributes {
  /** Missing directories above the file are made. */
  parents?: boolean | undefined;
  /** The bits of chmod. */
  mode?: number | undefined;
  /** A name of the guest, or a decimal uid; the group is that user's first. */
  owner?: string | undefined;
}

export interface FileMove {
  from: string;
  to: string;
  /** A file or link at `to` is replaced. */
  overwrite: boolean;
}

export interface FileOwners {
  /** Names of the guest, or decimal numbers. Undefined: it stays. */
  owner?: string | undefined;
  group?: string | undefined;
}

export interface Upload {
  /**
   * Resolves when more may be written. Rejects when the guest has refused the upload. One call at a time. The bytes
   * must not change afterwards.
   */
  write(bytes: Uint8Array): Promise<void>;
  /** Sets the target path of an upload that was started without one. */
  target(path: string): void;
  /** Replaces the attributes that the upload was started with. */
  attributes(attributes: FileAttributes): void;
  /** Ends the data. Resolves after the guest has closed and renamed the file. */
  end(): Promise<{ bytes: number }>;
  /** Aborts the upload. An existing file at the target stays unchanged. */
  cancel(): void;
}

export interface WatchRequest {
  path: string;
  /** The directories below it too. */
  recursive: boolean;
  directoriesMax: number;
}

/** Paths are absolute, and those of the directory or below it. */
export type GuestChange =
  | { event: "create" | "write" | "remove" | "chmod"; path: string }
  | { event: "rename"; path: string; to: string };

/** `overflow`: changes were lost. `end`: the directory is gone. */
export type TakenChange = GuestChange | "overflow" | "end";

export interface ChangeSink {
  /** Every change from now on follows. */
  watching(): void;
  /** There may be something to take. */
  available(): void;
  failed(error: Error): void;
}

export interface ChangeStream {
  /** The next change; undefined: there is none yet. The guest gets credit for what is taken, and what it does not get in time it loses. */
  take(): TakenChange | undefined;
  /** The sink gets no further calls. */
  cancel(): void;
}

/** The guest's word on its memory and its root file system. */
export interface GuestUsage {
  memoryTotalBytes: number;
  /** Without cache that can be dropped. */
  memoryUsedBytes: number;
  diskTotalBytes: number;
  diskUsedBytes: number;
}

/** Saving and restoring the VM. */
export interface PowerVerbs {
  probe(): Promise<void>;
  /** Resolves with what could not be done and need not be, in sentences of the guest for the log. */
  wake(wake: Wake): Promise<string[]>;
  /** Also suspends the detection of an unresponsive guest until `thaw` or `wake`, because the VM may be stopped. */
  freeze(): Promise<{ frozen: boolean }>;
  thaw(): Promise<void>;
  /**
   * Asks the guest to end its programs within `termMs` and to power itself off; resolves when it begins. An agent of an earlier
   * release gives them half a second.
   */
  halt(termMs: number): Promise<void>;
  /** Its root file system takes the size that its disk was given; also before `thaw`. */
  grow(diskBytes: number): Promise<void>;
}

// When an abort signal fires, the call is cancelled and rejects with the signal's reason.

export interface ProcessVerbs {
  /** Foreground: killed when cancelled or when the connection ends. */
  run(command: Command, sink: OutputSink): CommandStream;
  start(command: Command, signal?: AbortSignal): Promise<Started>;
  attach(selector: Selector, sink: OutputSink): RunningStream;
  /** From the kept output, also of a process that has ended. Fails with "invalid" where less is written. */
  attachFrom(selector: Selector, start: OutputStart, sink: OutputSink): RunningStream;
  logs(selector: Selector, request: LogsRequest, signal?: AbortSignal): Promise<KeptOutput>;
  /** Fails with "conflict" where the process has no open standard input. */
  input(selector: Selector, sink: InputSink): ProcessInput;
  /** The exit of a background process that runs or has ended within the last five minutes. */
  exit(selector: Selector, signal?: AbortSignal): Promise<Exit>;
  signal(selector: Selector, signal: "SIGKILL" | "SIGTERM", abandoned?: AbortSignal): Promise<void>;
  processes(sink: ListingSink<GuestProcess>, signal?: AbortSignal): Promise<void>;
  pty(command: Command, size: { cols: number; rows: number }, sink: OutputSink): PtyStream;
  /** `isWhole`: with the last output first, instead of what was missed. */
  connect(tag: string, sink: OutputSink, isWhole?: boolean): PtyStream;
}

export interface FileVerbs {
  /**
   * With a range, `body` has the part of it that lies within `size`; a body that ends before fails. A size of 0 may
   * mean that it is unknown; `body` then has everything.
   */
  read(path: string, signal?: AbortSignal, range?: ByteRange): Promise<{ size: number; body: Readable }>;
  /** Without `path`, the guest stores the data in a temporary file until `target` is called. */
  write(path: string | undefined, attributes?: FileAttributes): Upload;
  list(request: ListRequest, sink: ListingSink<GuestEntry>, signal?: AbortSignal): Promise<void>;
  mkdir(path: string, signal?: AbortSignal): Promise<GuestEntry>;
  remove(path: string, signal?: AbortSignal): Promise<void>;
  /** A tar. Resolves once all paths were found; a later failure destroys the stream. */
  archive(request: ArchiveRequest, signal?: AbortSignal): Promise<Readable>;
  /** A tar, into the directory. A failure leaves the files that were written before it. */
  extract(path: string): Omit<Upload, "target" | "attributes">;
  /** A link at the end is not followed. */
  stat(path: string, signal?: AbortSignal): Promise<GuestEntry>;
  /** The entry at its new place. */
  move(move: FileMove, signal?: AbortSignal): Promise<GuestEntry>;
  chmod(path: string, mode: number, recursive: boolean, signal?: AbortSignal): Promise<void>;
  chown(path: string, owners: FileOwners, recursive: boolean, signal?: AbortSignal): Promise<void>;
  /** A link at the end is refused. */
  watch(request: WatchRequest, sink: ChangeSink): ChangeStream;
}

/** A verb that the agent does not list in its WELCOME rejects, or fails its sink, with CapsuleError("conflict"). */
export interface Agent extends PowerVerbs, ProcessVerbs, FileVerbs, NetworkVerbs {
  /** Resolves with the reason when the connection is lost or closed. Never rejects. */
  readonly closed: Promise<Error>;
  /** From WELCOME: the guest has had its WAKE. */
  readonly awake: boolean;
  /** From WELCOME: it has `grow`. */
  readonly canGrow: boolean;
  /** From WELCOME: the version of the protocol on this connection. */
  readonly protocol: number;
  usage(signal?: AbortSignal): Promise<GuestUsage>;
  /** Closes the connection. Sessions in the guest continue. */
  close(reason?: Error): void;
}
