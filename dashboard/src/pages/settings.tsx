/** Who may do what, what may be spent, and who is told: keys, budgets, webhooks, and what this program is. */

import { useState } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { percent, usd, words } from "../format";
import { session } from "../state";
import { Action } from "../ui/action";
import { Bar, Empty, Loaded, Section, Source, State, Time } from "../ui/parts";
import { Table } from "../ui/table";

export function Settings() {
  const isAdmin = session.value?.role === "admin";
  return (
    <>
      <h1>Settings</h1>
      {isAdmin ? (
        <Keys />
      ) : (
        <Section title="API keys">
          <p class="fine">Keys are shown to admins; your key is {session.value?.name}, with the role {session.value?.role}.</p>
        </Section>
      )}
      <div class="columns even">
        <Budget />
        <Program />
      </div>
      <Webhooks />
    </>
  );
}

function Keys() {
  const keys = useQuery("keys", () => data(client.GET("/v1/keys")));
  const [made, setMade] = useState<Schemas["CreatedKey"]>();
  const wanted: { name: string; role: Schemas["KeyRole"] } = { name: "", role: "editor" };
  const make = async () => {
    setMade(await data(client.POST("/v1/keys", { body: wanted })));
    keys.reload();
  };
  const stateOf = (key: Schemas["ApiKey"]) => (key.revoked_at ? "revoked" : key.expires_at && Date.parse(key.expires_at) < Date.now() ? "expired" : "valid");
  return (
    <Section title="API keys" aside={<Source path="/v1/keys" />}>
      {made && (
        <p class="stale" role="status">
          The key of {made.name}, shown only now: <code class="secret">{made.api_key}</code> <button onClick={() => void navigator.clipboard.writeText(made.api_key)}>copy</button> <button onClick={() => setMade(undefined)}>done</button>
        </p>
      )}
      <Loaded query={keys}>
        {(page) => (
          <Table
            caption="API keys"
            rows={page.items}
            columns={[
              { head: "name", cell: (key) => key.name },
              { head: "role", cell: (key) => key.role },
              { head: "state", cell: (key) => <State of={stateOf(key)} /> },
              { head: "made", wide: true, cell: (key) => <Time at={key.created_at} /> },
              { head: "ends", wide: true, cell: (key) => <Time at={key.revoked_at ?? key.expires_at} /> },
              {
                head: "action",
                cell: (key) =>
                  stateOf(key) === "valid" && (
                    <Action
                      name="Revoke"
                      needs="admin"
                      tone="danger"
                      run={async () => {
                        await data(client.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: key.id } } }));
                        keys.reload();
                      }}
                    >
                      <p>
                        What uses the key {key.name} is refused from now on, and whoever is logged in with it is logged out. Jobs that run go on.
                      </p>
                    </Action>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
      <div class="buttons">
        <Action name="Make a key" needs="admin" tone="primary" run={make}>
          <p>Whoever has it may read the project; an editor may spend its budget, an admin may change it.</p>
          <label>
            name <input maxLength={100} onInput={(event) => (wanted.name = event.currentTarget.value)} />
          </label>{" "}
          <label>
            role{" "}
            <select onChange={(event) => (wanted.role = event.currentTarget.value as Schemas["KeyRole"])}>
              <option value="editor">editor</option>
              <option value="viewer">viewer</option>
              <option value="admin">admin</option>
            </select>
          </label>
        </Action>
      </div>
    </Section>
  );
}

function Budget() {
  const project = useQuery("project", () => data(client.GET("/v1/projects/current")), 30);
  return (
    <Section title="Budget of the project" aside={<Source path="/v1/projects/current" />}>
      <Loaded query={project}>
        {(is) => {
          const used = is.settled_usd + is.reserved_usd;
          const budget = { value: is.budget_usd ?? 0 };
          return (
            <>
              <dl class="figures">
                <div>
                  <dt>in all</dt>
                  <dd>
                    {usd(used)} <small>of {is.budget_usd == null ? "no limit" : usd(is.budget_usd)}</small>
                  </dd>
                </div>
                <div>
                  <dt>this month</dt>
                  <dd>
                    {usd(is.month.settled_usd)} <small>of {is.monthly_budget_usd == null ? "no limit" : usd(is.monthly_budget_usd)}</small>
                  </dd>
                </div>
                <div>
                  <dt>trials at a time</dt>
                  <dd>{is.concurrent_trials_max ?? "no limit"}</dd>
                </div>
              </dl>
              {is.budget_usd ? (
                <p>
                  <Bar share={used / is.budget_usd} label="of the budget" /> {percent(used / is.budget_usd)} used or held
                </p>
              ) : null}
              <div class="buttons">
                <Action name="Change the budget" needs="admin" run={() => data(client.PUT("/v1/projects/current/budget", { body: { budget_usd: budget.value } })).then(project.reload)}>
                  <p>
                    {usd(is.settled_usd)} are spent and {usd(is.reserved_usd)} held. Experiments that do not fit wait, or are refused.
                  </p>
                  <label>
                    budget of the project, dollars <input type="number" min={0} step="any" defaultValue={String(is.budget_usd ?? "")} onInput={(event) => (budget.value = Number(event.currentTarget.value))} />
                  </label>
                </Action>
              </div>
            </>
          );
        }}
      </Loaded>
    </Section>
  );
}

function Program() {
  const version = useQuery("version", () => data(client.GET("/v1/version")), 60);
  return (
    <Section title="This service" aside={<Source path="/v1/version" />}>
      <Loaded query={version}>
        {(is) => (
          <dl class="figures">
            <div>
              <dt>version</dt>
              <dd>{is.version}</dd>
            </div>
            <div>
              <dt>its time</dt>
              <dd>
                <Time at={is.now} /> <small>{is.clock_factor > 1 ? `simulated, ${is.clock_factor} times as fast` : ""}</small>
              </dd>
            </div>
            <div>
              <dt>regions</dt>
              <dd>{is.regions.join(", ")}</dd>
            </div>
          </dl>
        )}
      </Loaded>
      <p class="fine">
        <a href="/docs/">Documentation</a> · <a href="/docs/api/">The API, described</a> · <a href="/openapi.json">openapi.json</a>
      </p>
    </Section>
  );
}

function Webhooks() {
  const endpoints = useQuery("webhooks", () => data(client.GET("/v1/webhook-endpoints")), 30);
  const [said, setSaid] = useState<Schemas["WebhookTest"]>();
  return (
    <Section title="Webhooks that go out" aside={<Source path="/v1/webhook-endpoints" />}>
      {said && (
        <p class="stale" role="status">
          {said.status ? `It answered ${said.status} in ${said.milliseconds ?? "?"} ms.` : `No answer: ${said.problem ?? ""}`}
        </p>
      )}
      <Loaded query={endpoints}>
        {(page) =>
          page.items.length === 0 ? (
            <Empty what="Nobody is told of events." command={'curl -X POST "$BAKEOFF_URL/v1/webhook-endpoints" -H "Authorization: Bearer $BAKEOFF_API_KEY" -d \'{"url": "https://hooks.example.com/bakeoff"}\''} />
          ) : (
            <Table
              caption="Webhooks that go out"
              rows={page.items}
              columns={[
                { head: "to", cell: (row) => row.url },
                { head: "of", cell: (row) => (row.kinds.length > 0 ? row.kinds.map(words).join(", ") : "all events") },
                { head: "state", cell: (row) => <State of={row.disabled_at ? "disabled" : row.failing_since ? "failed" : "running"} /> },
                { head: "since", wide: true, cell: (row) => <Time at={row.disabled_at ?? row.failing_since ?? row.created_at} /> },
                { head: "why", wide: true, cell: (row) => row.disabled_reason ?? "" },
                {
                  head: "action",
                  cell: (row) => (
                    <Action name="Test" run={async () => setSaid(await data(client.POST("/v1/webhook-endpoints/{endpoint_id}/test", { params: { path: { endpoint_id: row.id } } })))}>
                      <p>A test message is sent to {row.url} now. It costs nothing.</p>
                    </Action>
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
    </Section>
  );
}
