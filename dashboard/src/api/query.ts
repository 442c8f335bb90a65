/** Data that a page shows: fetched, kept fresh, and shown as stale where it cannot be. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { paused, session } from "../state";
import { Problem } from "./client";
import { told, toldOf } from "./live";

export type Query<T> = {
  data: T | undefined;
  problem: Problem | undefined;
  /** When the data that is shown was fetched, in milliseconds; what is shown after a failure is older than it should be. */
  at: number | undefined;
  reload: () => void;
};

/** Events that come close together are answered by one fetch. */
const HEARD_EVERY_MS = 2000;

/** Fetches again so often, in seconds (0: once), and soon after an event: of an experiment, or `any`. */
export function useQuery<T>(key: string, fetch: () => Promise<T>, everySeconds = 0, about?: string): Query<T> {
  const [state, setState] = useState<{ key: string; data?: T; problem?: Problem; at?: number }>({ key });
  const [asked, setAsked] = useState(0);
  const latest = useRef(fetch);
  latest.current = fetch;
  const has = useRef("");

  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = (seconds: number) => {
      if (!isOver && seconds > 0) timer = setTimeout(load, seconds * 1000);
    };
    async function load() {
      // The first load, and a reload on request, run even while the page is hidden or paused.
      const isWanted = has.current !== `${key} ${asked}`;
      if (!isWanted && (document.hidden || paused.value)) return next(everySeconds);
      try {
        const data = await latest.current();
        if (!isOver) has.current = `${key} ${asked}`;
        if (!isOver) setState({ key, data, at: Date.now() });
        next(everySeconds);
      } catch (error) {
        const problem = error instanceof Problem ? error : new Problem(0, "Error", String(error), [], undefined, false);
        if (problem.status === 401) session.value = null;
        if (!isOver) setState((before) => (before.key === key ? { ...before, problem } : { key, problem }));
        // A failure is looked at again, later and later up to half a minute.
        next(problem.retryable ? Math.min(30, Math.max(5, everySeconds * 2)) : everySeconds && 30);
      }
    }
    void load();
    const shown = () => {
      if (!document.hidden && everySeconds > 0) {
        clearTimeout(timer);
        void load();
      }
    };
    document.addEventListener("visibilitychange", shown);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, everySeconds, asked]);

  const reload = useCallback(() => setAsked((count) => count + 1), []);
  const heard = about === undefined ? 0 : about === "any" ? told.value : toldOf(about);
  const answered = useRef({ heard, at: 0 });
  useEffect(() => {
    if (heard === answered.current.heard || document.hidden || paused.value) return;
    const wait = Math.max(0, answered.current.at + HEARD_EVERY_MS - Date.now());
    const timer = setTimeout(() => {
      answered.current = { heard, at: Date.now() };
      reload();
    }, wait);
    return () => clearTimeout(timer);
  }, [heard]);
  const own = state.key === key ? state : { key };
  return { data: own.data, problem: own.problem, at: own.at, reload };
}
