/**
 * The port over the package s3mini, which names the requests and signs them. It gets a `fetch` of ours that has read the answer before, up
 * to a limit, and throws what is no success, so the package parses nothing that a bucket has sent.
 */
import { createHash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { S3mini } from "s3mini";
import { messageOf } from "../wire/errors.ts";
import { namesOf } from "./listing.ts";
import { BucketError, DamagedObject, type Listed, type Objects, type ToldClock } from "./objects.ts";

/** The size of an answer that says what went wrong, and of one without contents. */
const messageMaxBytes = 64 * 1024;
/** A list of 1 000 names of 512 characters, with some 400 bytes of markup each. */
const listingMaxBytes = 2 << 20;
const listedMax = 1_000;
/** Hashed in one turn of the event loop: a tenth of a millisecond. */
const md5Bytes = 64 * 1024;

export interface S3Access {
  url: string;
  accessKeyId: string;
  secretAccessKey: string;
}

export class S3Objects implements Objects {
  readonly place: string;
  clock: ToldClock | undefined;
  readonly #access: S3Access;
  /** The server and the path before the bucket's name; the bucket's name; what stands before each object's name. */
  readonly #server: string;
  readonly #bucket: string;
  readonly #prefix: string;
  readonly #region: string;

  constructor(access: S3Access) {
    const { origin, pathname, host, searchParams } = new URL(access.url);
    const [bucket = "", ...prefix] = pathname.split("/").filter((part) => part !== "");
    this.#access = access;
    this.#server = origin;
    this.#bucket = bucket;
    this.#prefix = prefix.map((part) => `${part}/`).join("");
    this.#region = searchParams.get("region") ?? "us-east-1";
    this.place = `the bucket ${bucket} at ${host}`;
  }

  async put(name: string, bytes: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<void> {
    const md5 = { "content-md5": await md5Of(bytes) } as Record<`x-amz-${string}`, string>;
    await this.#exchange(messageMaxBytes, signal, (client) =>
      client.putObject(this.#path(name), bytes, "application/octet-stream", undefined, md5),
    );
  }

  async get(name: string, maxBytes: number, signal: AbortSignal): Promise<Buffer<ArrayBuffer>> {
    return await this.#exchange(maxBytes, signal, (client) => client.getObjectResponse(this.#path(name)), name);
  }

  async delete(name: string, signal: AbortSignal): Promise<void> {
    try {
      await this.#exchange(messageMaxBytes, signal, (client) => client.deleteObject(this.#path(name)));
    } catch (error) {
      if (!(error instanceof BucketError && error.isMissing)) throw error;
    }
  }

  async list(prefix: string, after: string | undefined, signal: AbortSignal): Promise<Listed> {
    const query: Record<string, string> = { "list-type": "2", prefix: this.#prefix + prefix };
    if (after !== undefined) query["start-after"] = this.#prefix + after;
    query["max-keys"] = String(listedMax);
    const text = await this.#exchange(listingMaxBytes, signal, (client) =>
      client.getObjectResponse(this.#bucket, query),
    );
    const { names, isTruncated } = namesOf(text.toString("utf8"), listedMax);
    const foreign = names.find((name) => !name.startsWith(this.#prefix + prefix));
    if (foreign !== undefined) throw new DamagedObject(foreign, "it was not asked for in a list");
    return { names: names.map((name) => name.slice(this.#prefix.length)), isTruncated };
  }

  #path(name: string): string {
    return `${this.#bucket}/${this.#prefix}${name}`;
  }

  /** The body of a successful answer. */
  async #exchange(
    maxBytes: number,
    signal: AbortSignal,
    request: (client: S3mini) => Promise<unknown>,
    name = "",
  ): Promise<Buffer<ArrayBuffer>> {
    let body: Buffer<ArrayBuffer> | undefined;
    const { accessKeyId, secretAccessKey } = this.#access;
    const answered = async (url: string | URL | Request, init: RequestInit = {}) => {
      const response = await this.#fetch(url, init, signal);
      if (!response.ok) throw await this.#refusal(response, signal);
      body = await this.#read(response, maxBytes, signal);
      if (body === undefined) throw new DamagedObject(name, `it has more than ${maxBytes} bytes`);
      return new Response(null, { status: response.status });
    };
    const endpoint = this.#server;
    await request(new S3mini({ accessKeyId, secretAccessKey, endpoint, region: this.#region, fetch: answered }));
    return body ?? Buffer.alloc(0);
  }

  async #fetch(url: string | URL | Request, init: RequestInit, signal: AbortSignal): Promise<Response> {
    // A redirect would take the request, and an encoding the number of bytes, out of these hands.
    const headers = { ...(init.headers as Record<string, string>), "accept-encoding": "identity" };
    const sentAt = performance.now();
    const asked = fetch(url, { ...init, headers, redirect: "manual", signal });
    const answer = await asked.catch((error: unknown) => {
      throw this.#lost(error, signal);
    });
    const date = Date.parse(answer.headers.get("date") ?? "");
    this.clock = Number.isNaN(date) ? undefined : { date, sentAt, answeredAt: performance.now() };
    return answer;
  }

  /** Undefined: it has more bytes. */
  async #read(response: Response, maxBytes: number, signal: AbortSignal): Promise<Buffer<ArrayBuffer> | undefined> {
    const announced = Number(response.headers.get("content-length") ?? 0);
    let body = Buffer.alloc(0);
    let bytes = 0;
    try {
      if (announced <= maxBytes && response.body !== null) {
        for await (const part of response.body) {
          if (bytes + part.length > maxBytes) return undefined; // which cancels the rest
          if (bytes + part.length > body.length)
            body = grown(body, bytes + part.length, Math.max(announced, 2 * body.length));
          body.set(part, bytes);
          bytes += part.length;
        }
        return body.subarray(0, bytes);
      }
      await response.body?.cancel();
    } catch (error) {
      throw this.#lost(error, signal);
    }
    return announced > maxBytes ? undefined : Buffer.alloc(0);
  }

  #lost(error: unknown, signal: AbortSignal): unknown {
    if (signal.aborted) return signal.reason;
    const { cause } = error as { cause?: { code?: unknown } };
    const reason = typeof cause?.code === "string" ? cause.code : messageOf(cause ?? error);
    return new BucketError(`${this.place} cannot be reached (${reason})`, { reason, cause: error });
  }

  async #refusal(response: Response, signal: AbortSignal): Promise<BucketError> {
    const text = (await this.#read(response, messageMaxBytes, signal))?.toString("latin1") ?? "";
    const code = /<Code>([A-Za-z0-9]{1,64})<\/Code>/.exec(text)?.[1];
    const { status } = response;
    const reason = code ?? String(status);
    const said = code === undefined ? `HTTP status ${status}` : `HTTP status ${status}, ${code}`;
    return new BucketError(`${this.place} has refused a request (${said})`, { httpStatus: status, reason });
  }
}

/** A copy with room for more: a bucket that sends single bytes makes no buffer of each. */
function grown(of: Buffer<ArrayBuffer>, least: number, wanted: number): Buffer<ArrayBuffer> {
  const larger = Buffer.alloc(Math.max(least, wanted));
  larger.set(of);
  return larger;
}

async function md5Of(bytes: Uint8Array): Promise<string> {
  const hash = createHash("md5");
  for (let at = 0; at < bytes.length; at += md5Bytes) {
    hash.update(bytes.subarray(at, at + md5Bytes));
    if (at + md5Bytes < bytes.length) await setImmediate();
  }
  return hash.digest("base64");
}
