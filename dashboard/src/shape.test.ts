import { expect, it } from "vitest";
import type { Schemas } from "./api/client";
import { heldOver, isExperiment, parse, phasesOf, seriesOf } from "./shape";

const row = (id: number, kind: string, usd: number) => ({ id, kind, usd, recorded_at: `2026-11-20T0${id}:00:00Z` }) as Schemas["LedgerEntryView"];

it("what is held is given back by what is settled", () => {
  const rows = [row(3, "settled", 29.73), row(1, "reserved", 341.29), row(2, "released", 341.29), row(4, "adjusted", -0.5)];
  const over = heldOver(rows);
  expect(over.map((one) => one.reserved)).toEqual([341.29, 0, 0, 0]);
  expect(over.at(-1)?.settled).toBeCloseTo(29.23);
});

it("a phase that goes on ends with the newest time that is known, and the end is no phase", () => {
  const trial = {
    id: "trl_123456",
    plan: { candidate: "p5", purchase_option: "spot" },
    attempts: [
      {
        number: 1,
        transitions: [
          { status: "Starting", started_at: "2026-11-20T01:00:00Z", ended_at: "2026-11-20T01:05:00Z", message: "" },
          { status: "Training", started_at: "2026-11-20T01:05:00Z", ended_at: null, message: "" },
          { status: "Completed", started_at: "2026-11-20T01:09:00Z", ended_at: null, message: "" },
        ],
      },
    ],
  } as unknown as Schemas["TrialView"];
  expect(phasesOf(trial)).toEqual([
    { trial: "p5 spot", status: "Starting", from: "2026-11-20T01:00:00Z", until: "2026-11-20T01:05:00Z" },
    { trial: "p5 spot", status: "Training", from: "2026-11-20T01:05:00Z", until: "2026-11-20T01:09:00Z" },
  ]);
});

it("a series is its points, or the means of its buckets, without what is no number", () => {
  expect(seriesOf({ points: { at_seconds: [1, 2], value: [null, 5] } })).toEqual([{ at: new Date(2000), value: 5 }]);
  expect(seriesOf({ points: null, buckets: [{ start_at: "2026-11-20T00:00:00Z", mean: 7 }, { start_at: "2026-11-20T00:05:00Z", mean: null }] })).toHaveLength(1);
  expect(seriesOf(undefined)).toEqual([]);
});

it("half a document is no error of the service", () => {
  expect(parse("")).toEqual({});
  expect(parse('{"a": ').error).toContain("no JSON yet");
  expect(isExperiment(parse('{"candidates": []}').value)).toBe(true);
  expect(isExperiment(parse("[]").value)).toBe(false);
});
