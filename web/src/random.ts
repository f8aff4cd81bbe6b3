// Chance from a seed, so that a link shows the same noise again.

/** What corruptions draw. A test passes the numbers that PyTorch drew. */
export interface Draws {
  normal(count: number): Float32Array;
  uniform(count: number): Float32Array;
  poisson(rates: Float32Array): Float32Array;
}

/** Numbers from a seed: mulberry32, Box and Muller, and Knuth's way of counting. */
export class Seeded implements Draws {
  private state: number;

  constructor(seed: number) {
    this.state = seed >>> 0;
  }

  /** From 0 to below 1. */
  private next(): number {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let mixed = this.state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  normal(count: number): Float32Array {
    const drawn = new Float32Array(count);
    for (let index = 0; index < count; index += 2) {
      const radius = Math.sqrt(-2 * Math.log(1 - this.next()));
      const angle = 2 * Math.PI * this.next();
      drawn[index] = radius * Math.cos(angle);
      if (index + 1 < count) drawn[index + 1] = radius * Math.sin(angle);
    }
    return drawn;
  }

  uniform(count: number): Float32Array {
    return Float32Array.from({ length: count }, () => this.next());
  }

  poisson(rates: Float32Array): Float32Array {
    return rates.map((rate) => {
      const limit = Math.exp(-rate);
      let count = -1;
      for (let product = 1; product > limit || count < 0; count += 1) product *= this.next();
      return count;
    });
  }
}

/** A seed made of text: FNV-1a. */
export function seedOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const character of text) hash = Math.imul(hash ^ character.codePointAt(0)!, 0x01000193);
  return hash >>> 0;
}
