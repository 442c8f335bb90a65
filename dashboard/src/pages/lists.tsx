/** Pages that are mostly one table: pipelines, endpoints, models, instances, spending, CI, events, calibration. */

import type { ComponentChildren } from "preact";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Days } from "../charts/charts";
import { count, hours, percent, rate, short, usd, words } from "../format";
import { address, setParameter } from "../state";
import { Action } from "../ui/action";
import { Bar, Empty, Figure, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table, type Column } from "../ui/table";
import { Feed } from "./overview";

type Page<T> = { items: readonly T[]; next_page_token?: string | null };

/** One page that is a table of what a path lists. */
function Listed<T>({
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
  columns: readonly Column<T>[];
  link?: (row: T) => string | undefined;
  empty: string;
  command?: string;
  every?: number;
  children?: ComponentChildren;
}) {
  const query = useQuery(path, load, every);
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
                <Table caption={title} rows={page.items} columns={columns} {...(link ? { link } : {})} />
                {page.next_page_token && <p class="fine">These are the newest {page.items.length}.</p>}
              </>
            )
          }
        </Loaded>
      </Section>
    </>
  );
}

export function Pipelines() {
  return (
    <Listed<Schemas["Pipeline"]>
      title="Pipelines"
      path="/v1/pipelines"
      load={() => data(client.GET("/v1/pipelines"))}
      empty="No pipeline has been started."
      command="bakeoff run examples/pipelines/legal-g5.json --watch"
      link={(row) => `/pipelines/${row.id}`}
      columns={[
        { head: "pipeline", cell: (row) => <Link to={`/pipelines/${row.id}`}>{row.name}</Link> },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "steps", cell: (row) => row.steps.map((step) => <span class={`dot ${step.state}`} title={`${step.name}: ${words(step.state)}`} />) },
        { head: "settled", numeric: true, cell: (row) => usd(row.settled_usd) },
        { head: "held", numeric: true, wide: true, cell: (row) => usd(row.reserved_usd) },
        { head: "budget", numeric: true, cell: (row) => usd(row.budget_usd) },
        { head: "started", wide: true, cell: (row) => <Time at={row.created_at} /> },
      ]}
    />
  );
}

export function Pipeline({ id }: { id: string }) {
  const path = { params: { path: { pipeline_id: id } } };
  const query = useQuery(`pipeline ${id}`, () => data(client.GET("/v1/pipelines/{pipeline_id}", path as never)) as Promise<Schemas["Pipeline"]>, 5);
  return (
    <Loaded query={query} lines={8}>
      {(is) => (
        <>
          <header class="head">
            <div>
              <p class="crumbs">
                <Link to="/pipelines">Pipelines</Link> ›
              </p>
              <h1>
                {is.name} <State of={is.state} />
              </h1>
              <p class="fine">
                {usd(is.settled_usd)} settled, {usd(is.reserved_usd)} held of {usd(is.budget_usd)} <Bar share={(is.settled_usd + is.reserved_usd) / is.budget_usd} label="of the budget" /> in {is.region}
              </p>
            </div>
            {is.state === "running" && (
              <div class="buttons">
                <Action name="Cancel" tone="danger" run={() => data(client.POST("/v1/pipelines/{pipeline_id}/cancel", path as never)).then(query.reload)}>
                  <p>Every step that runs is stopped; {usd(is.reserved_usd)} are held for them. Steps that wait do not start.</p>
                </Action>
              </div>
            )}
          </header>
          <Section title="Steps" aside={<Source path={`/v1/pipelines/${id}`} />}>
            <ol class="steps">
              {is.steps.map((step) => (
                <li class={step.state}>
                  <div class="step-name">
                    <State of={step.state} /> <b>{step.name}</b>
                  </div>
                  <div class="fine">{words(step.kind)}</div>
                  <div>
                    {usd(step.settled_usd)}
                    {step.reserved_usd ? <small> + {usd(step.reserved_usd)} held</small> : null}
                  </div>
                  {step.reason && <div class="fine">{step.reason}</div>}
                  <div>
                    {step.experiment_id && <Link to={`/experiments/${step.experiment_id}`}>open</Link>}{" "}
                    {step.endpoint_id && <Link to="/endpoints">endpoint</Link>}
                  </div>
                </li>
              ))}
            </ol>
          </Section>
        </>
      )}
    </Loaded>
  );
}

