/** What a trial or a run has reported over time: its metrics as small charts. */

import { useRef } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { Series } from "../charts/charts";
import { words } from "../format";
import { address } from "../state";
import { Empty, Loaded, Section, Source } from "./parts";

/** The metrics that are shown before others are chosen; beside a mark, where people look for one. */
const METRICS = ["tokens_per_second", "train_loss", "gpu_utilization_percent", "gpu_memory_utilization_percent"] as const;
const MARKS: Record<string, { value: number; label: string }> = {
  gpu_utilization_percent: { value: 85, label: "85 %" },
  gpu_memory_utilization_percent: { value: 90, label: "90 %" },
};

/** As many as one answer brings. */
const METRICS_MAX = 16;

/** Of a trial or of a run outside SageMaker. */
type Reporter = { trial: string } | { run: string };

export function Metrics({ of, every }: { of: Reporter; every: number }) {
  const [asked, key, own] = "trial" in of ? [{ trial_id: [of.trial] }, `trial_id=${of.trial}`, `/v1/trials/${of.trial}/metrics`] : [{ run_id: [of.run] }, `run_id=${of.run}`, `/v1/runs/${of.run}/metrics`];
  const chosen = address.value.searchParams.getAll("metric");
  const wanted = (chosen.length > 0 ? chosen : [...METRICS]).slice(0, METRICS_MAX);
  const path = `/v1/series?${key}${wanted.map((metric) => `&metric=${encodeURIComponent(metric)}`).join("")}&points=600`;
  const query = useQuery(path, () => data(client.GET("/v1/series", { params: { query: { ...asked, metric: wanted, points: 600 } } })), every);
  // What there is to choose stays while the chosen ones are read.
  const known = useRef<readonly Schemas["MetricName"][]>([]);
  if (query.data) known.current = query.data.metrics;
  const toggle = (metric: string) => {
    const url = new URL(location.href);
    url.searchParams.delete("metric");
    for (const one of wanted.includes(metric) ? wanted.filter((other) => other !== metric) : [...wanted, metric]) url.searchParams.append("metric", one);
    history.replaceState(null, "", url);
    address.value = url;
  };
  return (
    <Section title="Metrics" aside={<Source path={path} />}>
      <div class="filters">
        {known.current.map((one) => (
          <button
            key={one.metric}
            aria-pressed={wanted.includes(one.metric)}
            disabled={wanted.includes(one.metric) ? wanted.length === 1 : wanted.length >= METRICS_MAX}
            onClick={() => toggle(one.metric)}
          >
            {words(one.metric)}
          </button>
        ))}
      </div>
      <Loaded query={query} lines={8}>
        {(got) => (
          <>
            {got.metrics.length === 0 && <Empty what="It has reported nothing yet." />}
            <div class="grid">
              {got.series.map((line) => (
                <div key={line.metric}>
                  <h3>
                    {words(line.metric)} <small>{line.are_means ? "five-minute means" : ""}</small> <Source path={`${own}?metric=${encodeURIComponent(line.metric)}`} csv />
                  </h3>
                  <Series title={words(line.metric)} unit={line.unit ?? ""} columns={line.points} mark={MARKS[line.metric]} />
                </div>
              ))}
            </div>
          </>
        )}
      </Loaded>
    </Section>
  );
}
