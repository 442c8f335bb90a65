/** Every reservation, release and settlement: as a chart, and row by row. */

import { useRef } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Burn } from "../charts/charts";
import { usd, words } from "../format";
import { Empty, Figure, Link, Loaded, Section, Source, Time } from "./parts";
import { Table } from "./table";

const PAGE = 500;
/** Beyond that, the chart says what the newest rows do not. */
const PAGES_MAX = 20;

type Row = Schemas["LedgerEntryView"];
type Token = number | undefined;

/** Of an experiment (also the one that an endpoint or a job of a pipeline keeps its money in), or of a whole pipeline. */
type Account = { experiment: string } | { pipeline: string };

export function Ledger({ of, every, budget }: { of: Account; every: number; budget: number }) {
  const page = (token: Token) => {
    const query = { page_size: PAGE, ...(token ? { page_token: token } : {}) };
    return "experiment" in of
      ? data(client.GET("/v1/experiments/{experiment_id}/ledger", { params: { path: { experiment_id: of.experiment }, query } }))
      : data(client.GET("/v1/pipelines/{pipeline_id}/ledger", { params: { path: { pipeline_id: of.pipeline }, query } }));
  };
  const path = "experiment" in of ? `/v1/experiments/${of.experiment}/ledger` : `/v1/pipelines/${of.pipeline}/ledger`;
  // Oldest first, and nothing in it changes: what was read before is kept.
  const known = useRef<{ path: string; items: Row[]; token: Token }>({ path, items: [], token: undefined });
  const ledger = useQuery(
    path,
    async () => {
      let { items, token } = known.current.path === path ? known.current : { items: [], token: undefined };
      for (let read = 0; read < PAGES_MAX; read += 1) {
        const got = await page(token);
        if (!got.next_page_token) return { items: [...items, ...got.items], isWhole: true };
        items = [...items, ...got.items];
        token = Number(got.next_page_token);
        known.current = { path, items, token };
      }
      return { items, isWhole: false };
    },
    every,
  );
  return (
    <Section title="Money, row by row" aside={<Source path={path} />}>
      <Loaded query={ledger}>
        {(page) =>
          page.items.length === 0 ? (
            <Empty what="Nothing is booked yet." />
          ) : (
            <>
              <Burn rows={page.items} budget={budget} />
              <Table
                caption="Ledger"
                rows={[...page.items].reverse()}
                columns={[
                  { head: "at", cell: (row) => <Time at={row.recorded_at} /> },
                  { head: "kind", cell: (row) => words(row.kind) },
                  { head: "of", cell: (row) => words(row.component) },
                  { head: "quantity", numeric: true, wide: true, cell: (row) => (row.quantity > 0 ? `${row.quantity.toLocaleString("en-US")} ${words(row.unit)}` : "–") },
                  { head: "dollars", numeric: true, cell: (row) => <Figure kind={row.estimated ? "estimated" : "measured"}>{usd(row.usd)}</Figure> },
                  { head: "trial", wide: true, cell: (row) => (row.trial_id ? <Link to={`/trials/${row.trial_id}`}>{row.trial_id.slice(-6)}</Link> : "–") },
                ]}
              />
              {!page.isWhole && <p class="fine">Only the first {page.items.length} rows are shown.</p>}
            </>
          )
        }
      </Loaded>
    </Section>
  );
}
