/** Rows of capsules between a host's table and PostgreSQL's, whose columns have the same names but for the revision. */
import { type CapsuleRow, columns } from "../db/capsule-columns.ts";

const fields = Object.entries(columns) as [keyof CapsuleRow, string][];
const nameOf = (column: string) => (column === "generation" ? "revision" : column);

/** As the functions of the schema take it. */
export function columnsOf(row: CapsuleRow): Record<string, unknown> {
  return Object.fromEntries(fields.map(([field, column]) => [nameOf(column), row[field]]));
}

/** As jsonb: PostgreSQL has no text with NUL, and none that is no Unicode, and refuses the whole value for one. */
export function jsonOf(value: unknown): string {
  return JSON.stringify(value, (_name, each: unknown) =>
    typeof each === "string" ? each.toWellFormed().replaceAll("\0", "\ufffd") : each,
  );
}

/** A list of columns whose rows are CapsuleRows. */
export const rowSelection = fields.map(([field, column]) => `${nameOf(column)} AS "${field}"`).join(", ");
