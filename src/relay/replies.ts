/** Messages of the relay, read as those of a process that a guest may have taken over. */
import { decisionsMax } from "../network/recent-decisions.ts";
import { isCount, readDecision, recordOf, textOf } from "../network/untrusted.ts";
import type { NetworkDecision } from "../wire/network.ts";
import { countedMax, decidedMax, type FromRelay, type RunCounts } from "./messages.ts";

export type Reply = FromRelay;

const namesMax = 32;

/** Undefined: it is none. */
export function readReply(value: unknown): Reply | undefined {
  const given = recordOf(value);
  const { kind } = given;
  if (kind === "ready") return { kind };
  if (kind === "applied" && isCount(given.seq)) return { kind, seq: given.seq };
  if (kind === "lost" && isCount(given.run)) return { kind, run: given.run, why: textOf(given.why) };
  if (kind === "state" && isCount(given.seq) && isCount(given.connectionsOpen))
    return { kind, seq: given.seq, connectionsOpen: given.connectionsOpen };
  if (kind === "decisions") return readDecisions(given);
  if (kind === "counts") return readCounts(given);
  return undefined;
}

function readDecisions({ runs }: Record<string, unknown>): Reply | undefined {
  if (!Array.isArray(runs) || runs.length > countedMax) return undefined;
  const read: [run: number, decided: NetworkDecision[]][] = [];
  let count = 0;
  for (const each of runs) {
    const [run, decided] = Array.isArray(each) ? each : [];
    if (!isCount(run) || !Array.isArray(decided) || decided.length > decisionsMax) return undefined;
    count += decided.length;
    const decisions = decided.map(readDecision).filter((decision) => decision !== undefined);
    if (decisions.length < decided.length || count > decidedMax) return undefined;
    read.push([run, decisions]);
  }
  return { kind: "decisions", runs: read };
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
