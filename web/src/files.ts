// What the page fetches from where it came from, and from nowhere else.

/** A file, decompressed here if its name ends in .gz, since not every server of static files compresses. */
export async function fetchWhole(file: string): Promise<ArrayBuffer> {
  const response = await fetch(file);
  if (!response.ok || response.body === null) throw new Error(`${file} could not be loaded (status ${response.status})`);
  if (!file.endsWith(".gz")) return response.arrayBuffer();
  const bytes = await response.arrayBuffer();
  const compressed = new Uint8Array(bytes);
  if (compressed[0] !== 0x1f || compressed[1] !== 0x8b) return bytes; // a server said so, and it is decompressed already
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
