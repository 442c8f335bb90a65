/** From what the service answers to what is drawn: pure, and tested without a browser. */

import type { Schemas } from "./api/client";

export type Phase = { trial: string; status: string; from: string; until: string };
export type Held = { at: string; settled: number; reserved: number };

/** A trial's attempts as phases; one that goes on ends with the newest time that is known. */
export function phasesOf(trial: Schemas["TrialView"]): Phase[] {
  return trial.attempts.flatMap((attempt) => {
    const name = `${trial.plan?.candidate ?? trial.id.slice(-6)}${trial.plan?.purchase_option === "spot" ? " spot" : ""}${trial.attempts.length > 1 ? ` #${attempt.number}` : ""}`;
    const latest = attempt.transitions.reduce((newest, one) => (one.started_at > newest ? one.started_at : newest), "");
    return attempt.transitions
      .filter((one) => !["Completed", "Stopped", "Failed"].includes(one.status))
      .map((one) => ({ trial: name, status: one.status, from: one.started_at, until: one.ended_at ?? attempt.ended_at ?? latest }));
  });
}

/** What was settled and held after each row. */
export function heldOver(rows: readonly Schemas["LedgerEntryView"][]): Held[] {
  let settled = 0;
  let reserved = 0;
  return [...rows]
    .sort((a, b) => a.id - b.id)
    .map((row) => {
      if (row.kind === "settled" || row.kind === "adjusted") settled += row.usd;
      else if (row.kind === "reserved") reserved += row.usd;
      else reserved -= Math.abs(row.usd);
      return { at: row.recorded_at, settled, reserved: Math.max(0, reserved) };
    });
}

/** The points of a series where it has them, else the means of its buckets. */
export function seriesOf(series: { points?: { at_seconds: number[]; value: (number | null)[] } | null; buckets?: readonly { start_at: string; mean?: number | null }[] } | undefined): { at: Date; value: number }[] {
  const points = series?.points;
  if (points) {
    return points.at_seconds.flatMap((at, index) => {
      const value = points.value[index];
      return value == null ? [] : [{ at: new Date(at * 1000), value }];
    });
  }
  return (series?.buckets ?? []).flatMap((bucket) => (bucket.mean == null ? [] : [{ at: new Date(bucket.start_at), value: bucket.mean }]));
}

/** Whether a document is an experiment, which can be planned and not only checked. */
export function isExperiment(value: unknown): boolean {
  return typeof value === "object" && value !== null && "candidates" in value;
}

export function parse(text: string): { value?: unknown; error?: string } {
  if (!text.trim()) return {};
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `This is no JSON yet: ${(error as Error).message}` };
  }
}
