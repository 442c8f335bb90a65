/** From what the service answers to what is drawn: pure, and tested without a browser. */

import type { Schemas } from "./api/client";

export type Phase = { trial: string; status: string; from: string; until: string };
export type Held = { at: string; settled: number; reserved: number };

export type Attempted = { trial_id: string; candidate: string; purchase_option: string; number: number; transitions: readonly Schemas["Transition"][]; ended_at?: string | null };

/** Attempts as phases, those of one trial and of repeats told apart; a phase that goes on ends now, by the service's clock. */
export function phasesOf(attempts: readonly Attempted[], now?: string): Phase[] {
  const tries = new Map<string, number>();
  const repeats = new Map<string, string[]>();
  const choice = (one: Attempted) => `${one.candidate}${one.purchase_option === "spot" ? " spot" : ""}`;
  for (const one of attempts) {
    tries.set(one.trial_id, (tries.get(one.trial_id) ?? 0) + 1);
    const trials = repeats.get(choice(one)) ?? [];
    if (!trials.includes(one.trial_id)) repeats.set(choice(one), [...trials, one.trial_id]);
  }
  return attempts.flatMap((attempt) => {
    const trials = repeats.get(choice(attempt)) ?? [];
    const repeat = trials.length > 1 ? ` (${trials.indexOf(attempt.trial_id) + 1})` : "";
    const name = `${choice(attempt)}${repeat}${(tries.get(attempt.trial_id) ?? 0) > 1 ? ` #${attempt.number}` : ""}`;
    const latest = attempt.transitions.reduce((newest, one) => (one.started_at > newest ? one.started_at : newest), "");
    return attempt.transitions
      .filter((one) => !["Completed", "Stopped", "Failed"].includes(one.status))
      .map((one) => ({ trial: name, status: one.status, from: one.started_at, until: one.ended_at ?? attempt.ended_at ?? (now && now > latest ? now : latest) }));
  });
}

/** One choice at one look: its projected cost as a multiple of the leader's, with the ends of its 90 % interval. */
export type Standing = { name: string; candidate: string; spent: number; ratio: number; low: number; high: number };

/** How each choice stood against the leader as dollars were spent; looks before the first dollar show nothing. */
export function standingsOf(looks: readonly Schemas["Look"][]): Standing[] {
  return looks.flatMap((look) => {
    const best = Math.min(...look.arms.map((arm) => arm.projected_cost_usd));
    if (look.spent_usd <= 0 || !(best > 0)) return [];
    return look.arms.map((arm) => ({
      name: arm.purchase_option === "spot" ? `${arm.candidate} spot` : arm.candidate,
      candidate: arm.candidate,
      spent: look.spent_usd,
      ratio: arm.projected_cost_usd / best,
      low: (arm.cost_usd_90?.[0] ?? arm.projected_cost_usd) / best,
      high: (arm.cost_usd_90?.[1] ?? arm.projected_cost_usd) / best,
    }));
  });
}

/** Places for labels at these values, in their order, no two nearer than `gap`: close ones move apart. */
export function spread(values: readonly number[], gap: number): number[] {
  const order = values.map((value, index) => ({ value, index })).sort((a, b) => a.value - b.value);
  const placed = [...values];
  let below = -Infinity;
  for (const { value, index } of order) {
    below = Math.max(value, below + gap);
    placed[index] = below;
  }
  return placed;
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

/** The finite points of a series. */
export function pointsOf(points: Schemas["PointColumns"]): { at: Date; value: number }[] {
  return points.at_seconds.flatMap((at, index) => {
    const value = points.value[index];
    return value == null ? [] : [{ at: new Date(at * 1000), value }];
  });
}

/** Steps in columns, each right of everything that it needs; a circle, which no pipeline has, ends in the last one. */
export function layersOf<T extends { name: string; needs: readonly string[] }>(steps: readonly T[]): T[][] {
  const depth = new Map<string, number>();
  for (let round = 0; round < steps.length; round += 1) {
    for (const step of steps) {
      const deepest = Math.max(-1, ...step.needs.map((name) => depth.get(name) ?? -1));
      depth.set(step.name, Math.min(deepest + 1, steps.length - 1));
    }
  }
  const layers: T[][] = [];
  for (const step of steps) {
    const column = depth.get(step.name) ?? 0;
    (layers[column] ??= []).push(step);
  }
  return layers.filter((layer) => layer !== undefined);
}

/** The regions that have prices, each once. */
export function regionsOf(prices: readonly Schemas["Price"][]): string[] {
  return [...new Set(prices.map((price) => price.region))].sort();
}

export type PriceSpan = { from: string; until: string; usd: number; isStated: boolean };

/**
 * Prices of one type in one region as the times in which each held: until the next of its own kind, or now. Negotiated ones
 * stand beside the others, which hold for whoever has not negotiated; what has not begun is left out.
 */
export function spansOf(prices: readonly Schemas["Price"][], now: string): PriceSpan[] {
  const begun = prices.filter((price) => price.effective_from < now).sort((a, b) => (a.effective_from < b.effective_from ? -1 : 1));
  const isNegotiated = (price: Schemas["Price"]) => price.status === "negotiated";
  return begun.map((price, index) => ({
    from: price.effective_from,
    until: begun.slice(index + 1).find((later) => isNegotiated(later) === isNegotiated(price))?.effective_from ?? now,
    usd: price.usd_per_hour,
    isStated: price.status === "listed" || isNegotiated(price),
  }));
}

/** Trials and runs by id, each with a name of its own: its candidate, with what tells it from others of that name. */
export function namesOf(rows: readonly Schemas["ComparisonRow"][], experiments: ReadonlyMap<string, string> = new Map()): Map<string, string> {
  const names = new Map<string, string>();
  const parts: readonly ((row: Schemas["ComparisonRow"]) => string)[] = [
    (row) => row.candidate,
    (row) => (row.purchase_option === "spot" ? " spot" : ""),
    (row) => (row.experiment_id ? ` · ${experiments.get(row.experiment_id) ?? row.experiment_id.slice(-6)}` : ""),
  ];
  const own = (row: Schemas["ComparisonRow"], depth: number) => parts.slice(0, depth).map((part) => part(row)).join("");
  for (const [index, row] of rows.entries()) {
    // As few parts as tell it from all that are no repeats of it.
    const alike = (depth: number, among = rows) => among.filter((other) => own(other, depth) === own(row, depth)).length;
    const all = parts.length;
    const depth = parts.map((_, part) => part + 1).find((depth) => alike(depth) === alike(all)) ?? all;
    const repeat = alike(all) > 1 ? ` (${alike(all, rows.slice(0, index)) + 1})` : "";
    const id = row.trial_id ?? row.run_id;
    if (id) names.set(id, own(row, depth) + repeat);
  }
  return names;
}
