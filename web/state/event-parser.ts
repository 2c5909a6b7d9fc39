/** An event stream's text, cut anywhere, into its events, as the HTML standard reads them. */
export interface RawEvent {
  id: string | undefined;
  name: string;
  data: string;
}

export class EventParser {
  #rest = "";

  /** The events that this piece completes. */
  push(piece: string): RawEvent[] {
    const blocks = (this.#rest + piece).split(/\r?\n\r?\n/);
    this.#rest = blocks.pop()!;
    return blocks.flatMap((block) => eventOf(block) ?? []);
  }
}

function eventOf(block: string): RawEvent | undefined {
  let id: string | undefined;
  let name = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line)!;
    if (field === "id") id = value;
    else if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  return data.length === 0 ? undefined : { id, name, data: data.join("\n") };
}
