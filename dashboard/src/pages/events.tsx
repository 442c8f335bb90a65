/** What happened, newest first. */

import { client, data } from "../api/client";
import { useQuery } from "../api/query";
import { address, setParameter } from "../state";
import { Loaded, Section, Source } from "../ui/parts";
import { Feed } from "./overview";

export function Events() {
  const alarms = address.value.searchParams.get("alarms") === "true";
  const path = `/v1/events?newest=true&page_size=100${alarms ? "&alarms_only=true" : ""}`;
  const events = useQuery(path, () => data(client.GET("/v1/events", { params: { query: { newest: true, page_size: 100, ...(alarms ? { alarms_only: true } : {}) } } })), 5);
  return (
    <>
      <h1>Events</h1>
      <div class="filters">
        <label>
          <input type="checkbox" checked={alarms} onChange={(event) => setParameter("alarms", event.currentTarget.checked ? "true" : null)} /> alarms only
        </label>
      </div>
      <Section title="What happened" aside={<Source path={path} />}>
        <Loaded query={events} lines={12}>
          {(page) => <Feed events={page.items} />}
        </Loaded>
      </Section>
    </>
  );
}
