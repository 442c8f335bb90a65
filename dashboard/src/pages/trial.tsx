/** What happened in one trial: its attempts, figures, log, and why it failed. */

import { useMemo, useRef, useState } from "preact/hooks";
import { Problem, client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Gantt } from "../charts/charts";
import { changed, type Change } from "../document";
import { rate, seconds, size, usd, words } from "../format";
import { go } from "../state";
import { Action } from "../ui/action";
import { Metrics } from "../ui/metrics";
import { Empty, Figure, Finding, Link, Loaded, ProblemBox, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";
import { openInPlayground } from "./playground";

const LIVE = new Set(["queued", "submitting", "parked", "running", "stopping"]);

export function Trial({ id }: { id: string }) {
  const path = { params: { path: { trial_id: id } } };
  // Whose events tell of it is known once it has been read.
  const experiment = useRef("any");
  const trial = useQuery(`trial ${id}`, () => data(client.GET("/v1/trials/{trial_id}", path)), 5, experiment.current);
  const is = trial.data;
  if (is) experiment.current = is.experiment_id;
  const every = is && !LIVE.has(is.state) ? 0 : 10;
  return (
    <Loaded query={trial} lines={3}>
      {(got) => (
        <>
          <Head of={got} reload={trial.reload} />
          {got.reason && <p class={got.state === "failed" ? "stale" : "fine"}>{got.reason}</p>}
          <Diagnosis of={got} />
          <Section title="Attempts" aside={<Source path={`/v1/trials/${id}/attempts`} />}>
            {got.attempts.length === 0 ? (
              <Empty what={got.plan?.held ?? got.plan?.skipped ?? "It has no job yet."} />
            ) : (
              <>
                <Phases of={got} />
                <Attempts of={got.attempts} />
              </>
            )}
          </Section>
          {got.attempts.length > 0 && (
            <>
              <Metrics of={{ trial: id }} every={every} />
              <Log id={id} every={every} />
              <Saved id={id} />
            </>
          )}
          <Plan of={got} />
        </>
      )}
    </Loaded>
  );
}

function Phases({ of }: { of: Schemas["TrialView"] }) {
  const named = useMemo(() => of.attempts.map((one) => ({ ...one, trial_id: of.id, candidate: of.plan?.candidate ?? of.id.slice(-6), purchase_option: of.plan?.purchase_option ?? "" })), [of]);
  return <Gantt attempts={named} now={of.as_of} />;
}

function Head({ of, reload }: { of: Schemas["TrialView"]; reload: () => void }) {
  const path = { params: { path: { trial_id: of.id } } };
  const done = (call: Promise<unknown>) => call.then(reload);
  const plan = of.plan;
  const held = plan?.worst_case;
  const hourly = of.attempts.at(-1)?.usd_per_hour;
  const ending = hourly == null ? null : (hourly * (plan?.instance_count ?? 1) * 2) / 60;
  // Jobs of a pipeline's steps compare nothing: their page is the pipeline's.
  const isCompared = (plan?.steps ?? 0) > 0;
  return (
    <header class="head">
      <div>
        <p class="crumbs">
          {isCompared ? (
            <>
              <Link to="/experiments">Experiments</Link> › <Link to={`/experiments/${of.experiment_id}`}>experiment</Link> ›
            </>
          ) : (
            <>
              <Link to="/pipelines">Pipelines</Link> ›
            </>
          )}
        </p>
        <h1>
          {plan?.candidate ?? of.id} {plan?.purchase_option === "spot" ? "spot" : ""} <State of={of.state} />
        </h1>
        <p class="fine">
          {plan && `${plan.instance_count} × ${plan.instance_type} ${words(plan.purchase_option)}${isCompared ? `, ${plan.steps} steps of ${plan.global_batch} sequences` : ""}`} · since <Time at={of.created_at} />
        </p>
      </div>
      <div class="buttons">
        {isCompared && LIVE.has(of.state) && (
          <Action name="Stop" tone="danger" run={() => done(data(client.POST("/v1/trials/{trial_id}/stop", path)))}>
            <p>SageMaker stops the job within two minutes, and bills it until then{ending != null && `: at most ${usd(ending)} more`}. What it has measured still counts.</p>
          </Action>
        )}
        {isCompared && ["failed", "stopped", "refused"].includes(of.state) && (
          <Action name="Retry" run={() => done(data(client.POST("/v1/trials/{trial_id}/retry", path)))}>
            <p>It is planned anew at today's prices and runs once more{held ? `: ${usd(held.total_usd)} at most at the prices of its first plan` : ""}, within what is left of the budget.</p>
          </Action>
        )}
      </div>
    </header>
  );
}

function Diagnosis({ of }: { of: Schemas["TrialView"] }) {
  const { id, state } = of;
  // A post-mortem, and what SageMaker's own rules found, come some time after the end.
  const isRecent = of.ended_at != null && Date.parse(of.as_of) - Date.parse(of.ended_at) < 30 * 60_000;
  const every = LIVE.has(state) ? 60 : isRecent ? 15 : 0;
  const found = useQuery(`diagnosis ${id} ${state}`, () => data(client.GET("/v1/trials/{trial_id}/diagnosis", { params: { path: { trial_id: id } } })), every);
  const told = found.data;
  if (found.problem && !told) return <ProblemBox problem={found.problem} retry={found.reload} />;
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
                {cause.patch.length > 0 && <Mend of={of} patch={cause.patch} change={cause.change ?? cause.advice} />}
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

/** Runs the trial's candidate with the change that mends it: beside the others, or in an experiment of its own. */
function Mend({ of, patch, change }: { of: Schemas["TrialView"]; patch: readonly Change[]; change: string }) {
  const plan = of.plan;
  const [problem, setProblem] = useState<Problem>();
  if (!plan) return null;
  const mended = async () => {
    const { spec } = await data(client.GET("/v1/experiments/{experiment_id}", { params: { path: { experiment_id: of.experiment_id } } }));
    const candidate = spec.candidates.find((one) => one.name === plan.candidate);
    const profile = candidate?.profile && changed(candidate.profile, patch);
    if (!candidate || !profile) throw new Problem(0, "The change does not fit", `The profile of ${plan.candidate} is stored elsewhere, or has changed since: change it by hand.`, [], undefined, false);
    return { spec, candidate: { ...candidate, profile } };
  };
  const add = async () => {
    const { spec, candidate } = await mended();
    const taken = new Set(spec.candidates.map((one) => one.name));
    const names = [`${candidate.name}-mended`, ...Array.from({ length: 20 }, (_, index) => `${candidate.name}-mended-${index + 2}`)];
    const name = names.find((one) => !taken.has(one)) ?? candidate.name;
    await data(client.POST("/v1/experiments/{experiment_id}/candidates", { params: { path: { experiment_id: of.experiment_id } }, body: { ...candidate, name, purchase_options: [plan.purchase_option], repeats: 1 } }));
    go(`/experiments/${of.experiment_id}`);
  };
  const open = async () => {
    try {
      const { spec, candidate } = await mended();
      openInPlayground({ ...spec, name: `${spec.name}-mended`, candidates: spec.candidates.map((one) => (one.name === candidate.name ? candidate : one)) });
    } catch (error) {
      if (error instanceof Problem) setProblem(error);
    }
  };
  return (
    <div class="buttons">
      <Action name="Run it with this change" tone="primary" run={add}>
        <p>
          {plan.candidate} joins its experiment once more, as a new candidate with a changed profile: {change.replace(/\.$/, "")}. {plan.worst_case && `At most ${usd(plan.worst_case.total_usd)} at the prices of the first plan. `}It is planned at today's, within what is left of the experiment's budget.
        </p>
      </Action>
      <button onClick={() => void open()}>Open in the playground</button>
      {problem && <ProblemBox problem={problem} />}
      <details>
        <summary>as a JSON Patch of the profile</summary>
        <pre class="raw" tabIndex={0}>
          {JSON.stringify(patch, null, 2)}
        </pre>
      </details>
    </div>
  );
}

/** What the trial's jobs have saved; read from S3 when somebody asks. */
function Saved({ id }: { id: string }) {
  const [isAsked, ask] = useState(false);
  return (
    <Section title="Checkpoints and models" aside={<Source path={`/v1/trials/${id}/checkpoints`} />}>
      {isAsked ? (
        <>
          <Checkpoints id={id} />
          <Artifacts id={id} />
        </>
      ) : (
        <button onClick={() => ask(true)}>List what is in S3</button>
      )}
    </Section>
  );
}

function Checkpoints({ id }: { id: string }) {
  const query = useQuery(`checkpoints ${id}`, () => data(client.GET("/v1/trials/{trial_id}/checkpoints", { params: { path: { trial_id: id } } })));
  return (
    <Loaded query={query}>
      {(got) => (
        <>
          <p class="fine">
            {got.s3_uri}: {size(got.bytes)}, <Figure kind="estimated">{usd(got.usd_per_month)}</Figure> a month to keep
            {got.seen_interval_seconds != null && `, one every ${seconds(got.seen_interval_seconds)}`}
          </p>
          {got.warning && <p class="stale">{got.warning}</p>}
          {got.checkpoints.length === 0 ? (
            <p class="fine">Nothing has been saved there.</p>
          ) : (
            <Table
              caption="Checkpoints"
              rows={[...got.checkpoints].reverse()}
              columns={[
                { head: "step", numeric: true, cell: (row) => row.step ?? "–" },
                { head: "name", cell: (row) => row.name },
                { head: "state", cell: (row) => <span title={row.missing ?? undefined}>{words(row.state)}</span> },
                { head: "written by", wide: true, cell: (row) => words(row.writer) },
                { head: "size", numeric: true, cell: (row) => size(row.bytes) },
                { head: "at", wide: true, cell: (row) => <Time at={row.written_at} /> },
              ]}
            />
          )}
        </>
      )}
    </Loaded>
  );
}

function Artifacts({ id }: { id: string }) {
  const query = useQuery(`artifacts ${id}`, () => data(client.GET("/v1/trials/{trial_id}/artifacts", { params: { path: { trial_id: id } } })));
  return (
    <Loaded query={query}>
      {(page) => (
        <ul class="prose">
          {page.items.map((one) => (
            <li>
              {one.job_name}: {one.model_s3_uri ? <code>{one.model_s3_uri}</code> : "no model"}{" "}
              <a href={one.model_console_url ?? one.console_url} target="_blank" rel="noreferrer">
                in AWS's console
              </a>
            </li>
          ))}
        </ul>
      )}
    </Loaded>
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

function Log({ id, every }: { id: string; every: number }) {
  const [word, setWord] = useState("");
  const [grep, setGrep] = useState("");
  const query = { tail: 300, ...(grep ? { grep } : {}) };
  const log = useQuery(`log ${id} ${grep}`, () => data(client.GET("/v1/trials/{trial_id}/logs", { params: { path: { trial_id: id }, query: query } })), every);
  return (
    <Section title="Log" aside={<Source path={`/v1/trials/${id}/logs?tail=300${grep ? `&grep=${encodeURIComponent(grep)}` : ""}`} />}>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setGrep(word);
        }}
      >
        <label>
          lines matching (regular expression) <input type="search" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
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
              , the last {part.lines.length} {grep ? "matching lines" : "lines"}, UTC
            </p>
            <pre class="log" tabIndex={0}>
              {part.lines.map((line) => `${line.at.slice(11, 19)} ${hasHosts(part.lines) ? `${line.host} ` : ""}${line.message}`).join("\n")}
            </pre>
          </>
        )}
      </Loaded>
    </Section>
  );
}

/** Whether lines are of several machines, so that each says of which. */
const hasHosts = (lines: readonly { host: string }[]) => lines.some((line) => line.host !== lines[0]?.host);

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
