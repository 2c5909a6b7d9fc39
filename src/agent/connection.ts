/** The agent of one capsule, live: each verb sent over the channel. */
import type { Readable } from "node:stream";
import { CapsuleError } from "../wire/errors.ts";
import type {
  Agent,
  Command,
  Exit,
  GuestEntry,
  GuestProcess,
  OutputSink,
  PtyStream,
  RunningStream,
  Selector,
  Started,
  Upload,
  Wake,
} from "./agent.ts";
import type { Channel } from "./channel.ts";
import { exitOf } from "./exit.ts";
import { shakeHands } from "./handshake.ts";
import { Listing } from "./listing.ts";
import { commandOutputs, OutputStream } from "./output.ts";
import {
  decodeEmpty,
  decodeEntry,
  decodeFrozen,
  decodeStarted,
  execRequest,
  limits,
  listRequest,
  readEntry,
  readProcess,
  request,
  selectorRequest,
  Verb,
  type Welcome,
  wakeRequest,
} from "./protocol.ts";
import { FileReading } from "./reading.ts";
import { Terminal } from "./terminal.ts";
import { FileUpload } from "./upload.ts";

export interface ConnectOptions {
  /** For the whole of connecting and shaking hands. */
  deadlineMs: number;
  /** Gives up before the deadline. */
  signal?: AbortSignal | undefined;
  /** An agent that leaves a probe and all else unanswered for this long is hung up on, for a SilenceError. Default 180 s. */
  silenceMs?: number | undefined;
}

/**
 * Connects to an agent's UNIX socket, waiting for a guest that is still booting. Rejects with
 * CapsuleError("agent_error") at the deadline, or at once when the socket is not there or closes.
 */
export async function connectAgent(socketPath: string, options: ConnectOptions): Promise<Agent> {
  const { channel, welcome } = await shakeHands(socketPath, { ...options, silenceMs: options.silenceMs ?? 180_000 });
  return new Connection(channel, welcome);
}

class Connection implements Agent {
  readonly closed: Promise<Error>;
  readonly awake: boolean;
  readonly #channel: Channel;

  constructor(channel: Channel, welcome: Welcome) {
    this.#channel = channel;
    this.closed = channel.closed;
    this.awake = welcome.awake;
  }

  probe(): Promise<void> {
    return this.#channel.call(Verb.PROBE, request(Verb.PROBE), decodeEmpty);
  }

  wake(wake: Wake): Promise<void> {
    this.#channel.allowSilence(false);
    const now = BigInt(Date.now()) * 1_000_000n;
    return this.#channel.call(Verb.WAKE, wakeRequest(wake, now), decodeEmpty);
  }

  /** Until the guest is thawed or woken it may be stopped altogether, so its silence is no sign of death. */
  async freeze(): Promise<{ frozen: boolean }> {
    this.#channel.allowSilence(true);
    const answer = this.#channel.call(Verb.FREEZE, request(Verb.FREEZE), decodeFrozen);
    this.#channel.flush(); // the guest can be at work while we make ready for what comes
    return await answer;
  }

  thaw(): Promise<void> {
    this.#channel.allowSilence(false);
    return this.#channel.call(Verb.THAW, request(Verb.THAW), decodeEmpty);
  }

  run(command: Command, sink: OutputSink): RunningStream {
    const request = execRequest(command, sink.started === undefined ? "outcome" : "foreground");
    const stream = new OutputStream(this.#channel, Verb.EXEC, request, commandOutputs, sink);
    this.#channel.flush(); // the guest can be at work while we do the rest of what a command takes
    return stream;
  }

  start(command: Command, signal?: AbortSignal): Promise<Started> {
    return this.#channel.call(Verb.EXEC, execRequest(command, "background"), decodeStarted, signal);
  }

  attach(selector: Selector, sink: OutputSink): RunningStream {
    return new OutputStream(this.#channel, Verb.ATTACH, selectorRequest(Verb.ATTACH, selector), commandOutputs, sink);
  }

  exit(selector: Selector, signal?: AbortSignal): Promise<Exit> {
    return exitOf(this.#channel, selector, signal);
  }

  signal(selector: Selector, signal: "SIGKILL" | "SIGTERM", abandoned?: AbortSignal): Promise<void> {
    const number = signal === "SIGKILL" ? 9 : 15;
    return this.#channel.call(Verb.SIGNAL, selectorRequest(Verb.SIGNAL, selector).u8(number), decodeEmpty, abandoned);
  }

  processes(signal?: AbortSignal): Promise<GuestProcess[]> {
    const bounds = { items: limits.processes, bytes: limits.processesBytes };
    return Listing.of(this.#channel, Verb.PROCESSES, request(Verb.PROCESSES), readProcess, bounds, signal);
  }

  pty(command: Command, size: { cols: number; rows: number }, sink: OutputSink): PtyStream {
    return Terminal.start(this.#channel, command, size, sink);
  }

  connect(tag: string, sink: OutputSink): PtyStream {
    return Terminal.rejoin(this.#channel, tag, sink);
  }

  read(path: string, signal?: AbortSignal): Promise<{ size: number; body: Readable }> {
    return FileReading.of(this.#channel, path, signal);
  }

  write(path: string | undefined): Upload {
    return new FileUpload(this.#channel, path);
  }

  list(path: string, depth: number, limit: number, signal?: AbortSignal): Promise<GuestEntry[]> {
    const bounds = { items: limit, bytes: limits.listingBytes };
    return Listing.of(this.#channel, Verb.LIST, listRequest(path, depth, limit), readEntry, bounds, signal);
  }

  mkdir(path: string, signal?: AbortSignal): Promise<GuestEntry> {
    return this.#channel.call(Verb.MKDIR, request(Verb.MKDIR).str(path), decodeEntry, signal);
  }

  remove(path: string, signal?: AbortSignal): Promise<void> {
    return this.#channel.call(Verb.REMOVE, request(Verb.REMOVE).str(path), decodeEmpty, signal);
  }

  close(reason?: Error): void {
    this.#channel.close(reason ?? new CapsuleError("agent_error", "the connection to the guest agent was closed"));
  }
}
