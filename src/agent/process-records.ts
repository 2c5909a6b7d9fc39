/** Processes in the listings of PROCESSES and LIST_PROCESSES. */
import type { GuestProcess } from "./agent.ts";
import { started } from "./protocol.ts";
import { ProtocolError, type RecordReader } from "./records.ts";

/** One item of PROCESSES; no end mark. */
export function readProcess(fields: RecordReader): GuestProcess {
  return { ...started(fields), cmd: fields.str(), args: fields.strs() };
}

/** One item of LIST_PROCESSES; no end mark. */
export function readLongProcess(fields: RecordReader): GuestProcess {
  const head = { ...readProcess(fields), user: fields.str() };
  return { ...head, startedAtMs: Math.min(fields.u64(), latestDateMs), kind: processKind(fields.u8()) };
}

/** The last time that a Date can be. */
const latestDateMs = 8_640_000_000_000_000;
const processKinds = ["other", "exec", "pty"] as const;

function processKind(value: number): NonNullable<GuestProcess["kind"]> {
  const kind = processKinds[value];
  if (kind === undefined) throw new ProtocolError(`a process of unknown kind ${value}`);
  return kind;
}
