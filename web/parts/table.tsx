/** A table in a panel: a caption for screen readers, column headings, and rows given as children. */
import type { ComponentChildren } from "preact";

interface Column {
  title: string;
  /** Shown in place of the title. */
  head?: ComponentChildren;
  /** Shown on wide screens only; its cells need the same class. */
  width?: "wide-only" | "widest-only";
  /** Heading for screen readers only. */
  isUnseen?: true;
}

export const actionsColumn: Column = { title: "Actions", isUnseen: true };

export function wideOnly(title: string): Column {
  return { title, width: "wide-only" };
}

export function widestOnly(title: string): Column {
  return { title, width: "widest-only" };
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

function heading({ title, head = title, width, isUnseen }: Column) {
  return (
    <th key={title} scope="col" class={width}>
      {isUnseen ? <span class="unseen">{title}</span> : head}
    </th>
  );
}
