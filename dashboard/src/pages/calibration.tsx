/** How predictions compare with what was measured. */

import { client, data } from "../api/client";
import { useQuery } from "../api/query";
import { percent, words } from "../format";
import { Empty, Loaded, Section, Source } from "../ui/parts";
import { Table } from "../ui/table";

export function Calibration() {
  const query = useQuery("calibration", () => data(client.GET("/v1/calibration")));
  return (
    <>
      <h1>Calibration</h1>
      <Section title="Predictions against what was measured" aside={<Source path="/v1/calibration" />}>
        <Loaded query={query}>
          {(got) =>
            got.rows.length === 0 ? (
              <Empty what="No prediction has been measured yet." />
            ) : (
              <Table
                caption="Calibration"
                rows={got.rows}
                columns={[
                  { head: "figure", cell: (row) => words(String(row.figure)) },
                  { head: "type", cell: (row) => row.instance_type ?? "all" },
                  { head: "own measurements", about: "whether earlier trials of the project have corrected the prediction", cell: (row) => (row.is_adjusted ? "used" : "not used") },
                  { head: "trials", numeric: true, cell: (row) => row.trials },
                  { head: "median error", numeric: true, cell: (row) => percent(row.median_error_percent == null ? null : row.median_error_percent / 100, 1) },
                  { head: "bias", numeric: true, cell: (row) => percent(row.bias_percent == null ? null : row.bias_percent / 100, 1) },
                  { head: "interval holds", numeric: true, about: "beside the share that it states", cell: (row) => `${row.held_percent == null ? "–" : Math.round(row.held_percent)} of ${Math.round(row.stated_percent)} %` },
                ]}
              />
            )
          }
        </Loaded>
      </Section>
    </>
  );
}
