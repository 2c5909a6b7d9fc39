/** The log for people: on a terminal each of pino's lines of JSON is a short line of text. */
import type pino from "pino";

const levels: Record<number, string> = { 10: "trace", 20: "debug", 30: "info", 40: "warn", 50: "error", 60: "fatal" };
const valueMaxLength = 200;

export class TerminalLog implements pino.DestinationStream {
  readonly #to: pino.DestinationStream;

  constructor(to: pino.DestinationStream) {
    this.#to = to;
  }

  write(line: string): void {
    this.#to.write(shortLine(line));
  }
}

/** Local time, level, message, then the other fields as name=value. Control characters of values are escaped. */
export function shortLine(line: string): string {
  const { level, time, msg = "", err, ...fields } = JSON.parse(line) as Record<string, unknown>;
  const at = new Date(time as string).toTimeString().slice(0, 8);
  const why = (err as { message?: string } | undefined)?.message;
  const said = Object.entries(fields).map(([name, value]) => `${name}=${shown(value)}`);
  const parts = [
    at,
    (levels[level as number] ?? "").padEnd(5),
    msg,
    ...(why === undefined ? [] : [shown(why)]),
    ...said,
  ];
  return `${parts.join(" ")}\n`;
}

function shown(value: unknown): string {
  const text = typeof value === "string" && /^[\w./:@,-]+$/.test(value) ? value : JSON.stringify(value);
  return text.length <= valueMaxLength ? text : `${text.slice(0, valueMaxLength - 1)}…`;
}
