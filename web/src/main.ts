// The page: what the visitor chooses goes into the state, and what the models answer goes onto the cards.

import "./style.css";
import { Backends, CHOICES, type Choice } from "./backends";
import { CORRUPTIONS, corrupt, tableOf, type Pixels } from "./corruptions";
import { colourOf, covered, drawCell, drawImage, drawMap, imageOf } from "./draw";
import { fetchWhole } from "./files";
import { readManifest, softmax, stepsOf, type Manifest, type Model } from "./models";
import { centrePixels, readPicture, type Picture } from "./pixels";
import { Seeded, seedOf } from "./random";
import { fileOf, SAMPLES } from "./samples";
import { CELLS, readState, writeState, type State } from "./state";
import type { Answer, Backend } from "./worker";

function element<Kind extends HTMLElement>(id: string): Kind {
  return document.getElementById(id) as Kind;
}

const shown = element<HTMLCanvasElement>("shown");
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
const samples = new Map<string, Promise<Picture>>();
const answers = new Map<string, Answer & { backend: Backend }>();
const BRUSH = 2; // cells around the one under the pointer

let manifest: Manifest;
let state: State;
let picture: Picture;
let cursor: [number, number] = [CELLS / 2, CELLS / 2]; // of the keyboard, on the grid of the brush
let playing = 0;

function modelOf(name: string): Model {
  return manifest.models.find((model) => model.name === name)!;
}

// Pixels

/** What a model of that size is shown: the middle of the picture, corrupted, with what is covered. */
function pixelsOf(size: number): Pixels {
  const clean = centrePixels(picture, size);
  const draws = new Seeded(seedOf(`${state.corruption} ${state.severity} ${state.seed}`));
  return covered(corrupt(clean, state.corruption, state.severity, draws, tableOf(size)), state.mask);
}

/** `pixelsOf`, kept as long as nothing of it changes. */
const made = new Map<number, { picture: Picture; key: string; pixels: Pixels; image: ImageData }>();
function madeOf(size: number) {
  const key = `${state.corruption} ${state.severity} ${state.seed} ${state.mask.join("")}`;
  const before = made.get(size);
  if (before?.picture === picture && before.key === key) return before;
  const pixels = pixelsOf(size);
  const now = { picture, key, pixels, image: imageOf(pixels) };
  made.set(size, now);
  return now;
}

// What changes

let due = false;
let working = false;

/** Asks every model that is shown, and again if the state changed in the meantime. */
async function update(): Promise<void> {
  drawPicture();
  showControls();
  due = true;
  if (working) return;
  working = true;
  try {
    while (due) {
      due = false;
      document.body.classList.add("asking");
      for (const name of [...state.models]) {
        const model = modelOf(name);
        card(model).classList.add("busy");
        const { pixels } = madeOf(model.size[0]);
        const query = state.query && (state.query.map((part, axis) => Math.floor(part * model.size[axis]!)) as [number, number]);
        answers.set(name, await backends.run(model, pixels, query, state.backend));
        if (state.models.includes(name)) showAnswer(model);
      }
    }
    redraw();
    tellStatus();
    showControls(); // what is known of the backends may be new
    performance.mark("answered");
  } catch (error) {
    tellProblem(`The models could not be run: ${error instanceof Error ? error.message : error}`);
  } finally {
    working = false;
    document.body.classList.remove("asking");
  }
}

/** A change of the state: the link follows, and the models are asked, or what they said is drawn anew. */
function change(part: Partial<State>, asks = true): void {
  performance.mark("changed");
  state = { ...state, ...part };
  history.replaceState(null, "", writeState(state));
  if (asks) void update();
  else {
    drawPicture();
    showControls();
    redraw();
  }
}

/** Draws what the models said once more: on one scale, each depends on all. */
function redraw(): void {
  for (const name of state.models) if (answers.has(name)) showAnswer(modelOf(name));
  element("least").textContent = shared.checked ? "0" : "least";
  element("most").textContent = shared.checked ? `${mostShown().toFixed(1)} times the mean` : "most";
}

async function show(sample: string): Promise<void> {
  try {
    picture = await sampleOf(sample);
    change({ picture: sample });
  } catch (error) {
    tellProblem(error instanceof Error ? error.message : String(error));
  }
}

function sampleOf(sample: string): Promise<Picture> {
  let read = samples.get(sample);
  if (read === undefined) {
    read = fetchWhole(fileOf(sample)).then((bytes) => readPicture(new Blob([bytes]), fileOf(sample)));
    read.catch(() => samples.delete(sample));
    samples.set(sample, read);
  }
  return read;
}

/** A picture of the visitor's. What was shown before stays if it cannot be read. */
async function open(file: File): Promise<void> {
  try {
    picture = await readPicture(file, file.name || "the picture");
    problem.hidden = true;
    change({ picture: "" });
  } catch (error) {
    tellProblem(error instanceof Error ? error.message : String(error));
  }
}

