/**
 * An agent without a guest: a few built-in commands, and files in a map. Tests control running commands through `runs`.
 */
import { type Duplex, duplexPair, Readable } from "node:stream";
import type {
  Agent,
  ArchiveRequest,
  ByteRange,
  ChangeSink,
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
  Selector,
  Started,
  Upload,
  WatchRequest,
} from "../../src/agent/agent.ts";
import { partOf } from "../../src/agent/byte-range.ts";
import { ConnectionReset } from "../../src/agent/dial.ts";
import { AgentFailure, type Failure } from "../../src/agent/failure.ts";
import type { GuestPort } from "../../src/agent/network-verbs.ts";
import type { ErrorCode } from "../../src/wire/errors.ts";
import { FakeWatch } from "./watch.ts";

/** A program's input. It has no flow control: a test sets `isFull`, and calls `drain`. */
class FakeInput {
  readonly input: Buffer[] = [];
  isFull = false;
  hasInputEnded = false;
  #onDrain = () => {};

  write(bytes: Uint8Array): boolean {
    this.input.push(Buffer.from(bytes));
    return !this.isFull;
  }

  onDrain(callback: () => void): void {
    this.#onDrain = callback;
  }

  drain(): void {
    this.isFull = false;
    this.#onDrain();
  }

  endInput(): void {
    this.hasInputEnded = true;
  }
}

/** A client that writes to a background process. */
export class FakeProcessInput extends FakeInput implements ProcessInput {
  readonly selector: Selector;
  readonly sink: InputSink;
  isReleased = false;

  constructor(selector: Selector, sink: InputSink) {
    super();
    this.selector = selector;
    this.sink = sink;
  }

  release(): void {
    this.isReleased = true;
  }
}

/** A running command, with methods that act as the guest. */
export class FakeRun extends FakeInput implements CommandStream {
  readonly command: Command;
  readonly sink: OutputSink;
  consumedBytes = 0;
  stopped = false;
  cancelled = false;
  #hasEnded = false;

  constructor(command: Command, sink: OutputSink) {
    super();
    this.command = command;
    this.sink = sink;
  }

  consumed(bytes: number): void {
    this.consumedBytes += bytes;
  }

  stop(): void {
    this.stopped = true;
    queueMicrotask(() => this.exit(137));
  }

  cancel(): void {
    this.cancelled = true;
    this.#hasEnded = true;
  }

  print(channel: "stdout" | "stderr" | "pty", bytes: Uint8Array | string): void {
    if (!this.#hasEnded) this.sink.output(channel, Buffer.from(bytes));
  }

  exit(exitCode: number): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.sink.exited({ exitCode, guestDurationUs: 1_000 });
  }

  fail(error: Error): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.sink.failed(error);
  }
}

/** A terminal that echoes; a test that sends much turns the echo off. */
export class FakePty extends FakeRun implements PtyStream {
  readonly size: { cols: number; rows: number };
  echoes = true;

  constructor(command: Command, size: { cols: number; rows: number }, sink: OutputSink) {
    super(command, sink);
    this.size = size;
  }

  override write(bytes: Uint8Array): boolean {
    if (this.echoes) this.print("pty", bytes);
    return super.write(bytes);
  }

  resize(cols: number, rows: number): void {
    Object.assign(this.size, { cols, rows });
  }
}

/** The built-in commands; `hang` runs until the test or stop() ends it. */
const programs: Record<string, (run: FakeRun) => void> = {
  true: (run) => run.exit(0),
  echo: (run) => {
    run.print("stdout", `${run.command.args.join(" ")}\n`);
    run.exit(0);
  },
  exit: (run) => run.exit(Number(run.command.args[0])),
  hang: () => {},
};

function notRun(cmd: string): AgentFailure {
  const why = cmd === "locked" ? "Permission denied" : "command not found";
  return new AgentFailure("command_not_found", "invalid_request", `${cmd}: ${why}`);
}

/** Stores data separately until `end`, like the guest's temporary file. */
export class FakeUpload implements Upload {
  readonly #files: Map<string, Buffer>;
  readonly chunks: Buffer[] = [];
  path: string | undefined;
  cancelled = false;
  /** Lets a test delay the guest. */
  gate: Promise<void> = Promise.resolve();

  constructor(files: Map<string, Buffer>, path: string | undefined) {
    this.#files = files;
    this.path = path;
  }

  async write(bytes: Uint8Array): Promise<void> {
    this.chunks.push(Buffer.from(bytes));
    await this.gate;
    if (this.path?.startsWith("/missing/")) throw failure("not_found", "invalid_request", "no such directory");
    if (this.path?.startsWith("/full/")) throw failure("no_space", "no_space", "no space left in the guest");
  }

