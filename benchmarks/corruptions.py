"""Corruptions: how long they take, and how near they are to what OpenCV, SciPy and scikit-image make of them.

    python benchmarks/corruptions.py --data FOLDER [--accuracy --weights deit_tiny_patch16_224.safetensors]

The other side is the package imagecorruptions-imaug where it is installed; without it only our figures are printed.
Where that package departs from the published script (elastic_transform, frost), the script's definition stands in for
it, on OpenCV and SciPy. FOLDER holds pictures, for --accuracy in one folder for each ImageNet class. Both sides run in
turn on one thread, and times are the processor's. PSNR is to the clean picture, mean over pictures; each side draws for
itself.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from torchvars.evaluation.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from torchvars.models.pixels import centre

SEVERITIES = range(1, 6)
OFFICIAL = "frost, official pictures"
Peer = Callable[[np.ndarray, int], np.ndarray]  # picture (H, W, 3) of 0 ... 255 and severity -> the same


def peers() -> tuple[dict[str, Peer], Path | None]:
    """The other side by name, and the folder of its frost pictures."""
    try:
        import cv2
        import imagecorruptions
    except ImportError as error:
        print(f"Only ours: {error}.\n")
        return {}, None
    cv2.setNumThreads(1)
    folder = Path(imagecorruptions.__file__).parent / "frost"
    panes = [cv2.imread(str(path))[..., ::-1] for path in sorted(folder.glob("frost*"))[:5]]

    def frost(picture: np.ndarray, severity: int) -> np.ndarray:
        kept, added, _ = STRENGTHS["imagenet"]["frost"][severity - 1]
        pane = panes[np.random.randint(5)]  # noqa: NPY002
        top, left = (np.random.randint(0, pane.shape[axis] - picture.shape[axis]) for axis in (0, 1))  # noqa: NPY002
        pane = pane[top : top + picture.shape[0], left : left + picture.shape[1]]
        return np.clip(kept * picture + added * pane, 0, 255).astype(np.uint8)

    def member(name: str) -> Peer:
        return lambda picture, severity: imagecorruptions.corrupt(picture, severity, name)

    known = {name: member(name) for name in CORRUPTIONS}
    return known | {"elastic_transform": elastic, "frost": frost, OFFICIAL: frost}, folder


def elastic(picture: np.ndarray, severity: int) -> np.ndarray:
    """The published elastic transform."""
    import cv2
    from scipy.ndimage import gaussian_filter, map_coordinates

    strength, sigma, shift = STRENGTHS["imagenet"]["elastic_transform"][severity - 1]
    height, width = picture.shape[:2]
    side, middle = min(height, width) // 3, np.float32([width // 2, height // 2])
    corners = middle + side * np.float32([[1, 1], [1, -1], [-1, -1]])
    moved = corners + np.random.uniform(-shift, shift, (3, 2)).astype(np.float32)  # noqa: NPY002
    affine = cv2.getAffineTransform(corners, moved)
    warped = cv2.warpAffine(
        picture.astype(np.float32) / 255, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101
    )
    noise = np.random.uniform(-1, 1, (2, height, width))  # noqa: NPY002
    right, down = (strength * gaussian_filter(one, sigma, mode="reflect", truncate=3) for one in noise)
    row, column = np.mgrid[:height, :width]
    places = [row + down, column + right]
    colours = [map_coordinates(warped[..., channel], places, order=1, mode="reflect") for channel in range(3)]
    return (np.clip(np.stack(colours, -1), 0, 1) * 255).astype(np.uint8)


def read(folder: Path, many: int, size: int) -> tuple[Tensor, list[int], list[str]]:
    """So many pictures (B, 3, size, size) of 0 ... 255, evenly from all of a folder; their classes, their names."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    if not files:
        raise SystemExit(f"--data: no .jpeg, .jpg or .png below {folder}")
    files = files[:: max(1, len(files) // many)][:many]
    classes = {name: index for index, name in enumerate(sorted(path.name for path in folder.iterdir()))}
    pictures = torch.stack([pil_to_tensor(centre(Image.open(path).convert("RGB"), size)) for path in files])
    names = [str(path.relative_to(folder)) for path in files]
    return pictures, [classes[path.relative_to(folder).parts[0]] for path in files], names


def apply(peer: Peer, pictures: Tensor, severity: int) -> Tensor:
    """The other side on pictures (B, 3, H, W) of 0 ... 255, one by one -> pixels in [0, 1]."""
    made = [torch.from_numpy(peer(picture.permute(1, 2, 0).numpy(), severity).copy()) for picture in pictures]
    return torch.stack(made).permute(0, 3, 1, 2) / 255


def timings(chosen: list[str], pictures: Tensor, names: list[str], others: dict[str, Peer], rounds: int) -> list[dict]:
    """Milliseconds a picture at each severity, the median of rounds in which both sides take turns."""
    batch, rows = pictures[:16], []
    pixels = batch / 255
    for name in chosen:
        for severity in SEVERITIES:
            ours, theirs = [], []
            for _ in range(rounds + 1):
                begin = time.process_time()
                corrupt(pixels, name, severity, names[:16])
                ours.append((time.process_time() - begin) / len(batch))
                if name in others:
                    begin = time.process_time()
                    apply(others[name], batch[:2], severity)
                    theirs.append((time.process_time() - begin) / 2)
            row = {"corruption": name, "severity": severity, "ours": 1e3 * statistics.median(ours[1:])}
            rows.append(row | {"theirs": 1e3 * statistics.median(theirs[1:])} if theirs else row)
    return rows


def figures(corrupted: Tensor, clean: Tensor, labels: Tensor, model: torch.nn.Module | None) -> dict[str, float]:
    """What can be compared of pictures (B, 3, H, W)."""
    error = (corrupted - clean).pow(2).mean((1, 2, 3)).clamp(min=1e-10)
    found = {
        "psnr": (-10 * error.log10()).mean().item(),
        "brightness": corrupted.mean().item(),
        "contrast": corrupted.flatten(1).std(1).mean().item(),
    }
    if model is not None:
        right = [
            (model(part).argmax(1) == label) for part, label in zip(corrupted.split(25), labels.split(25), strict=True)
        ]
        found["accuracy"] = 100 * torch.cat(right).float().mean().item()
    return found


def classifier(weights: Path) -> torch.nn.Module:
    """DeiT-Ti for pixels in [0, 1]."""
    import timm
    from safetensors.torch import load_file
    from torchvision.transforms import Normalize

    model = timm.create_model("deit_tiny_patch16_224")
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()})
    return torch.nn.Sequential(Normalize(timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD), model).eval()


