// The corruptions of ImageNet-C and CIFAR-10-C on one image, as torchvars.evaluation.corruptions defines them.
//
// Pixels are planar, (3, height, width) in [0, 1]. How strong each is at severities 1 to 5 comes from the Python package
// (strengths.json), and from the same draws comes the same image.

import strengths from "./strengths.json";
import type { Draws } from "./random";

export interface Pixels {
  data: Float32Array; // (3, height, width)
  height: number;
  width: number;
}

type Strength = any; // a number, or the numbers of a row of strengths.json
type Corrupting = (pixels: Pixels, strength: Strength, draws: Draws) => Float32Array;

const CHANNELS = 3;

// Borders have SciPy's names: "nearest" repeats the last pixel, "mirror" mirrors at it.
type Border = "nearest" | "mirror";

function beyond(position: number, size: number, border: Border): number {
  if (border === "nearest") return Math.min(Math.max(position, 0), size - 1);
  const turn = Math.max(2 * size - 2, 1);
  const within = ((position % turn) + turn) % turn;
  return Math.min(within, turn - within);
}

function over(pixels: Pixels, change: (value: number, index: number) => number): Float32Array {
  const changed = new Float32Array(pixels.data.length);
  for (let index = 0; index < changed.length; index++) changed[index] = change(pixels.data[index]!, index);
  return changed;
}

/** Each colour (red, green, blue) changed by itself. */
function eachColour(pixels: Pixels, change: (colour: [number, number, number]) => [number, number, number]): Float32Array {
  const area = pixels.height * pixels.width;
  const changed = new Float32Array(pixels.data.length);
  for (let index = 0; index < area; index++) {
    const colour = change([pixels.data[index]!, pixels.data[index + area]!, pixels.data[index + 2 * area]!]);
    for (let channel = 0; channel < CHANNELS; channel++) changed[index + channel * area] = colour[channel]!;
  }
  return changed;
}

// Noise

const gaussianNoise: Corrupting = (pixels, scale: number, draws) => {
  const noise = draws.normal(pixels.data.length);
  return over(pixels, (value, index) => value + scale * noise[index]!);
};

const shotNoise: Corrupting = (pixels, photons: number, draws) =>
  draws.poisson(over(pixels, (value) => value * photons)).map((count) => count / photons);

const impulseNoise: Corrupting = (pixels, amount: number, draws) => {
  const chance = draws.uniform(pixels.data.length);
  return over(pixels, (value, index) => (chance[index]! < amount ? Number(chance[index]! < amount / 2) : value));
};

const speckleNoise: Corrupting = (pixels, scale: number, draws) => {
  const noise = draws.normal(pixels.data.length);
  return over(pixels, (value, index) => value + value * scale * noise[index]!);
};

// Blur

/** Correlated with weights along one axis; all planes of (planes, height, width). */
function along(data: Float32Array, height: number, width: number, weights: Float64Array, axis: 0 | 1): Float32Array {
  const [size, step] = axis === 0 ? [height, width] : [width, 1];
  const radius = (weights.length - 1) / 2;
  const planes = data.length / (height * width);
  const filtered = new Float32Array(data.length);
  const source = Int32Array.from({ length: size + 2 * radius }, (_, tap) => beyond(tap - radius, size, "nearest") * step);
  for (let plane = 0; plane < planes; plane++) {
    for (let line = 0; line < (height * width) / size; line++) {
      const start = plane * height * width + (axis === 0 ? line : line * width);
      for (let place = 0; place < size; place++) {
        let sum = 0;
        for (let tap = 0; tap < weights.length; tap++) sum += weights[tap]! * data[start + source[place + tap]!]!;
        filtered[start + place * step] = sum;
      }
    }
  }
  return filtered;
}

/** Blurred by a Gaussian of sigma pixels, cut at four of them. */
function gaussian(data: Float32Array, height: number, width: number, sigma: number): Float32Array {
  const radius = Math.trunc(4 * sigma + 0.5);
  const weights = Float64Array.from({ length: 2 * radius + 1 }, (_, tap) =>
    Math.exp(-0.5 * ((tap - radius) / Math.max(sigma, 1e-9)) ** 2),
  );
  const sum = weights.reduce((total, weight) => total + weight);
  const shares = weights.map((weight) => weight / sum);
  return along(along(data, height, width, shares, 1), height, width, shares, 0);
}

const gaussianBlur: Corrupting = (pixels, sigma: number) => gaussian(pixels.data, pixels.height, pixels.width, sigma);