function tellProblem(text: string): void {
  problem.querySelector("p")!.textContent = text;
  problem.hidden = false;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

function tellStatus(): void {
  const told = state.models.map((name) => {
    const model = modelOf(name);
    const shares = softmax(answers.get(name)!.logits);
    const best = shares.indexOf(Math.max(...shares));
    return `${model.label}: ${model.classes[best]}, ${percent(shares[best]!)}`;
  });
  element("status").textContent = `${told.join(". ")}.`;
  element("status").classList.add("hidden"); // the cards say it to the eye
}

// Drawing

function gridOf(): [number, number] {
  return modelOf(state.models[0]!).maps.grid;
}

function cellOf(grid: [number, number]): [number, number] {
  return state.query!.map((part, axis) => Math.floor(part * grid[axis]!)) as [number, number];
}

function drawPicture(): void {
  drawImage(shown, madeOf(modelOf(state.models[0]!).size[0]).image);
  if (tool() !== "query" && document.activeElement === shown) drawCell(shown, [CELLS, CELLS], cursor);
  else if (state.query) drawCell(shown, gridOf(), cellOf(gridOf()));
}

function card(model: Model): HTMLElement {
  const cards = element("cards");
  const found = cards.querySelector<HTMLElement>(`[data-model="${CSS.escape(model.name)}"]`);
  if (found) return found;
  const made = document.createElement("article");
  made.className = "card";
  made.dataset["model"] = model.name;
  made.innerHTML = `<h3></h3><p class="hint about"></p><canvas width="448" height="448" role="img"></canvas>
    <p class="hint position"></p><ol aria-label="Most likely classes"></ol><p class="hint code"></p>`;
  made.querySelector("h3")!.textContent = model.label;
  const size = `${(model.parameters / 1e6).toFixed(2)} M parameters`;
  made.querySelector(".about")!.textContent = [model.label === model.name ? "" : model.name, size, model.measured]
    .filter(Boolean)
    .join("; ");
  const canvas = made.querySelector("canvas")!;
  canvas.setAttribute("aria-label", `Map of ${model.label}, not computed yet`);
  canvas.addEventListener("click", (event) => ask(placeOf(event)));
  cards.append(made);
  return made;
}

/** The place of the layer and the step that are shown among those of a model. */
function placeIn(model: Model): { layer: number; step: number; steps: number | null } {
  const layers = Object.values(model.maps.layers);
  const chosen = state.layer === 0 ? layers.length - 1 : Math.min(state.layer, layers.length) - 1;
  const steps = layers[chosen]!;
  const last = steps ?? 0;
  return { layer: chosen, step: state.step < 0 ? last : Math.min(state.step, last), steps };
}

/** The map of a model that is shown, (height, width). */
function mapOf(model: Model, answer: Answer): Float32Array {
  const { layer, step } = placeIn(model);
  const [, steps, height, width] = answer.shape as [number, number, number, number];
  const start = (layer * steps + step) * height * width;
  return answer.maps.subarray(start, start + height * width);
}

function meanOf(map: Float32Array): number {
  return map.reduce((sum, value) => sum + value) / map.length;
}

/** The largest value of all maps that are shown, each in units of its mean. */
function mostShown(): number {
  const maps = state.models.filter((name) => answers.has(name)).map((name) => mapOf(modelOf(name), answers.get(name)!));
  return Math.max(1, ...maps.map((map) => Math.max(...map) / (meanOf(map) || 1)));
}

function showAnswer(model: Model): void {
  const answer = answers.get(model.name)!;
  const shownOn = card(model);
  const canvas = shownOn.querySelector("canvas")!;
  const { layer, step, steps } = placeIn(model);
  const map = mapOf(model, answer);
  const grid = answer.shape.slice(2) as [number, number];
  const mean = meanOf(map);
  const range: [number, number] = shared.checked ? [0, mean * mostShown()] : [Math.min(...map), Math.max(...map)];
  drawMap(canvas, madeOf(model.size[0]).image, map, grid, range, Number(opacity.value) / 100);
  const asked = state.query !== null && model.maps.kind === "implicit";
  if (asked) drawCell(canvas, grid, cellOf(grid));
  const strongest = map.indexOf(Math.max(...map));
  const place = `row ${Math.floor(strongest / grid[1]) + 1}, column ${(strongest % grid[1]) + 1}`;
  const when = steps === null ? "not recurrent" : step === 0 ? "before the first step" : `after step ${step} of ${steps}`;
  const times = mean > 0 ? `, ${(map[strongest]! / mean).toFixed(1)} times the mean` : "";
  shownOn.querySelector(".position")!.textContent = `Layer ${layer + 1}, ${when}. Most at ${place}${times}.`;
  canvas.setAttribute(
    "aria-label",
    `Where ${model.label} looks${asked ? " from the position asked about" : ""}: layer ${layer + 1}, ${when}; most at ${place}${times}`,
  );
  const shares = softmax(answer.logits);
  const order = [...shares.keys()].sort((first, second) => shares[second]! - shares[first]!).slice(0, 5);
  shownOn.querySelector("ol")!.replaceChildren(
    ...order.map((index) => {
      const item = document.createElement("li");
      item.style.setProperty("--share", `${100 * shares[index]!}%`);
      item.append(...[model.classes[index] ?? `class ${index}`, percent(shares[index]!)].map((text) => Object.assign(document.createElement("span"), { textContent: text, title: text })));
      return item;
    }),
  );
  const time = `Computed in ${answer.milliseconds.toFixed(0)} ms by ${CHOICES[answer.backend]}.`;
  const zeros = answer.sparsity?.[layer * answer.shape[1]! + step];
  shownOn.querySelector(".code")!.textContent =
    steps === null || zeros === undefined
      ? `No code. ${time}`
      : `Code: ${percent(zeros)} zeros ${step === 0 ? "at the start" : `after step ${step}`}. ${time}`;
  shownOn.classList.remove("busy");
}

/** Controls as the state says. */
function showControls(): void {
  const models = state.models.map(modelOf);
  for (const box of element("choices").querySelectorAll<HTMLInputElement>("input")) box.checked = state.models.includes(box.value);
  for (const old of element("cards").querySelectorAll<HTMLElement>(".card"))
    if (!state.models.includes(old.dataset["model"]!)) old.remove();
  element("cards").append(...models.map(card)); // in the order of the list
  corruption.value = state.corruption;
  severity.value = String(state.severity);
  severity.setAttribute("aria-valuetext", state.severity === 0 ? "0, as it is" : `${state.severity} of 5`);
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
  element("step-value").textContent = steps === 0 ? "none" : Number(step.value) === 0 ? "0, the start" : `${step.value} of ${steps}`;
  step.setAttribute("aria-valuetext", element("step-value").textContent!);
  backend.value = state.backend;
  element("backend-note").textContent = backends.note;
  element("opacity-value").textContent = `${opacity.value} %`;
  element<HTMLButtonElement>("mean").disabled = state.query === null;
  element<HTMLButtonElement>("uncover").disabled = !state.mask.some(Boolean);
  for (const button of element("samples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset["sample"] === state.picture));
  const kind = models[0]!.maps.kind;
  element("kind").textContent =
    kind === "implicit"
      ? `Maps are of the kind "implicit", for all models: how much the output of the layer ${state.query ? "at the position asked about" : "(mean over all positions)"} depends on the value at each position. For softmax these are the attention weights; for VARS it is the exact derivative of the steps.`
      : `Maps are of the kind "energy", for all models: how much the layer passes on at each position. It has no position to ask about.`;
  showTool(kind);
}

function tool(): string {
  return document.querySelector<HTMLInputElement>("input[name=tool]:checked")!.value;
}

function showTool(kind: string): void {
  shown.classList.toggle("reading", tool() === "query");
  element("picture-help").textContent =
    tool() === "query"
      ? kind === "implicit"
        ? "Click a position, here or on a map, to see what it attends to. Keyboard: arrow keys; Escape for all positions."
        : "These maps have no position to ask about."
      : "Drag over the picture. Keyboard: arrow keys, and the space bar.";
}

// What the visitor does

function placeOf(event: MouseEvent): [number, number] {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const part = (at: number, size: number) => Math.min(Math.max(at / size, 0), 0.999);
  return [part(event.clientY - box.top, box.height), part(event.clientX - box.left, box.width)];
}

function paint([down, right]: [number, number], reach = BRUSH): void {
  const mask = state.mask.slice();
  const value = Number(tool() === "brush");
  for (let row = 0; row < CELLS; row++)
    for (let column = 0; column < CELLS; column++)
      if ((row - down) ** 2 + (column - right) ** 2 <= (reach + 0.25) ** 2) mask[row * CELLS + column] = value;
  if (mask.some((covered, cell) => covered !== state.mask[cell])) change({ mask });
}

function ask(place: [number, number]): void {
  if (modelOf(state.models[0]!).maps.kind === "implicit") change({ query: place.map((part) => Number(part.toFixed(3))) as [number, number] });
}

shown.addEventListener("pointerdown", (event) => {
  if (tool() === "query") return;
  shown.setPointerCapture(event.pointerId);
  paint(placeOf(event).map((part) => Math.floor(part * CELLS)) as [number, number]);
});
shown.addEventListener("pointermove", (event) => {
  if (tool() === "query" || !shown.hasPointerCapture(event.pointerId)) return;
  paint(placeOf(event).map((part) => Math.floor(part * CELLS)) as [number, number]);
});
shown.addEventListener("click", (event) => {
  if (tool() === "query") ask(placeOf(event));
});
shown.addEventListener("keydown", (event) => {
  const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const move = moves[event.key];
  if (move && tool() === "query") {
    const grid = gridOf();
    const cell = state.query ? cellOf(grid) : (grid.map((side) => Math.floor(side / 2)) as [number, number]);
    const next = cell.map((at, axis) => Math.min(Math.max(at + (state.query ? move[axis]! : 0), 0), grid[axis]! - 1));
    ask(next.map((at, axis) => (at + 0.5) / grid[axis]!) as [number, number]);
  } else if (move) {
    cursor = cursor.map((at, axis) => Math.min(Math.max(at + move[axis]!, 0), CELLS - 1)) as [number, number];
    drawPicture();
  } else if (event.key === " " && tool() !== "query") paint(cursor);
  else if (event.key === "Escape" && state.query) change({ query: null });
  else return;
  event.preventDefault();
});
for (const kind of ["focus", "blur"]) shown.addEventListener(kind, () => picture && drawPicture());

for (const radio of document.querySelectorAll("input[name=tool]")) radio.addEventListener("change", () => change({}, false));
element("mean").addEventListener("click", () => change({ query: null }));
element("uncover").addEventListener("click", () => change({ mask: new Uint8Array(CELLS ** 2) }));
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
  if (files?.[0]) void open(files[0]);
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
  if (file) void open(file);
  else tellProblem("What was dropped is no file: save the picture, and drop the file");
});
addEventListener("paste", (event) => {
  const file = event.clipboardData?.files[0];
  if (file) void open(file);
});
problem.querySelector("button")!.addEventListener("click", () => (problem.hidden = true));
element("link").addEventListener("click", async () => {
  const told = state.picture ? "Copied." : "Copied. A picture of your own is not part of the link.";
  try {
    await navigator.clipboard.writeText(location.href);
    element("copied").textContent = told;
  } catch {
    element("copied").textContent = `This browser does not allow it: copy the address of the page. ${state.picture ? "" : told.slice(8)}`;
  }
});
addEventListener("hashchange", () => {
  const picture = state.picture;
  state = readState(location.hash, firstState(), known());
  void (state.picture === picture ? update() : show(state.picture));
});

// The start

function firstState(): State {
  return {
    models: manifest.shown,
    picture: Object.keys(SAMPLES)[0]!,
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
    button.addEventListener("click", () => void show(name));
    element("samples").append(button);
  }
  for (const model of manifest.models) {
    const choice = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: model.name });
    box.addEventListener("change", () => {
      const models = manifest.models.map((each) => each.name).filter((name) => (name === model.name ? box.checked : state.models.includes(name)));
      if (models.length > 0) change({ models });
      else box.checked = true; // one stays
    });
    choice.append(box, model.label);
    choice.title = model.name;
    element("choices").append(choice);
  }
  const scale = element<HTMLCanvasElement>("scale");
  const context = scale.getContext("2d")!;
  for (let place = 0; place < scale.width; place++) {
    context.fillStyle = `rgb(${colourOf(place / (scale.width - 1)).join(" ")})`;
    context.fillRect(place, 0, 1, 1);
  }
}

