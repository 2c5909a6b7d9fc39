/**
 * The requests of a connection that goes its way as bytes: each head is held until it is whole, and passed on only where it names no
 * rule's host. Bodies are passed on as they come. Bytes that begin no request, such as a WebSocket's, end the reading: the rest is passed on.
 */
import { FirstBytes } from "./first-bytes.ts";
import { readFirstRequest, type Waiting } from "./first-request.ts";

/** The last four are of a body in chunks; `bytes`: nothing is read any more. */
type Place = "between" | "head" | "body" | "bytes" | "size" | "chunk" | "end of chunk" | "trailers";

/** Why nothing more may go out: a request to a rule's host, or what servers may read differently. */
export type FollowedEnd = "ruled" | "odd";

/** Limit of the line with a chunk's size, and of all trailers. */
const linesMaxBytes = 16_384;
/** With extensions as RFC 9112 has them: a quoted one ends within the line. */
const sizeLine =
  /^([0-9A-Fa-f]{1,12})(?:[\t ]*;[\t ]*[!#-'*+.^_`|~0-9A-Za-z-]+(?:[\t ]*=[\t ]*(?:[!#-'*+.^_`|~0-9A-Za-z-]+|"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"))?)*[\t ]*\r\n$/;

export class RequestFollower {
  readonly #hosts: () => readonly string[];
  readonly #pass: (bytes: Buffer) => void;
  #place: Place = "between";
  #head = new FirstBytes();
  #leftBytes = 0;
  #line = "";
  #linesBytes = 0;
  #requests = 0;
  #asksUpgrade = false;

  /** `pass` gets the bytes that may go out, valid during the call. */
  constructor(hosts: () => readonly string[], pass: (bytes: Buffer) => void) {
    this.#hosts = hosts;
    this.#pass = pass;
  }

  /** Bytes of a head that is not whole yet. */
  get heldBytes(): number {
    return this.#head.bytes.length;
  }

  /** Whether one request was passed on, the first, and it asks for another protocol. */
  get asksUpgrade(): boolean {
    return this.#asksUpgrade;
  }

  /**
   * The server has switched to the other protocol: the rest is passed on unread. Bytes behind the request that came before are no part of
   * that protocol, and what they begin stays a request.
   */
  switched(): void {
    if (this.#asksUpgrade && this.#place === "between") this.#place = "bytes";
  }

  /** Undefined: it goes on. */
  take(bytes: Buffer): FollowedEnd | undefined {
    let rest = bytes;
    while (rest.length > 0) {
      const read = this.#place === "head" ? this.#readHead(rest) : this.#passPart(rest);
      if (typeof read === "string") return read;
      rest = read;
    }
    return undefined;
  }

  /** No more bytes come. As `take`. */
  end(): FollowedEnd | undefined {
    if (this.#place !== "head") return undefined;
    const read = this.#decide("ended");
    if (typeof read === "string") return read;
    this.#pass(read);
    return undefined;
  }

  /** Passes on a first part of the bytes. The rest of them, or the end. */
  #passPart(bytes: Buffer): Buffer | FollowedEnd {
    const length = this.#lengthOf(bytes);
    this.#pass(bytes.subarray(0, length));
    const rest = bytes.subarray(length);
    if (this.#place === "between") {
      if (rest.length > 0) this.#place = "head";
    } else if (this.#place === "body" || this.#place === "chunk") {
      this.#leftBytes -= length;
      if (this.#leftBytes === 0) this.#place = this.#place === "body" ? "between" : "end of chunk";
    } else if (this.#place !== "bytes") return this.#readLine(bytes.toString("latin1", 0, length)) ?? rest;
    return rest;
  }

  #lengthOf(bytes: Buffer): number {
    if (this.#place === "bytes") return bytes.length;
    if (this.#place === "body" || this.#place === "chunk") return Math.min(this.#leftBytes, bytes.length);
    if (this.#place === "between") return /^[\r\n]*/.exec(bytes.toString("latin1"))![0].length;
    return bytes.indexOf("\n") + 1 || bytes.length;
  }

  /** A line of a body in chunks, or a part of one. */
  #readLine(part: string): "odd" | undefined {
    this.#linesBytes += part.length;
    if (this.#linesBytes > linesMaxBytes) return "odd";
    this.#line += part;
    if (!this.#line.endsWith("\n")) return undefined;
    const line = this.#line;
    this.#line = "";
    if (!line.endsWith("\r\n")) return "odd";
    if (this.#place === "trailers") {
      if (line === "\r\n") this.#place = "between";
      return undefined;
    }
    this.#linesBytes = 0;
    if (this.#place === "end of chunk") {
      this.#place = "size";
      return line === "\r\n" ? undefined : "odd";
    }
    const [, size] = sizeLine.exec(line) ?? [];
    if (size === undefined) return "odd";
    this.#leftBytes = Number.parseInt(size, 16);
    this.#place = this.#leftBytes === 0 ? "trailers" : "chunk";
    return undefined;
  }

  #readHead(bytes: Buffer): Buffer | FollowedEnd {
    this.#head.add(bytes);
    return this.#decide("more");
  }

  /** The bytes behind the head, or the end. */
  #decide(waiting: Waiting): Buffer | FollowedEnd {
    const found = readFirstRequest(this.#head, this.#hosts(), waiting);
    if (found.kind === "undecided") return Buffer.alloc(0);
    if (found.kind === "ruled" || found.kind === "odd") return found.kind;
    const { bytes } = this.#head;
    this.#head = new FirstBytes();
    if (found.kind === "other") {
      this.#place = "bytes";
      return bytes;
    }
    this.#asksUpgrade = this.#requests++ === 0 && found.asksUpgrade;
    this.#pass(bytes.subarray(0, found.headBytes));
    if (found.framing === "chunked") this.#place = "size";
    else {
      this.#leftBytes = found.framing;
      this.#place = found.framing === 0 ? "between" : "body";
    }
    return bytes.subarray(found.headBytes);
  }
}
