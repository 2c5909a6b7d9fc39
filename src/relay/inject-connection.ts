/**
 * A connection to port 80 of a capsule with rules: accepted, and read. Requests to a rule's host are sent on as HTTPS; another one goes its
 * way as bytes, and each request behind it is looked at.
 *
 *      reading ─► injecting     a request to a rule's host
 *      reading ─► passed on     anything else
 *      reading ─► refused       what may be such a request in an odd form
 */
import { decide } from "../network/decision.ts";
import { addressText } from "../network/destinations.ts";
import { Connection, firstBytesMs, refusedMs } from "./connection.ts";
import type { ConnectionShared } from "./connection-shared.ts";
import { FirstBytes } from "./first-bytes.ts";
import { readFirstRequest, type Waiting } from "./first-request.ts";
import { FollowedConnection } from "./followed-connection.ts";
import { InjectRequests, type InjectShared, serveInjected } from "./inject-server.ts";
import type { PortStream, StreamSink } from "./port-stream.ts";
import { refusalBytes } from "./refusals.ts";
import { GuestSocket } from "./stream-sockets.ts";

export const injectedPort = 80;

export type InjectConnectionShared = Omit<ConnectionShared<Connection>, "released"> &
  InjectShared & { released: (connection: InjectConnection) => void };

export class InjectConnection implements StreamSink {
  readonly #stream: PortStream;
  readonly #address: number;
  readonly #shared: InjectConnectionShared;
  readonly #first = new FirstBytes();
  #hasGuestEnded = false;
  #isRefused = false;
  #timer: NodeJS.Timeout | undefined;
  #passedOn: Connection | undefined;
  #injecting: { socket: GuestSocket; requests: InjectRequests } | undefined;

  constructor(stream: PortStream, { address }: { address: number }, shared: InjectConnectionShared) {
    this.#stream = stream;
    this.#address = address;
    this.#shared = shared;
    stream.sink = this;
  }

  begin(): void {
    const { rules, operator } = this.#shared;
    const decision = decide(rules(), operator(), this.#address, injectedPort);
    if (decision.kind === "denied") {
      this.#note(decision.reason);
      this.#stream.fail("denied", decision.reason);
      return;
    }
    this.#stream.opened();
    this.#timer = setTimeout(() => this.#read("late"), firstBytesMs);
  }

  recheck(): void {
    if (this.#passedOn !== undefined) this.#passedOn.recheck();
    else if (this.#injecting !== undefined) {
      if (!this.#injecting.requests.isPermitted) this.#injecting.socket.destroy();
    } else if (!this.#isRefused) {
      const { rules, operator } = this.#shared;
      const decision = decide(rules(), operator(), this.#address, injectedPort);
      if (decision.kind !== "denied") return;
      this.#note(decision.reason);
      this.#stream.reset();
    }
  }

  /** As Connection's. */
  drop(): void {
    this.#passedOn?.drop();
    this.#injecting?.socket.destroy();
  }

  pause(): void {
    this.#passedOn?.pause();
  }

  resume(): void {
    this.#passedOn?.resume();
    this.#injecting?.socket.resumeWriting();
  }

  // ---- From the guest, until it is known where the bytes go

  data(bytes: Buffer): void {
    if (this.#isRefused) {
      this.#stream.consumed(bytes.length);
      return;
    }
    this.#first.add(bytes);
    this.#read("more");
  }

  ended(): void {
    this.#hasGuestEnded = true;
    if (!this.#isRefused) this.#read("ended");
  }

  drained(): void {}

  closed(): void {
    clearTimeout(this.#timer);
    this.#shared.released(this);
  }

  #read(waiting: Waiting): void {
    const found = readFirstRequest(this.#first, this.#hosts(), waiting);
    if (found.kind === "undecided") return;
    clearTimeout(this.#timer);
    if (found.kind === "odd") this.#refuse(`not permitted: ${found.what}`);
    else if (found.kind !== "ruled") this.#passOn(waiting);
    else if (found.port === undefined || found.port === injectedPort) this.#inject();
    else this.#refuse(`not permitted: a Host of port ${found.port}`);
  }

  #hosts(): string[] {
    return this.#shared.inject().map(({ host }) => host);
  }

  #passOn(waiting: Waiting): void {
    const asked = { address: this.#address, port: injectedPort };
    const shared = { ...this.#shared, released: () => this.#shared.released(this) };
    this.#passedOn = new Connection(this.#stream, asked, shared);
    const followed = new FollowedConnection(this.#stream, this.#passedOn, {
      hosts: () => this.#hosts(),
      stopped: (why) => why === "odd" && this.#note("not listed"),
    });
    this.#passedOn.beginOpened({ isLate: waiting === "late" });
    followed.data(this.#first.bytes);
    if (this.#hasGuestEnded) followed.ended();
  }

  #inject(): void {
    const requests = new InjectRequests(this.#shared);
    const socket = new GuestSocket(this.#stream, this.#shared);
    this.#injecting = { socket, requests };
    socket.once("close", () => this.#shared.released(this));
    serveInjected(socket, requests);
    socket.received(this.#first.bytes);
    if (this.#hasGuestEnded) socket.receivedEnd();
  }

  /** Tells the program, whose connection was accepted, and drops what it still sends. */
  #refuse(reason: string): void {
    this.#isRefused = true;
    this.#note("not listed");
    this.#stream.consumed(this.#first.bytes.length);
    this.#stream.send(refusalBytes("http", "not permitted", reason));
    this.#stream.end();
    if (!this.#stream.isClosed) this.#timer = setTimeout(() => this.#stream.reset(), refusedMs);
  }

  #note(reason: string): void {
    this.#shared.note({ verdict: "denied", reason, address: addressText(this.#address), port: injectedPort });
  }
}
