/** The charts of experiments and trials. */

import { useMemo } from "preact/hooks";
import type { Schemas } from "../api/client";
import { hours, odds, rate, speed, time, usd, words } from "../format";
import { colours } from "../palette";
import { heldOver, phasesOf, pointsOf, spread, standingsOf, type Attempted, type Held, type Phase, type Standing } from "../shape";
import { dark } from "../state";
import { Table } from "../ui/table";
import { Chart } from "./plot";

type Ranked = Schemas["Ranked"];

/** 24 hours; midnight as its day. */
const UTC = {
  type: "utc",
  tickFormat: (at: Date) => (at.getUTCHours() + at.getUTCMinutes() + at.getUTCSeconds() === 0 ? at.toISOString().slice(5, 10) : at.toISOString().slice(11, at.getUTCSeconds() ? 19 : 16)),
} as const;

const name = (row: { candidate: string; purchase_option?: string | null }) =>
  row.purchase_option === "spot" ? `${row.candidate} spot` : row.candidate;

/** Cost against hours of the full run, with what 90 % of runs would take; the front is what nothing beats in both. */
export function Pareto({ ranked, names, budget, deadline }: { ranked: readonly Ranked[]; names: readonly string[]; budget?: number | undefined; deadline?: number | undefined }) {
  const all = colours([...names, ...ranked.map((row) => row.candidate)], dark.value);
  const first = ranked[0];
  const label = first
    ? `Projected cost and hours of the full run for ${ranked.length} candidates; first ${name(first)}: ${usd(first.projected_cost_usd)} in ${hours(first.projected_hours)}.`
    : "No candidate is ranked yet.";
  return (
    <Chart
      label={label}
      depends={[ranked, budget, deadline, names.join()]}
      draw={(Plot, size) => {
        const colour = (row: Ranked) => all.get(row.candidate) as string;
        const about = (row: Ranked) =>
          `${name(row)}: ${usd(row.projected_cost_usd)} (${usd(row.odds?.cost_usd_low)} to ${usd(row.odds?.cost_usd_high)}) in ${hours(row.projected_hours)}, best with ${odds(row.odds?.p_best)}`;
        const front = ranked.filter((row) => row.pareto).sort((a, b) => a.projected_hours - b.projected_hours);
        return Plot.plot({
          ...size,
          marginLeft: 64,
          marginTop: 24,
          x: { label: "hours of the full run →", zero: true, nice: true, grid: true },
          y: { label: "↑ dollars", zero: true, nice: true, grid: true, tickFormat: (value: number) => `$${value.toLocaleString("en-US")}` },
          marks: [
            budget ? Plot.ruleY([budget], { stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.5 }) : null,
            deadline ? Plot.ruleX([deadline], { stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.5 }) : null,
            Plot.line(front, { x: "projected_hours", y: "projected_cost_usd", curve: "step-after", stroke: "currentColor", strokeOpacity: 0.35 }),
            Plot.ruleX(ranked, { x: "projected_hours", y1: (row: Ranked) => row.odds?.cost_usd_low ?? row.projected_cost_usd, y2: (row: Ranked) => row.odds?.cost_usd_high ?? row.projected_cost_usd, stroke: colour, strokeWidth: 2 }),
            Plot.ruleY(ranked, { y: "projected_cost_usd", x1: (row: Ranked) => row.odds?.hours_low ?? row.projected_hours, x2: (row: Ranked) => row.odds?.hours_high ?? row.projected_hours, stroke: colour, strokeWidth: 2 }),
            Plot.dot(ranked, { x: "projected_hours", y: "projected_cost_usd", r: 6, symbol: (row: Ranked) => (row.purchase_option === "spot" ? "diamond" : "circle"), stroke: colour, strokeWidth: 2, fill: (row: Ranked) => (row.pareto ? colour(row) : size.dark ? "#15191c" : "#ffffff"), ariaLabel: about }),
            ...[-12, 16].map((dy, side) => Plot.text(ranked.filter((_, index) => index % 2 === side), { x: "projected_hours", y: "projected_cost_usd", text: name, dx: 8, dy, textAnchor: "start", fill: colour, fontWeight: 600 })),
          ],
          symbol: { type: "identity" },
          color: { type: "identity" },
        });
      }}
    >
      <Table
        caption="Projected cost and hours"
        rows={ranked}
        columns={[
          { head: "candidate", cell: name },
          { head: "cost", numeric: true, cell: (row) => usd(row.projected_cost_usd) },
          { head: "90 %", numeric: true, cell: (row) => `${usd(row.odds?.cost_usd_low)} to ${usd(row.odds?.cost_usd_high)}` },
          { head: "hours", numeric: true, cell: (row) => hours(row.projected_hours) },
        ]}
      />
    </Chart>
  );
}

