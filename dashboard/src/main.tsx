/** The dashboard: which page an address means. */

import { render, type ComponentChildren } from "preact";
import { whoIsThere } from "./api/session";
import { Calibration, CiRuns, Endpoints, Events, Instances, Models, Pipeline, Pipelines, Spending } from "./pages/lists";
import { Compare } from "./pages/compare";
import { Experiment } from "./pages/experiment";
import { Experiments } from "./pages/experiments";
import { Login } from "./pages/login";
import { Overview } from "./pages/overview";
import { Playground } from "./pages/playground";
import { Settings } from "./pages/settings";
import { Trial } from "./pages/trial";
import { Shell } from "./shell";
import { address, session } from "./state";
import { Empty, Link, Skeleton } from "./ui/parts";
import "./style.css";

const PAGES: Record<string, () => ComponentChildren> = {
  "/": () => <Overview />,
  "/experiments": () => <Experiments />,
  "/compare": () => <Compare />,
  "/playground": () => <Playground />,
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
  if (session.value === undefined) return <Skeleton lines={6} />;
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