/** A disk that sums to 1, its rim softened: side 2 r + 1, and its numbers row by row. */
function disk(radius: number, sigma: number): { half: number; kernel: Float64Array } {
  const [half, soft] = radius <= 8 ? [8, 1] : [Math.trunc(radius), 2];
  const side = 2 * half + 1;
  const flat = new Float64Array(side * side);
  for (let row = -half; row <= half; row++)
    for (let column = -half; column <= half; column++)
      flat[(row + half) * side + column + half] = Number(row ** 2 + column ** 2 <= radius ** 2);
  const count = flat.reduce((total, value) => total + value);
  const weights = Array.from({ length: 2 * soft + 1 }, (_, tap) => Math.exp(-0.5 * ((tap - soft) / sigma) ** 2));
  const sum = weights.reduce((total, weight) => total + weight);
  const kernel = new Float64Array(side * side);
  for (let row = 0; row < side; row++)
    for (let column = 0; column < side; column++) {
      let total = 0;
      for (let down = -soft; down <= soft; down++)
        for (let right = -soft; right <= soft; right++)
          total +=
            (weights[down + soft]! * weights[right + soft]! *
              flat[beyond(row + down, side, "mirror") * side + beyond(column + right, side, "mirror")]!) / count;
      kernel[row * side + column] = total / sum ** 2;
    }
  return { half, kernel };
}

const defocusBlur: Corrupting = (pixels, [radius, softness]: [number, number]) => {
  const { height, width } = pixels;
  const { half, kernel } = disk(radius, softness);
  const side = 2 * half + 1;
  const rows = Int32Array.from({ length: height + 2 * half }, (_, row) => beyond(row - half, height, "mirror") * width);
  const columns = Int32Array.from({ length: width + 2 * half }, (_, column) => beyond(column - half, width, "mirror"));
  const taps: [number, number, number][] = [];
  kernel.forEach((weight, index) => {
    if (weight) taps.push([Math.floor(index / side), index % side, weight]);
  });
  const blurred = new Float32Array(pixels.data.length);
  for (let channel = 0; channel < CHANNELS; channel++) {
    const plane = channel * height * width;
    for (let row = 0; row < height; row++)
      for (let column = 0; column < width; column++) {
        let sum = 0;
        for (const [down, right, weight] of taps)
          sum += weight * pixels.data[plane + rows[row + down]! + columns[column + right]!]!;
        blurred[plane + row * width + column] = sum;
      }
  }
  return blurred;
};

/** Smeared along a line at an angle in degrees, as ImageMagick does: half a Gaussian that starts at the pixel. */
function motion(data: Float32Array, height: number, width: number, radius: number, sigma: number, angle: number): Float32Array {
  const steps = Array.from({ length: 2 * Math.ceil(radius) + 1 }, (_, step) => step);
  const weights = steps.map((step) => Math.exp(-(step ** 2) / (2 * sigma ** 2)));
  const sum = weights.reduce((total, weight) => total + weight);
  const turn = (angle * Math.PI) / 180;
  const down = steps.map((step) => Math.ceil(step * Math.sin(turn) - 0.5));
  const right = steps.map((step) => Math.ceil(step * Math.cos(turn) - 0.5));
  const smeared = new Float32Array(data.length);
  for (let plane = 0; plane < data.length; plane += height * width)
    for (let row = 0; row < height; row++)
      for (let column = 0; column < width; column++) {
        let total = 0;
        for (const step of steps)
          total +=
            weights[step]! *
            data[plane + beyond(row + down[step]!, height, "nearest") * width + beyond(column + right[step]!, width, "nearest")]!;
        smeared[plane + row * width + column] = total / sum;
      }
  return smeared;
}

const motionBlur: Corrupting = (pixels, [radius, sigma]: [number, number], draws) =>
  motion(pixels.data, pixels.height, pixels.width, radius, sigma, draws.uniform(1)[0]! * 90 - 45);

/** The middle of each plane enlarged by a factor of at least 1 to the size of the whole, linearly. */
function zoom(data: Float32Array, height: number, width: number, factor: number): Float32Array {
  const axis = (size: number) => {
    const part = Math.ceil(size / factor);
    const start = Math.floor((size - part) / 2);
    const large = roundHalfEven(part * factor);
    const skipped = Math.floor((large - size) / 2);
    return Array.from({ length: size }, (_, place) => {
      const at = large > 1 ? ((place + skipped) * (part - 1)) / (large - 1) : 0;
      const first = Math.min(Math.floor(at), part - 1);
      return { first: start + first, second: start + Math.min(first + 1, part - 1), share: at - first };
    });
  };
  const [rows, columns] = [axis(height), axis(width)];
  const enlarged = new Float32Array(data.length);
  for (let plane = 0; plane < data.length; plane += height * width)
    rows.forEach((row, down) =>
      columns.forEach((column, right) => {
        const at = (line: number, place: number) => data[plane + line * width + place]!;
        const above = at(row.first, column.first) * (1 - column.share) + at(row.first, column.second) * column.share;
        const below = at(row.second, column.first) * (1 - column.share) + at(row.second, column.second) * column.share;
        enlarged[plane + down * width + right] = above * (1 - row.share) + below * row.share;
      }),
    );
  return enlarged;
}

