import { describe, expect, it } from "vitest";
import { hours, odds, percent, rate, size, speed, time, tokens, usd } from "./format";

describe("figures", () => {
  it("writes dollars by their size, and unknown as unknown", () => {
    expect([usd(925), usd(1492.125), usd(0.3074), usd(0.5), usd(0.001234), usd(0), usd(-12.5), usd(null)]).toEqual(
      ["$925.00", "$1,492.13", "$0.3074", "$0.50", "$0.001234", "$0.00", "−$12.50", "–"],
    );
  });
  it("writes short times as minutes", () => {
    expect([hours(14.66), hours(1.5), hours(undefined)]).toEqual(["14.7 h", "90 min", "–"]);
  });
  it("claims no certainty", () => {
    expect([odds(1), odds(0.999), odds(0.65), odds(0), odds(null)]).toEqual(["> 99 %", "> 99 %", "65 %", "< 1 %", "–"]);
  });
  it("writes rates, speeds, shares and tokens", () => {
    expect([rate(0.307412), rate(63.296), speed(57259.3, 1145.2), percent(0.987, 1), tokens(3e9), tokens(11_520_000_000)]).toEqual(
      ["$0.3074", "$63.30", "57,259 ± 1,145", "98.7 %", "3 B", "11.5 B"],
    );
  });
  it("writes bytes as S3 bills them", () => {
    expect([size(0), size(999), size(1_500_000), size(14_500_000_000), size(null)]).toEqual(["0 B", "999 B", "1.5 MB", "14.5 GB", "–"]);
  });
  it("leaves out the year that it is", () => {
    expect([time("2026-11-29T08:40:12Z", "2026-12-01T00:00:00Z"), time("2025-11-29T08:40:12Z", "2026-12-01T00:00:00Z")]).toEqual(
      ["11-29 08:40", "2025-11-29 08:40"],
    );
  });
});
