/** Whatever describes a training job, pasted: what is wrong with it, what experiment it makes, what that would cost, and what would be sent. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { OFFLINE, Problem, client, data, type Schemas } from "../api/client";
import { changed, isExperiment, read, type Change, type Pasted } from "../document";
import { hours, speed, usd, words } from "../format";
import { go } from "../state";
import { Action } from "../ui/action";
import { ImportPanel, type Answers } from "../ui/import";
import { Figure, Finding, ProblemBox, Section } from "../ui/parts";
import { Table } from "../ui/table";

const WAIT_MS = 500;
/** What is in the playground outlives the page, in this tab. */
const STORE = "playground";

function stored(): { text: string; answers: Answers } {
  try {
    return JSON.parse(sessionStorage.getItem(STORE) ?? "") as { text: string; answers: Answers };
  } catch {
    return { text: "", answers: {} };
  }
}

function store(text: string, answers: Answers): void {
  try {
    sessionStorage.setItem(STORE, JSON.stringify({ text, answers }));
  } catch {
    // A text beyond what a tab may keep is only not kept.
  }
}

/** Opens the playground with a document. */
export function openInPlayground(document: unknown): void {
  store(JSON.stringify(document, null, 2), {});
  go("/playground");
}

type Readable = Exclude<Pasted, { kind: "unreadable" }>;

