/** A pipeline as a graph: each step right of what it needs. */

import type { Schemas } from "../api/client";
import { usd, words } from "../format";
import { layersOf } from "../shape";

type Step = Schemas["PipelineStep"];

const BOX = { width: 176, height: 54, gapX: 44, gapY: 16 };

export function StepGraph({ steps }: { steps: readonly Step[] }) {
  const layers = layersOf(steps);
  const tallest = Math.max(...layers.map((layer) => layer.length));
  const height = tallest * (BOX.height + BOX.gapY) - BOX.gapY + 4;
  const width = layers.length * (BOX.width + BOX.gapX) - BOX.gapX + 4;
  const places = new Map<string, { x: number; y: number; step: Step }>();
  layers.forEach((layer, column) => {
    const top = (height - (layer.length * (BOX.height + BOX.gapY) - BOX.gapY)) / 2;
    layer.forEach((step, row) => places.set(step.name, { x: 2 + column * (BOX.width + BOX.gapX), y: top + row * (BOX.height + BOX.gapY), step }));
  });
  const lines = steps.flatMap((step) =>
    step.needs.flatMap((name) => {
      const [from, to] = [places.get(name), places.get(step.name)];
      return from && to ? [curve(from, to)] : [];
    }),
  );
  const label = `${steps.length} steps: ${steps.map((step) => `${step.name} ${words(step.state)}`).join(", ")}.`;
  return (
    <div class="scroll" role="region" aria-label="the steps as a graph" tabIndex={0}>
      <svg class="graph" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
        {lines.map((line) => (
          <path d={line} />
        ))}
        {[...places.values()].map(({ x, y, step }) => (
          <g class={step.question ? "asked" : step.state} transform={`translate(${x} ${y})`}>
            <rect width={BOX.width} height={BOX.height} rx={6} />
            <text x={10} y={22} class="name">
              {step.name.length > 22 ? `${step.name.slice(0, 21)}…` : step.name}
            </text>
            <text x={10} y={42}>
              {step.question ? "needs your decision" : words(step.state)}
            </text>
            <text x={BOX.width - 10} y={42} text-anchor="end">
              {step.reserved_usd > 0 ? `≥ ${usd(step.settled_usd)}` : usd(step.settled_usd)}
            </text>
          </g>
        ))}
      </svg>
    </div>
  );
}

function curve(from: { x: number; y: number }, to: { x: number; y: number }): string {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}
