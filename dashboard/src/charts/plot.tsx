/** A chart: drawn by Observable Plot, made reachable by keyboard and readable to a screen reader, with a table twin. */

import type * as Plots from "./marks";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { dark } from "../state";

export type Library = typeof Plots;

/** Loaded when the first chart is shown: the rest of a page does not wait for it. */
let library: Promise<Library> | undefined;
const load = () => {
  // What could not be loaded is tried again with the next chart.
  library ??= import("./marks").catch((error: unknown) => {
    library = undefined;
    throw error;
  });
  return library;
};

export function Chart({
  label,
  draw,
  depends,
  height = 300,
  children,
}: {
  /** What the chart shows, in one sentence. */
  label: string;
  draw: (plot: Library, size: { width: number; height: number; dark: boolean }) => (SVGElement | HTMLElement) & { scale?: unknown };
  /** What the drawing is made of: it is drawn again when one of these changes. */
  depends: readonly unknown[];
  height?: number;
  /** The same as a table. */
  children?: ComponentChildren;
}) {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [readout, setReadout] = useState("");
  const isDark = dark.value;

  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    observer.observe(box);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    let isOver = false;
    if (width < 120) return;
    load().then(
      (plot) => {
        if (isOver || !place.current) return;
        const drawn = draw(plot, { width, height, dark: isDark });
        reachable(drawn, label);
        place.current.replaceChildren(drawn);
      },
      () => setReadout("The chart could not be loaded; its table says the same."),
    );
    return () => {
      isOver = true;
    };
  }, [width, height, isDark, label, ...depends]);

  const tell = (event: Event) => {
    const point = (event.target as Element).closest("[aria-label][role=img]");
    setReadout(point?.getAttribute("aria-label") ?? "");
  };
  return (
    <figure class="chart">
      <div ref={place} style={{ minHeight: `${height}px` }} onFocusIn={tell} onPointerOver={tell} />
      <p class="readout" aria-hidden="true">
        {readout || " "}
      </p>
      {children && (
        <details>
          <summary>as a table</summary>
          {children}
        </details>
      )}
    </figure>
  );
}

/** Plot labels its groups without a role, and its points cannot be reached by keyboard. */
function reachable(drawn: Element, label: string): void {
  const svg = drawn.matches("svg") ? drawn : drawn.querySelector("svg");
  svg?.setAttribute("role", "group");
  svg?.setAttribute("aria-label", label);
  for (const group of drawn.querySelectorAll("g[aria-label]")) group.setAttribute("role", "group");
  for (const point of drawn.querySelectorAll("circle[aria-label], rect[aria-label], path[aria-label], text[aria-label]")) {
    if (point.closest("g")?.getAttribute("aria-label")?.includes("axis")) continue;
    point.setAttribute("role", "img");
    point.setAttribute("tabindex", "0");
  }
}