/** Fetches what is not shown yet, so that the page goes on without a network. */
async function fetchRest(): Promise<void> {
  await Promise.allSettled(Object.keys(SAMPLES).map(sampleOf));
  for (const model of manifest.models) await backends.load(model, state.backend).catch(() => undefined);
  performance.mark("complete");
  document.body.dataset["complete"] = "true";
  if (state.backend !== "wasm") await backends.measure(manifest.models, (model) => madeOf(model.size[0]).pixels).catch(() => undefined);
}

async function start(): Promise<void> {
  manifest = await readManifest();
  state = readState(location.hash, firstState(), known());
  build();
  const loading = state.models.map((name) => backends.load(modelOf(name), state.backend));
  picture = await sampleOf(state.picture);
  drawPicture();
  showControls();
  await Promise.allSettled(loading);
  await update();
  if (state.models.every((name) => answers.has(name))) performance.mark("first answer");
  void fetchRest();
}

/** For tests, and for the console. */
Object.assign(window, {
  explorer: {
    started: start().catch((error) => tellProblem(`The page could not be started: ${error instanceof Error ? error.message : error}`)),
    backends,
    centrePixels,
    readPicture,
    corrupt,
    Seeded,
    tableOf,
    corruptions: Object.keys(CORRUPTIONS),
    modelOf,
    pixelsOf,
    answerOf: (name: string) => answers.get(name),
    mapOf: (name: string) => mapOf(modelOf(name), answers.get(name)!),
    state: () => state,
    idle: () => !working && !due,
  },
});
