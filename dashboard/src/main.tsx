/** The dashboard: which page an address means. */

import { render, type ComponentChildren } from "preact";
import { trouble, whoIsThere } from "./api/session";
import { Calibration } from "./pages/calibration";
import { CiRuns } from "./pages/ci";
import { Compare } from "./pages/compare";
import { Endpoint, Endpoints } from "./pages/endpoints";
import { Events } from "./pages/events";
import { Experiment } from "./pages/experiment";
import { Experiments } from "./pages/experiments";
import { Instance, Instances } from "./pages/instances";
import { Login } from "./pages/login";
import { Models } from "./pages/models";
import { Overview } from "./pages/overview";
import { Pipeline, Pipelines } from "./pages/pipelines";
import { Playground } from "./pages/playground";
import { Run, Runs } from "./pages/runs";
import { Settings } from "./pages/settings";
import { Spending } from "./pages/spending";
import { Trial } from "./pages/trial";
import { Shell } from "./shell";
import { address, session } from "./state";
import { Empty, Link, ProblemBox, Skeleton } from "./ui/parts";
import "./style.css";

const PAGES: Record<string, () => ComponentChildren> = {
  "/": () => <Overview />,
  "/experiments": () => <Experiments />,
  "/compare": () => <Compare />,
  "/playground": () => <Playground />,
  "/runs": () => <Runs />,
  "/pipelines": () => <Pipelines />,
  "/endpoints": () => <Endpoints />,
  "/models": () => <Models />,
  "/instances": () => <Instances />,
  "/spending": () => <Spending />,
  "/ci": () => <CiRuns />,
  "/events": () => <Events />,
  "/calibration": () => <Calibration />,
  "/settings": () => <Settings />,
};

const ONE: readonly (readonly [RegExp, (id: string) => ComponentChildren])[] = [
  [/^\/experiments\/([\w-]+)$/, (id) => <Experiment key={id} id={id} />],
  [/^\/trials\/([\w-]+)$/, (id) => <Trial key={id} id={id} />],
  [/^\/pipelines\/([\w-]+)$/, (id) => <Pipeline key={id} id={id} />],
  [/^\/endpoints\/([\w-]+)$/, (id) => <Endpoint key={id} id={id} />],
  [/^\/instances\/([\w.-]+)$/, (id) => <Instance key={id} id={id} />],
  [/^\/runs\/([\w-]+)$/, (id) => <Run key={id} id={id} />],
];

function Page() {
  const path = address.value.pathname;
  const page = PAGES[path];
  if (page) return <>{page()}</>;
  for (const [pattern, show] of ONE) {
    const id = pattern.exec(path)?.[1];
    if (id) return <>{show(id)}</>;
  }
  return (
    <>
      <h1>Nothing is here</h1>
      <Empty what={`No page has the address ${path}.`} />
      <Link to="/">To the overview</Link>
    </>
  );
}

function App() {
  if (session.value === undefined) return trouble.value ? <ProblemBox problem={trouble.value} retry={() => void whoIsThere()} /> : <Skeleton lines={6} />;
  if (session.value === null) return <Login />;
  return (
    <Shell>
      <Page />
    </Shell>
  );
}

const place = document.getElementById("app");
if (place) render(<App />, place);
void whoIsThere();