/** Dollars per million tokens of each candidate with its interval: who is out, and by how much. */
export function Forest({ ranked, names }: { ranked: readonly Ranked[]; names: readonly string[] }) {
  const all = colours([...names, ...ranked.map((row) => row.candidate)], dark.value);
  const per = (row: Ranked, usdOfRun: number | null | undefined) => (usdOfRun == null ? row.usd_per_million_tokens : (row.usd_per_million_tokens * usdOfRun) / row.projected_cost_usd);
  const rows = ranked.map((row) => ({ ...row, label: name(row), low: per(row, row.odds?.cost_usd_low), high: per(row, row.odds?.cost_usd_high) }));
  const leader = rows[0];
  return (
    <Chart
      label={leader ? `Dollars per million tokens with 90 % intervals, cheapest first: ${leader.label} at ${rate(leader.usd_per_million_tokens)}.` : "Nothing is measured yet."}
      depends={[ranked, names.join()]}
      height={Math.max(90, 44 + rows.length * 34)}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 130,
          x: { label: "dollars per million tokens →", zero: true, grid: true, tickFormat: (value: number) => `$${value}` },
          y: { label: null, domain: rows.map((row) => row.label) },
          color: { type: "identity" },
          marks: [
            leader ? Plot.ruleX([leader.high], { stroke: "currentColor", strokeDasharray: "3 3", strokeOpacity: 0.6 }) : null,
            Plot.ruleY(rows, { y: "label", x1: "low", x2: "high", stroke: (row) => all.get(row.candidate) as string, strokeWidth: 3 }),
            Plot.dot(rows, { x: "usd_per_million_tokens", y: "label", r: 5, fill: (row) => all.get(row.candidate) as string, ariaLabel: (row) => `${row.label}: ${rate(row.usd_per_million_tokens)} per million tokens (${rate(row.low)} to ${rate(row.high)})` }),
          ],
        })
      }
    >
      <Table
        caption="Dollars per million tokens"
        rows={rows}
        columns={[
          { head: "candidate", cell: (row) => row.label },
          { head: "$/M tokens", numeric: true, cell: (row) => rate(row.usd_per_million_tokens) },
          { head: "90 %", numeric: true, cell: (row) => `${rate(row.low)} to ${rate(row.high)}` },
          { head: "tokens/s", numeric: true, cell: (row) => speed(row.tokens_per_second, row.tokens_per_second_half_width) },
        ]}
      />
    </Chart>
  );
}

