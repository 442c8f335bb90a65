/** The frame of every page: where one is, who one is, what keys do. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "./api/client";
import { logOut } from "./api/session";
import { stream } from "./api/live";
import { address, dark, go, paused, session, theme } from "./state";
import { Link, ProblemBox } from "./ui/parts";

const PLACES: readonly (readonly [string, string, string])[] = [
  ["/", "Overview", "o"],
  ["/experiments", "Experiments", "e"],
  ["/playground", "Playground", "p"],
  ["/runs", "Runs", "r"],
  ["/pipelines", "Pipelines", "l"],
  ["/endpoints", "Endpoints", "n"],
  ["/models", "Models", "m"],
  ["/instances", "Instances", "i"],
  ["/spending", "Spending", "s"],
  ["/ci", "CI", "c"],
  ["/events", "Events", "v"],
  ["/calibration", "Calibration", "a"],
  ["/settings", "Settings", "t"],
];

export function Shell({ children }: { children: ComponentChildren }) {
  const help = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState<Problem>();
  const here = address.value.pathname;
  useEffect(() => setProblem(undefined), [here]);
  // Before the page is painted: a key pressed as soon as it can be seen counts.
  useLayoutEffect(() => {
    let wantsPlace = false;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, textarea, select")) return;
      if (wantsPlace) {
        wantsPlace = false;
        const to = PLACES.find(([, , key]) => key === event.key);
        if (to) return go(to[0]);
      }
      if (event.key === "g") wantsPlace = true;
      else if (event.key === "?") help.current?.showModal();
      else if (event.key === ".") paused.value = !paused.value;
      else if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("#search")?.focus();
      } else if (event.key === "j" && !target.closest("tbody")) {
        document.querySelector<HTMLElement>("tbody tr[tabindex]")?.focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const isHere = (path: string) => (path === "/" ? here === "/" : here.startsWith(path));
  return (
    <>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header class="top">
        <span class="brand">
          <img src="/icon.svg" alt="" width={22} height={22} /> Bakeoff
        </span>
        <nav aria-label="pages">
          {PLACES.map(([path, name]) => (
            <span class={isHere(path) ? "here" : ""}>
              <Link to={path}>{name}</Link>
            </span>
          ))}
        </nav>
        <div class="who">
          <button aria-pressed={paused.value} title={stream.value === "lost" && !paused.value ? "Live updates are lost; pages are read again now and then. ( . ) pauses them" : "Pause live updates ( . )"} onClick={() => (paused.value = !paused.value)}>
            {paused.value ? "paused" : stream.value === "lost" ? "lost" : "live"}
          </button>
          <button title="Light or dark" aria-label={dark.value ? "to the light theme" : "to the dark theme"} onClick={() => (theme.value = dark.value ? "light" : "dark")}>
            {dark.value ? "☾" : "☀"}
          </button>
          <button title="Keys" aria-label="keys" onClick={() => help.current?.showModal()}>
            ?
          </button>
          {session.value && (
            <button title={`${session.value.role} of ${session.value.project}`} onClick={() => (setProblem(undefined), void logOut().catch(setProblem))}>
              {session.value.project} · log out
            </button>
          )}
        </div>
      </header>
      <main id="content" tabIndex={-1}>
        {problem && <ProblemBox problem={problem} />}
        {children}
      </main>
      <dialog ref={help} aria-label="Keys">
        <h2>Keys</h2>
        <dl class="keys">
          <dt>j, k</dt>
          <dd>next and previous row; Enter opens it</dd>
          <dt>/</dt>
          <dd>search</dd>
          <dt>.</dt>
          <dd>pause live updates</dd>
          {PLACES.map(([, name, key]) => (
            <>
              <dt>g {key}</dt>
              <dd>{name}</dd>
            </>
          ))}
        </dl>
        <div class="buttons">
          <button onClick={() => help.current?.close()}>Close</button>
        </div>
      </dialog>
    </>
  );
}