const zoomBlur: Corrupting = (pixels, factors: number[]) => {
  const total = pixels.data.slice();
  for (const factor of factors) {
    const part = factor === 1 ? pixels.data : zoom(pixels.data, pixels.height, pixels.width, factor);
    part.forEach((value, index) => (total[index]! += value));
  }
  return total.map((value) => value / (factors.length + 1));
};

// Weather

const snow: Corrupting = (pixels, strength: number[], draws) => {
  const [mean, spread, enlargement, threshold, radius, sigma, kept] = strength as [
    number, number, number, number, number, number, number,
  ];
  const { height, width } = pixels;
  const area = height * width;
  const noise = draws.normal(area).map((value) => mean + spread * value);
  let flakes = zoom(noise, height, width, enlargement).map((value) =>
    value >= threshold ? Math.floor(Math.min(Math.max(value, 0), 1) * 255) / 255 : 0,
  );
  const angle = draws.uniform(1)[0]! * 90 - 135;
  flakes = motion(flakes, height, width, radius, sigma, angle).map((value) => roundHalfEven(value * 255) / 255);
  const whitened = eachColour(pixels, (colour) => {
    const grey = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2];
    return colour.map((value) => kept * value + (1 - kept) * Math.max(value, grey * 1.5 + 0.5)) as typeof colour;
  });
  return whitened.map((value, index) => value + flakes[index % area]! + flakes[area - 1 - (index % area)]!);
};

/** Fractal heights from 0 to 1 on a torus, size a power of 2: diamonds and squares. */
function plasma(size: number, decay: number, draws: Draws): Float32Array {
  const noise = draws.uniform(size * size).map((value) => value * 2 - 1);
  const heights = new Float32Array(size * size);
  const at = (row: number, column: number) => ((row + size) % size) * size + ((column + size) % size);
  for (let step = size, amplitude = 1; step >= 2; step /= 2, amplitude /= decay ** 2) {
    const half = step / 2;
    const cross = (row: number, column: number, offsets: [number, number][]) => {
      const sum = offsets.reduce((total, [down, right]) => total + heights[at(row + down, column + right)]!, 0);
      heights[at(row, column)] = sum / 4 + amplitude * noise[at(row, column)]!;
    };
    for (let row = half; row < size; row += step)
      for (let column = half; column < size; column += step)
        cross(row, column, [[-half, -half], [-half, half], [half, -half], [half, half]]);
    for (let row = 0; row < size; row += step)
      for (let column = 0; column < size; column += step) {
        cross(row, column + half, [[-half, 0], [half, 0], [0, -half], [0, half]]);
        cross(row + half, column, [[-half, 0], [half, 0], [0, -half], [0, half]]);
      }
  }
  const least = heights.reduce((least, value) => Math.min(least, value));
  const raised = heights.map((value) => value - least);
  const most = raised.reduce((most, value) => Math.max(most, value));
  return raised.map((value) => value / most);
}

const fog: Corrupting = (pixels, [thickness, decay]: [number, number], draws) => {
  const { height, width } = pixels;
  const longest = Math.max(height, width);
  let size = 2;
  while (size < longest) size *= 2;
  const clouds = plasma(size, decay, draws);
  const brightest = pixels.data.reduce((most, value) => Math.max(most, value));
  return over(pixels, (value, index) => {
    const [row, column] = [Math.floor((index % (height * width)) / width), index % width];
    return ((value + thickness * clouds[row * size + column]!) * brightest) / (brightest + thickness);
  });
};

const brightness: Corrupting = (pixels, amount: number) =>
  eachColour(pixels, (colour) => {
    const value = Math.max(...colour);
    const bright = Math.min(single(value + single(amount)), 1);
    return colour.map((each) => (value > 0 ? each * single(bright / value) : bright)) as typeof colour;
  });

// Digital

const contrast: Corrupting = (pixels, factor: number) => {
  const area = pixels.height * pixels.width;
  const means = [0, 1, 2].map((channel) => {
    let sum = 0;
    for (let index = 0; index < area; index++) sum += pixels.data[channel * area + index]!;
    return Math.fround(sum / area);
  });
  return over(pixels, (value, index) => {
    const mean = means[Math.floor(index / area)]!;
    return (value - mean) * factor + mean;
  });
};

