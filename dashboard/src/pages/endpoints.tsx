/** Endpoints: meters that run by themselves, with the time that each has left. */

import { useState } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { hours, rate, usd } from "../format";
import { Action, amount } from "../ui/action";
import { Ledger } from "../ui/ledger";
import { Listed } from "../ui/listed";
import { Figure, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";

type Endpoint = Schemas["Endpoint"];

const HOURS_MAX = 720;

const lifetime = (row: Endpoint) => (row.expires_at && !row.ended_at ? (Date.parse(row.expires_at) - Date.parse(row.in_service_at ?? row.created_at)) / 3.6e6 : row.time_to_live_hours);

/** What ends it when this service is away. */
const endAtAws = (row: Endpoint) => (row.absent_service_usd_per_day ? `it runs on, at ${usd(row.absent_service_usd_per_day)} a day` : "AWS deletes it in time");

export function Endpoints() {
  return (
    <Listed<Endpoint>
      title="Endpoints"
      path="/v1/endpoints"
      load={(query) => data(client.GET("/v1/endpoints", { params: { query } }))}
      empty="No endpoint is running. Each one has a time to live, after which it is deleted."
      command="bakeoff endpoints deploy --help"
      link={(row) => `/endpoints/${row.id}`}
      columns={(reload) => [
        { head: "endpoint", cell: (row) => <Link to={`/endpoints/${row.id}`}>{row.name}</Link> },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "instance", cell: (row) => `${row.instance_count} × ${row.instance_type}` },
        { head: "owner", wide: true, cell: (row) => row.owner },
        { head: "ends", cell: (row) => <Time at={row.ended_at ?? row.expires_at} /> },
        { head: "lives", numeric: true, about: "from its start to its end", cell: (row) => hours(lifetime(row)) },
        { head: "cost", numeric: true, cell: (row) => usd(row.cost_usd) },
        { head: "held", numeric: true, cell: (row) => usd(row.reserved_usd) },
        { head: "if this service is down", wide: true, cell: (row) => (row.ended_at ? "–" : endAtAws(row)) },
        { head: "action", cell: (row) => <Actions of={row} reload={reload} /> },
      ]}
    />
  );
}

function Actions({ of, reload }: { of: Endpoint; reload: () => void }) {
  const path = { params: { path: { endpoint_id: of.id } } };
  const extend = (form: FormData) => {
    const budget = amount(form, "budget_usd");
    const body = { time_to_live_hours: amount(form, "hours") ?? of.time_to_live_hours, ...(budget === undefined ? {} : { budget_usd: budget }) };
    return data(client.PATCH("/v1/endpoints/{endpoint_id}", { ...path, body })).then(reload);
  };
  if (of.ended_at) return null;
  return (
    <>
      <Action name="Extend" about={of.name} run={extend}>
        <Extension of={of} />
      </Action>{" "}
      {of.state === "creating" && (
        <Action name="Resume" about={of.name} run={() => data(client.POST("/v1/endpoints/{endpoint_id}/resume", path)).then(reload)}>
          <p>If its job waits for a person, such as for a permission or a quota, it is queued again, within the {usd(of.budget_usd)} of its budget.</p>
        </Action>
      )}{" "}
      <Action name="Delete" about={of.name} tone="danger" run={() => data(client.DELETE("/v1/endpoints/{endpoint_id}", path)).then(reload)}>
        <p>
          It stops serving. It has cost {usd(of.cost_usd)}; the {usd(of.reserved_usd)} held for it are released once its bill is settled.
        </p>
      </Action>
    </>
  );
}

/** How much longer it serves: what it begins with stands still while the endpoint is read again. */
function Extension({ of }: { of: Endpoint }) {
  const [first] = useState({ least: Math.ceil(of.time_to_live_hours), hours: of.time_to_live_hours });
  const [wanted, setWanted] = useState(Math.min(HOURS_MAX, first.least + 1));
  const more = of.usd_per_hour == null ? null : Math.max(0, wanted - first.hours) * of.usd_per_hour * of.instance_count;
  return (
    <>
      <p>
        It may serve {hours(first.hours)} in all now, at {rate(of.usd_per_hour)} an hour for each of {of.instance_count}. With {wanted} hours, {usd(more)} more are held at once, within its budget of {usd(of.budget_usd)}.
      </p>
      <label>
        hours in all <input name="hours" type="number" min={first.least} max={HOURS_MAX} required defaultValue={String(wanted)} onInput={(event) => setWanted(Number(event.currentTarget.value))} />
      </label>
      <label>
        another budget, dollars, if that does not suffice <input name="budget_usd" type="number" min={0} step="any" placeholder="as it is" />
      </label>
    </>
  );
}

export function Endpoint({ id }: { id: string }) {
  const query = useQuery(`endpoint ${id}`, () => data(client.GET("/v1/endpoints/{endpoint_id}", { params: { path: { endpoint_id: id } } })), 10, "any");
  return (
    <Loaded query={query} lines={6}>
      {(is) => (
        <>
          <header class="head">
            <div>
              <p class="crumbs">
                <Link to="/endpoints">Endpoints</Link> ›
              </p>
              <h1>
                {is.name} <State of={is.state} />
              </h1>
              <p class="fine">
                {is.instance_count} × {is.instance_type} in {is.region}, of {is.owner}
              </p>
              {is.reason && <p class="stale">{is.reason}</p>}
            </div>
            <div class="buttons">
              <Actions of={is} reload={query.reload} />
            </div>
          </header>
          <Section title="Its time and its money" aside={<Source path={`/v1/endpoints/${id}`} />}>
            <dl class="figures">
              <div>
                <dt>{is.ended_at ? "ended" : "ends"}</dt>
                <dd>
                  <Time at={is.ended_at ?? is.expires_at} /> <small>of {hours(is.time_to_live_hours)}</small>
                </dd>
              </div>
              <div>
                <dt>cost</dt>
                <dd>
                  <Figure kind={is.ended_at ? "measured" : "estimated"}>{usd(is.cost_usd)}</Figure> <small>of {usd(is.budget_usd)}</small>
                </dd>
              </div>
              <div>
                <dt>held</dt>
                <dd>{usd(is.reserved_usd)}</dd>
              </div>
              <div>
                <dt>if this service is down</dt>
                <dd>{is.ended_at ? "–" : endAtAws(is)}</dd>
              </div>
            </dl>
            {is.end_at_aws && <p class="fine">{is.end_at_aws}</p>}
          </Section>
          <Section title="What it has served">
            <Table
              caption="Revisions"
              rows={[...is.revisions].reverse()}
              columns={[
                { head: "revision", numeric: true, cell: (row) => row.revision },
                { head: "model", cell: (row) => row.model_package_id ?? "as its specification says" },
                { head: "since", cell: (row) => <Time at={row.created_at} /> },
                { head: "outcome", cell: (row) => <span class="why">{row.outcome ?? (row.revision === is.revision ? "serves" : "")}</span> },
              ]}
            />
          </Section>
          <Ledger of={{ experiment: is.experiment_id }} every={is.ended_at ? 0 : 15} budget={is.budget_usd} />
        </>
      )}
    </Loaded>
  );
}