/** How the race narrowed: each choice's projected cost as a multiple of the leader's, against what had been spent. */
export function Funnel({ looks, names }: { looks: readonly Schemas["Look"][]; names: readonly string[] }) {
  const standings = useMemo(() => standingsOf(looks), [looks]);
  const choices = [...new Set(standings.map((one) => one.name))];
  const all = colours([...names, ...standings.map((one) => one.candidate)], dark.value);
  const colour = (one: Standing) => all.get(one.candidate) as string;
  const ends = choices.map((name) => standings.filter((one) => one.name === name).at(-1)).filter((one) => one !== undefined);
  const height = Math.max(...standings.map((one) => one.high)) - Math.min(...standings.map((one) => one.low));
  const places = spread(ends.map((one) => one.ratio), height / 18);
  const labels = ends.map((one, index) => ({ ...one, at: places[index] as number }));
  const about = (one: Standing) => `${one.name}: ${one.ratio.toFixed(2)} times the leader (${one.low.toFixed(2)} to ${one.high.toFixed(2)}) after ${usd(one.spent)}`;
  const dollars = standings.map((one) => one.spent);
  const isWide = Math.max(...dollars) > 10 * Math.min(...dollars);
  return (
    <Chart
      label={`Projected cost of ${choices.length} choices as a multiple of the leader's, against dollars spent on trials: ${ends.map((one) => `${one.name} ${one.ratio.toFixed(2)}`).join(", ")}.`}
      depends={[standings, names.join()]}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 52,
          marginRight: 96,
          x: { label: "dollars spent on trials →", type: isWide ? "log" : "linear", grid: true, tickFormat: (value: number) => `$${value.toLocaleString("en-US")}` },
          y: { label: "↑ times the leader's cost", grid: true, nice: true },
          color: { type: "identity" },
          marks: [
            Plot.areaY(standings, { x: "spent", y1: "low", y2: "high", z: "name", fill: colour, fillOpacity: 0.12 }),
            Plot.ruleY([1], { strokeOpacity: 0.4 }),
            Plot.line(standings, { x: "spent", y: "ratio", z: "name", stroke: colour, strokeWidth: 2 }),
            Plot.dot(ends, { x: "spent", y: "ratio", r: 4, fill: colour, ariaLabel: about }),
            Plot.text(labels, { x: "spent", y: "at", text: "name", dx: 8, textAnchor: "start", fill: colour, fontWeight: 600 }),
          ],
        })
      }
    >
      <Table
        caption="How each choice stood at its last look"
        rows={ends}
        columns={[
          { head: "choice", cell: (row) => row.name },
          { head: "times the leader", numeric: true, cell: (row) => row.ratio.toFixed(2) },
          { head: "90 %", numeric: true, cell: (row) => `${row.low.toFixed(2)} to ${row.high.toFixed(2)}` },
          { head: "after", numeric: true, cell: (row) => usd(row.spent) },
        ]}
      />
    </Chart>
  );
}

type Point = Schemas["CurvePoint"];
export type LossBy = "usd" | "hours" | "step" | "tokens";

/** A metric of every trial against what it cost, took or saw. */
export function Curves({ rows, candidates, metric, by, labels }: { rows: readonly Point[]; candidates: readonly string[]; metric: string; by: LossBy; labels: ReadonlyMap<string, string> }) {
  const curve = (row: Point) => row.trial_id ?? row.run_id ?? row.candidate;
  const label = (row: Point) => labels.get(curve(row)) ?? row.candidate;
  const names = [...new Set(rows.map(label))];
  // A candidate keeps the colour that it has in the other charts; where its trials are told apart, so are their colours.
  const colouredBy = candidates.length > 0 ? (row: Point) => row.candidate : label;
  const all = colours([...candidates, ...rows.map(colouredBy)], dark.value);
  const colour = (row: Point) => all.get(colouredBy(row)) as string;
  const ends = [...new Map(rows.map((row) => [curve(row), row])).values()];
  const axis = { usd: "dollars", hours: "hours of training", step: "steps", tokens: "tokens" }[by];
  return (
    <Chart
      label={`${words(metric)} of ${names.length} trials against ${axis}: ${ends.map((row) => `${label(row)} ${row.value.toPrecision(4)}`).join(", ")}.`}
      depends={[rows, metric, by, candidates.join(), names.join()]}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 52,
          marginRight: 90,
          x: { label: `${axis} →`, grid: true, nice: true },
          y: { label: `↑ ${words(metric)}`, grid: true, nice: true },
          color: { type: "identity" },
          marks: [
            Plot.line(rows, { x: by, y: "value", z: curve, stroke: colour, strokeWidth: 2 }),
            Plot.dot(ends, { x: by, y: "value", r: 4, fill: colour, ariaLabel: (row: Point) => `${label(row)}: ${row.value.toPrecision(4)} after ${usd(row.usd)} and ${hours(row.hours)}` }),
            Plot.text(ends, { x: by, y: "value", text: label, dx: 8, textAnchor: "start", fill: colour, fontWeight: 600 }),
          ],
        })
      }
    >
      <Table
        caption={`Last ${words(metric)}`}
        rows={ends}
        columns={[
          { head: "trial", cell: label },
          { head: words(metric), numeric: true, cell: (row) => row.value.toPrecision(4) },
          { head: "dollars", numeric: true, cell: (row) => usd(row.usd) },
          { head: "hours", numeric: true, cell: (row) => hours(row.hours) },
        ]}
      />
    </Chart>
  );
}

