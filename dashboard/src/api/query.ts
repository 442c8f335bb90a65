/** Data that a page shows: fetched, kept fresh, and shown as stale where it cannot be. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { paused } from "../state";
import { OFFLINE, Problem } from "./client";
import { told, toldOf } from "./live";

export type Query<T> = {
  data: T | undefined;
  problem: Problem | undefined;
  /** When the data that is shown was fetched, in milliseconds; what is shown after a failure is older than it should be. */
  at: number | undefined;
  reload: () => void;
};

/** A connection that is only half open answers never. */
const LONGEST_MS = 60_000;

function inTime<T>(answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = new Problem(OFFLINE, "No answer", "The service has not answered for a minute.", [], undefined, true);
    const timer = setTimeout(() => reject(late), LONGEST_MS);
    answer.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Events that come close together are answered by one fetch. */
const HEARD_EVERY_MS = 2000;

/** Fetches again so often, in seconds (0: once), and soon after an event: of an experiment, or `any`. */
export function useQuery<T>(key: string, fetch: () => Promise<T>, everySeconds = 0, about?: string): Query<T> {
  const [state, setState] = useState<{ key: string; data?: T; problem?: Problem; at?: number }>({ key });
  const latest = useRef(fetch);
  latest.current = fetch;
  const load = useRef<() => void>(() => undefined);

  useEffect(() => {
    let isOver = false;
    let isBusy = false;
    let isWantedAgain = false;
    // Until it has been answered once, and after a request for it, it is read also while the page is hidden or paused.
    let isDue = true;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = (seconds: number) => {
      if (!isOver && seconds > 0) timer = setTimeout(() => void read(false), seconds * 1000);
    };
    async function read(isWanted: boolean) {
      // One at a time: what is wanted meanwhile is read once more afterwards.
      if (isBusy) {
        isWantedAgain ||= isWanted;
        return;
      }
      clearTimeout(timer);
      isDue ||= isWanted;
      if (!isDue && (document.hidden || paused.value)) return next(everySeconds);
      isBusy = true;
      let seconds = everySeconds;
      try {
        const data = await inTime(latest.current());
        isDue = false;
        if (!isOver) setState({ key, data, at: Date.now() });
      } catch (error) {
        const problem = error instanceof Problem ? error : new Problem(0, "Error", String(error), [], undefined, false);
        if (!isOver) setState((before) => (before.key === key ? { ...before, problem } : { key, problem }));
        // A failure is looked at again, later and later up to half a minute.
        seconds = problem.retryable ? Math.min(30, Math.max(5, everySeconds * 2)) : everySeconds && 30;
      }
      isBusy = false;
      if (isOver) return;
      if (!isWantedAgain) return next(seconds);
      isWantedAgain = false;
      void read(true);
    }
    load.current = () => void read(true);
    load.current();
    const shown = () => {
      if (!document.hidden && everySeconds > 0) void read(false);
    };
    document.addEventListener("visibilitychange", shown);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, everySeconds]);

  const reload = useCallback(() => load.current(), []);
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
