/** Closed-loop load: clients that repeat one GET, each as soon as it is answered, in slices of given length. */
import { HttpConnection } from "./http-connection.ts";

export interface Slice {
  seconds: number;
  /** Milliseconds of each answered request. */
  latencies: number[];
}

export class Load implements Disposable {
  readonly #connections: HttpConnection[] = [];
  readonly #path: string;
  readonly #key: string;

  static async open(url: string, path: string, key: string, clients: number): Promise<Load> {
    const load = new Load(path, key);
    try {
      while (load.#connections.length < clients) load.#connections.push(await HttpConnection.open(url));
    } catch (error) {
      load[Symbol.dispose]();
      throw error;
    }
    return load;
  }

  private constructor(path: string, key: string) {
    this.#path = path;
    this.#key = key;
  }

  /** Throws when a request fails. */
  async slice(ms: number): Promise<Slice> {
    const began = performance.now();
    const latencies: number[] = [];
    await Promise.all(this.#connections.map((connection) => this.#askUntil(connection, began + ms, latencies)));
    return { seconds: (performance.now() - began) / 1_000, latencies };
  }

  async #askUntil(connection: HttpConnection, end: number, latencies: number[]): Promise<void> {
    for (let asked = performance.now(); asked < end; ) {
      const { status, text } = await connection.ask("GET", this.#path, this.#key, undefined);
      if (status !== 200) throw new Error(`GET ${this.#path} answered ${status} ${text}`);
      const answered = performance.now();
      latencies.push(answered - asked);
      asked = answered;
    }
  }

  [Symbol.dispose](): void {
    for (const connection of this.#connections) connection.close();
  }
}
