/** Pipelines: how far each step is, what it cost, and what waits for a person's decision. */

import { useState } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { StepGraph } from "../charts/graph";
import { hours, odds, usd, words } from "../format";
import { Action, amount } from "../ui/action";
import { Ledger } from "../ui/ledger";
import { Listed } from "../ui/listed";
import { Bar, Figure, Link, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";

type Step = Schemas["PipelineStep"];

export function Pipelines() {
  return (
    <Listed<Schemas["Pipeline"]>
      title="Pipelines"
      path="/v1/pipelines"
      load={(query) => data(client.GET("/v1/pipelines", { params: { query } }))}
      empty="No pipeline has been started."
      command="bakeoff run examples/pipelines/legal-g5.json --watch"
      link={(row) => `/pipelines/${row.id}`}
      columns={() => [
        { head: "pipeline", cell: (row) => <Link to={`/pipelines/${row.id}`}>{row.name}</Link> },
        { head: "state", cell: (row) => <State of={row.steps.some((step) => step.question) ? "asked" : row.state} /> },
        { head: "steps", cell: (row) => <Dots of={row.steps} /> },
        { head: "settled", numeric: true, cell: (row) => usd(row.settled_usd) },
        { head: "held", numeric: true, wide: true, cell: (row) => usd(row.reserved_usd) },
        { head: "budget", numeric: true, cell: (row) => usd(row.budget_usd) },
        { head: "started", wide: true, cell: (row) => <Time at={row.created_at} /> },
      ]}
    />
  );
}

/** A dot for each step; in words for those who do not see it. */
function Dots({ of }: { of: readonly Step[] }) {
  return (
    <>
      {of.map((step) => (
        <span class={`dot ${step.state}`} title={`${step.name}: ${words(step.state)}`} />
      ))}
      <span class="hidden">
        {of.filter((step) => step.state === "completed").length} of {of.length} steps completed
      </span>
    </>
  );
}

export function Pipeline({ id }: { id: string }) {
  const path = { params: { path: { pipeline_id: id } } };
  const query = useQuery(`pipeline ${id}`, () => data(client.GET("/v1/pipelines/{pipeline_id}", path)), 10, "any");
  return (
    <Loaded query={query} lines={8}>
      {(is) => (
        <>
          <Head of={is} reload={query.reload} />
          {is.steps.map((step) => step.question && <Question pipeline={id} step={step} experiment={step.question.experiment_id} reload={query.reload} />)}
          <Section title="Steps" aside={<Source path={`/v1/pipelines/${id}`} />}>
            <StepGraph steps={is.steps} />
            <Steps of={is.steps} />
          </Section>
          <Ledger of={{ pipeline: id }} every={is.ended_at ? 0 : 15} budget={is.budget_usd} />
        </>
      )}
    </Loaded>
  );
}

function Head({ of, reload }: { of: Schemas["Pipeline"]; reload: () => void }) {
  const path = { params: { path: { pipeline_id: of.id } } };
  const isOver = of.state === "failed" || of.state === "cancelled";
  // Jobs that wait for a person, such as for a quota, are queued again.
  const isParked = of.state === "running" && of.steps.some((step) => step.jobs.some((job) => job.state === "parked"));
  const resume = (form: FormData) => {
    const budget = amount(form, "budget_usd") ?? of.budget_usd;
    return data(client.POST("/v1/pipelines/{pipeline_id}/resume", { ...path, ...(budget > of.budget_usd ? { body: { budget_usd: budget } } : {}) })).then(reload);
  };
  return (
    <header class="head">
      <div>
        <p class="crumbs">
          <Link to="/pipelines">Pipelines</Link> ›
        </p>
        <h1>
          {of.name} <State of={of.state} />
        </h1>
        <p class="fine">
          {usd(of.settled_usd)} settled and {usd(of.reserved_usd)} held of {usd(of.budget_usd)} <Bar share={(of.settled_usd + of.reserved_usd) / of.budget_usd} label="of the budget" /> in {of.region}, started <Time at={of.created_at} />
        </p>
      </div>
      <div class="buttons">
        {(isOver || isParked) && (
          <Action name="Resume" run={resume}>
            <Resumption of={of} isOver={isOver} />
          </Action>
        )}
        {of.state === "running" && (
          <Action name="Cancel" tone="danger" run={() => data(client.POST("/v1/pipelines/{pipeline_id}/cancel", path)).then(reload)}>
            <p>Running steps are stopped, and may cost up to the {usd(of.reserved_usd)} held for them. Waiting steps do not start.</p>
          </Action>
        )}
      </div>
    </header>
  );
}

/** What is left for the steps: what it begins with stands still while the pipeline is read again. */
function Resumption({ of, isOver }: { of: Schemas["Pipeline"]; isOver: boolean }) {
  const [budget, setBudget] = useState(of.budget_usd);
  return (
    <>
      <p>
        {isOver ? "The steps that have not completed start again" : "Jobs that wait for a person are queued again"}; {usd(budget - of.settled_usd - of.reserved_usd)} of the budget are left for them.
      </p>
      <label>
        budget of all steps, dollars <input name="budget_usd" type="number" min={of.budget_usd} step="any" required defaultValue={String(budget)} onInput={(event) => setBudget(Number(event.currentTarget.value))} />
      </label>
    </>
  );
}

/** What a step would buy, with the answer that it acts on: a person approves one row of it, or none. */
function Question({ pipeline, step, experiment, reload }: { pipeline: string; step: Step; experiment: string; reload: () => void }) {
  const answer = useQuery(`answer ${experiment}`, () => data(client.GET("/v1/experiments/{experiment_id}/recommendation", { params: { path: { experiment_id: experiment } } })), 15);
  const path = { params: { path: { pipeline_id: pipeline, step: step.name } } };
  const approve = (row: Schemas["Ranked"]) =>
    data(client.POST("/v1/pipelines/{pipeline_id}/steps/{step}/approve", { ...path, body: { candidate: row.candidate, purchase_option: row.purchase_option } })).then(reload);
  return (
    <Section title={`Needs your decision: what ${step.name} buys`} aside={<Link to={`/experiments/${experiment}`}>the answer</Link>}>
      {step.reason && <p>{step.reason}</p>}
      <Loaded query={answer}>
        {(got) => (
          <>
            <p class="headline">{got.headline}</p>
            <Table
              caption="What can be bought"
              rows={got.ranked}
              columns={[
                { head: "candidate", cell: (row) => `${row.candidate}${row.purchase_option === "spot" ? " spot" : ""}` },
                { head: "full run", numeric: true, cell: (row) => <Figure kind="projected">{usd(row.projected_cost_usd)}</Figure> },
                { head: "takes", numeric: true, cell: (row) => hours(row.projected_hours) },
                { head: "best with", numeric: true, cell: (row) => odds(row.odds?.p_best) },
                {
                  head: "action",
                  cell: (row) => (
                    <Action name={`Approve ${row.candidate}`} tone="primary" run={() => approve(row)}>
                      <p>
                        {step.name} goes on with {row.instance_type} {words(row.purchase_option)}: {usd(row.projected_cost_usd)} projected. Every step that acts on this answer uses the same choice, within the pipeline's budget.
                      </p>
                    </Action>
                  ),
                },
              ]}
            />
          </>
        )}
      </Loaded>
      <div class="buttons">
        <Action name="Refuse" about={step.name} tone="danger" run={() => data(client.POST("/v1/pipelines/{pipeline_id}/steps/{step}/refuse", path)).then(reload)}>
          <p>{step.name} fails, the steps that need it are skipped, and nothing is bought. A resumed pipeline asks again.</p>
        </Action>
      </div>
    </Section>
  );
}

function Steps({ of }: { of: readonly Step[] }) {
  return (
    <Table
      caption="Steps"
      rows={of}
      columns={[
        { head: "step", cell: (step) => <b>{step.name}</b> },
        { head: "kind", cell: (step) => words(step.kind) },
        { head: "state", cell: (step) => <State of={step.question ? "asked" : step.state} /> },
        { head: "after", wide: true, cell: (step) => step.needs.join(", ") || "–" },
        { head: "settled", numeric: true, cell: (step) => usd(step.settled_usd) },
        { head: "held", numeric: true, wide: true, cell: (step) => usd(step.reserved_usd) },
        { head: "budget", numeric: true, wide: true, cell: (step) => usd(step.budget_usd) },
        {
          head: "opens",
          cell: (step) => (
            <>
              {step.experiment_id && (step.kind === "experiment" || step.kind === "full_run") && <Link to={`/experiments/${step.experiment_id}`}>experiment</Link>}{" "}
              {step.jobs.map((job) => (
                <>
                  <Link to={`/trials/${job.trial_id}`}>{job.instance_type.replace(/^ml\./, "")}</Link>{" "}
                </>
              ))}
              {step.endpoint_id && <Link to={`/endpoints/${step.endpoint_id}`}>endpoint</Link>} {step.reused_from && <Link to={`/pipelines/${step.reused_from}`}>reused</Link>}
            </>
          ),
        },
        { head: "why", wide: true, cell: (step) => <span class="why">{step.reason ?? ""}</span> },
      ]}
    />
  );
}
