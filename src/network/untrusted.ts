/** Values of messages and records that anybody may have written. */
import { type NetworkDecision, verdicts } from "../wire/network.ts";

const textMaxLength = 300;

export function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Its first 300 characters; empty: it is no text. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value.slice(0, textMaxLength) : "";
}

/** Undefined: it is none. */
export function readDecision(value: unknown): NetworkDecision | undefined {
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
