/** The answers to one capsule's questions. A question that its policy does not permit is answered here, and no byte of it is asked. */
import {
  answerRefusalOf,
  isReservedName,
  listsHost,
  mayAnswer,
  mayAsk,
  type OperatorRules,
  type Rules,
} from "../network/decision.ts";
import { addressText } from "../network/destinations.ts";
import type { Noted } from "../network/recent-decisions.ts";
import { hostAddress, hostLoopback, hostName } from "../network/reserved-ranges.ts";
import type { AnsweredNames } from "./answered-names.ts";
import { type RecordType, recordTypes } from "./dns-records.ts";
import { type FoundName, ListedLookups } from "./listed-lookups.ts";
import type { Answer, ResourceRecord } from "./records.ts";
import type { AddressAnswer, Resolved, Resolver } from "./resolver.ts";

const rcodes = { noError: 0, failed: 2, noSuchName: 3, refused: 5 } as const;
/** Bytes of the records of one answer, within a frame. */
const answerMaxBytes = 60_000;
const recordBytes = 10;
const hostTtlSec = 60;
const namePattern = /^(?=.{1,253}$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/;

const typeNames: ReadonlyMap<number, RecordType> = new Map(
  Object.entries(recordTypes).map(([name, type]) => [type, name as RecordType]),
);

export interface NamesOptions {
  /** As they are at the time of a question. */
  rules: () => Rules;
  operator: () => OperatorRules;
  resolver: () => Resolver;
  answered: AnsweredNames;
  note: (noted: Noted) => void;
  /** False: there is no place for one more question. */
  begin: () => boolean;
  end: () => void;
}

const nothing = (rcode: number): Answer => ({ rcode, records: [] });

export class Names {
  readonly #options: NamesOptions;
  readonly #lookups = new ListedLookups({ ask: (name) => this.#resolvedWithin(name) });

  constructor(options: NamesOptions) {
    this.#options = options;
  }

  async answer(asked: string, type: number): Promise<Answer> {
    const name = asked.toLowerCase();
    const known = this.#withoutAsking(name, type);
    if (known !== undefined) return known;
    const typeName = typeNames.get(type);
    if (typeName === undefined) return nothing(rcodes.noError);
    if (!this.#options.begin()) {
      this.#options.note({ verdict: "denied", reason: "limit", host: name });
      return nothing(rcodes.failed);
    }
    try {
      return typeName === "A" ? await this.#addresses(name) : await this.#records(name, typeName);
    } finally {
      this.#options.end();
    }
  }

  /** Addresses of the name to dial, for a connection that gave it. */
  async resolve(name: string): Promise<number[]> {
    const resolved = await this.#resolved(name);
    return "found" in resolved ? resolved.found.map(({ address }) => address) : [];
  }

  /** Which of the names has the address. */
  nameOf(address: number, names: readonly string[]): Promise<FoundName> {
    return this.#lookups.nameOf(address, names);
  }

  async #resolved(name: string): Promise<Resolved<AddressAnswer>> {
    if (name === hostName) return { found: [{ address: hostAddress, ttlSec: hostTtlSec }] };
    return isOfNoResolver(name) ? { failure: "no such name" } : await this.#options.resolver().addresses(name);
  }

  /** Within the limits of questions. */
  async #resolvedWithin(name: string): Promise<Resolved<AddressAnswer> | undefined> {
    if (!this.#options.begin()) return undefined;
    try {
      return await this.#resolved(name);
    } finally {
      this.#options.end();
    }
  }

  #withoutAsking(name: string, type: number): Answer | undefined {
    const { rules, operator, note } = this.#options;
    if (name === "localhost") return this.#own(type, hostLoopback);
    if (rules().egress === "none") {
      note({ verdict: "denied", reason: "egress none", ...hostOf(name) });
      return nothing(rcodes.refused);
    }
    if (name === "") return nothing(rcodes.noError);
    if (!namePattern.test(name)) return nothing(rcodes.refused);
    if (name === hostName && listsHost(rules(), operator())) return this.#own(type, hostAddress);
    if (isOfNoResolver(name) || isReservedName(name, operator())) return this.#failed(name, "no such name");
    if (mayAsk(rules(), name)) return undefined;
    note({ verdict: "denied", reason: "not listed", host: name });
    return nothing(rcodes.noSuchName);
  }

  #own(type: number, address: number): Answer {
    return { rcode: rcodes.noError, records: type === recordTypes.A ? [addressRecord(address, hostTtlSec)] : [] };
  }

  async #addresses(name: string): Promise<Answer> {
    const { rules, operator, resolver, answered, note } = this.#options;
    const resolved = await resolver().addresses(name);
    if ("failure" in resolved) return this.#failed(name, resolved.failure);
    const kept = resolved.found.filter(({ address }) => mayAnswer(rules(), operator(), address));
    for (const { address } of kept) answered.add(address, name);
    if (kept.length > 0) {
      return { rcode: rcodes.noError, records: fitting(kept.map((each) => addressRecord(each.address, each.ttlSec))) };
    }
    const { address } = resolved.found[0]!;
    const reason = answerRefusalOf(rules(), operator(), address);
    note({ verdict: "denied", reason, host: name, address: addressText(address) });
    return nothing(rcodes.noSuchName);
  }

  async #records(name: string, type: Exclude<RecordType, "A">): Promise<Answer> {
    const resolved = await this.#options.resolver().records(name, type);
    if ("failure" in resolved) return this.#failed(name, resolved.failure);
    return { rcode: rcodes.noError, records: fitting(resolved.found) };
  }

  #failed(name: string, failure: "no such name" | "none" | "failed"): Answer {
    if (failure === "none") return nothing(rcodes.noError);
    this.#options.note({ verdict: "failed", reason: "dns", host: name });
    return nothing(failure === "failed" ? rcodes.failed : rcodes.noSuchName);
  }
}

function hostOf(name: string): { host?: string } {
  return namePattern.test(name) ? { host: name } : {};
}

/** Names that no resolver of the internet knows: of one label, of the local link, of a number. */
function isOfNoResolver(name: string): boolean {
  const [last = "", ...more] = name.split(".").reverse();
  return (
    more.length === 0 ||
    last === "local" ||
    last === "localhost" ||
    name.endsWith(".capsule.internal") ||
    !/[a-z]/.test(last)
  );
}

function addressRecord(address: number, ttlSec: number): ResourceRecord {
  const data = Buffer.alloc(4);
  data.writeUInt32BE(address);
  return { type: recordTypes.A, ttlSec, data };
}

/** As many as one frame has room for. */
function fitting(records: readonly ResourceRecord[]): ResourceRecord[] {
  let bytes = 0;
  return records.filter(({ data }) => {
    bytes += recordBytes + data.length;
    return bytes <= answerMaxBytes;
  });
}
