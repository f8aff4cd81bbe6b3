// The page: the visitor changes the state, the models run on it, and cards show their outputs.

import "./style.css";
import { Backends, CHOICES, type Choice } from "./backends";
import { CORRUPTIONS, corrupt, tableOf, type Pixels } from "./corruptions";
import { colourOf, occlude, drawCell, drawImage, drawMap, imageOf } from "./draw";
import { fetchWhole, messageOf } from "./files";
import { readManifest, softmax, stepsOf, type Manifest, type Model } from "./models";
import { centrePixels, readImage, type SourceImage } from "./pixels";
import { Seeded, seedOf } from "./random";
import { fileOf, SAMPLES } from "./samples";
import { CELLS, readState, writeState, type State } from "./state";
import type { Output, Backend } from "./worker";

function element<Kind extends HTMLElement>(id: string): Kind {
  return document.getElementById(id) as Kind;
}

const view = element<HTMLCanvasElement>("view");
const severity = element<HTMLInputElement>("severity");
const corruption = element<HTMLSelectElement>("corruption");
const layer = element<HTMLInputElement>("layer");
const step = element<HTMLInputElement>("step");
const opacity = element<HTMLInputElement>("opacity");
const shared = element<HTMLInputElement>("shared");
const backend = element<HTMLSelectElement>("backend");
const play = element<HTMLButtonElement>("play");
const problem = element<HTMLDivElement>("problem");

const backends = new Backends();
const samples = new Map<string, Promise<SourceImage>>();
const outputs = new Map<string, Output & { backend: Backend }>();
const BRUSH = 2; // radius, in cells

let manifest: Manifest;
let state: State;
let source: SourceImage;
let cursor: [number, number] = [CELLS / 2, CELLS / 2]; // the cell under the cursor of the keyboard
let playing = 0;

function modelOf(name: string): Model {
  return manifest.models.find((model) => model.name === name)!;
}

// Pixels

/** The input of a model of that size: the centre of the image, corrupted, then occluded. */
function pixelsOf(size: number): Pixels {
  const clean = centrePixels(source, size);
  const draws = new Seeded(seedOf(`${state.corruption} ${state.severity} ${state.seed}`));
  return occlude(corrupt(clean, state.corruption, state.severity, draws, tableOf(size)), state.mask);
}

/** `pixelsOf` and its image, kept until the state changes. */
const inputs = new Map<number, { source: SourceImage; key: string; pixels: Pixels; image: ImageData }>();
function inputOf(size: number) {
  const key = `${state.corruption} ${state.severity} ${state.seed} ${state.mask.join("")}`;
  const before = inputs.get(size);
  if (before?.source === source && before.key === key) return before;
  const pixels = pixelsOf(size);
  const now = { source, key, pixels, image: imageOf(pixels) };
  inputs.set(size, now);
  return now;
}

// What changes

let isDue = false;
let isRunning = false;

/** Runs every model that is shown, and again if the state changed in the meantime. */
async function update(): Promise<void> {
  drawInput();
  showControls();
  isDue = true;
  if (isRunning) return;
  isRunning = true;
  try {
    while (isDue) {
      isDue = false;
      for (const name of [...state.models]) {
        const model = modelOf(name);
        card(model).classList.add("busy");
        const { pixels } = inputOf(model.size[0]);
        const query = state.query && (state.query.map((part, axis) => Math.floor(part * model.size[axis]!)) as [number, number]);
        outputs.set(name, await backends.run(model, pixels, query, state.backend));
        if (state.models.includes(name)) showOutput(model);
      }
    }
    redraw();
    announce();
    showControls(); // what is known of the backends may be new
    performance.mark("updated");
  } catch (error) {
    showError(`The models could not be run: ${messageOf(error)}`);
  } finally {
    isRunning = false;
  }
}

/** Changes the state and the link. The models run again, unless only the drawing depends on the change. */
function change(part: Partial<State>, runs = true): void {
  performance.mark("changed");
  state = { ...state, ...part };
  history.replaceState(null, "", writeState(state));
  if (runs) void update();
  else {
    drawInput();
    showControls();
    redraw();
  }
}

/** Draws the outputs again: on one colour scale, each depends on all. */
function redraw(): void {
  for (const name of state.models) if (outputs.has(name)) showOutput(modelOf(name));
  element("least").textContent = shared.checked ? "0" : "low";
  element("most").textContent = shared.checked ? `${largestShown().toFixed(1)} times the mean` : "high";
}