const saturate: Corrupting = (pixels, [factor, amount]: [number, number]) =>
  eachColour(pixels, (colour) => {
    const [value, least] = [Math.max(...colour), Math.min(...colour)];
    const saturation = value === least ? 0 : single(single(value - least) / value);
    const saturated = Math.min(Math.max(single(single(saturation * single(factor)) + single(amount)), 0), 1);
    const dull = value * single(1 - saturated);
    if (value === least) return [value, dull, dull]; // grey counts as red
    return colour.map((each) => value - single(single(value - each) * single(saturated / saturation))) as typeof colour;
  });

/** Pillow's resize with a box filter along rows of whole numbers, each mean rounded; the result is transposed. */
function boxed(data: Float32Array, planes: number, height: number, width: number, size: number): Float32Array {
  const scale = width / size;
  const reach = Math.max(scale, 1);
  const resized = new Float32Array(planes * height * size);
  for (let place = 0; place < size; place++) {
    const centre = (place + 0.5) * scale;
    const [from, to] = [Math.trunc(centre - 0.5 * reach + 0.5), Math.trunc(centre + 0.5 * reach + 0.5)];
    const taps: number[] = [];
    for (let pixel = Math.max(from, 0); pixel < Math.min(to, width); pixel++) {
      const share = (pixel - centre + 0.5) * (1 / reach);
      if (share > -0.5 && share <= 0.5) taps.push(pixel);
    }
    for (let plane = 0; plane < planes; plane++)
      for (let row = 0; row < height; row++) {
        let sum = 0;
        for (const tap of taps) sum += data[(plane * height + row) * width + tap]!;
        resized[(plane * size + place) * height + row] = Math.floor(Math.fround(sum / taps.length) + 0.5);
      }
  }
  return resized;
}

const pixelate: Corrupting = (pixels, factor: number) => {
  const { height, width } = pixels;
  const [low, narrow] = [Math.max(1, Math.trunc(height * factor)), Math.max(1, Math.trunc(width * factor))];
  let data: Float32Array = pixels.data.map((value) => roundHalfEven(value * 255));
  data = boxed(boxed(data, CHANNELS, height, width, narrow), CHANNELS, narrow, height, low);
  data = boxed(boxed(data, CHANNELS, low, narrow, width), CHANNELS, width, low, height);
  return data.map((value) => value / 255);
};

/** By their names in torchvars, in its order. */
export const CORRUPTIONS: Record<string, { corrupting: Corrupting; label: string }> = {
  gaussian_noise: { corrupting: gaussianNoise, label: "Gaussian noise" },
  shot_noise: { corrupting: shotNoise, label: "Shot noise" },
  impulse_noise: { corrupting: impulseNoise, label: "Impulse noise" },
  defocus_blur: { corrupting: defocusBlur, label: "Defocus blur" },
  motion_blur: { corrupting: motionBlur, label: "Motion blur" },
  zoom_blur: { corrupting: zoomBlur, label: "Zoom blur" },
  snow: { corrupting: snow, label: "Snow" },
  fog: { corrupting: fog, label: "Fog" },
  brightness: { corrupting: brightness, label: "Brightness" },
  contrast: { corrupting: contrast, label: "Contrast" },
  pixelate: { corrupting: pixelate, label: "Pixelate" },
  speckle_noise: { corrupting: speckleNoise, label: "Speckle noise" },
  gaussian_blur: { corrupting: gaussianBlur, label: "Gaussian blur" },
  saturate: { corrupting: saturate, label: "Saturate" },
};

/** The table of strengths that is nearer in size, as `torchvars evaluate` takes it. */
export function tableOf(size: number): keyof typeof strengths {
  return size > 85 ? "imagenet" : "cifar";
}

/** An image corrupted at a severity from 1 to 5, clipped and rounded to 8 bits; at 0 as it is. */
export function corrupt(
  pixels: Pixels,
  name: string,
  severity: number,
  draws: Draws,
  table: keyof typeof strengths = tableOf(Math.min(pixels.height, pixels.width)),
): Pixels {
  if (severity === 0) return pixels;
  const strength = (strengths[table] as Record<string, Strength[]>)[name]![severity - 1];
  const data = CORRUPTIONS[name]!.corrupting(pixels, strength, draws);
  return { ...pixels, data: data.map((value) => roundHalfEven(single(Math.min(Math.max(value, 0), 1) * 255)) / 255) };
}

// In single precision, as PyTorch computes: half a step of the 256 values is met often, and then the last bit decides.
const single = Math.fround;

/** To the nearest whole number, halves to the even one, as PyTorch rounds. */
export function roundHalfEven(value: number): number {
  const nearest = Math.round(value);
  return nearest - value === 0.5 && nearest % 2 !== 0 ? nearest - 1 : nearest;
}
