// Images and maps on canvases.

import type { Pixels } from "./corruptions";
import { CELLS } from "./state";

const OCCLUSION = 0.5; // the grey that the brush paints

/** Pixels with the occluded cells painted. */
export function occlude(pixels: Pixels, mask: Uint8Array): Pixels {
  if (!mask.some(Boolean)) return pixels;
  const { height, width } = pixels;
  const data = pixels.data.map((value, index) => {
    const [row, column] = [Math.floor((index % (height * width)) / width), index % width];
    return mask[Math.floor((row * CELLS) / height) * CELLS + Math.floor((column * CELLS) / width)] ? OCCLUSION : value;
  });
  return { ...pixels, data };
}

/** The pixels on a canvas of their size. */
export function imageOf(pixels: Pixels): ImageData {
  const area = pixels.height * pixels.width;
  const image = new ImageData(pixels.width, pixels.height);
  for (let index = 0; index < area; index++) {
    for (let channel = 0; channel < 3; channel++)
      image.data[4 * index + channel] = Math.round(pixels.data[channel * area + index]! * 255);
    image.data[4 * index + 3] = 255;
  }
  return image;
}

export function drawImage(canvas: HTMLCanvasElement, image: ImageData): void {
  const context = canvas.getContext("2d")!;
  const small = new OffscreenCanvas(image.width, image.height);
  small.getContext("2d")!.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false; // a model sees these pixels
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

// From dark to bright in even steps of lightness, for people who see no colour, too.
const COLOURS = [
  [0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10], [249, 201, 50],
  [252, 255, 164],
] as const;

export function colourOf(value: number): [number, number, number] {
  const at = Math.min(Math.max(value, 0), 1) * (COLOURS.length - 1);
  const below = Math.min(Math.floor(at), COLOURS.length - 2);
  return [0, 1, 2].map(
    (part) => COLOURS[below]![part]! + (at - below) * (COLOURS[below + 1]![part]! - COLOURS[below]![part]!),
  ) as [number, number, number];
}

/** A map over an image in grey, its colours from the value `least` to `most`. */
export function drawMap(
  canvas: HTMLCanvasElement,
  image: ImageData,
  map: Float32Array,
  grid: [number, number],
  [least, most]: [number, number],
  opacity: number,
): void {
  const context = canvas.getContext("2d")!;
  const [height, width] = grid;
  const range = most - least || 1;
  const grey = new ImageData(image.width, image.height);
  for (let index = 0; index < image.data.length; index += 4) {
    const value = 0.299 * image.data[index]! + 0.587 * image.data[index + 1]! + 0.114 * image.data[index + 2]!;
    grey.data.set([value, value, value, 255], index);
  }
  drawImage(canvas, grey);
  const heat = new ImageData(width, height);
  map.forEach((value, index) => {
    const share = (value - least) / range;
    heat.data.set([...colourOf(share), 255 * opacity * (0.5 + 0.5 * share)], 4 * index);
  });
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d")!.putImageData(heat, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** A frame around a cell of a grid. */
export function drawCell(canvas: HTMLCanvasElement, grid: [number, number], cell: [number, number]): void {
  const context = canvas.getContext("2d")!;
  const [tall, wide] = [canvas.height / grid[0], canvas.width / grid[1]];
  for (const [colour, thickness] of [["black", 6], ["white", 3]] as const) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.strokeRect(cell[1] * wide, cell[0] * tall, wide, tall);
  }
}
