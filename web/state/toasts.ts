/** Short messages: errors stay until dismissed, offers for 20 seconds, others for six. */
import { type ReadonlySignal, signal } from "@preact/signals";

export interface Toast {
  id: number;
  kind: "done" | "error" | "offer";
  text: string;
  /** The button of an offer. */
  action?: { about: string; text: string; run: () => void };
}

const shownMax = 4;
const doneMs = 6_000;
const offerMs = 20_000;

export class Toasts {
  readonly #shown = signal<readonly Toast[]>([]);
  #next = 1;

  get shown(): ReadonlySignal<readonly Toast[]> {
    return this.#shown;
  }

  done(text: string): void {
    const { id } = this.#add("done", text);
    setTimeout(() => this.dismiss(id), doneMs);
  }

  /** Offers something to do, in place of an earlier offer about the same. The button also dismisses it. */
  offer(text: string, { about, text: label, run }: NonNullable<Toast["action"]>): void {
    this.withdraw(about);
    const press = () => {
      this.dismiss(id);
      run();
    };
    const { id } = this.#add("offer", text, { about, text: label, run: press });
    setTimeout(() => this.dismiss(id), offerMs);
  }

  withdraw(about: string): void {
    this.#shown.value = this.#shown.value.filter(({ action }) => action?.about !== about);
  }

  /** Shows an error of the service or the connection. The same text is shown once. */
  failed(error: unknown): void {
    const text = messageOf(error);
    if (this.#shown.value.some((toast) => toast.kind === "error" && toast.text === text)) return;
    this.#add("error", text);
  }

  dismiss(id: number): void {
    this.#shown.value = this.#shown.value.filter((toast) => toast.id !== id);
  }

  #add(kind: Toast["kind"], text: string, action?: Toast["action"]): Toast {
    const toast: Toast = { id: this.#next++, kind, text, ...(action && { action }) };
    this.#shown.value = [...this.#shown.value, toast].slice(-shownMax);
    return toast;
  }
}

/** An error's message as a sentence. */
export function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message === "" ? "Unknown error." : message[0]!.toUpperCase() + message.slice(1);
}
