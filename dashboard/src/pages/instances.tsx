/** Instance types: what each one is, what an hour costs and has cost, and how fast it was here. */

import { client, data, type Schemas } from "../api/client";
import { useQuery, type Query } from "../api/query";
import { PriceHistory } from "../charts/prices";
import { count, rate, short, words } from "../format";
import { regionsOf } from "../shape";
import { address, setParameter } from "../state";
import { Empty, Figure, Link, Loaded, ProblemBox, Section, Source, Time } from "../ui/parts";
import { Table, type Column } from "../ui/table";

type Type = Schemas["InstanceType"];
type Price = Schemas["Price"];

/** The region whose prices are shown: that of the page's address, else the service's home. */
function chosenRegion(regions: readonly string[], home: string): string {
  const asked = [address.value.searchParams.get("region"), home];
  return asked.find((one) => one && regions.includes(one)) ?? regions[0] ?? home;
}

/** The service's clock counts: in a simulation, it is not this browser's. */
const version = () => data(client.GET("/v1/version"));

/** The prices in force now, of all types and regions or of one type: negotiated ones go before listed ones. */
async function pricesNow(type?: string): Promise<{ now: string; home: string; prices: readonly Price[] }> {
  const { now, regions } = await version();
  const page = await data(client.GET("/v1/prices", { params: { query: { as_of: now, ...(type ? { instance_type: [type] } : {}) } } }));
  return { now, home: regions[0] ?? "", prices: page.items };
}

function RegionPicker({ regions, value }: { regions: readonly string[]; value: string }) {
  return (
    <label>
      region{" "}
      <select value={value} onChange={(event) => setParameter("region", event.currentTarget.value)}>
        {regions.map((one) => (
          <option value={one}>{one}</option>
        ))}
      </select>
    </label>
  );
}

function PriceFigure({ of }: { of: Price | undefined }) {
  if (!of) return <>–</>;
  return (
    <Figure kind={of.status === "listed" || of.status === "negotiated" ? of.status : "estimated"} about={`${of.source}, from ${of.effective_from.slice(0, 10)} (${words(of.status)})`}>
      {rate(of.usd_per_hour)}
    </Figure>
  );
}

const HARDWARE: readonly Column<Type>[] = [
  { head: "accelerators", cell: (row) => (row.accelerator_count ? `${row.accelerator_count} × ${row.accelerator ?? "?"}` : "–") },
  { head: "GiB each", numeric: true, wide: true, cell: (row) => row.accelerator_memory_gib ?? "–" },
  { head: "bf16 TFLOP/s", numeric: true, wide: true, cell: (row) => row.bf16_tflops ?? "–" },
  { head: "vCPU", numeric: true, wide: true, cell: (row) => row.vcpus ?? "–" },
  { head: "memory", numeric: true, wide: true, cell: (row) => (row.memory_gib == null ? "–" : `${count(row.memory_gib)} GiB`) },
  { head: "network", numeric: true, wide: true, cell: (row) => (row.network_gbps == null ? "–" : `${row.network_gbps} Gbit/s`) },
];

export function Instances() {
  const types = useQuery("types", () => data(client.GET("/v1/instance-types")));
  const prices = useQuery("prices", () => pricesNow());
  const family = address.value.searchParams.get("family") ?? "";
  const all = prices.data?.prices ?? [];
  const regions = regionsOf(all);
  const region = chosenRegion(regions, prices.data?.home ?? "");
  const current = new Map(all.filter((price) => price.region === region).map((price) => [price.instance_type, price]));
  const to = (row: Type) => `/instances/${row.instance_type}?region=${region}`;
  return (
    <>
      <h1>Instances</h1>
      <div class="filters">
        <label>
          type or accelerator <input id="search" type="search" value={family} onInput={(event) => setParameter("family", event.currentTarget.value || null)} />
        </label>
        <RegionPicker regions={regions} value={region} />
      </div>
      {prices.problem && <ProblemBox problem={prices.problem} retry={prices.reload} />}
      <Section title="What each one is, and what an hour costs" aside={<Source path="/v1/instance-types" />}>
        <Loaded query={types} lines={12}>
          {(page) => (
            <Table
              caption="Instance types"
              rows={page.items.filter((row) => `${row.instance_type} ${row.accelerator ?? ""}`.toLowerCase().includes(family.toLowerCase()))}
              link={to}
              columns={[
                { head: "type", cell: (row) => <Link to={to(row)}>{short(row.instance_type)}</Link> },
                ...HARDWARE,
                { head: `$/h, ${region}`, numeric: true, cell: (row) => <PriceFigure of={current.get(row.instance_type)} /> },
              ]}
            />
          )}
        </Loaded>
      </Section>
    </>
  );
}

