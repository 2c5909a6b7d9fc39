/** The first bytes of a connection, kept until the name in them is known. */
import { handshakeType, readClientHello } from "./client-hello.ts";
import { type FirstName, firstBytesMax } from "./first-name.ts";
import { beginsHttp, readHttpHead } from "./http-head.ts";
import type { Speech } from "./refusals.ts";

export class FirstBytes {
  #bytes = Buffer.alloc(0);
  #length = 0;
  #needed = 1;
  #scanned = 0;

  add(bytes: Uint8Array): void {
    const length = this.#length + bytes.length;
    if (length > this.#bytes.length) {
      const larger = Buffer.alloc(Math.max(length, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length = length;
  }

  get bytes(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  get speech(): Speech {
    const [first = 0] = this.bytes;
    return first === handshakeType ? "tls" : beginsHttp(first) ? "http" : "other";
  }

  /** The name, or what is odd; undefined: more bytes are needed. */
  name(): Exclude<FirstName, { need: number }> | undefined {
    if (this.#length < this.#needed) return undefined;
    const found = this.#read();
    this.#scanned = this.#length;
    if (!("need" in found)) return found;
    this.#needed = found.need;
    return found.need > firstBytesMax ? { odd: "first bytes that are too long" } : undefined;
  }

  #read(): FirstName {
    if (this.speech === "tls") return readClientHello(this.bytes);
    return this.speech === "http" ? readHttpHead(this.bytes, this.#scanned) : { odd: "neither TLS nor HTTP/1" };
  }
}
