/**
 * One connection of a capsule: decided, dialled, and passed on in both directions, with the ends and resets of each side.
 *
 *      decided ─► dialling ─► open            the address is permitted
 *      decided ─► reading ─► dialling ─► open the name in the first bytes is, on ports 80 and 443
 *      decided ─► dialling ─► checking ─► open a listed name has the address; TLS must name one
 *      … ─► refused                           said in the program's own protocol, what still comes is dropped
 */
import { decide, isListedName, listedNames, refusalOf, targetOf } from "../network/decision.ts";
import { addressText } from "../network/destinations.ts";
import type { Noted } from "../network/recent-decisions.ts";
import { hostAddress, hostName } from "../network/reserved-ranges.ts";
import type { ConnectionShared } from "./connection-shared.ts";
import type { DialFailure, Upstream } from "./dialler.ts";
import { FirstBytes } from "./first-bytes.ts";
import { Inflow } from "./inflow.ts";
import type { FoundName } from "./listed-lookups.ts";
import { Outflow } from "./outflow.ts";
import type { PortStream, StreamSink } from "./port-stream.ts";
import { type RefusalKind, refusalBytes } from "./refusals.ts";

/** Time for a program's first bytes, where they are read first. */
export const firstBytesMs = 10_000;
/** Time that a program has to close after it was refused. */
export const refusedMs = 5_000;

type Phase = "dialling" | "reading" | "checking" | "open" | "refused" | "closed";

export class Connection implements StreamSink {
  readonly #stream: PortStream;
  readonly #shared: ConnectionShared<Connection>;
  /** As the guest asked. */
  readonly #address: number;
  readonly port: number;
  /** That it was dialled for. */
  #name: string | undefined;
  /** Before it stands for another one. */
  #target: number | undefined;
  #phase: Phase = "dialling";
  /** OPENED was sent. */
  #isAccepted = false;
  readonly #first = new FirstBytes();
  #hasGuestEnded = false;
  #timer: NodeJS.Timeout | undefined;
  #upstream: Upstream | undefined;
  readonly #abort = new AbortController();

  /** Called with bytes from outside, which are valid during the call, before the stream gets them. */
  heard: (bytes: Buffer) => void = () => {};
  #inflow: Inflow | undefined;
  #outflow: Outflow | undefined;
  /** Written by the guest and not taken by the peer when the stream had ended. */
  #lingeringBytes = 0;

  constructor(
    stream: PortStream,
    { address, port }: { address: number; port: number },
    shared: ConnectionShared<Connection>,
  ) {
    this.#stream = stream;
    this.#address = address;
    this.port = port;
    this.#shared = shared;
    stream.sink = this;
  }

