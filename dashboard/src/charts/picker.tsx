/** Which metric a chart of curves shows, and against what: kept in the page's address. */

import { words } from "../format";
import { address, setParameter } from "../state";
import type { LossBy } from "./charts";

const METRICS = ["train_loss", "validation_loss", "tokens_per_second"] as const;
const AXES: readonly LossBy[] = ["usd", "hours", "step", "tokens"];

export function chosenCurve(otherwise: LossBy): { metric: (typeof METRICS)[number]; by: LossBy } {
  const parameters = address.value.searchParams;
  return {
    metric: METRICS.find((one) => one === parameters.get("metric")) ?? "train_loss",
    by: AXES.find((one) => one === parameters.get("by")) ?? otherwise,
  };
}

export function CurvePicker({ metric, by }: { metric: string; by: LossBy }) {
  return (
    <div class="filters">
      <label>
        metric{" "}
        <select value={metric} onChange={(event) => setParameter("metric", event.currentTarget.value)}>
          {METRICS.map((one) => (
            <option value={one}>{words(one)}</option>
          ))}
        </select>
      </label>
      <label>
        against{" "}
        <select value={by} onChange={(event) => setParameter("by", event.currentTarget.value)}>
          {AXES.map((one) => (
            <option value={one}>{one === "usd" ? "dollars" : one}</option>
          ))}
        </select>
      </label>
    </div>
  );
}