export function Playground() {
  const [text, setText] = useState(() => stored().text);
  const [answers, setAnswers] = useState(() => stored().answers);
  const [model, setModel] = useState("");
  // What was last read, of which text, and why the newest text cannot be.
  const [shown, setShown] = useState<{ of: string; pasted: Readable }>({ of: "", pasted: { kind: "nothing" } });
  const [unreadable, setUnreadable] = useState("");

  useEffect(() => {
    store(text, answers);
  }, [text, answers]);
  useEffect(() => {
    let isOver = false;
    const timer = setTimeout(() => {
      void read(text).then((pasted) => {
        if (isOver) return;
        setUnreadable(pasted.kind === "unreadable" ? pasted.why : "");
        if (pasted.kind !== "unreadable") setShown({ of: text, pasted });
      });
    }, WAIT_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [text]);

  const { pasted } = shown;
  // What is newer than what is shown is neither replaced nor started.
  const onChange = shown.of === text ? (document: unknown) => setText(JSON.stringify(document, null, 2)) : undefined;
  return (
    <>
      <h1>Playground</h1>
      <div class="columns even">
        <Section title="Paste">
          <p class="fine" id="paste-what">
            An experiment; an estimator's arguments, a CreateTrainingJob body or a described job; a model's <code>config.json</code> or its name; a configuration of DeepSpeed, Axolotl, LLaMA-Factory, TRL or accelerate; a W&B run: JSON or YAML (a fix makes JSON of it, without its comments). The service stores nothing of it; this tab keeps the text until you log out.
          </p>
          <textarea aria-describedby="paste-what" aria-label="document" spellcheck={false} rows={28} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          {unreadable && <p class="stale">{unreadable}</p>}
        </Section>
        <div>
          {pasted.kind === "document" && <Checked document={pasted.value} onChange={onChange} />}
          {pasted.kind === "document" && isExperiment(pasted.value) ? (
            <Planned spec={pasted.value as Schemas["ExperimentSpec"]} isCurrent={onChange !== undefined} />
          ) : (
            <Imported pasted={pasted} model={model} onModel={setModel} answers={answers} onAnswers={setAnswers} onDraft={onChange} />
          )}
        </div>
      </div>
    </>
  );
}

/** Asks the service about a document whenever it is another one; an answer is shown only beside what it is about. */
function useAnswer<D, T>(document: D, ask: (document: D, signal: AbortSignal) => Promise<T>): { got: T | undefined; problem: Problem | undefined; retry: () => void } {
  const [asked, setAsked] = useState(0);
  const [answer, setAnswer] = useState<{ of: D; got?: T; problem?: Problem }>();
  useEffect(() => {
    const abort = new AbortController();
    ask(document, abort.signal).then(
      (got) => setAnswer({ of: document, got }),
      (error: unknown) => {
        if (abort.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(OFFLINE, "Error", String(error), [], undefined, false);
        setAnswer({ of: document, problem });
      },
    );
    return () => abort.abort();
  }, [document, asked]);
  const own = answer?.of === document ? answer : undefined;
  return { got: own?.got, problem: own?.problem, retry: () => setAsked(asked + 1) };
}

/** What the linter says of a document, and what mends it. */
function Checked({ document, onChange }: { document: Record<string, unknown>; onChange: ((document: unknown) => void) | undefined }) {
  const { got: linted, problem, retry } = useAnswer(document, (body, signal) => data(client.POST("/v1/lint", { params: { query: { fix: true } }, body: body as never, signal })));
  const [misfit, setMisfit] = useState("");
  const apply = (patch: readonly Change[]) => {
    const mended = changed(document, patch);
    setMisfit(mended === undefined ? "That fix does not fit the document any more: apply it by hand." : "");
    if (mended !== undefined) onChange?.(mended);
  };
  // Configurations of trainers are read, and not linted.
  if (problem?.status === 400 && !isExperiment(document)) return null;
  if (problem) return <ProblemBox problem={problem} retry={retry} />;
  const findings = linted?.findings ?? [];
  const hasPatch = findings.some((one) => (one.patch?.length ?? 0) > 0);
  return (
    <Section
      title={linted ? `${words(linted.kind)}: ${findings.length === 1 ? "1 finding" : `${findings.length} findings`}` : "Findings"}
      aside={
        linted?.fixed && hasPatch ? (
          <button disabled={!onChange} onClick={() => onChange?.(linted.fixed)}>
            Apply every safe fix
          </button>
        ) : undefined
      }
    >
      {misfit && <p class="stale">{misfit}</p>}
      {findings.length === 0 ? (
        <p>{linted ? "✔ Nothing is wrong with it." : "…"}</p>
      ) : (
        <ul class="findings">
          {findings.map((one) => (
            <Finding of={one}>
              {one.patch && one.patch.length > 0 && (
                <button disabled={!onChange} onClick={() => apply(one.patch ?? [])}>
                  Apply
                </button>
              )}
            </Finding>
          ))}
        </ul>
      )}
    </Section>
  );
}

/** The experiment that is made of what is no experiment yet. */
function Imported({
  pasted,
  model,
  onModel,
  answers,
  onAnswers,
  onDraft,
}: {
  pasted: Readable;
  model: string;
  onModel: (name: string) => void;
  answers: Answers;
  onAnswers: (answers: Answers) => void;
  onDraft: ((spec: unknown) => void) | undefined;
}) {
  const own = pasted.kind === "document" ? [pasted.value] : pasted.kind === "documents" ? pasted.values : pasted.kind === "name" ? [pasted.name] : [];
  if (own.length === 0) return <p class="fine">Paste something to see what is wrong with it, and what it would cost on other machines.</p>;
  const documents = model && pasted.kind !== "name" ? [...own, model] : own;
  return (
    <>
      {pasted.kind !== "name" && (
        <div class="filters">
          <label>
            its model, if it does not say <input placeholder="Qwen/Qwen2.5-7B" defaultValue={model} onChange={(event) => onModel(event.currentTarget.value.trim())} />
          </label>
        </div>
      )}
      <ImportPanel documents={documents} answers={answers} onAnswers={onAnswers} onDraft={onDraft} />
    </>
  );
}

/** A prediction; on spot, only its ends are known. */
function dollars(of: { expected?: number | null; low: number; high: number } | null | undefined): string {
  if (!of) return usd(null);
  return of.expected == null ? `${usd(of.low)} to ${usd(of.high)}` : usd(of.expected);
}

/** Why a candidate does not start, or not yet. */
function whyNot(row: Schemas["CandidatePreview"]): string {
  const refusal = row.findings.find((one) => one.severity === "refused" || one.severity === "error");
  return row.cannot_win ?? row.skipped ?? (row.refused ? refusal?.message : row.held) ?? "";
}

/** What an experiment would do and cost, and its start. */
function Planned({ spec, isCurrent }: { spec: Schemas["ExperimentSpec"]; isCurrent: boolean }) {
  const { got: preview, problem, retry } = useAnswer(spec, (body, signal) => data(client.POST("/v1/plans", { body, signal })));
  // One key for all tries of one document: where an answer is lost, a second click starts nothing more.
  const once = useMemo(() => crypto.randomUUID(), [spec]);
  const start = async () => {
    const made = await data(client.POST("/v1/experiments", { params: { header: { "Idempotency-Key": once } }, body: spec }));
    go(`/experiments/${made.id}`);
  };
  if (problem) return <ProblemBox problem={problem} retry={retry} />;
  if (!preview) return null;
  const starting = preview.candidates.filter((row) => !row.refused && !row.skipped);
  const trials = starting.reduce((sum, row) => sum + row.repeats, 0);
  return (
    <Section title="Before a dollar is spent">
      <Table
        caption="Forecast"
        rows={preview.candidates}
        columns={[
          { head: "candidate", cell: (row) => row.candidate },
          { head: "instance", cell: (row) => `${row.instance_type} ${words(row.purchase_option)}` },
          { head: "tokens/s", numeric: true, cell: (row) => <Figure kind="predicted">{speed(row.forecast?.tokens_per_second.expected)}</Figure> },
          { head: "trial", numeric: true, cell: (row) => <Figure kind="predicted">{dollars(row.forecast?.trial_usd)}</Figure> },
          { head: "full run", numeric: true, cell: (row) => <Figure kind="predicted">{dollars(row.forecast?.full_run_usd)}</Figure> },
          { head: "takes", numeric: true, cell: (row) => hours(row.forecast?.full_run_hours?.expected) },
          { head: "at most", about: "the worst case of the trial", numeric: true, cell: (row) => usd(row.worst_case?.total_usd) },
          { head: "why not", cell: (row) => <span class="why">{whyNot(row)}</span> },
        ]}
      />
      <p>
        Worst case {usd(preview.worst_case_usd)} of a budget of {usd(preview.budget_usd)}; it {preview.would_start ? "would start" : "would not start as it is"}.
      </p>
      <details>
        <summary>the exact requests</summary>
        {preview.candidates.map((row) => (
          <>
            <h3>
              {row.candidate} {words(row.purchase_option)}
            </h3>
            <pre class="raw" tabIndex={0}>
              {JSON.stringify(row.create_training_job, null, 2)}
            </pre>
          </>
        ))}
      </details>
      {preview.would_start && (
        <Action name="Start it" tone="primary" disabled={isCurrent ? undefined : "The document has changed: its new plan comes in a moment."} run={start}>
          <p>
            {trials === 1 ? "1 trial" : `${trials} trials`} of {preview.name} in {preview.region}: {usd(preview.worst_case_usd)} at most for one attempt of each, and never more than {usd(preview.budget_usd)}.
          </p>
        </Action>
      )}
    </Section>
  );
}
