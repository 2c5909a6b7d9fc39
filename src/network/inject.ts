/**
 * Rules by which the relay sets headers of a guest's plain HTTP requests, which leave as HTTPS: reading what a client sends. Values are
 * secrets: a policy has the names of headers alone.
 */
import { CapsuleError } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";
import { destinationOf } from "./destinations.ts";

/** One rule, as policies keep it. */
export interface InjectRule {
  /** A domain: lower case and punycode, without a trailing dot. */
  host: string;
  /** Names of headers, in the spelling of the client. */
  headers: string[];
}

/** The value of one header of a rule. */
export interface InjectValue {
  host: string;
  name: string;
  /** null: the one that is stored stays. */
  value: string | null;
  /** The path of the field in a request. */
  field: string;
}

/** A rule with its values, for the relay. */
export interface OpenInjectRule {
  host: string;
  /** null: the value cannot be decrypted. */
  headers: Record<string, string | null>;
}

export type InjectLimits = Pick<Limits, "inject_rules_max" | "inject_headers_max" | "inject_value_max_bytes">;

const field = "network.inject";
/** Far longer than any name of a header in use. */
const nameMaxLength = 256;
const tokenPattern = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const valuePattern = /^[\t\x20-\x7e]*$/;
/** Lower case: they frame a message, route it, or are of one connection. */
const unsettable = new Set([
  ...["host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te", "trailer"],
  ...["upgrade", "expect", "proxy-authenticate", "proxy-authorization", "http2-settings"],
]);

/** Throws CapsuleError("invalid_request") with the path of the field. */
export function parseInject(value: unknown, limits: InjectLimits): { rules: InjectRule[]; values: InjectValue[] } {
  if (!Array.isArray(value)) throw refusal(field, "must be array");
  const max = limits.inject_rules_max;
  if (value.length > max) throw refusal(field, `has ${value.length} rules; at most ${max} are possible`);
  const rules: InjectRule[] = [];
  const values: InjectValue[] = [];
  for (const [index, given] of value.entries()) {
    const at = `${field}[${index}]`;
    const { host: hostGiven, headers: headersGiven } = recordOf(given, at);
    const host = hostOf(hostGiven, `${at}.host`);
    if (rules.some((rule) => rule.host === host)) throw refusal(`${at}.host`, "names a host that has a rule already");
    const ofRule = headersOf(headersGiven, `${at}.headers`, limits).map((each) => ({ host, ...each }));
    rules.push({ host, headers: ofRule.map(({ name }) => name) });
    values.push(...ofRule);
  }
  return { rules, values };
}

function hostOf(value: unknown, at: string): string {
  if (typeof value !== "string") throw refusal(at, "must be string");
  const found = destinationOf(value);
  const isPlain = !("problem" in found) && found.port === undefined && found.text === found.domain;
  if (!isPlain) throw refusal(at, "must be one domain, without a wildcard or a port, and no address");
  return found.text;
}

function headersOf(value: unknown, at: string, limits: InjectLimits): Omit<InjectValue, "host">[] {
  const entries = Object.entries(recordOf(value, at));
  const max = limits.inject_headers_max;
  if (entries.length > max) throw refusal(at, `has ${entries.length} headers; at most ${max} are possible`);
  const seen = new Set<string>();
  return entries.map(([name, each]) => {
    const ofHeader = `${at}.${name.slice(0, nameMaxLength)}`;
    if (!tokenPattern.test(name) || name.length > nameMaxLength) throw refusal(ofHeader, "is no name of a header");
    const lower = name.toLowerCase();
    if (unsettable.has(lower)) throw refusal(ofHeader, "frames or routes a request, so no rule sets it");
    if (seen.has(lower)) throw refusal(ofHeader, "differs from another header of the rule by case only");
    seen.add(lower);
    return { name, value: headerValueOf(each, ofHeader, limits), field: ofHeader };
  });
}

/** No message contains the value. */
function headerValueOf(value: unknown, at: string, { inject_value_max_bytes: max }: InjectLimits): string | null {
  if (value === null) return null;
  if (typeof value !== "string") throw refusal(at, "must be string or null");
  if (!valuePattern.test(value)) throw refusal(at, "must be of visible ASCII characters, spaces and tabs");
  if (value.length > max) throw refusal(at, `has ${value.length} bytes; at most ${max} are possible`);
  return value;
}

function recordOf(value: unknown, at: string): Record<string, unknown> {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw refusal(at, "must be object");
}

/** `null` stands for a value that was never given. */
export function nothingStored({ field: at }: InjectValue): CapsuleError {
  return refusal(at, "is null, and no value of it is stored");
}

function refusal(at: string, problem: string): CapsuleError {
  return new CapsuleError("invalid_request", `${at} ${problem}`, { details: { field: at } });
}
