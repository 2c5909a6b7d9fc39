/** A table in a panel: a caption for screen readers, column headings, and rows given as children. */
import type { ComponentChildren } from "preact";

interface Column {
  title: string;
  /** Shown in place of the title. */
  head?: ComponentChildren;
  /** Hidden on narrow screens; its cells need the class `wide-only`. */
  isWideOnly?: true;
  /** Heading for screen readers only. */
  isUnseen?: true;
}

export const actionsColumn: Column = { title: "Actions", isUnseen: true };

export function wideOnly(title: string): Column {
  return { title, isWideOnly: true };
}

interface TableProps {
  caption: string;
  /** A string: a column that is always shown. */
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

function heading({ title, head = title, isWideOnly, isUnseen }: Column) {
  return (
    <th key={title} scope="col" class={isWideOnly ? "wide-only" : undefined}>
      {isUnseen ? <span class="unseen">{title}</span> : head}
    </th>
  );
}
