"""Draws the sample pictures of the explorer that are no photographs, and cuts the photographs: web/public/samples.

    python web/draw_samples.py

Photographs are those of scikit-learn; where each picture is from is in web/public/samples/README.md.
"""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

FOLDER = Path(__file__).parent / "public" / "samples"
SIDE, FINE = 320, 4  # pixels of a sample, and how many times finer it is drawn


def main() -> None:
    from sklearn.datasets import load_sample_image

    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in {"parachute": parachute, "golf_ball": golf_ball, "church": church}.items():
        save(name, draw().resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    for name, left in {"china": 110, "flower": 90}.items():
        photograph = Image.fromarray(load_sample_image(f"{name}.jpg"))
        side = min(photograph.size)
        save(name, photograph.crop((left, 0, left + side, side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def save(name: str, picture: Image.Image) -> None:
    picture.save(FOLDER / f"{name}.jpg", quality=88, optimize=True)


def gradient(top: tuple, bottom: tuple, side: int) -> Image.Image:
    share = np.linspace(0, 1, side)[:, None, None]
    colours = np.array(top) * (1 - share) + np.array(bottom) * share
    return Image.fromarray(np.broadcast_to(colours, (side, side, 3)).astype(np.uint8))


def clouds(picture: Image.Image, seed: int, strength: float) -> Image.Image:
    """White smooth noise of several sizes over a sky."""
    side, chance = picture.width, np.random.default_rng(seed)
    density = np.zeros((side, side))
    for cells in (4, 8, 16, 32):
        noise = Image.fromarray((chance.random((cells // 2, cells)) * 255).astype(np.uint8))
        density += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) / 255 / cells
    density = np.clip((density / density.max() - 0.55) * 3, 0, 1) * strength
    cover = Image.fromarray((density * 255).astype(np.uint8))
    return Image.composite(Image.new("RGB", picture.size, "white"), picture, cover)


def grass(side: int, height: int, seed: int) -> Image.Image:
    """Blades of grass, the nearer the larger."""
    chance = np.random.default_rng(seed)
    field = gradient((60, 110, 40), (40, 92, 24), side).crop((0, 0, side, height))
    draw = ImageDraw.Draw(field)
    for depth in np.sort(chance.random(9000)):
        x, y = chance.random() * side, depth * height
        length = side * (0.01 + 0.05 * depth) * (0.6 + 0.8 * chance.random())
        lean = (chance.random() - 0.5) * length * 0.6
        green = chance.integers(-28, 36)
        colour = (70 + green, 128 + green, 44 + green // 2)
        draw.line([(x, y), (x + lean, y - length)], fill=colour, width=max(1, int(side * 0.0035)))
    return field


def parachute() -> Image.Image:
    side = SIDE * FINE
    picture = clouds(gradient((58, 112, 190), (172, 208, 238), side), 3, 0.55)
    draw = ImageDraw.Draw(picture)
    middle, top, wide, high = side * 0.5, side * 0.14, side * 0.36, side * 0.34
    rim = top + high
    colours = [(214, 42, 42), (245, 240, 230)] * 5
    edges = [math.cos(math.pi * share) for share in np.linspace(1, 0, 10)]
    for left, right, colour in zip(edges, edges[1:], colours, strict=False):
        outline = []
        for edge in (left, right):
            arc = [
                (middle + edge * wide * math.sin(angle), rim - high * math.cos(angle))
                for angle in np.linspace(0, math.pi / 2, 40)
            ]
            outline += arc if edge == left else arc[::-1]
        shade = 1 - 0.28 * max(0, (left + right) / 2)
        draw.polygon(outline, fill=tuple(int(part * shade) for part in colour))
        centre = middle + (left + right) / 2 * wide
        half = abs(right - left) * wide / 2
        draw.ellipse([centre - half, rim - half * 0.35, centre + half, rim + half * 0.35], fill=(92, 140, 205))
    feet = (middle, side * 0.8)
    for edge in edges:
        draw.line([(middle + edge * wide, rim), feet], fill=(40, 40, 48), width=FINE)
    x, y, unit = *feet, side * 0.02
    draw.ellipse([x - unit, y - unit, x + unit, y + unit], fill=(60, 40, 34))
    draw.rounded_rectangle([x - 1.3 * unit, y + unit, x + 1.3 * unit, y + 4.6 * unit], unit, fill=(30, 40, 70))
    for turn in (-1, 1):
        draw.line([(x + turn * unit * 0.6, y + 4.4 * unit), (x + turn * 1.3 * unit, y + 7.6 * unit)], (24, 26, 40), 14)
        draw.line([(x + turn * unit, y + 1.6 * unit), (x + turn * 2 * unit, y - 0.8 * unit)], (30, 40, 70), 11)
    return picture.filter(ImageFilter.GaussianBlur(FINE * 0.5))


def golf_ball() -> Image.Image:
    side = SIDE * FINE
    picture = Image.new("RGB", (side, side))
    picture.paste(gradient((36, 74, 34), (88, 134, 70), side).filter(ImageFilter.GaussianBlur(30)), (0, 0))
    horizon = int(side * 0.42)
    picture.paste(grass(side, side - horizon, 5), (0, horizon))
    picture = picture.filter(ImageFilter.GaussianBlur(FINE * 0.7))
    radius, x, y = side * 0.27, side * 0.5, side * 0.52
    shadow = Image.new("L", picture.size)
    ImageDraw.Draw(shadow).ellipse([x - radius, y + radius * 0.7, x + radius * 1.3, y + radius * 1.2], fill=150)
    shadow = shadow.filter(ImageFilter.GaussianBlur(side * 0.03))
    picture = Image.composite(Image.new("RGB", picture.size, (14, 30, 10)), picture, shadow)
    row, column = np.mgrid[:side, :side]
    right, down = (column - x) / radius, (row - y) / radius
    inside = right**2 + down**2 <= 1
    near = np.sqrt(np.clip(1 - right**2 - down**2, 0, None))
    normal = np.stack([right, down, near], -1)
    # Dimples at the points of a spiral over the sphere.
    count = 330
    turn = np.arange(count) * math.pi * (3 - math.sqrt(5))
    height = 1 - 2 * (np.arange(count) + 0.5) / count
    flat = np.sqrt(1 - height**2)
    dimples = np.stack([flat * np.cos(turn), flat * np.sin(turn), height], -1)
    for dimple in dimples[dimples[:, 2] > -0.2]:
        away = normal - dimple
        distance = np.sqrt((away**2).sum(-1)) / 0.085
        normal = normal - 0.45 * np.where((distance < 1)[..., None], away * (1 - distance**2)[..., None] / 0.085, 0)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    light = np.array([-0.45, -0.65, 0.62])
    bright = np.clip((normal @ (light / np.linalg.norm(light))), 0, 1)
    ball = 70 + 185 * bright[..., None] ** 0.8 * np.array([1, 1, 0.98])
    ball = Image.fromarray(np.clip(ball, 0, 255).astype(np.uint8))
    edge = Image.fromarray((inside * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(FINE * 0.5))
    picture = Image.composite(ball, picture, edge)
    front = grass(side, int(side * 0.25), 9)  # blades in front of the ball
    cover = Image.fromarray(np.where(np.arange(front.height)[:, None] > front.height * 0.45, 255, 0).astype(np.uint8))
    picture.paste(front, (0, side - front.height), cover.resize(front.size))
    return picture


def church() -> Image.Image:
    side = SIDE * FINE
    picture = clouds(gradient((92, 146, 208), (206, 224, 240), side), 8, 0.75)
    picture.paste(grass(side, int(side * 0.2), 2), (0, int(side * 0.82)))
    draw = ImageDraw.Draw(picture)

    def box(left, top, right, bottom, fill):
        draw.rectangle([side * left, side * top, side * right, side * bottom], fill=fill)

    def shape(points, fill):
        draw.polygon([(side * x, side * y) for x, y in points], fill=fill)

    wall, shaded, roof, dark = (226, 218, 200), (184, 174, 156), (96, 68, 58), (50, 52, 62)
    box(0.44, 0.52, 0.86, 0.86, wall)
    shape([(0.4, 0.53), (0.47, 0.38), (0.85, 0.38), (0.9, 0.53)], roof)
    box(0.22, 0.34, 0.46, 0.87, (236, 229, 212))
    box(0.4, 0.34, 0.46, 0.87, shaded)
    shape([(0.19, 0.345), (0.34, 0.07), (0.49, 0.345)], roof)
    shape([(0.34, 0.07), (0.49, 0.345), (0.4, 0.345)], (72, 50, 44))
    box(0.336, 0.0, 0.346, 0.085, dark)
    box(0.315, 0.025, 0.367, 0.037, dark)

    def arched(left, top, right, bottom, fill):
        half = (right - left) / 2
        box(left, top + half, right, bottom, fill)
        draw.ellipse([side * left, side * top, side * right, side * (top + 2 * half)], fill=fill)

    arched(0.28, 0.4, 0.36, 0.52, dark)
    arched(0.265, 0.68, 0.375, 0.87, (92, 60, 42))
    for left in (0.52, 0.63, 0.74):
        arched(left, 0.58, left + 0.055, 0.76, dark)
        box(left + 0.024, 0.58, left + 0.031, 0.76, (150, 160, 176))
    chance = np.random.default_rng(1)  # stones
    texture = Image.fromarray((128 + 6 * chance.standard_normal((side // 8, side // 8))).clip(0, 255).astype(np.uint8))
    texture = np.asarray(texture.resize((side, side), Image.Resampling.BICUBIC), dtype=float)[..., None] - 128
    picture = Image.fromarray(np.clip(np.asarray(picture) + texture, 0, 255).astype(np.uint8))
    return picture.filter(ImageFilter.GaussianBlur(FINE * 0.4))


if __name__ == "__main__":
    main()
