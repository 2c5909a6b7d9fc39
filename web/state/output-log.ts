/** The end of a process's output, in pieces of one stream each. */

export interface Piece {
  channel: "stdout" | "stderr";
  text: string;
}

export class OutputLog {
  readonly #maxChars: number;
  #pieces: Piece[] = [];
  #chars = 0;
  #isCut = false;

  constructor(maxChars: number) {
    this.#maxChars = maxChars;
  }

  get pieces(): readonly Piece[] {
    return this.#pieces;
  }

  /** There was more in front. */
  get isCut(): boolean {
    return this.#isCut;
  }

  add({ channel, text }: Piece): void {
    const last = this.#pieces.at(-1);
    if (last?.channel === channel) last.text += text;
    else this.#pieces.push({ channel, text });
    this.#chars += text.length;
    let excess = this.#chars - this.#maxChars;
    if (excess <= 0) return;
    this.#isCut = true;
    this.#chars = this.#maxChars;
    while (excess >= this.#pieces[0]!.text.length) excess -= this.#pieces.shift()!.text.length;
    this.#pieces[0]!.text = this.#pieces[0]!.text.slice(excess);
  }
}
