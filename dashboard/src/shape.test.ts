import { expect, it } from "vitest";
import type { Schemas } from "./api/client";
import { heldOver, layersOf, namesOf, phasesOf, pointsOf, regionsOf, spansOf, spread, standingsOf } from "./shape";

const row = (id: number, kind: string, usd: number) => ({ id, kind, usd, recorded_at: `2026-11-20T0${id}:00:00Z` }) as Schemas["LedgerEntryView"];

it("what is held is given back by what is settled", () => {
  const rows = [row(3, "settled", 29.73), row(1, "reserved", 341.29), row(2, "released", 341.29), row(4, "adjusted", -0.5)];
  const over = heldOver(rows);
  expect(over.map((one) => one.reserved)).toEqual([341.29, 0, 0, 0]);
  expect(over.at(-1)?.settled).toBeCloseTo(29.23);
});

it("a phase that goes on ends with the newest time that is known, or now, and the end is no phase", () => {
  const attempt = {
    trial_id: "trl_123456",
    candidate: "p5",
    purchase_option: "spot",
    number: 1,
    transitions: [
      { status: "Starting", started_at: "2026-11-20T01:00:00Z", ended_at: "2026-11-20T01:05:00Z", message: "" },
      { status: "Training", started_at: "2026-11-20T01:05:00Z", ended_at: null, message: "" },
      { status: "Completed", started_at: "2026-11-20T01:09:00Z", ended_at: null, message: "" },
    ],
  };
  expect(phasesOf([attempt, { ...attempt, number: 2, transitions: [] }])[0]?.trial).toBe("p5 spot #1");
  expect(phasesOf([attempt])).toEqual([
    { trial: "p5 spot", status: "Starting", from: "2026-11-20T01:00:00Z", until: "2026-11-20T01:05:00Z" },
    { trial: "p5 spot", status: "Training", from: "2026-11-20T01:05:00Z", until: "2026-11-20T01:09:00Z" },
  ]);
  const running = { ...attempt, transitions: attempt.transitions.slice(0, 2) };
  expect(phasesOf([running], "2026-11-20T01:30:00Z").at(-1)?.until).toBe("2026-11-20T01:30:00Z");
  // Repeats of a candidate have a row each.
  const both = phasesOf([running, { ...running, trial_id: "trl_654321" }]);
  expect([...new Set(both.map((one) => one.trial))]).toEqual(["p5 spot (1)", "p5 spot (2)"]);
});

it("a series is its points without what is no number", () => {
  expect(pointsOf({ at_seconds: [1, 2], step: [null, null], value: [null, 5] })).toEqual([{ at: new Date(2000), value: 5 }]);
});

it("choices stand against the cheapest of their look, and free looks show nothing", () => {
  const arm = (candidate: string, cost: number) => ({ candidate, purchase_option: "on_demand", trial_id: candidate, projected_cost_usd: cost, cost_usd_90: [cost * 0.9, cost * 1.2] });
  const look = (spent_usd: number, ...arms: unknown[]) => ({ at: "2026-11-20T00:00:00Z", spent_usd, arms }) as Schemas["Look"];
  const standings = standingsOf([look(0, arm("p5", 900)), look(10, arm("p4d", 1000), arm("p5", 500))]);
  expect(standings.map((one) => [one.name, one.ratio])).toEqual([
    ["p4d", 2],
    ["p5", 1],
  ]);
  expect(standings[1]?.high).toBeCloseTo(1.2);
});

it("labels that would lie upon each other move apart, and others stay", () => {
  expect(spread([1.01, 1, 2], 0.1)).toEqual([1.1, 1, 2]);
  expect(spread([], 0.1)).toEqual([]);
});

it("each step stands right of all that it needs", () => {
  const step = (name: string, ...needs: string[]) => ({ name, needs });
  const layers = layersOf([step("train", "prepare", "tokens"), step("prepare"), step("tokens", "prepare"), step("note")]);
  expect(layers.map((layer) => layer.map((one) => one.name))).toEqual([["prepare", "note"], ["tokens"], ["train"]]);
  expect(layersOf([])).toEqual([]);
  // No pipeline has a circle; a page that met one would not hang.
  expect(layersOf([step("a", "b"), step("b", "a")]).flat()).toHaveLength(2);
});

it("a price holds until the next of its kind, and none before it has begun", () => {
  const price = (status: string, effective_from: string, usd_per_hour: number) => ({ status, effective_from, usd_per_hour, region: "us-east-1", instance_type: "ml.a" }) as Schemas["Price"];
  const all = [price("listed", "2026-03-01", 2), price("estimated", "2026-01-01", 3), price("negotiated", "2026-02-01", 1), price("listed", "2027-01-01", 0.5)];
  expect(spansOf(all, "2026-11-20")).toEqual([
    { from: "2026-01-01", until: "2026-03-01", usd: 3, isStated: false },
    { from: "2026-02-01", until: "2026-11-20", usd: 1, isStated: true },
    { from: "2026-03-01", until: "2026-11-20", usd: 2, isStated: true },
  ]);
  expect(regionsOf([...all, { ...price("listed", "2026-01-01", 1), region: "eu-west-1" }])).toEqual(["eu-west-1", "us-east-1"]);
});

it("each trial has a name of its own, no longer than it takes", () => {
  const row = (trial_id: string, candidate: string, purchase_option: string, experiment_id: string) => ({ trial_id, candidate, purchase_option, experiment_id }) as Schemas["ComparisonRow"];
  const named = (...rows: Schemas["ComparisonRow"][]) => [...namesOf(rows).values()];
  expect(named(row("1", "p5", "spot", "exp_aaaaaa"), row("2", "p4d", "on_demand", "exp_aaaaaa"))).toEqual(["p5", "p4d"]);
  expect(named(row("1", "p5", "spot", "exp_aaaaaa"), row("2", "p5", "on_demand", "exp_aaaaaa"))).toEqual(["p5 spot", "p5"]);
  expect(named(row("1", "p5", "spot", "exp_aaaaaa"), row("2", "p5", "spot", "exp_aaaaaa"))).toEqual(["p5 (1)", "p5 (2)"]);
  expect(named(row("1", "p5", "spot", "exp_aaaaaa"), row("2", "p5", "spot", "exp_bbbbbb"))).toEqual(["p5 spot · aaaaaa", "p5 spot · bbbbbb"]);
});
