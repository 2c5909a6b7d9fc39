/**
 * Verbs, events and records of docs/AGENT-PROTOCOL.md. One pure function encodes each host request or decodes each
 * guest answer. A decoder checks the whole record before it returns.
 */
import type { Command, Exit, GuestEntry, Selector, Started, Wake } from "./agent.ts";
import { headerBytes, maxPayloadBytes } from "./frames.ts";
import { ProtocolError, RecordReader, RecordWriter } from "./records.ts";

export {
  describeMismatch,
  protocolVersions,
  speaks,
  unrecordedProtocol,
  type VersionRange,
} from "./versions.ts";

export const magic = Buffer.from("capsule-agent");
export const nonceBytes = 16;
/** Enough zeros to complete any frame that an earlier connection left incomplete in the pipe. */
export const paddingBytes = headerBytes + maxPayloadBytes;

export const Verb = {
  PROBE: 1,
  WAKE: 2,
  FREEZE: 3,
  THAW: 4,
  EXEC: 16,
  ATTACH: 17,
  SIGNAL: 18,
  PROCESSES: 19,
  PTY: 20,
  CONNECT: 21,
  AWAIT: 22,
  EXEC_STDIN: 23,
  INPUT: 24,
  EXEC_AS: 25,
  ATTACH_FROM: 26,
  LOGS: 27,
  LIST_PROCESSES: 28,
  READ: 32,
  WRITE: 33,
  LIST: 34,
  MKDIR: 35,
  REMOVE: 36,
  STAT: 37,
  MOVE: 38,
  CHMOD: 39,
  CHOWN: 40,
  WRITE_AS: 41,
  READ_RANGE: 42,
  ARCHIVE: 43,
  EXTRACT: 44,
  WATCH: 45,
  HALT: 46,
  USAGE: 47,
  GROW: 48,
  DIAL: 49,
  PORTS: 50,
} as const;

export type Verb = (typeof Verb)[keyof typeof Verb];

/** The verbs of agents whose WELCOME lists none. Never extended: those agents are in the memory of saved VMs. */
export const unlistedVerbs: ReadonlySet<number> = new Set([1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 32, 33, 34, 35, 36]);

export function nameOf(verb: Verb): string {
  return Object.entries(Verb).find(([, number]) => number === verb)?.[0] ?? `${verb}`;
}

export const EventKind = {
  STARTED: 1,
  POSITION: 2,
  KEPT: 3,
  STOP: 16,
  RESIZE: 17,
  TAKEN: 18,
  OPENED: 32,
  TARGET: 33,
  ATTRIBUTES: 34,
  WATCHING: 35,
  DIALLED: 36,
} as const;

/** A DATA frame's flags: its channel within the stream. */
export const DataChannel = { MAIN: 0, STDOUT: 1, STDERR: 2 } as const;

export const limits = {
  /** DATA bytes that each side may have in flight on a stream. */
  windowBytes: 262_144,
  /** The same after Stream.widen, for a large transfer from the guest. */
  wideWindowBytes: 1024 * 1024,
  /** Credit is returned in steps of this size, to save frames. */
  grantBytes: 65_536,
  /** The agent serves 1 024. The rest is reserved for the unlimited verbs, see channel.ts. */
  streams: 1_000,
  requestBytes: 2 * 1024 * 1024,
  processesBytes: 16 * 1024 * 1024,
  processes: 65_536,
  /** Bytes read in search of a WELCOME. */
  handshakeBytes: 4 * 1024 * 1024,
  /** Longest tag that the guest may report. */
  tagBytes: 256,
  /** A WAKE's result is cut to these. */
  problems: 8,
  problemCharacters: 300,
} as const;

// ---- Requests

/** A request starts with space for its frame's header, followed by the verb. */
export function request(verb: Verb): RecordWriter {
  return new RecordWriter(headerBytes).u16(verb);
}

export function hello(nonce: Uint8Array, version: number): Buffer {
  return new RecordWriter().bytes(magic).raw(nonce).u16(version).finish();
}

export function wakeRequest(wake: Wake, realtimeNs: bigint): RecordWriter {
  return request(Verb.WAKE).u64(realtimeNs).bytes(wake.entropy).str(wake.hostname).str(wake.machineId);
}

function writeCommand(to: RecordWriter, command: Command): RecordWriter {
  return to
    .str(command.cmd)
    .strs(command.args)
    .map(command.envs ?? {})
    .optionalStr(command.cwd)
    .optionalStr(command.user)
    .optionalStr(command.tag);
}

/** Bits of EXEC_AS. */
const execFlags = { stdin: 1, survive: 2 } as const;

/** `outcome`: in the foreground, without a start event. */
const execModes = { foreground: 0, background: 1, outcome: 2 } as const;

export function execRequest(command: Command, mode: keyof typeof execModes): RecordWriter {
  const verb = execVerb(command);
  const to = request(verb);
  if (verb !== Verb.EXEC_AS) return writeCommand(to, command).u8(execModes[mode]);
  const { user = "", stdin, survive, ...rest } = command;
  const flags = (stdin === true ? execFlags.stdin : 0) | (survive === true ? execFlags.survive : 0);
  return writeCommand(to.u8(flags).str(user), rest).u8(execModes[mode]);
}

/** Commands without a user keep the verbs that agents of earlier releases have. */
export function execVerb({ user, stdin, survive }: Command): Verb {
  if (user !== undefined || survive === true) return Verb.EXEC_AS;
  return stdin === true ? Verb.EXEC_STDIN : Verb.EXEC;
}

export function ptyRequest(command: Command, size: { cols: number; rows: number }): RecordWriter {
  return writeCommand(request(Verb.PTY), command).u16(size.cols).u16(size.rows);
}

