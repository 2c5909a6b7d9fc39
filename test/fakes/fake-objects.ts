/** A bucket in memory. */
import { BucketError, type Listed, type Objects } from "../../src/bucket/objects.ts";

const pageMax = 1_000;

export class FakeObjects implements Objects {
  readonly place = "the bucket in memory";
  readonly objects = new Map<string, Buffer<ArrayBuffer>>();
  /** Names in the order in which they were asked to be deleted. */
  readonly deleted: string[] = [];
  /** Called before each request; what it throws is its answer. */
  onRequest: (method: "put" | "get" | "delete" | "list", name: string) => void | Promise<void> = () => {};

  async put(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    await this.onRequest("put", name);
    this.objects.set(name, Buffer.from(bytes));
  }

  async get(name: string, maxBytes: number): Promise<Buffer<ArrayBuffer>> {
    await this.onRequest("get", name);
    const found = this.objects.get(name);
    if (found === undefined)
      throw new BucketError(`there is no object ${name}`, { httpStatus: 404, reason: "NoSuchKey" });
    if (found.length > maxBytes) throw new Error(`${name} has ${found.length} bytes, more than ${maxBytes}`);
    return Buffer.from(found);
  }

  async delete(name: string): Promise<void> {
    await this.onRequest("delete", name);
    this.deleted.push(name);
    this.objects.delete(name);
  }

  async list(prefix: string, after = ""): Promise<Listed> {
    await this.onRequest("list", prefix);
    const names = [...this.objects.keys()].filter((name) => name.startsWith(prefix) && name > after).sort();
    return { names: names.slice(0, pageMax), isTruncated: names.length > pageMax };
  }
}
