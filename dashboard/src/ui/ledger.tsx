/** Every reservation, release and settlement: as a chart, and row by row. */

import { client, data } from "../api/client";
import { useQuery } from "../api/query";
import { Burn } from "../charts/charts";
import { usd, words } from "../format";
import { Empty, Figure, Link, Loaded, Section, Source, Time } from "./parts";
import { Table } from "./table";

const PAGE = 200;

/** Of an experiment (also the one that an endpoint or a job of a pipeline keeps its money in), or of a whole pipeline. */
type Account = { experiment: string } | { pipeline: string };

export function Ledger({ of, every, budget }: { of: Account; every: number; budget: number }) {
  const query = { page_size: PAGE };
  const [path, load] =
    "experiment" in of
      ? [`/v1/experiments/${of.experiment}/ledger`, () => data(client.GET("/v1/experiments/{experiment_id}/ledger", { params: { path: { experiment_id: of.experiment }, query } }))]
      : [`/v1/pipelines/${of.pipeline}/ledger`, () => data(client.GET("/v1/pipelines/{pipeline_id}/ledger", { params: { path: { pipeline_id: of.pipeline }, query } }))];
  const ledger = useQuery(path, load, every);
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
                rows={page.items}
                columns={[
                  { head: "at", cell: (row) => <Time at={row.recorded_at} /> },
                  { head: "kind", cell: (row) => words(row.kind) },
                  { head: "of", cell: (row) => words(row.component) },
                  { head: "quantity", numeric: true, wide: true, cell: (row) => (row.quantity > 0 ? `${row.quantity.toLocaleString("en-US")} ${words(row.unit)}` : "–") },
                  { head: "dollars", numeric: true, cell: (row) => <Figure kind={row.estimated ? "estimated" : "measured"}>{usd(row.usd)}</Figure> },
                  { head: "trial", wide: true, cell: (row) => (row.trial_id ? <Link to={`/trials/${row.trial_id}`}>{row.trial_id.slice(-6)}</Link> : "–") },
                ]}
              />
              {page.next_page_token && <p class="fine">Only the first {PAGE} rows are shown.</p>}
            </>
          )
        }
      </Loaded>
    </Section>
  );
}
