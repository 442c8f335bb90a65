/** How figures are written: dollars, hours, rates and times. Unknown is "unknown", never 0. */

export const UNKNOWN = "–";

type Maybe = number | null | undefined;

const grouped = (value: number, digits: number): string =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Dollars: cents from $1 on, four significant digits below. */
export function usd(value: Maybe): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "$0.00";
  if (size < 1) return `${sign}$${trimmed(size)}`;
  return `${sign}$${grouped(size, 2)}`;
}

/** Four significant digits without an exponent, and at least two decimals. */
function trimmed(value: number): string {
  const digits = Math.min(6, Math.max(2, 3 - Math.floor(Math.log10(value))));
  const text = value.toFixed(digits).replace(/0+$/, "");
  const decimals = text.split(".")[1]?.length ?? 0;
  return decimals < 2 ? value.toFixed(2) : text;
}

/** Dollars per million tokens, or another small rate: four significant digits. */
export function rate(value: Maybe): string {
  if (value == null) return UNKNOWN;
  return value >= 1 ? `$${grouped(value, 2)}` : `$${trimmed(value)}`;
}

/** Hours with one decimal; below two hours in minutes. */
export function hours(value: Maybe): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  return value < 2 ? `${Math.round(value * 60)} min` : `${grouped(value, 1)} h`;
}

export function seconds(value: Maybe): string {
  return value == null ? UNKNOWN : hours(value / 3600);
}

/** A share as percent; odds near certainty say so instead of 100 %. */
export function percent(share: Maybe, digits = 0): string {
  return share == null ? UNKNOWN : `${grouped(share * 100, digits)} %`;
}

export function odds(p: Maybe): string {
  if (p == null) return UNKNOWN;
  if (p > 0.99) return "> 99 %";
  if (p < 0.01) return "< 1 %";
  return `${Math.round(p * 100)} %`;
}

export function count(value: Maybe): string {
  return value == null ? UNKNOWN : grouped(Math.round(value), 0);
}

/** A speed with its 95 % interval. */
export function speed(value: Maybe, halfWidth?: Maybe): string {
  if (value == null) return UNKNOWN;
  return halfWidth == null ? count(value) : `${count(value)} ± ${count(halfWidth)}`;
}

/** A large number of tokens in words. */
export function tokens(value: Maybe): string {
  if (value == null) return UNKNOWN;
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]] as const) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return String(value);
}

/** UTC, to the minute: `11-29 08:40`; the year where it is not that of `now`. */
export function time(iso: string | null | undefined, now?: string): string {
  if (!iso) return UNKNOWN;
  const text = iso.slice(0, 16).replace("T", " ");
  return now && now.slice(0, 4) === iso.slice(0, 4) ? text.slice(5) : text;
}

/** Local time, for a tip beside the UTC that is shown. */
export function local(iso: string | null | undefined): string {
  return iso ? new Date(iso).toLocaleString() : "";
}

/** `on_demand` as people say it. */
export function words(name: string | null | undefined): string {
  return name ? name.replaceAll("_", " ") : UNKNOWN;
}

/** `ml.p5.48xlarge` without the prefix that all of them have. */
export function short(instanceType: string): string {
  return instanceType.replace(/^ml\./, "");
}

/** Bytes in units of 1,000, as S3 bills them. */
export function size(bytes: Maybe): string {
  if (bytes == null) return UNKNOWN;
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]] as const) {
    if (bytes >= unit) return `${Number((bytes / unit).toPrecision(3))} ${name}`;
  }
  return `${bytes} B`;
}
