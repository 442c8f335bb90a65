/** What people do with the dashboard, in a real browser, against the real service and the simulated region. */

import AxeBuilder from "@axe-core/playwright";
import { expect, test, type Page } from "@playwright/test";

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
});

test("a pasted job is checked, with a fix for each finding", async ({ page }) => {
  await logIn(page);
  await page.getByRole("link", { name: "Playground" }).click();
  const document = page.getByLabel("document");
  await document.fill('{"layers": ');
  await expect(page.getByText("This is no JSON yet")).toBeVisible();
  const job = { TrainingJobName: "a b", RoleArn: "arn:aws:iam::111122223333:role/x", StoppingCondition: { MaxRuntimeInSeconds: 3600 } };
  await document.fill(JSON.stringify(job));
  await expect(page.locator(".finding").first()).toBeVisible();
  await expect(page.locator(".finding .fix").first()).toContainText("→");
});

test("a budget is changed, and what it may not be is said", async ({ page }) => {
  await logIn(page);
  await open(page, "hebrew-p4-p5");
  await page.getByRole("button", { name: "Budget", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Budget" });
  await dialog.getByLabel("new budget, dollars").fill("1");
  await dialog.getByRole("button", { name: "Budget" }).click();
  await expect(dialog.getByRole("alert")).toBeVisible();
  await dialog.getByLabel("new budget, dollars").fill("2500");
  await dialog.getByRole("button", { name: "Budget" }).click();
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
  await page.getByLabel("compare hebrew-p4-p5").check();
  await page.getByLabel("compare vision-g6").check();
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
  await page.getByRole("dialog", { name: "Revoke" }).getByRole("button", { name: "Revoke" }).click();
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

const PAGES = ["/", "/experiments", "/playground", "/pipelines", "/endpoints", "/models", "/instances", "/spending", "/ci", "/events", "/calibration", "/settings"];

for (const scheme of ["light", "dark"] as const) {
  for (const [device, viewport] of Object.entries({ desktop: { width: 1400, height: 900 }, phone: { width: 390, height: 844 } })) {
    test(`every page is accessible: ${scheme}, ${device}`, async ({ page }) => {
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
      const all = [...PAGES, experiment ?? "", ...["race", "loss", "hours", "money"].map((tab) => `${experiment}?tab=${tab}`), `/compare?experiment=${experiment?.split("/").at(-1)}`];
      for (const path of all) {
        await page.goto(path);
        await expect(page.locator("h1")).toBeVisible();
        await expect(page.locator("[aria-busy=true]")).toHaveCount(0);
        await expect(page.locator("figure.chart svg, table, form, .empty, .feed, textarea").first()).toBeVisible();
        const found = await new AxeBuilder({ page }).analyze();
        expect(found.violations.map((one) => `${path}: ${one.id} ${one.nodes[0]?.html}`)).toEqual([]);
        const name = path.replaceAll(/exp_\w+/g, "one").replaceAll(/\W+/g, "-");
        await page.screenshot({ path: `${SHOTS}/${name}-${scheme}-${device}.png`, fullPage: true });
      }
    });
  }
}
