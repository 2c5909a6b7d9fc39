/** A connection to a capsule's agent: sends each verb over the channel. */
import type { Duplex, Readable } from "node:stream";
import { CapsuleError } from "../wire/errors.ts";
import type {
  Agent,
  ArchiveRequest,
  ByteRange,
  ChangeSink,
  ChangeStream,
  Command,
  CommandStream,
  Exit,
  FileAttributes,
  FileMove,
  FileOwners,
  GuestEntry,
  GuestProcess,
  GuestUsage,
  InputSink,
  KeptOutput,
  ListingSink,
  ListRequest,
  LogsRequest,
  OutputSink,
  OutputStart,
  ProcessInput,
  PtyStream,
  RunningStream,
  Selector,
  Started,
  Upload,
  Wake,
  WatchRequest,
} from "./agent.ts";
import type { Channel } from "./channel.ts";
import { dial } from "./dial.ts";
import { downloadArchive, downloadFile, downloadLog } from "./download.ts";
import { chmodRequest, chownRequest, moveRequest } from "./file-requests.ts";
import { handshake } from "./handshake.ts";
import { LoggedStream } from "./kept-output.ts";
import { Listing } from "./listing.ts";
import type { GuestPort } from "./network-verbs.ts";
import { listPorts } from "./ports.ts";
import { InputOfProcess, type Lingering } from "./process-input.ts";
import { readLongProcess, readProcess } from "./process-records.ts";
import { commandOutputs, exitOf, ForegroundStream, OutputStream, Terminal } from "./process-streams.ts";
import {
  decodeEmpty,
  decodeEntry,
  decodeFrozen,
  decodeStarted,
  decodeWoken,
  execRequest,
  execVerb,
  limits,
  listRequest,
  readEntry,
  request,
  selectorRequest,
  Verb,
  type VersionRange,
  type Welcome,
  wakeRequest,
} from "./protocol.ts";
import { FileUpload } from "./upload.ts";
import { decodeUsage } from "./usage.ts";
import { WatchStream } from "./watch.ts";

export interface ConnectOptions {
  /** For connecting and the handshake together. */
  deadlineMs: number;
  /** Aborts connecting before the deadline. */
  signal?: AbortSignal | undefined;
  /** The version of the protocol that the agent is known to speak. */
  protocol?: number | undefined;
  /** The versions that this side speaks, by default `protocolVersions`. */
  versions?: VersionRange | undefined;
  /**
   * The connection is closed with a SilenceError when a probe and all requests are unanswered for this long. Default
   * 180 s.
   */
  silenceMs?: number | undefined;
}

/** For an agent without HALT: its own image knows the signal that it powers off by. */
const powerOff: Command = { cmd: "/bin/sh", args: ["-c", "sync; poweroff"] };

/**
 * Connects to an agent's UNIX socket and waits for a guest that is still booting. Rejects with
 * CapsuleError("agent_error") at the deadline, or at once when the socket does not exist or closes.
 */
export async function connectAgent(socketPath: string, options: ConnectOptions): Promise<Agent> {
  const { channel, welcome } = await handshake(socketPath, { ...options, silenceMs: options.silenceMs ?? 180_000 });
  return new Connection(channel, welcome);
}

class Connection implements Agent {
  readonly closed: Promise<Error>;
  readonly awake: boolean;
  readonly protocol: number;
  readonly canGrow: boolean;
  readonly #channel: Channel;
  readonly #lingering: Lingering = { bytes: 0 };

  constructor(channel: Channel, welcome: Welcome) {
    this.#channel = channel;
    this.closed = channel.closed;
    this.awake = welcome.awake;
    this.protocol = welcome.version;
    this.canGrow = channel.verbs.has(Verb.GROW);
  }

  probe(): Promise<void> {
    return this.#channel.call(Verb.PROBE, request(Verb.PROBE), decodeEmpty);
  }

  wake(wake: Wake): Promise<string[]> {
    this.#channel.resumeLiveness();
    const now = BigInt(Date.now()) * 1_000_000n;
    return this.#channel.call(Verb.WAKE, wakeRequest(wake, now), decodeWoken);
  }

  /** Until THAW or WAKE the guest may be stopped, so an unanswered probe does not mean that it hangs. */
  async freeze(): Promise<{ frozen: boolean }> {
    this.#channel.suspendLiveness();
    const answer = this.#channel.call(Verb.FREEZE, request(Verb.FREEZE), decodeFrozen);
    this.#channel.flush(); // the guest freezes while the host prepares the save
    return await answer;
  }

  thaw(): Promise<void> {
    this.#channel.resumeLiveness();
    return this.#channel.call(Verb.THAW, request(Verb.THAW), decodeEmpty);
  }

