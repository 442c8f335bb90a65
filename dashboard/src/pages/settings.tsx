/** Who may do what, what may be spent, and who is told: keys, budgets, webhooks, and what this program is. */

import { useState } from "preact/hooks";
import { client, data, type Schemas } from "../api/client";
import { useQuery } from "../api/query";
import { percent, usd, words } from "../format";
import { session } from "../state";
import { Action, amount } from "../ui/action";
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

const ROLES = ["editor", "viewer", "admin"] as const;

function Keys() {
  const keys = useQuery("keys", () => data(client.GET("/v1/keys")));
  const [made, setMade] = useState<Schemas["CreatedKey"]>();
  const make = async (form: FormData) => {
    const role = ROLES.find((one) => one === form.get("role")) ?? "viewer";
    setMade(await data(client.POST("/v1/keys", { body: { name: String(form.get("name")), role } })));
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
                      about={key.name}
                      needs="admin"
                      tone="danger"
                      run={async () => {
                        await data(client.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: key.id } } }));
                        keys.reload();
                      }}
                    >
                      <p>
                        Requests with the key {key.name} are refused from now on, and its sessions are logged out. Running jobs go on.
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
          <p>Every key can read the project; an editor can spend its budget, an admin can change it.</p>
          <label>
            name <input name="name" maxLength={100} required />
          </label>{" "}
          <label>
            role{" "}
            <select name="role">
              {ROLES.map((one) => (
                <option value={one}>{one}</option>
              ))}
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
                    {usd(is.month.settled_usd + is.reserved_usd)} <small>of {is.monthly_budget_usd == null ? "no limit" : usd(is.monthly_budget_usd)}</small>
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
                <Action name="Change the budget" needs="admin" run={(form) => data(client.PUT("/v1/projects/current/budget", { body: { budget_usd: amount(form, "budget_usd") ?? null } })).then(project.reload)}>
                  <p>
                    {usd(is.settled_usd)} are spent and {usd(is.reserved_usd)} held. Experiments that do not fit wait, or are refused; with 0, nothing starts. An empty field means no cap.
                  </p>
                  <label>
                    budget of the project, dollars <input name="budget_usd" type="number" min={0} step="any" placeholder="no cap" defaultValue={String(is.budget_usd ?? "")} />
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
        <a href="/docs/">Documentation</a> · <a href="/docs/api/">API reference</a> · <a href="/openapi.json">openapi.json</a>
      </p>
    </Section>
  );
}

function Webhooks() {
  const endpoints = useQuery("webhooks", () => data(client.GET("/v1/webhook-endpoints")), 30);
  const [said, setSaid] = useState<Schemas["WebhookTest"]>();
  const [chosen, setChosen] = useState<Schemas["EndpointOfWebhooks"]>();
  return (
    <Section title="Outgoing webhooks" aside={<Source path="/v1/webhook-endpoints" />}>
      {said && (
        <p class="stale" role="status">
          {said.status ? `It answered ${said.status} in ${said.milliseconds ?? "?"} ms.` : `No answer: ${said.problem ?? ""}`}
        </p>
      )}
      <Loaded query={endpoints}>
        {(page) =>
          page.items.length === 0 ? (
            <Empty what="No webhook is set up." command={'curl -X POST "$BAKEOFF_URL/v1/webhook-endpoints" -H "Authorization: Bearer $BAKEOFF_API_KEY" -d \'{"url": "https://hooks.example.com/bakeoff"}\''} />
          ) : (
            <Table
              caption="Outgoing webhooks"
              rows={page.items}
              columns={[
                { head: "to", cell: (row) => row.url },
                { head: "of", cell: (row) => (row.kinds.length > 0 ? row.kinds.map(words).join(", ") : "all events") },
                { head: "state", cell: (row) => <State of={row.disabled_at ? "disabled" : row.failing_since ? "failed" : "running"} /> },
                { head: "since", wide: true, cell: (row) => <Time at={row.disabled_at ?? row.failing_since ?? row.created_at} /> },
                { head: "why", wide: true, cell: (row) => row.disabled_reason ?? "" },
                { head: "deliveries", cell: (row) => <button onClick={() => setChosen(row)}>show</button> },
                {
                  head: "action",
                  cell: (row) => (
                    <Action name="Test" about={row.url} needs="admin" run={async () => setSaid(await data(client.POST("/v1/webhook-endpoints/{endpoint_id}/test", { params: { path: { endpoint_id: row.id } } })))}>
                      <p>A test message is sent to {row.url} now. It costs nothing.</p>
                    </Action>
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {chosen && <Deliveries of={chosen} />}
    </Section>
  );
}

/** What was sent to an address: whether it arrived, and what can be sent again. */
function Deliveries({ of }: { of: Schemas["EndpointOfWebhooks"] }) {
  const path = `/v1/webhook-endpoints/${of.id}/deliveries`;
  const query = useQuery(path, () => data(client.GET("/v1/webhook-endpoints/{endpoint_id}/deliveries", { params: { path: { endpoint_id: of.id } } })), 15, "any");
  const again = (id: string) => data(client.POST("/v1/webhook-deliveries/{delivery_id}/replay", { params: { path: { delivery_id: id } } })).then(query.reload);
  return (
    <>
      <h3>
        Deliveries to {of.url} <Source path={path} />
      </h3>
      <Loaded query={query}>
        {(page) =>
          page.items.length === 0 ? (
            <p class="fine">Nothing has been sent there.</p>
          ) : (
            <Table
              caption="Deliveries"
              rows={page.items}
              columns={[
                { head: "event", cell: (row) => words(row.kind) },
                { head: "state", cell: (row) => <State of={row.state} /> },
                { head: "tries", numeric: true, cell: (row) => row.attempts },
                { head: "at", wide: true, cell: (row) => <Time at={row.ended_at ?? row.created_at} /> },
                { head: "tried next", wide: true, cell: (row) => <Time at={row.due_at} /> },
                {
                  head: "action",
                  cell: (row) =>
                    row.state !== "pending" && (
                      <Action name="Send again" about={words(row.kind)} run={() => again(row.id)}>
                        <p>The same event, with the same id, is sent to {of.url} once more.</p>
                      </Action>
                    ),
                },
              ]}
            />
          )
        }
      </Loaded>
    </>
  );
}