export function Instance({ id }: { id: string }) {
  const path = { params: { path: { instance_type: id } } };
  const type = useQuery(`type ${id}`, () => data(client.GET("/v1/instance-types/{instance_type}", path)));
  const prices = useQuery(`prices ${id}`, async () => {
    const [history, current] = await Promise.all([data(client.GET("/v1/prices", { params: { query: { instance_type: [id] } } })), pricesNow(id)]);
    return { history: history.items, current };
  });
  return (
    <Loaded query={type} lines={4}>
      {(is) => (
        <>
          <header class="head">
            <div>
              <p class="crumbs">
                <Link to="/instances">Instances</Link> ›
              </p>
              <h1>{is.instance_type}</h1>
            </div>
          </header>
          <Section title="Hardware" aside={<Source path={`/v1/instance-types/${id}`} />}>
            <Table caption="Hardware" rows={[is]} columns={HARDWARE.map((column) => ({ ...column, wide: false }))} />
            {is.nvme_gb > 0 && <p class="fine">{count(is.nvme_gb)} GB of local NVMe take the place of the EBS volume.</p>}
          </Section>
          <Prices of={prices} id={id} />
          <Experience type={id} />
        </>
      )}
    </Loaded>
  );
}

type Known = { history: readonly Price[]; current: Awaited<ReturnType<typeof pricesNow>> };

function Prices({ of, id }: { of: Query<Known>; id: string }) {
  return (
    <Section title="What an hour costs, and has cost" aside={<Source path={`/v1/prices?instance_type=${id}`} />}>
      <Loaded query={of}>
        {({ history: all, current }) => {
          const regions = regionsOf(all);
          const region = chosenRegion(regions, current.home);
          const history = all.filter((price) => price.region === region);
          const inForce = current.prices.find((price) => price.region === region);
          if (history.length === 0) return <Empty what="No price of it is known." command="bakeoff prices --help" />;
          return (
            <>
              <div class="filters">
                <RegionPicker regions={regions} value={region} />
              </div>
              <PriceHistory prices={history} inForce={inForce} now={current.now} />
              <Table
                caption="Prices, newest first"
                rows={[...history].reverse()}
                columns={[
                  { head: "from", cell: (row) => <Time at={row.effective_from} /> },
                  { head: "$/h", numeric: true, cell: (row) => <PriceFigure of={row} /> },
                  { head: "at most", numeric: true, wide: true, cell: (row) => rate(row.usd_per_hour_max) },
                  { head: "status", cell: (row) => words(row.status) },
                  { head: "confirmed", wide: true, cell: (row) => <Time at={row.confirmed_at} /> },
                  { head: "source", wide: true, cell: (row) => <span class="why">{[row.source, row.note].filter(Boolean).join("; ")}</span> },
                ]}
              />
            </>
          );
        }}
      </Loaded>
    </Section>
  );
}

/** Experiments that had it as a candidate. */
function Experience({ type }: { type: string }) {
  const query = useQuery(`experiments on ${type}`, () => data(client.GET("/v1/experiments", { params: { query: { instance_type: type, page_size: 50 } } })));
  return (
    <Section title="Experiments with it" aside={<Source path={`/v1/experiments?instance_type=${type}`} />}>
      <Loaded query={query}>
        {(page) =>
          page.items.length === 0 ? (
            <p class="fine">No experiment has tried it.</p>
          ) : (
            <Table
              caption="Experiments with it"
              rows={page.items}
              link={(row) => `/experiments/${row.id}`}
              columns={[
                { head: "experiment", cell: (row) => <Link to={`/experiments/${row.id}`}>{row.name}</Link> },
                { head: "first", about: "in its answer, also while it runs", cell: (row) => row.answer?.first?.candidate ?? "–" },
                { head: "started", wide: true, cell: (row) => <Time at={row.created_at} /> },
              ]}
            />
          )
        }
      </Loaded>
    </Section>
  );
}
