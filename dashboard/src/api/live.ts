/** Events as they happen: one stream for the whole page, which tells what is shown that there may be more. */

import { effect, signal } from "@preact/signals";
import { paused, session } from "../state";
import { client } from "./client";

/** Counts events, in all and by experiment; what shows an experiment reads again when its count grows. */
export const told = signal(0);
const byExperiment = new Map<string, number>();

export function toldOf(experiment: string | undefined): number {
  return experiment === undefined ? told.value : told.value && (byExperiment.get(experiment) ?? 0);
}

/** `live` while the stream is open; `lost` until it is again. */
export const stream = signal<"live" | "lost" | "off">("off");

let source: EventSource | undefined;

function close(): void {
  source?.close();
  source = undefined;
  stream.value = "off";
}

async function open(): Promise<void> {
  // From now on: what was before is read by the pages themselves.
  const newest = await client.GET("/v1/events", { params: { query: { newest: true, page_size: 1 } } }).catch(() => undefined);
  if (source || paused.value || !session.value) return;
  const after = newest?.data?.items[0]?.id ?? 0;
  source = new EventSource(`/v1/events?page_token=${after}`);
  source.onopen = () => (stream.value = "live");
  source.onmessage = (message) => {
    const event = JSON.parse(message.data as string) as { experiment_id?: string | null };
    if (event.experiment_id) byExperiment.set(event.experiment_id, (byExperiment.get(event.experiment_id) ?? 0) + 1);
    told.value += 1;
  };
  // The browser connects again by itself, and resumes after the last event; unless the answer was an error.
  source.onerror = () => {
    stream.value = "lost";
    if (source?.readyState === EventSource.CLOSED) {
      close();
      stream.value = "lost";
      setTimeout(() => void open(), 5000);
    }
  };
}

effect(() => {
  const wants = Boolean(session.value) && !paused.value;
  if (wants && !source) void open();
  else if (!wants) close();
});
