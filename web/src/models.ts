// The models of the page.

/** An entry of models.json. */
export interface Model {
  name: string;
  label: string;
  file: string;
  parameters: number;
  size: [number, number]; // height and width of its input
  classes: string[];
  measured: string; // its measured accuracy, in words; may be empty
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

export function softmax(logits: Float32Array): Float32Array {
  const most = logits.reduce((most, value) => Math.max(most, value));
  const powers = logits.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value);
  return powers.map((value) => value / sum);
}
