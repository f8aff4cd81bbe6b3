import * as ort from "onnxruntime-web/wasm";
import { fetchWhole } from "./files";
import { answerMessages } from "./worker";

answerMessages(ort, "wasm", fetchWhole);
