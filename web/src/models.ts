// The models of the page, and the worker that runs them.

import type { Pixels } from "./corruptions";
import type { Answer, Request } from "./worker";

/** An entry of models.json. */
export interface Model {
  name: string;
  label: string;
  file: string;
  parameters: number;
  size: [number, number]; // height and width of its pictures
  classes: string[];
  measured: string; // what it was measured to do, in words; may be empty
  maps: { kind: "implicit" | "energy"; grid: [number, number]; layers: Record<string, number | null> };
}

export interface Manifest {
  models: Model[];
  shown: string[]; // names of those that are compared at first
}

export async function readManifest(): Promise<Manifest> {
  const response = await fetch("models.json");
  if (!response.ok) throw new Error(`models.json could not be loaded (status ${response.status})`);
  return response.json();
}

/** Steps that the layers of a model take at most, and null if none is recurrent. */
export function stepsOf(model: Model): number | null {
  const steps = Object.values(model.maps.layers).filter((count) => count !== null);
  return steps.length === 0 ? null : Math.max(...steps);
}

type Sent = Request extends infer Each ? (Each extends { id: number } ? Omit<Each, "id"> : never) : never;

export class Runner {
  private readonly worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  private readonly waiting = new Map<number, { resolve: (answer?: Answer) => void; reject: (error: Error) => void }>();
  private readonly loaded = new Map<string, Promise<unknown>>();
  private asked = 0;

  constructor() {
    this.worker.onmessage = ({ data }) => {
      const { resolve, reject } = this.waiting.get(data.id)!;
      this.waiting.delete(data.id);
      if (data.error === undefined) resolve(data.answer);
      else reject(new Error(data.error));
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(event.message || "the models cannot be run here"));
      this.waiting.clear();
    };
  }

  private ask(request: Sent): Promise<Answer | undefined> {
    const id = this.asked++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ ...request, id });
    });
  }

  /** Loads a model once; it is run by whoever waited for that. */
  load(model: Model): Promise<unknown> {
    let loading = this.loaded.get(model.name);
    if (loading === undefined) {
      const here = (file: string) => new URL(file, document.baseURI).href;
      loading = this.ask({ kind: "load", name: model.name, file: here(model.file), runtime: here("runtime/ort.wasm.gz") });
      loading.catch(() => this.loaded.delete(model.name)); // it may be tried again
      this.loaded.set(model.name, loading);
    }
    return loading;
  }

  /** What a model answers. The query is a (row, column) of pixels; without one, maps are of all positions. */
  async run(model: Model, pixels: Pixels, query: [number, number] | null = null): Promise<Answer> {
    await this.load(model);
    const size: [number, number] = [pixels.height, pixels.width];
    return (await this.ask({ kind: "run", name: model.name, pixels: pixels.data, size, query: query ?? [-1, -1] }))!;
  }
}

export function softmax(logits: Float32Array): Float32Array {
  const most = logits.reduce((most, value) => Math.max(most, value));
  const powers = logits.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value);
  return powers.map((value) => value / sum);
}
