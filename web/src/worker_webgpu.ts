import { decompress } from "brotli/decompress";
import * as ort from "onnxruntime-web/jspi";
import { fetchWhole } from "./files";
import { serveMessages } from "./worker";

// Compressed by Brotli, which is what makes room for a second runtime in the page; browsers decompress it in HTTP only.
serveMessages(ort, "webgpu", async (address) => {
  const bytes = new Uint8Array(await fetchWhole(address));
  const isWasm = String.fromCharCode(...bytes.subarray(0, 4)) === "\0asm"; // a server said so, and it is decompressed already
  return (isWasm ? bytes : decompress(bytes)).buffer as ArrayBuffer;
});
