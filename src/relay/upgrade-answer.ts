/**
 * The first answer on a connection that goes its way as bytes: whether the server switches to the protocol that the request before has
 * asked for. It counts only in the form that every client reads so.
 *
 * https://www.rfc-editor.org/rfc/rfc9110#section-7.8
 */
import { headerLine } from "./http-head.ts";
import { valuesOf } from "./inject-heads.ts";

const headMaxBytes = 16_384;
const endOfHead = "\r\n\r\n";
const informational = /^HTTP\/1\.1 (1\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;

export class UpgradeAnswer {
  #text = "";

  /** Undefined: more bytes are needed. Heads before it that are no answer yet, such as 103, are skipped. */
  take(bytes: Buffer): boolean | undefined {
    const before = this.#text.length;
    this.#text += bytes.toString("latin1");
    let end = this.#text.indexOf(endOfHead, Math.max(0, before - endOfHead.length));
    while (end !== -1 && end <= headMaxBytes) {
      const [status = "", ...lines] = this.#text.slice(0, end).split("\r\n");
      const [, code] = informational.exec(status) ?? [];
      if (code === undefined || code === "101") return code !== undefined && namesUpgrade(fieldsOf(lines));
      this.#text = this.#text.slice(end + endOfHead.length);
      end = this.#text.indexOf(endOfHead);
    }
    return this.#text.length > headMaxBytes ? false : undefined;
  }
}

/** Whether a head asks for, or agrees to, a protocol that is no HTTP: requests in HTTP/2 name their hosts too. */
export function namesUpgrade(raw: readonly string[]): boolean {
  const tokens = (name: string) =>
    valuesOf(raw, name).flatMap((value) => value.split(",").map((each) => each.trim().toLowerCase()));
  const protocols = tokens("upgrade");
  const isOther = (protocol: string) => protocol !== "" && !/^h(?:2|3|ttp)/.test(protocol);
  return tokens("connection").includes("upgrade") && protocols.length > 0 && protocols.every(isOther);
}

/** Names and values in turn; none where a line is odd. */
function fieldsOf(lines: readonly string[]): string[] {
  const fields = lines.map((line) => headerLine.exec(line));
  return fields.includes(null) ? [] : fields.flatMap((field) => [field![1]!, field![2]!]);
}