def table(headings: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    print("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n", flush=True)


def show_timings(rows: list[dict]) -> None:
    print("### Milliseconds a picture\n")
    lines = []
    for name in dict.fromkeys(row["corruption"] for row in rows):
        own = [row for row in rows if row["corruption"] == name]
        ours = [row["ours"] for row in own]
        line = [name, f"{statistics.mean(ours):.1f}", f"{max(ours):.1f}"]
        if "theirs" in own[0]:
            theirs = statistics.mean(row["theirs"] for row in own)
            line += [f"{theirs:.1f}", f"{theirs / statistics.mean(ours):.1f}"]
        lines.append(line)
    headings = ["corruption", "ours, mean of severities", "ours, slowest severity", "theirs, mean", "times as fast"]
    table(headings[: len(lines[0])], lines)


def show(rows: list[dict], measure: str, digits: int) -> None:
    """Ours and theirs at each severity, and the largest differences."""
    lines = []
    for name in dict.fromkeys(row["corruption"] for row in rows):
        own = [row for row in rows if row["corruption"] == name]
        cells = [f"{row['ours'][measure]:.{digits}f}" for row in own]
        if "theirs" in own[0]:
            cells = [f"{cell} / {row['theirs'][measure]:.{digits}f}" for cell, row in zip(cells, own, strict=True)]
            kinds = ["psnr", "brightness", "contrast"] if measure == "psnr" else [measure]
            for kind, places in zip(kinds, (digits, 3, 3), strict=False):
                differences = [row["ours"][kind] - row["theirs"][kind] for row in own]
                mean = statistics.mean(differences)
                cells.append(f"{max(differences, key=abs):+.{places}f}" if measure == "psnr" else f"{mean:+.{places}f}")
        lines.append([name, *cells])
    last = ["PSNR", "brightness", "contrast"] if measure == "psnr" else ["mean difference"]
    table(["corruption", *map(str, SEVERITIES), *last][: len(lines[0])], lines)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of pictures")
    parser.add_argument("--pictures", type=int, default=100, help="how many of them to compare (default: 100)")
    parser.add_argument("--only", nargs="+", default=list(CORRUPTIONS), choices=CORRUPTIONS, help="these corruptions")
    parser.add_argument("--size", type=int, default=224, help="their side in pixels (default: 224)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; 0 for no timings (default: 5)")
    parser.add_argument("--accuracy", action="store_true", help="compare the accuracy of a DeiT-Ti as well")
    parser.add_argument("--weights", type=Path, help="of the DeiT-Ti, in timm's names, .safetensors")
    parser.add_argument("--output", type=Path, default=Path("output/corruptions.json"), help="all figures as JSON")
    arguments = parser.parse_args()
    if arguments.accuracy and arguments.weights is None:
        parser.error("--accuracy needs --weights")
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002
    others, folder = peers()
    pictures, classes, names = read(arguments.data, arguments.pictures, arguments.size)
    clean, labels = pictures / 255, torch.tensor(classes)
    model = classifier(arguments.weights) if arguments.accuracy else None
    timed = timings(arguments.only, pictures, names, others, arguments.rounds) if arguments.rounds else []
    if timed:
        show_timings(timed)
    rows = []
    for name in arguments.only + [OFFICIAL] * (OFFICIAL in others and "frost" in arguments.only):
        for severity in SEVERITIES:
            panes = folder if name == OFFICIAL else None
            ours = corrupt(clean, name.split(",")[0], severity, names, frost=panes)
            row = {"corruption": name, "severity": severity, "ours": figures(ours, clean, labels, model)}
            if name in others:
                row["theirs"] = figures(apply(others[name], pictures, severity), clean, labels, model)
            rows.append(row)
    what = ", ours / theirs, and the largest differences" if others else ""
    print(f"### PSNR in dB by severity{what}\n")
    show(rows, "psnr", 2)
    if model is not None:
        accuracy = figures(clean, clean, labels, model)["accuracy"]
        print(f"### Accuracy in percent by severity{', ours / theirs' if others else ''}; {accuracy:.1f} clean\n")
        show(rows, "accuracy", 1)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"timings": timed, "figures": rows}, indent=1) + "\n")
    print(f"all figures: {arguments.output}")


if __name__ == "__main__":
    main()
