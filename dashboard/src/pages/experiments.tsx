/** Which question was answered how. */

import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { odds, percent, short, usd, words } from "../format";
import { address, go, setFilter } from "../state";
import { Bar, Empty, Figure, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Pager } from "../ui/listed";
import { Table, type Column } from "../ui/table";

type Row = Schemas["ExperimentSummary"];

const STATES = ["running", "cancelling", "completed", "failed", "cancelled"] as const;
const PAGE = 100;

/** How far an experiment is: of its trials, those that are over. */
export function Progress({ of }: { of: Row["trials"] }) {
  const over = of.completed + of.stopped + of.failed + of.refused;
  const all = over + of.waiting + of.running + of.parked;
  const said = Object.entries(of)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${count} ${state}`)
    .join(", ");
  return (
    <span title={said}>
      <Bar share={all === 0 ? 0 : over / all} label={`${over} of ${all} trials are over`} /> <small>{`${over}/${all}`}</small>
    </span>
  );
}

/** What the answer says, in one cell: the first, by how much, and how sure. */
export function Winner({ of }: { of: Row["answer"] }) {
  const first = of?.first;
  if (!of || !first) return <span class="fine">{of ? words(of.conclusion) : "–"}</span>;
  const second = of.runner_up;
  const margin = second ? second.projected_cost_usd / first.projected_cost_usd - 1 : null;
  return (
    <span title={of.headline}>
      <b>{first.candidate}</b> {first.purchase_option === "spot" ? "spot" : ""}{" "}
      <small>
        {short(first.instance_type)}
        {margin != null && `, next ${margin < 0 ? "−" : "+"}${percent(Math.abs(margin))}`}, {of.conclusion === "clear" ? "clear" : `best with ${odds(first.p_best)}`}
      </small>
    </span>
  );
}

/** Columns that every list of experiments has. */
export const COLUMNS: readonly Column<Row>[] = [
  { head: "experiment", cell: (row) => <Link to={`/experiments/${row.id}`}>{row.name}</Link> },
  { head: "state", cell: (row) => <State of={row.paused_reason ? "parked" : row.state} /> },
  { head: "trials", cell: (row) => <Progress of={row.trials} /> },
  { head: "first", cell: (row) => <Winner of={row.answer} /> },
  {
    head: "full run",
    numeric: true,
    wide: true,
    cell: (row) => <Figure kind="projected">{usd(row.answer?.first?.projected_cost_usd)}</Figure>,
  },
  {
    head: "cost so far",
    about: "settled; of what runs, at most what is held comes on top",
    numeric: true,
    cell: (row) => (
      <>
        {row.reserved_usd > 0 ? "≥ " : ""}
        {usd(row.settled_usd)}
      </>
    ),
  },
  { head: "of budget", wide: true, cell: (row) => <Bar share={(row.settled_usd + row.reserved_usd) / row.budget_usd} label={`spent or held of ${usd(row.budget_usd)}`} /> },
];

export function Experiments() {
  const parameters = address.value.searchParams;
  const state = STATES.find((one) => one === parameters.get("state"));
  const creator = parameters.get("by");
  const workload = parameters.get("workload");
  const named = parameters.get("name") ?? "";
  const token = parameters.get("page");
  const chosen = new Set(parameters.getAll("compare"));
  const asked = {
    page_size: PAGE,
    ...(state ? { state: [state] } : {}),
    ...(named ? { name_contains: named } : {}),
    ...(creator ? { created_by: creator } : {}),
    ...(workload ? { workload } : {}),
    ...(token ? { page_token: token } : {}),
  };
  const key = JSON.stringify(asked);
  const query = useQuery(`experiments ${key}`, () => data(client.GET("/v1/experiments", { params: { query: asked } })), 15, "any");
  const facets = useQuery("facets", () => data(client.GET("/v1/experiments/facets")), 30);
  const choose = (id: string, is: boolean) => {
    const url = new URL(location.href);
    const others = [...chosen].filter((one) => one !== id);
    url.searchParams.delete("compare");
    for (const one of is ? [...others, id] : others) url.searchParams.append("compare", one);
    history.replaceState(null, "", url);
    address.value = url;
  };
  return (
    <>
      <h1>Experiments</h1>
      <div class="filters">
        <label>
          name <input id="search" type="search" value={named} onInput={(event) => setFilter("name", event.currentTarget.value || null)} />
        </label>
        <Choice name="state" value={state ?? ""} of={(facets.data?.states ?? []).map((one) => ({ value: one.state, name: one.state, count: one.count }))} onChange={(value) => setFilter("state", value)} />
        <Choice name="by" value={creator ?? ""} of={facets.data?.creators ?? []} onChange={(value) => setFilter("by", value)} />
        <Choice name="workload" value={workload ?? ""} of={facets.data?.workloads ?? []} onChange={(value) => setFilter("workload", value)} />
        {chosen.size > 0 && (
          <button class="primary" onClick={() => go(`/compare?${[...chosen].map((id) => `experiment=${id}`).join("&")}`)}>
            Compare {chosen.size}
          </button>
        )}
      </div>
      <Section title="Experiments" aside={<Source path={pathOf(asked)} />}>
        <Loaded query={query} lines={8}>
          {(page) =>
            page.items.length === 0 ? (
              <Empty what={state || named || creator || workload ? "No experiment matches." : "No experiment has been started."} command="bakeoff run examples/hebrew-p4-p5.json --watch" />
            ) : (
              <>
                <Table
                  caption="Experiments"
                  rows={page.items}
                  link={(row) => `/experiments/${row.id}`}
                  columns={[
                    {
                      head: "compare",
                      about: "chosen ones are compared side by side",
                      cell: (row) => <input type="checkbox" aria-label={`compare ${row.name}`} checked={chosen.has(row.id)} onChange={(event) => choose(row.id, event.currentTarget.checked)} />,
                    },
                    ...COLUMNS,
                    { head: "by", wide: true, cell: (row) => row.creator ?? "–" },
                    { head: "started", wide: true, cell: (row) => <Time at={row.created_at} /> },
                  ]}
                />
              </>
            )
          }
        </Loaded>
        <Pager next={query.data?.next_page_token} />
      </Section>
    </>
  );
}

/** The request behind the list as it is filtered. */
function pathOf(asked: Record<string, number | string | string[]>): string {
  const pairs = Object.entries(asked).flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
  return `/v1/experiments?${new URLSearchParams(pairs)}`;
}

/** A filter with how many there are of each value. */
function Choice({ name, value, of, onChange }: { name: string; value: string; of: readonly Schemas["Facet"][]; onChange: (value: string | null) => void }) {
  const isListed = value === "" || of.some((one) => one.value === value);
  return (
    <label>
      {name}{" "}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value || null)}>
        <option value="">any</option>
        {!isListed && <option value={value}>{value}</option>}
        {of.map((one) => (
          <option value={one.value}>
            {one.name} ({one.count})
          </option>
        ))}
      </select>
    </label>
  );
}
