/** A command's two output streams, kept up to a limit, and how they are put into JSON. */
import { isUtf8 } from "node:buffer";

export interface EncodedOutput {
  stdout: string;
  stderr: string;
  encoding: "utf-8" | "base64";
  truncated?: true;
}

export class Output {
  readonly #stdout: KeptBytes;
  readonly #stderr: KeptBytes;

  constructor(maxBytes: number) {
    this.#stdout = new KeptBytes(maxBytes);
    this.#stderr = new KeptBytes(maxBytes);
  }

  /** Copies what it keeps. */
  add(channel: "stdout" | "stderr", chunk: Uint8Array): void {
    (channel === "stdout" ? this.#stdout : this.#stderr).add(chunk);
  }

  /** Base64 for both streams if either is not UTF-8. A character that the limit cut in two is dropped, not mangled. */
  encode(): EncodedOutput {
    const stdout = this.#stdout.bytes();
    const stderr = this.#stderr.bytes();
    const encoding = isUtf8(stdout) && isUtf8(stderr) ? "utf-8" : "base64";
    return {
      stdout: stdout.toString(encoding),
      stderr: stderr.toString(encoding),
      encoding,
      ...(this.#stdout.cut || this.#stderr.cut ? { truncated: true } : {}),
    };
  }
}

class KeptBytes {
  cut = false;
  #room: number;
  readonly #chunks: Buffer[] = [];

  constructor(maxBytes: number) {
    this.#room = maxBytes;
  }

  add(chunk: Uint8Array): void {
    const kept = chunk.length <= this.#room ? chunk : chunk.subarray(0, this.#room);
    if (kept.length < chunk.length) this.cut = true;
    if (kept.length === 0) return;
    this.#room -= kept.length;
    this.#chunks.push(Buffer.from(kept));
  }

  bytes(): Buffer {
    const all = this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
    return this.cut ? all.subarray(0, all.length - incompleteTail(all)) : all;
  }
}

/** How many bytes at the end begin a UTF-8 character that is not complete: 0 to 3. */
export function incompleteTail(bytes: Uint8Array): number {
  const end = bytes.length;
  for (let back = 1; back <= Math.min(3, end); back++) {
    const byte = bytes[end - back] as number;
    if (byte < 0x80) return 0;
    if (byte >= 0xc0) return back < lengthOf(byte) ? back : 0;
  }
  return 0;
}

function lengthOf(leadByte: number): number {
  if (leadByte >= 0xf0) return leadByte <= 0xf4 ? 4 : 0;
  return leadByte >= 0xe0 ? 3 : 2;
}
