/** What the whole dashboard shares: who is logged in, which page is open, how it looks. */

import { computed, effect, signal } from "@preact/signals";

export type Session = { project: string; name: string; role: string };

/** `undefined` until it is known; `null` where nobody is logged in. */
export const session = signal<Session | null | undefined>(undefined);

/** Live updates are paused. */
export const paused = signal(false);

const systemDark = signal(matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  systemDark.value = event.matches;
});

export type Theme = "system" | "light" | "dark";

function stored(): Theme {
  const value = localStorage.getItem("theme");
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>(stored());
export const dark = computed(() => (theme.value === "system" ? systemDark.value : theme.value === "dark"));

effect(() => {
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
  localStorage.setItem("theme", theme.value);
});

/** The address: the path, and what the page keeps behind the question mark. */
export const address = signal(new URL(location.href));

addEventListener("popstate", () => {
  address.value = new URL(location.href);
});

export function go(path: string): void {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  address.value = new URL(location.href);
  scrollTo(0, 0);
}

/** One setting of the page, kept in its address; `null` removes it. */
export function setParameter(name: string, value: string | null): void {
  const url = new URL(location.href);
  if (value === null) url.searchParams.delete(name);
  else url.searchParams.set(name, value);
  history.replaceState(null, "", url);
  address.value = url;
}

/** A filter of a list, which begins at its newest rows again. */
export function setFilter(name: string, value: string | null): void {
  setParameter("page", null);
  setParameter(name, value);
}
