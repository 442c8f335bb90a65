/** Trials and runs of any experiments side by side: what differs between them is marked. */

import type { ComponentChildren } from "preact";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Curves } from "../charts/charts";
import { CurvePicker, chosenCurve } from "../charts/picker";
import { count, rate, seconds, speed, usd, words } from "../format";
import { namesOf } from "../shape";
import { address } from "../state";
import { Empty, Figure, Link, Loaded, Section, Source, State } from "../ui/parts";

type Row = Schemas["ComparisonRow"];

/** What is read down a column: a heading, the figure, and whether a difference in it makes figures incomparable. */
const LINES: readonly { head: string; of: (row: Row) => ComponentChildren; text: (row: Row) => string; isSetting?: boolean }[] = [
  { head: "state", of: (row) => <State of={row.state} />, text: (row) => row.state },
  { head: "instance", isSetting: true, of: (row) => `${row.instance_count} × ${row.instance_type}`, text: (row) => `${row.instance_count} ${row.instance_type}` },
  { head: "purchase", isSetting: true, of: (row) => words(row.purchase_option), text: (row) => String(row.purchase_option) },
  { head: "global batch", isSetting: true, of: (row) => count(row.global_batch), text: (row) => String(row.global_batch) },
  { head: "steps", isSetting: true, of: (row) => count(row.planned_steps), text: (row) => String(row.planned_steps) },
  { head: "tokens/s", of: (row) => <Figure kind="measured">{speed(row.tokens_per_second, row.tokens_per_second_half_width)}</Figure>, text: () => "" },
  { head: "$/M tokens", of: (row) => rate(row.usd_per_million_tokens), text: () => "" },
  { head: "train loss", of: (row) => row.train_loss?.toPrecision(4) ?? "–", text: () => "" },
  { head: "validation loss", of: (row) => row.validation_loss?.toPrecision(4) ?? "–", text: () => "" },
  { head: "GPU", of: (row) => (row.gpu_utilization_percent == null ? "–" : `${Math.round(row.gpu_utilization_percent)} %`), text: () => "" },
  { head: "trained", of: (row) => seconds(row.training_seconds || null), text: () => "" },
  { head: "cost", of: (row) => <Figure kind={row.cost_estimated ? "estimated" : "measured"}>{usd(row.total_usd)}</Figure>, text: () => "" },
  { head: "price", isSetting: true, of: (row) => `${rate(row.usd_per_hour)} an hour`, text: (row) => String(row.usd_per_hour) },
];

export function Compare() {
  const parameters = address.value.searchParams;
  const asked = { experiment_id: parameters.getAll("experiment"), trial_id: parameters.getAll("trial"), run_id: parameters.getAll("run") };
  const isEmpty = asked.experiment_id.length + asked.trial_id.length + asked.run_id.length === 0;
  return (
    <>
      <h1>Compare</h1>
      {isEmpty ? <Empty what="Choose experiments in their list, or name trials and runs in this page's address: ?trial=trl_…&run=run_…" /> : <Chosen asked={asked} />}
    </>
  );
}

function Chosen({ asked }: { asked: { experiment_id: string[]; trial_id: string[]; run_id: string[] } }) {
  const { metric, by } = chosenCurve("hours");
  const query = new URLSearchParams(Object.entries(asked).flatMap(([name, ids]) => ids.map((id) => [name, id])));
  const table = useQuery(`comparison ${query}`, () => data(client.GET("/v1/comparison", { params: { query: asked } })), 15);
  const names = namesOf(table.data?.rows ?? []);
  const curves = useQuery(`curves ${query} ${metric}`, () => data(client.GET("/v1/convergence", { params: { query: { ...asked, metric } } })), 30);
  return (
    <>
      <Section title="Side by side" aside={<Source path={`/v1/comparison?${query}`} csv />}>
        <Loaded query={table} lines={12}>
          {(got) => <Matrix rows={got.rows} names={names} />}
        </Loaded>
      </Section>
      <Section title={words(metric)} aside={<Source path={`/v1/convergence?${query}&metric=${metric}`} csv />}>
        <CurvePicker metric={metric} by={by} />
        <Loaded query={curves}>
          {(got) => (got.rows.length > 0 ? <Curves rows={got.rows} candidates={[]} metric={metric} by={by} labels={names} /> : <Empty what={`None of them has reported ${words(metric)}.`} />)}
        </Loaded>
      </Section>
    </>
  );
}

function Matrix({ rows, names }: { rows: readonly Row[]; names: ReadonlyMap<string, string> }) {
  const differs = (line: (typeof LINES)[number]) => line.isSetting && new Set(rows.map(line.text)).size > 1;
  const different = LINES.filter(differs).map((line) => line.head);
  return (
    <>
      <p class="fine">{different.length === 0 ? "They differ in no setting." : `They differ in: ${different.join(", ")}.`}</p>
      <div class="scroll" role="region" aria-label="Side by side" tabIndex={0}>
        <table>
          <caption class="hidden">Side by side</caption>
          <thead>
            <tr>
              <td />
              {rows.map((row) => (
                <th scope="col">
                  <Link to={row.trial_id ? `/trials/${row.trial_id}` : `/runs/${row.run_id}`}>{names.get(row.trial_id ?? row.run_id ?? "") ?? row.candidate}</Link>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {LINES.map((line) => (
              <tr class={differs(line) ? "differs" : undefined}>
                <th scope="row">{line.head}</th>
                {rows.map((row) => (
                  <td>{line.of(row)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
