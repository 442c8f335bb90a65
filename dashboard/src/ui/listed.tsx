/** A page that is mostly one table: what a path of the API lists. */

import type { ComponentChildren } from "preact";
import { useQuery } from "../api/query";
import { address, go } from "../state";
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
  /** Reads a page: the newest rows, or those from a token on. */
  load: (query: { page_token?: string }) => Promise<Page<T>>;
  /** Actions in a row read the list again when they are done. */
  columns: (reload: () => void) => readonly Column<T>[];
  link?: (row: T) => string | undefined;
  empty: string;
  command?: string;
  every?: number;
  children?: ComponentChildren;
}) {
  const token = address.value.searchParams.get("page");
  const query = useQuery(`${path} ${token ?? ""}`, () => load(token ? { page_token: token } : {}), every, "any");
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
              </>
            )
          }
        </Loaded>
        <Pager next={query.data?.next_page_token} />
      </Section>
    </>
  );
}

/** The ways to older rows, and back to the newest. */
export function Pager({ next }: { next: string | null | undefined }) {
  const to = (token: string | null) => {
    const url = new URL(address.value);
    if (token === null) url.searchParams.delete("page");
    else url.searchParams.set("page", token);
    go(url.pathname + url.search);
  };
  const isFirst = !address.value.searchParams.has("page");
  if (isFirst && !next) return null;
  return (
    <div class="buttons">
      {!isFirst && <button onClick={() => to(null)}>newest</button>}
      {next && <button onClick={() => to(next)}>older</button>}
    </div>
  );
}
