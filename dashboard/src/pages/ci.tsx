/** Runs of commits: the verdict of each, and what was measured for it. */

import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { address, setFilter } from "../state";
import { Action } from "../ui/action";
import { Listed } from "../ui/listed";
import { Link, State, Time } from "../ui/parts";

const VERDICTS = ["passed", "regressed", "inconclusive", "error"] as const;

export function CiRuns() {
  const parameters = address.value.searchParams;
  const template = parameters.get("template");
  const verdict = VERDICTS.find((one) => one === parameters.get("verdict"));
  const asked = { ...(template ? { template_id: template } : {}), ...(verdict ? { verdict } : {}) };
  const query = new URLSearchParams(asked).toString();
  const templates = useQuery("templates", () => data(client.GET("/v1/ci-templates", { params: { query: { page_size: 500 } } })));
  return (
    <Listed<Schemas["CiRunView"]>
      title="CI"
      path={`/v1/ci-runs${query ? `?${query}` : ""}`}
      load={(query) => data(client.GET("/v1/ci-runs", { params: { query: { ...asked, ...query } } }))}
      empty={query ? "No run matches." : "No commit has been measured. With a template and a webhook, each push is."}
      command="bakeoff gate --help"
      columns={(reload) => [
        { head: "commit", cell: (row) => <code>{row.commit.slice(0, 12)}</code> },
        { head: "branch", cell: (row) => row.branch ?? (row.pull_request ? `#${row.pull_request}` : "–") },
        { head: "template", cell: (row) => row.template_name },
        { head: "verdict", cell: (row) => <State of={row.verdict ?? row.state} /> },
        { head: "summary", cell: (row) => <span class="why">{row.summary}</span> },
        { head: "experiments", cell: (row) => row.experiment_ids.map((id, index) => <Link to={`/experiments/${id}`}>{index + 1} </Link>) },
        { head: "at", wide: true, cell: (row) => <Time at={row.created_at} /> },
        {
          head: "action",
          cell: (row) =>
            row.verdict === "regressed" && !row.accepted_at ? (
              <Action name="Accept" about={row.commit.slice(0, 12)} run={() => data(client.PUT("/v1/ci-runs/{run_id}/acceptance", { params: { path: { run_id: row.id } }, body: { accepted: true } })).then(reload)}>
                <p>Later commits are compared with this one from now on. Accepting costs nothing.</p>
              </Action>
            ) : null,
        },
      ]}
    >
      <div class="filters">
        <label>
          template{" "}
          <select value={template ?? ""} onChange={(event) => setFilter("template", event.currentTarget.value || null)}>
            <option value="">any</option>
            {templates.data?.items.map((one) => (
              <option value={one.id}>{one.name}</option>
            ))}
          </select>
        </label>
        <label>
          verdict{" "}
          <select value={verdict ?? ""} onChange={(event) => setFilter("verdict", event.currentTarget.value || null)}>
            <option value="">any</option>
            {VERDICTS.map((one) => (
              <option value={one}>{one}</option>
            ))}
          </select>
        </label>
      </div>
    </Listed>
  );
}
