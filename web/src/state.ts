// What the visitor chose, and how a link holds it.

import type { Choice } from "./backends";

export const CELLS = 28; // the brush paints cells of a grid of so many on each side

export interface State {
  models: string[];
  image: string; // the name of a sample, or "" for one of the visitor's own
  corruption: string;
  severity: number;
  seed: number;
  layer: number; // counted from 1; 0 for the last
  step: number; // -1 for the last
  query: [number, number] | null; // a place from 0 to 1: down, right
  mask: Uint8Array; // CELLS x CELLS, 1 where the image is occluded
  backend: Choice;
}

/** A number of a link, or a default where there is none or it is out of range. */
function numberIn(text: string | null, least: number, most: number, otherwise: number): number {
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isInteger(value) && value >= least && value <= most ? value : otherwise;
}

export interface Known {
  models: string[];
  samples: string[];
  corruptions: string[];
  backends: string[];
}

/** The state of a link. What it does not know is as at first: a link may be old, or cut off. */
export function readState(hash: string, first: State, known: Known): State {
  const link = new URLSearchParams(hash.replace(/^#/, ""));
  const models = (link.get("models") ?? "").split(",").filter((name) => known.models.includes(name));
  const one = (name: string, among: string[], otherwise: string) =>
    among.includes(link.get(name) ?? "") ? link.get(name)! : otherwise;
  const place = (link.get("query") ?? "").split(",").map(Number);
  const fits = link.has("query") && place.length === 2 && place.every((part) => part >= 0 && part < 1);
  return {
    models: models.length > 0 ? [...new Set(models)] : first.models,
    image: one("image", known.samples, first.image),
    corruption: one("corruption", known.corruptions, first.corruption),
    severity: numberIn(link.get("severity"), 0, 5, first.severity),
    seed: numberIn(link.get("seed"), 0, 2 ** 31, first.seed),
    layer: numberIn(link.get("layer"), 0, 1000, first.layer),
    step: numberIn(link.get("step"), -1, 1000, first.step),
    query: fits ? (place as [number, number]) : first.query,
    mask: readMask(link.get("mask")) ?? first.mask,
    backend: one("backend", known.backends, first.backend) as Choice,
  };
}

export function writeState(state: State): string {
  const link = new URLSearchParams({ models: state.models.join(",") });
  if (state.image) link.set("image", state.image);
  if (state.severity > 0) {
    link.set("corruption", state.corruption);
    link.set("severity", String(state.severity));
    if (state.seed > 0) link.set("seed", String(state.seed));
  }
  if (state.layer > 0) link.set("layer", String(state.layer));
  if (state.step >= 0) link.set("step", String(state.step));
  if (state.query) link.set("query", state.query.map((part) => part.toFixed(3)).join(","));
  if (state.mask.some(Boolean)) link.set("mask", writeMask(state.mask));
  if (state.backend !== "auto") link.set("backend", state.backend);
  return `#${link.toString().replaceAll("%2C", ",")}`;
}

function writeMask(mask: Uint8Array): string {
  const bytes = new Uint8Array(Math.ceil(mask.length / 8));
  mask.forEach((occluded, cell) => (bytes[cell >> 3]! |= occluded << (cell & 7)));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function readMask(text: string | null): Uint8Array | null {
  if (text === null) return null;
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    if (bytes.length !== Math.ceil(CELLS ** 2 / 8)) return null;
    return Uint8Array.from({ length: CELLS ** 2 }, (_, cell) => (bytes[cell >> 3]! >> (cell & 7)) & 1);
  } catch {
    return null;
  }
}
