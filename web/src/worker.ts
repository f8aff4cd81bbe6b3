// Runs the models, so that the page stays responsive: one message in, one answer out.

import * as ort from "onnxruntime-web/wasm";
import { fetchWhole } from "./files";

export interface Answer {
  logits: Float32Array;
  maps: Float32Array; // (layers, steps + 1, height, width)
  sparsity: Float32Array | null; // (layers, steps + 1)
  shape: number[]; // of the maps
  milliseconds: number;
}

export type Request =
  | { id: number; kind: "load"; name: string; file: string; runtime: string }
  | { id: number; kind: "run"; name: string; pixels: Float32Array; size: [number, number]; query: [number, number] }; // (-1, -1): all positions

const sessions = new Map<string, ort.InferenceSession>();
let started: Promise<void> | null = null;

async function start(runtime: string): Promise<void> {
  ort.env.wasm.numThreads = 1; // more need headers that a static page does not have
  ort.env.wasm.wasmBinary = await fetchWhole(runtime);
}

async function load(name: string, file: string, runtime: string): Promise<void> {
  started ??= start(runtime);
  const [bytes] = await Promise.all([fetchWhole(file), started]);
  sessions.set(name, await ort.InferenceSession.create(new Uint8Array(bytes), { executionProviders: ["wasm"], graphOptimizationLevel: "disabled" }));
}

async function run(request: Request & { kind: "run" }): Promise<Answer> {
  const session = sessions.get(request.name)!;
  const feeds: Record<string, ort.Tensor> = {
    pixels: new ort.Tensor("float32", request.pixels, [1, request.pixels.length / (request.size[0] * request.size[1]), ...request.size]),
  };
  if (session.inputNames.includes("query"))
    feeds["query"] = new ort.Tensor("int64", BigInt64Array.from(request.query, BigInt), [2]);
  const begun = performance.now();
  const results = await session.run(feeds);
  const milliseconds = performance.now() - begun;
  const numbers = (name: string) => (results[name] === undefined ? null : (results[name].data as Float32Array));
  return {
    logits: numbers("logits")!,
    maps: numbers("maps")!,
    sparsity: numbers("sparsity"),
    shape: results["maps"]!.dims.slice(1),
    milliseconds,
  };
}

self.onmessage = async ({ data: request }: MessageEvent<Request>) => {
  try {
    if (request.kind === "load") {
      await load(request.name, request.file, request.runtime);
      self.postMessage({ id: request.id });
    } else self.postMessage({ id: request.id, answer: await run(request) });
  } catch (error) {
    self.postMessage({ id: request.id, error: error instanceof Error ? error.message : String(error) });
  }
};
