import { defineConfig } from "vite";

// Where `npm run dev` finds the service: `bakeoff serve` listens there.
const service = "http://127.0.0.1:8080";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: true,
    sourcemap: false,
  },
  server: { proxy: { "/v1": service, "/openapi.json": service, "/readyz": service } },
});