const PHASES: Record<string, { light: string; dark: string }> = {
  Starting: { light: "#b5b5b5", dark: "#6b7378" },
  Downloading: { light: "#56b4e9", dark: "#3a86b4" },
  Training: { light: "#00735a", dark: "#3fc8a0" },
  Stopping: { light: "#b25a00", dark: "#f0a860" },
  Uploading: { light: "#a8447f", dark: "#e39bc4" },
  Interrupted: { light: "#c0392b", dark: "#ff7a66" },
};

/** Where the hours went: one row per attempt, one bar per phase. */
export function Gantt({ attempts, now }: { attempts: readonly Attempted[]; now: string | undefined }) {
  const phases = useMemo(() => phasesOf(attempts, now), [attempts, now]);
  const trials = [...new Set(phases.map((phase) => phase.trial))];
  const known = Object.keys(PHASES);
  const colour = (status: string, isDark: boolean) => (PHASES[status] ?? { light: "#777777", dark: "#999999" })[isDark ? "dark" : "light"];
  const length = (phase: Phase) => hours((Date.parse(phase.until) - Date.parse(phase.from)) / 3.6e6);
  return (
    <Chart
      label={`Phases of ${trials.length} attempts over time.`}
      depends={[phases]}
      height={Math.max(100, 64 + trials.length * 26)}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 150,
          x: { ...UTC, label: "UTC →", grid: true },
          y: { label: null, domain: trials },
          color: { domain: known, range: known.map((status) => colour(status, size.dark)), legend: true },
          marks: [
            Plot.barX(phases, {
              x1: (phase: Phase) => new Date(phase.from),
              x2: (phase: Phase) => new Date(phase.until),
              y: "trial",
              fill: "status",
              insetTop: 3,
              insetBottom: 3,
              ariaLabel: (phase: Phase) => `${phase.trial}: ${phase.status}, ${length(phase)} from ${time(phase.from)}`,
            }),
          ],
        })
      }
    >
      <Table
        caption="Phases"
        rows={phases}
        columns={[
          { head: "attempt", cell: (phase) => phase.trial },
          { head: "phase", cell: (phase) => phase.status },
          { head: "from", cell: (phase) => time(phase.from) },
          { head: "for", numeric: true, cell: length },
        ]}
      />
    </Chart>
  );
}

