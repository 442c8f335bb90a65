/**
 * Colours of candidates: Okabe and Ito's, which people with any colour vision tell apart, each in a shade that is
 * legible on its ground. A candidate keeps its colour within its experiment.
 */

const LIGHT = ["#0072b2", "#b25a00", "#00735a", "#a8447f", "#8a6d00", "#2a6f97", "#6b4c9a", "#555555"];
const DARK = ["#56b4e9", "#f0a860", "#3fc8a0", "#e39bc4", "#e6d35a", "#8ecae6", "#b79ce0", "#b5b5b5"];

export const GROUND = { light: "#ffffff", dark: "#15191c" } as const;

export function palette(dark: boolean): readonly string[] {
  return dark ? DARK : LIGHT;
}

/** The colour of each name, in the order in which they come. */
export function colours(names: readonly string[], dark: boolean): Map<string, string> {
  const all = palette(dark);
  return new Map([...new Set(names)].map((name, index) => [name, all[index % all.length] as string]));
}

/** WCAG's contrast of two colours, 1 to 21. */
export function contrast(one: string, other: string): number {
  const [a, b] = [luminance(one), luminance(other)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function luminance(hex: string): number {
  const channel = (from: number): number => {
    const value = Number.parseInt(hex.slice(from, from + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}
