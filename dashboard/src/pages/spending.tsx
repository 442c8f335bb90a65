/** What was spent on what, by day and by experiment. */

import { client, data } from "../api/client";
import { useQuery } from "../api/query";
import { Days } from "../charts/charts";
import { usd } from "../format";
import { address, setParameter } from "../state";
import { Empty, Figure, Link, Loaded, Section, Source, Time } from "../ui/parts";
import { Table } from "../ui/table";

export function Spending() {
  const by = address.value.searchParams.get("by") === "experiment" ? "experiment" : "day";
  // A month, unless the page's address names other days.
  const parameters = address.value.searchParams;
  const span = Object.fromEntries(["from", "until"].flatMap((name) => (parameters.get(name) ? [[name, parameters.get(name) as string]] : [])));
  const asked = { group_by: by, ...span } as const;
  const path = `/v1/spending?${new URLSearchParams(asked)}`;
  const spending = useQuery(path, () => data(client.GET("/v1/spending", { params: { query: asked } })), 30);
  return (
    <>
      <h1>Spending</h1>
      <div class="filters">
        <label>
          by{" "}
          <select value={by} onChange={(event) => setParameter("by", event.currentTarget.value)}>
            <option value="day">day</option>
            <option value="experiment">experiment</option>
          </select>
        </label>
      </div>
      <Section title="What was spent on what" aside={<Source path={path} csv />}>
        <Loaded query={spending} lines={8}>
          {(got) =>
            got.rows.length === 0 ? (
              <Empty what="Nothing has been spent." />
            ) : (
              <>
                <p class="fine">
                  From <Time at={got.from} /> to <Time at={got.until} />.
                </p>
                {by === "day" && <Days rows={got.rows} />}
                <Table
                  caption="Spending"
                  rows={[...got.rows, { ...got.total, day: null, experiment_id: null }]}
                  rowClass={(row) => (row.day || row.experiment_id ? undefined : "total")}
                  columns={[
                    { head: by, cell: (row) => row.day ?? (row.experiment_id ? <Link to={`/experiments/${row.experiment_id}`}>{row.experiment_name ?? row.experiment_id.slice(-8)}</Link> : "in these days") },
                    { head: "training", numeric: true, cell: (row) => usd(row.training_usd) },
                    { head: "endpoints", numeric: true, wide: true, cell: (row) => usd(row.hosting_usd) },
                    { head: "other jobs", numeric: true, wide: true, cell: (row) => usd(row.processing_usd + (row.tuning_usd ?? 0) + (row.transform_usd ?? 0)) },
                    { head: "warm pools", numeric: true, wide: true, cell: (row) => usd(row.warm_pool_usd) },
                    { head: "volumes", numeric: true, wide: true, cell: (row) => usd(row.storage_usd) },
                    { head: "orphaned jobs", about: "that ran on after their trial was over", numeric: true, wide: true, cell: (row) => usd(row.orphaned_jobs_usd) },
                    { head: "CloudWatch", numeric: true, wide: true, cell: (row) => usd(row.cloudwatch_usd) },
                    { head: "in all", numeric: true, cell: (row) => <Figure kind={row.estimated ? "estimated" : "measured"}>{usd(row.total_usd)}</Figure> },
                    { head: "spot saved", numeric: true, cell: (row) => usd(row.spot_saved_usd) },
                  ]}
                />
              </>
            )
          }
        </Loaded>
      </Section>
    </>
  );
}
