/** A page that is mostly one table: what a path of the API lists. */

import type { ComponentChildren } from "preact";
import { useQuery } from "../api/query";
import { Empty, Loaded, Section, Source } from "./parts";
import { Table, type Column } from "./table";

type Page<T> = { items: readonly T[]; next_page_token?: string | null };

export function Listed<T>({
  title,
  path,
  load,
  columns,
  link,
  empty,
  command,
  every = 15,
  children,
}: {
  title: string;
  path: string;
  load: () => Promise<Page<T>>;
  /** Actions in a row read the list again when they are done. */
  columns: (reload: () => void) => readonly Column<T>[];
  link?: (row: T) => string | undefined;
  empty: string;
  command?: string;
  every?: number;
  children?: ComponentChildren;
}) {
  const query = useQuery(path, load, every, "any");
  return (
    <>
      <h1>{title}</h1>
      {children}
      <Section title={title} aside={<Source path={path} />}>
        <Loaded query={query} lines={8}>
          {(page) =>
            page.items.length === 0 ? (
              <Empty what={empty} {...(command ? { command } : {})} />
            ) : (
              <>
                <Table caption={title} rows={page.items} columns={columns(query.reload)} {...(link ? { link } : {})} />
                {page.next_page_token && <p class="fine">Only the newest {page.items.length} are shown; the API has them all.</p>}
              </>
            )
          }
        </Loaded>
      </Section>
    </>
  );
}
