// Images that come with the page; where they are from is in public/samples/README.md.

export const SAMPLES: Record<string, string> = {
  parachute: "A parachute, drawn",
  church: "A church, drawn",
  golf_ball: "A golf ball on grass, drawn",
  china: "A palace in Beijing, a photograph",
  flower: "A flower, a photograph",
};

export function fileOf(sample: string): string {
  return `samples/${sample}.jpg`;
}
