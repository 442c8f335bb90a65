/** What people do with the dashboard, in a real browser, against the real service and the simulated region. */

import { readFileSync, readdirSync } from "node:fs";
import { gzipSync } from "node:zlib";
import AxeBuilder from "@axe-core/playwright";
import { expect, test, type APIRequestContext, type Page } from "@playwright/test";

declare const process: { env: Record<string, string | undefined> };

const KEY = process.env.BAKEOFF_API_KEY ?? "";
const SECOND_KEY = process.env.BAKEOFF_SECOND_KEY ?? "";
const BASE = process.env.BAKEOFF_URL ?? "";
const SHOTS = "../target/dashboard";

/** What a page must never do; checked at the end of each test. */
let offences: string[] = [];

test.beforeEach(({ page }) => {
  offences = [];
  page.on("pageerror", (error) => offences.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // A request that is refused on purpose is logged by the browser itself.
    if (message.type() === "error" && !message.text().includes("Failed to load resource")) offences.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(BASE) && !request.url().startsWith("blob:")) offences.push(`another host: ${request.url()}`);
  });
});

test.afterEach(() => expect(offences).toEqual([]));

async function logIn(page: Page, key = KEY): Promise<void> {
  await page.goto("/");
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("heading", { name: "Overview" })).toBeVisible();
}

/** Something made over the API, as a notebook or CI would. */
async function made(request: APIRequestContext, path: string, data: unknown): Promise<{ id: string }> {
  const answer = await request.post(`${BASE}${path}`, { headers: AUTHORISED, data });
  const said = (await answer.json()) as { id: string };
  expect(answer.status(), JSON.stringify(said)).toBe(201);
  return said;
}

/** The part of the page below a heading. */
const section = (page: Page, name: string) => page.locator("section.card", { has: page.getByRole("heading", { name, exact: true }) });

/** Does what a button says, after what its dialog says. */
async function act(page: Page, name: string): Promise<void> {
  await page.getByRole("button", { name, exact: true }).first().click();
  await page.locator("dialog[open]").getByRole("button", { name, exact: true }).click();
}

const AUTHORISED = { authorization: `Bearer ${KEY}` };

