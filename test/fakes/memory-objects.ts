/** A bucket in memory, which can be away, and whose objects a test changes. */
import { BucketError, type Listed, type Objects } from "../../src/bucket/objects.ts";

export class MemoryObjects implements Objects {
  readonly place = "memory";
  readonly objects = new Map<string, Buffer<ArrayBuffer>>();
  isAway = false;

  async put(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.#require();
    this.objects.set(name, Buffer.from(bytes));
  }

  async get(name: string, maxBytes: number): Promise<Buffer<ArrayBuffer>> {
    this.#require();
    const found = this.objects.get(name);
    if (found === undefined)
      throw new BucketError(`there is no object ${name}`, { httpStatus: 404, reason: "NoSuchKey" });
    if (found.length > maxBytes) throw new Error(`${name} has more than ${maxBytes} bytes`);
    return found;
  }

  async delete(name: string): Promise<void> {
    this.#require();
    this.objects.delete(name);
  }

  async list(prefix: string, after = ""): Promise<Listed> {
    this.#require();
    const names = [...this.objects.keys()].filter((name) => name.startsWith(prefix) && name > after);
    return { names: names.sort(), isTruncated: false };
  }

  #require(): void {
    if (this.isAway) throw new BucketError("the bucket does not answer", { reason: "ECONNREFUSED" });
  }
}
