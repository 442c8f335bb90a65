/** Data that a page shows: fetched, kept fresh, and shown as stale where it cannot be. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { paused, session } from "../state";
import { Problem } from "./client";

export type Query<T> = {
  data: T | undefined;
  problem: Problem | undefined;
  /** When the data that is shown was fetched, in milliseconds; what is shown after a failure is older than it should be. */
  at: number | undefined;
  reload: () => void;
};

/** Fetches again so often, in seconds; 0: once. */
export function useQuery<T>(key: string, fetch: () => Promise<T>, everySeconds = 0): Query<T> {
  const [state, setState] = useState<{ key: string; data?: T; problem?: Problem; at?: number }>({ key });
  const [asked, setAsked] = useState(0);
  const latest = useRef(fetch);
  latest.current = fetch;

  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = (seconds: number) => {
      if (!isOver && seconds > 0) timer = setTimeout(load, seconds * 1000);
    };
    async function load() {
      if (document.hidden || paused.value) return next(everySeconds);
      try {
        const data = await latest.current();
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
  const own = state.key === key ? state : { key };
  return { data: own.data, problem: own.problem, at: own.at, reload };
}
