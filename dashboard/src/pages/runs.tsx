/** Training outside SageMaker: what it is, what it cost, and how fast it was beside trials. */

import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { count, hours, rate, speed, usd } from "../format";
import { Action } from "../ui/action";
import { Listed } from "../ui/listed";
import { Metrics } from "../ui/metrics";
import { Figure, Link, Loaded, Section, Source, State, Time } from "../ui/parts";

type Run = Schemas["RunView"];

const hoursOf = (run: Run) => (run.started_at && run.ended_at ? (Date.parse(run.ended_at) - Date.parse(run.started_at)) / 3.6e6 : null);

export function Runs() {
  return (
    <Listed<Run>
      title="Runs"
      path="/v1/runs"
      load={(query) => data(client.GET("/v1/runs", { params: { query } }))}
      empty="No run outside SageMaker is recorded. Record one to see it beside trials: on another cloud, or on a machine of your own."
      command={'curl -s -H "Authorization: Bearer $BAKEOFF_API_KEY" "$BAKEOFF_URL/v1/runs" -d \'{"name": "lab", "hardware": "4 x RTX 4090", "accelerator_count": 4, "usd_per_hour": 2.8}\''}
      link={(row) => `/runs/${row.id}`}
      columns={() => [
        { head: "run", cell: (row) => <Link to={`/runs/${row.id}`}>{row.spec.name}</Link> },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "hardware", cell: (row) => row.spec.hardware },
        { head: "accelerators", numeric: true, wide: true, cell: (row) => row.spec.accelerator_count },
        { head: "$/h", numeric: true, cell: (row) => rate(row.spec.usd_per_hour) },
        { head: "took", numeric: true, cell: (row) => hours(hoursOf(row)) },
        { head: "started", wide: true, cell: (row) => <Time at={row.started_at ?? row.created_at} /> },
      ]}
    />
  );
}

export function Run({ id }: { id: string }) {
  const path = { params: { path: { run_id: id } } };
  const query = useQuery(`run ${id}`, () => data(client.GET("/v1/runs/{run_id}", path)), 10);
  return (
    <Loaded query={query} lines={4}>
      {(is) => (
        <>
          <header class="head">
            <div>
              <p class="crumbs">
                <Link to="/runs">Runs</Link> ›
              </p>
              <h1>
                {is.spec.name} <State of={is.state} />
              </h1>
              <p class="fine">
                {is.spec.hardware}, {is.spec.accelerator_count} accelerators, since <Time at={is.started_at ?? is.created_at} />
                {is.ended_at && (
                  <>
                    , ended <Time at={is.ended_at} />
                  </>
                )}
              </p>
            </div>
            <div class="buttons">
              <Link to={`/compare?run=${id}`}>compare</Link>
              {is.state === "running" && (
                <Action name="End" run={() => data(client.POST("/v1/runs/{run_id}/end", { ...path, body: { state: "completed" } })).then(query.reload)}>
                  <p>It counts as completed now: its cost is its duration at its rate, and no more metrics are taken for it.</p>
                </Action>
              )}
            </div>
          </header>
          {is.figures && <Figures of={is.figures} rate={is.spec.usd_per_hour} source={is.spec.price_source} id={id} />}
          <Metrics of={{ run: id }} every={is.state === "running" ? 15 : 0} />
          <Section title="As it was recorded" aside={<Source path={`/v1/runs/${id}`} />}>
            <pre class="raw" tabIndex={0}>
              {JSON.stringify(is.spec, null, 2)}
            </pre>
          </Section>
        </>
      )}
    </Loaded>
  );
}

function Figures({ of, rate: hourly, source, id }: { of: Schemas["ComparisonRow"]; rate: number | null | undefined; source: string | undefined; id: string }) {
  return (
    <Section title="What it did, and what it cost" aside={<Source path={`/v1/comparison?run_id=${id}`} csv />}>
      <dl class="figures">
        <div>
          <dt>tokens/s</dt>
          <dd>
            <Figure kind="measured">{speed(of.tokens_per_second, of.tokens_per_second_half_width)}</Figure>
          </dd>
        </div>
        <div>
          <dt>$/M tokens</dt>
          <dd>{rate(of.usd_per_million_tokens)}</dd>
        </div>
        <div>
          <dt>cost</dt>
          <dd>
            <Figure kind={of.cost_estimated ? "estimated" : "measured"} about={`${rate(hourly)} an hour${source ? `, ${source}` : ""}`}>
              {usd(of.total_usd)}
            </Figure>
          </dd>
        </div>
        <div>
          <dt>steps</dt>
          <dd>
            {count(of.step)} <small>{of.planned_steps ? `of ${count(of.planned_steps)}` : ""}</small>
          </dd>
        </div>
      </dl>
    </Section>
  );
}
