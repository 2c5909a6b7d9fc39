/** Output: tables, colours where stdout is a terminal, JSON. */
import { snakeKeys } from "../sdk/key-case.ts";
import type { CapsuleInfo, CapsuleStatus } from "../sdk/sdk.ts";

export function isColored(stream: { isTTY?: boolean }): boolean {
  const { NO_COLOR, TERM } = process.env;
  return stream.isTTY === true && !NO_COLOR && TERM !== "dumb";
}

const codes = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, blue: 34 };
export type Color = keyof typeof codes;

export function painted(text: string, color: Color, stream: { isTTY?: boolean } = process.stdout): string {
  return isColored(stream) ? `\x1b[${codes[color]}m${text}\x1b[0m` : text;
}

/** Resolves when the text is written, however slow the reader is: the process may exit right after. */
export function print(text: string | Uint8Array, stream: NodeJS.WriteStream = process.stdout): Promise<void> {
  return new Promise((resolve, reject) => {
    stream.write(text, (error) => (error == null ? resolve() : reject(error)));
  });
}

export function printLine(text: string): Promise<void> {
  return print(`${text}\n`);
}

/** With the API's snake_case names. */
export function printJson(value: unknown): Promise<void> {
  return printLine(JSON.stringify(snakeKeys(JSON.parse(JSON.stringify(value)))));
}

/** To stderr: for the person at the terminal, not for programs that read the output. */
export function note(text: string): void {
  process.stderr.write(`${text}\n`);
}

export interface Cell {
  text: string;
  color?: Color;
}

/** Columns as wide as their content; the last one is cut off where the line would exceed `width` characters; 0: not known. */
export function table(head: string[], rows: (string | Cell)[][], width = 0): string {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === "string" ? { text: cell } : cell)));
  const shown = cells.map((row) => row.map(({ text, ...rest }) => ({ ...rest, text: printable(text) })));
  const widths = head.map((title, at) => Math.max(title.length, ...shown.map((row) => row[at]!.text.length)));
  const lastMax =
    (width || Number.POSITIVE_INFINITY) - widths.slice(0, -1).reduce((sum, each) => sum + each + gap.length, 0);
  const line = (row: Cell[]) =>
    row
      .map(({ text, color }, at) => {
        const isLast = at === row.length - 1;
        const shown = isLast ? cut(text, lastMax) : text.padEnd(widths[at]!);
        return color === undefined ? shown : painted(shown, color);
      })
      .join(gap)
      .trimEnd();
  return [line(head.map((text) => ({ text, color: "dim" }))), ...shown.map(line)].join("\n");
}

const statusColors: Record<CapsuleStatus, Color> = {
  pending: "yellow",
  starting: "yellow",
  running: "green",
  paused: "blue",
  stopped: "dim",
  error: "red",
};

export function capsuleTable(infos: readonly Readonly<CapsuleInfo>[]): string {
  const row = (info: Readonly<CapsuleInfo>): (string | Cell)[] => [
    info.id,
    info.name ?? "",
    { text: info.status, color: statusColors[info.status] },
    info.template,
    String(info.vcpus),
    `${info.memoryMb} MiB`,
    ago(info.createdAt),
    ago(info.lastActiveAt),
  ];
  return table(["ID", "NAME", "STATUS", "TEMPLATE", "VCPUS", "MEMORY", "CREATED", "LAST COMMAND"], infos.map(row));
}

const gap = "  ";

function cut(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
}

/** Names come from inside capsules: their control characters must not reach the terminal. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, (char) => {
    return `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}

const sizes = ["B", "KiB", "MiB", "GiB", "TiB"];

/** As in `1.5 MiB`. */
export function sized(bytes: number): string {
  const step = Math.min(sizes.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const value = bytes / 1024 ** step;
  return `${step === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${sizes[step]}`;
}

/** As in `3 min ago`; `never` for null. */
export function ago(time: string | null, now = Date.now()): string {
  if (time === null) return "never";
  const seconds = Math.max(0, Math.round((now - Date.parse(time)) / 1_000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3_600) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h ago` : `${Math.round(seconds / 86_400)} days ago`;
}
