// Runs the models away from the page, so that it stays responsive: one message in, one reply out.
// Each backend has a worker file of its own, since each comes with its own build of ONNX Runtime Web.

import type * as Ort from "onnxruntime-web";
import { fetchWhole, messageOf } from "./files";

export type Backend = "wasm" | "webgpu";

export interface Output {
  logits: Float32Array;
  maps: Float32Array; // (layers, steps + 1, height, width)
  sparsity: Float32Array | null; // (layers, steps + 1)
  shape: number[]; // of the maps
  milliseconds: number;
}

export type Request =
  | { id: number; kind: "load"; name: string; file: string; runtime: string }
  | { id: number; kind: "run"; name: string; pixels: Float32Array; size: [number, number]; query: [number, number] }; // (-1, -1): all positions

/** Serves the messages to this worker. `fetchRuntime` gets the WebAssembly binary of `ort`. */
export function serveMessages(ort: typeof Ort, backend: Backend, fetchRuntime: (address: string) => Promise<ArrayBuffer>): void {
  const sessions = new Map<string, Ort.InferenceSession>();
  let started: Promise<void> | null = null;
  let last: Promise<unknown> = Promise.resolve();

  /** `work` after all that came before: WebGPU takes one session at a time. */
  function inTurn<Result>(work: () => Promise<Result>): Promise<Result> {
    const result = last.then(work);
    last = result.catch(() => undefined);
    return result;
  }

  async function start(runtime: string): Promise<void> {
    ort.env.wasm.numThreads = 1; // more need headers that a static page does not have
    ort.env.wasm.wasmBinary = await fetchRuntime(runtime);
  }

  async function load(name: string, file: string, runtime: string): Promise<void> {
    started ??= start(runtime);
    const [bytes] = await Promise.all([fetchWhole(file), started]);
    const options: Ort.InferenceSession.SessionOptions =
      backend === "webgpu"
        ? // Operators that WebGPU lacks run in WebAssembly. "basic" has the weights in single precision before they get to a
          // GPU, which may have no half precision; to log errors only keeps the list of such operators out of the console.
          { executionProviders: ["webgpu", "wasm"], graphOptimizationLevel: "basic", logSeverityLevel: 3 }
        : { executionProviders: ["wasm"], graphOptimizationLevel: "disabled" }; // optimized later than it would be run
    sessions.set(name, await inTurn(() => ort.InferenceSession.create(new Uint8Array(bytes), options)));
  }

  async function run(request: Request & { kind: "run" }): Promise<Output> {
    const session = sessions.get(request.name)!;
    const feeds: Record<string, Ort.Tensor> = {
      pixels: new ort.Tensor("float32", request.pixels, [1, request.pixels.length / (request.size[0] * request.size[1]), ...request.size]),
    };
    if (session.inputNames.includes("query"))
      feeds["query"] = new ort.Tensor("int64", BigInt64Array.from(request.query, BigInt), [2]);
    const begun = performance.now();
    const results = await session.run(feeds);
    const milliseconds = performance.now() - begun;
    const numbers = (name: string) => (results[name] === undefined ? null : (results[name].data as Float32Array));
    const logits = numbers("logits")!;
    if (!logits.every(Number.isFinite)) throw new Error(`${request.name} has logits that are not finite`);
    return { logits, maps: numbers("maps")!, sparsity: numbers("sparsity"), shape: results["maps"]!.dims.slice(1), milliseconds };
  }

  self.onmessage = async ({ data: request }: MessageEvent<Request>) => {
    try {
      if (request.kind === "load") {
        await load(request.name, request.file, request.runtime);
        self.postMessage({ id: request.id });
      } else self.postMessage({ id: request.id, output: await inTurn(() => run(request)) });
    } catch (error) {
      self.postMessage({ id: request.id, error: messageOf(error) });
    }
  };
}