async function showSample(sample: string): Promise<void> {
  try {
    source = await sampleOf(sample);
    change({ image: sample });
  } catch (error) {
    showError(messageOf(error));
  }
}

function sampleOf(sample: string): Promise<SourceImage> {
  let read = samples.get(sample);
  if (read === undefined) {
    read = fetchWhole(fileOf(sample)).then((bytes) => readImage(new Blob([bytes]), fileOf(sample)));
    read.catch(() => samples.delete(sample));
    samples.set(sample, read);
  }
  return read;
}

/** Shows an image of the visitor's. If it cannot be read, the one before stays. */
async function openFile(file: File): Promise<void> {
  try {
    source = await readImage(file, file.name || "the image");
    problem.hidden = true;
    change({ image: "" });
  } catch (error) {
    showError(messageOf(error));
  }
}

function showError(text: string): void {
  problem.querySelector("p")!.textContent = text;
  problem.hidden = false;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

/** Tells the top prediction of each model to screen readers. */
function announce(): void {
  const texts = state.models.map((name) => {
    const model = modelOf(name);
    const shares = softmax(outputs.get(name)!.logits);
    const best = shares.indexOf(Math.max(...shares));
    return `${model.label}: ${model.classes[best]}, ${percent(shares[best]!)}`;
  });
  element("status").textContent = `${texts.join(". ")}.`;
  element("status").classList.add("hidden"); // the cards show it
}

// Drawing

function gridOfView(): [number, number] {
  return modelOf(state.models[0]!).maps.grid;
}

function cellOf(grid: [number, number]): [number, number] {
  return state.query!.map((part, axis) => Math.floor(part * grid[axis]!)) as [number, number];
}

function drawInput(): void {
  drawImage(view, inputOf(modelOf(state.models[0]!).size[0]).image);
  if (tool() !== "query" && document.activeElement === view) drawCell(view, [CELLS, CELLS], cursor);
  else if (state.query) drawCell(view, gridOfView(), cellOf(gridOfView()));
}

function card(model: Model): HTMLElement {
  const cards = element("cards");
  const found = cards.querySelector<HTMLElement>(`[data-model="${CSS.escape(model.name)}"]`);
  if (found) return found;
  const made = document.createElement("article");
  made.className = "card";
  made.dataset["model"] = model.name;
  made.setAttribute("aria-label", model.label);
  made.innerHTML = `<h3></h3><p class="hint about"></p><canvas width="448" height="448" role="img"></canvas>
    <p class="hint position"></p><ol aria-label="Predictions with their confidence"></ol><p class="hint code"></p>`;
  made.querySelector("h3")!.textContent = model.label;
  const size = `${(model.parameters / 1e6).toFixed(2)} M parameters`;
  made.querySelector(".about")!.textContent = [model.label === model.name ? "" : model.name, size, model.measured]
    .filter(Boolean)
    .join("; ");
  const canvas = made.querySelector("canvas")!;
  canvas.setAttribute("aria-label", `Attention map of ${model.label}, not computed yet`);
  canvas.addEventListener("click", (event) => selectPosition(positionOf(event)));
  cards.append(made);
  return made;
}

/** The layer and step of a model that are shown, counted from 0; `steps` is null for layers that are not recurrent. */
function selectedIn(model: Model): { layer: number; step: number; steps: number | null } {
  const layers = Object.values(model.maps.layers);
  const chosen = state.layer === 0 ? layers.length - 1 : Math.min(state.layer, layers.length) - 1;
  const steps = layers[chosen]!;
  const last = steps ?? 0;
  return { layer: chosen, step: state.step < 0 ? last : Math.min(state.step, last), steps };
}

/** The attention map of a model that is shown, (height, width). */
function mapOf(model: Model, output: Output): Float32Array {
  const { layer, step } = selectedIn(model);
  const [, steps, height, width] = output.shape as [number, number, number, number];
  const start = (layer * steps + step) * height * width;
  return output.maps.subarray(start, start + height * width);
}

function meanOf(map: Float32Array): number {
  return map.reduce((sum, value) => sum + value) / map.length;
}

/** The largest value of all maps that are shown, each in units of its mean. */
function largestShown(): number {
  const maps = state.models.filter((name) => outputs.has(name)).map((name) => mapOf(modelOf(name), outputs.get(name)!));
  return Math.max(1, ...maps.map((map) => Math.max(...map) / (meanOf(map) || 1)));
}

function showOutput(model: Model): void {
  const output = outputs.get(model.name)!;
  const shownCard = card(model);
  const canvas = shownCard.querySelector("canvas")!;
  const { layer, step, steps } = selectedIn(model);
  const map = mapOf(model, output);
  const grid = output.shape.slice(2) as [number, number];
  const mean = meanOf(map);
  const range: [number, number] = shared.checked ? [0, mean * largestShown()] : [Math.min(...map), Math.max(...map)];
  drawMap(canvas, inputOf(model.size[0]).image, map, grid, range, Number(opacity.value) / 100);
  const hasQuery = state.query !== null && model.maps.kind === "implicit";
  if (hasQuery) drawCell(canvas, grid, cellOf(grid));
  const strongest = map.indexOf(Math.max(...map));
  const place = `row ${Math.floor(strongest / grid[1]) + 1}, column ${(strongest % grid[1]) + 1}`;
  const when = steps === null ? "not recurrent" : step === 0 ? "initial state" : `after step ${step} of ${steps}`;
  const times = mean > 0 ? `, ${(map[strongest]! / mean).toFixed(1)} times the mean` : "";
  shownCard.querySelector(".position")!.textContent = `Layer ${layer + 1}, ${when}. Maximum at ${place}${times}.`;
  canvas.setAttribute(
    "aria-label",
    `Attention map of ${model.label}${hasQuery ? " from the selected position" : ""}: layer ${layer + 1}, ${when}; maximum at ${place}${times}`,
  );
  const shares = softmax(output.logits);
  const order = [...shares.keys()].sort((first, second) => shares[second]! - shares[first]!).slice(0, 5);
  shownCard.querySelector("ol")!.replaceChildren(
    ...order.map((index) => {
      const item = document.createElement("li");
      item.style.setProperty("--share", `${100 * shares[index]!}%`);
      item.append(...[model.classes[index] ?? `class ${index}`, percent(shares[index]!)].map((text) => Object.assign(document.createElement("span"), { textContent: text, title: text })));
      return item;
    }),
  );
  const time = `${CHOICES[output.backend]}: ${output.milliseconds.toFixed(0)} ms.`;
  const zeros = output.sparsity?.[layer * output.shape[1]! + step];
  shownCard.querySelector(".code")!.textContent =
    steps === null || zeros === undefined
      ? `No sparse code. ${time}`
      : `Sparse code: ${percent(zeros)} zeros. ${time}`;
  shownCard.classList.remove("busy");
}

/** Sets the controls to the state. */
function showControls(): void {
  const models = state.models.map(modelOf);
  for (const box of element("choices").querySelectorAll<HTMLInputElement>("input")) box.checked = state.models.includes(box.value);
  for (const old of element("cards").querySelectorAll<HTMLElement>(".card"))
    if (!state.models.includes(old.dataset["model"]!)) old.remove();
  element("cards").append(...models.map(card)); // in the order of the list
  corruption.value = state.corruption;
  severity.value = String(state.severity);
  severity.setAttribute("aria-valuetext", state.severity === 0 ? "0, no corruption" : `${state.severity} of 5`);
  element("severity-value").textContent = `${state.severity} of 5`;
  element<HTMLButtonElement>("again").disabled = state.severity === 0;
  const layers = Math.max(...models.map((model) => Object.keys(model.maps.layers).length));
  layer.max = String(layers);
  layer.value = String(state.layer === 0 ? layers : Math.min(state.layer, layers));
  element("layer-value").textContent = `${layer.value} of ${layers}`;
  const steps = Math.max(0, ...models.map((model) => stepsOf(model) ?? 0));
  step.max = String(steps);
  step.value = String(state.step < 0 ? steps : Math.min(state.step, steps));
  step.disabled = play.disabled = steps === 0;
  element("step-value").textContent = steps === 0 ? "none" : Number(step.value) === 0 ? "0, initial" : `${step.value} of ${steps}`;
  step.setAttribute("aria-valuetext", element("step-value").textContent!);
  backend.value = state.backend;
  element("backend-note").textContent = backends.note;
  element("opacity-value").textContent = `${opacity.value} %`;
  element<HTMLButtonElement>("mean").disabled = state.query === null;
  element<HTMLButtonElement>("clear").disabled = !state.mask.some(Boolean);
  for (const button of element("samples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset["sample"] === state.image));
  const kind = models[0]!.maps.kind;
  element("kind").textContent =
    kind === "implicit"
      ? `Maps of the kind "implicit" for all models: how much the output of the layer ${state.query ? "at the selected position" : "(mean over all positions)"} depends on the value at each position. For softmax these are the attention weights; for VARS it is the exact derivative of the steps.`
      : `Maps of the kind "energy" for all models: the norm of what the layer passes on at each position. They have no position to select.`;
  showTool(kind);
}

function tool(): string {
  return document.querySelector<HTMLInputElement>("input[name=tool]:checked")!.value;
}

function showTool(kind: string): void {
  view.classList.toggle("reading", tool() === "query");
  element("image-help").textContent =
    tool() === "query"
      ? kind === "implicit"
        ? "Click a position in the image or in a map to see what it attends to. Keyboard: arrow keys; Escape for all positions."
        : "Maps of the kind \"energy\" have no position to select."
      : "Drag over the image. Keyboard: arrow keys to move, space bar to paint.";
}

// Input of the visitor

function positionOf(event: MouseEvent): [number, number] {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const part = (at: number, size: number) => Math.min(Math.max(at / size, 0), 0.999);
  return [part(event.clientY - box.top, box.height), part(event.clientX - box.left, box.width)];
}

function cellUnder(event: MouseEvent): [number, number] {
  return positionOf(event).map((part) => Math.floor(part * CELLS)) as [number, number];
}

function paint([down, right]: [number, number]): void {
  const mask = state.mask.slice();
  const value = Number(tool() === "brush");
  for (let row = 0; row < CELLS; row++)
    for (let column = 0; column < CELLS; column++)
      if ((row - down) ** 2 + (column - right) ** 2 <= (BRUSH + 0.25) ** 2) mask[row * CELLS + column] = value;
  if (mask.some((occluded, cell) => occluded !== state.mask[cell])) change({ mask });
}

function selectPosition(place: [number, number]): void {
  if (modelOf(state.models[0]!).maps.kind === "implicit") change({ query: place.map((part) => Number(part.toFixed(3))) as [number, number] });
}

view.addEventListener("pointerdown", (event) => {
  if (tool() === "query") return;
  view.setPointerCapture(event.pointerId);
  paint(cellUnder(event));
});
view.addEventListener("pointermove", (event) => {
  if (tool() === "query" || !view.hasPointerCapture(event.pointerId)) return;
  paint(cellUnder(event));
});
view.addEventListener("click", (event) => {
  if (tool() === "query") selectPosition(positionOf(event));
});
view.addEventListener("keydown", (event) => {
  const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const move = moves[event.key];
  if (move && tool() === "query") {
    const grid = gridOfView();
    const cell = state.query ? cellOf(grid) : (grid.map((side) => Math.floor(side / 2)) as [number, number]);
    const next = cell.map((at, axis) => Math.min(Math.max(at + (state.query ? move[axis]! : 0), 0), grid[axis]! - 1));
    selectPosition(next.map((at, axis) => (at + 0.5) / grid[axis]!) as [number, number]);
  } else if (move) {
    cursor = cursor.map((at, axis) => Math.min(Math.max(at + move[axis]!, 0), CELLS - 1)) as [number, number];
    drawInput();
  } else if (event.key === " " && tool() !== "query") paint(cursor);
  else if (event.key === "Escape" && state.query) change({ query: null });
  else return;
  event.preventDefault();
});
for (const kind of ["focus", "blur"]) view.addEventListener(kind, () => source && drawInput());

for (const radio of document.querySelectorAll("input[name=tool]")) radio.addEventListener("change", () => change({}, false));
element("mean").addEventListener("click", () => change({ query: null }));
element("clear").addEventListener("click", () => change({ mask: new Uint8Array(CELLS ** 2) }));
severity.addEventListener("input", () => change({ severity: Number(severity.value) }));
corruption.addEventListener("change", () => change({ corruption: corruption.value, severity: state.severity || 3 }));
element("again").addEventListener("click", () => change({ seed: state.seed + 1 }));
layer.addEventListener("input", () => change({ layer: layer.value === layer.max ? 0 : Number(layer.value) }, false));
step.addEventListener("input", () => change({ step: step.value === step.max ? -1 : Number(step.value) }, false));
opacity.addEventListener("input", () => change({}, false));
shared.addEventListener("change", () => change({}, false));
backend.addEventListener("change", () => change({ backend: backend.value as Choice }));
play.addEventListener("click", () => {
  window.clearInterval(playing);
  const starts = play.getAttribute("aria-pressed") !== "true";
  play.setAttribute("aria-pressed", String(starts));
  play.textContent = starts ? "Pause" : "Play";
  if (!starts) return;
  playing = window.setInterval(() => {
    const next = (Number(step.value) + 1) % (Number(step.max) + 1);
    change({ step: next === Number(step.max) ? -1 : next }, false);
  }, 800);
});
element<HTMLInputElement>("file").addEventListener("change", ({ target }) => {
  const files = (target as HTMLInputElement).files;
  if (files?.[0]) void openFile(files[0]);
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const file = event.dataTransfer?.files[0];
  if (file) void openFile(file);
  else showError("What was dropped is no file: save the image, and drop the file");
});
addEventListener("paste", (event) => {
  const file = event.clipboardData?.files[0];
  if (file) void openFile(file);
});
problem.querySelector("button")!.addEventListener("click", () => (problem.hidden = true));
element("link").addEventListener("click", async () => {
  const omitted = state.image ? "" : " An image of your own is not part of the link.";
  try {
    await navigator.clipboard.writeText(location.href);
    element("copied").textContent = `Copied.${omitted}`;
  } catch {
    element("copied").textContent = `This browser does not allow it: copy the address of the page.${omitted}`;
  }
});
addEventListener("hashchange", () => {
  const image = state.image;
  state = readState(location.hash, firstState(), known());
  void (state.image === image ? update() : showSample(state.image));
});

// The start

function firstState(): State {
  return {
    models: manifest.shown,
    image: Object.keys(SAMPLES)[0]!,
    corruption: Object.keys(CORRUPTIONS)[0]!,
    severity: 0,
    seed: 0,
    layer: 0,
    step: -1,
    query: null,
    mask: new Uint8Array(CELLS ** 2),
    backend: "auto",
  };
}

function known() {
  return {
    models: manifest.models.map((model) => model.name),
    samples: Object.keys(SAMPLES),
    corruptions: Object.keys(CORRUPTIONS),
    backends: Object.keys(CHOICES),
  };
}

function build(): void {
  for (const [name, { label }] of Object.entries(CORRUPTIONS)) corruption.add(new Option(label, name));
  for (const [name, label] of Object.entries(CHOICES)) backend.add(new Option(label, name));
  for (const [name, label] of Object.entries(SAMPLES)) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset["sample"] = name;
    button.title = label;
    button.innerHTML = `<img alt="${label}" src="${fileOf(name)}" width="80" height="80">`;
    button.addEventListener("click", () => void showSample(name));
    element("samples").append(button);
  }
  for (const model of manifest.models) {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: model.name });
    box.addEventListener("change", () => {
      const models = manifest.models.map((each) => each.name).filter((name) => (name === model.name ? box.checked : state.models.includes(name)));
      if (models.length > 0) change({ models });
      else box.checked = true; // one stays
    });
    label.append(box, model.label);
    label.title = model.name;
    element("choices").append(label);
  }
  const scale = element<HTMLCanvasElement>("scale");
  const context = scale.getContext("2d")!;
  for (let place = 0; place < scale.width; place++) {
    context.fillStyle = `rgb(${colourOf(place / (scale.width - 1)).join(" ")})`;
    context.fillRect(place, 0, 1, 1);
  }
}