/** Dollars over time: settled, held on top of it, and the budget above both. */
export function Burn({ rows, budget }: { rows: readonly Schemas["LedgerEntryView"][]; budget: number }) {
  const held = useMemo(() => heldOver(rows), [rows]);
  const last = held.at(-1);
  return (
    <Chart
      label={last ? `Settled ${usd(last.settled)} and held ${usd(last.reserved)} of the budget of ${usd(budget)}.` : "Nothing has been spent."}
      depends={[held, budget]}
      height={240}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 64,
          x: { ...UTC, label: "UTC →" },
          y: { label: "↑ dollars", grid: true, zero: true, nice: true, tickFormat: (value: number) => `$${value.toLocaleString("en-US")}` },
          marks: [
            Plot.areaY(held, { x: (one: Held) => new Date(one.at), y1: "settled", y2: (one: Held) => one.settled + one.reserved, curve: "step-after", fill: size.dark ? "#8ecae6" : "#2a6f97", fillOpacity: 0.25 }),
            Plot.areaY(held, { x: (one: Held) => new Date(one.at), y1: 0, y2: "settled", curve: "step-after", fill: size.dark ? "#3fc8a0" : "#00735a", fillOpacity: 0.85 }),
            Plot.ruleY([budget], { stroke: size.dark ? "#ff7a66" : "#c0392b", strokeDasharray: "5 3" }),
            Plot.ruleY([0]),
          ],
        })
      }
    />
  );
}

/** Dollars a day by what they were spent on. */
export function Days({ rows }: { rows: readonly Schemas["SpendingRow"][] }) {
  const parts = ["training", "processing", "tuning", "transform", "hosting", "warm_pool", "storage", "orphaned_jobs", "cloudwatch"] as const;
  const long = rows.flatMap((row) => parts.map((part) => ({ day: row.day ?? "", part: words(part), usd: Number(row[`${part}_usd`] ?? 0) }))).filter((one) => one.usd > 0);
  const total = rows.reduce((sum, row) => sum + row.total_usd, 0);
  return (
    <Chart
      label={`Dollars by day and by what they were spent on; ${usd(total)} in all.`}
      depends={[rows]}
      height={260}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 64,
          width: Math.min(size.width, 150 + 90 * new Set(long.map((one) => one.day)).size),
          x: { type: "band", label: null },
          y: { label: "↑ dollars", grid: true, tickFormat: (value: number) => `$${value.toLocaleString("en-US")}` },
          color: { legend: true, range: size.dark ? ["#3fc8a0", "#56b4e9", "#f0a860", "#e39bc4", "#e6d35a", "#b79ce0", "#8ecae6", "#ff7a66", "#b5b5b5"] : ["#00735a", "#0072b2", "#b25a00", "#a8447f", "#8a6d00", "#6b4c9a", "#2a6f97", "#c0392b", "#555555"] },
          marks: [Plot.barY(long, { x: "day", y: "usd", fill: "part", ariaLabel: (one: (typeof long)[number]) => `${one.day}, ${one.part}: ${usd(one.usd)}` }), Plot.ruleY([0])],
        })
      }
    />
  );
}

/** One series over time. */
export function Series({ title, unit, columns, mark }: { title: string; unit: string; columns: Schemas["PointColumns"]; mark?: { value: number; label: string } | undefined }) {
  const points = useMemo(() => pointsOf(columns), [columns]);
  const values = points.map((point) => point.value).sort((a, b) => a - b);
  const middle = values[Math.floor(values.length / 2)];
  return (
    <Chart
      label={`${title}: ${points.length} points, median ${middle?.toPrecision(4) ?? "unknown"} ${unit}.`}
      depends={[points]}
      height={190}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 56,
          x: { ...UTC, label: null },
          y: { label: `↑ ${unit}`, grid: true, nice: true },
          marks: [
            mark ? Plot.ruleY([mark.value], { stroke: size.dark ? "#f0a860" : "#b25a00", strokeDasharray: "4 3" }) : null,
            Plot.line(points, { x: "at", y: "value", stroke: size.dark ? "#56b4e9" : "#0072b2", strokeWidth: 1.75 }),
          ],
        })
      }
    >
      <Table
        caption={title}
        rows={points}
        columns={[
          { head: "UTC", cell: (point) => time(point.at.toISOString()) },
          { head: unit || "value", numeric: true, cell: (point) => point.value.toPrecision(6) },
        ]}
      />
    </Chart>
  );
}
