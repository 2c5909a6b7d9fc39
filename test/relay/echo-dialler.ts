/** A dialler without a network: every connection sends back what it gets, and ends when it does. */
import { addressText } from "../../src/network/destinations.ts";
import type { DialFailure, Dialled, Dialler, DialOptions, Receiver, Upstream } from "../../src/relay/dialler.ts";

export class EchoDialler implements Dialler {
  /** Addresses that were dialled at once, the port, and whether they were granted. */
  readonly dialled: string[] = [];
  /** How connections were ended by the relay. */
  readonly ends: ("end" | "reset")[] = [];
  failure: DialFailure | undefined;
  greeting = "";
  /** False: connections made meanwhile take nothing. */
  takes = true;
  /** Bytes that the relay has read of all connections. */
  read = 0;

  async dial(addresses: readonly number[], port: number, { isGranted }: DialOptions): Promise<Dialled> {
    this.dialled.push(`${addresses.map(addressText).join(",")}:${port}${isGranted ? " granted" : ""}`);
    if (this.failure !== undefined) return { failure: this.failure };
    return { upstream: new Echo(addresses[0]!, this, this.ends) };
  }
}

class Echo implements Upstream {
  readonly address: number;
  readonly #ends: ("end" | "reset")[];
  readonly #dialler: EchoDialler;
  readonly #takes: boolean;
  #waiting: Buffer[];
  #receiver: Receiver | undefined;
  #mayRead = false;
  #isEnding = false;
  #isClosed = false;

  constructor(address: number, dialler: EchoDialler, ends: ("end" | "reset")[]) {
    this.address = address;
    this.#dialler = dialler;
    this.#takes = dialler.takes;
    this.#waiting = dialler.greeting === "" ? [] : [Buffer.from(dialler.greeting)];
    this.#ends = ends;
  }

  receive(receiver: Receiver): void {
    this.#receiver = receiver;
  }

  write(bytes: Uint8Array, taken: () => void): void {
    if (!this.#takes) return;
    this.#waiting.push(Buffer.from(bytes));
    queueMicrotask(() => {
      taken();
      this.#pass();
    });
  }

  end(): void {
    this.#ends.push("end");
    this.#isEnding = true;
    queueMicrotask(() => this.#pass());
  }

  pause(): void {
    this.#mayRead = false;
  }

  resume(): void {
    this.#mayRead = true;
    this.#pass();
  }

  reset(): void {
    if (this.#isClosed) return;
    this.#ends.push("reset");
    this.#close();
  }

  #pass(): void {
    while (this.#mayRead && !this.#isClosed && this.#receiver !== undefined && this.#waiting.length > 0) {
      const bytes = this.#waiting.shift()!;
      this.#dialler.read += bytes.length;
      this.#mayRead = this.#receiver.data(bytes);
    }
    if (!this.#isEnding || this.#isClosed || this.#waiting.length > 0 || this.#receiver === undefined) return;
    this.#receiver.ended();
    this.#close();
  }

  #close(): void {
    this.#isClosed = true;
    queueMicrotask(() => this.#receiver?.closed(false));
  }
}