  target(path: string): void {
    this.path = path;
  }

  /** All that the upload was told. */
  readonly told: FileAttributes[] = [];

  attributes(attributes: FileAttributes): void {
    this.told.push(attributes);
  }

  async end(): Promise<{ bytes: number }> {
    await this.write(Buffer.alloc(0));
    const content = Buffer.concat(this.chunks);
    this.#files.set(this.path as string, content);
    return { bytes: content.length };
  }

  cancel(): void {
    this.cancelled = true;
  }
}

function failure(kind: Failure, code: ErrorCode, message: string): AgentFailure {
  return new AgentFailure(kind, code, message);
}

export class FakeAgent implements Partial<Agent> {
  readonly runs: FakeRun[] = [];
  readonly started: Command[] = [];
  readonly signals: [Selector, string][] = [];
  /** Called at the start of each command. */
  onRun: (run: FakeRun) => void = () => {};

  /** How often it was asked for its use of memory and disk. */
  asked = 0;
  usageNow: () => Promise<GuestUsage> = async () => ({
    ...{ memoryTotalBytes: 512 << 20, memoryUsedBytes: 64 << 20 },
    ...{ diskTotalBytes: 2 ** 32, diskUsedBytes: 2 ** 30 },
  });

  usage(): Promise<GuestUsage> {
    this.asked++;
    return this.usageNow();
  }

  run(command: Command, sink: OutputSink): FakeRun {
    const run = new FakeRun(command, sink);
    this.runs.push(run);
    queueMicrotask(() => {
      const program = programs[command.cmd];
      if (program === undefined) {
        run.fail(notRun(command.cmd));
        return;
      }
      sink.started?.({ pid: 100 + this.runs.length, tag: "" });
      program(run);
      this.onRun(run);
    });
    return run;
  }

  async start(command: Command): Promise<Started> {
    if (programs[command.cmd] === undefined) {
      throw notRun(command.cmd);
    }
    if (this.started.some(({ tag }) => tag !== undefined && tag === command.tag)) {
      throw new AgentFailure("conflict", "conflict", `a live process has the tag ${command.tag}`);
    }
    this.started.push(command);
    return { pid: 500, tag: command.tag ?? "proc-0123abcd" };
  }

  // ---- Sessions

  readonly attached: FakeRun[] = [];
  readonly ptys: FakePty[] = [];

  attach(selector: Selector, sink: OutputSink): FakeRun {
    const run = new FakeRun({ cmd: "attached", args: [] }, sink);
    queueMicrotask(() => {
      if (!isKnown(selector)) {
        run.fail(failure("not_found", "not_found", "no such process"));
        return;
      }
      this.attached.push(run);
      sink.started?.({ pid: 500, tag: "proc-0123abcd" });
    });
    return run;
  }

  readonly starts: OutputStart[] = [];
  /** The first byte that is kept, and how many are written. */
  readonly kept = { first: 0, written: 0 };

  attachFrom(selector: Selector, start: OutputStart, sink: OutputSink): FakeRun {
    this.starts.push(start);
    const { first, written } = this.kept;
    const run = new FakeRun({ cmd: "attached", args: [] }, sink);
    queueMicrotask(() => {
      if (!isKnown(selector)) run.fail(failure("not_found", "not_found", "no such process"));
      else if (typeof start === "number" && start > written)
        run.fail(failure("invalid", "invalid_request", `only ${written} bytes are written`));
      else {
        this.attached.push(run);
        sink.started?.({ pid: 500, tag: "proc-0123abcd" });
        sink.positioned?.(start === "now" ? written : Math.max(first, start === "start" ? 0 : start));
      }
    });
    return run;
  }

  readonly logsAsked: LogsRequest[] = [];

  async logs(selector: Selector, asked: LogsRequest): Promise<KeptOutput> {
    if (!isKnown(selector)) throw failure("not_found", "not_found", "no such process");
    this.logsAsked.push(asked);
    const kept = Buffer.from("one\ntwo\n");
    return { size: kept.length, dropped: this.kept.first, body: Readable.from([kept], { objectMode: false }) };
  }

  readonly inputs: FakeProcessInput[] = [];
  /** The next writers are refused with it. */
  inputRefusal: Error | undefined;

  input(selector: Selector, sink: InputSink): FakeProcessInput {
    const input = new FakeProcessInput(selector, sink);
    this.inputs.push(input);
    const refusal = this.inputRefusal;
    queueMicrotask(() => {
      if (refusal === undefined) sink.opened();
      else sink.failed(refusal);
    });
    return input;
  }

