import { expect, it } from "vitest";
import { GROUND, colours, contrast, palette } from "./palette";

it("every colour is legible on its ground (WCAG AA)", () => {
  for (const dark of [false, true]) {
    for (const colour of palette(dark)) {
      expect(contrast(colour, dark ? GROUND.dark : GROUND.light), colour).toBeGreaterThanOrEqual(4.5);
    }
  }
  expect(contrast("#ffffff", "#000000")).toBeCloseTo(21);
});

it("a candidate keeps its colour", () => {
  const all = colours(["p4d", "p5", "p4d"], false);
  expect(all.size).toBe(2);
  expect(all.get("p4d")).not.toBe(all.get("p5"));
});
