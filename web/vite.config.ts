import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const require = createRequire(import.meta.url);

/** The builds of ONNX Runtime Web, compressed, in place of the files that they would look for. */
function runtimes(): Plugin {
  const wasmOf = (build: string) => readFileSync(require.resolve(`onnxruntime-web/ort-wasm-simd-threaded${build}.wasm`));
  return {
    name: "runtimes",
    apply: "build",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "runtime/ort.wasm.gz", source: gzipSync(wasmOf(""), { level: 9 }) });
      // By Brotli: both by gzip would be more than the page may take.
      const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_LGWIN]: 24 };
      this.emitFile({ type: "asset", fileName: "runtime/ort.webgpu.wasm.br", source: brotliCompressSync(wasmOf(".jspi"), { params }) });
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
  plugins: [runtimes(), sources()],
});
