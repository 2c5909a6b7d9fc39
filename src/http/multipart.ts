/**
 * A pull parser for multipart/form-data. It reads from the request only as fast as its caller reads parts, and buffers
 * only bytes that may begin a boundary.
 *
 *   --boundary CRLF headers CRLF CRLF body CRLF --boundary … CRLF --boundary--
 */
import { CapsuleError } from "../wire/errors.ts";

const headersMaxBytes = 8 * 1024;
const partsMax = 100;

/** The encodings in which a part's bytes are the field's. An empty header says nothing. */
const unencoded: ReadonlyMap<string, readonly string[]> = new Map([
  ["content-transfer-encoding", ["", "7bit", "8bit", "binary"]],
  ["content-encoding", ["", "identity"]],
]);

export interface Part {
  name: string;
  /** As its Content-Type names it. */
  charset: string | undefined;
  /** Read it before asking for the next part, which skips the rest. */
  body: AsyncGenerator<Buffer, void>;
}

/** Throws unsupported_media_type for another content type, invalid_request without a usable boundary. */
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
  const bytes = new BufferedBytes(source);
  const delimiter = Buffer.from(`\r\n--${boundary}`, "latin1");
  try {
    await drain(bytes.until(delimiter));
    for (let count = 0; !(await bytes.startsWith("--")); count++) {
      if (count === partsMax) throw malformed(`it has more than ${partsMax} parts`);
      const headers = headersIn(await bytes.textUntil("\r\n\r\n", headersMaxBytes));
      const name = nameIn(headers);
      requireUnencoded(name, headers);
      const body = bytes.until(delimiter);
      yield { name, charset: parameterOf(headerOf(headers, "content-type"), "charset"), body };
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

type Header = readonly [name: string, value: string];

/** The block begins with the rest of the boundary's line. A header goes on in lines that begin with white space. */
function headersIn(block: string): Header[] {
  const [padding = "", ...lines] = block.replace(/\r\n[ \t]+/g, " ").split("\r\n");
  if (padding.trim() !== "") throw malformed("something stands behind a boundary");
  return lines.map((line) => {
    const [name = ""] = line.split(":", 1);
    return [name.trimEnd().toLowerCase(), line.slice(name.length + 1).trim()];
  });
}

function headerOf(headers: readonly Header[], name: string): string {
  return headers.find(([each]) => each === name)?.[1] ?? "";
}

function nameIn(headers: readonly Header[]): string {
  const disposition = headerOf(headers, "content-disposition");
  const name = /^form-data\s*;/i.test(disposition) ? parameterOf(disposition, "name") : undefined;
  if (name === undefined) throw malformed("a part has no name");
  return name;
}

function requireUnencoded(name: string, headers: readonly Header[]): void {
  for (const [header, value] of headers) {
    if (unencoded.get(header)?.includes(value.toLowerCase()) !== false) continue;
    const title = header.replace(/\b[a-z]/g, (letter) => letter.toUpperCase());
    throw malformed(`its field ${name} has the ${title} ${value}; send its bytes as they are`);
  }
}

/** Sticky: it stops at the first character that is no parameter, so matching is linear. */
const parameterPattern = /\s*;\s*([^=;\s"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))/gy;

/** The header value `text/plain; charset=utf-8` has the parameter `charset`. */
function parameterOf(value: string, wanted: string): string | undefined {
  const parameters = /^[^;]*(.*)$/s.exec(value)?.[1] ?? "";
  for (const [, key = "", quoted, plain] of parameters.matchAll(parameterPattern)) {
    if (key.toLowerCase() === wanted) return quoted?.replace(/\\(.)/g, "$1") ?? plain?.trim() ?? "";
  }
  return undefined;
}

/** Received bytes that are not consumed yet. Starts with CRLF, since the first boundary may be the first bytes. */
class BufferedBytes {
  readonly #source: AsyncIterator<Buffer>;
  #buffer: Buffer = Buffer.from("\r\n");

  constructor(source: AsyncIterator<Buffer>) {
    this.#source = source;
  }

  /** Yields the bytes before the delimiter, and consumes both. */
  async *until(delimiter: Buffer): AsyncGenerator<Buffer, void> {
    for (;;) {
      const at = this.#buffer.indexOf(delimiter);
      if (at !== -1) {
        const chunk = this.#buffer.subarray(0, at);
        this.#buffer = this.#buffer.subarray(at + delimiter.length);
        if (chunk.length > 0) yield chunk;
        return;
      }
      // The last bytes may be the start of the delimiter, which begins with CR.
      const partial = this.#buffer.indexOf("\r", Math.max(0, this.#buffer.length - delimiter.length + 1));
      const chunk = partial === -1 ? this.#buffer : this.#buffer.subarray(0, partial);
      this.#buffer = this.#buffer.subarray(chunk.length);
      if (chunk.length > 0) yield chunk;
      await this.#more();
    }
  }

  async textUntil(delimiter: string, maxBytes: number): Promise<string> {
    for (;;) {
      const at = this.#buffer.indexOf(delimiter);
      if (at > maxBytes || (at === -1 && this.#buffer.length > maxBytes))
        throw malformed("a part's headers are too long");
      if (at !== -1) {
        const text = this.#buffer.toString("utf8", 0, at);
        this.#buffer = this.#buffer.subarray(at + delimiter.length);
        return text;
      }
      await this.#more();
    }
  }

  async startsWith(text: string): Promise<boolean> {
    while (this.#buffer.length < text.length) await this.#more();
    return this.#buffer.toString("latin1", 0, text.length) === text;
  }

  async discardRest(): Promise<void> {
    this.#buffer = Buffer.alloc(0);
    while (!(await this.#source.next()).done);
  }

  async #more(): Promise<void> {
    const next = await this.#source.next();
    if (next.done) throw malformed("it ends before its last boundary");
    this.#buffer = this.#buffer.length === 0 ? next.value : Buffer.concat([this.#buffer, next.value]);
  }
}
