import * as ort from "onnxruntime-web/wasm";
import { fetchWhole } from "./files";
import { serveMessages } from "./worker";

serveMessages(ort, "wasm", fetchWhole);
