// Images as the pixels that models take: the shorter side to 256 / 224 of the size, bicubic, and the middle of it, with
// the arithmetic of Pillow, so that a model sees what it sees in Python.

import { roundHalfEven, type Pixels } from "./corruptions";

/** An image as it is stored: (height, width, 4) of 8 bits. */
export interface SourceImage {
  data: Uint8ClampedArray | Uint8Array;
  height: number;
  width: number;
}

const BITS = 22; // of the fractions of Pillow's weights for 8 bit images

/** Which pixels make each of `size`, and by how much, as Pillow's bicubic filter with its support scaled. */
function weightsOf(length: number, size: number): { first: number; weights: Int32Array }[] {
  const scale = length / size;
  const reach = Math.max(scale, 1);
  const support = 2 * reach;
  return Array.from({ length: size }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(length, Math.trunc(centre + support + 0.5));
    const raw = Float64Array.from({ length: end - first }, (_, tap) => bicubic((tap + first - centre + 0.5) * (1 / reach)));
    const sum = raw.reduce((total, weight) => total + weight, 0);
    const weights = Int32Array.from(raw, (weight) => {
      const share = (sum === 0 ? weight : weight * (1 / sum)) * (1 << BITS);
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    });
    return { first, weights };
  });
}

function bicubic(at: number): number {
  const a = -0.5;
  const x = Math.abs(at);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

function clip8(sum: number): number {
  return Math.min(Math.max(Math.floor(sum / (1 << BITS)), 0), 255);
}

const HALF = 1 << (BITS - 1);

/** Colours (height, width, 3) resized along rows and then columns, of which a box is kept. */
function resize(image: SourceImage, width: number, height: number, left: number, top: number, size: number): Uint8Array {
  const columns = width === image.width ? null : weightsOf(image.width, width).slice(left, left + size);
  const rows = height === image.height ? null : weightsOf(image.height, height).slice(top, top + size);
  const begin = rows === null ? top : Math.min(...rows.map((row) => row.first));
  const end = rows === null ? top + size : Math.max(...rows.map((row) => row.first + row.weights.length));
  const across = new Uint8Array((end - begin) * size * 3);
  for (let row = begin; row < end; row++)
    for (let place = 0; place < size; place++)
      for (let channel = 0; channel < 3; channel++) {
        let value: number;
        if (columns === null) value = image.data[(row * image.width + left + place) * 4 + channel]!;
        else {
          const { first, weights } = columns[place]!;
          let sum = HALF;
          for (let tap = 0; tap < weights.length; tap++)
            sum += image.data[(row * image.width + first + tap) * 4 + channel]! * weights[tap]!;
          value = clip8(sum);
        }
        across[((row - begin) * size + place) * 3 + channel] = value;
      }
  if (rows === null) return across;
  const resized = new Uint8Array(size * size * 3);
  rows.forEach(({ first, weights }, row) => {
    for (let column = 0; column < size * 3; column++) {
      let sum = HALF;
      for (let tap = 0; tap < weights.length; tap++) sum += across[(first - begin + tap) * size * 3 + column]! * weights[tap]!;
      resized[row * size * 3 + column] = clip8(sum);
    }
  });
  return resized;
}

/** Rows and columns exchanged. */
function transposed(image: SourceImage): SourceImage {
  const { width, height } = image;
  const data = new Uint8Array(image.data.length);
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++)
      for (let part = 0; part < 4; part++) data[(column * height + row) * 4 + part] = image.data[(row * width + column) * 4 + part]!;
  return { data, width: height, height: width };
}

/** What a model of that size is shown of an image: (3, size, size) in [0, 1]. An image of the size is left as it is. */
export function centrePixels(image: SourceImage, size: number): Pixels {
  const { width, height } = image;
  let [wide, high, left, top] = [size, size, 0, 0];
  if (!(width === size && height === size)) {
    const shorter = roundHalfEven((size * 256) / 224);
    const longer = Math.floor((shorter * Math.max(width, height)) / Math.min(width, height));
    [wide, high] = width < height ? [shorter, longer] : [longer, shorter];
    [left, top] = [roundHalfEven((wide - size) / 2), roundHalfEven((high - size) / 2)];
  }
  const columnsFirst = height > 2 * width && high < height; // as Pillow 13 does it
  const colours = columnsFirst
    ? resize(transposed(image), high, wide, top, left, size)
    : resize(image, wide, high, left, top, size);
  const [down, right] = columnsFirst ? [1, size] : [size, 1];
  const data = new Float32Array(3 * size * size);
  for (let row = 0; row < size; row++)
    for (let column = 0; column < size; column++)
      for (let channel = 0; channel < 3; channel++)
        data[(channel * size + row) * size + column] = colours[(row * down + column * right) * 3 + channel]! / 255;
  return { data, height: size, width: size };
}

// Files

export const LARGEST_FILE = 64 * 2 ** 20; // bytes
export const LARGEST_IMAGE = 64e6; // pixels

/** The image in a file. Errors say what was found and what to do. */
export async function readImage(file: Blob, name: string): Promise<SourceImage> {
  if (file.size === 0) throw new Error(`${name} is empty: choose an image (PNG, JPEG, WebP, GIF)`);
  if (file.size > LARGEST_FILE)
    throw new Error(`${name} has ${inMegabytes(file.size)}: images up to ${inMegabytes(LARGEST_FILE)} are read, make it smaller`);
  const told = sizeIn(new Uint8Array(await file.slice(0, 2 ** 18).arrayBuffer()));
  if (told !== null && told[0] * told[1] > LARGEST_IMAGE)
    throw new Error(
      `${name} is of ${told[0]} x ${told[1]} pixels: up to ${LARGEST_IMAGE / 1e6} million are read, make it smaller`,
    );
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "premultiply" });
  } catch {
    throw new Error(`${name} is not an image that this browser can read: choose a PNG, JPEG, WebP or GIF file`);
  }
  try {
    const { width, height } = bitmap;
    if (width * height > LARGEST_IMAGE)
      throw new Error(`${name} is of ${width} x ${height} pixels: up to ${LARGEST_IMAGE / 1e6} million are read`);
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    if (context === null) throw new Error(`${name} is too large for this browser: make it smaller`);
    context.fillStyle = "white"; // behind what is transparent
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    return { data: context.getImageData(0, 0, width, height).data, width, height };
  } finally {
    bitmap.close();
  }
}

function inMegabytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(0)} MB`;
}

/** Width and height that the first bytes of a PNG, GIF, WebP or JPEG file say; null if they do not. */
export function sizeIn(bytes: Uint8Array): [number, number] | null {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (start: number, length: number) => String.fromCharCode(...bytes.subarray(start, start + length));
  if (bytes.length < 32) return null;
  if (text(1, 3) === "PNG") return [view.getUint32(16), view.getUint32(20)];
  if (text(0, 3) === "GIF") return [view.getUint16(6, true), view.getUint16(8, true)];
  if (text(0, 4) === "RIFF" && text(8, 4) === "WEBP" && text(12, 4) === "VP8X")
    return [1 + (view.getUint32(23, true) >>> 8), 1 + (view.getUint32(26, true) >>> 8)];
  if (view.getUint16(0) !== 0xffd8) return null;
  for (let at = 2; at + 9 < bytes.length; ) {
    const marker = view.getUint16(at);
    if (marker >= 0xffc0 && marker <= 0xffcf && ![0xffc4, 0xffc8, 0xffcc].includes(marker))
      return [view.getUint16(at + 7), view.getUint16(at + 5)];
    at += 2 + view.getUint16(at + 2);
  }
  return null;
}
