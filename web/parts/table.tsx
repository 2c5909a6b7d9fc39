/** A table in its panel: a caption for whoever has it read out, a heading for each column, rows by whoever uses it. */
import type { ComponentChildren } from "preact";

interface Column {
  title: string;
  /** Left out where the screen is narrow; its cells have the class of the same name. */
  isWideOnly?: true;
  /** The cells speak for themselves to whoever sees them. */
  isUnseen?: true;
}

export const actionsColumn: Column = { title: "Actions", isUnseen: true };

export function wideOnly(title: string): Column {
  return { title, isWideOnly: true };
}

interface TableProps {
  caption: string;
  /** A word alone: a column that is always there. */
  columns: readonly (string | Column)[];
  /** The rows. */
  children: ComponentChildren;
}

export function Table({ caption, columns, children }: TableProps) {
  return (
    <div class="panel">
      <table>
        <caption class="unseen">{caption}</caption>
        <thead>
          <tr>{columns.map((column) => (typeof column === "string" ? { title: column } : column)).map(heading)}</tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

function heading({ title, isWideOnly, isUnseen }: Column) {
  return (
    <th key={title} scope="col" class={isWideOnly ? "wide-only" : undefined}>
      {isUnseen ? <span class="unseen">{title}</span> : title}
    </th>
  );
}
