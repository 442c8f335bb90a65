/** Which question was answered how. */

import { client, data } from "../api/client";
import { useQuery } from "../api/query";
import { usd } from "../format";
import { address, setParameter } from "../state";
import { Bar, Empty, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";

const STATES = ["running", "cancelling", "completed", "failed", "cancelled"] as const;

export function Experiments() {
  const parameters = address.value.searchParams;
  const state = STATES.find((one) => one === parameters.get("state"));
  const named = parameters.get("name") ?? "";
  const query = useQuery(
    `experiments ${state} ${named}`,
    () =>
      data(
        client.GET("/v1/experiments", {
          params: { query: { page_size: 100, ...(state ? { state } : {}), ...(named ? { name_contains: named } : {}) } as never },
        }),
      ),
    10,
  );
  return (
    <>
      <h1>Experiments</h1>
      <div class="filters">
        <label>
          state{" "}
          <select value={state ?? ""} onChange={(event) => setParameter("state", event.currentTarget.value || null)}>
            <option value="">any</option>
            {STATES.map((one) => (
              <option value={one}>{one}</option>
            ))}
          </select>
        </label>
        <label>
          name <input id="search" type="search" value={named} onInput={(event) => setParameter("name", event.currentTarget.value || null)} />
        </label>
      </div>
      <Section title="Experiments" aside={<Source path="/v1/experiments" />}>
        <Loaded query={query} lines={8}>
          {(page) =>
            page.items.length === 0 ? (
              <Empty what={state || named ? "No experiment is like that." : "No experiment has been started."} command="bakeoff run examples/hebrew-p4-p5.json --watch" />
            ) : (
              <>
                <Table
                  caption="Experiments"
                  rows={page.items}
                  link={(row) => `/experiments/${row.id}`}
                  columns={[
                    { head: "experiment", cell: (row) => <Link to={`/experiments/${row.id}`}>{row.name}</Link> },
                    { head: "state", cell: (row) => <State of={row.paused_reason ? "parked" : row.state} /> },
                    { head: "candidates", numeric: true, wide: true, cell: (row) => row.spec.candidates?.length ?? "–" },
                    { head: "settled", numeric: true, cell: (row) => usd(row.settled_usd) },
                    { head: "held", numeric: true, wide: true, cell: (row) => usd(row.reserved_usd) },
                    { head: "budget", numeric: true, cell: (row) => usd(row.budget_usd) },
                    { head: "used", wide: true, cell: (row) => <Bar share={(row.settled_usd + row.reserved_usd) / row.budget_usd} label="of the budget" /> },
                    { head: "started", wide: true, cell: (row) => <Time at={row.created_at} /> },
                    { head: "ended", wide: true, cell: (row) => <Time at={row.ended_at} /> },
                  ]}
                />
                {page.next_page_token && <p class="fine">These are the newest {page.items.length}; a filter finds others.</p>}
              </>
            )
          }
        </Loaded>
      </Section>
    </>
  );
}