  async halt(termMs: number): Promise<void> {
    this.#channel.suspendLiveness();
    if (this.#channel.verbs.has(Verb.HALT))
      await this.#channel.call(Verb.HALT, request(Verb.HALT).u32(termMs), decodeEmpty);
    else await this.start(powerOff);
  }

  grow(diskBytes: number): Promise<void> {
    return this.#channel.call(Verb.GROW, request(Verb.GROW).u64(BigInt(diskBytes)), decodeEmpty);
  }

  usage(signal?: AbortSignal): Promise<GuestUsage> {
    return this.#channel.call(Verb.USAGE, request(Verb.USAGE), decodeUsage, signal);
  }

  run(command: Command, sink: OutputSink): CommandStream {
    const stream = ForegroundStream.start(this.#channel, command, sink);
    this.#channel.flush(); // the guest starts the command while the host finishes its own bookkeeping
    return stream;
  }

  start(command: Command, signal?: AbortSignal): Promise<Started> {
    return this.#channel.call(execVerb(command), execRequest(command, "background"), decodeStarted, signal);
  }

  attach(selector: Selector, sink: OutputSink): RunningStream {
    return new OutputStream(this.#channel, Verb.ATTACH, selectorRequest(Verb.ATTACH, selector), commandOutputs, sink);
  }

  attachFrom(selector: Selector, start: OutputStart, sink: OutputSink): RunningStream {
    return LoggedStream.open(this.#channel, selector, start, sink);
  }

  logs(selector: Selector, asked: LogsRequest, signal?: AbortSignal): Promise<KeptOutput> {
    return downloadLog(this.#channel, selector, asked, signal);
  }

  input(selector: Selector, sink: InputSink): ProcessInput {
    return new InputOfProcess(this.#channel, selector, sink, this.#lingering);
  }

  exit(selector: Selector, signal?: AbortSignal): Promise<Exit> {
    return exitOf(this.#channel, selector, signal);
  }

  signal(selector: Selector, signal: "SIGKILL" | "SIGTERM", abandoned?: AbortSignal): Promise<void> {
    const number = signal === "SIGKILL" ? 9 : 15;
    return this.#channel.call(Verb.SIGNAL, selectorRequest(Verb.SIGNAL, selector).u8(number), decodeEmpty, abandoned);
  }

  processes(sink: ListingSink<GuestProcess>, signal?: AbortSignal): Promise<void> {
    const bounds = { items: limits.processes, bytes: limits.processesBytes };
    const isLong = this.#channel.verbs.has(Verb.LIST_PROCESSES);
    const verb = isLong ? Verb.LIST_PROCESSES : Verb.PROCESSES;
    const decoder = { readItem: isLong ? readLongProcess : readProcess, bounds, sink };
    return Listing.of(this.#channel, verb, request(verb), decoder, signal);
  }

  pty(command: Command, size: { cols: number; rows: number }, sink: OutputSink): PtyStream {
    return Terminal.start(this.#channel, command, size, sink);
  }

  connect(tag: string, sink: OutputSink, isWhole = false): PtyStream {
    return Terminal.connect(this.#channel, tag, sink, isWhole);
  }

  read(path: string, signal?: AbortSignal, range?: ByteRange): Promise<{ size: number; body: Readable }> {
    return downloadFile(this.#channel, path, signal, range);
  }

  write(path: string | undefined, attributes?: FileAttributes): Upload {
    return new FileUpload(this.#channel, path, attributes);
  }

  list(list: ListRequest, sink: ListingSink<GuestEntry>, signal?: AbortSignal): Promise<void> {
    const { path, depth, entriesMax, bytesMax } = list;
    const decoder = { readItem: readEntry, bounds: { items: entriesMax, bytes: bytesMax }, sink };
    return Listing.of(this.#channel, Verb.LIST, listRequest(path, depth, entriesMax), decoder, signal);
  }

  mkdir(path: string, signal?: AbortSignal): Promise<GuestEntry> {
    return this.#channel.call(Verb.MKDIR, request(Verb.MKDIR).path(path), decodeEntry, signal);
  }

  remove(path: string, signal?: AbortSignal): Promise<void> {
    return this.#channel.call(Verb.REMOVE, request(Verb.REMOVE).path(path), decodeEmpty, signal);
  }

  archive(asked: ArchiveRequest, signal?: AbortSignal): Promise<Readable> {
    return downloadArchive(this.#channel, asked, signal);
  }

  extract(path: string): Omit<Upload, "target" | "attributes"> {
    return FileUpload.ofArchive(this.#channel, path);
  }

  stat(path: string, signal?: AbortSignal): Promise<GuestEntry> {
    return this.#channel.call(Verb.STAT, request(Verb.STAT).path(path), decodeEntry, signal);
  }

  move(move: FileMove, signal?: AbortSignal): Promise<GuestEntry> {
    return this.#channel.call(Verb.MOVE, moveRequest(move), decodeEntry, signal);
  }

  chmod(path: string, mode: number, recursive: boolean, signal?: AbortSignal): Promise<void> {
    return this.#channel.call(Verb.CHMOD, chmodRequest(path, mode, recursive), decodeEmpty, signal);
  }

  chown(path: string, owners: FileOwners, recursive: boolean, signal?: AbortSignal): Promise<void> {
    return this.#channel.call(Verb.CHOWN, chownRequest(path, owners, recursive), decodeEmpty, signal);
  }

  watch(asked: WatchRequest, sink: ChangeSink): ChangeStream {
    return new WatchStream(this.#channel, asked, sink);
  }

  dial(port: number, signal?: AbortSignal): Promise<Duplex> {
    return dial(this.#channel, port, signal);
  }

  ports(signal?: AbortSignal): Promise<GuestPort[]> {
    return listPorts(this.#channel, signal);
  }

  close(reason?: Error): void {
    this.#channel.close(reason ?? new CapsuleError("agent_error", "the connection to the guest agent was closed"));
  }
}