export function Endpoints() {
  const remaining = (row: Schemas["Endpoint"]) => (row.expires_at && !row.ended_at ? (Date.parse(row.expires_at) - Date.parse(row.in_service_at ?? row.created_at)) / 3.6e6 : null);
  return (
    <Listed<Schemas["Endpoint"]>
      title="Endpoints"
      path="/v1/endpoints"
      load={() => data(client.GET("/v1/endpoints"))}
      empty="Nothing serves. An endpoint is a meter that runs by itself: it has a time to live."
      command="bakeoff endpoints deploy --help"
      columns={[
        { head: "endpoint", cell: (row) => row.name },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "instance", cell: (row) => `${row.instance_count} × ${row.instance_type}` },
        { head: "owner", wide: true, cell: (row) => row.owner },
        { head: "ends", cell: (row) => <Time at={row.ended_at ?? row.expires_at} /> },
        { head: "lives", numeric: true, about: "from its start to its end", cell: (row) => hours(remaining(row) ?? row.time_to_live_hours) },
        { head: "cost", numeric: true, cell: (row) => usd(row.cost_usd) },
        { head: "held", numeric: true, cell: (row) => usd(row.reserved_usd) },
        { head: "without us", about: "what each day without this service would cost", numeric: true, wide: true, cell: (row) => (row.absent_service_usd_per_day ? `${usd(row.absent_service_usd_per_day)} a day` : "ends at AWS") },
        {
          head: "action",
          cell: (row) =>
            row.ended_at ? null : (
              <Action name="Delete" tone="danger" run={() => data(client.DELETE("/v1/endpoints/{endpoint_id}", { params: { path: { endpoint_id: row.id } } } as never))}>
                <p>
                  {row.name} serves nobody any more. It has cost {usd(row.cost_usd)}; {usd(row.reserved_usd)} that are held become free.
                </p>
              </Action>
            ),
        },
      ]}
    />
  );
}

export function Models() {
  return (
    <Listed<Schemas["ModelPackage"]>
      title="Models"
      path="/v1/model-packages"
      load={() => data(client.GET("/v1/model-packages"))}
      empty="No model is registered."
      command="bakeoff models register --help"
      columns={[
        { head: "group", cell: (row) => row.group },
        { head: "version", numeric: true, cell: (row) => row.version ?? "–" },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "approval", cell: (row) => words(row.approval) },
        { head: "trained by", cell: (row) => <Link to={`/trials/${row.trial_id}`}>{row.trial_id.slice(-6)}</Link> },
        { head: "made", wide: true, cell: (row) => <Time at={row.created_at} /> },
      ]}
    />
  );
}

export function Instances() {
  const types = useQuery("types", () => data(client.GET("/v1/instance-types")));
  const prices = useQuery("prices", () => data(client.GET("/v1/prices", { params: { query: { region: "us-east-1" } as never } })));
  const family = address.value.searchParams.get("family") ?? "";
  const latest = new Map<string, Schemas["Price"]>();
  for (const price of prices.data?.items ?? []) {
    const before = latest.get(price.instance_type);
    if (!before || before.effective_from < price.effective_from) latest.set(price.instance_type, price);
  }
  return (
    <>
      <h1>Instances</h1>
      <div class="filters">
        <label>
          type or accelerator <input id="search" type="search" value={family} onInput={(event) => setParameter("family", event.currentTarget.value || null)} />
        </label>
      </div>
      <Section title="What each one is, and what an hour costs" aside={<Source path="/v1/instance-types" />}>
        <Loaded query={types} lines={12}>
          {(page) => (
            <Table
              caption="Instance types"
              rows={page.items.filter((row) => `${row.instance_type} ${row.accelerator ?? ""}`.toLowerCase().includes(family.toLowerCase()))}
              columns={[
                { head: "type", cell: (row) => short(row.instance_type) },
                { head: "accelerators", cell: (row) => (row.accelerator_count ? `${row.accelerator_count} × ${row.accelerator ?? "?"}` : "–") },
                { head: "GiB each", numeric: true, wide: true, cell: (row) => row.accelerator_memory_gib ?? "–" },
                { head: "bf16 TFLOP/s", numeric: true, wide: true, cell: (row) => row.bf16_tflops ?? "–" },
                { head: "vCPU", numeric: true, wide: true, cell: (row) => row.vcpus ?? "–" },
                { head: "memory", numeric: true, wide: true, cell: (row) => (row.memory_gib == null ? "–" : `${count(row.memory_gib)} GiB`) },
                { head: "network", numeric: true, wide: true, cell: (row) => (row.network_gbps == null ? "–" : `${row.network_gbps} Gbit/s`) },
                {
                  head: "$/h, us-east-1",
                  numeric: true,
                  cell: (row) => {
                    const price = latest.get(row.instance_type);
                    return price ? (
                      <Figure kind={price.status === "estimated" ? "estimated" : "measured"} about={`${price.source}, from ${price.effective_from.slice(0, 10)} (${words(price.status)})`}>
                        {rate(price.usd_per_hour)}
                      </Figure>
                    ) : (
                      "–"
                    );
                  },
                },
              ]}
            />
          )}
        </Loaded>
      </Section>
    </>
  );
}

