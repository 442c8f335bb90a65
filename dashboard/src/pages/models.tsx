/** Models in SageMaker's Model Registry: where each comes from, and whether it may be deployed. */

import { client, data, type Schemas } from "../api/client";
import { words } from "../format";
import { Action } from "../ui/action";
import { Listed } from "../ui/listed";
import { Link, State, Time } from "../ui/parts";

type Model = Schemas["ModelPackage"];

export function Models() {
  return (
    <Listed<Model>
      title="Models"
      path="/v1/model-packages"
      load={(query) => data(client.GET("/v1/model-packages", { params: { query } }))}
      empty="No model is registered."
      command="bakeoff models register --help"
      columns={(reload) => [
        { head: "group", cell: (row) => row.group },
        { head: "version", numeric: true, cell: (row) => row.version ?? "–" },
        { head: "state", cell: (row) => <State of={row.state} /> },
        { head: "approval", cell: (row) => <span title={row.approval_note ?? undefined}>{row.approval === row.wanted_approval ? words(row.approval) : `${words(row.approval)} → ${words(row.wanted_approval)}`}</span> },
        { head: "trained by", cell: (row) => <Link to={`/trials/${row.trial_id}`}>{row.trial_id.slice(-6)}</Link> },
        { head: "registered", wide: true, cell: (row) => <Time at={row.created_at} /> },
        { head: "why", wide: true, cell: (row) => <span class="why">{row.reason ?? ""}</span> },
        { head: "action", cell: (row) => row.state === "registered" && <Approval of={row} reload={reload} /> },
      ]}
    />
  );
}

function Approval({ of, reload }: { of: Model; reload: () => void }) {
  const set = (approval: Schemas["Approval"]) => data(client.PATCH("/v1/model-packages/{model_package_id}", { params: { path: { model_package_id: of.id } }, body: { approval } })).then(reload);
  const name = `version ${of.version} of ${of.group}`;
  return (
    <>
      {of.wanted_approval !== "approved" && (
        <Action name="Approve" about={name} run={() => set("approved")}>
          <p>Whatever deploys approved models may deploy {name} from now on. Approving costs nothing by itself.</p>
        </Action>
      )}{" "}
      {of.wanted_approval !== "rejected" && (
        <Action name="Reject" about={name} tone="danger" run={() => set("rejected")}>
          <p>{name} may not be deployed any more. Endpoints that serve it go on until they end.</p>
        </Action>
      )}
    </>
  );
}
