/** TCP connections of the relay: up to three addresses of a name at once, of which the first that accepts is kept. */
import { Socket, type SocketConstructorOpts } from "node:net";
import { addressText } from "../network/destinations.ts";

const dialMs = 60_000;
const keepAliveMs = 60_000;
const dialledAtOnce = 3;
/** Open sockets of the relay, of all capsules. */
export const socketsMax = 50_000;
const readBytes = 65_536;

/** Where a dialled connection's bytes and ends go. */
export interface Receiver {
  /** The bytes are a view that is valid only during the call. False: read no more until `resume`. */
  data(bytes: Buffer): boolean;
  ended(): void;
  closed(hadError: boolean): void;
}

/** A connection that stands. */
export interface Upstream {
  readonly address: number;
  /** Nothing is read before `resume`. */
  receive(receiver: Receiver): void;
  /** `taken` is called when the kernel has the bytes, which must not change before. */
  write(bytes: Uint8Array, taken: () => void): void;
  end(): void;
  pause(): void;
  resume(): void;
  /** RST. */
  reset(): void;
}

export type DialFailure = "refused" | "unreachable" | "timeout" | "own address" | "limit";

export type Dialled = { upstream: Upstream } | { failure: DialFailure };

export interface DialOptions {
  /** Whether an address of this machine may be reached. */
  isGranted: boolean;
  signal: AbortSignal;
}

/** Dials for all capsules. */
export interface Dialler {
  dial(addresses: readonly number[], port: number, options: DialOptions): Promise<Dialled>;
}

/** One buffer for all reads: its bytes are used before the next read. */
const shared = Buffer.allocUnsafeSlow(readBytes);

export class TcpDialler implements Dialler {
  readonly #dialMs: number;
  readonly #placesMax: number;
  #sockets = 0;

  constructor({ deadlineMs = dialMs, placesMax = socketsMax } = {}) {
    this.#dialMs = deadlineMs;
    this.#placesMax = placesMax;
  }

  async dial(addresses: readonly number[], port: number, { isGranted, signal }: DialOptions): Promise<Dialled> {
    const chosen = addresses.slice(0, dialledAtOnce);
    if (this.#sockets + chosen.length > this.#placesMax) return { failure: "limit" };
    const { promise, resolve } = Promise.withResolvers<Dialled>();
    const failures: DialFailure[] = [];
    const dialling = new Set<TcpConnection>();
    let isSettled = false;
    for (const address of chosen) {
      const each = new TcpConnection(address, port);
      dialling.add(each);
      this.#sockets++;
      each.socket.once("close", () => this.#sockets--);
      const settle = (failure: DialFailure | undefined) => {
        dialling.delete(each);
        const found = failure ?? (!isGranted && each.isToOwnAddress ? "own address" : undefined);
        if (found === undefined && !isSettled) {
          isSettled = true;
          resolve({ upstream: each });
          return;
        }
        each.socket.destroy();
        if (found !== undefined) failures.push(found);
        if (dialling.size === 0) resolve({ failure: worstOf(failures) });
      };
      each.socket.once("connect", () => settle(undefined));
      each.socket.once("error", (error: NodeJS.ErrnoException) => settle(failureOf(error.code)));
    }
    const timer = setTimeout(() => resolve({ failure: "timeout" }), this.#dialMs);
    const abort = () => resolve({ failure: "unreachable" });
    signal.addEventListener("abort", abort, { once: true });
    const dialled = await promise;
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
    for (const each of dialling) each.socket.destroy();
    if (!signal.aborted || !("upstream" in dialled)) return dialled;
    dialled.upstream.reset();
    return { failure: "unreachable" };
  }
}

/** The one of several that says most. */
function worstOf(failures: readonly DialFailure[]): DialFailure {
  const order: DialFailure[] = ["own address", "limit", "refused", "timeout", "unreachable"];
  return order.find((each) => failures.includes(each)) ?? "unreachable";
}

function failureOf(code: string | undefined): DialFailure {
  if (code === "ECONNREFUSED" || code === "ECONNRESET") return "refused";
  if (code === "ETIMEDOUT") return "timeout";
  return code === "EMFILE" || code === "ENFILE" || code === "ENOBUFS" ? "limit" : "unreachable";
}

class TcpConnection implements Upstream {
  readonly address: number;
  readonly socket: Socket;
  #receiver: Receiver | undefined;
  #hasError = false;

  constructor(address: number, port: number) {
    this.address = address;
    this.socket = new Socket({
      allowHalfOpen: true,
      onread: { buffer: shared, callback: (bytes) => this.#receiver!.data(shared.subarray(0, bytes)) },
    } as SocketConstructorOpts);
    this.socket.once("end", () => this.#receiver?.ended());
    this.socket.on("error", () => {
      this.#hasError = true;
    });
    this.socket.once("close", () => this.#receiver?.closed(this.#hasError));
    this.socket.pause();
    this.socket.setNoDelay(true);
    this.socket.setKeepAlive(true, keepAliveMs);
    this.socket.connect({ host: addressText(address), port, family: 4 });
  }

  get isToOwnAddress(): boolean {
    return this.socket.localAddress === this.socket.remoteAddress;
  }

  receive(receiver: Receiver): void {
    this.#receiver = receiver;
    if (this.socket.destroyed) receiver.closed(this.#hasError);
  }

  write(bytes: Uint8Array, taken: () => void): void {
    this.socket.write(bytes, taken);
  }

  end(): void {
    this.socket.end();
  }

  pause(): void {
    this.socket.pause();
  }

  resume(): void {
    this.socket.resume();
  }

  reset(): void {
    // libuv does not reset a socket whose FIN is still to be sent, and Node then leaves it open.
    if (this.socket.writableEnded && !this.socket.writableFinished) this.socket.destroy();
    else this.socket.resetAndDestroy();
  }
}
