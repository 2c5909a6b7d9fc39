/** Short messages: errors stay until dismissed, others for six seconds. */
import { type ReadonlySignal, signal } from "@preact/signals";

export interface Toast {
  id: number;
  kind: "done" | "error";
  text: string;
}

const shownMax = 4;
const doneMs = 6_000;

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

  /** Shows an error of the service or the connection. The same text is shown once. */
  failed(error: unknown): void {
    const text = messageOf(error);
    if (this.#shown.value.some((toast) => toast.kind === "error" && toast.text === text)) return;
    this.#add("error", text);
  }

  dismiss(id: number): void {
    this.#shown.value = this.#shown.value.filter((toast) => toast.id !== id);
  }

  #add(kind: Toast["kind"], text: string): Toast {
    const toast = { id: this.#next++, kind, text };
    this.#shown.value = [...this.#shown.value, toast].slice(-shownMax);
    return toast;
  }
}

/** An error's message as a sentence. */
export function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message === "" ? "Unknown error." : message[0]!.toUpperCase() + message.slice(1);
}
