/** Short messages over the page: errors stay until dismissed, others for six seconds. Offers stand above the page. */
import { type ReadonlySignal, signal } from "@preact/signals";

export interface Toast {
  id: number;
  kind: "done" | "error";
  text: string;
}

/** Something to do, by a button. */
export interface Offer {
  id: number;
  text: string;
  about: string;
  button: string;
  run: () => void;
  since: number;
}

const shownMax = 4;
const doneMs = 6_000;
/** An offer moves the page below it, so it goes when the page changes, once it has been shown for so long. */
const offerMs = 20_000;

export class Toasts {
  readonly #shown = signal<readonly Toast[]>([]);
  readonly #offers = signal<readonly Offer[]>([]);
  #next = 1;

  get shown(): ReadonlySignal<readonly Toast[]> {
    return this.#shown;
  }

  get offers(): ReadonlySignal<readonly Offer[]> {
    return this.#offers;
  }

  done(text: string): void {
    const { id } = this.#add("done", text);
    setTimeout(() => this.dismiss(id), doneMs);
  }

  /** Offers something to do, in place of an earlier offer about the same. The button also dismisses it. */
  offer(text: string, { about, button, run }: Pick<Offer, "about" | "button" | "run">): void {
    this.withdraw(about);
    const id = this.#next++;
    const press = () => {
      this.dismiss(id);
      run();
    };
    const offer = { id, text, about, button, run: press, since: Date.now() };
    this.#offers.value = [...this.#offers.value, offer].slice(-shownMax);
  }

  withdraw(about: string): void {
    this.#offers.value = this.#offers.value.filter((offer) => offer.about !== about);
  }

  /** Another page is shown. */
  turnPage(now = Date.now()): void {
    this.#offers.value = this.#offers.value.filter(({ since }) => now - since < offerMs);
  }

  /** Shows an error of the service or the connection. The same text is shown once. */
  failed(error: unknown): void {
    const text = messageOf(error);
    if (this.#shown.value.some((toast) => toast.kind === "error" && toast.text === text)) return;
    this.#add("error", text);
  }

  dismiss(id: number): void {
    this.#shown.value = this.#shown.value.filter((toast) => toast.id !== id);
    this.#offers.value = this.#offers.value.filter((offer) => offer.id !== id);
  }

  #add(kind: Toast["kind"], text: string): Toast {
    const toast: Toast = { id: this.#next++, kind, text };
    this.#shown.value = [...this.#shown.value, toast].slice(-shownMax);
    return toast;
  }
}

/** An error's message as a sentence. */
export function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message === "" ? "Unknown error." : message[0]!.toUpperCase() + message.slice(1);
}
