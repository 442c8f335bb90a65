/** What an hour of a type has cost: steps, dashed where a price is neither listed nor negotiated. */

import { useMemo } from "preact/hooks";
import type { Schemas } from "../api/client";
import { rate, words } from "../format";
import { spansOf, type PriceSpan } from "../shape";
import { Chart } from "./plot";

type Price = Schemas["Price"];

export function PriceHistory({ prices, inForce, now }: { prices: readonly Price[]; inForce: Price | undefined; now: string }) {
  const spans = useMemo(() => spansOf(prices, now), [prices, now]);
  return (
    <Chart
      label={inForce ? `Dollars an hour over time; ${rate(inForce.usd_per_hour)} now, ${words(inForce.status)}.` : "No price is in force now."}
      depends={[spans]}
      height={190}
      draw={(Plot, size) =>
        Plot.plot({
          ...size,
          marginLeft: 64,
          x: { type: "utc", label: null, ticks: Math.max(2, Math.floor(size.width / 140)), tickFormat: (at: Date) => at.toISOString().slice(0, 10) },
          y: { label: "↑ dollars an hour", grid: true, zero: true, nice: true, tickFormat: (value: number) => `$${value}` },
          marks: [true, false].map((isStated) =>
            Plot.ruleY(
              spans.filter((span) => span.isStated === isStated),
              {
                x1: (span: PriceSpan) => new Date(span.from),
                x2: (span: PriceSpan) => new Date(span.until),
                y: "usd",
                stroke: size.dark ? "#56b4e9" : "#0072b2",
                strokeWidth: 3,
                strokeDasharray: isStated ? "none" : "5 4",
              },
            ),
          ),
        })
      }
    />
  );
}
