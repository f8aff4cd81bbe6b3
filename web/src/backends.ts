// Where the models run: a worker with WebAssembly, and one with WebGPU where the browser has it.

import type { Pixels } from "./corruptions";
import type { Model } from "./models";
import type { Output, Backend, Request } from "./worker";

/** What the visitor chose. "auto": WebGPU for the models that it runs faster than WebAssembly, as measured here. */
export const CHOICES = { auto: "Automatic", wasm: "WebAssembly", webgpu: "WebGPU" } as const;
export type Choice = keyof typeof CHOICES;

const TOLERANCE = 1e-3; // of logits, between the backends
const PATIENCE = 30_000; // milliseconds that WebGPU has to load a model and run it once before it counts as slower

type Sent = Request extends infer Each ? (Each extends { id: number } ? Omit<Each, "id"> : never) : never;

/** One worker and its models. */
class Runner {
  private readonly waiting = new Map<number, { resolve: (output?: Output) => void; reject: (error: Error) => void }>();
  private readonly loaded = new Map<string, Promise<unknown>>();
  private sent = 0;

  constructor(
    private readonly worker: Worker,
    private readonly runtime: string,
  ) {
    this.worker.onmessage = ({ data }) => {
      const { resolve, reject } = this.waiting.get(data.id)!;
      this.waiting.delete(data.id);
      if (data.error === undefined) resolve(data.output);
      else reject(new Error(data.error));
    };
    this.worker.onerror = (event) => this.rejectAll(event.message || "the models cannot be run here");
  }

  private rejectAll(message: string): void {
    for (const { reject } of this.waiting.values()) reject(new Error(message));
    this.waiting.clear();
  }

  private send(request: Sent): Promise<Output | undefined> {
    const id = this.sent++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ ...request, id });
    });
  }

  /** Loads a model, once. */
  load(model: Model): Promise<unknown> {
    let loading = this.loaded.get(model.name);
    if (loading === undefined) {
      const here = (file: string) => new URL(file, document.baseURI).href;
      loading = this.send({ kind: "load", name: model.name, file: here(model.file), runtime: here(this.runtime) });
      loading.catch(() => this.loaded.delete(model.name)); // it may be tried again
      this.loaded.set(model.name, loading);
    }
    return loading;
  }

  async run(model: Model, pixels: Pixels, query: [number, number] | null): Promise<Output> {
    await this.load(model);
    const size: [number, number] = [pixels.height, pixels.width];
    return (await this.send({ kind: "run", name: model.name, pixels: pixels.data, size, query: query ?? [-1, -1] }))!;
  }

  stop(): void {
    this.worker.terminate();
    this.rejectAll("the worker was stopped");
  }
}

/** The GPU and whether it is emulated in software; an Error says why there is none. */
async function findAdapter(): Promise<{ name: string; isSoftware: boolean }> {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("this browser offers none");
  if (!("Suspending" in WebAssembly)) throw new Error("this browser's WebAssembly cannot wait for it (no JSPI)");
  const { vendor, architecture, isFallbackAdapter } = adapter.info;
  return { name: [vendor, architecture].filter(Boolean).join(" "), isSoftware: isFallbackAdapter };
}

/** Runs each model on the backend that the visitor chose, or on the faster one. */
export class Backends {
  /** What is known of WebGPU, in words. */
  note = "";

  private readonly wasm = new Runner(
    new Worker(new URL("./worker_wasm.ts", import.meta.url), { type: "module" }),
    "runtime/ort.wasm.gz",
  );
  private webgpu: Runner | null = null;
  private readonly adapter = findAdapter();
  private hasFailed = false;
  private readonly faster = new Set<string>(); // names of models that are faster on WebGPU

  constructor() {
    this.adapter.then(
      ({ name }) => (this.note = `GPU: ${name || "unnamed"}.`),
      (error: Error) => this.fail(error),
    );
  }

  private fail(error: Error): void {
    if (this.hasFailed) return; // what was waiting for it
    this.hasFailed = true;
    this.note = `No WebGPU: ${error.message}.`;
    this.webgpu?.stop();
    this.webgpu = null;
  }

  private openWebgpu(): Runner {
    return (this.webgpu ??= new Runner(
      new Worker(new URL("./worker_webgpu.ts", import.meta.url), { type: "module" }),
      "runtime/ort.webgpu.wasm.br",
    ));
  }

  /** The backend of a model. WebGPU is not tried again once it failed. */
  private async backendOf(model: Model, choice: Choice): Promise<Backend> {
    if (choice === "wasm" || (choice === "auto" && !this.faster.has(model.name))) return "wasm";
    await this.adapter.catch(() => undefined);
    return this.hasFailed ? "wasm" : "webgpu";
  }

  /** `work` on the backend of a model, and on WebAssembly if WebGPU fails. */
  private async on<Result>(model: Model, choice: Choice, work: (runner: Runner, backend: Backend) => Promise<Result>): Promise<Result> {
    if ((await this.backendOf(model, choice)) === "webgpu")
      try {
        return await work(this.openWebgpu(), "webgpu");
      } catch (error) {
        this.fail(error as Error);
      }
    return work(this.wasm, "wasm");
  }

  load(model: Model, choice: Choice): Promise<unknown> {
    return this.on(model, choice, (runner) => runner.load(model));
  }

  /** The output of a model. The query is a (row, column) of pixels; without one, maps are of all positions. */
  run(model: Model, pixels: Pixels, query: [number, number] | null = null, choice: Choice = "auto"): Promise<Output & { backend: Backend }> {
    return this.on(model, choice, async (runner, backend) => ({ ...(await runner.run(model, pixels, query)), backend }));
  }

  /** Finds the models that WebGPU runs faster, with the same logits. A GPU that is emulated in software is not tried. */
  async measure(models: Model[], pixelsOf: (model: Model) => Pixels): Promise<void> {
    const adapter = await this.adapter.catch(() => null);
    if (adapter === null || adapter.isSoftware) return;
    for (const model of models) {
      const pixels = pixelsOf(model);
      const patience = setTimeout(() => this.fail(new Error("it is slower here")), PATIENCE);
      await this.run(model, pixels, null, "webgpu"); // compiles its shaders
      clearTimeout(patience);
      const [found, expected] = [await this.run(model, pixels, null, "webgpu"), await this.run(model, pixels, null, "wasm")];
      if (found.backend === "wasm") return; // it failed
      const agrees = found.logits.every((logit, index) => Math.abs(logit - expected.logits[index]!) < TOLERANCE);
      if (agrees && found.milliseconds < expected.milliseconds) this.faster.add(model.name);
    }
  }
}
