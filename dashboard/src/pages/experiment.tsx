/** One experiment: the answer first, then what it rests on, and all there is last. */

import { Problem, client, data, type Schemas } from "../api/client";
import { useMemo } from "preact/hooks";
import { useQuery } from "../api/query";
import { Curves, Forest, Funnel, Gantt, Pareto } from "../charts/charts";
import { CurvePicker, chosenCurve } from "../charts/picker";
import { valueOf } from "../document";
import { hours, odds, rate, speed, usd, words } from "../format";
import { namesOf } from "../shape";
import { address, go, setParameter } from "../state";
import { Action, amount } from "../ui/action";
import { Ledger } from "../ui/ledger";
import { Bar, Empty, Figure, Finding, Link, Loaded, ProblemBox, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";
import { Feed } from "./overview";

const TABS = ["answer", "race", "loss", "hours", "money", "events", "findings", "raw"] as const;
type Tab = (typeof TABS)[number];

const LIVE = new Set(["running", "cancelling"]);

export function Experiment({ id }: { id: string }) {
  const path = { params: { path: { experiment_id: id } } };
  const experiment = useQuery(`experiment ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}", path)), 15, id);
  const is = experiment.data;
  const every = is && !LIVE.has(is.state) ? 0 : 10;
  const answer = useQuery(`answer ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/recommendation", path)), every, id);
  const comparison = useQuery(`comparison ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/comparison", path)), every, id);
  const reload = () => [experiment, answer, comparison].forEach((query) => query.reload());
  const names = comparison.data?.rows.map((row) => row.candidate) ?? [];
  const tab = (TABS.find((one) => one === address.value.searchParams.get("tab")) ?? "answer") as Tab;
  return (
    <Loaded query={experiment} lines={3}>
      {() =>
        is && (
          <>
            <Head of={is} hasParked={comparison.data?.rows.some((row) => row.state === "parked") ?? false} reload={reload} />
            <Loaded query={answer}>{(got) => <Answer of={got} experiment={is} />}</Loaded>
            <Loaded query={comparison} lines={6}>
              {(got) => <Candidates of={got} id={id} />}
            </Loaded>
            <nav class="tabs" aria-label="details">
              {TABS.map((one) => (
                <button aria-current={one === tab ? "page" : undefined} onClick={() => setParameter("tab", one === "answer" ? null : one)}>
                  {one}
                </button>
              ))}
            </nav>
            {tab === "answer" && <Loaded query={answer}>{(got) => <Evidence of={got} experiment={is} names={names} />}</Loaded>}
            {tab === "race" && (
              <Loaded query={answer}>{(got) => <Race answer={got} id={id} every={every} names={names} />}</Loaded>
            )}
            {tab === "loss" && <Loss id={id} every={every} rows={comparison.data?.rows ?? []} />}
            {tab === "hours" && <Hours id={id} every={every} now={comparison.data?.as_of} />}
            {tab === "money" && <Ledger of={{ experiment: id }} every={every} budget={is.budget_usd} />}
            {tab === "events" && <Events id={id} every={every} />}
            {tab === "findings" && <Findings of={is.findings} />}
            {tab === "raw" && (
              <Section title="The specification" aside={<Source path={`/v1/experiments/${id}`} />}>
                <pre class="raw" tabIndex={0}>{JSON.stringify(is.spec, null, 2)}</pre>
              </Section>
            )}
          </>
        )
      }
    </Loaded>
  );
}

function Head({ of, hasParked, reload }: { of: Schemas["ExperimentView"]; hasParked: boolean; reload: () => void }) {
  const path = { params: { path: { experiment_id: of.id } } };
  const done = (call: Promise<unknown>) => call.then(reload);
  const isRunning = of.state === "running";
  // Trials that wait for a person are queued again, also those that an answer was found without.
  const canResume = (isRunning && of.paused_reason) || (hasParked && ["running", "completed", "failed"].includes(of.state));
  const isCancelled = of.state === "cancelled" || of.state === "cancelling";
  return (
    <header class="head">
      <div>
        <p class="crumbs">
          <Link to="/experiments">Experiments</Link> ›
        </p>
        <h1>
          {of.name} <State of={of.paused_reason ? "parked" : of.state} />
        </h1>
        <p class="fine">
          {usd(of.settled_usd)} settled, {usd(of.reserved_usd)} held of {usd(of.budget_usd)} <Bar share={(of.settled_usd + of.reserved_usd) / of.budget_usd} label="of the budget" /> · started <Time at={of.created_at} />
          {of.ended_at && (
            <>
              , ended <Time at={of.ended_at} />
            </>
          )}
        </p>
        {of.paused_reason && <p class="stale">Paused: {of.paused_reason}</p>}
      </div>
      <div class="buttons">
        {canResume && (
          <Action name="Resume" run={() => done(data(client.POST("/v1/experiments/{experiment_id}/resume", path)))}>
            <p>Waiting and parked trials are tried again, within the {usd(of.budget_usd - of.settled_usd - of.reserved_usd)} left of its budget.</p>
          </Action>
        )}
        {isRunning && !of.paused_reason && (
          <Action name="Pause" run={() => done(data(client.POST("/v1/experiments/{experiment_id}/pause", path)))}>
            <p>Nothing new is started. Running trials go on, and may cost up to the {usd(of.reserved_usd)} held for them.</p>
          </Action>
        )}
        {!isCancelled && <Raise of={of} done={done} />}
        {!isCancelled && !of.full_run_of && <Add of={of} done={done} />}
        {isRunning && (
          <Action name="Cancel" tone="danger" run={() => done(data(client.POST("/v1/experiments/{experiment_id}/cancel", path)))}>
            <p>Every trial is stopped. {usd(of.settled_usd)} are spent; running jobs are billed until they have stopped, {usd(of.reserved_usd)} at most.</p>
          </Action>
        )}
      </div>
    </header>
  );
}

function Raise({ of, done }: { of: Schemas["ExperimentView"]; done: (call: Promise<unknown>) => Promise<void> }) {
  const change = (form: FormData) => done(data(client.PATCH("/v1/experiments/{experiment_id}", { params: { path: { experiment_id: of.id } }, body: { budget_usd: amount(form, "budget_usd") ?? of.budget_usd } })));
  return (
    <Action name="Change the budget" run={change}>
      <p>
        {usd(of.settled_usd)} are spent and {usd(of.reserved_usd)} held: the budget cannot be lower.
      </p>
      <label>
        new budget, dollars{" "}
        <input name="budget_usd" type="number" min={0} step="any" required defaultValue={String(of.budget_usd)} />
      </label>
    </Action>
  );
}

/** One more candidate: as one that is there, with what a person changes in it. */
function Add({ of, done }: { of: Schemas["ExperimentView"]; done: (call: Promise<unknown>) => Promise<void> }) {
  const [first] = of.spec.candidates;
  const example = JSON.stringify({ ...first, name: `${first?.name ?? "candidate"}-2` }, null, 2);
  const add = async (form: FormData) => {
    const read = valueOf(String(form.get("candidate")));
    if (typeof read !== "object" || read === null) throw new Problem(0, "Not JSON", "The candidate is not a JSON object.", [], undefined, false);
    await done(data(client.POST("/v1/experiments/{experiment_id}/candidates", { params: { path: { experiment_id: of.id } }, body: read as Schemas["CandidateSpec"] })));
  };
  return (
    <Action name="Add a candidate" run={add}>
      <p>
        Its trials are planned at today's prices and start within the {usd(of.budget_usd - of.settled_usd - of.reserved_usd)} left of the budget. {LIVE.has(of.state) ? "" : "The experiment runs again, and is decided again."}
      </p>
      <textarea name="candidate" aria-label="candidate" rows={14} spellcheck={false} defaultValue={example} />
    </Action>
  );
}

const CONCLUSIONS: Record<string, string> = { clear: "good", tied: "good", leading: "wait", reached: "good" };

function Answer({ of, experiment }: { of: Schemas["RecommendationView"]; experiment: Schemas["ExperimentView"] }) {
  const first = of.ranked[0];
  return (
    <section class={`card answer ${CONCLUSIONS[String(of.conclusion)] ?? ""}`} aria-label="answer">
      <p class="headline">{of.headline}</p>
      {first && (
        <dl class="figures">
          <div>
            <dt>full run</dt>
            <dd>
              <Figure kind="projected" about={first.price}>
                {usd(first.projected_cost_usd)}
              </Figure>
              <small>
                {" "}
                {usd(first.odds?.cost_usd_low)} to {usd(first.odds?.cost_usd_high)} (90 %)
              </small>
            </dd>
          </div>
          <div>
            <dt>takes</dt>
            <dd>
              <Figure kind="projected">{hours(first.projected_hours)}</Figure>
            </dd>
          </div>
          <div>
            <dt>best with</dt>
            <dd>{odds(first.odds?.p_best)}</dd>
          </div>
          <div>
            <dt>this answer cost</dt>
            <dd>
              {usd(of.spend?.usd ?? experiment.settled_usd)}
              {of.spend?.losers_usd != null && <small> {usd(of.spend.losers_usd)} on others</small>}
            </dd>
          </div>
        </dl>
      )}
      {of.provisional && <p class="fine">Provisional: it may change while trials run.</p>}
      {first && experiment.state === "completed" && !experiment.full_run_of && <Buy id={experiment.id} of={first} provisional={of.provisional} />}
    </section>
  );
}

function Buy({ id, of, provisional }: { id: string; of: Schemas["Ranked"]; provisional: boolean }) {
  const path = { experiment_id: id };
  // What is shown is what is bought, also where the answer changes meanwhile, and where it leaves the choice to a person.
  const choice = { candidate: of.candidate, purchase_option: of.purchase_option };
  const key = `full-run ${id} ${of.candidate} ${of.purchase_option}`;
  const preview = useQuery(key, () => data(client.GET("/v1/experiments/{experiment_id}/full-run", { params: { path, query: choice } })));
  // One key for all tries: where an answer is lost, a second click buys nothing more.
  const once = useMemo(() => crypto.randomUUID(), [key]);
  const is = preview.data;
  if (!is) return preview.problem ? <ProblemBox problem={preview.problem} retry={preview.reload} /> : null;
  const start = async () => {
    const made = await data(client.POST("/v1/experiments/{experiment_id}/full-run", { params: { path, header: { "Idempotency-Key": once } }, body: { ...choice, budget_usd: is.budget_usd } }));
    go(`/experiments/${made.id}`);
  };
  return (
    <div class="buttons">
      <Action name={`Buy the full run on ${of.candidate}`} tone="primary" run={start}>
        <p>
          The training runs to its end on {of.instance_type} {words(of.purchase_option)}: {usd(of.projected_cost_usd)} in {hours(of.projected_hours)} projected, {usd(is.budget_usd)} at most.
        </p>
        {provisional && <p class="stale">The answer is provisional.</p>}
      </Action>
      <Source path={`/v1/experiments/${id}/full-run?${new URLSearchParams(choice)}`} />
    </div>
  );
}

function Candidates({ of, id }: { of: Schemas["Comparison"]; id: string }) {
  return (
    <Section title="Candidates" aside={<Source path={`/v1/experiments/${id}/comparison`} csv />}>
      <Table
        caption="Candidates"
        rows={of.rows}
        link={(row) => (row.trial_id ? `/trials/${row.trial_id}` : undefined)}
        rowClass={(row) => (["stopped", "failed", "refused"].includes(row.state) ? "over" : undefined)}
        columns={[
          { head: "candidate", cell: (row) => (row.trial_id ? <Link to={`/trials/${row.trial_id}`}>{row.candidate}</Link> : row.candidate) },
          { head: "instance", wide: true, cell: (row) => `${row.instance_count > 1 ? `${row.instance_count} × ` : ""}${row.instance_type}` },
          { head: "purchase", wide: true, cell: (row) => words(row.purchase_option) },
          { head: "state", cell: (row) => <State of={row.state} /> },
          { head: "progress", wide: true, cell: (row) => (row.progress != null ? <Bar share={row.progress} label="of its steps" /> : "–") },
          {
            head: "tokens/s",
            about: "with its 95 % interval",
            numeric: true,
            cell: (row) => (
              <Figure kind="measured" about={row.tokens_per_second_from_at ? `${row.tokens_per_second_source}, ${row.tokens_per_second_from_at} to ${row.tokens_per_second_until_at}` : undefined}>
                {speed(row.tokens_per_second, row.tokens_per_second_half_width)}
              </Figure>
            ),
          },
          { head: "GPU", about: "utilisation of the accelerators", numeric: true, wide: true, cell: (row) => (row.gpu_utilization_percent == null ? "–" : `${Math.round(row.gpu_utilization_percent)} %`) },
          { head: "MFU", about: "model FLOP utilisation", numeric: true, wide: true, cell: (row) => (row.mfu_percent == null ? "–" : `${Math.round(row.mfu_percent)} %`) },
          { head: "train loss", numeric: true, wide: true, cell: (row) => row.train_loss?.toPrecision(4) ?? "–" },
          { head: "validation loss", numeric: true, wide: true, cell: (row) => row.validation_loss?.toPrecision(4) ?? "–" },
          {
            head: "cost",
            numeric: true,
            cell: (row) => (
              <Figure kind={row.cost_estimated ? "estimated" : "measured"} about="SageMaker's billable seconds × the price">
                {usd(row.total_usd)}
              </Figure>
            ),
          },
          {
            head: "$/h",
            numeric: true,
            wide: true,
            cell: (row) => <span title={`${row.price_source ?? ""} ${row.price_effective_from?.slice(0, 10) ?? ""} (${words(row.price_status)})`}>{rate(row.usd_per_hour)}</span>,
          },
          { head: "why", wide: true, cell: (row) => <span class="why">{row.diagnosis ?? row.reason ?? ""}</span> },
        ]}
      />
    </Section>
  );
}

function Evidence({ of, experiment, names }: { of: Schemas["RecommendationView"]; experiment: Schemas["ExperimentView"]; names: readonly string[] }) {
  const objective = experiment.spec.objective;
  return (
    <>
      <Section title="Cost against hours" aside={<Source path={`/v1/experiments/${experiment.id}/recommendation`} />}>
        {of.ranked.length > 0 ? <Pareto ranked={of.ranked} names={names} budget={objective.full_run_budget_usd ?? undefined} deadline={objective.full_run_deadline_hours ?? undefined} /> : <Empty what="No candidate can be ranked yet: each needs some minutes of steady training." />}
      </Section>
      <div class="columns even">
        <Section title="Why">
          <ul class="prose">
            {of.reasons.map((reason) => (
              <li>{reason}</li>
            ))}
          </ul>
        </Section>
        <Section title="Not ranked">
          {of.not_ranked.length === 0 ? (
            <p class="fine">Every candidate is ranked.</p>
          ) : (
            <ul class="prose">
              {of.not_ranked.map((one) => (
                <li>
                  <Link to={`/trials/${one.trial_id}`}>{one.candidate}</Link> ({one.instance_type} {words(one.purchase_option)}): {one.reason}
                  {one.fix && <div class="fix">→ {one.fix}</div>}
                </li>
              ))}
            </ul>
          )}
        </Section>
      </div>
      <Section title="What this is based on">
        <ul class="prose fine">
          {of.basis.map((one) => (
            <li>{one}</li>
          ))}
        </ul>
      </Section>
    </>
  );
}

function Race({ answer, id, every, names }: { answer: Schemas["RecommendationView"]; id: string; every: number; names: readonly string[] }) {
  const path = { params: { path: { experiment_id: id } } };
  const race = useQuery(`race ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/race", path)), every);
  const answers = useQuery(`answers ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/recommendations", path)), every);
  return (
    <>
      <Section title="What each one costs, and who is out" aside={<Source path={`/v1/experiments/${id}/recommendation`} />}>
        <Forest ranked={answer.ranked} names={names} />
        <Loaded query={race}>
          {(got) => (
            <ul class="prose">
              {got.trials
                .filter((one) => ["stopped", "refused", "failed"].includes(one.state))
                .map((one) => (
                  <li>
                    ✕ <Link to={`/trials/${one.trial_id}`}>{one.candidate}</Link> {one.purchase_option === "spot" ? "spot" : ""} {words(one.state)} after {usd(one.usd)}
                    {one.ended_at && (
                      <>
                        {" "}
                        at <Time at={one.ended_at} />
                      </>
                    )}
                    : {one.reason}
                  </li>
                ))}
            </ul>
          )}
        </Loaded>
      </Section>
      <div class="columns even">
        <Section title="How the race narrowed" aside={<Source path={`/v1/experiments/${id}/race`} />}>
          <Loaded query={race}>
            {(got) => {
              const isMeasured = got.looks.some((look) => look.spent_usd > 0);
              return isMeasured ? <Funnel looks={got.looks} names={names} /> : <Empty what="Nothing has been measured yet; looks are kept from the first measured dollar on." />;
            }}
          </Loaded>
        </Section>
        <Section title="What the answer said before" aside={<Source path={`/v1/experiments/${id}/recommendations`} />}>
          <Loaded query={answers}>
            {(page) =>
              page.items.length === 0 ? (
                <p class="fine">No earlier answer is kept.</p>
              ) : (
                <ol class="feed">
                  {[...page.items].reverse().map((one) => (
                    <li>
                      <Time at={one.found_at} /> <span class="fine">after {usd(one.spent_usd)}</span>
                      {one.changes.map((change) => (
                        <div>{change}</div>
                      ))}
                      {one.changes.length === 0 && <div>{one.recommendation.headline}</div>}
                    </li>
                  ))}
                </ol>
              )
            }
          </Loaded>
        </Section>
      </div>
    </>
  );
}

function Loss({ id, every, rows }: { id: string; every: number; rows: readonly Schemas["ComparisonRow"][] }) {
  const { metric, by } = chosenCurve("usd");
  const query = { experiment_id: [id], metric };
  const curves = useQuery(`curves ${id} ${metric}`, () => data(client.GET("/v1/convergence", { params: { query: query } })), every);
  return (
    <Section title="What quality costs" aside={<Source path={`/v1/convergence?experiment_id=${id}&metric=${metric}`} csv />}>
      <CurvePicker metric={metric} by={by} />
      <Loaded query={curves}>
        {(got) => (got.rows.length > 0 ? <Curves rows={got.rows} candidates={rows.map((row) => row.candidate)} metric={metric} by={by} labels={namesOf(rows)} /> : <Empty what={`No trial has reported ${words(metric)}.`} />)}
      </Loaded>
    </Section>
  );
}

function Hours({ id, every, now }: { id: string; every: number; now: string | undefined }) {
  const attempts = useQuery(`attempts ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/attempts", { params: { path: { experiment_id: id } } })), every);
  return (
    <Section title="Where the hours went" aside={<Source path={`/v1/experiments/${id}/attempts`} />}>
      <Loaded query={attempts}>
        {(page) => (page.items.some((one) => one.transitions.length > 0) ? <Gantt attempts={page.items} now={now} /> : <Empty what="No job has started." />)}
      </Loaded>
    </Section>
  );
}

function Events({ id, every }: { id: string; every: number }) {
  const query = { newest: true, page_size: 200 };
  const events = useQuery(`events ${id}`, () => data(client.GET("/v1/experiments/{experiment_id}/events", { params: { path: { experiment_id: id }, query } })), every);
  return (
    <Section title="What happened" aside={<Source path={`/v1/experiments/${id}/events?newest=true&page_size=200`} />}>
      <Loaded query={events}>{(page) => page && <Feed events={page.items} />}</Loaded>
    </Section>
  );
}

function Findings({ of }: { of: readonly Schemas["Finding"][] }) {
  return (
    <Section title="What the linter found">
      {of.length === 0 ? (
        <p class="fine">Nothing.</p>
      ) : (
        <ul class="findings">
          {of.map((one) => (
            <Finding of={one} />
          ))}
        </ul>
      )}
    </Section>
  );
}