  begin(): void {
    const { rules, operator } = this.#shared;
    const decision = decide(rules(), operator(), this.#address, this.port);
    if (decision.kind === "denied") this.deny(decision.reason);
    else if (decision.kind === "dial") {
      if (this.#address === hostAddress) this.#name = hostName; // only that name lists it
      void this.#dial([this.#address]);
    } else if (decision.kind === "named") void this.#dialNamed();
    else {
      this.#phase = "reading";
      this.#accept();
      this.#timer = setTimeout(() => this.#refuse("not permitted", "no name within 10 s"), firstBytesMs);
    }
  }

  /** As `begin`, of a stream that was opened already; `isLate`: and has brought no bytes in time. */
  beginOpened({ isLate }: { isLate: boolean }): void {
    this.#isAccepted = true;
    this.begin();
    if (this.#phase === "reading" && isLate) this.#refuse("not permitted", "no name within 10 s");
  }

  deny(reason: string): void {
    this.#note("denied", reason);
    if (this.#isAccepted) this.#refuse("not permitted", reason, true);
    else this.#stream.fail("denied", reason);
  }

  /** Ends it when the policy, as it is now, forbids it. */
  recheck(): void {
    if (this.#phase === "refused" || this.#isPermitted()) return;
    if (this.#phase === "closed") this.drop();
    else this.#forbid();
  }

  #forbid(): void {
    this.#note("denied", "not listed");
    this.cut();
  }

  /** Ends it at once on both sides. */
  cut(): void {
    if (this.#isAccepted) this.#stream.reset();
    else this.#stream.fail("denied", "not listed");
    this.drop();
  }

  #isPermitted(): boolean {
    const [rules, operator] = [this.#shared.rules(), this.#shared.operator()];
    const decision = decide(rules, operator, this.#target ?? this.#address, this.port);
    if (decision.kind === "denied" && decision.reason !== "not listed") return false;
    if (this.#name !== undefined && isListedName(rules, this.#name, this.port)) return true;
    const isUndecided = this.#target === undefined && this.#name === undefined;
    return decision.kind === "dial" || (isUndecided && decision.kind !== "denied");
  }

  // ---- Dialling

  async #dial(addresses: readonly number[]): Promise<void> {
    const operator = this.#shared.operator();
    const targets = addresses.map((address) => targetOf(operator, address, this.port));
    const options = { isGranted: targets.every(({ isGranted }) => isGranted), signal: this.#abort.signal };
    this.#target = addresses[0];
    const chosen = targets.map(({ address }) => address);
    const dialled = await this.#shared.dialler.dial(chosen, this.port, options);
    if ("failure" in dialled) return this.#notDialled(dialled.failure);
    if (this.#phase === "closed") return dialled.upstream.reset();
    this.#target = addresses[chosen.indexOf(dialled.upstream.address)] ?? this.#target;
    if (!this.#isPermitted()) {
      dialled.upstream.reset(); // one of several addresses, which the policy has come to forbid
      return this.#forbid();
    }
    this.#note("allowed", "");
    this.#stand(dialled.upstream);
  }

  async #dialNamed(): Promise<void> {
    const found = await this.#listedNameOf(this.#address);
    if (this.#phase === "closed") return;
    if (typeof found === "string") return this.deny(found === "limit" ? "limit" : "not listed");
    this.#name = found.name;
    await this.#dial([this.#address]);
  }

  /** A name that is listed for the port and has the address. */
  async #listedNameOf(address: number): Promise<FoundName> {
    const { rules, answered, names } = this.#shared;
    const known = answered.of(address).findLast((name) => isListedName(rules(), name, this.port));
    if (known !== undefined) return { name: known };
    const found = await names.nameOf(address, listedNames(rules(), this.port));
    return typeof found === "string" || isListedName(rules(), found.name, this.port) ? found : "none";
  }

  #notDialled(failure: DialFailure): void {
    if (this.#phase === "closed") return;
    const isDenied = failure === "own address" || failure === "limit";
    const reason = failure === "own address" ? "reserved" : failure;
    this.#note(isDenied ? "denied" : "failed", reason);
    const what = this.#name ?? addressText(this.#address);
    if (this.#isAccepted) this.#refuse(isDenied ? "not permitted" : "no address", `${what}: ${reason}`, true);
    else this.#stream.fail(isDenied ? "denied" : (failure as "refused"), reason);
  }

  #stand(upstream: Upstream): void {
    this.#upstream = upstream;
    this.#outflow = new Outflow(upstream, (bytes) => this.#stream.consumed(bytes));
    const isChecked = this.#isAccepted || this.#name === undefined;
    this.#phase = isChecked ? "open" : "checking";
    this.#accept();
    if (isChecked) this.#sendFirst();
    const closed = () => this.#upstreamClosed();
    this.#inflow = new Inflow(upstream, this.#stream, this.#shared, { heard: (bytes) => this.heard(bytes), closed });
    this.#inflow.begin();
  }

  #accept(): void {
    if (!this.#isAccepted) this.#stream.opened();
    this.#isAccepted = true;
  }

  #sendFirst(): void {
    clearTimeout(this.#timer);
    const { bytes } = this.#first;
    if (bytes.length > 0) this.#sendOut(bytes);
    if (this.#hasGuestEnded) this.#outflow?.end();
  }

  #sendOut(bytes: Buffer): void {
    this.#shared.countBytes("out", bytes.length);
    this.#outflow?.write(bytes);
  }

  // ---- The name in the first bytes

  #readFirst(): void {
    const found = this.#first.name();
    if (found === undefined) return;
    clearTimeout(this.#timer);
    const refusal = "odd" in found ? `not listed: ${found.odd}` : this.#refusalOf(found);
    if (refusal !== undefined) this.#refuse("not permitted", refusal);
    else if (this.#upstream === undefined) {
      this.#phase = "dialling";
      void this.#dialName(this.#name!);
    } else {
      this.#phase = "open";
      this.#sendFirst();
    }
  }

  #refusalOf({ name, port = this.port }: { name: string; port?: number }): string | undefined {
    if (port !== this.port) return `not listed: a Host of port ${port}`;
    this.#name = name;
    const isListed = isListedName(this.#shared.rules(), name, port);
    return isListed ? undefined : `${name} is not listed in this capsule's network.allow for port ${port}`;
  }

  async #dialName(name: string): Promise<void> {
    const addresses = await this.#shared.names.resolve(name);
    if (this.#phase === "closed") return;
    const [rules, operator] = [this.#shared.rules(), this.#shared.operator()];
    const open = addresses.filter((address) => refusalOf(rules, operator, address, this.port) === undefined);
    if (open.length > 0) return this.#dial(open.includes(this.#address) ? [this.#address] : open);
    const first = addresses[0];
    if (first === undefined) this.#note("failed", "dns");
    else this.#note("denied", refusalOf(rules, operator, first, this.port) ?? "reserved", first);
    this.#refuse("no address", `${name} has no address that this capsule may reach`, true);
  }

  /** Tells the program, whose connection was accepted, and drops what it still sends. */
  #refuse(kind: RefusalKind, reason: string, isNoted = false): void {
    if (!isNoted) this.#note("denied", "not listed");
    this.#phase = "refused";
    clearTimeout(this.#timer);
    this.drop();
    this.#stream.consumed(this.#first.bytes.length);
    this.#stream.send(refusalBytes(this.#first.speech, kind, reason));
    this.#stream.end();
    if (!this.#stream.isClosed) this.#timer = setTimeout(() => this.#stream.reset(), refusedMs);
  }

  // ---- From the guest

  data(bytes: Buffer): void {
    if (this.#phase === "open") this.#sendOut(Buffer.from(bytes));
    else if (this.#phase === "refused") this.#stream.consumed(bytes.length);
    else {
      this.#first.add(bytes);
      if (this.#phase === "reading") this.#readFirst();
      else if (this.#phase === "checking") this.#check();
    }
  }

  /** TLS must name a listed name, also where the address is that of one. */
  #check(): void {
    if (this.#first.speech === "tls") {
      this.#timer ??= setTimeout(() => this.#refuse("not permitted", "no name within 10 s"), firstBytesMs);
      this.#readFirst();
    } else {
      this.#phase = "open";
      this.#sendFirst();
    }
  }

  ended(): void {
    this.#hasGuestEnded = true;
    if (this.#phase === "open") this.#outflow?.end();
    else if (this.#phase === "reading") this.#refuse("not permitted", "no name");
    else if (this.#phase === "checking") {
      if (this.#first.bytes.length > 0) this.#refuse("not permitted", "no name");
      else this.#outflow?.end();
    }
  }

  drained(): void {
    this.#inflow?.drained();
  }

  closed(hasEnded: boolean): void {
    this.#phase = "closed";
    clearTimeout(this.#timer);
    this.#abort.abort();
    if (this.#upstream === undefined) this.#shared.released(this);
    else if (!hasEnded) this.drop();
    else {
      this.#lingeringBytes = this.#outflow?.unwrittenBytes ?? 0;
      this.#shared.windows.add(this.#lingeringBytes);
    }
  }

  // ---- The socket

  pause(): void {
    this.#inflow?.pause();
  }

  resume(): void {
    this.#inflow?.resume();
  }

  /** Resets it outside, with what its peer has not taken yet. */
  drop(): void {
    this.#inflow?.stop();
    this.#upstream?.reset();
  }

  #upstreamClosed(): void {
    this.#upstream = undefined;
    this.#outflow = undefined;
    this.#shared.windows.free(this.#lingeringBytes);
    if (this.#stream.isClosed) this.#shared.released(this);
  }

  #note(verdict: Noted["verdict"], reason: string, address = this.#target ?? this.#address): void {
    const host = this.#name ?? this.#shared.answered.lastOf(address);
    const named = host === undefined ? {} : { host };
    this.#shared.note({ verdict, reason, ...named, address: addressText(address), port: this.port });
  }
}
