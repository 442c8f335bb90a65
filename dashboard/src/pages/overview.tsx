/** What runs, what it costs, and what waits for a person. */

import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { percent, usd, words } from "../format";
import { Link, Loaded, Section, State, Time } from "../ui/parts";
import { Table } from "../ui/table";
import { COLUMNS } from "./experiments";

/** What a newcomer does; nothing costs anything before the third. */
function FirstSteps() {
  return (
    <div class="empty">
      <p>No experiment has been started. Three steps to a first answer:</p>
      <ol class="prose">
        <li>
          Paste what you have into the <Link to="/playground">playground</Link>: an estimator's arguments, a training job, a model's <code>config.json</code> or its name. It proposes instance types and asks what only you know.
        </li>
        <li>Read what each candidate would cost, how fast it would be, and which cannot win. So far nothing runs.</li>
        <li>Start it there, and watch the answer here. In a terminal, the same three are:</li>
      </ol>
      <pre tabIndex={0}>
        <code>{"bakeoff init my-job.json\nbakeoff plan experiment.json\nbakeoff run experiment.json --watch"}</code>
      </pre>
    </div>
  );
}

export function Overview() {
  const project = useQuery("project", () => data(client.GET("/v1/projects/current")), 30, "any");
  const running = useQuery("running", () => data(client.GET("/v1/experiments", { params: { query: { page_size: 50 } } })), 15, "any");
  const events = useQuery("latest", () => data(client.GET("/v1/events", { params: { query: { newest: true, page_size: 100 } } })), 30, "any");
  const alarms = events.data?.items.filter((one) => one.severity === "alarm").slice(0, 8) ?? [];
  return (
    <>
      <h1>Overview</h1>
      <Loaded query={project} lines={2}>
        {(now) => <Money of={now} />}
      </Loaded>
      <div class="columns">
        <div>
          <Section title="Needs a person">
            <Loaded query={running}>{(page) => <Waiting experiments={page.items} />}</Loaded>
          </Section>
          {alarms.length > 0 && (
            <Section title="Recent alarms" aside={<Link to="/events">all events</Link>}>
              <ul class="plain">
                {alarms.map((event) => (
                  <Alarm event={event} />
                ))}
              </ul>
            </Section>
          )}
          <Section title="Experiments" aside={<Link to="/experiments">all</Link>}>
            <Loaded query={running}>
              {(page) =>
                page.items.length === 0 ? (
                  <FirstSteps />
                ) : (
                  <Table
                    caption="Experiments"
                    rows={page.items.slice(0, 12)}
                    link={(row) => `/experiments/${row.id}`}
                    columns={COLUMNS}
                  />
                )
              }
            </Loaded>
          </Section>
        </div>
        <Section title="Feed" aside={<Link to="/events">all events</Link>}>
          <Loaded query={events} lines={10}>
            {(page) => <Feed events={page.items.slice(0, 20)} />}
          </Loaded>
        </Section>
      </div>
    </>
  );
}

/** What goes on only when a person does something, by how it stands now. */
function Waiting({ experiments }: { experiments: readonly Schemas["ExperimentSummary"][] }) {
  const pipelines = useQuery("pipelines", () => data(client.GET("/v1/pipelines")), 30, "any");
  const open = experiments.filter((one) => one.state === "running" && (one.paused_reason || one.trials.parked > 0));
  return (
    <Loaded query={pipelines} lines={1}>
      {(page) => {
        const living = page.items.filter((one) => one.state === "running");
        const asked = living.filter((one) => one.steps.some((step) => step.question));
        const parked = living.filter((one) => one.steps.some((step) => step.jobs.some((job) => job.state === "parked")));
        if (open.length + asked.length + parked.length === 0) return <p class="fine">Nothing right now.</p>;
        return (
          <ul class="plain">
            {asked.map((one) => (
              <li>
                <State of="asked" /> <Link to={`/pipelines/${one.id}`}>{one.name}</Link> asks what it may buy
              </li>
            ))}
            {parked.map((one) => (
              <li>
                <State of="parked" /> <Link to={`/pipelines/${one.id}`}>{one.name}</Link> has a job that a person must let go on
              </li>
            ))}
            {open.map((one) => (
              <li>
                <State of="parked" /> <Link to={`/experiments/${one.id}`}>{one.name}</Link> {one.paused_reason ? `is paused: ${one.paused_reason}` : `has ${one.trials.parked === 1 ? "a trial" : `${one.trials.parked} trials`} that a person must let go on`}
              </li>
            ))}
          </ul>
        );
      }}
    </Loaded>
  );
}

function Money({ of }: { of: Schemas["ProjectView"] }) {
  const used = of.settled_usd + of.reserved_usd;
  return (
    <dl class="figures">
      <div>
        <dt>settled</dt>
        <dd>{usd(of.settled_usd)}</dd>
      </div>
      <div>
        <dt>held for what runs</dt>
        <dd>{usd(of.reserved_usd)}</dd>
      </div>
      <div>
        <dt>this month</dt>
        <dd>
          {usd(of.month.settled_usd)}
          {of.month.forecast_usd != null && <small> → {usd(of.month.forecast_usd)} forecast</small>}
        </dd>
      </div>
      <div>
        <dt>budget</dt>
        <dd>
          {of.budget_usd == null ? "none" : usd(of.budget_usd)}
          {of.budget_usd ? <small> {percent(used / of.budget_usd, 1)} used</small> : null}
        </dd>
      </div>
    </dl>
  );
}

function Alarm({ event }: { event: Schemas["EventView"] }) {
  return (
    <li>
      <State of={event.severity} /> {event.message}
      {event.way_out && <div class="fix">→ {event.way_out}</div>}
      <div class="fine">
        <Time at={event.recorded_at} />
        {event.data?.kind === "purchase.waiting" && (
          <>
            {" "}
            · <Link to={`/pipelines/${event.data.pipeline_id}`}>decide</Link>
          </>
        )}
        {event.trial_id ? (
          <>
            {" "}
            · <Link to={`/trials/${event.trial_id}`}>trial</Link>
          </>
        ) : null}
        {event.experiment_id ? (
          <>
            {" "}
            · <Link to={`/experiments/${event.experiment_id}`}>experiment</Link>
          </>
        ) : null}
      </div>
    </li>
  );
}

export function Feed({ events }: { events: readonly Schemas["EventView"][] }) {
  if (events.length === 0) return <p class="fine">Nothing has happened yet.</p>;
  return (
    <ol class="feed">
      {events.map((event) => (
        <li class={event.severity}>
          <Time at={event.recorded_at} now={events[0]?.recorded_at} /> <span class="fine">{words(event.kind)}</span>
          <div>
            {event.message}{" "}
            {event.trial_id ? <Link to={`/trials/${event.trial_id}`}>open</Link> : event.experiment_id ? <Link to={`/experiments/${event.experiment_id}`}>open</Link> : null}
          </div>
        </li>
      ))}
    </ol>
  );
}
