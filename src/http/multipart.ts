/**
 * multipart/form-data, taken apart while it arrives and no faster than it is read: nothing is kept but the bytes that
 * may be the beginning of a boundary.
 *
 *   --boundary CRLF headers CRLF CRLF body CRLF --boundary … CRLF --boundary--
 */
import { CapsuleError } from "../wire/errors.ts";

const headersMaxBytes = 8 * 1024;
const partsMax = 100;

export interface Part {
  name: string;
  /** To be read before the next part is asked for; what is left unread is skipped. */
  body: AsyncGenerator<Buffer, void>;
}

/** Throws unsupported_media_type when it is no form, invalid_request when the boundary is missing. */
export function boundaryOf(contentType: string | undefined): string {
  if (contentType === undefined || !/^multipart\/form-data *(?:;|$)/i.test(contentType)) {
    throw new CapsuleError("unsupported_media_type", "a file is sent as multipart/form-data");
  }
  const [, quoted, plain] = /;\s*boundary=(?:"([^"]+)"|([^\s;"]+))/i.exec(contentType) ?? [];
  const boundary = quoted ?? plain;
  if (boundary === undefined || boundary.length > 70) throw malformed("its Content-Type has no usable boundary");
  return boundary;
}

export async function* readParts(source: AsyncIterator<Buffer>, boundary: string): AsyncGenerator<Part, void> {
  const bytes = new HeldBytes(source);
  const delimiter = Buffer.from(`\r\n--${boundary}`, "latin1");
  try {
    await drain(bytes.until(delimiter));
    for (let count = 0; !(await bytes.startsWith("--")); count++) {
      if (count === partsMax) throw malformed(`it has more than ${partsMax} parts`);
      const name = nameIn(await bytes.textUntil("\r\n\r\n", headersMaxBytes));
      const body = bytes.until(delimiter);
      yield { name, body };
      await drain(body);
    }
    await bytes.discardRest();
  } finally {
    await source.return?.();
  }
}

export function malformed(why: string): CapsuleError {
  return new CapsuleError("invalid_request", `the form cannot be read: ${why}`);
}

async function drain(chunks: AsyncIterable<Buffer>): Promise<void> {
  for await (const _ of chunks);
}

/** Sticky, so that it stops at what is no parameter instead of looking for one behind every semicolon. */
const parameterPattern = /\s*;\s*([^=;\s"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))/gy;

/** The block begins with the rest of the boundary's line. */
function nameIn(block: string): string {
  const [padding = "", ...lines] = block.split("\r\n");
  if (padding.trim() !== "") throw malformed("something stands behind a boundary");
  const disposition = lines.find((line) => /^content-disposition *:/i.test(line)) ?? "";
  const parameters = /^[^:]*:\s*form-data\s*(;.*)$/is.exec(disposition)?.[1] ?? "";
  for (const [, key = "", quoted, plain] of parameters.matchAll(parameterPattern)) {
    if (key.toLowerCase() === "name") return quoted?.replace(/\\(.)/g, "$1") ?? plain?.trim() ?? "";
  }
  throw malformed("a part has no name");
}

/** What has arrived and was not taken. Begins with a line end, since the first boundary may stand at the very start. */
class HeldBytes {
  readonly #source: AsyncIterator<Buffer>;
  #held: Buffer = Buffer.from("\r\n");

  constructor(source: AsyncIterator<Buffer>) {
    this.#source = source;
  }

  /** The bytes before the delimiter, which is taken too. */
  async *until(delimiter: Buffer): AsyncGenerator<Buffer, void> {
    for (;;) {
      const at = this.#held.indexOf(delimiter);
      if (at !== -1) {
        const chunk = this.#held.subarray(0, at);
        this.#held = this.#held.subarray(at + delimiter.length);
        if (chunk.length > 0) yield chunk;
        return;
      }
      // The delimiter may have begun to arrive; it begins with a CR.
      const begun = this.#held.indexOf("\r", Math.max(0, this.#held.length - delimiter.length + 1));
      const chunk = begun === -1 ? this.#held : this.#held.subarray(0, begun);
      this.#held = this.#held.subarray(chunk.length);
      if (chunk.length > 0) yield chunk;
      await this.#more();
    }
  }

  async textUntil(delimiter: string, maxBytes: number): Promise<string> {
    for (;;) {
      const at = this.#held.indexOf(delimiter);
      if (at > maxBytes || (at === -1 && this.#held.length > maxBytes))
        throw malformed("a part's headers are too long");
      if (at !== -1) {
        const text = this.#held.toString("utf8", 0, at);
        this.#held = this.#held.subarray(at + delimiter.length);
        return text;
      }
      await this.#more();
    }
  }

  async startsWith(text: string): Promise<boolean> {
    while (this.#held.length < text.length) await this.#more();
    return this.#held.toString("latin1", 0, text.length) === text;
  }

  async discardRest(): Promise<void> {
    this.#held = Buffer.alloc(0);
    while (!(await this.#source.next()).done);
  }

  async #more(): Promise<void> {
    const next = await this.#source.next();
    if (next.done) throw malformed("it ends before its last boundary");
    this.#held = this.#held.length === 0 ? next.value : Buffer.concat([this.#held, next.value]);
  }
}