  /** Pending waits for exits, which the test resolves. */
  readonly exits: { selector: Selector; tell: (exit: Exit) => void }[] = [];
  onExitAsked: () => void = () => {};

  exit(selector: Selector, signal?: AbortSignal): Promise<Exit> {
    if (!isKnown(selector)) return Promise.reject(failure("not_found", "not_found", "no such process"));
    return new Promise((tell, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason));
      this.exits.push({ selector, tell });
      this.onExitAsked();
    });
  }

  pty(command: Command, size: { cols: number; rows: number }, sink: OutputSink): FakePty {
    return this.#join(new FakePty(command, size, sink), true);
  }

  readonly joins: boolean[] = [];

  connect(tag: string, sink: OutputSink, isWhole = false): FakePty {
    this.joins.push(isWhole);
    return this.#join(new FakePty({ cmd: "", args: [] }, { cols: 0, rows: 0 }, sink), tag === "pty-0123abcd");
  }

  #join(pty: FakePty, isThere: boolean): FakePty {
    queueMicrotask(() => {
      if (!isThere) {
        pty.fail(failure("not_found", "not_found", "no such session"));
        return;
      }
      this.ptys.push(pty);
      pty.sink.started?.({ pid: 600, tag: "pty-0123abcd" });
    });
    return pty;
  }

  // ---- Files: a map from path to content; "/" and "/dir" are directories

  readonly files = new Map<string, Buffer>();
  readonly uploads: FakeUpload[] = [];
  onUpload: (upload: FakeUpload) => void = () => {};
  /** Called with a listing that never ends. */
  onList: (path: string) => void = () => {};
  /** Number of cancelled listings. */
  readonly abandoned: string[] = [];

  async read(path: string, _?: AbortSignal, range?: ByteRange): Promise<{ size: number; body: Readable }> {
    if (path === "/dir") throw failure("is_directory", "invalid_request", "/dir is a directory");
    const whole = this.#file(path);
    const { first, count } = range === undefined ? { first: 0, count: whole.length } : partOf(range, whole.length);
    const content = whole.subarray(first, first + count);
    const chunks = Array.from({ length: Math.ceil(content.length / 40_000) }, (_, i) =>
      content.subarray(i * 40_000, (i + 1) * 40_000),
    );
    return { size: whole.length, body: Readable.from(chunks, { objectMode: false }) };
  }

  write(path: string | undefined, attributes?: FileAttributes): FakeUpload {
    const upload = new FakeUpload(this.files, path);
    if (attributes !== undefined) upload.attributes(attributes);
    this.uploads.push(upload);
    this.onUpload(upload);
    return upload;
  }

  /** Entries of the directory "/huge"; the sink gets them as from a guest, in frames of 64 KiB. */
  huge: Iterable<GuestEntry> = [];

  async list(request: ListRequest, sink: ListingSink<GuestEntry>, signal?: AbortSignal): Promise<void> {
    if (request.path === "/huge") await passInFrames(this.huge, sink);
    else for (const entry of await this.#list(request, signal)) sink.item(entry);
  }

  async #list({ path, depth, entriesMax }: ListRequest, signal?: AbortSignal): Promise<GuestEntry[]> {
    if (path === "/endless") {
      return new Promise((_resolve, reject) => {
        signal?.addEventListener("abort", () => {
          this.abandoned.push(path);
          reject(signal.reason);
        });
        this.onList(path);
      });
    }
    if (path !== "/dir") return [entryOf(path, this.#file(path).length, 0o100640)];
    if (depth === 0) return [entryOf("/dir", 4_096, 0o041777)];
    const inside = [...this.files.keys()].filter((each) => each.startsWith("/dir/"));
    if (inside.length > entriesMax)
      throw failure("too_large", "invalid_request", `the listing has more than ${entriesMax} entries`);
    const link = { ...entryOf("/dir/link", 6, 0o120777), type: "symlink" as const, target: "../gone" };
    return [...inside.map((each) => entryOf(each, this.#file(each).length, 0o104755)), link];
  }

  async mkdir(path: string): Promise<GuestEntry> {
    if (this.files.has(path)) throw failure("not_directory", "invalid_request", `${path} is a file`);
    return entryOf(path, 4_096, 0o040755);
  }

  async remove(path: string): Promise<void> {
    this.#file(path);
    this.files.delete(path);
  }

  /** Archives that were sent, and the directories that they were extracted into. */
  readonly extractions: FakeUpload[] = [];
  onExtraction: (upload: FakeUpload) => void = () => {};
  /** Fails the next archives after their content. */
  archiveFailure: Error | undefined;

  /** The contents of the files, one after the other. */
  async archive({ paths }: ArchiveRequest): Promise<Readable> {
    const contents = paths.map((path) => this.#file(path));
    const failed = this.archiveFailure;
    async function* chunks() {
      yield* contents;
      if (failed) throw failed;
    }
    return Readable.from(chunks(), { objectMode: false });
  }

  extract(path: string): FakeUpload {
    const upload = new FakeUpload(this.files, path);
    this.extractions.push(upload);
    this.onExtraction(upload);
    return upload;
  }

  readonly watches: FakeWatch[] = [];
  onWatch: (watch: FakeWatch) => void = ({ sink }) => sink.watching();

  watch(request: WatchRequest, sink: ChangeSink): FakeWatch {
    const watch = new FakeWatch(request, sink);
    this.watches.push(watch);
    queueMicrotask(() => this.onWatch(watch));
    return watch;
  }

  /** Servers by port: each gets the guest's end of a connection. */
  readonly servers = new Map<number, (connection: Duplex) => void>();

  async dial(port: number): Promise<Duplex> {
    const server = this.servers.get(port);
    if (server === undefined) throw failure("not_found", "not_found", `nothing listens on port ${port}`);
    const [host, guest] = duplexPair();
    for (const end of [host, guest]) end.on("error", () => {});
    // A reset of one end is one of the other, too.
    guest.once("close", () => {
      if (!(guest.readableEnded && guest.writableFinished)) host.destroy(new ConnectionReset());
    });
    host.once("close", () => {
      if (!(host.readableEnded && host.writableFinished)) guest.destroy();
    });
    server(guest);
    return host;
  }

  async ports(): Promise<GuestPort[]> {
    return [...this.servers.keys()].map((port) => ({ port, address: "127.0.0.1", pid: 500, cmd: "server" }));
  }

  async stat(path: string): Promise<GuestEntry> {
    return path === "/dir" ? entryOf("/dir", 4_096, 0o041777) : entryOf(path, this.#file(path).length, 0o100640);
  }

  async move({ from, to, overwrite }: FileMove): Promise<GuestEntry> {
    const content = this.#file(from);
    if (this.files.has(to) && !overwrite) throw failure("conflict", "conflict", `${to} exists already`);
    this.files.delete(from);
    this.files.set(to, content);
    return this.stat(to);
  }

  /** Changes of mode and owner. */
  readonly changed: unknown[] = [];

  async chmod(path: string, mode: number, recursive: boolean): Promise<void> {
    this.#file(path);
    this.changed.push({ path, mode, recursive });
  }

  async chown(path: string, owners: FileOwners, recursive: boolean): Promise<void> {
    this.#file(path);
    if (owners.owner === "nobody-here") throw failure("invalid", "invalid_request", "there is no user nobody-here");
    this.changed.push({ path, ...owners, recursive });
  }

  #file(path: string): Buffer {
    const content = this.files.get(path);
    if (content === undefined) throw failure("not_found", "not_found", `${path} does not exist`);
    return content;
  }

  // ---- Processes

  running: Iterable<GuestProcess> = [
    { pid: 1, tag: "", cmd: "/init", args: [] },
    { pid: 500, tag: "proc-0123abcd", cmd: "sleep", args: ["100"] },
  ];

  processes(sink: ListingSink<GuestProcess>): Promise<void> {
    return passInFrames(this.running, sink);
  }

  async signal(selector: Selector, signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    if (!isKnown(selector)) throw failure("not_found", "not_found", "no such process");
    this.signals.push([selector, signal]);
  }
}

async function passInFrames<Item extends { path: string } | { args: string[] }>(
  items: Iterable<Item>,
  sink: ListingSink<Item>,
): Promise<void> {
  let frameBytes = 0;
  for (const item of items) {
    frameBytes += "path" in item ? item.path.length : item.args.join().length;
    sink.item(item);
    if (frameBytes < 64 * 1024) continue;
    frameBytes = 0;
    await new Promise(setImmediate);
  }
}

function isKnown(selector: Selector): boolean {
  return "pid" in selector ? selector.pid === 500 : selector.tag === "proc-0123abcd";
}

function entryOf(path: string, size: number, mode: number): GuestEntry {
  const type = (mode & 0o170000) === 0o040000 ? "directory" : "file";
  const name = path.slice(path.lastIndexOf("/") + 1);
  return { name, path, type, size, mode, owner: "root", group: "root", mtime: 1_700_000_000, target: null };
}
