/** A command's two output streams, kept up to a limit, and how they are put into JSON. */
import { isUtf8 } from "node:buffer";
import { GrowingBytes } from "../agent/growing-bytes.ts";

export interface EncodedOutput {
  stdout: string;
  stderr: string;
  encoding: "utf-8" | "base64";
  truncated?: true;
}

/** What all foreground commands of the service together may have kept at one time. */
export class OutputBudget {
  #freeBytes: number;

  constructor(totalBytes: number) {
    this.#freeBytes = totalBytes;
  }

  /** As much of it as there is. */
  take(bytes: number): number {
    const taken = Math.min(bytes, this.#freeBytes);
    this.#freeBytes -= taken;
    return taken;
  }

  giveBack(bytes: number): void {
    this.#freeBytes += bytes;
  }
}

export class Output {
  readonly #stdout: KeptBytes;
  readonly #stderr: KeptBytes;
  readonly #budget: OutputBudget;

  /** `maxBytes` is for each stream. */
  constructor(maxBytes: number, budget: OutputBudget) {
    this.#stdout = new KeptBytes(maxBytes, budget);
    this.#stderr = new KeptBytes(maxBytes, budget);
    this.#budget = budget;
  }

  /** Copies what it keeps. */
  add(channel: "stdout" | "stderr", chunk: Uint8Array): void {
    (channel === "stdout" ? this.#stdout : this.#stderr).add(chunk);
  }

  /**
   * Hands over what was kept, and forgets it. Base64 for both streams if either is not UTF-8. A character that the limit
   * cut in two is dropped, not mangled.
   */
  encode(): EncodedOutput {
    const truncated = this.#stdout.cut || this.#stderr.cut;
    const [stdout, stderr] = this.#take();
    const encoding = isUtf8(stdout) && isUtf8(stderr) ? "utf-8" : "base64";
    return {
      stdout: stdout.toString(encoding),
      stderr: stderr.toString(encoding),
      encoding,
      ...(truncated ? { truncated: true } : {}),
    };
  }

  /** Nobody wants it any longer. */
  drop(): void {
    this.#take();
  }

  #take(): [Buffer, Buffer] {
    this.#budget.giveBack(this.#stdout.length + this.#stderr.length);
    return [this.#stdout.take(), this.#stderr.take()];
  }
}

class KeptBytes {
  cut = false;
  readonly #maxBytes: number;
  readonly #budget: OutputBudget;
  readonly #bytes = new GrowingBytes();

  constructor(maxBytes: number, budget: OutputBudget) {
    this.#maxBytes = maxBytes;
    this.#budget = budget;
  }

  get length(): number {
    return this.#bytes.length;
  }

  add(chunk: Uint8Array): void {
    if (this.cut) return;
    const keptBytes = this.#budget.take(Math.min(chunk.length, this.#maxBytes - this.length));
    this.cut = keptBytes < chunk.length;
    this.#bytes.add(chunk.subarray(0, keptBytes));
  }

  take(): Buffer {
    const all = this.#bytes.take();
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
