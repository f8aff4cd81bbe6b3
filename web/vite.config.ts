import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const require = createRequire(import.meta.url);

/** The runtime as one compressed file, fetched by the page, in place of the one that onnxruntime-web would look for. */
function runtime(): Plugin {
  return {
    name: "runtime",
    apply: "build",
    generateBundle() {
      const wasm = readFileSync(require.resolve("onnxruntime-web/ort-wasm-simd-threaded.wasm"));
      this.emitFile({ type: "asset", fileName: "runtime/ort.wasm.gz", source: gzipSync(wasm, { level: 9 }) });
    },
  };
}

function withoutWasm(): Plugin {
  return {
    name: "without-wasm",
    apply: "build",
    generateBundle(_, bundle) {
      for (const name of Object.keys(bundle)) if (name.endsWith(".wasm")) delete bundle[name];
    },
  };
}

/** Of what the page was built, so that a test tells whether it is that of its sources. */
function sources(): Plugin {
  return {
    name: "sources",
    apply: "build",
    generateBundle() {
      const names = ["index.html", "package-lock.json", "vite.config.ts", ...readdirSync("src").sort().map((name) => join("src", name))];
      const digests = names.map((name) => [name, createHash("sha256").update(readFileSync(name)).digest("hex")]);
      this.emitFile({ type: "asset", fileName: "sources.json", source: `${JSON.stringify(Object.fromEntries(digests), null, 1)}\n` });
    },
  };
}

const names = { assetFileNames: "assets/[name][extname]", entryFileNames: "assets/[name].js" };

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/torchvars/explorer/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: { output: names },
  },
  worker: { format: "es", plugins: () => [withoutWasm()], rollupOptions: { output: names } },
  plugins: [runtime(), sources()],
});