/** For ATTACH, ATTACH_FROM, AWAIT, INPUT, LOGS and SIGNAL. */
export function selectorRequest(verb: Verb, selector: Selector): RecordWriter {
  const to = request(verb);
  return "pid" in selector ? to.u8(0).u32(selector.pid) : to.u8(1).str(selector.tag);
}

export function listRequest(path: string, depth: number, limit: number): RecordWriter {
  return request(Verb.LIST).path(path).u32(depth).u32(limit);
}

// ---- Records within an open stream, host → agent

export const emptyRecord = new RecordWriter().finish();

export function endRecord(totalBytes: number): Buffer {
  return new RecordWriter().u64(BigInt(totalBytes)).finish();
}

export function windowRecord(creditBytes: number): Buffer {
  return new RecordWriter().u32(creditBytes).finish();
}

export const stopEvent = new RecordWriter().u16(EventKind.STOP).finish();

export function resizeEvent(cols: number, rows: number): Buffer {
  return new RecordWriter().u16(EventKind.RESIZE).u16(cols).u16(rows).finish();
}

/**
 * Sent before a terminal's CANCEL: output after `totalBytes` was not consumed and must be replayed to the next client.
 */
export function takenEvent(totalBytes: number): Buffer {
  return new RecordWriter().u16(EventKind.TAKEN).u64(BigInt(totalBytes)).finish();
}

// ---- Answers, agent → host

/** Decodes a whole record. */
export function whole<T>(payload: Buffer, read: (fields: RecordReader) => T): T {
  const fields = new RecordReader(payload);
  const value = read(fields);
  fields.finish();
  return value;
}

export interface Welcome {
  /** This connection's: that of the HELLO, or the nearest one that the agent speaks. */
  version: number;
  /** Name and version of the program inside. */
  agent: string;
  awake: boolean;
  pid: number;
  /** Numbers of the verbs that the agent serves. */
  verbs: ReadonlySet<number>;
}

export function decodeWelcome(payload: Buffer, nonce: Uint8Array): Welcome {
  return whole(payload, (fields) => {
    if (!fields.raw(nonceBytes).equals(nonce)) throw new ProtocolError("a WELCOME for another HELLO");
    const head = { version: fields.u16(), agent: fields.str(), awake: flag(fields), pid: fields.u32() };
    return { ...head, verbs: fields.isAtEndMark ? unlistedVerbs : new Set(fields.u16s()) };
  });
}

export function decodeEmpty(payload: Buffer): void {
  whole(payload, () => {});
}

/** A sentence for the log for each part of WAKE that failed. */
export function decodeWoken(payload: Buffer): string[] {
  const problems = whole(payload, (fields) => (fields.isAtEndMark ? [] : fields.strs()));
  return problems.slice(0, limits.problems).map((problem) => problem.slice(0, limits.problemCharacters));
}

export function decodeFrozen(payload: Buffer): { frozen: boolean } {
  return whole(payload, (fields) => ({ frozen: flag(fields) }));
}

export function decodeCount(payload: Buffer): number {
  return whole(payload, (fields) => fields.u32());
}

export function decodeTotal(payload: Buffer): number {
  return whole(payload, (fields) => fields.u64());
}

export function decodeFail(payload: Buffer): { code: string; message: string } {
  return whole(payload, (fields) => ({ code: fields.str(), message: fields.str() }));
}

export function decodeStartedEvent(payload: Buffer): Started {
  return whole(payload, (fields) => {
    expectKind(fields, EventKind.STARTED);
    return started(fields);
  });
}

export function decodeOpenedEvent(payload: Buffer): { size: number } {
  return whole(payload, (fields) => {
    expectKind(fields, EventKind.OPENED);
    return { size: fields.u64() };
  });
}

/** The result of a background EXEC. */
export function decodeStarted(payload: Buffer): Started {
  return whole(payload, started);
}

export function decodeExit(payload: Buffer): Exit {
  return whole(payload, (fields) => {
    const exitCode = fields.i32();
    const signal = fields.u8();
    const honest = signal === 0 ? exitCode >= 0 && exitCode <= 255 : signal <= 64 && exitCode === 128 + signal;
    if (!honest) throw new ProtocolError(`exit code ${exitCode} with signal ${signal}`);
    return { exitCode, guestDurationUs: fields.u64() };
  });
}

export function decodeEntry(payload: Buffer): GuestEntry {
  return whole(payload, readEntry);
}

/** One item of LIST; no end mark. */
export function readEntry(fields: RecordReader): GuestEntry {
  return {
    name: fields.path(),
    path: fields.path(),
    type: entryType(fields.u8()),
    size: fields.u64(),
    mode: fields.u32(),
    owner: fields.str(),
    group: fields.str(),
    mtime: fields.i64(),
    target: fields.optionalPath() ?? null,
  };
}

const entryTypes = ["file", "directory", "symlink"] as const;

function entryType(value: number): GuestEntry["type"] {
  const type = entryTypes[value];
  if (type === undefined) throw new ProtocolError(`an entry of unknown type ${value}`);
  return type;
}

export function started(fields: RecordReader): Started {
  const pid = fields.u32();
  const tag = fields.bytes();
  if (tag.length > limits.tagBytes) throw new ProtocolError(`a tag of ${tag.length} bytes`);
  return { pid, tag: tag.toString() };
}

export function flag(fields: RecordReader): boolean {
  const value = fields.u8();
  if (value > 1) throw new ProtocolError(`a boolean of ${value}`);
  return value === 1;
}

export function expectKind(fields: RecordReader, expected: number): void {
  const kind = fields.u16();
  if (kind !== expected) throw new ProtocolError(`event ${kind} instead of ${expected}`);
}
