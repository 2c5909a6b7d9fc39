/** Uploads into a capsule: one after the other, in the order in which they were asked for. Each can be cancelled. */
import { type ReadonlySignal, signal } from "@preact/signals";
import type { Chosen } from "./chosen-files.ts";
import { count } from "./format.ts";

/** One under way and those that wait. */
export const uploadsMax = 20;

/** Some files, chosen or dropped together. */
export interface Upload {
  id: number;
  /** Undefined while a dropped folder is being read. */
  files: readonly Chosen[] | undefined;
  /** Place of the file that is being sent, 1 for the first; 0 while the upload waits. */
  number: number;
  /** The part of this file that was sent, 0 to 1. */
  share: number;
  cancel: () => void;
}

export interface Handlers {
  send: (file: Chosen, signal: AbortSignal, onShare: (share: number) => void) => Promise<void>;
  onSent: (name: string, files: number) => void;
  onCancelled: (name: string) => void;
  onError: (error: unknown) => void;
}

export class UploadQueue {
  readonly #shown = signal<readonly Upload[]>([]);
  readonly #ended = signal(0);
  #last: Promise<void> = Promise.resolve();
  #next = 1;

  get shown(): ReadonlySignal<readonly Upload[]> {
    return this.#shown;
  }

  /** The number of uploads that have ended. */
  get ended(): ReadonlySignal<number> {
    return this.#ended;
  }

  /** Throws when too many wait. */
  add(chosen: Promise<readonly Chosen[]>, handlers: Handlers): void {
    chosen.catch(() => {}); // told at its turn
    if (this.#shown.value.length >= uploadsMax) throw new Error(`At most ${uploadsMax} uploads can wait.`);
    const id = this.#next++;
    const cancelling = new AbortController();
    const cancel = () => {
      const upload = this.#shown.value.find((each) => each.id === id);
      if (upload === undefined) return;
      cancelling.abort();
      this.#remove(id);
      handlers.onCancelled(nameOf(upload));
    };
    this.#shown.value = [...this.#shown.value, { id, files: undefined, number: 0, share: 0, cancel }];
    const run = () => this.#run(id, chosen, cancelling.signal, handlers);
    chosen.then(
      (files) => this.#change(id, { files }),
      () => {},
    );
    this.#last = this.#last.then(run);
  }

  async #run(id: number, chosen: Promise<readonly Chosen[]>, signal: AbortSignal, handlers: Handlers): Promise<void> {
    let sent = 0;
    try {
      const files = await Promise.race([chosen, none(signal)]);
      for (const [index, file] of files.entries()) {
        if (signal.aborted) break;
        this.#change(id, { number: index + 1, share: 0 });
        try {
          await handlers.send(file, signal, (share) => this.#change(id, { share }));
          sent++;
        } catch (error) {
          if (!signal.aborted) handlers.onError(error);
        }
      }
      if (sent > 0) handlers.onSent(files.length === 1 ? files[0]!.path : count(sent, "file"), sent);
    } catch (error) {
      if (!signal.aborted) handlers.onError(error);
    }
    this.#remove(id);
    this.#ended.value++;
  }

  #change(id: number, change: Partial<Upload>): void {
    this.#shown.value = this.#shown.value.map((each) => (each.id === id ? { ...each, ...change } : each));
  }

  #remove(id: number): void {
    this.#shown.value = this.#shown.value.filter((each) => each.id !== id);
  }
}

/** The file that is being sent; of an upload that waits, all of it. */
export function nameOf({ files, number }: Upload): string {
  if (files === undefined) return "the dropped files";
  if (number > 0 || files.length === 1) return files[Math.max(0, number - 1)]!.path;
  const [top, ...others] = new Set(files.map(({ path }) => path.split("/")[0]!));
  return others.length === 0 && top !== undefined
    ? `${top}, ${count(files.length, "file")}`
    : count(files.length, "file");
}

/** Resolves when the upload is cancelled: a folder's reading cannot be ended. */
function none(signal: AbortSignal): Promise<readonly Chosen[]> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve([]);
    signal.addEventListener("abort", () => resolve([]), { once: true });
  });
}