export function Spending() {
  const by = address.value.searchParams.get("by") === "experiment" ? "experiment" : "day";
  const path = `/v1/spending?group_by=${by}`;
  const spending = useQuery(path, () => data(client.GET("/v1/spending", { params: { query: { group_by: by } as never } })), 30);
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
                {by === "day" && <Days rows={got.rows} />}
                <Table
                  caption="Spending"
                  rows={[...got.rows, { ...got.total, day: null, experiment_id: null }]}
                  rowClass={(row) => (row.day || row.experiment_id ? undefined : "total")}
                  columns={[
                    { head: by, cell: (row) => row.day ?? (row.experiment_id ? <Link to={`/experiments/${row.experiment_id}`}>{row.experiment_id.slice(-8)}</Link> : "in all") },
                    { head: "training", numeric: true, cell: (row) => usd(row.training_usd) },
                    { head: "endpoints", numeric: true, wide: true, cell: (row) => usd(row.hosting_usd) },
                    { head: "other jobs", numeric: true, wide: true, cell: (row) => usd(row.processing_usd + (row.tuning_usd ?? 0) + (row.transform_usd ?? 0)) },
                    { head: "warm pools", numeric: true, wide: true, cell: (row) => usd(row.warm_pool_usd) },
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

export function CiRuns() {
  return (
    <Listed<Schemas["CiRunView"]>
      title="CI"
      path="/v1/ci-runs"
      load={() => data(client.GET("/v1/ci-runs"))}
      empty="No commit has been measured. A template and a webhook start a run for each push."
      command="bakeoff gate --help"
      columns={[
        { head: "commit", cell: (row) => <code>{row.commit.slice(0, 12)}</code> },
        { head: "branch", cell: (row) => row.branch ?? (row.pull_request ? `#${row.pull_request}` : "–") },
        { head: "template", cell: (row) => row.template_name },
        { head: "verdict", cell: (row) => <State of={row.verdict ? String(row.verdict) : String(row.state)} /> },
        { head: "summary", cell: (row) => <span class="why">{row.summary}</span> },
        { head: "experiments", cell: (row) => row.experiment_ids.map((id, index) => <Link to={`/experiments/${id}`}>{index + 1} </Link>) },
        { head: "at", wide: true, cell: (row) => <Time at={row.created_at} /> },
        {
          head: "action",
          cell: (row) =>
            String(row.verdict) === "regressed" && !row.accepted_at ? (
              <Action name="Accept" run={() => data(client.PUT("/v1/ci-runs/{run_id}/acceptance", { params: { path: { run_id: row.id } }, body: { accepted: true } } as never))}>
                <p>This commit begins a new level: later ones are held against it. It costs nothing.</p>
              </Action>
            ) : null,
        },
      ]}
    />
  );
}

export function Events() {
  const alarms = address.value.searchParams.get("alarms") === "true";
  const path = `/v1/events?newest=true&page_size=100${alarms ? "&alarms_only=true" : ""}`;
  const events = useQuery(path, () => data(client.GET("/v1/events", { params: { query: { newest: true, page_size: 100, ...(alarms ? { alarms_only: true } : {}) } } })), 5);
  return (
    <>
      <h1>Events</h1>
      <div class="filters">
        <label>
          <input type="checkbox" checked={alarms} onChange={(event) => setParameter("alarms", event.currentTarget.checked ? "true" : null)} /> alarms only
        </label>
      </div>
      <Section title="What happened" aside={<Source path={path} />}>
        <Loaded query={events} lines={12}>
          {(page) => <Feed events={page.items} />}
        </Loaded>
      </Section>
    </>
  );
}

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
