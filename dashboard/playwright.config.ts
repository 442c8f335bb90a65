import { defineConfig } from "@playwright/test";

// `cargo xtask browser` starts a service on the simulated region and says where it and a browser are.
declare const process: { env: Record<string, string | undefined> };

export default defineConfig({
  testDir: "e2e",
  workers: 1,
  fullyParallel: false,
  timeout: 60_000,
  reporter: [["list"]],
  outputDir: "../target/dashboard/results",
  use: {
    baseURL: process.env.BAKEOFF_URL ?? "http://127.0.0.1:8080",
    launchOptions: { executablePath: process.env.BAKEOFF_CHROMIUM ?? "/usr/bin/chromium" },
    viewport: { width: 1400, height: 900 },
  },
});
