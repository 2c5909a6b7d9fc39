/** Lists of the operator's commands: a table with a head on a terminal; for programs, fields separated by tabs. */
import { print, printable, table } from "../cli/screen.ts";

/** No field may be empty, so that each has its place. */
export async function printRows(
  head: string[],
  rows: readonly string[][],
  { isTTY, columns }: { isTTY?: boolean; columns?: number } = process.stdout,
): Promise<void> {
  const shown = rows.map((row) => row.map((field) => printable(field)));
  const lines = shown.map((row) => `${row.join("\t")}\n`).join("");
  await print(isTTY === true ? `${table(head, shown, columns)}\n` : lines);
}