/** Loads what is not shown yet, so that the page goes on without a network, and then compares the backends. */
async function fetchRest(): Promise<void> {
  await Promise.allSettled(Object.keys(SAMPLES).map(sampleOf));
  for (const model of manifest.models) await backends.load(model, state.backend).catch(() => undefined);
  performance.mark("complete");
  document.body.dataset["complete"] = "true";
  if (state.backend === "auto") await backends.measure(manifest.models, (model) => inputOf(model.size[0]).pixels).catch(() => undefined);
  showControls(); // with what was found
  document.body.dataset["measured"] = "true";
}

async function start(): Promise<void> {
  manifest = await readManifest();
  state = readState(location.hash, firstState(), known());
  build();
  const loading = state.models.map((name) => backends.load(modelOf(name), state.backend));
  source = await sampleOf(state.image);
  drawInput();
  showControls();
  await Promise.allSettled(loading);
  await update();
  if (state.models.every((name) => outputs.has(name))) performance.mark("first prediction");
  void fetchRest();
}

// For tests, and for the console.
Object.assign(window, {
  explorer: {
    started: start().catch((error) => showError(`The page could not be started: ${messageOf(error)}`)),
    backends,
    centrePixels,
    readImage,
    corrupt,
    Seeded,
    tableOf,
    corruptions: Object.keys(CORRUPTIONS),
    modelOf,
    pixelsOf,
    outputOf: (name: string) => outputs.get(name),
    mapOf: (name: string) => mapOf(modelOf(name), outputs.get(name)!),
    state: () => state,
    idle: () => !isRunning && !isDue,
  },
});
