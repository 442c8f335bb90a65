/** Small parts that every page is made of. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { asCurl, asPython, type Problem } from "../api/client";
import type { Query } from "../api/query";
import { local, time, words } from "../format";
import { go, session } from "../state";

export function Link({ to, children }: { to: string; children: ComponentChildren }) {
  const follow = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} onClick={follow}>
      {children}
    </a>
  );
}

const ICONS: Record<string, string> = {
  running: "▶",
  creating: "▶",
  submitting: "▷",
  stopping: "◼",
  cancelling: "◼",
  queued: "…",
  waiting: "…",
  pending: "…",
  parked: "✋",
  asked: "✋",
  completed: "✔",
  valid: "✔",
  revoked: "⊘",
  disabled: "⊘",
  in_service: "✔",
  registered: "✔",
  passed: "✔",
  delivered: "✔",
  stopped: "◾",
  failed: "✘",
  error: "✘",
  regressed: "✘",
  refused: "⊘",
  cancelled: "⊘",
  deleted: "⊘",
  inconclusive: "?",
  warning: "!",
  alarm: "✘",
  info: "·",
};

const TONES: Record<string, string> = {
  running: "live",
  submitting: "live",
  creating: "live",
  in_service: "live",
  completed: "good",
  valid: "good",
  registered: "good",
  passed: "good",
  delivered: "good",
  failed: "bad",
  error: "bad",
  alarm: "bad",
  regressed: "bad",
  parked: "wait",
  asked: "wait",
  warning: "wait",
  inconclusive: "wait",
};

/** A state as icon and word. */
export function State({ of }: { of: string }) {
  return (
    <span class={`state ${TONES[of] ?? ""}`}>
      <span aria-hidden="true">{ICONS[of] ?? "·"}</span> {words(of)}
    </span>
  );
}

export function Time({ at, now }: { at: string | null | undefined; now?: string | undefined }) {
  return at ? (
    <time dateTime={at} title={`UTC; here ${local(at)}`}>
      {time(at, now)}
    </time>
  ) : (
    <>–</>
  );
}

export type Kind = "measured" | "estimated" | "predicted" | "projected" | "listed" | "negotiated";

/** A figure that says how it is known. */
export function Figure({ kind, about, children }: { kind: Kind; about?: string | undefined; children: ComponentChildren }) {
  return (
    <span class={`figure ${kind}`} title={[kind, about].filter(Boolean).join("; ")}>
      {children}
      <span class="hidden"> {kind}</span>
    </span>
  );
}

export function Bar({ share, label }: { share: number; label: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  return <progress class="bar" max={100} value={percent} aria-label={label} title={`${label}: ${percent} %`} />;
}

export function ProblemBox({ problem, retry }: { problem: Problem; retry?: () => void }) {
  const isForbidden = problem.status === 403;
  return (
    <div class="problem" role="alert">
      <strong>{problem.title}</strong>
      <p>{problem.detail}</p>
      {isForbidden && session.value && <p>You are logged in as {session.value.role}.</p>}
      {problem.errors.length > 0 && (
        <ul>
          {problem.errors.map((error) => (
            <li>
              <code>{error.pointer}</code> {error.detail}
              {error.fix && <div class="fix">→ {error.fix}</div>}
            </li>
          ))}
        </ul>
      )}
      <p class="fine">
        {problem.requestId && <>request {problem.requestId} </>}
        {retry && problem.retryable && <button onClick={retry}>Try again</button>}
      </p>
    </div>
  );
}

/** What a query has brought so far: its data, a skeleton, a problem, and whether it is stale. */
export function Loaded<T>({ query, lines = 4, children }: { query: Query<T>; lines?: number; children: (data: T) => ComponentChildren }) {
  const { data, problem, at, reload } = query;
  return (
    <>
      {problem && data === undefined && <ProblemBox problem={problem} retry={reload} />}
      {problem && data !== undefined && (
        <p class="stale" role="status">
          Not up to date: {problem.detail} This is as of {at ? new Date(at).toISOString().slice(11, 16) : "–"} UTC.{" "}
          <button onClick={reload}>Try again</button>
        </p>
      )}
      {data !== undefined ? children(data) : !problem && <Skeleton lines={lines} />}
    </>
  );
}

export function Skeleton({ lines }: { lines: number }) {
  return (
    <div class="skeleton" role="status" aria-busy="true" aria-label="loading">
      {Array.from({ length: lines }, () => (
        <div />
      ))}
    </div>
  );
}

/** Nothing is there yet, and this is how it comes to be. */
export function Empty({ what, command }: { what: string; command?: string }) {
  return (
    <div class="empty">
      <p>{what}</p>
      {command && (
        <pre tabIndex={0}>
          <code>{command}</code>
        </pre>
      )}
    </div>
  );
}

export function Section({ title, aside, children, id }: { title: string; aside?: ComponentChildren; children: ComponentChildren; id?: string }) {
  return (
    <section class="card" {...(id ? { id } : {})}>
      <header>
        <h2>{title}</h2>
        {aside && <div class="aside">{aside}</div>}
      </header>
      {children}
    </section>
  );
}

/** The request behind what is shown: CSV where there is one, curl and Python. */
export function Source({ path, csv = false }: { path: string; csv?: boolean }) {
  const [copied, setCopied] = useState("");
  const copy = async (name: string, text: string) => {
    await navigator.clipboard.writeText(text);
    setCopied(name);
    setTimeout(() => setCopied(""), 1500);
  };
  return (
    <span class="source">
      {csv && (
        <a href={`${path}${path.includes("?") ? "&" : "?"}format=csv`} download>
          CSV
        </a>
      )}
      <button onClick={() => void copy("curl", asCurl(path))}>{copied === "curl" ? "copied" : "curl"}</button>
      <button onClick={() => void copy("Python", asPython(path))}>{copied === "Python" ? "copied" : "Python"}</button>
    </span>
  );
}

export function Finding({ of, children }: { of: { severity: string; rule: string; pointer: string; message: string; fix: string; source?: string }; children?: ComponentChildren }) {
  return (
    <li class={`finding ${of.severity}`}>
      <div>
        <span class="severity">{of.severity}</span> <code>{of.pointer || "/"}</code>{" "}
        <span class="fine" title={of.source}>
          {of.rule}
        </span>
      </div>
      <div>{of.message}</div>
      {of.fix && (
        <div class="fix">
          → {of.fix} {children}
        </div>
      )}
    </li>
  );
}
