/** What happened in one trial: its attempts, figures, log, and why it failed. */

import { useState } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Gantt, Series } from "../charts/charts";
import { rate, seconds, usd, words } from "../format";
import { phasesOf, pointsOf } from "../shape";
import { address } from "../state";
import { Action } from "../ui/action";
import { Empty, Figure, Finding, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";

const LIVE = new Set(["queued", "submitting", "parked", "running", "stopping"]);

export function Trial({ id }: { id: string }) {
  const path = { params: { path: { trial_id: id } } };
  const trial = useQuery(`trial ${id}`, () => data(client.GET("/v1/trials/{trial_id}", path)), 5);
  const is = trial.data;
  const every = is && !LIVE.has(is.state) ? 0 : 10;
  return (
    <Loaded query={trial} lines={3}>
      {(got) => (
        <>
          <Head of={got} reload={trial.reload} />
          {got.reason && <p class={got.state === "failed" ? "stale" : "fine"}>{got.reason}</p>}
          <Diagnosis id={id} state={got.state} />
          <Section title="Attempts" aside={<Source path={`/v1/trials/${id}/attempts`} />}>
            {got.attempts.length === 0 ? (
              <Empty what={got.plan?.held ?? got.plan?.skipped ?? "It has no job yet."} />
            ) : (
              <>
                <Gantt phases={phasesOf(got.attempts.map((one) => ({ ...one, trial_id: id, candidate: got.plan?.candidate ?? id.slice(-6), purchase_option: got.plan?.purchase_option ?? "" })))} />
                <Attempts of={got.attempts} />
              </>
            )}
          </Section>
          {got.attempts.length > 0 && (
            <>
              <Metrics id={id} every={every} />
              <Log id={id} every={every} />
            </>
          )}
          <Plan of={got} />
        </>
      )}
    </Loaded>
  );
}

function Head({ of, reload }: { of: Schemas["TrialView"]; reload: () => void }) {
  const path = { params: { path: { trial_id: of.id } } };
  const done = (call: Promise<unknown>) => call.then(reload);
  const plan = of.plan;
  const held = plan?.worst_case as { total_usd?: number } | null | undefined;
  return (
    <header class="head">
      <div>
        <p class="crumbs">
          <Link to="/experiments">Experiments</Link> › <Link to={`/experiments/${of.experiment_id}`}>experiment</Link> ›
        </p>
        <h1>
          {plan?.candidate ?? of.id} {plan?.purchase_option === "spot" ? "spot" : ""} <State of={of.state} />
        </h1>
        <p class="fine">
          {plan && `${plan.instance_count} × ${plan.instance_type} ${words(plan.purchase_option)}, ${plan.steps} steps of ${plan.global_batch} sequences`} · since <Time at={of.created_at} />
        </p>
      </div>
      <div class="buttons">
        {LIVE.has(of.state) && (
          <Action name="Stop" tone="danger" run={() => done(data(client.POST("/v1/trials/{trial_id}/stop", path as never)))}>
            <p>SageMaker stops the job within two minutes, and bills it until then. What it has measured counts.</p>
          </Action>
        )}
        {["failed", "stopped", "refused"].includes(of.state) && (
          <Action name="Retry" run={() => done(data(client.POST("/v1/trials/{trial_id}/retry", path as never)))}>
            <p>It is planned anew at today's prices and runs once more{held?.total_usd != null ? `: ${usd(held.total_usd)} at most at the prices of its first plan` : ""}, within what is left of the budget.</p>
          </Action>
        )}
      </div>
    </header>
  );
}

function Diagnosis({ id, state }: { id: string; state: string }) {
  const found = useQuery(`diagnosis ${id} ${state}`, () => data(client.GET("/v1/trials/{trial_id}/diagnosis", { params: { path: { trial_id: id } } })));
  const told = found.data;
  const attempts = told?.attempts.filter((one) => one.diagnosis || one.failure_reason || one.rules.length > 0) ?? [];
  if (!told || (attempts.length === 0 && told.advice.length === 0)) return null;
  return (
    <Section title={state === "failed" ? "Why it failed" : "Advice"} aside={<Source path={`/v1/trials/${id}/diagnosis`} />}>
      {attempts.map((attempt) => (
        <>
          {attempt.diagnosis && <p class="headline">{attempt.diagnosis.summary}</p>}
          <ol class="prose">
            {attempt.diagnosis?.causes.map((cause) => (
              <li>
                <b>{cause.cause}</b> <span class="fine">{words(cause.standing)}</span>
                <div class="fix">→ {cause.change ?? cause.advice}</div>
                {cause.clue && <pre class="log" tabIndex={0}>{cause.clue.text}</pre>}
                {cause.patch.length > 0 && (
                  <details>
                    <summary>the change of the profile, as a JSON Patch</summary>
                    <pre class="raw" tabIndex={0}>{JSON.stringify(cause.patch, null, 2)}</pre>
                  </details>
                )}
                <p class="fine">{cause.source}</p>
              </li>
            ))}
          </ol>
          {attempt.last_lines.length > 0 && (
            <details>
              <summary>the last lines of its log</summary>
              <pre class="log" tabIndex={0}>{attempt.last_lines.map((line) => (typeof line === "string" ? line : line.message)).join("\n")}</pre>
            </details>
          )}
          <p class="fine">
            <a href={attempt.console_url} target="_blank" rel="noreferrer">
              the job in AWS's console
            </a>
          </p>
        </>
      ))}
      {told.advice.length > 0 && (
        <ul class="prose">
          {told.advice.map((one) => (
            <li>
              {one.finding}
              <div class="fix">→ {one.advice}</div>
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}

function Attempts({ of }: { of: readonly Schemas["AttemptView"][] }) {
  return (
    <Table
      caption="Attempts"
      rows={of}
      columns={[
        { head: "#", numeric: true, cell: (row) => row.number },
        { head: "job", cell: (row) => <code>{row.job_name}</code> },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "SageMaker", wide: true, cell: (row) => [row.job_status, row.secondary_status].filter(Boolean).join(" / ") || "–" },
        { head: "billed", numeric: true, cell: (row) => <Figure kind={row.billing_estimated ? "estimated" : "measured"}>{seconds(row.billable_seconds)}</Figure> },
        { head: "$/h", numeric: true, cell: (row) => rate(row.usd_per_hour) },
        { head: "interruptions", numeric: true, wide: true, cell: (row) => row.interruptions.length },
        { head: "at risk", about: "training since the newest checkpoint", numeric: true, wide: true, cell: (row) => usd(row.at_risk_usd) },
        { head: "checkpoint", wide: true, cell: (row) => <Time at={row.checkpoint_at} /> },
        { head: "failure", wide: true, cell: (row) => <span class="why">{row.failure_reason ?? ""}</span> },
      ]}
    />
  );
}

/** The metrics that are shown before others are chosen; beside a mark, where people look for one. */
const METRICS = ["tokens_per_second", "train_loss", "gpu_utilization_percent", "gpu_memory_utilization_percent"] as const;
const MARKS: Record<string, { value: number; label: string }> = {
  gpu_utilization_percent: { value: 85, label: "85 %" },
  gpu_memory_utilization_percent: { value: 90, label: "90 %" },
};

function Metrics({ id, every }: { id: string; every: number }) {
  const chosen = address.value.searchParams.getAll("metric");
  const wanted = chosen.length > 0 ? chosen : [...METRICS];
  const path = `/v1/series?trial_id=${id}${wanted.map((metric) => `&metric=${metric}`).join("")}&points=600`;
  const query = useQuery(path, () => data(client.GET("/v1/series", { params: { query: { trial_id: [id], metric: wanted, points: 600 } } })), every);
  const toggle = (metric: string) => {
    const url = new URL(location.href);
    url.searchParams.delete("metric");
    for (const one of wanted.includes(metric) ? wanted.filter((other) => other !== metric) : [...wanted, metric]) url.searchParams.append("metric", one);
    history.replaceState(null, "", url);
    address.value = url;
  };
  return (
    <Section title="Metrics" aside={<Source path={path} />}>
      <Loaded query={query} lines={8}>
        {(got) => (
          <>
            {got.metrics.length === 0 && <Empty what="It has reported nothing yet." />}
            <div class="filters">
              {got.metrics.map((one) => (
                <button aria-pressed={wanted.includes(one.metric)} onClick={() => toggle(one.metric)}>
                  {words(one.metric)}
                </button>
              ))}
            </div>
            <div class="grid">
              {got.series.map((line) => (
                <div>
                  <h3>
                    {words(line.metric)} <small>{line.are_means ? "five-minute means" : ""}</small> <Source path={`/v1/trials/${id}/metrics?metric=${line.metric}`} csv />
                  </h3>
                  <Series title={words(line.metric)} unit={line.unit ?? ""} points={pointsOf(line.points)} mark={MARKS[line.metric]} />
                </div>
              ))}
            </div>
          </>
        )}
      </Loaded>
    </Section>
  );
}

function Log({ id, every }: { id: string; every: number }) {
  const [word, setWord] = useState("");
  const [grep, setGrep] = useState("");
  const query = { tail: 300, ...(grep ? { grep } : {}) };
  const log = useQuery(`log ${id} ${grep}`, () => data(client.GET("/v1/trials/{trial_id}/logs", { params: { path: { trial_id: id }, query: query as never } })), every);
  return (
    <Section title="Log" aside={<Source path={`/v1/trials/${id}/logs?tail=300`} />}>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setGrep(word);
        }}
      >
        <label>
          lines with <input type="search" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
        </label>
        <button>Find</button>
      </form>
      <Loaded query={log} lines={12}>
        {(part) => (
          <>
            <p class="fine">
              <a href={part.console_url} target="_blank" rel="noreferrer">
                {part.job_name} in CloudWatch
              </a>
              , the last {part.lines.length} lines
            </p>
            <pre class="log" tabIndex={0}>
              {part.lines.map((line) => `${line.at.slice(11, 19)} ${line.message}`).join("\n")}
            </pre>
          </>
        )}
      </Loaded>
    </Section>
  );
}

function Plan({ of }: { of: Schemas["TrialView"] }) {
  const plan = of.plan;
  if (!plan) return null;
  return (
    <Section title="What was planned">
      {plan.findings.length > 0 && (
        <ul class="findings">
          {plan.findings.map((one) => (
            <Finding of={one} />
          ))}
        </ul>
      )}
      <details>
        <summary>the exact request and its worst case</summary>
        <pre class="raw" tabIndex={0}>{JSON.stringify({ worst_case: plan.worst_case, forecast: plan.forecast, request: plan.request }, null, 2)}</pre>
      </details>
    </Section>
  );
}
