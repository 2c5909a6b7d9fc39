/** A foreground command's output, kept in memory up to a limit and within a budget of bytes, and its form in JSON. */
import { isUtf8 } from "node:buffer";
import { ChunkBuffer } from "../agent/chunk-buffer.ts";

export interface EncodedOutput {
  stdout: string;
  stderr: string;
  encoding: "utf-8" | "base64";
  truncated?: true;
}

/** Bytes of output that may be in memory at one time. */
export class OutputBudget {
  #freeBytes: number;
  readonly #parent: OutputBudget | undefined;

  /** Bytes count against `parent` too. Its children together may be larger than it is. */
  constructor(totalBytes: number, parent?: OutputBudget) {
    this.#freeBytes = totalBytes;
    this.#parent = parent;
  }

  /** Reserves up to `bytes` and returns how many. */
  take(bytes: number): number {
    const wanted = Math.min(bytes, this.#freeBytes);
    const taken = this.#parent?.take(wanted) ?? wanted;
    this.#freeBytes -= taken;
    return taken;
  }

  giveBack(bytes: number): void {
    this.#freeBytes += bytes;
    this.#parent?.giveBack(bytes);
  }
}

/** One budget for all teams and a smaller one per team, so that no team can use up the whole. */
export class OutputBudgets {
  readonly #all: OutputBudget;
  readonly #teamBytes: number;
  readonly #ofTeams = new Map<string, OutputBudget>();

  constructor({ allBytes, teamBytes }: { allBytes: number; teamBytes: number }) {
    this.#all = new OutputBudget(allBytes);
    this.#teamBytes = teamBytes;
  }

  of(teamId: string): OutputBudget {
    let budget = this.#ofTeams.get(teamId);
    if (budget === undefined) {
      budget = new OutputBudget(this.#teamBytes, this.#all);
      this.#ofTeams.set(teamId, budget);
    }
    return budget;
  }
}

export class Output {
  readonly #stdout: KeptBytes;
  readonly #stderr: KeptBytes;

  /** `maxBytes` is for each stream. */
  constructor(maxBytes: number, budget: OutputBudget) {
    this.#stdout = new KeptBytes(maxBytes, budget);
    this.#stderr = new KeptBytes(maxBytes, budget);
  }

  /** Copies what it keeps. */
  add(channel: "stdout" | "stderr", chunk: Uint8Array): void {
    (channel === "stdout" ? this.#stdout : this.#stderr).add(chunk);
  }

  /**
   * Returns the kept output. Its bytes stay reserved until `release`, since the response is in memory until the client has
   * read it. Both streams are base64 if either is not UTF-8. A character that the limit cut in two is dropped.
   */
  encode(): EncodedOutput {
    const truncated = this.#stdout.cut || this.#stderr.cut;
    const [stdout, stderr] = [this.#stdout.take(), this.#stderr.take()];
    const encoding = isUtf8(stdout) && isUtf8(stderr) ? "utf-8" : "base64";
    return {
      stdout: stdout.toString(encoding),
      stderr: stderr.toString(encoding),
      encoding,
      ...(truncated ? { truncated: true } : {}),
    };
  }

  /** Gives the reserved bytes back and keeps no further output. */
  release(): void {
    this.#stdout.release();
    this.#stderr.release();
  }
}

class KeptBytes {
  cut = false;
  readonly #maxBytes: number;
  readonly #budget: OutputBudget;
  readonly #bytes = new ChunkBuffer();
  #takenBytes = 0;

  constructor(maxBytes: number, budget: OutputBudget) {
    this.#maxBytes = maxBytes;
    this.#budget = budget;
  }

  add(chunk: Uint8Array): void {
    if (this.cut) return;
    const keptBytes = this.#budget.take(Math.min(chunk.length, this.#maxBytes - this.#bytes.length));
    this.#takenBytes += keptBytes;
    this.cut = keptBytes < chunk.length;
    this.#bytes.add(chunk.subarray(0, keptBytes));
  }

  take(): Buffer {
    const all = this.#bytes.take();
    return this.cut ? all.subarray(0, all.length - incompleteTail(all)) : all;
  }

  release(): void {
    this.cut = true;
    this.#bytes.take();
    this.#budget.giveBack(this.#takenBytes);
    this.#takenBytes = 0;
  }
}

/** Number of bytes at the end that begin an incomplete UTF-8 character: 0 to 3. */
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
