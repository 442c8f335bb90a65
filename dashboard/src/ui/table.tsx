/** Tables: right-aligned figures, the keyboard's rows, and a hint where something was left out. */

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { go } from "../state";

export type Column<T> = {
  head: string;
  /** What the heading means, where a word is not enough. */
  about?: string;
  cell: (row: T) => ComponentChildren;
  /** A figure: right-aligned, in digits of one width. */
  numeric?: boolean;
  /** Left out on narrow screens. */
  wide?: boolean;
};

/** A double click opens a row, unless it is on something that has a use of its own. */
const opens = (event: MouseEvent) => !(event.target as Element).closest("dialog, a, button, input, select, textarea, label");

export function Table<T>({
  caption,
  columns,
  rows,
  link,
  rowClass,
}: {
  caption: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  link?: (row: T) => string | undefined;
  rowClass?: (row: T) => string | undefined;
}) {
  const body = useRef<HTMLTableSectionElement>(null);
  const onKey = (event: KeyboardEvent) => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    const all = [...(body.current?.querySelectorAll<HTMLElement>("tr[tabindex]") ?? [])];
    const here = all.indexOf(document.activeElement as HTMLElement);
    if (step && here >= 0) {
      event.preventDefault();
      all[Math.min(all.length - 1, Math.max(0, here + step))]?.focus();
    }
    const to = event.key === "Enter" && here >= 0 ? all[here]?.dataset.to : undefined;
    if (to) go(to);
  };
  const className = (column: Column<T>) => [column.numeric && "numeric", column.wide && "wide"].filter(Boolean).join(" ");
  return (
    <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th scope="col" class={className(column)} title={column.about}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body} onKeyDown={onKey}>
          {rows.map((row) => {
            const to = link?.(row);
            // Rows are told apart by what they are: an open dialog stays with its own when others come before it.
            const key = (row as { id?: string | number }).id ?? to ?? (row as { trial_id?: string | null }).trial_id;
            return (
              <tr key={key} class={rowClass?.(row)} {...(to ? { tabIndex: 0, "data-to": to, onDblClick: (event: MouseEvent) => opens(event) && go(to) } : {})}>
                {columns.map((column) => (
                  <td class={className(column)}>{column.cell(row)}</td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
