/** A job or an experiment pasted: what is wrong with it, what it would cost, and what would be sent. */

import { useEffect, useState } from "preact/hooks";
import { Problem, client, data, type Schemas } from "../api/client";
import { hours, speed, usd, words } from "../format";
import { isExperiment, parse } from "../shape";
import { go } from "../state";
import { Action } from "../ui/action";
import { Figure, Finding, ProblemBox, Section } from "../ui/parts";
import { Table } from "../ui/table";

const WAIT_MS = 500;

export function Playground() {
  const [text, setText] = useState(() => sessionStorage.getItem("playground") ?? "");
  const [linted, setLinted] = useState<Schemas["LintView"]>();
  const [preview, setPreview] = useState<Schemas["Preview"]>();
  const [problem, setProblem] = useState<Problem>();
  const parsed = parse(text);

  useEffect(() => {
    sessionStorage.setItem("playground", text);
    setProblem(undefined);
    if (parsed.value === undefined) {
      setLinted(undefined);
      setPreview(undefined);
      return;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => {
      const body = parsed.value as never;
      const failed = (error: unknown) => {
        if (!abort.signal.aborted) setProblem(error instanceof Problem ? error : undefined);
      };
      data(client.POST("/v1/lint", { params: { query: { fix: true } }, body, signal: abort.signal } as never)).then((got) => setLinted(got as Schemas["LintView"]), failed);
      if (isExperiment(parsed.value)) {
        data(client.POST("/v1/plans", { body, signal: abort.signal } as never)).then((got) => setPreview(got as Schemas["Preview"]), failed);
      } else setPreview(undefined);
    }, WAIT_MS);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [text]);

  const start = async () => {
    const made = (await data(client.POST("/v1/experiments", { body: parsed.value } as never))) as { id: string };
    go(`/experiments/${made.id}`);
  };
  const findings = linted?.findings ?? [];
  return (
    <>
      <h1>Playground</h1>
      <div class="columns even">
        <Section title="Paste">
          <p class="fine" id="paste-what">
            An experiment, a CreateTrainingJob body, an estimator's arguments, a Hugging Face <code>config.json</code>, a DeepSpeed configuration: JSON. Nothing of it is stored.
          </p>
          <textarea aria-describedby="paste-what" aria-label="document" spellcheck={false} rows={28} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          {parsed.error && <p class="stale">{parsed.error}</p>}
        </Section>
        <div>
          {problem && <ProblemBox problem={problem} />}
          <Section title={linted ? `${words(String(linted.kind))}: ${findings.length} findings` : "Findings"} aside={linted?.fixed && findings.some((one) => (one.patch?.length ?? 0) > 0) ? <button onClick={() => setText(JSON.stringify(linted.fixed, null, 2))}>Apply every safe fix</button> : undefined}>
            {!linted ? (
              <p class="fine">Paste a document to see what is wrong with it.</p>
            ) : findings.length === 0 ? (
              <p>✔ Nothing is wrong with it.</p>
            ) : (
              <ul class="findings">
                {findings.map((one) => (
                  <Finding of={one} />
                ))}
              </ul>
            )}
          </Section>
          {preview && (
            <Section title="Before a dollar is spent">
              <Table
                caption="Forecast"
                rows={preview.candidates}
                columns={[
                  { head: "candidate", cell: (row) => row.candidate },
                  { head: "instance", cell: (row) => `${row.instance_type} ${words(row.purchase_option)}` },
                  { head: "tokens/s", numeric: true, cell: (row) => <Figure kind="predicted">{speed(row.forecast?.tokens_per_second.expected)}</Figure> },
                  { head: "trial", numeric: true, cell: (row) => <Figure kind="predicted">{usd(row.forecast?.trial_usd?.expected)}</Figure> },
                  { head: "full run", numeric: true, cell: (row) => <Figure kind="predicted">{usd(row.forecast?.full_run_usd?.expected)}</Figure> },
                  { head: "takes", numeric: true, cell: (row) => hours(row.forecast?.full_run_hours?.expected) },
                  { head: "at most", about: "the worst case of the trial", numeric: true, cell: (row) => usd(row.worst_case?.total_usd) },
                  { head: "why not", cell: (row) => <span class="why">{row.cannot_win ?? row.skipped ?? ""}</span> },
                ]}
              />
              <p>
                Worst case {usd(preview.worst_case_usd)} of a budget of {usd(preview.budget_usd)}; it {preview.would_start ? "would start" : "would not start as it is"}.
              </p>
              <Action name="Start it" tone="primary" run={start}>
                <p>
                  {preview.candidates.length} candidates of {preview.name} run in {preview.region}: {usd(preview.worst_case_usd)} at most for one attempt of each, and never more than {usd(preview.budget_usd)}.
                </p>
              </Action>
            </Section>
          )}
        </div>
      </div>
    </>
  );
}
