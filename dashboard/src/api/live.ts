/** Events as they happen: one stream for the whole page while it can be seen, which tells what is shown that there may be more. */

import { effect, signal } from "@preact/signals";
import { paused, session } from "../state";
import { client } from "./client";

/** Counts events, in all and by experiment; what shows an experiment reads again when its count grows. */
export const told = signal(0);
const byExperiment = new Map<string, number>();
/** Counts times without a stream, in which anything may have happened. */
const gaps = signal(0);

export function toldOf(experiment: string): number {
  return told.value && gaps.value + (byExperiment.get(experiment) ?? 0);
}

/** `live` while the stream is open; `lost` until it is again. */
export const stream = signal<"live" | "lost" | "off">("off");

/** A browser opens six connections to a service at once, for all of its tabs: those that nobody sees hold none. */
const visible = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (visible.value = !document.hidden));

const LONGEST_WAIT_SECONDS = 60;

let source: EventSource | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
let failures = 0;
/** The last event that was heard: the next stream goes on from there. */
let last: string | undefined;

const isWanted = () => Boolean(session.value) && !paused.value && visible.value;

function close(): void {
  clearTimeout(timer);
  source?.close();
  source = undefined;
  stream.value = "off";
}

async function open(): Promise<void> {
  clearTimeout(timer);
  if (source || !isWanted()) return;
  if (last === undefined) {
    // From now on: what was before is read by the pages themselves.
    const newest = await client.GET("/v1/events", { params: { query: { newest: true, page_size: 1 } } }).catch(() => undefined);
    if (newest?.response.status === 401) session.value = null;
    clearTimeout(timer);
    if (source || !isWanted()) return;
    if (!newest?.data) return openLater();
    last = String(newest.data.items[0]?.id ?? 0);
  } else {
    gaps.value += 1;
    told.value += 1;
  }
  const own = new EventSource(`/v1/events?page_token=${last}`);
  source = own;
  source.onopen = () => {
    failures = 0;
    stream.value = "live";
  };
  source.onmessage = (message) => {
    last = message.lastEventId || last;
    const event = JSON.parse(message.data as string) as { experiment_id?: string | null };
    if (event.experiment_id) byExperiment.set(event.experiment_id, (byExperiment.get(event.experiment_id) ?? 0) + 1);
    told.value += 1;
  };
  // The browser connects again by itself, and resumes after the last event; unless the answer was an error.
  source.onerror = () => {
    if (own !== source) return;
    stream.value = "lost";
    if (own.readyState === EventSource.CLOSED) openLater();
  };
}

function openLater(): void {
  close();
  stream.value = "lost";
  const seconds = Math.min(LONGEST_WAIT_SECONDS, 2 ** failures) * (0.5 + Math.random());
  failures += 1;
  timer = setTimeout(() => void open(), seconds * 1000);
}

effect(() => {
  // Another session's feed may be another project's.
  if (!session.value) last = undefined;
  const wants = isWanted();
  if (wants && !source) void open();
  else if (!wants) close();
});
