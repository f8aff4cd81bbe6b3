"""The paper's main table: ImageNet-1K at 224 pixels."""

from collections.abc import Sequence

from .conditions import Condition
from .results import Results

# Model, by its name here or in timm -> its name in the paper and its figures: mCE on ImageNet-C, else top-1. PVT is
# left out, since timm does not have it, and GFNet without a star, since its figures are those of GFNet-Ti*.
BENCHMARKS = ("clean", "imagenet_c", "imagenet_r", "imagenet_sketch", "pgd", "imagenet_a")
PAPER = {
    name: {"name": title, **dict(zip(BENCHMARKS, figures, strict=True))}
    for name, title, *figures in (
        ("timm:regnety_040", "RegNetY-4GF", 79.2, 68.7, 38.8, 25.9, 2.4, 8.9),
        ("timm:resnet50", "ResNet50", 79.0, 65.5, 42.5, 31.5, 12.5, 5.9),
        ("timm:resnext50_32x4d", "ResNeXt50-32x4d", 79.8, 64.7, 41.5, 29.3, 13.5, 10.7),
        ("timm:inception_v3", "InceptionV3", 77.4, 80.6, 38.9, 27.6, 3.1, 10.0),
        ("timm:pit_ti_224", "PiT-Ti", 72.9, 69.1, 34.6, 21.6, 5.1, 6.2),
        ("timm:convit_tiny", "ConViT", 73.3, 68.4, 35.2, 22.4, 7.5, 8.9),
        ("timm:deit_tiny_patch16_224", "DeiT", 72.2, 71.1, 32.6, 20.2, 6.2, 7.3),
        ("deit_tiny_performer", "DeiT*", 74.7, 67.0, 34.5, 21.7, 11.9, 9.4),
        ("deit_tiny_vars_s", "DeiT* VARS-S", 73.7, 69.8, 36.8, 24.8, 10.8, 4.9),
        ("deit_tiny_vars_d", "DeiT* VARS-D", 75.6, 64.9, 39.6, 27.5, 13.7, 10.2),
        ("deit_tiny_vars_sd", "DeiT* VARS-SD", 76.5, 62.5, 40.2, 27.5, 13.4, 11.5),
        ("gfnet_tiny_global_filter", "GFNet-Ti*", 74.6, 65.9, 40.4, 27.0, 7.6, 6.3),
        ("gfnet_tiny_vars_s", "GFNet-Ti* VARS-S", 74.1, 63.5, 40.8, 28.6, 9.5, 5.8),
        ("gfnet_tiny_vars_d", "GFNet-Ti* VARS-D", 77.8, 58.6, 41.2, 29.0, 15.9, 12.6),
        ("gfnet_tiny_vars_sd", "GFNet-Ti* VARS-SD", 78.2, 57.4, 41.0, 29.5, 16.2, 13.0),
        ("rvt_tiny_softmax", "RVT", 78.4, 58.2, 43.7, 30.0, 11.7, 13.3),
        ("rvt_tiny_performer", "RVT*", 77.6, 60.4, 41.7, 28.7, 11.1, 11.1),
        ("rvt_tiny_vars_s", "RVT* VARS-S", 76.8, 61.8, 43.2, 30.1, 7.6, 9.1),
        ("rvt_tiny_vars_d", "RVT* VARS-D", 78.2, 58.7, 42.0, 29.8, 11.7, 12.4),
        ("rvt_tiny_vars_sd", "RVT* VARS-SD", 78.4, 58.3, 42.5, 30.5, 11.4, 13.4),
    )
}

# Accuracy on the held-out domain of PACS, by attention: RVT*-Ti, whose baseline is the Performer.
PACS = {
    attention: {"name": title, **dict(zip(("photo", "sketch", "cartoon", "art_painting"), figures, strict=True))}
    for attention, title, *figures in (
        ("performer", "RVT*-Ti", 94.19, 81.73, 79.78, 81.25),
        ("vars_s", "RVT*-Ti VARS-S", 93.89, 82.62, 80.16, 81.49),
        ("vars_d", "RVT*-Ti VARS-D", 96.29, 80.40, 80.33, 84.77),
        ("vars_sd", "RVT*-Ti VARS-SD", 96.47, 82.78, 80.98, 86.08),
    )
}


def paper_row(model: dict) -> dict | None:
    """The row of a model as described in `Results`; None if the paper has no such model, or it was changed."""
    if model.get("solving") or model.get("conversion") or model.get("size") != 224:
        return None
    name = model.get("architecture") or model["name"].partition(".")[0]
    return PAPER.get(name.removesuffix("_released"))


def paper_figure(paper: dict, results: Sequence[Results], benchmark: str, condition: Condition, metric: str) -> str:
    """The paper's figure for a line of a table; empty if not all classes and corruptions were evaluated."""
    its_own = {"imagenet_c": ("all", "mCE"), "pgd": ("linf 1/255, 5 steps", "accuracy")}
    if benchmark not in paper or (condition.label, metric) != its_own.get(benchmark, ("clean", "accuracy")):
        return ""
    classes = 200 if benchmark in ("imagenet_a", "imagenet_r") else 1000
    asked = [result.asked[benchmark] for result in results if benchmark in result.asked]
    whole = all(each["task"]["classes"] == classes and not each.get("missing") for each in asked)
    return str(paper[benchmark]) if whole else ""
