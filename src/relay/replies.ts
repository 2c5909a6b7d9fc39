/** Messages of the relay, read as those of a process that a guest may have taken over. */
import { type NetworkDecision, verdicts } from "../wire/network.ts";
import { countedMax, type FromRelay, type RunCounts } from "./messages.ts";

export type Reply = FromRelay;

const recentMax = 100;
const textMaxLength = 300;
const namesMax = 32;

/** Undefined: it is none. */
export function readReply(value: unknown): Reply | undefined {
  const given = recordOf(value);
  const { kind } = given;
  if (kind === "ready") return { kind };
  if (kind === "applied" && isCount(given.seq)) return { kind, seq: given.seq };
  if (kind === "lost" && isCount(given.run)) return { kind, run: given.run, why: textOf(given.why) };
  if (kind === "state") return readState(given);
  if (kind === "counts") return readCounts(given);
  return undefined;
}

function readState({ seq, connectionsOpen, recent }: Record<string, unknown>): Reply | undefined {
  if (!isCount(seq) || !isCount(connectionsOpen) || !Array.isArray(recent)) return undefined;
  const decisions = recent.slice(-recentMax).map(decisionOf);
  if (decisions.includes(undefined)) return undefined;
  return { kind: "state", seq, connectionsOpen, recent: decisions as NetworkDecision[] };
}

function decisionOf(value: unknown): NetworkDecision | undefined {
  const { at, verdict: said, reason, host, address, port, count } = recordOf(value);
  const verdict = verdicts.find((each) => each === said);
  const isTime = typeof at === "string" && at.length <= 40 && !Number.isNaN(Date.parse(at));
  if (verdict === undefined || !isTime || !isCount(count)) return undefined;
  return {
    ...{ at: new Date(at).toISOString(), verdict, reason: textOf(reason), count },
    ...(host === undefined ? {} : { host: textOf(host) }),
    ...(address === undefined ? {} : { address: textOf(address) }),
    ...(isCount(port) ? { port } : {}),
  };
}

function readCounts({ runs, names, connectionsOpen }: Record<string, unknown>): Reply | undefined {
  if (!Array.isArray(runs) || runs.length > countedMax || !isCount(connectionsOpen)) return undefined;
  const read: [run: number, added: RunCounts][] = [];
  for (const each of runs) {
    const [run, counts] = Array.isArray(each) ? each : [];
    const added = recordOf(counts);
    const { connections, denied, failed, bytesOut, bytesIn } = added;
    if (!isCount(run) || ![connections, denied, failed, bytesOut, bytesIn].every(isCount)) return undefined;
    read.push([run, { connections, denied, failed, bytesOut, bytesIn } as RunCounts]);
  }
  const results = Object.entries(recordOf(names)).filter(([name, count]) => name.length <= 32 && isCount(count));
  return {
    kind: "counts",
    runs: read,
    names: Object.fromEntries(results.slice(0, namesMax)) as Record<string, number>,
    connectionsOpen,
  };
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value.slice(0, textMaxLength) : "";
}