async function open(page: Page, name: string): Promise<void> {
  await page.goto("/experiments");
  await page.getByRole("link", { name, exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toContainText(name);
}

test("a wrong key is refused with the way out, and a right one leads to the overview", async ({ page }) => {
  await page.goto("/experiments");
  await page.getByLabel("API key").fill("bk_wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("alert")).toContainText("bakeoff keys create");
  await page.getByLabel("API key").fill(KEY);
  await page.getByRole("button", { name: "Log in" }).click();
  // The address that was asked for is where one is then.
  await expect(page.getByRole("heading", { level: 1, name: "Experiments" })).toBeVisible();
  const cookie = (await page.context().cookies()).find((one) => one.name === "__Host-bakeoff");
  expect(cookie).toMatchObject({ httpOnly: true, secure: true, sameSite: "Strict", path: "/" });
  expect(await page.evaluate(() => document.cookie)).toBe("");
});

test("an answer is read, with its candidates, its reasons and what it rests on", async ({ page }) => {
  await logIn(page);
  await open(page, "hebrew-p4-p5");
  const answer = page.getByRole("region", { name: "answer" });
  await expect(answer).toContainText(/Buy|Lean towards/);
  await expect(answer).toContainText("this answer cost");
  await expect(page.getByRole("region", { name: "Candidates" }).getByRole("row")).toHaveCount(7);
  // Points of a chart can be reached by keyboard, and say what they are.
  const point = page.locator("figure.chart [role=img]").first();
  await expect(point).toHaveAttribute("aria-label", /\$/);
  await point.focus();
  await expect(page.locator(".readout").first()).toContainText("$");
  for (const tab of ["race", "loss", "hours", "money", "events", "findings", "raw"]) {
    await page.getByRole("button", { name: tab, exact: true }).click();
    await expect(page).toHaveURL(new RegExp(`tab=${tab}`));
    await expect(page.locator("section.card").last()).not.toBeEmpty();
  }
  // The address of a tab leads back to it.
  await page.reload();
  await expect(page.getByRole("button", { name: "raw", exact: true })).toHaveAttribute("aria-current", "page");
});

test("a failed trial is followed to its cause and the change that mends it", async ({ page }) => {
  await logIn(page);
  await open(page, "vision-g6");
  await page.getByRole("link", { name: "g6", exact: true }).first().click();
  await expect(page.getByRole("heading", { name: "Why it failed" })).toBeVisible();
  await expect(page.locator(".headline").first()).toContainText("ran out of memory");
  await expect(page.locator("pre.log").last()).toContainText("OutOfMemoryError");
  // The change leads to a new experiment, or joins this one as a candidate.
  await page.getByRole("button", { name: "Open in the playground" }).first().click();
  await expect(page.getByLabel("document")).toHaveValue(/"name": "vision-g6-mended"/);
  await expect(page.getByText("Before a dollar is spent")).toBeVisible();
  await page.goBack();
  await act(page, "Run it with this change");
  await expect(page.getByRole("heading", { level: 1 })).toContainText("vision-g6");
  await expect(page.getByRole("link", { name: "g6-mended", exact: true }).first()).toBeVisible();
});

test("a pasted job is checked, with a fix for each finding", async ({ page }) => {
  await logIn(page);
  await page.getByRole("link", { name: "Playground" }).click();
  const document = page.getByLabel("document");
  await document.fill('{"layers": ');
  await expect(page.getByText("Not JSON yet")).toBeVisible();
  const job = { TrainingJobName: "a b", RoleArn: "arn:aws:iam::111122223333:role/x", StoppingCondition: { MaxRuntimeInSeconds: 3600 } };
  await document.fill(JSON.stringify(job));
  await expect(page.locator(".finding").first()).toBeVisible();
  await expect(page.locator(".finding .fix").first()).toContainText("→");
});

test("one finding's fix is applied alone", async ({ page }) => {
  await logIn(page);
  await page.goto("/playground");
  const document = page.getByLabel("document");
  await document.fill(readFileSync("../examples/hebrew-p4-p5.json", "utf8"));
  await page.getByRole("button", { name: "Apply", exact: true }).first().click();
  const offloads = async () => (JSON.parse(await document.inputValue()) as { candidates: { profile: { cpu_offload?: string } }[] }).candidates.map((one) => one.profile.cpu_offload);
  await expect.poll(offloads).toContain("none");
});

test("the name of a model becomes an experiment, and its questions are answered in the page", async ({ page }) => {
  await logIn(page);
  await page.goto("/playground");
  await page.getByLabel("document").fill("Qwen/Qwen2.5-7B");
  const panel = section(page, "The experiment made from this");
  await expect(panel).toContainText("need your answer");
  await expect(panel.getByRole("button", { name: "Continue with this experiment" })).toBeDisabled();
  const answers = {
    "/workload/image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/legal-lora:1.0",
    "/workload/role_arn": "arn:aws:iam::111122223333:role/bakeoff-training-execution",
    "/workload/output_s3_uri": "s3://bakeoff-example/playground/",
    "/workload/metrics": "hf-trainer",
    "/workload/total_tokens": "500000000",
  };
  for (const [pointer, value] of Object.entries(answers)) {
    const field = panel.locator(`input[name="${pointer}"]`);
    await field.fill(value);
    await field.blur();
    await expect(panel.getByText(`${pointer} is ${value}`)).toBeVisible();
    await expect(field).toHaveCount(0);
  }
  await panel.getByRole("button", { name: "Continue with this experiment" }).click();
  await expect(page.getByText("Before a dollar is spent")).toBeVisible();
});

test("YAML of a trainer is read, and what it says is named", async ({ page }) => {
  await logIn(page);
  await page.goto("/playground");
  await page.getByLabel("document").fill("base_model: Qwen/Qwen2.5-7B\nadapter: lora\nlora_r: 16\nsequence_len: 2048\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\n");
  const panel = section(page, "The experiment made from this");
  await panel.getByText("what each value was read from").click();
  await expect(panel).toContainText("sequence_len");
  await expect(page.getByRole("alert")).toHaveCount(0);
});

test("a pipeline asks before it buys, and a person decides in its page", async ({ page, request }) => {
  test.setTimeout(240_000);
  const compare = JSON.parse(readFileSync("../examples/hebrew-p4-p5.json", "utf8")) as Record<string, unknown> & { name: string; candidates: unknown[] };
  // One candidate alone leads, and is never clearly the best.
  compare.candidates = compare.candidates.slice(-1);
  compare.name = "asked-first";
  const train = { experiment_id: "${compare.experiment_id}", candidate: "${compare.winner.candidate}", purchase_option: "${compare.winner.purchase_option}", budget_usd: 3000 };
  const { id } = await made(request, "/v1/pipelines", {
    name: "ask-first",
    region: "us-east-1",
    role_arn: "arn:aws:iam::111122223333:role/bakeoff-training-execution",
    output_s3_uri: "s3://bakeoff-example/pipelines/",
    budget_usd: 6000,
    steps: [
      { name: "compare", experiment: compare },
      { name: "train", full_run: train },
    ],
  });
  await logIn(page);
  await page.goto(`/pipelines/${id}`);
  await expect(page.locator("svg.graph")).toHaveAttribute("aria-label", /compare .*, train /);
  await expect(page.getByRole("heading", { name: "Needs your decision: what train buys" })).toBeVisible({ timeout: 200_000 });
  await page.getByRole("button", { name: /^Approve / }).first().click();
  await expect(page.getByRole("dialog", { name: /^Approve / })).toContainText("projected");
  await page.getByRole("dialog", { name: /^Approve / }).getByRole("button", { name: /^Approve / }).click();
  await expect(page.getByRole("heading", { name: "Needs your decision: what train buys" })).toHaveCount(0);
  await act(page, "Cancel");
  await expect(page.getByRole("heading", { level: 1 })).toContainText(/cancel/);
});

test("an endpoint is extended and deleted, and its list knows at once", async ({ page, request }) => {
  const { id } = await made(request, "/v1/endpoints", {
    name: "by hand",
    region: "us-east-1",
    endpoint: {
      model: { image: "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-inference:2.6.0-transformers4.49.0-gpu-py312-cu124-ubuntu22.04", model_s3_uri: "s3://bakeoff-example/legal/train/" },
      instance_type: "ml.g5.xlarge",
      role_arn: "arn:aws:iam::111122223333:role/bakeoff-training-execution",
      time_to_live_hours: 400,
      weights_gib: 4,
    },
  });
  await logIn(page);
  await page.goto(`/endpoints/${id}`);
  await expect(page.getByRole("heading", { level: 1 })).toContainText("in service", { timeout: 30_000 });
  await page.getByRole("button", { name: "Extend", exact: true }).click();
  const dialog = page.locator("dialog[open]");
  await expect(dialog.getByLabel("hours in all")).toHaveValue("401");
  await dialog.getByLabel("hours in all").fill("500");
  await expect(dialog).toContainText("With 500 hours");
  await dialog.getByRole("button", { name: "Extend", exact: true }).click();
  await expect(section(page, "Its time and its money")).toContainText("of 500");
  await page.goto("/endpoints");
  const row = page.getByRole("row", { name: /by hand/ });
  await row.getByRole("button", { name: "Delete", exact: true }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(row).toContainText(/deleting|deleted/);
});

test("an instance type shows what an hour of it has cost", async ({ page }) => {
  await logIn(page);
  await page.goto("/instances?family=p5");
  await page.getByRole("link", { name: "p5e.48xlarge", exact: true }).click();
  const prices = section(page, "What an hour costs, and has cost");
  await expect(prices.locator("figure.chart svg").first()).toBeVisible();
  await expect(prices).toContainText("negotiated");
});

test("a run outside SageMaker is seen with its figures", async ({ page, request }) => {
  const { id } = await made(request, "/v1/runs", { name: "lab", hardware: "4 x RTX 4090", accelerator_count: 4, usd_per_hour: 2.8 });
  const { now } = (await (await request.get(`${BASE}/v1/version`, { headers: AUTHORISED })).json()) as { now: string };
  const began = Date.parse(now) - 600_000;
  const points = Array.from({ length: 30 }, (_, step) => JSON.stringify({ timestamp: new Date(began + step * 10_000).toISOString(), step, tokens_per_second: 9000, loss: 3 - step / 30 }));
  const sent = await request.post(`${BASE}/v1/runs/${id}/metrics`, { headers: { ...AUTHORISED, "content-type": "application/x-ndjson" }, data: points.join("\n") });
  expect(sent.status(), await sent.text()).toBeLessThan(300);
  await logIn(page);
  await page.goto("/runs");
  await page.getByRole("link", { name: "lab", exact: true }).click();
  await expect(section(page, "Metrics").locator("figure.chart svg").first()).toBeVisible();
  await act(page, "End");
  await expect(page.getByRole("heading", { level: 1 })).toContainText("completed");
});

test("an experiment is started in the page, a candidate is added, and a loser is stopped", async ({ page }) => {
  test.setTimeout(120_000);
  await logIn(page);
  await page.goto("/playground");
  const spec = JSON.parse(readFileSync("../examples/hebrew-p4-p5.json", "utf8")) as Record<string, unknown>;
  // Long enough that nothing is decided before it is stopped by hand.
  const long = {
    ...spec,
    name: "from-the-page",
    stopping_policy: "full",
    max_runtime_seconds: 20 * 24 * 3600,
    budget_usd: 200_000,
    objective: { minimize: "cost" },
    workload: { ...(spec.workload as object), trial_tokens: 60_000_000_000, total_tokens: 120_000_000_000 },
  };
  await page.getByLabel("document").fill(JSON.stringify(long));
  await act(page, "Start it");
  await expect(page.getByRole("heading", { level: 1 })).toContainText("from-the-page");
  await page.getByRole("button", { name: "Add a candidate" }).click();
  const dialog = page.locator("dialog[open]");
  await expect(dialog.getByLabel("candidate")).toHaveValue(/-2"/);
  await dialog.getByRole("button", { name: "Add a candidate" }).click();
  await expect(page.getByRole("link", { name: /-2$/ }).first()).toBeVisible();
  await page.getByRole("link", { name: /-2$/ }).first().click();
  await act(page, "Stop");
  await expect(page.getByRole("heading", { level: 1 })).toContainText(/stop/);
});

test("the winner is bought, for at most what the page says", async ({ page }) => {
  await logIn(page);
  await open(page, "hebrew-p4-p5");
  const buy = page.getByRole("button", { name: /^Buy the full run on/ });
  await buy.click();
  const dialog = page.getByRole("dialog", { name: /^Buy the full run on/ });
  await expect(dialog).toContainText("at most");
  await dialog.getByRole("button", { name: /^Buy the full run on/ }).click();
  await expect(page.getByRole("heading", { level: 1 })).toContainText("full run");
  // It is one itself: nothing more is to be bought there, and nothing is refused.
  await expect(page.getByRole("alert")).toHaveCount(0);
});

test("a lost connection is said with the time of what is shown, and the page comes back by itself", async ({ page, context }) => {
  test.setTimeout(120_000);
  await logIn(page);
  await page.goto("/experiments");
  await expect(page.locator("tbody tr").first()).toBeVisible();
  await context.setOffline(true);
  await expect(page.getByRole("status").filter({ hasText: "Not up to date" }).first()).toBeVisible({ timeout: 40_000 });
  await expect(page.locator("tbody tr").first()).toBeVisible();
  await context.setOffline(false);
  await expect(page.getByRole("status").filter({ hasText: "Not up to date" })).toHaveCount(0, { timeout: 60_000 });
});

test("a budget is changed, and what it may not be is said", async ({ page }) => {
  await logIn(page);
  await open(page, "hebrew-p4-p5");
  await page.getByRole("button", { name: "Change the budget", exact: true }).click();
  const dialog = page.locator("dialog[open]");
  await dialog.getByLabel("new budget, dollars").fill("1");
  await dialog.getByRole("button", { name: "Change the budget" }).click();
  await expect(dialog.getByRole("alert")).toBeVisible();
  await dialog.getByLabel("new budget, dollars").fill("2500");
  await dialog.getByRole("button", { name: "Change the budget" }).click();
  await expect(page.getByText("of $2,500.00")).toBeVisible();
});

test("keys alone lead through pages and rows", async ({ page }) => {
  await logIn(page);
  await page.keyboard.press("g");
  await page.keyboard.press("e");
  await expect(page.getByRole("heading", { level: 1, name: "Experiments" })).toBeVisible();
  await expect(page.locator("tbody tr").first()).toBeVisible();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/experiments\/exp_/);
});

test("a log-out ends the session, and a forged log-in is refused", async ({ page, request }) => {
  await logIn(page, SECOND_KEY);
  await page.getByRole("button", { name: /log out/ }).click();
  await expect(page.getByLabel("API key")).toBeVisible();
  await page.goto("/experiments");
  await expect(page.getByLabel("API key")).toBeVisible();
  // Another site's page cannot act with the cookie, even where the browser would send it.
  const forged = await request.post(`${BASE}/v1/sessions`, { headers: { "sec-fetch-site": "cross-site", origin: "https://elsewhere.example" }, data: { api_key: KEY } });
  expect(forged.status()).toBe(403);
});

test("two experiments are chosen, and what differs between them is marked", async ({ page }) => {
  await logIn(page);
  await page.goto("/experiments");
  await page.getByLabel("compare hebrew-p4-p5", { exact: true }).check();
  await page.getByLabel("compare vision-g6", { exact: true }).check();
  await page.getByRole("button", { name: "Compare 2" }).click();
  await expect(page).toHaveURL(/\/compare\?experiment=exp_.*&experiment=exp_/);
  await expect(page.getByText("They differ in:")).toContainText("instance");
  await expect(page.locator("tr.differs").first()).toBeVisible();
});

test("the race is read look by look, and what the answer said before", async ({ page }) => {
  await logIn(page);
  await open(page, "hebrew-p4-p5");
  await page.getByRole("button", { name: "race", exact: true }).click();
  await expect(page.getByRole("group", { name: /multiple of the leader/ })).toBeVisible();
  await expect(page.locator("ol.feed li").first()).toContainText("final");
});

test("a key is made, is shown once, and whoever is logged in with it is logged out when it is revoked", async ({ page, browser }) => {
  await logIn(page);
  await page.goto("/settings");
  await page.getByRole("button", { name: "Make a key" }).click();
  const dialog = page.getByRole("dialog", { name: "Make a key" });
  await dialog.getByLabel("name").fill("for a while");
  await dialog.getByRole("button", { name: "Make a key" }).click();
  const key = await page.locator("code.secret").innerText();
  const other = await (await browser.newContext()).newPage();
  await logIn(other, key);
  await page.getByRole("row", { name: /for a while/ }).getByRole("button", { name: "Revoke" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Revoke" }).click();
  await expect(page.getByRole("row", { name: /for a while/ })).toContainText("revoked");
  await other.goto("/experiments");
  await expect(other.getByLabel("API key")).toBeVisible();
});

test("a login link logs in once, and leaves no trace in the address", async ({ page, request, browser }) => {
  const made = await request.post(`${BASE}/v1/login-links`, { headers: { authorization: `Bearer ${KEY}` } });
  const { path } = (await made.json()) as { path: string };
  await page.goto(path);
  await expect(page.getByRole("heading", { name: "Overview" })).toBeVisible();
  expect(page.url()).not.toContain("login");
  const other = await (await browser.newContext()).newPage();
  await other.goto(BASE + path);
  await expect(other.getByLabel("API key")).toBeVisible();
});

test("the dashboard is small, and its charts and YAML wait until they are needed", async ({ page }) => {
  const files = readdirSync("dist/assets").filter((name) => name.endsWith(".js"));
  const kilobytes = files.map((name) => gzipSync(readFileSync(`dist/assets/${name}`)).length / 1000);
  expect(Math.round(kilobytes.reduce((sum, one) => sum + one, 0))).toBeLessThanOrEqual(200);
  const loaded: string[] = [];
  page.on("response", (answer) => answer.url().endsWith(".js") && loaded.push(answer.url()));
  await page.goto("/");
  await expect(page.getByLabel("API key")).toBeVisible();
  expect(loaded).toHaveLength(1);
});

const PAGES = ["/", "/experiments", "/playground", "/runs", "/instances/ml.p5.48xlarge", "/pipelines", "/endpoints", "/models", "/instances", "/spending", "/ci", "/events", "/calibration", "/settings"];

for (const scheme of ["light", "dark"] as const) {
  for (const [device, viewport] of Object.entries({ desktop: { width: 1400, height: 900 }, phone: { width: 390, height: 844 } })) {
    test(`every page is accessible: ${scheme}, ${device}`, async ({ page, request }) => {
      test.setTimeout(180_000);
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize(viewport);
      await logIn(page);
      const first = await page.goto("/");
      const policy = first?.headers()["content-security-policy"] ?? "";
      expect(policy).toContain("default-src 'self'");
      expect(policy).not.toContain("unsafe");
      await page.goto("/experiments");
      const experiment = await page.getByRole("link", { name: "hebrew-p4-p5", exact: true }).getAttribute("href");
      await page.goto(experiment ?? "");
      const trial = await page.getByRole("link", { name: /^p4d|^p5/ }).first().getAttribute("href");
      // Pages of one thing, where earlier journeys have made one; and the playground with something in it.
      const ones = [trial ?? ""];
      for (const [list, path] of [["/v1/pipelines", "/pipelines"], ["/v1/endpoints", "/endpoints"], ["/v1/runs", "/runs"]] as const) {
        const { items } = (await (await request.get(BASE + list, { headers: AUTHORISED })).json()) as { items: { id: string }[] };
        if (items[0]) ones.push(`${path}/${items[0].id}`);
      }
      await page.evaluate((text) => sessionStorage.setItem("playground", JSON.stringify({ text, answers: {} })), "Qwen/Qwen2.5-7B");
      const all = [...PAGES, ...ones, experiment ?? "", ...["race", "loss", "hours", "money"].map((tab) => `${experiment}?tab=${tab}`), `/compare?experiment=${experiment?.split("/").at(-1)}`];
      for (const path of all) {
        await page.goto(path);
        await expect(page.locator("h1")).toBeVisible();
        await expect(page.locator("[aria-busy=true]")).toHaveCount(0);
        await expect(page.locator("figure.chart svg, table, .empty, .feed, textarea").filter({ visible: true }).first()).toBeVisible();
        const found = await new AxeBuilder({ page }).analyze();
        expect(found.violations.map((one) => `${path}: ${one.id} ${one.nodes[0]?.html}`)).toEqual([]);
        const name = path.replaceAll(/(exp|trl|pip|end|run)_\w+/g, "one").replaceAll(/\W+/g, "-");
        await page.screenshot({ path: `${SHOTS}/${name}-${scheme}-${device}.png`, fullPage: true });
      }
    });
  }
}
